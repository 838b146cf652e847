"""Values of the workspace: JSON under keys, replaced by compare-and-set, listed by prefix and watched.

A deleted key keeps its row, without the value: its version goes on when it is set again, so that a compare-and-set with
an old version loses. Source: P-062.
"""

from __future__ import annotations

import builtins
import dataclasses
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from caliber.access.corrections import CorrectionListeners
from caliber.access.identities import require_registered
from caliber.engine.commit_waiters import CHANGED, CommitWaiter, waiters_of
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.deadline import check, earliest
from caliber.model.errors import Conflict, InvalidValue, NotFound
from caliber.model.references import ValueId
from caliber.model.time import from_us
from caliber.model.workspace import WorkspaceValue
from caliber.schema.relations import WORKSPACE_VALUE
from caliber.storage.compile.json_values import as_json
from caliber.storage.waiting import Flag
from caliber.storage.write.unit_of_work import UnitOfWork

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


KEY_BYTES: Final = 1_024
"""The longest key: databases index no text that is much longer."""
VALUE_CHARS: Final = 1 << 20
"""Longest value under a key, as JSON."""
_KIND: Final = WORKSPACE_VALUE.name


class Values:
    """The values of the workspace, which all agents and the application read and write; users do not."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def get(self, key: str) -> WorkspaceValue | None:
        """Return the value under a key, with its version; None where there is none.

        Raises: InputError kinds; PermissionDenied for a user.
        """
        self._require_agent("read")
        wanted = _as_key(key, "key")
        found: WorkspaceValue | None = self._engine.read(lambda uow: uow.find_by(WORKSPACE_VALUE, ("key",), wanted))
        return None if found is None or found.deleted_at is not None else found

    def set(
        self, key: str, value: Any, *, version: int | None = None, guard: LockToken | None = None
    ) -> WorkspaceValue:
        """Store a JSON value under a key, and return it with its new version.

        ``version`` is the version that the value must still have, 0 for a key without a value; left out, the last
        writer wins.

        Raises: InputError kinds; Conflict when the version is another one by now; PermissionDenied for a user;
            LockExpired.
        """
        self._require_agent("write")
        wanted = _as_key(key, "key")
        plain = as_json(value, "value", VALUE_CHARS)
        expected = None if version is None else arguments.as_whole(version, "version")

        def work(uow: UnitOfWork, lost: builtins.list[WorkspaceValue]) -> WorkspaceValue:
            uow.guard(guard, self._principal)
            known = self._current(uow, wanted)
            _check(known, expected, lost)
            now = from_us(uow.now_us)
            if known is None:
                made = WorkspaceValue(ValueId(uuid7()), wanted, plain, now, now, self._principal.label)
                uow.record_change(WORKSPACE_VALUE, made, uow.insert(WORKSPACE_VALUE, made))
                return made
            made = dataclasses.replace(
                known, value=plain, updated_at=now, updated_by=self._principal.label, deleted_at=None
            )
            return self._changed(uow, made)

        return self._compared(work)

    def delete(self, key: str, *, version: int | None = None, guard: LockToken | None = None) -> WorkspaceValue:
        """Delete the value under a key, and return it as it was, with the version that the deletion has.

        Raises: InputError kinds; NotFound for a key without a value; Conflict when ``version`` is no longer that of the
            value; PermissionDenied for a user; LockExpired.
        """
        self._require_agent("write")
        wanted = _as_key(key, "key")
        expected = None if version is None else arguments.as_whole(version, "version", 1)

        def work(uow: UnitOfWork, lost: builtins.list[WorkspaceValue]) -> WorkspaceValue:
            uow.guard(guard, self._principal)
            known = self._current(uow, wanted)
            if known is None or known.deleted_at is not None:
                if expected is not None:
                    _check(known, expected, lost)
                raise NotFound("there is no value under this key", entity_type=_KIND, id=None)
            _check(known, expected, lost)
            now = from_us(uow.now_us)
            gone = dataclasses.replace(
                known, value=None, updated_at=now, updated_by=self._principal.label, deleted_at=now
            )
            return dataclasses.replace(self._changed(uow, gone), value=known.value)

        return self._compared(work)

    def list(self, prefix: str = "", *, limit: int = 1_000) -> list[WorkspaceValue]:
        """Return the values whose keys begin with ``prefix``, at most ``limit``, in the order of their keys.

        Raises: InputError kinds; PermissionDenied for a user.
        """
        self._require_agent("read")
        wanted = _as_key(prefix, "prefix", allow_empty=True)
        most = arguments.as_whole(limit, "limit", 1)
        found = [each for each in self._with_prefix(wanted) if each.deleted_at is None]
        return sorted(found, key=lambda each: each.key)[:most]

    def watch(self, prefix: str = "", *, timeout_ms: int | None = None) -> Watch:
        """Return an iterator over the changes of values whose keys begin with ``prefix``, from now on.

        It waits for commits of this process, and of others as soon as their news arrive (``resident.feed_poll_ms``;
        sooner on SQLite on Linux, at once where ``storage.feed_dsn`` is set). Each step is the value as it is by then;
        one whose ``deleted_at`` is set was deleted. Changes that follow each other quickly may be seen as one, and the
        last one always is.
        ``timeout_ms`` ends it after a time without changes; closing it, or the store, ends it too.

        Raises: InputError kinds; PermissionDenied for a user.
        """
        self._require_agent("read")
        wanted = _as_key(prefix, "prefix", allow_empty=True)
        timeout = None if timeout_ms is None else arguments.as_duration_ms(timeout_ms, "timeout_ms")
        return Watch(self._engine, lambda: self._with_prefix(wanted), timeout)

    def _compared(self, work: Callable[[UnitOfWork, builtins.list[WorkspaceValue]], WorkspaceValue]) -> WorkspaceValue:
        """Write, and let a refusal that another writer caused be recorded as a conflict of the two."""
        lost: builtins.list[WorkspaceValue] = []
        try:
            return self._engine.write(lambda uow: work(uow, lost))
        except Conflict:
            for each in lost[-1:]:
                by, other = self._principal.label, each.updated_by
                self._engine.part(CorrectionListeners).refused(WORKSPACE_VALUE, each.value_id, by, other)
            raise

    def _require_agent(self, action: str) -> None:
        self._engine.check_open()
        if self._principal.is_user:
            raise self._principal.denied(action, "values of the workspace, which agents share")
        require_registered(self._engine, self._principal)

    def _with_prefix(self, prefix: str) -> Iterable[WorkspaceValue]:
        self._engine.check_open()
        statement = "workspace_value.by_prefix"
        return self._engine.read(lambda uow: uow.select_entities(WORKSPACE_VALUE, statement, prefix))

    @staticmethod
    def _current(uow: UnitOfWork, key: str) -> WorkspaceValue | None:
        """Return the row of a key, locked by its name: rows that do not exist yet race too."""
        uow.serialize(f"caliber:workspace:value:{key}")
        found: WorkspaceValue | None = uow.find_by(WORKSPACE_VALUE, ("key",), key)
        return found

    @staticmethod
    def _changed(uow: UnitOfWork, value: WorkspaceValue) -> WorkspaceValue:
        stored: WorkspaceValue = uow.update(WORKSPACE_VALUE, value)
        uow.record_change(WORKSPACE_VALUE, stored, None)
        return stored


def _as_key(value: Any, field: str, *, allow_empty: bool = False) -> str:
    text = arguments.as_text(value, field, allow_empty=allow_empty)
    if len(text.encode()) > KEY_BYTES:
        raise InvalidValue(field=field, reason=f"is longer than {KEY_BYTES} bytes")
    if any(unicodedata.category(sign) == "Cc" for sign in text):
        raise InvalidValue(field=field, reason="holds control characters")
    return text


def _check(known: WorkspaceValue | None, expected: int | None, lost: list[WorkspaceValue]) -> None:
    """Raise Conflict unless a value has the expected version, 0 for none; ``lost`` gets the value that has not."""
    if expected is None:
        return
    version = 0 if known is None or known.deleted_at is not None else known.version
    if version != expected:
        lost += () if known is None else (known,)
        there = "there is no value by now" if version == 0 else f"its version is {version} by now"
        raise Conflict(entity_type=_KIND, id=None if known is None else known.value_id, reason=there)
