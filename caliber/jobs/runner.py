"""Job runner of a process: claims the due jobs of all its open tenants and hands them to worker threads.

It sleeps until the next job is due, a commit enqueues a job, or another process commits. It finds a job that a dead
process abandoned at its next poll, at most ``jobs.poll_ms`` later. A store that does not answer delays only its own
polls and leases.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from caliber.engine import pacing
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim, extend_all
from caliber.jobs.queue import JobQueue
from caliber.storage.waiting import Condition, Event, Worker

_STOP_S: Final = 5.0
"""The longest wait for jobs under way when their store is closed; their leases end later."""


class Tenant:
    """An open tenant whose jobs this process runs; it follows the tenant's commits."""

    def __init__(self, engine: Engine, jobs: JobQueue) -> None:
        self._engine = engine
        self.jobs = jobs
        self._poll_s = engine.config.jobs.poll_ms / 1_000
        self._workers_max = engine.config.jobs.workers
        self._workers: set[Worker] = set()
        self._look_at = time.monotonic() + self._poll_s  # a program that makes a single query has ended by then
        self._extend_at = time.monotonic() + self._extend_s
        self._failing = False
        self._not_looking = Event()
        self._not_looking.set()

    # --- as the engine sees it -----------------------------------------------------------------------

    def committed(self, changes: Sequence[Any]) -> None:
        """Nothing: enqueueing wakes the runner."""

    def changed_elsewhere(self) -> None:
        """Look now: another process may have enqueued something."""
        self.wake()

    def loaded(self) -> None:
        """Look now."""
        self.wake()

    def drain(self) -> None:
        """Nothing: a flush does not wait for jobs."""

    def close(self) -> None:
        """End, and wait for jobs under way."""
        self.jobs.stopping = True
        _runner().remove(self)
        until = time.monotonic() + _STOP_S
        self._not_looking.wait(_STOP_S)  # it may have started one more worker
        for worker in list(self._workers):
            worker.join(timeout=max(0.0, until - time.monotonic()))

    # --- as the runner sees it -----------------------------------------------------------------------

    def wake(self, within_s: float = 0.0) -> None:
        """Have the runner look within some seconds."""
        look_at = time.monotonic() + within_s
        if look_at < self._look_at:
            self._look_at = look_at
            _runner().wake()

    @property
    def _extend_s(self) -> float:
        """The longest time between two checks of leases: jobs run by callers start without notice."""
        return self.jobs.lease_us / 1_000_000 / 3

    @property
    def due_s(self) -> float:
        """The time of the next turn, on the monotonic clock; infinity during one."""
        return min(self._look_at, self._extend_at) if self._not_looking.is_set() else math.inf

    def begin(self) -> None:
        """Let a turn begin, which a thread is about to take."""
        self._not_looking.clear()

    def turn(self) -> None:
        """Extend the leases of the tenant's jobs that are due for it, and hand due jobs to workers."""
        try:
            self._extend_at = time.monotonic() + min(extend_all(self.jobs), self._extend_s)
            if not self.jobs.stopping and time.monotonic() >= self._look_at:
                self._look()
        finally:
            self._not_looking.set()

    def _look(self) -> None:
        self._look_at = time.monotonic() + self._poll_s
        try:
            while len(self._workers) < self._workers_max and (claims := self.jobs.claim_due()):
                self._begin(claims)
            due_us = self.jobs.due_in_us()
            if due_us is not None and len(self._workers) < self._workers_max:
                # A due job that was not claimed is locked by another process: polling again at once would be a busy
                # loop.
                wait_s = max(due_us / 1_000_000, pacing.REST_MAX_S)
                self._look_at = min(self._look_at, time.monotonic() + wait_s)
            self._failing = False
        except Exception as error:
            # One report for each outage, not one for each look.
            if not self._failing and not self.jobs.stopping:
                self._engine.record_error("jobs", error)
            self._failing = True

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
                self.wake()

        worker = Worker(run, "caliber-job")
        self._workers.add(worker)
        worker.start()


class Runner:
    """The threads that look after all open tenants of this process, a turn of one tenant after the other.

    One thread waits for the next turn. When it takes a turn, which a store that does not answer may make long, a second
    one waits in its place; so there are two, and one more for each such store.
    """

    def __init__(self) -> None:
        self._tenants: dict[int, Tenant] = {}
        self._condition = Condition()
        self._threads = 0
        self._waits = False
        """Whether a thread waits for the next turn."""
        self._spare = False
        """Whether one more waits to take its place."""

    def add(self, tenant: Tenant) -> None:
        """Begin to run the jobs of a tenant."""
        with self._condition:
            self._tenants[id(tenant)] = tenant
            self._condition.notify_all()
            needed = not self._threads
            self._threads += needed
        if needed:
            Worker(self._run, "caliber-jobs").start()

    def remove(self, tenant: Tenant) -> None:
        """Run no more jobs of a tenant."""
        with self._condition:
            self._tenants.pop(id(tenant), None)
            self._condition.notify_all()

    def wake(self) -> None:
        """Poll the tenants now."""
        with self._condition:
            self._condition.notify_all()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            tenant, needed = taken
            if needed:
                Worker(self._run, "caliber-jobs").start()
            tenant.turn()
            self.wake()  # its next turn may be the first one now

    def _take(self) -> tuple[Tenant, bool] | None:
        """Wait for the next turn; return its tenant, and whether another thread is needed to wait for the one after it.

        None when the calling thread is not needed any more.
        """
        with self._condition:
            if self._waits and not self._spare:
                self._spare = True
                self._condition.wait_for(lambda: not self._waits)
                self._spare = False
            if self._waits:
                self._threads -= 1
                return None
            self._waits = True
            try:
                while self._tenants:
                    tenant = min(self._tenants.values(), key=lambda each: each.due_s)
                    wait_s = tenant.due_s - time.monotonic()
                    if wait_s <= 0:
                        tenant.begin()
                        needed = not self._spare
                        self._threads += needed
                        return tenant, needed
                    self._condition.wait(min(wait_s, threading.TIMEOUT_MAX))
                self._threads -= 1
                return None
            finally:
                self._waits = False
                self._condition.notify_all()


_of_process: list[Runner] = []


def _runner() -> Runner:
    if not _of_process:
        _of_process.append(Runner())
    return _of_process[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_process.clear)  # the child does not have its thread


def start(engine: Engine) -> None:
    """Run the jobs of an open tenant in the background; with ``jobs.poll_ms`` = 0 only ``run_due`` does."""
    jobs = engine.part(JobQueue)
    if not engine.config.jobs.poll_ms or not jobs.handlers:
        return
    tenant = Tenant(engine, jobs)
    jobs.on_enqueued = tenant.wake
    if jobs.enqueued_at_open:
        tenant.wake()
    engine.follow(tenant)
    _runner().add(tenant)
