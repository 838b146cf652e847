"""End of delegations, with every task below or with their own, and the grants that they give and end.

One transaction ends a delegation, its task, and all tasks and delegations below that. A task that is ended by hand ends
its delegation, and the delegations and handoffs below. A job of its own watches each delegation; time is that of the
database's clock. Source: C-114, C-439, C-445, C-446, K-046.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any, Final

from caliber.access.granted import is_active
from caliber.access.grants import audited, owns
from caliber.access.owners import TaskOwners, user_of
from caliber.access.visibility import Readers
from caliber.agents.handing.parties import log_step
from caliber.agents.mail.receiving import PAYLOAD_MAX_BYTES
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.kernels import uuid7
from caliber.model import states
from caliber.model.access import Grant, Principal, Right
from caliber.model.agents.delegation import TIMEOUT, Delegation, DelegationResult, DelegationStatus, HandoffStatus
from caliber.model.errors import NotFound
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType, GrantId
from caliber.model.time import MS_US, from_us, to_us
from caliber.model.trajectory import OutcomeStatus, Trajectory
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, BY_NAME, DELEGATION, GRANT, HANDOFF, NOTE, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle
from caliber.trajectory.triggers import Retention

WATCH: Final = "agents.delegation"
"""The kind of the jobs that end a delegation whose time is over."""
_WATCHER: Final = "system:delegations"
DONE: Final = (OutcomeStatus.SUCCESS, OutcomeStatus.PARTIAL)
"""The outcomes of a delegation that was completed."""
_FAILED: Final = "the task ended as failed"


def due_us(task: Delegation, timeout_ms: int) -> int | None:
    """Return when a delegation times out: a pending one at its deadline or after ``timeout_ms``; None: never."""
    if not task.is_open:
        return None
    deadline = None if task.deadline is None else to_us(task.deadline)
    if task.status is not DelegationStatus.PENDING:
        return deadline
    answer = to_us(task.created_at) + timeout_ms * MS_US
    return answer if deadline is None else min(answer, deadline)


def watch(engine: Engine, uow: UnitOfWork, task: Delegation) -> None:
    """Add the job that looks at a delegation when its time is over, in the transaction that changes it."""
    due = due_us(task, engine.config.delegation_timeout)
    if due is not None:
        engine.part(JobQueue).enqueue(
            uow,
            WATCH,
            payload={"id": str(task.delegation_id)},
            due_at=from_us(due),
            trajectory_id=task.parent_trajectory_id,
            within_s=max(0.0, (due - uow.now_us) / 1_000_000),
        )


_OF_TASK: Final = "see the summary of its task"


class Endings:
    """Ends delegations and tasks of one tenant; without ``cascade`` the tasks of delegations go on alone."""

    def __init__(self, engine: Engine, retention: Retention, *, cascade: bool) -> None:
        self._engine = engine
        self._retention = retention
        self._cascade = cascade

    def run(self, claim: Claim) -> int:
        """End the delegation of a job if its time is over; return how many ended. Raises: Superseded."""
        key = uuid.UUID(claim.job.payload["id"])

        def work(uow: UnitOfWork) -> int:
            claim.ack(uow)
            assert claim.job.trajectory_id is not None  # a delegation is of a task
            uow.lock(TRAJECTORY, claim.job.trajectory_id.bytes)
            uow.lock(DELEGATION, key.bytes)
            task: Delegation | None = uow.find(DELEGATION, key.bytes)
            due = None if task is None else due_us(task, self._engine.config.delegation_timeout)
            if task is None or due is None:
                return 0
            if due > uow.now_us:
                watch(self._engine, uow, task)  # another configuration gives it more time
                return 0
            self.end(uow, task, TIMEOUT, _WATCHER, OutcomeStatus.SYSTEM_ABORT)
            return 1

        return self._engine.write(work)

    def end(
        self,
        uow: UnitOfWork,
        task: Delegation,
        reason: str,
        by: str,
        outcome: OutcomeStatus = OutcomeStatus.FAILURE,
    ) -> Delegation:
        """End an open delegation for a reason, and its task as failed: a pending one is rejected, another failed."""
        pending = task.status is DelegationStatus.PENDING
        target = DelegationStatus.REJECTED if pending else DelegationStatus.FAILED
        kind = EventType.DELEGATION_REJECT if pending else EventType.DELEGATION_FAIL
        ended = self._step(uow, task, target, kind, by, DelegationResult(outcome, error=reason))
        if ended.child_trajectory_id is not None and self._cascade:
            self.end_task(uow, ended.child_trajectory_id, reason, by)
        return ended

    def _step(
        self,
        uow: UnitOfWork,
        task: Delegation,
        status: DelegationStatus,
        kind: EventType,
        by: str,
        result: DelegationResult | None = None,
    ) -> Delegation:
        """Move a delegation to its next state, with the result if that is the last one."""
        states.DELEGATION.check(task.status, status)
        now = from_us(uow.now_us)
        ended = None if result is None else now
        moved: Delegation = uow.update(
            DELEGATION, dataclasses.replace(task, status=status, result=result, completed_at=ended, updated_at=now)
        )
        if result is not None:
            unshare(self._engine, uow, moved, moved.delegatee_agent_id, by)
        tasks = (moved.parent_trajectory_id, moved.child_trajectory_id)
        payload = {} if result is None else {"outcome": result.status.value}
        log_step(self._engine, uow, by, kind, DELEGATION.name, moved.delegation_id, tasks, payload)
        return moved

    def end_above(self, uow: UnitOfWork, task_id: uuid.UUID, outcome: OutcomeStatus, summary: str, by: str) -> None:
        """End the delegation that a task is of as the task ends, by hand: completed or failed.

        The parent task and the delegation are locked before the task itself, as a cancellation does. A summary that is
        longer than a result may be stays with the task.
        """
        if len(summary.encode()) > PAYLOAD_MAX_BYTES:
            summary = _OF_TASK
        for found in uow.select_path(DELEGATION, "list_by_child", task_id.bytes):
            if not found.is_open:
                continue
            uow.lock(TRAJECTORY, found.parent_trajectory_id.bytes)
            uow.lock(DELEGATION, found.delegation_id.bytes)
            task: Delegation | None = uow.find(DELEGATION, found.delegation_id.bytes)
            if task is None or not task.is_open:
                continue
            due = due_us(task, self._engine.config.delegation_timeout)
            if due is not None and due <= uow.now_us:
                self.end(uow, task, TIMEOUT, by, OutcomeStatus.SYSTEM_ABORT)
            elif outcome in DONE:
                if task.status is DelegationStatus.ACCEPTED:
                    task = self._step(uow, task, DelegationStatus.IN_PROGRESS, EventType.DELEGATION_START, by)
                result = DelegationResult(outcome, summary)
                self._step(uow, task, DelegationStatus.COMPLETED, EventType.DELEGATION_COMPLETE, by, result)
            else:
                self.end(uow, task, summary or _FAILED, by, outcome)

    def end_below(self, uow: UnitOfWork, task_id: uuid.UUID, reason: str, by: str) -> None:
        """End the open delegations and handoffs of a task that ends; an accepted handoff is completed."""
        for each in uow.select_entities(DELEGATION, "delegation.open_of_task", task_id.bytes):
            self.end(uow, each, reason, by)
        for each in uow.select_entities(HANDOFF, "handoff.open_of_task", task_id.bytes):
            taken = each.status is HandoffStatus.ACCEPTED
            status = HandoffStatus.COMPLETED if taken else HandoffStatus.REJECTED
            states.HANDOFF.check(each.status, status)
            now = from_us(uow.now_us)
            why = None if taken else reason
            ended = dataclasses.replace(each, status=status, completed_at=now, updated_at=now, rejection_reason=why)
            uow.update(HANDOFF, ended)
            kind = EventType.HANDOFF_COMPLETE if taken else EventType.HANDOFF_REJECT
            log_step(self._engine, uow, by, kind, HANDOFF.name, each.handoff_id, (task_id,), {})

    def end_task(self, uow: UnitOfWork, task_id: uuid.UUID, reason: str, by: str) -> None:
        """End a task as failed for a reason, with the tasks and delegations below it; an ended one stays as it is.

        A task of another user below it goes on alone: it is hidden from the parties.
        """
        uow.lock(TRAJECTORY, task_id.bytes)
        task: Trajectory | None = uow.find(TRAJECTORY, task_id.bytes)
        if task is None or states.TRAJECTORY.is_terminal(task.status):
            return
        self.end_below(uow, task_id, reason, by)
        for child in uow.select_path(TRAJECTORY, "list_children", task_id.bytes):
            if user_of(child) in (None, user_of(task)):
                self.end_task(uow, child.trajectory_id, reason, by)
        of_task, outcome = (self._engine, self._retention, uow, task_id), OutcomeStatus.FAILURE
        lifecycle.end_without_policies(*of_task, outcome, reason, by, cancelled="the task was ended")


def readable(
    uow: UnitOfWork, readers: Readers, artifacts: Iterable[uuid.UUID], notes: Iterable[uuid.UUID]
) -> list[tuple[EntityRef, Any]]:
    """Return records to share, each with its reference. Raises: NotFound for one that does not exist or is hidden."""
    found = _records(uow, readers, ARTIFACT, artifacts)
    found += _records(uow, readers, NOTE, notes)
    return found


def _records(
    uow: UnitOfWork, readers: Readers, relation: Relation, keys: Iterable[uuid.UUID]
) -> list[tuple[EntityRef, Any]]:
    found: list[tuple[EntityRef, Any]] = []
    for key in keys:
        record = uow.find(relation, key.bytes)
        if record is None or not readers.allows_entity(relation, record):
            raise NotFound(entity_type=relation.name, id=key)
        found.append((EntityRef(EntityType(relation.name), key), record))
    return found


def to_grant(
    engine: Engine,
    principal: Principal,
    readers: Readers,
    task: Delegation,
    records: Iterable[tuple[EntityRef, Any]],
) -> list[EntityRef]:
    """Return the produced records of a delegation that its delegator is to be granted; the others need no grant.

    The delegator sees the task below as a whole, everybody sees what no list limits, and it shared the rest itself.

    Raises: PermissionDenied for a record of others, which ``memory.access.grant`` would not grant either.
    """
    found: list[EntityRef] = []
    shared = {*task.shared_artifacts, *task.shared_notes}
    for ref, record in records:
        relation = BY_NAME[str(ref.entity_type)]
        if relation.rights.readers is not None:
            is_open = getattr(record, relation.rights.readers) is None
            may = owns(engine, principal, readers, relation, record)
        else:
            of = record.trajectory_id
            parties = engine.part(TaskOwners).of.get(of.bytes, ())
            is_open = parties is None or of == task.child_trajectory_id
            may = principal.serves or not readers.visibility().ids.isdisjoint(parties or ())
        if is_open or ref.id in shared:
            continue
        if not may:
            raise principal.denied("let the delegator read", f"{relation.name} {ref.id}")
        found.append(ref)
    return found


def share(engine: Engine, uow: UnitOfWork, task: Delegation, to: uuid.UUID, by: str) -> None:
    """Let an agent read the shared records of a delegation until it ends; those that are gone by now are left out."""

    def share_each(relation: Relation, keys: Iterable[uuid.UUID]) -> None:
        for key in keys:
            if uow.find(relation, key.bytes) is not None:
                about = EntityRef(EntityType(relation.name), key)
                grant_to(engine, uow, task, to, about, by, until_end=True)

    share_each(ARTIFACT, task.shared_artifacts)
    share_each(NOTE, task.shared_notes)


def show_task(engine: Engine, uow: UnitOfWork, task: Delegation, by: str) -> None:
    """Let the delegator read the task below, wherever it is hidden; this does not end with the delegation."""
    assert task.child_trajectory_id is not None
    below = EntityRef(EntityType(TRAJECTORY.name), task.child_trajectory_id)
    grant_to(engine, uow, task, task.delegator_agent_id, below, by)


def grant_to(
    engine: Engine,
    uow: UnitOfWork,
    task: Delegation,
    to: uuid.UUID,
    on: EntityRef,
    by: str,
    *,
    until_end: bool = False,
) -> None:
    """Let an agent read a record; with ``until_end`` until the deadline of the delegation, if it has one."""
    now = from_us(uow.now_us)
    until = task.deadline if until_end else None
    agent = EntityRef(EntityType.AGENT, to)
    grant = Grant(GrantId(uuid7()), agent, on, Right.READ, giver_of(task), until, None, now, now)
    uow.insert(GRANT, grant)
    audited(engine, uow, EventType.GRANT, grant, by)


def unshare(engine: Engine, uow: UnitOfWork, task: Delegation, from_: uuid.UUID | None, by: str) -> None:
    """End the grants of a delegation's shared records to an agent."""
    giver, now = giver_of(task), from_us(uow.now_us)
    for key in (*task.shared_artifacts, *task.shared_notes):
        for grant in uow.select_path(GRANT, "list_by_record", key.bytes):
            if grant.granted_by == giver and grant.to.id == from_ and is_active(grant, uow.now_us):
                ended: Grant = uow.update(GRANT, dataclasses.replace(grant, revoked_at=now, updated_at=now))
                audited(engine, uow, EventType.REVOKE, ended, by)


def giver_of(task: Delegation) -> str:
    """Return how grants name the delegation that gave them."""
    return f"delegation:{task.delegation_id}"
