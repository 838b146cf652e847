"""Native score fusion: weighted sums of keyword, vector and graph scores, the best ``k``, and each part's share.

Source: docs/search.md; csrc/include/caliber.h, ``cal_join``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InvalidValue

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

VALUES: Final = 0
QUOTIENT: Final = 1
NEIGHBOURS: Final = 2
STRETCHED: Final = 3
FLAGGED: Final = 4
"""Kinds of parts; as CAL_PART_* of caliber.h."""


class Part(NamedTuple):
    """The scores of one leg or boost for each candidate.

    ``how`` selects the formula: VALUES scores; QUOTIENT scores / by; NEIGHBOURS scores / by - less / by; STRETCHED
    (near - low) / by of the first candidates, 0 of the others; FLAGGED 1 where the row's flags have a bit of ``flag``.

    Shapes:  scores, less f64[n]; near f32[m], m <= n; flags uint8[rows]
    """

    how: int
    scores: Doubles | None = None
    less: Doubles | None = None
    near: npt.NDArray[np.float32] | None = None
    flags: npt.NDArray[np.uint8] | None = None
    flag: int = 0
    by: float = 1.0
    low: float = 0.0


_TYPES: Final = {
    VALUES: checks.F64,
    QUOTIENT: checks.F64,
    NEIGHBOURS: checks.F64,
    STRETCHED: checks.F32,
    FLAGGED: checks.U8,
}
Weighted = Sequence[tuple[float, Part]]
"""Parts, each with its share of the whole."""


def dense(part: Part, rows: Ints) -> Doubles:
    """Return a part's score of every candidate."""
    if part.how == STRETCHED:
        assert part.near is not None
        out = np.zeros(len(rows))
        out[: len(part.near)] = (part.near.astype(np.float64) - part.low) / part.by
        return out
    if part.how == FLAGGED:
        assert part.flags is not None
        marked: Doubles = ((part.flags[rows] & np.uint8(part.flag)) != 0).astype(np.float64)
        return marked
    assert part.scores is not None
    if part.how == VALUES:
        return part.scores
    if part.how == QUOTIENT:
        return part.scores / part.by
    assert part.less is not None
    return part.scores / part.by - part.less / part.by


class Best:
    """All scores, and the best candidates: their places, scores, and the contribution of each part.

    Parts and rows were checked when they were joined: what is asked of the same candidates later need not.

    Shapes:  scores f64[n]; places int64[k]; best f32[k]
    """

    __slots__ = ("_joined", "_shares", "best", "parts", "places", "scores")

    def __init__(
        self,
        parts: Weighted,
        joined: tuple[dispatch.Native, tuple[Any, ...], Any],
        found: tuple[Doubles, Ints, npt.NDArray[np.float32]],
        shares: Doubles | None = None,
    ) -> None:
        self.parts = parts
        self._joined = joined  # as C reads them: parts and rows, and ties
        self.scores, self.places, self.best = found
        self._shares = shares

    @property
    def contributions(self) -> Doubles:
        """The share of each part in the best scores. Shapes: ``f64[parts, k]``."""
        if self._shares is None:
            self._shares = self.shares(self.places)
        return self._shares

    def by(self, scores: Doubles, k: int) -> Best:
        """Return the best ``k`` of the same candidates by other scores; raises as ``best_scores``."""
        native, candidates, tie = self._joined
        count, rows = candidates[2:4]
        scores = checks.shaped(scores, checks.F64, (count,), field="scores")
        found = _best(native, scores, rows, tie, min(checks.whole(k, field="k"), count))
        return Best(self.parts, self._joined, (scores, *found))

    def shares(self, places: Ints) -> Doubles:
        """Return each part's share in the scores of some places; 0 for a place of -1.

        Shapes:  places int64[m] -> f64[parts, m]
        Raises:  DTypeError, ShapeError, InvalidValue
        """
        native, candidates, _ = self._joined
        places = checks.shaped(places, checks.I64, (len(places),), field="places")
        out = np.empty((len(self.parts), len(places)))
        buffer = native.ffi.from_buffer
        status = native.lib.cal_join_told(
            *candidates, buffer("int64_t[]", places), len(places), buffer("double[]", out)
        )
        if status:
            dispatch.check(status, argument="places")
        return out


def join(
    parts: Weighted,
    rows: Ints,
    tie: npt.NDArray[np.uint64],
    k: int,
    *,
    inside: npt.NDArray[Any] | None = None,
    least: float = 0.0,
) -> Best:
    """Return the sum of shares of parts for each candidate, and the best ``k`` above 0 in canonical order.

    A score is at least ``least``, and 0 where ``inside`` (None: everywhere) does not have the candidate's row. Sums are
    of f64 in the order of the parts; the best are compared as f32.

    Shapes:  rows int64[n]; tie u64[r, 2]; inside bool[r]
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    count, room = len(rows), len(tie)
    rows = checks.shaped(rows, checks.I64, (count,), field="rows")
    tie = checks.shaped(tie, checks.U64, (room, 2), field="tie")
    flags = None if inside is None else checks.flags(inside, room, field="inside")
    limit = min(checks.whole(k, field="k"), count)
    native = dispatch.native()
    buffer, null = native.ffi.from_buffer, native.ffi.NULL
    candidates = (_table(native, parts, count, room), len(parts), count, buffer("int64_t[]", rows), room)
    ties = buffer("uint64_t[]", tie)
    scores, places = np.empty(count), np.empty(limit, np.int64)
    best, shares = np.empty(limit, np.float32), np.empty(len(parts) * limit)
    found = native.ffi.new("size_t *")
    status = native.lib.cal_join(
        *candidates,
        null if flags is None else buffer("uint8_t[]", flags),
        least,
        ties,
        limit,
        buffer("double[]", scores),
        buffer("int64_t[]", places),
        buffer("float[]", best),
        buffer("double[]", shares),
        found,
    )
    if status:
        dispatch.check(status, argument="rows")
    size = int(found[0])
    told = shares[: len(parts) * size].reshape(len(parts), size)
    return Best(parts, (native, candidates, ties), (scores, places[:size], best[:size]), told)


def best_scores(
    scores: npt.NDArray[np.float64],
    k: int,
    *,
    tie: npt.NDArray[np.uint64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the places of the best ``k`` scores that are above 0 when rounded to f32, in canonical order.

    Score i is that of row ``rows[i]``, whose tie decides among equals; without ``rows``, of row i.

    Shapes:  scores f64[n]; rows int64[n]; tie u64[n or rows, 2] -> (int64[m], f32[m]), m <= k
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    scores = checks.view(scores, checks.F64, 1, field="scores")
    limit = min(checks.whole(k, field="k"), scores.shape[0])
    if tie is not None:
        tie = checks.shaped(tie, checks.U64, (scores.shape[0] if rows is None else None, 2), field="tie")
    if rows is not None:
        rows = checks.row_ids(rows, 0 if tie is None else tie.shape[0], field="rows")
        if rows.shape[0] != scores.shape[0]:
            raise InvalidValue(field="rows", reason="a row for each score")
    native = dispatch.native()
    buffer, null = native.ffi.from_buffer, native.ffi.NULL
    every = null if rows is None else buffer("int64_t[]", rows)
    return _best(native, scores, every, null if tie is None else buffer("uint64_t[]", tie), limit)


def _best(
    native: dispatch.Native, scores: Doubles, rows: Any, tie: Any, limit: int
) -> tuple[Ints, npt.NDArray[np.float32]]:
    ids, best = np.empty(limit, np.int64), np.empty(limit, np.float32)
    buffer, found = native.ffi.from_buffer, native.ffi.new("size_t *")
    status = native.lib.cal_best_scores(
        buffer("double[]", scores),
        len(scores),
        rows,
        tie,
        limit,
        buffer("int64_t[]", ids),
        buffer("float[]", best),
        found,
    )
    if status:
        dispatch.check(status)
    count = int(found[0])
    return ids[:count], best[:count]


def _table(native: dispatch.Native, parts: Weighted, count: int, room: int) -> Any:
    """Return the parts as C reads them; valid as long as their arrays are. Raises: InvalidValue."""
    buffer = native.ffi.from_buffer
    table = native.ffi.new("cal_part[]", len(parts))
    for at, (share, (how, scores, less, near, flags, flag, by, low)) in enumerate(parts):
        row = table[at]
        row.how, row.share, row.by = how, share, by
        array: Any = flags if how == FLAGGED else near if how == STRETCHED else scores
        size = -1
        if array is not None and array.dtype == _TYPES.get(how) and array.ndim == 1 and array.flags.c_contiguous:
            size = len(array)
        fits = size >= room if how == FLAGGED else 0 <= size <= count if how == STRETCHED else size == count
        if fits and how == NEIGHBOURS:
            fits = less is not None and less.dtype == checks.F64 and less.shape == (count,) and less.flags.c_contiguous
        if not fits:
            raise InvalidValue(
                field="parts", reason="lacks a field that its kind reads, or has one of another type or length"
            )
        if how == FLAGGED:
            row.flags, row.flag = buffer("uint8_t[]", array), flag
        elif how == STRETCHED:
            row.near, row.near_count, row.low = buffer("float[]", array), size, low
        else:
            row.scores = buffer("double[]", array)
            if how == NEIGHBOURS:
                row.less = buffer("double[]", less)
    return table
