"""Watches on values: iterators that sleep until a commit of this process or of another one wakes them.

A watch compares versions when it wakes up, so that no news can get lost, however many come at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from caliber.engine.commit_waiters import CHANGED, CommitWaiter, waiters_of
from caliber.engine.engine import Engine
from caliber.model.deadline import check, earliest
from caliber.model.workspace import WorkspaceValue
from caliber.schema.relations import WORKSPACE_VALUE
from caliber.storage.waiting import Flag

Wake = Callable[[], None]


class Watch:
    """An iterator over changed values. Use it in one thread; ``close`` may come from any."""

    def __init__(
        self,
        engine: Engine,
        read: Callable[[], Iterable[WorkspaceValue]],
        timeout_ms: int | None,
    ) -> None:
        self._waiters = waiters_of(engine)
        self._waiter = CommitWaiter([(CHANGED, WORKSPACE_VALUE.name)], self._wake, engine.config.resident.feed_poll_ms)
        self._read = read
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1_000
        self._waiting: deque[WorkspaceValue] = deque()
        self._woken = Flag()
        self._is_closed = False
        self.on_wake: Wake = lambda: None
        """Called besides, from any thread, when there may be something to read."""
        try:
            self._waiters.add(self._waiter)
            self._seen = {each.value_id: each.version for each in read()}
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """True once the watch or the store was closed."""
        return self._is_closed or self._waiters.closed

    def __iter__(self) -> Iterator[WorkspaceValue]:
        return self

    def __next__(self) -> WorkspaceValue:
        until = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while not self._waiting:
            remaining = None if until is None else until - time.monotonic()
            if self.closed or (remaining is not None and remaining <= 0):
                self.close()
                raise StopIteration
            check("a change was waited for")
            wake_at = earliest(until)
            if self._woken.wait(None if wake_at is None else max(0.0, wake_at - time.monotonic())):
                self._waiting.extend(self.changes())
        return self._waiting.popleft()

    def changes(self) -> list[WorkspaceValue]:
        """Return the values that changed since the last look, in the order of their times, without waiting."""
        self._woken.clear()  # first: a commit during the look wakes us once more
        if self.closed:
            return []
        changed = [each for each in self._read() if self._seen.get(each.value_id) != each.version]
        self._seen.update((each.value_id, each.version) for each in changed)
        return sorted(changed, key=lambda each: (each.updated_at, each.key))

    def close(self) -> None:
        """End the watch; a thread that waits for it goes on."""
        self._is_closed = True
        self._waiters.remove(self._waiter)
        self._wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        self._woken.set()
        self.on_wake()
