"""Job handler of triggers: runs the policy actions of a task start or turn that its own process did not finish.

The caller runs them right after its commit. A process that finds the job after its lease has expired runs the actions
of its own configuration, on the present records, as the principal that caused the trigger. Source: C-229, C-238;
decision 0172.
"""

from __future__ import annotations

from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import URGENT, Handler
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import record
from caliber.model import states
from caliber.model.events import EventType
from caliber.model.jobs import Job, JobOutcome
from caliber.model.pcp import RecoveryFrequency
from caliber.model.trajectory import Scope, Trajectory
from caliber.policies.policy_engine import tasks_of
from caliber.policies.steps import declared_actions
from caliber.schema.relations import SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import CHECKPOINT_JOB, Tasks
from caliber.trajectory.trigger_jobs import kind_of_trigger, record_unfinished, trigger_of
from caliber.trajectory.triggers import SCOPE_CLOSED, WAITING


class Triggers:
    """The triggers of a tenant's configuration; those of other configurations are left to them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, jobs: JobQueue) -> None:
        """Run triggers that other processes abandoned, for the triggers of this process's policies."""
        declared = declared_actions(self._engine.config)
        for trigger in WAITING:
            if declared[trigger]:
                kind = kind_of_trigger(trigger)
                jobs.register(Handler(kind, self._run, priority=URGENT, given_up=self._given_up))
        if self._engine.config.pcp.recovery_points.frequency is RecoveryFrequency.PER_TURN:
            jobs.register(Handler(CHECKPOINT_JOB, lambda claim: self._tasks(claim).run_checkpoint(claim)))

    def _run(self, claim: Claim) -> int:
        if self._engine.write(lambda uow: self._dropped(uow, claim)):
            return 0
        return self._tasks(claim).run_trigger(claim)

    def _tasks(self, claim: Claim) -> Tasks:
        """Return the service of tasks for the principal that requested the work."""
        principal = claim.job.principal
        reader = ContextService(self._engine, principal, Searching(self._engine, principal))
        return tasks_of(self._engine, principal, reader.assemble_only)

    def _dropped(self, uow: UnitOfWork, claim: Claim) -> bool:
        """Drop a trigger whose subject ended in a process that has no such policies; return whether it did."""
        reason = self._ended(uow, claim.job)
        if reason is None:
            return False
        claim.end(uow, JobOutcome.CANCELLED)
        record_unfinished(self._engine, uow, claim.job, "dropped", reason)
        return True

    def _ended(self, uow: UnitOfWork, job: Job) -> str | None:
        assert job.trajectory_id is not None  # a trigger is of a task
        task: Trajectory | None = uow.find(TRAJECTORY, job.trajectory_id.bytes)
        if task is None or states.TRAJECTORY.is_terminal(task.status):
            return "the task ended"
        if job.scope_id is None:
            return None
        scope: Scope | None = uow.find(SCOPE, job.scope_id.bytes)
        return None if scope is not None and scope.is_open else SCOPE_CLOSED

    def _given_up(self, uow: UnitOfWork, job: Job, reason: str) -> None:
        record_unfinished(self._engine, uow, job, "failed", reason)
        payload = {"trigger": trigger_of(job).value, "error": "given_up", "message": reason}
        record(self._engine, uow, job, EventType.ERROR, payload)
