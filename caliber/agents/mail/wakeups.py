"""Wake-ups of receivers that wait for messages: after a commit of this process or another, and not by polling.

PostgreSQL notifies every process that has ``storage.feed_dsn``. Where the database notifies nobody, receivers wait as
``engine.commit_waiters`` does; on PostgreSQL no more often than ``resident.feed_poll_ms``.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from caliber.engine.commit_waiters import CommitWaiter, waiters_of
from caliber.engine.engine import Engine
from caliber.model.events import Event, EventType
from caliber.model.process.interrupts import managed
from caliber.schema.relations import AGENT_MESSAGE
from caliber.storage.write.unit_of_work import UnitOfWork

PENDING: Final = "message_pending"
"""The type of the event that wakes receivers; its subject is a mailbox. It is never logged."""
POLL_MS: Final = 15
"""Interval of looks for messages of other processes, where the database does not notify of them."""
_making: Final = threading.Lock()


class Wakeups:
    """The receivers of an open tenant that wait in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters = waiters_of(engine)
        self._lock = threading.Lock()
        self._waiting = 0
        self._unsubscribe: Callable[[], None] | None = None
        self._every_ms = POLL_MS
        if not engine.store.sees_every_commit:
            self._every_ms = max(POLL_MS, engine.config.resident.feed_poll_ms)
        self.sweep_at_s = 0.0
        """When, on the monotonic clock, a send enqueues the next sweep."""

    @managed
    def waiting(self, mailboxes: frozenset[uuid.UUID], wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake``, on any thread, whenever one of the mailboxes may have a message, until the block ends."""
        with self._waiters.waiting(
            CommitWaiter({(PENDING, each) for each in mailboxes}, wake, self._every_ms, is_mirrored=False)
        ):
            with self._lock:
                self._waiting += 1
                if self._unsubscribe is None:
                    self._unsubscribe = self._engine.bus.subscribe(self._heard, remote=True)
            try:
                yield
            finally:
                with self._lock:
                    self._waiting -= 1
                    if not self._waiting and self._unsubscribe is not None:
                        self._unsubscribe()  # without subscribers no event is made for them
                        self._unsubscribe = None

    @property
    def awaited(self) -> bool:
        """True while a receiver waits."""
        return self._waiting > 0

    def notify(self, uow: UnitOfWork, mailboxes: Sequence[uuid.UUID]) -> None:
        """Wake the receivers of mailboxes in every process, after the commit of this transaction."""
        events = [
            self._engine.event(PENDING, subject=(AGENT_MESSAGE.name, mailbox), at_us=uow.now_us)
            for mailbox in dict.fromkeys(mailboxes)
        ]
        uow.logged.extend(events)  # notified, and not written to the log

        def publish() -> None:
            for event in events:
                self._engine.bus.publish(event)

        uow.on_commit.append(publish)

    def _heard(self, event: Event) -> None:
        if event.event_type == EventType.EVENTS_MISSED:
            self._waiters.wake_all()
        elif event.event_type == PENDING and event.subject_id is not None:
            self._waiters.notify((PENDING, event.subject_id))


def wakeups_of(engine: Engine) -> Wakeups:
    """Return the part of an open tenant, made when it is first needed."""
    found = engine.find_part(Wakeups)
    if found is None:
        with _making:
            found = engine.find_part(Wakeups)
            if found is None:
                found = Wakeups(engine)
                engine.add(found)
    return found
