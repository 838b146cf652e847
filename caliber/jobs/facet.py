"""Facet ``memory.jobs``: lists, retries, cancels and runs background jobs."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

from caliber.engine.engine import Engine
from caliber.jobs.handlers import ScheduledRule
from caliber.jobs.queue import JobQueue
from caliber.jobs.states import renewed, rescheduled
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidStateTransition, NotFound
from caliber.model.jobs import Job, JobOutcome, JobState
from caliber.model.joining import refuse_inside
from caliber.model.references import Id
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.write.unit_of_work import UnitOfWork


class Jobs:
    """The jobs of the store. Listing and changing them needs an admin; every principal may run due jobs."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._jobs = engine.part(JobQueue)

    def run_due(self) -> int:
        """Run due jobs: schedules, and triggers that a process which died left behind. Return the number of actions.

        An open store does so by itself every ``jobs.poll_ms``. Raises: StorageError kinds.
        """
        refuse_inside("jobs have transactions of their own", self._engine.store)
        return self._jobs.run_due()

    def schedules(self) -> list[ScheduledRule]:
        """Return the policies' rules on a schedule, and when each is due next."""
        self._engine.check_open()
        now = self._engine.clock.now_us()
        return [
            handler.schedule(self._jobs.find(handler.recurrence.job_id), now)
            for handler in self._jobs.handlers
            if handler.schedule is not None and handler.recurrence is not None
        ]

    def list(self, *, state: JobState | str | None = None, kind: str | None = None, limit: int = 100) -> list[Job]:
        """Return jobs: pending ones by kind and due time, then the ended ones, newest first.

        Raises: InputError kinds; PermissionDenied unless the principal is an admin.
        """
        self._principal.require_admin("read", "jobs")
        wanted = None if state is None else arguments.as_enum(state, JobState, "state")
        name = None if kind is None else arguments.as_text(kind, "kind", limit=arguments.MAX_NAME_CHARS)
        most = arguments.as_whole(limit, "limit", 1)
        outcomes = [outcome for outcome in JobOutcome if wanted in (None, outcome.value)]

        def read(uow: UnitOfWork) -> tuple[list[Job], list[Job]]:
            going: list[Job] = []
            if wanted in (None, JobState.WAITING, JobState.RUNNING):
                going = uow.select_entities(JOB, "job.list_open", name or "", wanted or "", most)
            ended = (uow.select_entities(JOB, "job.list_ended", each.value, name or "", most) for each in outcomes)
            return going, [job for jobs in ended for job in jobs]

        going, ended = self._engine.read(read)
        ended.sort(key=lambda job: (job.ended_at, job.job_id), reverse=True)
        return [*going, *ended][:most]

    def retry(self, job_id: Id) -> Job:
        """Let a failed or cancelled job wait again, with all its attempts before it; return it.

        Raises: NotFound, InvalidStateTransition for a job that waits, runs or is done; PermissionDenied.
        """

        def again(job: Job, uow: UnitOfWork) -> Job:
            if job.outcome not in (JobOutcome.FAILED, JobOutcome.CANCELLED):
                raise InvalidStateTransition(entity_type="job", from_state=job.state.value, to_state="waiting")
            return renewed(job, uow.now_us)

        return self._change("retry", job_id, again)

    def cancel(self, job_id: Id) -> Job:
        """End a waiting or running job; a process that runs it writes nothing any more. Return it.

        A recurring job waits for its next time instead, and its unfinished run is dropped.

        Raises: NotFound, InvalidStateTransition for a job that has ended; PermissionDenied.
        """

        def ended(job: Job, uow: UnitOfWork) -> Job:
            if job.ended_at is not None:
                raise InvalidStateTransition(entity_type="job", from_state=job.state.value, to_state="cancelled")
            again = self._jobs.recurrence(job.kind)
            if again is not None:
                return rescheduled(job, uow.now_us, again.next_us(uow.now_us), again.state(uow.now_us))
            return dataclasses.replace(job, ended_at=from_us(uow.now_us), outcome=JobOutcome.CANCELLED, claimed_by=None)

        return self._change("cancel", job_id, ended)

    def _change(self, action: str, job_id: Id, changed: Callable[[Job, UnitOfWork], Job]) -> Job:
        self._principal.require_admin(action, "jobs")
        wanted: uuid.UUID = arguments.as_uuid(job_id, "job_id")

        def work(uow: UnitOfWork) -> Any:
            job = uow.find(JOB, wanted.bytes)
            if job is None:
                raise NotFound(entity_type="job", id=wanted)
            uow.on_commit.append(lambda: self._jobs.on_enqueued(0.0))
            return uow.update(JOB, changed(job, uow))

        stored: Job = self._engine.write(work)
        return stored
