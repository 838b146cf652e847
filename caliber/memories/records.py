"""Calls that write one declared memory: records are inserted, put, updated, archived and deleted, a transaction each.

Source: C-130 to C-148; docs/memories.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from caliber.memories import checks as record_checks
from caliber.memories.keys import id_at, key_fields
from caliber.memories.writing import Existing, RecordWriter
from caliber.model import arguments
from caliber.model.agents import LockToken
from caliber.model.errors import InvalidValue, RequiredFieldMissing
from caliber.model.events import EventType
from caliber.model.trust import TrustLabel
from caliber.search.filtering.visible import variables
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.conditions import Listing
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork


class Records(RecordWriter):
    """The records of one declared memory: read and written. Safe to share between threads."""

    def insert(
        self,
        record: Mapping[str, Any] | None = None,
        *,
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        occurred_at: datetime | None = None,
        trust: TrustLabel | str | None = None,
        idempotency_key: str | None = None,
        guard: LockToken | None = None,
        **fields: Any,
    ) -> Any:
        """Store a record, given as a mapping, by keyword or both, and return it; durable when this returns.

        ``trajectory``, ``scope``, ``session`` and ``parent`` are ids of the records it belongs to; the ids above them
        follow. Without a task, one by or for a user is read by that user alone. The same idempotency key gives the
        same record. The default of ``trust`` is ``trust.notes``.

        Raises: InputError kinds, all that is wrong in one error; NotFound, ConstraintViolation (a scope or session that
            has ended), Conflict (the key came with other content or another label), LockExpired.
        """
        places = {
            "trajectory": trajectory,
            "scope": scope,
            "session": session,
            "parent": parent,
            "occurred_at": occurred_at,
            "trust": trust,
            "idempotency_key": idempotency_key,
        }
        merged = _merged(arguments.as_mapping(record, "record"), fields)
        return self._store(self._checked([merged], places, ""), guard)[0]

    def insert_many(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
    ) -> list[Any]:
        """Store records in order, all or none.

        Each may give its own place and time: ``scope_id``, ``parent_id``, ``occurred_at``, ``idempotency_key`` and so
        on.

        Raises: as ``insert``.
        """
        places = {"trajectory": trajectory, "scope": scope, "session": session, "parent": parent, "trust": trust}
        return self._store(self._checked(records, places), guard)

    def put(
        self,
        record: Mapping[str, Any] | None = None,
        *,
        on_existing: Literal["replace", "keep", "error"] = "replace",
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        occurred_at: datetime | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
        **fields: Any,
    ) -> Any:
        """Store a record at its key (``key: [...]`` of the declaration), and return it; durable when this returns.

        Where there is one, it gets all fields of the new one and keeps its id and owner, or with ``keep`` it stays as
        it is and is returned; an archived one is in use again.

        Raises: as ``insert``; InvalidValue for a memory without a key, and another owner; Conflict for a key that a
            hidden record has, and with ``error`` any.
        """
        places = {
            "trajectory": trajectory,
            "scope": scope,
            "session": session,
            "parent": parent,
            "occurred_at": occurred_at,
            "trust": trust,
        }
        return self._put([_merged(arguments.as_mapping(record, "record"), fields)], places, on_existing, guard, "")[0]

    def put_many(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        on_existing: Literal["replace", "keep", "error"] = "replace",
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
    ) -> list[Any]:
        """Store records at their keys, in order, all or none; of one key the last wins. Raises: as ``put``."""
        places = {"trajectory": trajectory, "scope": scope, "session": session, "parent": parent, "trust": trust}
        return self._put(records, places, on_existing, guard)

    def _put(
        self,
        records: Iterable[Mapping[str, Any]],
        places: Mapping[str, Any],
        on_existing: str,
        guard: LockToken | None,
        within: str = "records[{at}]",
    ) -> list[Any]:
        key_fields(self._own)
        existing = arguments.as_enum(on_existing, Existing, "on_existing")
        return self._store(self._checked(records, places, within), guard, existing)

    def update(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        changes: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        **fields: Any,
    ) -> Any:
        """Change fields of a record and return it as stored; the old content is kept for replay.

        Other words without ``trust`` are trusted no more than ``trust.notes``.

        Raises: as ``insert``; NotFound; Conflict when ``version`` is no longer that of the record.
        """
        key, expected = _which(id, version)
        merged = _merged(arguments.as_mapping(changes, "changes"), fields)
        values = record_checks.checked(self._own, merged, whole=False)
        fixed = next((name for name in self._own.type.key if name in values), None)
        if fixed is not None:
            raise InvalidValue(field=fixed, reason="is part of the key, which does not change; put another record")
        if values.get("trust", self) is None:
            raise RequiredFieldMissing(field="trust")
        text_changes = self._own.embedded is not None and self._own.embedded in values
        text = (values[self._own.embedded] or "") if text_changes else ""  # type: ignore[index]
        vectors = self._embeddings.vector(self._relation.name, text) if text_changes else None

        def work(uow: UnitOfWork) -> Any:
            uow.guard(guard, self._principal)
            return self._change(uow, self._read(uow, key, expected), values, vectors)

        return self._engine.write(work)

    def archive(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Any:
        """Take a record out of use, without deleting it, and return it. Raises: as ``update``."""
        key, expected = _which(id, version)

        def work(uow: UnitOfWork) -> Any:
            uow.guard(guard, self._principal)
            record = self._read(uow, key, expected)
            if record.archived_at is not None:
                return record
            stored = archive(uow, self._relation, record, self._principal)
            self._tell(uow, EventType.MEMORY_ARCHIVE, stored)
            return stored

        return self._engine.write(work)

    def delete(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> None:
        """Delete a record and those that belong to it, keeping their content for replay. Raises: as ``update``."""
        key, expected = _which(id, version)

        def work(uow: UnitOfWork) -> None:
            uow.guard(guard, self._principal)
            uow.lock(self._relation, key.bytes)  # else another version than the one that is read may go
            self._delete(uow, self._read(uow, key, expected))

        self._engine.write(work)

    def at(self, **key: Any) -> Any:
        """Return the record at a key: ``at(ns="people", name="Ada")``. Raises: NotFound; InputError kinds."""
        return self.get(id_at(self._own, key))

    def delete_at(self, *, guard: LockToken | None = None, **key: Any) -> None:
        """Delete the record at a key, as ``delete``. Raises: as ``at``, and ``delete``."""
        self.delete(id_at(self._own, key), guard=guard)

    def delete_many(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``find``)
        *,
        guard: LockToken | None = None,
        **equal: Any,
    ) -> int:
        """Delete the records that ``find`` would return, all or none, as ``delete``; return how many.

        Raises: as ``find``; InvalidValue without any condition; LockExpired.
        """
        if not filter and not equal:
            raise InvalidValue(field="filter", reason="is empty, which means every record: state a condition")
        predicate = self._predicate(filter, equal, True)
        readers = self._seeing(equal, predicate)
        listing = Listing(self._relation, predicate, self._engine.store.dialect)

        def work(uow: UnitOfWork) -> int:
            uow.guard(guard, self._principal)
            asked, relation = variables(self._principal, uow.now_us), self._relation
            found = [row for row in uow.listed_rows(relation, listing, asked) if readers.allows_row(relation, row)]
            for row in found:
                self._readers.require_write(relation, row)
            uow.delete_rows(relation, found)
            for row in found if relation.history else ():
                self._log_deleted(uow, codec_of(relation).decode(row))
            return len(found)

        return self._engine.write(work)


def _which(key: uuid.UUID | str, version: int | None) -> tuple[uuid.UUID, int | None]:
    """Return the key of the record a caller means, and the version that it must still have, if one was given."""
    return arguments.as_uuid(key, "id"), arguments.as_version(version)


def _merged(record: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    twice = sorted(record.keys() & fields.keys())
    if twice:
        raise InvalidValue(field=twice[0], reason="is given in the record and by keyword")
    return {**record, **fields}
