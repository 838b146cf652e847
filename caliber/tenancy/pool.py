"""Pool of open tenants: the last ones used stay open, and none is closed while it is used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from caliber.model.errors import Conflict, Unavailable
from caliber.storage.waiting import Condition, managed

H = TypeVar("H")


class _State(Enum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


@dataclass(slots=True)
class _Entry(Generic[H]):
    """A tenant of the pool. One thread opens or closes it; only an open one has users."""

    state: _State = _State.OPENING
    handle: H | None = None
    users: int = 0
    retired: bool = False
    """Whether the last user closes it."""


@dataclass(slots=True)
class PoolStats:
    """Counts of a pool: tenants open now and used now, and what happened since it was made."""

    open: int = 0
    in_use: int = 0
    hits: int = 0
    opened: int = 0
    closed: int = 0
    failed_closings: int = 0


class HandlePool(Generic[H]):
    """At most ``max_open`` open handles by name. Safe to share between threads."""

    def __init__(
        self,
        max_open: int,
        *,
        opening: Callable[[str], H],
        closing: Callable[[H], None],
        usable: Callable[[H], bool],
    ) -> None:
        self._max_open = max_open
        self._opening = opening
        self._closing = closing
        self._usable = usable
        self._condition = Condition()
        self._entries: OrderedDict[str, _Entry[H]] = OrderedDict()
        self._closed = False
        self._counts = PoolStats()

    def take(self, name: str, wait_s: float) -> H:
        """Return the handle of a name, which stays open until as many ``give_back`` calls. It is opened when needed.

        Raises: Unavailable (``closed``; ``busy``, retryable, when all places are in use for ``wait_s``), and the errors
            of opening
        """
        until = time.monotonic() + wait_s
        while True:
            with self._condition:
                victim = self._claim(name, until)
                entry = self._entries[name] if victim is None else None
                if entry is not None and entry.state is _State.OPEN:
                    assert entry.handle is not None
                    return entry.handle
            if victim is not None:
                self._close(*victim)
            else:
                return self._open(name)

    def _claim(self, name: str, until: float) -> tuple[str, _Entry[H]] | None:
        """Make the caller a user of an open entry, or the opener of a new one; or return the entry to close first."""
        while True:
            if self._closed:
                raise Unavailable("the pool of tenants is closed", reason="closed", retryable=False)
            entry = self._entries.get(name)
            if entry is not None and entry.state is _State.OPEN and not entry.retired:
                assert entry.handle is not None
                if self._usable(entry.handle):
                    entry.users += 1
                    self._counts.hits += 1
                    self._entries.move_to_end(name)
                    return None
                entry.retired = True
            if entry is not None and entry.state is _State.OPEN and not entry.users:
                return self._leave(name, entry)
            if entry is None:
                if len(self._entries) < self._max_open:
                    self._entries[name] = _Entry()
                    return None
                idle = ((key, one) for key, one in self._entries.items() if one.state is _State.OPEN and not one.users)
                oldest = next(idle, None)
                if oldest is not None:
                    return self._leave(*oldest)
            left = until - time.monotonic()
            if left <= 0:
                what = f"all {self._max_open} open tenants are" if entry is None else f"tenant {name} is"
                raise Unavailable(
                    f"{what} busy: try again, or raise max_open and wait_ms", reason="busy", retryable=True
                )
            self._condition.wait(left)

    def _leave(self, name: str, entry: _Entry[H]) -> tuple[str, _Entry[H]]:
        entry.state = _State.CLOSING
        return name, entry

    def _open(self, name: str) -> H:
        try:
            handle = self._opening(name)
        except BaseException:
            with self._condition:
                del self._entries[name]
                self._condition.notify_all()
            raise
        with self._condition:
            entry = self._entries[name]
            entry.handle, entry.state, entry.users = handle, _State.OPEN, 1
            entry.retired = self._closed
            self._entries.move_to_end(name)
            self._counts.opened += 1
            self._condition.notify_all()
        return handle

    def _close(self, name: str, entry: _Entry[H]) -> None:
        """Close an entry that no thread can take any more; a failure is counted, since no caller waits for it."""
        assert entry.handle is not None
        failed = 1
        try:
            self._closing(entry.handle)
            failed = 0
        except Exception:  # noqa: S110  (counted; its rows are committed, and queued entries were lost)
            pass
        finally:
            with self._condition:
                del self._entries[name]
                self._counts.closed += 1
                self._counts.failed_closings += failed
                self._condition.notify_all()

    def give_back(self, name: str) -> None:
        """End one use; a retired handle is closed by its last user."""
        with self._condition:
            entry = self._entries[name]
            entry.users -= 1
            last = not entry.users and entry.retired
            if last:
                self._leave(name, entry)
            self._condition.notify_all()
        if last:
            self._close(name, entry)

    @managed
    def excluded(self, name: str) -> Iterator[None]:
        """Keep a name closed for as long as the block runs. Raises: Conflict while it is used."""
        with self._condition:
            while (entry := self._entries.get(name)) is not None and entry.state is not _State.OPEN:
                self._condition.wait()
            if entry is not None and entry.users:
                raise Conflict(f"tenant {name} is in use", entity_type="tenant", id=name, reason="in use")
            keeper: _Entry[H] = _Entry()
            self._entries[name] = keeper
        try:
            if entry is not None and entry.handle is not None:
                self._closing(entry.handle)
            yield
        finally:
            with self._condition:
                del self._entries[name]
                self._condition.notify_all()

    def stats(self) -> PoolStats:
        """Return the counts of this moment."""
        with self._condition:
            counts = self._counts
            counts.open = sum(one.state is _State.OPEN for one in self._entries.values())
            counts.in_use = sum(one.users > 0 for one in self._entries.values())
            return PoolStats(
                counts.open, counts.in_use, counts.hits, counts.opened, counts.closed, counts.failed_closings
            )

    def close(self) -> None:
        """Take no more names and close what is idle; handles in use are closed by their last users."""
        with self._condition:
            self._closed = True
            idle = []
            for name, entry in self._entries.items():
                entry.retired = True
                if entry.state is _State.OPEN and not entry.users:
                    idle.append(self._leave(name, entry))
            self._condition.notify_all()
        for name, entry in idle:
            self._close(name, entry)
