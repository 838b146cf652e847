"""Producers of a tenant, and outages: a producer or kind of job that fails is asked later each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caliber.engine.engine import Engine
from caliber.jobs.handlers import Producer
from caliber.model.errors import CaliberError, Unavailable


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
