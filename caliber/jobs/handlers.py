"""Declaration of job handlers: a kind's function, limits, recurrence; and searches for work, by producers.

A producer or kind of job that fails is asked later each time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.states import SYSTEM, new_job
from caliber.model.errors import CaliberError, Unavailable
from caliber.model.jobs import Job
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us, to_us
from caliber.storage.write.unit_of_work import UnitOfWork

URGENT, NORMAL, IDLE = range(3)
"""Priorities of kinds: due jobs of an earlier one are claimed first."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A job that exists as long as its handler does: after a run it waits for its next time.

    ``next_us`` returns the first time after a time, in µs; ``at_once`` makes the first run due immediately. ``state``
    returns the payload that the job begins with at a time.
    """

    job_id: uuid.UUID
    next_us: Callable[[int], int]
    at_once: bool = False
    state: Callable[[int], dict[str, Any]] = lambda _: {}


@dataclass(frozen=True, slots=True)
class Handler:
    """The work of one kind of job.

    ``run`` does it and returns how many actions that took; it calls ``Claim.ack`` in the transaction of its work. A
    job that it leaves without is ended after it, with the others of its ``batch``: its work may be done twice, if the
    process dies in between. ``concurrency`` is how many threads of a process run the kind at once.
    """

    kind: str
    run: Callable[[Claim], int]
    priority: int = NORMAL
    concurrency: int = 1
    batch: int = 1
    recurrence: Recurrence | None = None
    given_up: Callable[[UnitOfWork, Job, str], None] | None = None
    """Called in the transaction that ends a job as failed; without it the event log gets an error."""
    schedule: Callable[[Job | None, int], ScheduledRule] | None = None
    """Returns the public view of a rule on a schedule, at a time."""
    idle: Callable[[], bool] = field(default=lambda: False)
    """Whether jobs of the kind are left to others for now."""
    outlasts: Callable[[Exception], bool] | None = None
    """Whether a failure is an outage that the job outlasts: it is tried again until it is done, and logged once."""

    def corrected(self, job: Job | None, now_us: int) -> Job | None:
        """Return the recurring job that is missing, or waits for a time of another configuration, as it is to be.

        None for one that is as it should be, and for a kind that does not recur.
        """
        again = self.recurrence
        if again is None:
            return None
        now, next_us = from_us(now_us), again.next_us(now_us)
        following = from_us(next_us)
        if job is None:
            due = now if again.at_once else following
            made = new_job(self.kind, now, due, SYSTEM, key=None, payload=again.state(now_us), of=(None, None))
            return replace(made, job_id=again.job_id)
        waits = job.ended_at is None and job.claimed_by is None
        if not waits or self.idle() or to_us(job.available_at) <= next_us:
            return None
        return replace(job, due_at=following, available_at=following, scheduled_at=now)


class Producer(Protocol):
    """A room's search for work that no transaction of this process caused; it runs before jobs are claimed."""

    def due_in_us(self) -> int | None:
        """Return how long until there is something to look for; None while there is nothing. Units: µs."""
        ...

    def produce(self) -> None:
        """Enqueue jobs for existing work. Raises: StorageError kinds."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduledRule:
    """A rule on a schedule, and its progress.

    ``next_at`` is its next due time, which is past while nothing ran it; runs up to ``covered_at`` are done (at first:
    when the rule was first seen, None before); ``running_since`` is the due time of an unfinished run. Times are in
    ``time_zone``.
    """

    policy: str
    rule: int
    cron: str
    actions: tuple[str, ...]
    next_at: datetime
    covered_at: datetime | None
    running_since: datetime | None


class Producers:
    """The producers of a tenant. ``append`` adds one."""

    def __init__(self, engine: Engine, outages: Outages) -> None:
        self._engine = engine
        self._outages = outages
        self._each: list[Producer] = []
        self.append = self._each.append

    def produce(self, now_us: int) -> None:
        """Have each producer enqueue jobs; an error is recorded once, and costs no other producer its turn.

        Raises: Unavailable.
        """
        for name, producer in self._named():
            if self._outages.until_us(name, now_us) > now_us:
                continue
            try:
                producer.produce()
            except Unavailable:
                raise
            except CaliberError as error:
                if self._outages.met(name, error.message, now_us):
                    self._engine.record_error(name, error)
            else:
                self._outages.over(name)

    def waits_us(self, now_us: int) -> list[int]:
        """Return how long until each producer that has something to look for may be asked. Units: µs."""
        waits = [(name, producer.due_in_us()) for name, producer in self._named()]
        return [max(wait, self._outages.until_us(name, now_us) - now_us) for name, wait in waits if wait is not None]

    def _named(self) -> Iterator[tuple[str, Producer]]:
        """Yield the producers with the name under which their failures are counted."""
        return ((f"producer {type(each).__name__}", each) for each in self._each)


class _Outage(NamedTuple):
    reason: str
    failures: int
    until_us: int


class Outages:
    """The outages that jobs of this process wait for: one job of a kind asks at a time, and later each time."""

    def __init__(self, backoff_ms: int, longest_ms: int) -> None:
        self._backoff_us = backoff_ms * 1_000
        self._longest_us = longest_ms * 1_000
        self._of: dict[str, _Outage] = {}

    def met(self, kind: str, reason: str, now_us: int) -> bool:
        """Note a failure; return whether it is news, which is to be logged."""
        before = self._of.get(kind)
        failures = 0 if before is None else before.failures
        wait_us = min(self._backoff_us << min(failures, 32), self._longest_us)
        self._of[kind] = _Outage(reason, failures + 1, now_us + wait_us)
        return before is None or before.reason != reason

    def over(self, kind: str) -> None:
        """Note that a job of the kind was done."""
        self._of.pop(kind, None)

    def until_us(self, kind: str, now_us: int) -> int:
        """Return when jobs of a kind may be claimed again; a time in the past without an outage. Units: µs."""
        outage = self._of.get(kind)
        # A clock that was put back must not make jobs wait longer than intended.
        return 0 if outage is None or outage.until_us > now_us + self._longest_us else outage.until_us
