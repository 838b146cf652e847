"""Retention of declared memories' records: ends with a scope or session, by age, or by maximum number.

Records that end with a scope are removed in the transaction that closes it; a sweep removes by age and number, in
batches, as a recurring job. Each removal logs an event with the number of records. Delegations and handoffs end with
their task, and go with the other records of operation (``caliber.admin.maintenance``).
"""

from __future__ import annotations

import functools
import hashlib
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from caliber.config.memories import MemoryConfig
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import IDLE, Handler, Recurrence
from caliber.jobs.queue import JobQueue
from caliber.model.declared import MemoryCategory
from caliber.model.events import EventType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import OutcomeStatus, Scope, Session
from caliber.retention.compressing import records_of
from caliber.schema.memories import MemoryBinding
from caliber.schema.memory_types import RetentionKind
from caliber.schema.relation import Relation
from caliber.schema.relations import DELEGATION, SCOPE, SESSION
from caliber.storage.compile.plan import Plan
from caliber.storage.write.ending import RETENTION, prune
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.agents.handing.ending import Endings

SWEEP: Final = uuid.UUID(bytes=hashlib.sha256(b"caliber:retention").digest()[:16])
"""The recurring job of the sweep."""
SWEEP_ROWS: Final = 500
"""Most records that a sweep handles in one transaction."""
_TASK_ENDED = "the task ended"
"""The reason of delegations and handoffs that end with their task."""
_SWEPT = (RetentionKind.DURATION, RetentionKind.MAX, RetentionKind.UNTIL)
_BATCHES = 20
"""Number of transactions whose records are searched at once: a large table is not read again for each."""
_OF_TENANT = (MemoryCategory.SEMANTIC, MemoryCategory.PROCEDURAL)
"""Categories of knowledge: the newest records are those of the tenant, not of each trajectory (C-137)."""


@dataclass(frozen=True, slots=True)
class RetainedMemory:
    """A declared memory, and its binding."""

    memory: MemoryConfig
    bound: MemoryBinding

    @property
    def relation(self) -> Relation:
        """The relation of its records."""
        return self.bound.relation

    @property
    def kind(self) -> RetentionKind:
        """The kind of retention."""
        return self.memory.retention.kind


class Retaining:
    """Applies the retention of the configured memories."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        ending = (RetentionKind.SCOPE, RetentionKind.SESSION, *_SWEPT)
        self._memories = [memory for memory in engine.config.memories if memory.retention.kind in ending]
        self.sweeps = any(memory.retention.kind in _SWEPT for memory in self._memories)
        """True when anything is to be looked after by age or number."""

    def _kept(self, *kinds: RetentionKind) -> list[RetainedMemory]:
        """Return the memories with these kinds; one that the store does not have yet has no records."""
        found = []
        for memory in self._memories:
            if memory.retention.kind not in kinds:
                continue
            bound = self._engine.store.catalog.named(memory.name)
            if bound is not None:
                found.append(RetainedMemory(memory, bound))
        return found

    # --- together with a scope or session ----------------------------------------------------------

    def scope_closed(self, uow: UnitOfWork, scope: Scope) -> None:
        """Remove records that end with their scope, in the transaction that closes it."""
        for kept in self._kept(RetentionKind.SCOPE):
            removed = prune(uow, kept.relation, records_of(uow, kept.relation, SCOPE, scope.scope_id))
            record_taken(
                self._engine, uow, kept.memory, removed, trajectory_id=scope.trajectory_id, scope_id=scope.scope_id
            )

    def session_ended(self, uow: UnitOfWork, session: Session) -> None:
        """Remove records that end with their session, in the transaction that ends it."""
        for kept in self._kept(RetentionKind.SESSION):
            removed = prune(uow, kept.relation, records_of(uow, kept.relation, SESSION, session.session_id))
            record_taken(self._engine, uow, kept.memory, removed, session_id=session.session_id)

    # --- together with a task ----------------------------------------------------------------------

    def task_ends(self, uow: UnitOfWork, task: uuid.UUID, status: OutcomeStatus, summary: str, by: str) -> None:
        """End the delegation that a task is of, before the transaction that ends the task locks its row."""
        if uow.path_rows(DELEGATION, "list_by_child", task.bytes):
            self._endings(cascade=False).end_above(uow, task, status, summary, by)

    def task_ended(self, uow: UnitOfWork, task: uuid.UUID, by: str, *, cascade: bool) -> None:
        """End the delegations and handoffs of a task, in the transaction that has ended it.

        With ``cascade`` the tasks of these delegations end too; without it they go on alone.
        """
        if uow.select("delegation.any_of_task", task.bytes):
            self._endings(cascade=cascade).end_below(uow, task, _TASK_ENDED, by)

    def _endings(self, *, cascade: bool) -> Endings:
        from caliber.agents.handing.ending import Endings  # most tasks end without a delegation

        return Endings(self._engine, self, cascade=cascade)

    # --- by age and number -------------------------------------------------------------------------

    def register(self, jobs: JobQueue) -> None:
        """Have this process sweep every ``retention.sweep_every_ms``; 0 leaves that to ``maintain``."""
        if not self.sweeps:
            return
        every_us = self._engine.config.retention.sweep_every_ms * 1_000

        def run(claim: Claim) -> int:
            self.sweep(claim)
            return 0

        # Swept by ``maintain`` alone it stays due: another process, or configuration, may sweep every so often.
        recurrence = Recurrence(SWEEP, lambda now_us: now_us + every_us, at_once=True)
        idle = not every_us
        jobs.register(Handler("retention.sweep", run, priority=IDLE, recurrence=recurrence, idle=lambda: idle))

    def sweep(self, claim: Claim) -> int:
        """Remove records that are too old or too many, one transaction per batch; return their number.

        Raises: Superseded when another process claimed the sweep.
        """
        return sum(self._sweep(kept, claim) for kept in self._kept(*_SWEPT))

    def _sweep(self, kept: RetainedMemory, claim: Claim) -> int:
        rows = SWEEP_ROWS
        total = 0
        while True:
            # The search is outside the transaction: no writer waits while a large table is read.
            keys = self._over(kept, rows * _BATCHES)
            removed = 0
            for at in range(0, len(keys), rows):
                work = functools.partial(self._take, kept, keys[at : at + rows], claim, time.monotonic())
                removed += self._engine.write(work)
            total += removed
            if len(keys) < rows * _BATCHES or not removed:
                return total

    def _over(self, kept: RetainedMemory, limit: int) -> list[bytes]:
        plan, bound = self._plan(kept)
        with self._engine.store.read() as session:
            return [row[0] for row in session.run(plan, (bound, limit))]

    def _plan(self, kept: RetainedMemory) -> tuple[Plan, int]:
        plans, retention = self._engine.store.plans[kept.relation.name], kept.memory.retention
        if retention.count is None:
            plan, bound = plans.expired, self._engine.clock.now_us() - (retention.duration_ms or 0) * 1_000
        else:
            of_tenant = kept.bound.type.category in _OF_TENANT
            plan, bound = plans.surplus if of_tenant else plans.surplus_by_trajectory, retention.count
        assert plan is not None  # every memory's relation has the columns of retention
        return plan, bound

    def _take(self, kept: RetainedMemory, keys: Sequence[bytes], claim: Claim, begun: float, uow: UnitOfWork) -> int:
        claim.hold(uow)
        found = [entity for key in keys if (entity := uow.find(kept.relation, key)) is not None]
        removed = prune(uow, kept.relation, found)
        record_taken(self._engine, uow, kept.memory, removed, duration_ms=int((time.monotonic() - begun) * 1_000))
        return removed


def record_taken(
    engine: Engine,
    uow: UnitOfWork,
    memory: MemoryConfig,
    removed: int,
    *,
    trajectory_id: uuid.UUID | None = None,
    scope_id: uuid.UUID | None = None,
    session_id: uuid.UUID | None = None,
    duration_ms: int | None = None,
) -> None:
    """Write in this very transaction that retention took records; nothing where there were none."""
    if not removed:
        return
    payload = {"memory": memory.name, "rule": memory.retention.shown, "taken": removed}
    if session_id is not None:
        payload["session_id"] = str(session_id)
    engine.trace(
        uow,
        EventType.RETENTION_APPLY,
        principal=RETENTION,
        trajectory_id=trajectory_id,
        scope_id=scope_id,
        payload=payload,
        duration_ms=duration_ms,
    )
