"""The turns of a scope: which there are, and which belong together.

An assistant's turn that calls tools and the results that answer it form one group: whole in the window or not at
all. Source: C-451, K-075, O-8.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caliber.model.enums import TurnRole
from caliber.resident.mirror import RelationSnapshot


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The turns of a scope in chronological order. Shapes: ``int64[n]``; groups are -1 for a turn alone."""

    rows: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @classmethod
    def none(cls) -> TurnFacts:
        """Return no turns."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty)


def gather_turns(turns: RelationSnapshot, scope: bytes, limit: int) -> tuple[TurnFacts, int]:
    """Return the newest ``limit`` turns of a scope, and how many it has.

    A result whose call the limit cut off is cut off too.
    """
    rows = turns.group("scope_id", scope)
    considered = len(rows)
    if not considered or not limit:
        return TurnFacts.none(), considered
    numbers = turns.column("turn_number")[rows]
    if (numbers[1:] < numbers[:-1]).any():  # a turn was rewritten after others had been added
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
    rows, numbers = rows[-limit:], numbers[-limit:]
    groups, answered = _group(turns, rows)
    if len(rows) < considered and not answered.all():
        rows, numbers, groups = rows[answered], numbers[answered], groups[answered]
    return TurnFacts(rows, numbers, groups), considered


def _group(turns: RelationSnapshot, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the group of each turn, and which are not results of a call that is missing here."""
    groups = np.full(len(rows), -1, np.int64)
    known = np.ones(len(rows), np.bool_)
    roles = turns.column("role")[rows]
    tool, assistant = turns.enum_code("role", TurnRole.TOOL.value), turns.enum_code("role", TurnRole.ASSISTANT.value)
    if not (roles == tool).any():
        return groups, known
    calls_at = turns.layout.codec.index("tool_calls")
    answer_at = turns.layout.codec.index("tool_call_id")
    caller: dict[str, int] = {}
    codes = roles.tolist()
    for place in np.flatnonzero((roles == tool) | (roles == assistant)).tolist():
        packed = turns.packed(int(rows[place]))
        if codes[place] == assistant:
            if packed[calls_at] != "[]":
                for call in json.loads(packed[calls_at]):
                    caller[call[0]] = place
        elif packed[answer_at] is not None:
            asked = caller.get(packed[answer_at])
            if asked is None:
                known[place] = False
            else:
                # A group is named after the place of its call.
                groups[place] = groups[asked] = asked
    return groups, known
