"""Writer of one declared memory: checks records, finds where they belong, and stores them in a transaction.

Every principal of a tenant may write its records; ``created_by`` names the writer of the words. A record without a
task that a user, or another for a user, inserts is that user's.

Source: C-130 to C-148; docs/memories.md.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from caliber.access.identities import user_for
from caliber.access.owners import author_of, default_readers, guest_in, require_own_trust
from caliber.embedding.embedding_target import Vectors, attach
from caliber.embedding.service import Embeddings
from caliber.kernels import uuid7
from caliber.memories import checks as record_checks
from caliber.memories.keys import key_of
from caliber.memories.reading import RecordReader
from caliber.model import arguments
from caliber.model.access import PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import (
    Conflict,
    InputError,
    InvalidValue,
    NotFound,
    RequiredFieldMissing,
)
from caliber.model.events import CorrectionAction, EventType
from caliber.model.references import KEY_VERSION, EntityRef, EntityType, uuid_from_bytes
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Scope, Session, Trajectory
from caliber.model.trust import least_trusted
from caliber.resident.snapshot import ENTITY_RELATIONS
from caliber.schema.declared_memories import KEY
from caliber.schema.memories import MemoryBinding
from caliber.schema.memory_types import RetentionKind
from caliber.schema.relation import ColumnType, Relation, Residence
from caliber.schema.relations import SCOPE, SESSION, TRAJECTORY
from caliber.storage.compile.codec import Row, codec_of, dump_json
from caliber.storage.compile.derived import derive, derived_of
from caliber.storage.write.ending import log_change
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from caliber.engine.engine import Engine
    from caliber.model.access import Principal
    from caliber.search.service import Searching

_OWNED = "the owner of a record cannot be changed"
_FIRST = "another writer put a record at its key first"
_WORDS = (ColumnType.TEXT, ColumnType.JSON)
_Place: TypeAlias = Callable[..., dict[str, Any]]
_PLACES = {"trajectory": "trajectory_id", "scope": "scope_id", "session": "session_id", "parent": "parent_id"}


class _New(NamedTuple):
    """A validated record before it is stored; the records it belongs to may add fields."""

    record: SimpleNamespace
    stored: dict[str, Any]
    labelled: bool
    keyed: bool
    text: str
    vectors: Vectors | None = None


class Existing(StrEnum):
    """The fate of a record that is at the key of a new one."""

    REPLACE = "replace"
    KEEP = "keep"
    ERROR = "error"


class RecordWriter(RecordReader[Any]):
    """The steps of the calls that write records of one declared memory."""

    def __init__(
        self,
        engine: Engine,
        principal: Principal,
        searching: Searching,
        own: MemoryBinding,
        user: str | EntityRef | None = None,
    ) -> None:
        super().__init__(engine, principal, searching, own)
        self._embeddings = engine.part(Embeddings)
        self._own = own
        self._user = principal.id if user is None and principal.is_user else user

    # --- inserting -------------------------------------------------------------------------------

    def _checked(
        self, records: Iterable[Mapping[str, Any]], places: Mapping[str, Any], within: str = "records[{at}]"
    ) -> list[_New]:
        each = arguments.as_items(records, "records", "a sequence of mappings")
        placed = {_PLACES.get(name, name): value for name, value in places.items() if value is not None}
        now = from_us(self._engine.clock.now_us())
        blank = {
            **dict.fromkeys(column.name for column in self._relation.columns if column.nullable),
            "created_at": now,
            "updated_at": now,
            "created_by": author_of(self._principal),
            "trust": self._engine.config.trust.notes,
            "token_count": 0,
            "content_hash": b"",
            "version": 1,
        }
        new: list[_New] = []
        faults: list[InputError] = []
        for at, record in enumerate(each):
            where = within.format(at=at)
            try:
                new.append(self._new(arguments.as_mapping(record, where), placed, blank, where and f"{where}."))
            except InputError as error:
                faults.append(error)
        if faults:
            raise faults[0] if len(faults) == 1 else record_checks.several(faults)
        return new

    def _new(
        self, fields: Mapping[str, Any], placed: Mapping[str, Any], blank: Mapping[str, Any], within: str = ""
    ) -> _New:
        """Return a checked record; what it does not state is ``blank``. Raises: InputError kinds."""
        relation = self._relation
        if "parent_id" in placed and not relation.has("parent_id"):
            raise InvalidValue(field=f"{within}parent", reason=f"records of {self._name} belong to no other record")
        clash = next((name for name in placed if fields.get(name) not in (None, placed[name])), None)
        if clash is not None:
            raise InvalidValue(field=f"{within}{clash}", reason="is given twice with different values")
        values = record_checks.checked(self._own, {**fields, **placed}, within=within)
        labelled = values.get("trust") is not None
        present = {name: value for name, value in values.items() if value is not None}
        key = self._own.type.key
        if key:
            if KEY in present:
                raise InvalidValue(
                    field=f"{within}{KEY}", reason=f"follows from the key ({', '.join(key)}); leave it out"
                )
            if "idempotency_key" in present:
                reason = "is not for records at keys: a key is idempotent itself; leave it out"
                raise InvalidValue(field=f"{within}idempotency_key", reason=reason)
            made = key_of(self._own, values, within)
        elif KEY in present and present[KEY].version == KEY_VERSION:
            raise InvalidValue(field=f"{within}{KEY}", reason="has version 8: such ids follow from keys; take another")
        else:
            made = uuid7()
        record = SimpleNamespace(**{**blank, KEY: made, **present})
        codec = codec_of(relation)
        stored = dict(zip(codec.names, codec.encode(record), strict=True))
        stored |= derive(relation, stored, self._engine.estimator)
        self._check_label(record)
        return _New(record, stored, labelled, KEY in present, self._text(record))

    def _text(self, record: Any) -> str:
        """Return the text whose vectors are kept."""
        return "" if self._own.embedded is None else (getattr(record, self._own.embedded) or "")

    def _with_vectors(self, new: Sequence[_New]) -> list[_New]:
        """Prepare vectors where they are committed with their records. Raises: LlmError kinds."""
        made = zip(new, self._embeddings.vectors(self._relation.name, [item.text for item in new]), strict=True)
        return [item if vectors is None else item._replace(vectors=vectors) for item, vectors in made]

    def _store(self, new: Sequence[_New], guard: LockToken | None, existing: Existing = Existing.ERROR) -> list[Any]:
        if not new:
            return []
        self._readers.require_kind(self._relation)
        ready = self._with_vectors(new)
        whose = None if self._user is None else user_for(self._engine, self._principal, self._user)

        def work(uow: UnitOfWork) -> list[Any]:
            uow.guard(guard, self._principal)
            place = functools.cache(functools.partial(self._place, uow, whose))
            if self._own.type.key:
                return self._put_all(uow, ready, place, existing)
            return [self._insert(uow, item, place) for item in ready]

        return self._engine.write(work)

    def _put_all(self, uow: UnitOfWork, items: Sequence[_New], place: _Place, existing: Existing) -> list[Any]:
        """Return the records at the keys of new ones, in order: those that are not there yet are stored at once."""
        known = uow.find_all(self._relation, [item.record.record_id.bytes for item in items])
        new: dict[bytes, tuple[_New, Row, Any]] = {}
        out = []
        for item in items:
            key = item.record.record_id.bytes
            if key in new:
                self._insert_all(uow, new)
            if key in known and self._is_gone(self._relation, known[key]):
                uow.delete(self._relation, known.pop(key))
            if key in known:
                known[key] = self._at_key(uow, known[key], item, existing)
            else:
                row, known[key] = self._made(item, place)
                new[key] = item, row, known[key]
            out.append(known[key])
        self._insert_all(uow, new)
        return out

    def _insert_all(self, uow: UnitOfWork, new: dict[bytes, tuple[_New, Row, Any]]) -> None:
        """Store records at keys that none has, and forget them."""
        if not uow.insert_all(self._relation, [row for _, row, _ in new.values()]):
            raise Conflict(entity_type=self._name, id=uuid_from_bytes(next(iter(new))), reason=_FIRST, retryable=True)
        for item, _, record in new.values():
            attach(uow, self._relation.name, record.record_id, item.text, item.vectors)
            self._tell(uow, EventType.MEMORY_INSERT, record)
        new.clear()

    def _made(self, new: _New, place: _Place) -> tuple[Row, Any]:
        """Return the row of a new record in its place, and the record."""
        places = place(*map(vars(new.record).get, _PLACES.values()))
        row = tuple({**new.stored, **places}.values())
        return row, codec_of(self._relation).decode(row)

    def _insert(self, uow: UnitOfWork, new: _New, place: _Place) -> Any:
        record, relation = new.record, self._relation
        if record.idempotency_key is not None:
            found = uow.find_by(relation, ("idempotency_key",), record.idempotency_key)
            if found is not None and self._is_gone(relation, found):
                uow.delete(relation, found)
                found = None
            if found is not None and not self._readers.allows_change(relation, found):
                reason = "its idempotency key was used; take another"
                raise Conflict(entity_type=self._name, id=record.record_id, reason=reason)
            if found is not None:
                same = found.content_hash == new.stored["content_hash"]
                if not same or (new.labelled and found.trust is not record.trust):
                    raise Conflict(
                        entity_type=self._name,
                        id=found.record_id,
                        reason="its idempotency key was used for other content or trust",
                    )
                return self._repeated(uow, found)
        _, record = self._made(new, place)
        if new.keyed and self._is_taken(uow, record.record_id):
            raise Conflict(entity_type=self._name, id=record.record_id, reason="there is a record with this id")
        uow.insert(relation, record)
        attach(uow, relation.name, record.record_id, new.text, new.vectors)
        self._tell(uow, EventType.MEMORY_INSERT, record)
        return record

    def _at_key(self, uow: UnitOfWork, found: Any, new: _New, existing: Existing) -> Any:
        """Return the record at the key of a new one, replaced or kept."""
        if existing is Existing.ERROR or not self._sees(new.record, found):
            reason = f"there is a record with this key ({', '.join(self._own.type.key)})"
            raise Conflict(entity_type=self._name, id=found.record_id, reason=reason)
        if existing is Existing.KEEP:
            return found
        record = new.record
        for name in dict.fromkeys(_PLACES.values()):
            if getattr(record, name, None) not in (None, getattr(found, name, None)):
                raise InvalidValue(field=name, reason=_OWNED)
        values = {name: getattr(record, name) for name in (*self._own.declared_columns, "occurred_at")}
        if new.labelled:
            values["trust"] = record.trust
        self._readers.require_write(self._relation, codec_of(self._relation).encode(found))
        return self._change(uow, found, {**values, "archived_at": None}, new.vectors)

    def _sees(self, record: Any, found: Any) -> bool:
        """Return whether the writer of a record may see another: as ``find`` in the task that the record names."""
        in_scope = record.scope_id is not None and record.scope_id == found.scope_id
        task = found.trajectory_id if in_scope else record.trajectory_id
        readers = self._seeing({"trajectory_id": task}, None)
        return readers.allows_entity(self._relation, found)

    def _repeated(self, uow: UnitOfWork, record: Any) -> Any:
        """Return a record that came again; a guest's words that the host states as well are no longer the guest's."""
        author = author_of(self._principal)
        by_user = (record.created_by or "").startswith(f"{PrincipalKind.HUMAN}:")
        if not by_user or author == record.created_by or self._is_guest(record):
            return record
        return uow.update(self._relation, dataclasses.replace(record, created_by=author))

    def _is_taken(self, uow: UnitOfWork, key: uuid.UUID) -> bool:
        """Return whether a record of any kind has an id: records, and their vectors, are found by it alone."""
        by_name = uow.catalog.by_name
        names = (*ENTITY_RELATIONS, *(relation.name for relation in uow.catalog.declared_relations))
        return any(uow.find(by_name[name], key.bytes) is not None for name in names)

    # --- where a record belongs ------------------------------------------------------------------

    def _place(self, uow: UnitOfWork, whose: EntityRef | None, *ids: uuid.UUID | None) -> dict[str, Any]:
        """Return the ids of everything that a record belongs to, taken from the records above it, and its readers.

        As they are stored, and with its times; ``ids`` are those of ``_PLACES`` that it states.

        Raises: NotFound; RequiredFieldMissing, InvalidValue, ConstraintViolation for what its memory asks for.
        """
        memory_type = self._own.type
        places: dict[str, Any] = dict(zip(_PLACES.values(), ids, strict=True))
        parent = places.pop("parent_id")
        readers: tuple[str, ...] | None = None
        if memory_type.parent is not None:
            if parent is None:
                raise RequiredFieldMissing(
                    f"parent is required: records of {memory_type.name} belong to a record of {memory_type.parent}",
                    field="parent",
                )
            above, readers = self._above(uow, memory_type.parent, parent)
            self._take(places, above, "parent")
        scope: Scope | None = None
        if places["scope_id"] is not None:
            scope = self._seen(uow, SCOPE, places["scope_id"])
            self._take(places, {"trajectory_id": scope.trajectory_id}, "scope")
        trajectory: Trajectory | None = None
        if places["trajectory_id"] is not None:
            trajectory = self._seen(uow, TRAJECTORY, places["trajectory_id"])
            if trajectory.session_id is not None:
                self._take(places, {"session_id": trajectory.session_id}, "trajectory")
        session: Session | None = None
        if places["session_id"] is not None:
            session = self._seen(uow, SESSION, places["session_id"])
        record_checks.check_retained(memory_type, scope, session)
        if trajectory is not None and memory_type.retention.kind in (RetentionKind.SCOPE, RetentionKind.SESSION):
            # Ending its scope or task writes the trajectory too: one of the two comes first, and the other sees it.
            uow.update(TRAJECTORY, dataclasses.replace(trajectory, last_activity_at=from_us(uow.now_us)))
        if readers is None and trajectory is None:
            readers = self._readers_for(session, whose)
        stored: dict[str, Any] = {name: None if key is None else key.bytes for name, key in places.items()}
        stored |= {"created_at": uow.now_us, "updated_at": uow.now_us}
        if (named := self._relation.rights.readers) is not None:  # not of a memory of an earlier store
            stored[named] = None if readers is None else dump_json(list(readers))
        return stored

    def _readers_for(self, session: Session | None, whose: EntityRef | None) -> tuple[str, ...] | None:
        """Return the readers of a record without a task: the user of its session, and the one it is inserted for."""
        principal, access = self._principal, self._engine.config.access
        people = [
            None if session is None or session.initiator.entity_type is not EntityType.USER else session.initiator
        ]
        names = [default_readers(principal, access, user) or () for user in (*people, whose) if user is not None]
        return tuple(dict.fromkeys(itertools.chain.from_iterable(names))) or None

    def _above(
        self, uow: UnitOfWork, parent: str, key: uuid.UUID
    ) -> tuple[dict[str, uuid.UUID], tuple[str, ...] | None]:
        """Return the owner of the record above another, and its readers."""
        bound = self._engine.store.catalog.named(parent)
        assert bound is not None  # a memory without its parent is not opened
        entity = self._seen(uow, bound.relation, key)
        names = [name for name in ("trajectory_id", "scope_id", "session_id") if bound.relation.has(name)]
        readers = None if bound.relation.rights.readers is None else getattr(entity, bound.relation.rights.readers)
        return {name: getattr(entity, name) for name in names if getattr(entity, name) is not None}, readers

    def _seen(self, uow: UnitOfWork, relation: Relation, key: uuid.UUID) -> Any:
        """Return a record that the principal may see. Raises: NotFound."""
        record = uow.find(relation, key.bytes)
        if record is None or self._is_gone(relation, record) or not self._readers.allows_change(relation, record):
            raise NotFound(entity_type=relation.name, id=key)
        self._readers.require_write(relation, codec_of(relation).encode(record), self._relation)
        return record

    def _take(self, places: dict[str, Any], above: Mapping[str, uuid.UUID], what: str) -> None:
        for name, key in above.items():
            if places[name] not in (None, key):
                raise InvalidValue(field=name, reason=f"is not that of its {what}")
            places[name] = key

    # --- changing --------------------------------------------------------------------------------
    def _change(self, uow: UnitOfWork, record: Any, values: Mapping[str, Any], vectors: Vectors | None) -> Any:
        """Return a record as it is stored with other values, unless these are its own."""
        relation, old = self._relation, {name: getattr(record, name) for name in record.__slots__}
        changed = SimpleNamespace(**{**old, **values})
        if "trust" in values:
            self._check_label(changed)
        written = self._changed_words(record, changed)
        if written and "trust" not in values:  # a new text is trusted no more than new records
            changed.trust = least_trusted(record.trust, self._engine.config.trust.notes)
        changed.created_by = self._writer(record, written)
        vars(changed).update(derived_of(relation, changed, self._engine.estimator, relation.derived or ()))
        if vars(changed) == old:
            return record
        stored = uow.update(relation, relation.entity(**{**vars(changed), "updated_at": from_us(uow.now_us)}))
        if self._text(record) != self._text(changed):
            attach(uow, self._relation.name, record.record_id, self._text(changed), vectors)
        log_change(uow, self._relation, record, stored, CorrectionAction.UPDATE, self._principal)
        self._tell(uow, EventType.MEMORY_UPDATE, stored)
        return stored

    def _check_label(self, record: Any) -> None:
        """Raise PermissionDenied where a user labels a record as more trusted than ``trust.notes``."""
        if self._principal.is_user:
            require_own_trust(self._principal.label, record.trust, self._engine.config.trust.notes)

    def _changed_words(self, record: Any, changed: Any) -> list[str]:
        """Return the declared columns of words that differ between two versions of a record."""
        columns = [column.name for column in self._relation.columns if column.declared and column.type in _WORDS]
        return [name for name in columns if getattr(record, name) != getattr(changed, name)]

    def _writer(self, record: Any, written: Sequence[str]) -> str | None:
        """Return ``created_by`` of a record whose words in some columns are new, so that no words of a guest stay once
        the guest is forgotten.

        A principal that replaces all words of a record is its new author, a guest also one that replaces some of them.
        Names by which records are looked up, and fields of a key, are no words.
        """
        if not written:
            return record.created_by  # type: ignore[no-any-return]
        kept = [
            column.name
            for column in self._relation.columns
            if column.declared and column.type in _WORDS and column.residence is not Residence.INTERNED
            if column.name not in self._own.type.key
        ]
        whole = all(name in written or getattr(record, name) is None for name in kept)
        if whole or (self._principal.is_user and self._is_guest(record)):
            return author_of(self._principal)
        return record.created_by  # type: ignore[no-any-return]

    def _is_guest(self, record: Any) -> bool:
        """Return whether the principal writes to the task of others."""
        task = record.trajectory_id
        guest = task and guest_in(self._engine, self._principal, self._readers.visibility, trajectory_id=task)
        return guest is not None

    def _delete(self, uow: UnitOfWork, record: Any) -> None:
        uow.delete(self._relation, record)
        self._log_deleted(uow, record)

    def _log_deleted(self, uow: UnitOfWork, record: Any) -> None:
        log_change(uow, self._relation, record, record, CorrectionAction.DELETE, self._principal)
        self._tell(uow, EventType.MEMORY_DELETE, record)

    def _read(self, uow: UnitOfWork, key: uuid.UUID, expected: int | None) -> Any:
        relation = self._relation
        record = uow.find(relation, key.bytes)
        if record is None or self._is_gone(relation, record) or not self._readers.allows_change(relation, record):
            raise NotFound(entity_type=self._name, id=key)
        self._readers.require_write(relation, codec_of(relation).encode(record))
        arguments.check_version(self._name, key, record.version, expected)
        return record

    def _is_gone(self, relation: Relation, record: Any) -> bool:
        """Return whether the instant has passed from which a record is gone, though no sweep has deleted it yet."""
        until = None if relation.gone_at is None else getattr(record, relation.gone_at)
        return until is not None and to_us(until) <= self._engine.clock.now_us()

    def _tell(self, uow: UnitOfWork, kind: EventType, record: Any) -> None:
        if not self._relation.history:
            return
        uow.emit(
            self._engine.event(
                kind,
                principal=self._principal.label,
                trajectory_id=record.trajectory_id,
                scope_id=record.scope_id,
                subject=(self._relation.name, record.record_id),
                payload={"id": str(record.record_id), "memory": self._name},
            )
        )

    def _unsearched(self) -> str:
        return "has no embedding and no text that is indexed by words (gin)"

    @property
    def relation(self) -> Relation:
        """The relation that holds the records."""
        return self._relation
