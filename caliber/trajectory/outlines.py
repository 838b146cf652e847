"""Blocks of turns that are summarized together, and readers of their outlines from memory or store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import TurnRole
from caliber.resident.memory import ResidentMemory
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.traits import NEVER_US
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store


class Block(NamedTuple):
    """The numbers of the first and the last turn of a block, or of the part of a block that has no summary."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Outline:
    """The turns of one scope, in the order of their numbers, without their texts.

    ``results`` are turns of role tool, ``calls`` turns that call tools; ``summaries`` holds the first number, the last
    number and the count of source turns of each summary; ``next_number`` is that of the next turn of the trajectory.
    Shapes: ``numbers`` int64[n], ``results`` and ``calls`` bool[n], ``summaries`` int64[m, 3].
    """

    numbers: NDArray[np.int64]
    results: NDArray[np.bool_]
    calls: NDArray[np.bool_]
    summaries: NDArray[np.int64]
    next_number: int


class Missing(NamedTuple):
    """Complete blocks without a summary; ``waits`` if one more may only wait for results of its last calls."""

    blocks: list[Block]
    waits: bool


def callers(numbers: NDArray[np.int64], results: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Return the places of the turns of which it matters whether they call tools.

    These are the turns before results that stand in a later block by their numbers, and the last turn before the end.
    """
    count = len(numbers)
    if not count:
        return np.empty(0, np.int64)
    before = _callers(results)
    own = numbers // size
    matters = results & (before >= 0) & (own != own[before])
    matters[-1] = before[-1] >= 0
    return np.unique(before[matters])


def missing(outline: Outline, size: int) -> Missing:
    """Return the complete blocks that have no summary, as far as they have none."""
    numbers = outline.numbers
    count = len(numbers)
    if not count:
        return Missing([], False)
    anchors = _anchors(outline)
    blocks = numbers[anchors] // size
    wanted = ~_covered(outline) & ((blocks + 1) * size < outline.next_number)
    if not wanted.any():
        return Missing([], False)
    begins = wanted.copy()
    begins[1:] &= ~wanted[:-1] | (blocks[1:] != blocks[:-1])
    ends = wanted.copy()
    ends[:-1] &= ~wanted[1:] | begins[1:]
    found: list[Block] = []
    waits = False
    for first, last in zip(np.flatnonzero(begins).tolist(), np.flatnonzero(ends).tolist(), strict=True):
        if last == count - 1 and outline.calls[anchors[last]]:
            waits = True
        else:
            found.append(Block(int(numbers[first]), int(numbers[last])))
    return Missing(found, waits)


def outdated(outline: Outline) -> list[Block]:
    """Return the ranges of summaries that were not made of all turns in them, and only of these."""
    first, last, sources = outline.summaries.T
    turns = np.searchsorted(outline.numbers, last, "right") - np.searchsorted(outline.numbers, first, "left")
    return [Block(int(first[at]), int(last[at])) for at in np.flatnonzero(turns != sources).tolist()]


def _callers(results: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each turn the place of the last turn up to it that is no result, or -1."""
    return np.maximum.accumulate(np.where(results, -1, np.arange(len(results))))


def _anchors(outline: Outline) -> NDArray[np.int64]:
    """Return for each turn the place of the turn that decides its block: itself, or for results the one that called."""
    before = _callers(outline.results)
    follows = outline.results & (before >= 0) & outline.calls[before]
    return np.where(follows, before, np.arange(len(before)))


def _covered(outline: Outline) -> NDArray[np.bool_]:
    first, last, _ = outline.summaries.T
    steps = np.zeros(len(outline.numbers) + 1, np.int64)
    np.add.at(steps, np.searchsorted(outline.numbers, first, "left"), 1)
    np.add.at(steps, np.searchsorted(outline.numbers, last, "right"), -1)
    return np.cumsum(steps[:-1]) > 0


_NO_CALLS = "[]"


class Outlines:
    """Reads the outlines of open scopes from resident memory. ``size`` is the number of turns of a block."""

    def __init__(self, memory: ResidentMemory, size: int) -> None:
        self._memory = memory
        self._size = size

    def tasks(self) -> list[bytes]:
        """Return the keys of the trajectories with an open scope and enough turns for a block."""
        snapshot = self._memory.snapshot
        scopes, trajectories = snapshot["scope"], snapshot["trajectory"]
        still_open = np.flatnonzero(scopes.live_mask & (scopes.column("closed_at") == NEVER_US))
        owners: list[bytes] = scopes.interned("trajectory_id")
        keys = [owners[code] for code in np.unique(scopes.column("trajectory_id")[still_open]).tolist()]
        return [key for key in keys if _next_number(trajectories, key) > self._size]

    def of(self, trajectory: bytes, *, whole: bool) -> Iterator[tuple[bytes, Outline]]:
        """Yield the key and the outline of each open scope of a trajectory.

        ``whole``: complete, with the source turns of summaries; otherwise only what is cheap after an append.
        """
        snapshot = self._memory.snapshot
        next_number = _next_number(snapshot["trajectory"], trajectory)
        if next_number <= self._size:
            return
        scopes = snapshot["scope"]
        rows = scopes.group("trajectory_id", trajectory)
        for row in rows[scopes.column("closed_at")[rows] == NEVER_US].tolist():
            scope = scopes.entity_id(row).bytes
            yield scope, self._outline(snapshot, scope, next_number, whole=whole)

    def _outline(self, snapshot: ResidentSnapshot, scope: bytes, next_number: int, *, whole: bool) -> Outline:
        turns = snapshot["turn"]
        rows = turns.group("scope_id", scope)
        numbers = turns.column("turn_number")[rows]
        if (numbers[1:] < numbers[:-1]).any():  # a turn was changed after others had been appended
            order = np.argsort(numbers, kind="stable")
            rows, numbers = rows[order], numbers[order]
        results = turns.column("role")[rows] == turns.enum_code("role", TurnRole.TOOL)
        calls = np.zeros(len(rows), np.bool_)
        asked = callers(numbers, results, self._size)
        values = turns.packed_values("tool_calls", rows[asked].tolist())
        calls[asked] = [value != _NO_CALLS for value in values]
        return Outline(numbers, results, calls, _summaries(snapshot["turn_summary"], scope, whole=whole), next_number)


class StoredOutlines(Outlines):
    """Reads outlines from the store, where turns and their summaries are not in memory."""

    def __init__(self, store: Store, memory: ResidentMemory, size: int) -> None:
        super().__init__(memory, size)
        self._store = store

    def _outline(
        self,
        snapshot: ResidentSnapshot,  # noqa: ARG002
        scope: bytes,
        next_number: int,
        *,
        whole: bool,
    ) -> Outline:
        with self._store.read() as session:
            ranges = self._run(session, "turn_summary.ranges", scope)
            # Summarized turns are skipped: appending does not change them.
            begin = 0 if whole or not ranges else max(last for _, last, _ in ranges) + 1
            turns = np.array(self._run(session, "turn.outline", scope, begin), np.int64).reshape(-1, 3)
        summaries = np.array(ranges, np.int64).reshape(-1, 3)
        return Outline(turns[:, 0], turns[:, 1] != 0, turns[:, 2] != 0, summaries, next_number)

    def _run(self, session: StatementSession, statement: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        return session.run(self._store.statements[statement], parameters)


def _next_number(trajectories: RelationSnapshot, key: bytes) -> int:
    """Return the number that the next turn of a trajectory gets; 0 where there is none."""
    row = trajectories.find(key)
    return 0 if row < 0 else int(trajectories.packed_values("turn_count", [row])[0])


def _summaries(summaries: RelationSnapshot, scope: bytes, *, whole: bool) -> NDArray[np.int64]:
    """Return first number, last number and count of source turns of a scope's summaries; without ``whole`` no count."""
    rows = summaries.group("scope_id", scope)
    out = np.full((len(rows), 3), -1, np.int64)
    out[:, 0], out[:, 1] = summaries.column("first_turn")[rows], summaries.column("last_turn")[rows]
    if whole:
        out[:, 2] = [len(sources) // 16 for sources in summaries.packed_values("source_turns", rows.tolist())]
    return out
