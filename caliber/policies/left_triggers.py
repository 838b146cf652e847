"""Triggers that a process left behind, as one that is killed does: the runner of schedules takes them up.

Taking up raises the version of what waits, so whoever was at it before, and wakes up, writes nothing any more. Actions
are those of this configuration, done as whoever set them off, on what is there now. Source: C-229, C-238; 0187.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from caliber.context.service import Reader
from caliber.engine.engine import Engine
from caliber.model import states
from caliber.model.agents import LockToken
from caliber.model.events import EventType
from caliber.model.policies import PendingTrigger
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Scope, Trajectory
from caliber.policies.policy_engine import tasks_of
from caliber.policies.steps import declared_actions
from caliber.policies.triggers import drop, is_in_hand, principal_of
from caliber.schema.relations import PENDING_TRIGGER, SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.paging import pages
from caliber.storage.waiting import is_of_handler
from caliber.storage.write import event_log
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.triggers import SCOPE_CLOSED, WAITING

_PAGE = 500


class LeftTriggers:
    """Finds what was left, and does it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        declared = declared_actions(engine.config)
        self._triggers = {trigger for trigger in WAITING if declared[trigger]}
        self._bound_us = engine.config.policy_engine.trigger_takeover_ms * 1_000

    @property
    def has_work(self) -> bool:
        """True when a policy of this configuration is about such triggers; those of others are left to them."""
        return bool(self._triggers)

    def found(self) -> list[PendingTrigger]:
        """Return what nobody has been at for as long as ``policy_engine.trigger_takeover_ms``, oldest first."""
        if not self._triggers:
            return []
        store, now = self._engine.store, self._engine.clock.now_us()
        plans = store.plans[PENDING_TRIGGER.name]
        with store.read() as session:
            found = (plans.codec.decode(row) for rows in pages(session, plans, _PAGE) for row in rows)
            return [waiting for waiting in found if self._is_left(waiting, now)]

    def _is_left(self, waiting: PendingTrigger, now_us: int) -> bool:
        # A clock that was put back must not keep it waiting until that time comes again.
        since_us = abs(now_us - to_us(waiting.begun_at))
        return waiting.trigger in self._triggers and since_us >= self._bound_us and not is_in_hand(waiting)

    def take_up(self, lease: Callable[[], LockToken]) -> int:
        """Do what was left, one after the other; return how many actions were done.

        ``lease`` renews the right to do so. Raises: LockAcquisitionFailed, LockExpired, Unavailable.
        """
        done = 0
        for waiting in self.found():
            token = lease()  # a provider may take longer than a lease lasts
            claimed = self._engine.write(lambda uow, waiting=waiting, token=token: self._claim(uow, waiting, token))  # type: ignore[misc]
            if claimed is not None:
                done += self._carry_out(claimed)
        return done

    def _carry_out(self, claimed: PendingTrigger) -> int:
        principal = principal_of(claimed)
        reader = Reader(self._engine, principal, Searching(self._engine, principal))
        try:
            return tasks_of(self._engine, principal, reader.assemble_only).carry_out(claimed)
        except Exception as error:
            if is_of_handler(error):
                raise
            # Whatever it is, it is this one's: neither the others nor what is due by schedule wait for it.
            self._engine.record_error(f"policies on {claimed.trigger.value}", error)
            return 0

    def _claim(self, uow: UnitOfWork, waiting: PendingTrigger, token: LockToken) -> PendingTrigger | None:
        """Take it up for this process; None when there is nothing to do any more, or it is too late for it."""
        uow.guard(token)
        current: PendingTrigger | None = uow.find(PENDING_TRIGGER, waiting.trigger_id.bytes)
        if current is None or current.version != waiting.version:
            return None
        ended = self._ended(uow, current)
        if ended is not None:
            drop(self._engine, uow, current, "dropped", ended)
            return None
        if current.attempts >= self._engine.config.policy_engine.schedule_attempts_max:
            self._give_up(uow, current)
            return None
        claimed: PendingTrigger = uow.update(
            PENDING_TRIGGER,
            dataclasses.replace(current, begun_at=from_us(uow.now_us), attempts=current.attempts + 1),
        )
        return claimed

    def _ended(self, uow: UnitOfWork, waiting: PendingTrigger) -> str | None:
        """Return what has ended that a trigger is about: it ended elsewhere, where nobody knows of such policies."""
        task: Trajectory | None = uow.find(TRAJECTORY, waiting.trajectory_id.bytes)
        if task is None or states.TRAJECTORY.is_terminal(task.status):
            return "the task ended"
        if waiting.scope_id is None:
            return None
        scope: Scope | None = uow.find(SCOPE, waiting.scope_id.bytes)
        return None if scope is not None and scope.is_open else SCOPE_CLOSED

    def _give_up(self, uow: UnitOfWork, waiting: PendingTrigger) -> None:
        """Stop trying what stopped, or killed, everybody who tried."""
        reason = f"it was taken up {waiting.attempts} times, and never done"
        drop(self._engine, uow, waiting, "failed", reason)
        event = self._engine.event(
            EventType.ERROR,
            principal=principal_of(waiting).label,
            trajectory_id=waiting.trajectory_id,
            scope_id=waiting.scope_id,
            payload={"trigger": waiting.trigger.value, "error": "given_up", "message": reason},
            at_us=uow.now_us,
        )
        event_log.log(uow, event, self._engine.bus.publish)
