"""The runner of jobs: one thread for all open tenants of a process claims what is due, and hands it to workers.

It sleeps until the next job is due, a commit enqueues one, or another process commits. A job that was left behind by a
process that died is found at the next look, ``jobs.poll_ms`` later at most.
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
from caliber.storage.waiting import Event, Worker

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
        self._look_at = time.monotonic() + self._poll_s  # a program that only looks something up is gone by then
        self._failing = False
        self._not_looking = Event()
        self._not_looking.set()

    # --- as the engine sees it -----------------------------------------------------------------------

    def committed(self, changes: Sequence[Any]) -> None:
        """Nothing: whoever enqueues wakes the runner."""

    def changed_elsewhere(self) -> None:
        """Look now: another process may have enqueued something."""
        self.wake()

    def loaded(self) -> None:
        """Look now."""
        self.wake()

    def drain(self) -> None:
        """Nothing: jobs are not part of what a flush waits for."""

    def close(self) -> None:
        """End, and wait for jobs under way."""
        self.jobs.stopping = True
        _runner().remove(self)
        until = time.monotonic() + _STOP_S
        self._not_looking.wait(_STOP_S)  # it may have begun one more worker
        for worker in list(self._workers):
            worker.join(timeout=max(0.0, until - time.monotonic()))

    # --- as the runner sees it -----------------------------------------------------------------------

    def wake(self) -> None:
        """Have the runner look now."""
        self._look_at = 0.0
        _runner().wake()

    @property
    def extend_s(self) -> float:
        """The longest time until leases are to be extended: jobs may begin while the runner waits. Units: seconds."""
        return self.jobs.lease_us / 1_000_000 / 3

    def look(self) -> float:
        """Hand what is due to workers; return when to look again, on the monotonic clock."""
        self._not_looking.clear()
        try:
            return math.inf if self.jobs.stopping else self._look()
        finally:
            self._not_looking.set()

    def _look(self) -> float:
        if time.monotonic() < self._look_at:
            return self._look_at
        self._look_at = time.monotonic() + self._poll_s
        try:
            while len(self._workers) < self._workers_max and (claims := self.jobs.claim_due()):
                self._begin(claims)
            due_us = self.jobs.due_in_us()
            if due_us is not None and len(self._workers) < self._workers_max:
                # What is due and was not claimed is locked by somebody: looking at once again would be a busy loop.
                wait_s = max(due_us / 1_000_000, pacing.REST_MAX_S)
                self._look_at = min(self._look_at, time.monotonic() + wait_s)
            self._failing = False
        except Exception as error:
            # One report for each outage, not one for each look.
            if not self._failing and not self.jobs.stopping:
                self._engine.record_error("jobs", error)
            self._failing = True
        return self._look_at

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
    """The thread that looks for due jobs of all open tenants of this process."""

    def __init__(self) -> None:
        self._tenants: dict[int, Tenant] = {}
        self._woken = Event()
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def add(self, tenant: Tenant) -> None:
        """Begin to run the jobs of a tenant."""
        with self._lock:
            self._tenants[id(tenant)] = tenant
            if self._worker is None:
                self._worker = Worker(self._run, "caliber-jobs")
        self._worker.start()
        self._woken.set()

    def remove(self, tenant: Tenant) -> None:
        """Run no more jobs of a tenant."""
        with self._lock:
            self._tenants.pop(id(tenant), None)
        self.wake()

    def wake(self) -> None:
        """Look at the tenants now."""
        self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.clear()
            extension = time.monotonic() + extend_all()
            tenants = list(self._tenants.values())
            looks = [min(tenant.look(), time.monotonic() + tenant.extend_s) for tenant in tenants]
            with self._lock:
                if not self._tenants:
                    self._worker = None
                    return
            next_look = min(extension, *looks)
            self._woken.wait(max(0.0, min(next_look - time.monotonic(), threading.TIMEOUT_MAX)))


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
    engine.follow(tenant)
    _runner().add(tenant)
