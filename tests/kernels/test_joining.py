"""Joining the legs of a search: the kernel against its twin in plain Python. # M-036, K-119"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.kernels.instruction_sets import MACHINES, running_on, searched

from caliber.kernels.joining.join import FLAGGED, NEIGHBOURS, QUOTIENT, STRETCHED, VALUES, Part, join
from caliber.model.errors import DTypeError, InvalidValue, ShapeError

# Large ones that cancel out: what is left of the small ones depends on the order of the sum.
NUMBERS = st.one_of(st.floats(-2, 2), st.sampled_from([0.0, -0.0, 0.5, 1e-50, 1e15, -1e15]))
SHARES = st.one_of(st.sampled_from([0.4, -0.05, 1.0]), st.floats(-1, 1))
SCALES = st.sampled_from([1.0, 0.3, 7.0, -2.0])


@dataclass
class Case:
    parts: list[tuple[float, Part]]
    rows: np.ndarray
    tie: np.ndarray
    k: int
    inside: np.ndarray | None
    least: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    room = draw(st.integers(0, 30))
    rows = np.array(draw(st.permutations(range(room)))[: draw(st.integers(0, room))], np.int64)
    count = len(rows)

    def column(size: int) -> np.ndarray:
        return np.array(draw(st.lists(NUMBERS, min_size=size, max_size=size)), np.float64)

    flags = np.array(draw(st.lists(st.integers(0, 7), min_size=room, max_size=room)), np.uint8)
    kinds = {
        VALUES: lambda: Part(VALUES, column(count)),
        QUOTIENT: lambda: Part(QUOTIENT, column(count), by=draw(SCALES)),
        NEIGHBOURS: lambda: Part(NEIGHBOURS, column(count), column(count), by=draw(SCALES)),
        STRETCHED: lambda: Part(
            STRETCHED, near=column(draw(st.integers(0, count))).astype(np.float32), low=0.25, by=draw(SCALES)
        ),
        FLAGGED: lambda: Part(FLAGGED, flags=flags, flag=draw(st.integers(1, 4))),
    }
    parts = [(draw(SHARES), kinds[how]()) for how in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=5))]
    tie = np.array([[draw(st.integers(0, 1)), draw(st.integers(0, 2))] for _ in range(room)], np.uint64).reshape(-1, 2)
    inside = np.array(draw(st.lists(st.booleans(), min_size=room, max_size=room)), np.bool_)
    masked = inside if draw(st.booleans()) else None
    return Case(parts, rows, tie, draw(st.integers(0, 35)), masked, draw(st.sampled_from([0.0, 1e-6, 0.5])))


def plain(case: Case) -> tuple[list[float], list[int], list[list[float]]]:
    """Return scores, places of the best, and what each part gave to them; one number at a time."""

    def said(part: Part, at: int, row: int) -> float:
        if part.how == FLAGGED:
            return 1.0 if int(part.flags[row]) & part.flag else 0.0
        if part.how == STRETCHED:
            return (float(part.near[at]) - part.low) / part.by if at < len(part.near) else 0.0
        own = float(part.scores[at])
        if part.how == NEIGHBOURS:
            return own / part.by - float(part.less[at]) / part.by
        return own / part.by if part.how == QUOTIENT else own

    scores = []
    for at, row in enumerate(case.rows.tolist()):
        total = 0.0
        for share, part in case.parts:
            total += share * said(part, at, row)
        scores.append(max(total, case.least) if case.inside is None or case.inside[row] else 0.0)
    rounded = [struct.unpack("f", struct.pack("f", score))[0] for score in scores]
    places = [at for at in range(len(scores)) if rounded[at] > 0]
    places.sort(key=lambda at: (-rounded[at], *case.tie[case.rows[at]].tolist(), at))
    best = places[: case.k]
    gave = [[share * said(part, at, int(case.rows[at])) for at in best] for share, part in case.parts]
    return scores, best, gave


@pytest.mark.parametrize("path", MACHINES)
@searched(case=cases(), examples=60)
def test_scores_and_the_best_of_them(path: str, case: Case) -> None:
    scores, places, gave = plain(case)
    with running_on(path):
        found = join(case.parts, case.rows, case.tie, case.k, inside=case.inside, least=case.least)
        again = found.shares(np.array([-1, *places], np.int64))
        other = found.by(-found.scores, case.k)
        of_others = other.contributions
    assert found.scores.tobytes() == np.array(scores, np.float64).tobytes()
    assert found.places.tolist() == places
    assert found.best.tolist() == [float(np.float32(scores[place])) for place in places]
    assert found.contributions.tolist() == gave
    assert again.tolist() == [[0.0, *some] for some in gave]
    rounded = (-found.scores).astype(np.float32)
    below = sorted(
        np.flatnonzero(rounded > 0).tolist(), key=lambda at: (-rounded[at], *case.tie[case.rows[at]].tolist(), at)
    )[: case.k]
    assert (other.places.tolist(), other.best.tolist()) == (below, rounded[below].tolist())
    assert of_others.tobytes() == found.shares(np.array(below, np.int64)).tobytes()


@pytest.mark.parametrize("path", MACHINES)
def test_bad_input_is_named(path: str) -> None:
    rows, tie = np.array([0, 2]), np.zeros((3, 2), np.uint64)
    good = Part(VALUES, np.ones(2))
    bad: list[tuple[Any, ...]] = [
        ([(1.0, Part(VALUES, np.ones(3)))], rows),
        ([(1.0, Part(VALUES, np.ones(4)[::2]))], rows),
        ([(1.0, Part(VALUES))], rows),
        ([(1.0, Part(9, np.ones(2)))], rows),
        ([(1.0, Part(NEIGHBOURS, np.ones(2)))], rows),
        ([(1.0, Part(STRETCHED, near=np.ones(3, np.float32)))], rows),
        ([(1.0, Part(STRETCHED, near=np.ones(2)))], rows),
        ([(1.0, Part(FLAGGED, flags=np.zeros(2, np.uint8), flag=1))], rows),
        ([(1.0, good)], np.array([0, 3])),
        ([(1.0, good)], np.array([-1, 0])),
    ]
    with running_on(path):
        for parts, wrong in bad:
            with pytest.raises(InvalidValue):
                join(parts, wrong, tie, 1)
        joined = join([(1.0, good)], rows, tie, 1)
        with pytest.raises(InvalidValue):
            joined.shares(np.array([2]))
        with pytest.raises(DTypeError):
            joined.shares(np.array([0.0]))
        for scores in (np.ones(3), np.ones(2, np.float32), np.ones(4)[::2]):
            with pytest.raises((ShapeError, DTypeError, InvalidValue)):
                joined.by(scores, 1)
        with pytest.raises(ShapeError):
            join([(1.0, good)], rows, np.zeros((3, 3), np.uint64), 1)
        with pytest.raises(DTypeError):
            join([(1.0, good)], rows.astype(np.int32), tie, 1)
        with pytest.raises(ShapeError):
            join([(1.0, good)], rows, tie, 1, inside=np.ones(2, np.bool_))
        assert join([(1.0, good)], rows, tie, 1).places.tolist() == [0]
