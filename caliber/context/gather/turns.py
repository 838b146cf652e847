"""Readers of turns from resident memory, for conversation or passages: order, call groups, lengths and texts.

An assistant turn that calls tools and the results that answer it form one group, which enters a window whole or not at
all. Source: C-451, K-075, O-8.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.conversation import TURNS
from caliber.context.inputs import TextSource
from caliber.context.plan import AssemblyPlan
from caliber.context.record_lines import LENGTH_MASK, length_table
from caliber.context.texts import TurnText, turn_text
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import TurnRole
from caliber.resident.snapshot import ResidentSnapshot

_CALLS_BIT: Final = 1 << 33
"""Of a turn that may be one of a group."""
_PARTS_BIT: Final = 1 << 32
_PARTS: Final = ("role", "name", "tool_calls", "tool_call_id", "thinking", "is_error")
"""The columns of a turn besides its content."""
Rows = NDArray[np.int64]
Parts = tuple[Sequence[str], str | None, bool]
"""The ids of the calls of a turn, of the one that it answers, and whether it has thoughts."""
Keep = Callable[[NDArray[np.bool_]], NDArray[np.bool_]]
"""Selects among rows those to keep. Shapes: ``bool[length of the mirror]``"""
_ROLES: Final = tuple(role.value for role in TurnRole)
"""The roles by the codes of their column."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The turns of a scope in chronological order. Shapes: ``int64[n]``; groups are -1 for a turn alone.

    ``unanswered`` is how many calls of a turn lack a result.
    """

    rows: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: NDArray[np.int64]
    lengths: NDArray[np.int64]
    unanswered: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def at(self, places: NDArray[np.int64]) -> TurnFacts:
        """Return those at some places."""
        return TurnFacts(
            self.rows[places], self.numbers[places], self.groups[places], self.lengths[places], self.unanswered[places]
        )

    @classmethod
    def none(cls) -> TurnFacts:
        """Return no turns."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, empty)


def group_calls(count: int, turns: Iterable[tuple[int, Parts]]) -> tuple[Rows, Rows, list[int]]:
    """Return the group of each turn, how many of its calls lack a result, and the results whose call is missing.

    ``turns`` are places with their parts. A group is named after the place of its call. A call without an answer and an
    answer with its thoughts are groups too: they may not be cut.
    """
    groups, unanswered = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    missing: list[int] = []
    caller: dict[str, int] = {}
    lacking: dict[str, int] = {}
    for place, (calls, answered, thinks) in turns:
        if calls or thinks:
            groups[place], unanswered[place] = place, len(calls)
            caller |= dict.fromkeys(calls, place)
            lacking |= Counter(calls)
        elif answered in caller:
            groups[place] = caller[answered]
            unanswered[groups[place]] -= lacking[answered] > 0
            lacking[answered] -= 1
        elif answered is not None:
            missing.append(place)
    return groups, unanswered, missing


def _ids(calls: str) -> list[str]:
    return [] if calls == "[]" else [call[0] for call in json.loads(calls)]


class TurnReader:
    """Turns of one snapshot as text.

    How long a turn reads, and whether it has a name or calls, is worked out once per version of a turn.
    """

    __slots__ = ("_plan", "_source", "_table", "turns")

    def __init__(self, snapshot: ResidentSnapshot, source: TextSource, plan: AssemblyPlan) -> None:
        self.turns = snapshot[TURNS]
        self._source = source
        self._plan = plan
        self._table = length_table(source, snapshot.position.epoch, f"{TURNS} {self._ruler(plan)}")

    @staticmethod
    def _ruler(plan: AssemblyPlan) -> str:
        """Return the parameters that lengths depend on, besides the turn."""
        return plan.ruler

    @staticmethod
    def _read(turn: TurnText) -> str:
        """Return a turn as it reads."""
        return turn.text

    @staticmethod
    def _label(turn: TurnText) -> str:
        return turn.label

    def of_rows(self, rows: NDArray[np.int64], limit: int, keep: Keep | None = None) -> tuple[TurnFacts, int, int]:
        """Return the newest ``limit`` of some turns, how many there were, and how many of them match ``keep``.

        If the limit cuts off a call, its results are cut off too; a call and its results are kept together or not at
        all. A call from an earlier scope is included with its results here, and so are its other results.
        """
        considered = through = len(rows)
        original = rows
        if not considered:
            return TurnFacts.none(), 0, 0
        numbers = self.turns.column("turn_number")[rows]
        if (numbers[1:] < numbers[:-1]).any():  # a turn was rewritten after others had been added
            order = np.argsort(numbers, kind="stable")
            rows, numbers = rows[order], numbers[order]
        if keep is not None:
            kept = self._kept(rows, keep)
            rows, numbers = rows[kept], numbers[kept]
            through = len(rows)
        if not through or not limit:
            return TurnFacts.none(), considered, through
        rows, numbers = rows[-limit:], numbers[-limit:]
        cut = len(rows) < through
        lengths, calls = self._measure(rows)
        groups, unanswered, missing = self._group(rows, calls)
        if missing:
            elsewhere = self._calls_elsewhere(original, rows[missing], keep)
            if len(elsewhere):
                rows = np.concatenate((elsewhere, rows))
                rows = rows[np.argsort(self.turns.column("turn_number")[rows], kind="stable")]
                numbers = self.turns.column("turn_number")[rows]
                lengths, calls = self._measure(rows)
                groups, unanswered, missing = self._group(rows, calls)
            if missing and cut:
                turns = TurnFacts(rows, numbers, groups, lengths, unanswered)
                return turns.at(np.delete(np.arange(len(rows)), missing)), considered, through
        return TurnFacts(rows, numbers, groups, lengths, unanswered), considered, through

    def _calls_elsewhere(self, chosen: Rows, results: Rows, keep: Keep | None) -> Rows:
        """Return the rows of calls in other scopes that some results answer, with all their results.

        ``chosen`` are the turns that were chosen from. A group of which ``keep`` leaves out one turn is left out. Of an
        id that was called several times the newest call counts that is older than the results.
        """
        open_calls = {answered for _, answered, _ in self._parts(results) if answered is not None}
        open_calls.difference_update(*(calls for calls, _, _ in self._parts(chosen[self._measure(chosen)[1]])))
        if not open_calls:
            return chosen[:0]
        tasks, number_of = self.turns.column("trajectory_id"), self.turns.column("turn_number")
        others = self.turns.standing_mask & (tasks == tasks[chosen[0]]) & (number_of < number_of[results].max())
        others[chosen] = False
        rows = np.flatnonzero(others)
        rows = rows[self._measure(rows)[1]] if len(rows) else rows
        called: dict[str | None, list[int]] = {}
        rows = rows[np.argsort(number_of[rows], kind="stable")]
        for row, (calls, answered, _) in zip(rows.tolist(), self._parts(rows), strict=True):
            if not open_calls.isdisjoint(calls):  # the newest call of an id: agents count from one again
                group = [row]
                called |= dict.fromkeys(calls, group)
            elif answered in called:
                called[answered].append(row)
        groups = list(
            {id(group): group for group in (called.get(one, []) for one in sorted(open_calls)) if group}.values()
        )
        if keep is not None and groups:
            among = np.zeros(self.turns.length, np.bool_)
            among[[row for group in groups for row in group]] = True
            kept = keep(among)
            groups = [group for group in groups if kept[group].all()]
        return np.array([row for group in groups for row in group], np.int64)

    def _parts(self, rows: Rows) -> list[Parts]:
        stored = self.turns.packed_rows(("tool_calls", "tool_call_id", "thinking"), rows.tolist())
        return [(_ids(calls), answered, bool(thinking)) for calls, answered, thinking in stored]

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of each turn as it reads in the conversation."""
        return self._measure(rows)[0]

    def _kept(self, rows: NDArray[np.int64], keep: Keep) -> NDArray[np.bool_]:
        """Return the kept turns of a scope; groups are kept whole."""
        among = np.zeros(self.turns.length, np.bool_)
        among[rows] = True
        kept = keep(among)[rows]
        _, calls = self._measure(rows)
        if calls.any() and not kept.all():
            groups, _, _ = self._group(rows, calls)
            broken = np.unique(groups[~kept & (groups >= 0)])
            kept &= ~np.isin(groups, broken)
        return kept

    def _group(self, rows: Rows, may_call: NDArray[np.bool_]) -> tuple[Rows, Rows, list[int]]:
        """Return the groups of some turns, as ``group_calls`` does."""
        places = np.flatnonzero(may_call)
        parts = self._parts(rows[places]) if len(places) else ()
        return group_calls(len(rows), zip(places.tolist(), parts, strict=True))

    def _measure(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the length of each turn's text, and which make calls, answer one or have thoughts."""
        entries = self._known(rows)
        return entries & LENGTH_MASK, (entries & _CALLS_BIT) != 0

    def _known(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the remembered counts of turns, made where they are missing."""
        return self._table.entries_of(self.turns, rows, self._entries)

    def _entries(self, rows: list[int]) -> NDArray[np.int64]:
        turns = self.parts(rows)
        lengths = np.minimum(self._plan.measure([self._read(turn) for turn in turns]), LENGTH_MASK)
        lengths[[turn.has_parts for turn in turns]] |= _PARTS_BIT
        lengths[[bool(turn.calls or turn.call_id is not None or turn.thinking) for turn in turns]] |= _CALLS_BIT
        return lengths

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Return turns as they read in the window's text."""
        return [text for _, text in self.lines(np.array(rows, np.int64))]

    def lines(self, chosen: Rows) -> list[tuple[str, str]]:
        """Return how each turn begins, and how it reads."""
        rows, labels = chosen.tolist(), self._labels(chosen)
        contents = self._source.texts(self.turns, rows)
        has_parts = (self._known(chosen) & _PARTS_BIT) != 0
        # As `shown`, without a call for each: a window has hundreds.
        if not set(map(type, contents)) <= {str}:
            contents = [each if isinstance(each, str) else each.decode("utf-8", "replace") for each in contents]
        out = list(map(add, labels, contents))
        if special := np.flatnonzero(has_parts).tolist():
            turns = self._turns([rows[place] for place in special], [contents[place] for place in special])
            for place, turn in zip(special, turns, strict=True):
                out[place] = self._read(turn)
        return list(zip(labels, out, strict=True))

    def _labels(self, rows: Rows) -> list[str]:
        """Return the text before the content of each turn that has no parts."""
        roles, codes, names = (
            self.turns.column("role")[rows],
            self.turns.column("name")[rows],
            self.turns.interned("name"),
        )
        pairs = list(zip(roles.tolist(), codes.tolist(), strict=True))
        labels = {pair: self._label(TurnText(_ROLES[pair[0]], "", names[pair[1]], (), None)) for pair in set(pairs)}
        return [labels[pair] for pair in pairs]

    def parts(self, rows: Sequence[int]) -> list[TurnText]:
        """Return turns in parts."""
        return self._turns(rows, self._source.texts(self.turns, rows))

    def _turns(self, rows: Sequence[int], contents: Sequence[Any]) -> list[TurnText]:
        stored = self.turns.packed_rows(_PARTS, rows)
        return [turn_text(content, *parts) for content, parts in zip(contents, stored, strict=True)]


class PassageReader(TurnReader):
    """Turns of one snapshot as lines of passages."""

    @staticmethod
    def _ruler(plan: AssemblyPlan) -> str:
        return f"passage {plan.ruler}"

    @staticmethod
    def _read(turn: TurnText) -> str:
        return turn.line

    @staticmethod
    def _label(turn: TurnText) -> str:
        return f"{turn.speaker}: "
