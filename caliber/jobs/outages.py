"""Tracking of outages, such as of a provider, that make one kind of job fail and wait."""

from __future__ import annotations

from typing import NamedTuple


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
