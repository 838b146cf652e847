"""End of delegations: rejected, failed, cancelled or timed out with every task below, and with a task that ends.

One transaction ends a delegation, its task, and all tasks and delegations below that. A task that is ended by hand ends
its delegation, and the delegations and handoffs below. A job of its own watches each delegation; time is that of the
database's clock. Source: C-114, C-439, C-445, C-446, K-046.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Final

from caliber.access.owners import user_of
from caliber.agents.handing.parties import log_step
from caliber.agents.handing.sharing import unshare
from caliber.agents.mail.checked_messages import PAYLOAD_MAX_BYTES
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.model import states
from caliber.model.agents.delegation import TIMEOUT, Delegation, DelegationResult, DelegationStatus, HandoffStatus
from caliber.model.events import EventType
from caliber.model.time import MS_US, from_us, to_us
from caliber.model.trajectory import OutcomeStatus, Trajectory
from caliber.schema.relations import DELEGATION, HANDOFF, TRAJECTORY
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
