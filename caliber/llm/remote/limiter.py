"""Rate limiter (token buckets) for requests and tokens per minute.

Source: M-016.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from caliber.model.deadline import remaining_s
from caliber.model.errors import RateLimited, Unavailable

if TYPE_CHECKING:
    from caliber.storage.waiting import Flag

_MINUTE_S = 60.0

_HELD_MOST_S = 3_600.0
"""Longest wait before the next request, even if a service requests more, such as by a wrong clock."""


class Bucket:
    """A token bucket of one minute's worth; a request beyond its content becomes a debt, and waits."""

    __slots__ = ("_at", "_capacity", "_level")

    def __init__(self, per_minute: int, now: float) -> None:
        self._capacity = self._level = float(per_minute)
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take ``amount`` and return the seconds until it is covered; a negative amount gives back."""
        if not self._capacity:
            return 0.0
        rate = self._capacity / _MINUTE_S
        self._level = min(self._capacity, self._level + (now - self._at) * rate) - amount
        self._at = now
        return max(0.0, -self._level / rate)


class RateLimiter:
    """Two token buckets, of requests and of tokens, and the wait that the service requested. Threads may share it.

    A limit of 0 is none. Units: both a minute; ``monotonic`` counts seconds.
    """

    def __init__(
        self,
        provider: str,
        *,
        requests_per_minute: int,
        tokens_per_minute: int,
        closed: Flag,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        now = monotonic()
        self._monotonic = monotonic
        self._provider = provider
        self._requests = Bucket(requests_per_minute, now)
        self._tokens = Bucket(tokens_per_minute, now)
        self._held_until = now
        self._closed = closed
        self._lock = threading.Lock()

    def take(self, tokens: int) -> None:
        """Wait for the turn of one request of ``tokens``.

        Raises: RateLimited at once while the service asked to wait, and when the turn would come after the deadline;
            Unavailable when closed.
        """
        now = self._monotonic()
        remaining = remaining_s()
        with self._lock:
            held = self._held_until - now
            wait = 0.0
            if held <= 0:
                wait = max(self._requests.take(1, now), self._tokens.take(tokens, now))
                if remaining is not None and wait > remaining:
                    self._requests.take(-1, now)
                    self._tokens.take(-tokens, now)
        if held > 0 or (remaining is not None and wait > remaining):
            raise RateLimited(provider=self._provider, retry_after_ms=int(max(held, wait) * 1_000) + 1)
        if self._closed.wait(wait) if wait else self._closed.is_set():
            raise Unavailable(f"{self._provider} was closed", reason="closed", retryable=False)

    def settle(self, estimated: int, used: int) -> None:
        """Correct the tokens of a request by the service's own count."""
        with self._lock:
            self._tokens.take(used - estimated, self._monotonic())

    def hold(self, seconds: float) -> None:
        """Take note that the service wants no request for ``seconds``; an hour at the most."""
        with self._lock:
            self._held_until = max(self._held_until, self._monotonic() + min(seconds, _HELD_MOST_S))
