"""State machines: allowed transitions of tasks, scopes, delegations, handoffs, conflicts, agents, workspace tasks.

Terminal states accept nothing, not even themselves; other states accept themselves. Source: C-436 to C-444, K-047.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from caliber.model.agents.delegation import DelegationStatus, HandoffStatus
from caliber.model.agents.registry import AgentStatus
from caliber.model.errors import InvalidStateTransition
from caliber.model.pcp import ConflictStatus
from caliber.model.trajectory import ScopeStatus, TrajectoryStatus
from caliber.model.workspace import TodoStatus

__all__ = ["AGENT", "CONFLICT", "DELEGATION", "HANDOFF", "SCOPE", "TRAJECTORY", "AgentStatus", "StateMachine"]

S = TypeVar("S", bound=StrEnum)


class StateMachine(Generic[S]):
    """Allowed transitions of one kind of record."""

    __slots__ = ("_allowed", "entity_type", "self_loops")

    def __init__(self, entity_type: str, edges: Mapping[S, frozenset[S]], *, self_loops: bool = True) -> None:
        self.entity_type = entity_type
        self._allowed = dict(edges)
        self.self_loops = self_loops

    def is_terminal(self, state: S) -> bool:
        """Return whether nothing may follow ``state``."""
        return not self._allowed[state]

    def can_transition(self, current: S, target: S) -> bool:
        """Return whether ``target`` may follow ``current``."""
        if self.is_terminal(current):
            return False
        return target in self._allowed[current] or (self.self_loops and current == target)

    def check(self, current: S, target: S) -> None:
        """Raise InvalidStateTransition unless ``target`` may follow ``current``."""
        if not self.can_transition(current, target):
            raise InvalidStateTransition(entity_type=self.entity_type, from_state=current.value, to_state=target.value)


def _edges(states: type[S], **edges: str) -> dict[S, frozenset[S]]:
    table: dict[S, frozenset[S]] = {state: frozenset() for state in states}
    for name, targets in edges.items():
        table[states(name)] = frozenset(states(target) for target in targets.split())
    return table


TRAJECTORY = StateMachine(
    "trajectory", _edges(TrajectoryStatus, active="completed failed suspended", suspended="active failed")
)
SCOPE = StateMachine("scope", _edges(ScopeStatus, open="closed"), self_loops=False)
DELEGATION = StateMachine(
    "delegation",
    _edges(
        DelegationStatus, pending="accepted rejected", accepted="in_progress failed", in_progress="completed failed"
    ),
)
HANDOFF = StateMachine("handoff", _edges(HandoffStatus, initiated="accepted rejected", accepted="completed"))
CONFLICT = StateMachine(
    "conflict",
    _edges(
        ConflictStatus, detected="resolving resolved escalated", resolving="resolved escalated", escalated="resolved"
    ),
)
AGENT = StateMachine(
    "agent",
    _edges(
        AgentStatus, idle="active failed", active="idle blocked failed", blocked="active idle failed", failed="idle"
    ),
)
TODO = StateMachine(
    "todo",
    _edges(
        TodoStatus,
        pending="in_progress completed cancelled",
        in_progress="pending completed cancelled",
        completed="pending",
        cancelled="pending",
    ),
    self_loops=False,
)
"""One that has ended may be opened again. Source: P-043."""
