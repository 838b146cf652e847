"""The seven state machines, every pair of each, against tables written from the requirements."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Any

import pytest
from support.cases import each

from caliber.model import states
from caliber.model.errors import InvalidStateTransition
from caliber.model.trajectory import ScopeStatus, TrajectoryStatus

# For each machine: its states, what may follow what, and the terminal states, as C-436 to C-443 say it.
MACHINES: dict[str, tuple[states.StateMachine[Any], type[StrEnum], dict[str, set[str]], set[str]]] = {
    "trajectory": (
        states.TRAJECTORY,
        TrajectoryStatus,
        {"active": {"active", "completed", "failed", "suspended"}, "suspended": {"suspended", "active", "failed"},
         "completed": set(), "failed": set()},
        {"completed", "failed"},
    ),
    "scope": (states.SCOPE, ScopeStatus, {"open": {"closed"}, "closed": set()}, {"closed"}),
    "delegation": (
        states.DELEGATION,
        states.DelegationStatus,
        {"pending": {"pending", "accepted", "rejected"}, "accepted": {"accepted", "in_progress", "failed"},
         "in_progress": {"in_progress", "completed", "failed"}, "rejected": set(), "completed": set(), "failed": set()},
        {"rejected", "completed", "failed"},
    ),
    "handoff": (
        states.HANDOFF,
        states.HandoffStatus,
        {"initiated": {"initiated", "accepted", "rejected"}, "accepted": {"accepted", "completed"}, "rejected": set(),
         "completed": set()},
        {"rejected", "completed"},
    ),
    "conflict": (
        states.CONFLICT,
        states.ConflictStatus,
        {"detected": {"detected", "resolving", "resolved", "escalated"},
         "resolving": {"resolving", "resolved", "escalated"}, "escalated": {"escalated", "resolved"},
         "resolved": set()},
        {"resolved"},
    ),
    "agent": (
        states.AGENT,
        states.AgentStatus,
        {"idle": {"idle", "active", "failed"}, "active": {"active", "idle", "blocked", "failed"},
         "blocked": {"blocked", "active", "idle", "failed"}, "failed": {"failed", "idle"}},
        set(),
    ),
    "todo": (
        states.TODO,
        states.TodoStatus,
        {"pending": {"in_progress", "completed", "cancelled"}, "in_progress": {"pending", "completed", "cancelled"},
         "completed": {"pending"}, "cancelled": {"pending"}},
        set(),
    ),
}  # fmt: skip
PAIRS = [
    (name, current, target)
    for name, (_, kind, _, _) in MACHINES.items()
    for current, target in product([state.value for state in kind], repeat=2)
]


@each(("name", "current", "target"), PAIRS)
def test_every_pair_of_states_is_allowed_or_refused_as_specified(name: str, current: str, target: str) -> None:
    # C-436 C-438 C-439 C-440 C-441 C-442 C-443 C-444
    machine, kind, table, _ = MACHINES[name]
    allowed = target in table[current]
    assert machine.can_transition(kind(current), kind(target)) is allowed
    if allowed:
        machine.check(kind(current), kind(target))
        return
    with pytest.raises(InvalidStateTransition) as caught:
        machine.check(kind(current), kind(target))
    assert caught.value.context == {"entity_type": name, "from_state": current, "to_state": target}


@pytest.mark.parametrize("name", MACHINES)
def test_terminal_states_are_exactly_those_named(name: str) -> None:
    # C-437 C-439 C-440 C-441 C-442
    machine, kind, table, terminal = MACHINES[name]
    assert {state.value for state in kind if machine.is_terminal(state)} == terminal
    assert set(table) == {state.value for state in kind}, "the table covers every state"


def test_all_machines_are_covered() -> None:
    # C-444
    found = {value.entity_type for value in vars(states).values() if isinstance(value, states.StateMachine)}
    assert found == set(MACHINES)
    assert len(PAIRS) == sum(len(kind) ** 2 for _, kind, _, _ in MACHINES.values()) == 4**2 + 2**2 + 6**2 + 4 * 4**2
