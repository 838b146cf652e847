"""Job runner of an open tenant: a background task that claims due jobs and hands them to worker threads.

It waits until the next job is due, a commit enqueues a job, or another process commits. It finds a job that a dead
process abandoned at its next poll, at most ``jobs.poll_ms`` later. A store that does not answer delays only its own
polls and leases.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from caliber.engine import pacing
from caliber.engine.background import STOP_S, BackgroundTask
from caliber.engine.engine import Engine
from caliber.engine.worker import Worker
from caliber.jobs.claims import Claim, extend_all
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Unavailable


class TenantJobs(BackgroundTask):
    """An open tenant whose jobs this process runs; it follows the tenant's commits.

    A turn extends the leases of its running jobs, and hands due jobs to workers.
    """

    def __init__(self, engine: Engine, jobs: JobQueue) -> None:
        super().__init__("jobs", failed=engine.record_error)
        self._engine = engine
        self.jobs = jobs
        self._poll_s = engine.config.jobs.poll_ms / 1_000
        self._workers_max = engine.config.jobs.workers
        self._workers: set[Worker] = set()
        self._look_at = time.monotonic() + self._poll_s  # a program that makes a single query has ended by then
        self._extend_at = time.monotonic() + self._extend_s

    # --- as the engine sees it -----------------------------------------------------------------------

    def committed(self, changes: Sequence[Any]) -> None:
        """Nothing: enqueueing wakes the tenant."""

    def changed_elsewhere(self) -> None:
        """Look now: another process may have enqueued something."""
        self.look()

    def loaded(self) -> None:
        """Look now."""
        self.look()

    def drain(self) -> None:
        """Nothing: a flush does not wait for jobs."""

    def close(self) -> None:
        """End, and wait for jobs under way."""
        self.cancel()
        self.jobs.stopping = True
        until = time.monotonic() + STOP_S  # the leases of jobs that still run then end later
        self.stop()  # it may have started one more worker
        for worker in list(self._workers):
            worker.join(timeout=max(0.0, until - time.monotonic()))

    # --- as the threads of the process see it ---------------------------------------------------------

    def look(self, within_s: float = 0.0) -> None:
        """Look for due jobs within some seconds."""
        look_at = time.monotonic() + within_s
        if look_at < self._look_at:
            self._look_at = look_at
            with contextlib.suppress(Unavailable):  # the jobs are stored: the next look of any process finds them
                self.wake()

    def next_s(self) -> float:
        """Return when the next turn is due."""
        return min(self._look_at, self._extend_at)

    @property
    def _extend_s(self) -> float:
        """The longest time between two checks of leases: jobs run by callers start without notice."""
        return self.jobs.lease_us / 1_000_000 / 3

    def _call(self) -> bool:
        self._extend_at = time.monotonic() + min(extend_all(self.jobs), self._extend_s)
        if not self.jobs.stopping and time.monotonic() >= self._look_at:
            self._look()
        return True

    def _look(self) -> None:
        self._look_at = time.monotonic() + self._poll_s
        while len(self._workers) < self._workers_max and (claims := self.jobs.claim_due()):
            self._begin(claims)
        due_us = self.jobs.due_in_us()
        if due_us is not None and len(self._workers) < self._workers_max:
            # A due job that was not claimed is locked by another process: polling again at once would be a busy loop.
            wait_s = max(due_us / 1_000_000, pacing.REST_MAX_S)
            self._look_at = min(self._look_at, time.monotonic() + wait_s)

    def _begin(self, claims: list[Claim]) -> None:
        def run() -> None:
            try:
                self.jobs.run(claims)
                while not self.jobs.stopping and (more := self.jobs.claim_due()):
                    self.jobs.run(more)
            except Exception as error:
                if not self.jobs.stopping:
                    self._engine.record_error("jobs", error)
            finally:
                self._workers.discard(worker)
                self.look()

        worker = Worker(run, "caliber-job")
        self._workers.add(worker)
        try:
            worker.start()
        except Unavailable:
            self._workers.discard(worker)
            self.jobs.give_back(claims)
            raise


def start(engine: Engine) -> None:
    """Run the jobs of an open tenant in the background; with ``jobs.poll_ms`` = 0 only ``run_due`` does."""
    jobs = engine.part(JobQueue)
    if not engine.config.jobs.poll_ms or not jobs.handlers:
        return
    tenant = TenantJobs(engine, jobs)
    jobs.on_enqueued = tenant.look
    if jobs.enqueued_at_open:
        tenant.look()
    engine.follow(tenant)
    tenant.wake()
