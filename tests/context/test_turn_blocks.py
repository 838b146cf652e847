"""Blocks of turns: against a plain twin, and whatever the order in which turns, results and scopes come. Issue 12."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caliber.trajectory.outlines import Block, Missing, Outline, callers, missing, outdated


class Said(NamedTuple):
    """A turn of a scope: its number in the trajectory, whether it is a result, and whether it calls tools."""

    number: int
    result: bool = False
    calls: bool = False


def outline(
    turns: Sequence[Said], summaries: Sequence[tuple[int, int, int]], next_number: int, size: int | None = None
) -> Outline:
    """Return turns as the worker sees them; with ``size`` it knows of calls only where it asks for them."""
    numbers = np.array([turn.number for turn in turns], np.int64)
    results = np.array([turn.result for turn in turns], np.bool_)
    calls = np.array([turn.calls for turn in turns], np.bool_)
    if size is not None:
        known = np.zeros(len(turns), np.bool_)
        asked = callers(numbers, results, size)
        known[asked] = calls[asked]
        calls = known
    return Outline(numbers, results, calls, np.array(summaries, np.int64).reshape(-1, 3), next_number)


def twin(turns: Sequence[Said], summaries: Sequence[tuple[int, int, int]], next_number: int, size: int) -> Missing:
    """Return the turns without a summary, turn by turn."""
    pieces: list[tuple[int, list[Said], bool]] = []
    caller: Said | None = None
    block = 0
    before: tuple[int, bool] | None = None
    for turn in turns:
        if not turn.result:
            caller = turn
        follows = turn.result and caller is not None and caller.calls
        if not follows:
            block = turn.number // size
        if turn.result and follows:
            block = caller.number // size
        covered = any(first <= turn.number <= last for first, last, _ in summaries)
        place = (block, covered)
        if before != place:
            pieces.append((block, [], covered))
        before = place
        pieces[-1][1].append(turn)
    found, waits = [], False
    for block, piece, covered in pieces:
        if covered or next_number <= (block + 1) * size:
            continue
        last = piece[-1]
        open_end = last is turns[-1] and (last.calls or (last.result and caller is not None and caller.calls))
        if open_end:
            waits = True
        else:
            found.append(Block(piece[0].number, last.number))
    return Missing(found, waits)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Said], int]:
    """Draw the turns of one scope among those of others, and the number of the next."""
    kinds = st.sampled_from(["word", "word", "call", "result", "result", "elsewhere", "gone"])
    turns = []
    drawn = draw(st.lists(kinds, max_size=60))
    for number, kind in enumerate(drawn):
        if kind not in ("elsewhere", "gone"):
            turns.append(Said(number, result=kind == "result", calls=kind == "call"))
    return turns, len(drawn)


@st.composite
def summarized(draw: st.DrawFn, turns: Sequence[Said]) -> list[tuple[int, int, int]]:
    """Draw disjoint ranges of turns that have a summary, whoever made them and with what size of blocks."""
    out = []
    at = 0
    while at < len(turns) and draw(st.booleans()):
        first = at + draw(st.integers(0, len(turns) - 1 - at))
        last = first + draw(st.integers(0, len(turns) - 1 - first))
        out.append((turns[first].number, turns[last].number, last - first + 1))
        at = last + 1
    return out


SIZES = st.integers(1, 9)


@given(conversations(), SIZES, st.data())
def test_blocks_are_those_of_the_twin(told: tuple[list[Said], int], size: int, data: st.DataObject) -> None:
    turns, next_number = told
    summaries = data.draw(summarized(turns))
    expected = twin(turns, summaries, next_number, size)
    assert missing(outline(turns, summaries, next_number), size) == expected
    assert missing(outline(turns, summaries, next_number, size), size) == expected, (
        "what it does not ask for is no matter"
    )


@given(conversations(), SIZES)
def test_every_turn_is_in_one_block_and_results_in_that_of_their_call(told: tuple[list[Said], int], size: int) -> None:
    turns, next_number = told
    blocks, waits = missing(outline(turns, (), next_number), size)
    assert all(one.last < other.first for one, other in itertools.pairwise(blocks))
    numbers = [turn.number for turn in turns]
    assert {number for block in blocks for number in block} <= set(numbers)

    def block_of(number: int) -> Block | None:
        return next((block for block in blocks if block.first <= number <= block.last), None)

    caller: Said | None = None
    for turn in turns:
        if turn.result and caller is not None:
            assert block_of(turn.number) == block_of(caller.number)
        elif not turn.result:
            caller = turn if turn.calls else None
            if caller is None and next_number > (turn.number // size + 1) * size:
                at_the_end = waits and (not blocks or turn.number > blocks[-1].last)
                assert block_of(turn.number) is not None or at_the_end, "its block is complete"
        if next_number <= (turn.number // size + 1) * size and not turn.result:
            assert block_of(turn.number) is None, "its block may get more turns"
    if not waits and blocks:
        beyond = [number for number in numbers if number > blocks[-1].last]
        assert all(next_number <= (number // size + 1) * size for number in beyond)


@given(conversations(), SIZES)
def test_blocks_summarized_one_by_one_are_those_found_at_the_end(told: tuple[list[Said], int], size: int) -> None:
    turns, next_number = told
    summaries: list[tuple[int, int, int]] = []
    for number in range(next_number):
        there = [turn for turn in turns if turn.number <= number]
        found = missing(outline(there, summaries, number + 1, size), size)
        for first, last in found.blocks:
            summaries.append((first, last, sum(first <= turn.number <= last for turn in there)))
        assert missing(outline(there, summaries, number + 1, size), size) == Missing([], found.waits)
        assert outdated(outline(there, summaries, number + 1)) == []
    whole = missing(outline(turns, (), next_number, size), size)
    assert [Block(first, last) for first, last, _ in summaries] == whole.blocks


@given(conversations(), SIZES, SIZES, st.data())
def test_what_a_block_lost_is_summarized_again_and_nothing_twice(
    told: tuple[list[Said], int], size: int, other: int, data: st.DataObject
) -> None:
    # turns go, and somebody goes on with blocks of another size: no two summaries have a turn in common
    turns, next_number = told
    blocks = missing(outline(turns, (), next_number, size), size).blocks
    kept = [block for block in blocks if data.draw(st.booleans())]
    gone = data.draw(st.sets(st.sampled_from(turns))) if turns else set()
    gone = {turn for turn in gone if not any(block.first <= turn.number <= block.last for block in kept)}
    left = [turn for turn in turns if turn not in gone]
    summaries = [(*block, sum(block.first <= turn.number <= block.last for turn in left)) for block in kept]
    assert outdated(outline(left, summaries, next_number)) == []
    new = missing(outline(left, summaries, next_number, other), other).blocks
    covered = sorted([*kept, *new])
    assert all(one.last < following.first for one, following in itertools.pairwise(covered))
    for block in new:
        assert {block.first, block.last} <= {turn.number for turn in left}


@given(conversations(), st.data())
def test_a_summary_of_other_turns_is_known(told: tuple[list[Said], int], data: st.DataObject) -> None:
    turns, next_number = told
    summaries = data.draw(summarized(turns))
    wrong = [(first, last, count + data.draw(st.integers(-1, 1))) for first, last, count in summaries]
    expected = [
        Block(first, last) for (first, last, count), said in zip(summaries, wrong, strict=True) if said[2] != count
    ]
    assert outdated(outline(turns, wrong, next_number)) == expected
