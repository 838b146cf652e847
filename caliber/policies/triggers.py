"""Waiting triggers: the actions of a started task or a turn wait in a row until they are done, whatever is killed.

The row is written in the transaction that stores the task or the turn, and removed in that of the actions, by key and
version: whoever removes it has done them, and anybody else writes nothing of his. Source: C-229, C-235; decision 0172.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model.access import Principal
from caliber.model.events import EventType
from caliber.model.ids import ScopeId, TrajectoryId
from caliber.model.policies import PendingTrigger, Trigger
from caliber.model.time import from_us
from caliber.schema.relations import PENDING_TRIGGER, TRAJECTORY
from caliber.storage.write import event_log
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.triggers import Overtaken

_in_hand: set[tuple[bytes, int]] = set()
"""Triggers that threads of this process are doing at this moment, by key and version."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_hand.clear)  # the threads are not there


def set_off(
    uow: UnitOfWork, trigger: Trigger, trajectory_id: TrajectoryId, scope_id: ScopeId | None, principal: Principal
) -> PendingTrigger:
    """Let the actions of a trigger wait from the commit of this transaction on."""
    now = from_us(uow.now_us)
    waiting = PendingTrigger(
        trigger_id=uuid7(),
        trajectory_id=trajectory_id,
        scope_id=scope_id,
        trigger=trigger,
        principal_kind=principal.kind,
        principal_id=principal.id,
        principal_role=principal.role,
        principal_admin=principal.admin,
        created_at=now,
        begun_at=now,
    )
    uow.insert(PENDING_TRIGGER, waiting)
    return waiting


def principal_of(waiting: PendingTrigger) -> Principal:
    """Return who set it off: its actions are done as theirs, whoever does them."""
    return Principal(
        waiting.principal_kind, waiting.principal_id, waiting.principal_role, admin=waiting.principal_admin
    )


def take(uow: UnitOfWork, waiting: PendingTrigger) -> int:
    """Remove what waits, in the transaction of its actions; return how often something was erased by now.

    Raises: Overtaken.
    """
    # Who tries again locks what its actions read: of two that share the task, neither would get it alone.
    uow.lock_row(TRAJECTORY, waiting.trajectory_id.bytes)
    rows = uow.select("trigger.take", waiting.trigger_id.bytes, waiting.version, waiting.trajectory_id.bytes)
    if not rows:
        raise Overtaken
    erasures: int = rows[0][0]
    return erasures


@contextlib.contextmanager
def in_hand(waiting: PendingTrigger) -> Iterator[None]:
    """Say for as long as it takes that this process is at it: none of its threads takes it up for left."""
    key = (waiting.trigger_id.bytes, waiting.version)
    _in_hand.add(key)
    try:
        yield
    finally:
        _in_hand.discard(key)


def is_in_hand(waiting: PendingTrigger) -> bool:
    """Return whether a thread of this process is at it."""
    return (waiting.trigger_id.bytes, waiting.version) in _in_hand


def end(engine: Engine, uow: UnitOfWork, path: str, key: bytes, reason: str) -> None:
    """Remove what waits for something that ends in this transaction; ``path`` lists it by ``key``."""
    for waiting in uow.select_path(PENDING_TRIGGER, path, key):
        with contextlib.suppress(Overtaken):  # done at this moment by whoever was at it
            drop(engine, uow, waiting, "dropped", reason)


def drop(engine: Engine, uow: UnitOfWork, waiting: PendingTrigger, outcome: str, reason: str) -> None:
    """Remove what waits and will not be done, and leave an event that says why. Raises: Overtaken."""
    take(uow, waiting)
    event = engine.event(
        EventType.POLICY_EXECUTE,
        principal=principal_of(waiting).label,
        trajectory_id=waiting.trajectory_id,
        scope_id=waiting.scope_id,
        payload={"trigger": waiting.trigger.value, "outcome": outcome, "reason": reason, "attempt": waiting.attempts},
        duration_ms=0,
        at_us=uow.now_us,
    )
    event_log.log(uow, event, engine.bus.publish)
