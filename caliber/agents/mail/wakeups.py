"""Wake-ups of receivers that wait for messages: after a commit of this process or another, and not by polling.

PostgreSQL notifies every process that has ``storage.feed_dsn``. On SQLite, which notifies nobody, one background task a
process looks at the file's change counter every ``agents.messages.poll_ms``, as long as a receiver waits; so does
PostgreSQL without a ``feed_dsn``, no more often than ``resident.feed_poll_ms``.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from caliber.engine.background import BackgroundTask
from caliber.engine.engine import Engine
from caliber.model.errors import ConfigError
from caliber.model.events import Event, EventType
from caliber.model.process.interrupts import managed
from caliber.schema.relations import AGENT_MESSAGE
from caliber.storage.write.unit_of_work import UnitOfWork

PENDING: Final = "message_pending"
"""The type of the event that wakes receivers; its subject is a mailbox. It is never logged."""
_making: Final = threading.Lock()


class Wakeups:
    """The receivers of an open tenant that wait in this process; a follower of its commits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[object, tuple[frozenset[uuid.UUID], Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._unsubscribe: Callable[[], None] | None = None
        try:
            engine.store.require_remote_events()
            poll_ms = 0
        except ConfigError:  # SQLite, or no feed_dsn
            poll_ms = engine.config.agents.messages.poll_ms
            if engine.store.adapter != "sqlite":
                poll_ms = max(poll_ms, engine.config.resident.feed_poll_ms)
        self._watch = _Watch(self, engine, poll_ms / 1_000)
        self.sweep_at_s = 0.0
        """When, on the monotonic clock, a send enqueues the next sweep."""
        engine.follow(self)

    @managed
    def waiting(self, mailboxes: frozenset[uuid.UUID], wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake``, on any thread, whenever one of the mailboxes may have a message, until the block ends."""
        waiter = object()
        with self._lock:
            self._waiting[waiter] = (mailboxes, wake)
            if self._unsubscribe is None:
                self._unsubscribe = self._engine.bus.subscribe(self._heard, remote=True)
        self._watch.begin_watching()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(waiter, None)
                if not self._waiting and self._unsubscribe is not None:
                    self._unsubscribe()  # without subscribers no event is made for them
                    self._unsubscribe = None

    @property
    def awaited(self) -> bool:
        """True while a receiver waits."""
        return bool(self._waiting)

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
            self.ring()
        elif event.event_type == PENDING:
            for mailboxes, wake in list(self._waiting.values()):
                if event.subject_id in mailboxes:
                    wake()

    def ring(self) -> None:
        """Wake every receiver that waits."""
        for _, wake in list(self._waiting.values()):
            wake()

    # --- as the engine sees it ---------------------------------------------------------------------

    def committed(self, changes: Sequence[Any]) -> None:
        """Nothing: a send wakes its receivers."""

    def changed_elsewhere(self) -> None:
        """Wake all: another process may have sent something."""
        self.ring()

    def loaded(self) -> None:
        """Wake all."""
        self.ring()

    def drain(self) -> None:
        """Nothing: a flush does not wait for messages."""

    def close(self) -> None:
        """Wake all: they find the handle closed."""
        self._watch.stop()
        self.ring()


class _Watch(BackgroundTask):
    """The look at other processes' commits, where the database does not notify."""

    def __init__(self, wakeups: Wakeups, engine: Engine, every_s: float) -> None:
        super().__init__("messages", failed=engine.record_error)
        self._wakeups = wakeups
        self._engine = engine
        self._every_s = every_s
        self._notifies = engine.store.adapter != "sqlite"
        self._begun = False

    def begin_watching(self) -> None:
        if self._every_s and not self._begun:
            self._begun = True
            self.wake()

    def next_s(self) -> float:
        return time.monotonic() + self._every_s if self._wakeups.awaited else math.inf

    def _call(self) -> bool:
        self._begun = self._wakeups.awaited
        if not self._begun:
            return False
        if self._notifies:
            self._wakeups.ring()  # messages are in no mirror, so the feed of changes does not name them
        else:
            self._engine.follow_feed()
        return True


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
