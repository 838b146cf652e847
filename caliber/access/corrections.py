"""Audited corrections of records: checks permission, logs old and new values, and can undo from that log.

A correction and its audit event are one transaction. The event's payload holds ``action``, ``role`` and ``changes``:
for each changed column its value before and after, as stored (instants in microseconds). Derived columns are not
logged. ``access.correcting`` has the corrections themselves.

Events about records that a principal may not read are hidden from it.

Source: M-110, M-118 to M-141, K-131, K-132; docs/decisions/0186.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from caliber.access.owners import (
    TaskOwners,
    guest_in,
    may_change,
    may_correct_as_user,
    require_own_readers,
    require_own_trust,
)
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.errors import Conflict, NotFound, PermissionDenied, StorageError
from caliber.model.events import CorrectionAction, Event, EventFamily, EventType, is_own
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import BY_NAME, EVENT, TRAJECTORY
from caliber.schema.traits import EVERYBODYS
from caliber.storage.compile.codec import codec_of, dump_json
from caliber.storage.compile.derived import completed
from caliber.storage.write.ending import STRUCTURED, as_logged, log_change, logged_columns
from caliber.storage.write.unit_of_work import UnitOfWork


class CorrectionListener:
    """A follower of statements, inside their transactions: conflicts whose sides were corrected are closed so."""

    def added(self, uow: UnitOfWork, relation: Relation, record: Any, by: str) -> None:
        """Write the consequences of a new decision that the principal ``by`` added."""

    def refused(self, relation: Relation, key: uuid.UUID, by: str, other: str) -> None:
        """Write the consequences of a write of ``by``, refused because ``other`` changed the record since."""

    def corrected(
        self, uow: UnitOfWork, relation: Relation, before: Any, after: Any, action: CorrectionAction, by: str
    ) -> None:
        """Write the consequences of a correction that the principal ``by`` made."""


class CorrectionListeners:
    """The listeners of one tenant."""

    def __init__(self) -> None:
        self._makers: list[Callable[[], CorrectionListener]] = []
        self._listeners: list[CorrectionListener] | None = None

    def add(self, *make: Callable[[], CorrectionListener]) -> None:
        """Add listeners, which the first correction makes."""
        self._makers += make

    def corrected(
        self, uow: UnitOfWork, relation: Relation, before: Any, after: Any, action: CorrectionAction, by: str
    ) -> None:
        """Let each listener write its consequences."""
        for listener in self._made():
            listener.corrected(uow, relation, before, after, action, by)

    def added(self, uow: UnitOfWork, relation: Relation, record: Any, by: str) -> None:
        """Let each listener write its consequences of a new record, if that is a decision."""
        if relation.grounded is not None and relation.grounded.is_decision(record):
            for listener in self._made():
                listener.added(uow, relation, record, by)

    def refused(self, relation: Relation, key: uuid.UUID, by: str, other: str) -> None:
        """Let each listener write its consequences of a refused write, after the transaction that was refused."""
        for listener in self._made():
            listener.refused(relation, key, by, other)

    def _made(self) -> list[CorrectionListener]:
        if self._listeners is None:
            self._listeners = [make() for make in self._makers]
        return self._listeners


class Corrections:
    """The corrections that one principal makes, for ``user`` if one is given.

    ``rights`` is the principal whose rights decide, if others than those of the one whose corrections they are.
    """

    def __init__(
        self,
        engine: Engine,
        principal: Principal,
        user: str | EntityRef | None = None,
        *,
        rights: Principal | None = None,
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._rights = rights = rights or principal
        self.listeners = engine.part(CorrectionListeners)
        readers = Readers(engine.part(TaskOwners), rights)
        self._readers = readers if user is None else readers.seeing_for(user)
        self._as_user = rights.is_user or (rights.serves and user is not None)
        """True where a user corrects, or the application or an administrator for one: as that user might."""

    def read(self, uow: UnitOfWork, relation: Relation, key: uuid.UUID, action: str) -> Any:
        """Return a record to correct, locked against other writers.

        Raises: NotFound, also for a record that the principal may not see; PermissionDenied unless the principal wrote
            it or is an admin.
        """
        if relation.rights.task is not None and (known := uow.find(relation, key.bytes)) is not None:
            uow.lock(TRAJECTORY, getattr(known, relation.rights.task).bytes)  # first, as a deletion of the task does
        uow.lock(relation, key.bytes)
        record = uow.find(relation, key.bytes)
        if record is None or not self._readers.allows_change(relation, record):
            raise NotFound(entity_type=relation.name, id=key)
        self._readers.require_write(relation, codec_of(relation).encode(record))
        self.check_author(relation, record, action)
        return record

    def check_author(self, relation: Relation, record: Any, action: str) -> None:
        """Raise PermissionDenied unless the principal wrote a record or is an admin."""
        if not self._corrects(relation, record):
            raise self._principal.denied(action, f"{relation.name} {key_of(relation, record)}")

    def require_own(
        self, relation: Relation, record: Any, changes: Mapping[str, Any], limit: Callable[[], tuple[TrustLabel, str]]
    ) -> None:
        """Raise PermissionDenied where a user names other readers of a record, or trusts it more than the ``limit``.

        That is a label, and the knobs that set it.
        """
        if not self._as_user:
            return
        label = self._principal.label
        if relation.rights.readers is not None and relation.rights.readers in changes:
            known = getattr(record, relation.rights.readers)
            require_own_readers(label, self._user_names(), changes[relation.rights.readers], known)
        if "trust" in changes:
            require_own_trust(label, changes["trust"], *limit())

    def may_correct(self, relation: Relation, record: Any) -> bool:
        """Return whether the principal may see a record and correct it."""
        return self._readers.allows_change(relation, record) and self.may_correct_seen(relation, record)

    def may_correct_seen(self, relation: Relation, record: Any) -> bool:
        """Return whether the principal may correct a record that this call has seen already."""
        if not self._corrects(relation, record):
            return False
        try:
            self._readers.require_write(relation, codec_of(relation).encode(record))
        except PermissionDenied:
            return False
        return True

    def write(
        self,
        uow: UnitOfWork,
        relation: Relation,
        before: Any,
        changed: Any,
        action: CorrectionAction,
        **payload: Any,
    ) -> Any:
        """Store a corrected record with its derived columns, and the audit event; return the record as stored.

        Raises: Conflict when another active record would be equal.
        """
        if changed == before and not payload:
            return before
        codec = codec_of(relation)
        old = uow.current(relation, codec.encode(before, 0 if relation.ordinal else None))
        ordinal = old[0] if relation.ordinal else None
        differing = {
            name
            for name, one, other in zip(codec.names, old, codec.encode(changed, ordinal), strict=True)
            if one != other
        }
        after = completed(relation, changed, self._engine.estimator, differing)
        after = dataclasses.replace(after, updated_at=from_us(uow.now_us))
        new = codec.encode(after, ordinal)
        if uow.has_twin(relation, old, new):
            reason = "another record in use says the same; delete one of them, or supersede it"
            raise Conflict(entity_type=relation.name, id=key_of(relation, before), reason=reason)
        stored = uow.update(relation, after)
        log_change(uow, relation, before, stored, action, self._principal, **payload)
        self.listeners.corrected(uow, relation, before, stored, action, self._principal.label)
        return stored

    def last(self, uow: UnitOfWork, relation: Relation, record: Any) -> Event | None:
        """Return the audit event of the newest correction of a record that is not undone; None without any.

        The undoing may itself be undone, by a recovery.
        """
        undone: set[str] = set()
        for event in self._audited(uow, relation, record):
            if str(event.event_id) in undone:
                continue
            if event.payload["action"] != CorrectionAction.UNDO:
                return event
            undone.add(event.payload["undone"])
        return None

    def since(self, uow: UnitOfWork, relation: Relation, record: Any, version: int) -> list[Event]:
        """Return the corrections of a record after a version, the newest first; without those that cancel out."""
        later = [event for event in self._audited(uow, relation, record) if event.payload["version"] > version]
        ids, cancelled = {str(event.event_id) for event in later}, set()
        for event in later:
            undone = event.payload.get("undone")
            if undone in ids and str(event.event_id) not in cancelled:
                cancelled |= {undone, str(event.event_id)}
        return [event for event in later if str(event.event_id) not in cancelled]

    def of_recovery(self, uow: UnitOfWork, relation: Relation, record: Any) -> list[Event]:
        """Return the newest corrections of a record that one recovery made, the newest first; none if others follow."""
        events = self._audited(uow, relation, record)
        recovery = events[0].payload.get("recovery") if events else None
        if recovery is None:
            return []
        return list(itertools.takewhile(lambda event: event.payload.get("recovery") == recovery, events))

    @staticmethod
    def _audited(uow: UnitOfWork, relation: Relation, record: Any) -> list[Event]:
        """Return the corrections of a record, the newest first; writes of declared memories are none."""
        if relation.memory is None:
            return []
        audited = uow.select_path(EVENT, "list_audit_by_subject", key_of(relation, record).bytes)
        changes = [event for event in audited if {"changes", "version"} <= event.payload.keys()]
        by_itself = (CorrectionAction.MERGE, CorrectionAction.ARCHIVE)
        events = [event for event in changes if event.payload["action"] not in by_itself]
        # Not by the order of the log: connections of PostgreSQL take its numbers in blocks.
        return sorted(events, key=lambda event: event.payload["version"], reverse=True)

    def undo(
        self,
        uow: UnitOfWork,
        relation: Relation,
        record: Any,
        event: Event,
        recovery: uuid.UUID | None = None,
        **also: Any,
    ) -> Any:
        """Give a record the values it had before a correction, and ``also`` others; return it as stored.

        A reference is as it was set even if its record is gone by now, which empties it. ``recovery`` is the one that
        undoes it.

        Raises: Conflict when a corrected value was changed again in another way.
        """
        codec, recorded = codec_of(relation), logged_columns(relation)
        row = list(codec.encode(record, 0 if relation.ordinal else None))
        key = key_of(relation, record)
        released = {each.column for each in relation.foreign_keys if each.on_delete == "set null"}
        for name, (before, after) in event.payload["changes"].items():
            if name not in recorded:
                raise _redacted(relation, key)
            place = codec.index(name)
            is_released = name in released and row[place] is None
            if as_logged(row[place], recorded[name]) != after and not is_released:
                reason = f"{name} was changed again since that correction; correct it instead"
                raise Conflict(entity_type=relation.name, id=key, reason=reason)
            row[place] = before
        try:
            for name in event.payload["changes"]:
                row[codec.index(name)] = _as_stored(row[codec.index(name)], recorded[name])
            changed = dataclasses.replace(codec.decode(tuple(row)), **also)
        except (StorageError, ValueError):
            raise _redacted(relation, key) from None
        payload = {"undone": str(event.event_id)} | ({} if recovery is None else {"recovery": str(recovery)})
        return self.write(uow, relation, record, changed, CorrectionAction.UNDO, **payload)

    def _corrects(self, relation: Relation, record: Any) -> bool:
        if relation.rights.author is None:
            return True
        author, ownership = getattr(record, relation.rights.author), self._engine.config.access.ownership
        if self._as_user:
            readers = None if relation.rights.readers is None else getattr(record, relation.rights.readers)
            if may_correct_as_user(author, readers, self._user_names()):
                return True
            if not self._rights.is_user:
                return False
        return may_change(author, self._rights, self._engine.memory, ownership=ownership)

    def _user_names(self) -> frozenset[str]:
        """Return the names of the user whose rights decide."""
        names = self._readers.visibility().names
        return names if self._principal.is_user else names - {self._principal.label}

    def guest_in(self, scope_id: uuid.UUID) -> uuid.UUID | None:
        """Return the id of the principal in a task of others; None in a task of its own."""
        return guest_in(self._engine, self._principal, self._readers.visibility, scope_id=scope_id)


def key_of(relation: Relation, record: Any) -> uuid.UUID:
    """Return the id of a record."""
    key: uuid.UUID = getattr(record, relation.key[0])
    return key


def _redacted(relation: Relation, key: uuid.UUID) -> Conflict:
    return Conflict(entity_type=relation.name, id=key, reason="what that correction changed was forgotten; correct it")


def _as_stored(value: Any, kind: ColumnType) -> Any:
    if value is None:
        return None
    if kind in STRUCTURED:
        return dump_json(value)
    return bytes.fromhex(value.replace("-", "")) if kind in (ColumnType.BYTES, ColumnType.UUID) else value


RETRIEVED: Final = frozenset(each.usage.retrieved for each in BY_NAME.values()) - {None}


def event_filter(
    principal: Principal, sees: Callable[[Relation, uuid.UUID], bool], readers: Readers
) -> Callable[[Event], Event | None] | None:
    """Return a filter that redacts events for ``principal``; None for an admin, who sees everything.

    ``sees`` returns whether a record of a relation exists and the principal may read it.
    """
    if principal.is_admin:
        return None
    label = principal.label

    def filtered(event: Event) -> Event | None:
        if event.family is EventFamily.AUDIT:
            return None
        if event.event_type in RETRIEVED and event.principal != label:
            return None
        if event.subject_type is not None and not readers.reads_subject(event.subject_type, event.subject_id):
            return None
        subject = None if event.subject_type is None else BY_NAME.get(event.subject_type)
        rights = EVERYBODYS if subject is None else subject.rights
        # Who may read a note may know of the task that it was drawn from, as the note itself names that.
        if event.trajectory_id is not None and not (rights.listed or readers.sees_task(event.trajectory_id.bytes)):
            return None
        own = is_own(event.event_type)
        if own and (event.principal == label or event.trajectory_id is None):
            return event if event.principal == label else None
        if subject is not None and rights.hides and (rights.task is None or event.trajectory_id is None):
            # The readers of a deleted record are unknown: no principal gets the event.
            if event.subject_id is None or not sees(subject, event.subject_id):
                return None
        elif rights.private and event.principal != label:
            return None
        is_check = event.event_type == EventType.VALIDATION_RUN and event.subject_id is None
        if is_check and event.principal != label:  # numbers count the records that its principal saw
            return dataclasses.replace(event, payload={})
        if readers.limited and readers.hides_kinds():  # numbers may count records of every kind
            known = {name: value for name, value in event.payload.items() if name == "id"}
            return dataclasses.replace(event, payload=known)
        if "message" in event.payload and not own:  # the message of an error may name a record
            payload = {name: value for name, value in event.payload.items() if name != "message"}
            return dataclasses.replace(event, payload=payload)
        return event

    return filtered
