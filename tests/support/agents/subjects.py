"""Parts of the store that histories are made of, and faults planted in each that a judge must see."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import NamedTuple

from support.agents.handing_checks import Handing, Tasks
from support.agents.history import Subject
from support.agents.lock_checks import Locks
from support.agents.message_checks import Messages
from support.agents.planted_code import Plant
from support.agents.state_checks import States
from support.agents.value_checks import Values

from caliber.storage.write.unit_of_work import UnitOfWork


class Part(NamedTuple):
    """A part: its clients and judge, with clocks that agree and with clocks that differ.

    With clocks that differ a lease ends for one client before it does for another.
    """

    module: str
    """The module that faults are planted in."""
    simulated: tuple[Subject, Subject]
    in_processes: tuple[Subject, Subject]
    skew_ms: int = 40


def _stands(module: str) -> bool:
    package = module.rpartition(".")[0]
    return find_spec(package) is not None and find_spec(module) is not None


_LOCKS = (Locks(), Locks(same_clock=False))
_MESSAGES = (Messages(), Messages(same_clock=False))
_PARTS = {
    "locks": Part("caliber.agents.locking.lock_queue", _LOCKS, _LOCKS),
    "states": Part("caliber.agents.facet", (States(), States()), (States(), States())),
    "values": Part("caliber.workspace.values", (Values(), Values()), (Values(), Values())),
    "tasks": Part("caliber.workspace.todos", (Tasks(), Tasks()), (Tasks(tasks=200), Tasks(tasks=200))),
    "handing": Part(
        "caliber.agents.handing.delegating",
        (Handing(), Handing()),
        (Handing(delegations=100, handoffs=20), Handing(delegations=100, handoffs=20)),
    ),
    "messages": Part("caliber.agents.mail.delivery", _MESSAGES, _MESSAGES),
}
PARTS = {name: part for name, part in _PARTS.items() if _stands(part.module)}

_IN_LOCKS = {
    "a lock excludes no one": ("locks", "", "attempt", "if in_the_way or ahead:", "if False:"),
    "a token is given again": ("locks", "", "attempt", "newest + 1 if locks", "newest + 1 - now // 1000 % 2 if locks"),
    "any holder may release": ("locks", "", "_held", "if lock.holder != holder:", "if False:"),
    "an old token holds beside the new one": ("locks", "", "_grant", "lock not in lasting]", "lock in ()]"),
    "a released lock holds": ("locks", "", "_end", "dataclasses.replace(lock, expires_at=EPOCH)", "lock"),
}
_IN_TWO = (
    "return (lambda seen: self._engine.write(lambda uow: take(uow, wanted) if seen.assigned_to is not None else"
    " self._stored(uow, dataclasses.replace(seen, assigned_to=acting.ref.id, status=TodoStatus.IN_PROGRESS,"
    " version=uow.get(TODO, wanted.bytes).version), 'claim')))"
    "(self._engine.write(lambda uow: self._records.found(uow, wanted, readers)))"
)
"""A claim that reads in one transaction and writes in another."""
_OTHERS = {
    "a step is not checked": (
        "states", "Agents", "set_status", "states.AGENT.check(known.status, target)", "None",
    ),
    "a state is not kept": (
        "states", "Agents", "set_status", "AGENT, dataclasses.replace(known, status=target,",
        "AGENT, dataclasses.replace(known,",
    ),
    "a version is not compared": ("values", "", "_check", "if version != expected:", "if False:"),
    "a value is not replaced": ("values", "Values", "set", "value=plain, updated_at", "updated_at"),
    "a deletion is none": ("values", "Values", "delete", "label, deleted_at=now", "label, deleted_at=None"),
    "a deletion is read": ("values", "Values", "get", "or found.deleted_at is not None", "or False"),
    "a claim is not atomic": (
        "tasks", "Todos", "claim", "return self._engine.write(lambda uow: take(uow, wanted))", _IN_TWO,
    ),
    "a completion is lost": (
        "tasks", "Todos", "complete",
        "dataclasses.replace(todo, status=TodoStatus.COMPLETED, completed_at=from_us(uow.now_us))", "todo",
    ),
    "a step is lost": (
        "handing", "Delegations", "start",
        "dataclasses.replace(task, status=DelegationStatus.IN_PROGRESS, updated_at=now)", "task",
    ),
    "any agent may work on it": (
        "handing", "Delegations", "_worked_on", "if task.delegatee_agent_id != acting:", "if False:",
    ),
    "an acknowledgement is lost": (
        "messages", "", "ack", 'return _held(uow, "message.ack", agent_id, messages, ())',
        "return [Changed(each.mailbox, False) for each in messages]",
    ),
    "a key is not kept": ("messages", "", "_message", "idempotency_key=out.idempotency_key", "idempotency_key=None"),
    "topics have no order": ("messages", "", "_message", "topic=out.topic", "topic=None"),
    "a lease is over at once": (
        "messages", "", "claim", "(most, uow.now_us, uow.now_us + lease_us,", "(most, uow.now_us, uow.now_us,",
    ),
}  # fmt: skip


def _plants() -> dict[str, tuple[str, Plant]]:
    plants = {"the guard is not checked": ("locks", Plant(UnitOfWork, "guard", "if token is None", "if True"))}
    for name, (of, kind, function, old, new) in {**_IN_LOCKS, **_OTHERS}.items():
        if of in PARTS:
            module = importlib.import_module(PARTS[of].module)
            plants[name] = (of, Plant(getattr(module, kind) if kind else module, function, old, new))
    return plants


PLANTS = _plants()
"""Faults by name, with the part that each is in."""
