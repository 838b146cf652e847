"""Correction of records of one relation: update, end, delete, supersede and undo, each with its audit event.

How a record ends and who replaces it follow from the relation's traits. Where a read may ask about an earlier instant
(``Times.as_of``), the old record holds until the new one does. Elsewhere the column ``Ends.supersede`` takes it out of
use at once. In both cases an edge leads from the new record to the old one.

Source: M-110, M-129 to M-141, C-379, K-131, K-132; docs/api.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from caliber.access.corrections import Corrections, key_of
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import Conflict, InvalidValue, RequiredFieldMissing
from caliber.model.events import CorrectionAction, EventType
from caliber.model.knowledge import Edge, EdgeRelation
from caliber.model.references import EdgeId, EntityRef, EntityType
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import EDGE
from caliber.schema.traits import Ends
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork

R = TypeVar("R")
Check = Callable[[Any, str], Any]
Correction = Callable[[UnitOfWork], R]
"""Work that corrects a record in a transaction, and returns the record that says so now."""


class Vectorizer(Protocol):
    """The vectors of records that are committed with them."""

    def vector(self, kind: str, text: str) -> Any:
        """Return the vectors to commit with a record, if it gets any now."""
        ...

    def attach(self, uow: UnitOfWork, kind: str, owner: uuid.UUID, text: str, vectors: Any) -> None:
        """Write a record's vectors, if it has some by now."""
        ...


class RecordCorrections(ABC, Generic[R]):
    """The corrections of records of one relation that one principal makes.

    Each method prepares a correction, and returns the work that writes it. Preparing may ask the embedding provider,
    so no transaction is open then.
    """

    relation: ClassVar[Relation]
    required: ClassVar[Mapping[str, Check]]
    """How each field that a record always has is checked."""
    optional: ClassVar[Mapping[str, Check]]
    """How each field that a record may lack is checked; None clears it."""
    added: ClassVar[EventType]
    changed: ClassVar[EventType]

    def __init__(
        self,
        engine: Engine,
        principal: Principal,
        vectors: Vectorizer,
        user: str | EntityRef | None = None,
        rights: Principal | None = None,
    ) -> None:
        self._engine = engine
        self._principal = principal
        self._vectors = vectors
        self._corrections = Corrections(engine, principal, user, rights=rights)

    @classmethod
    def checked(cls, fields: Mapping[str, Any], *, whole: bool = False) -> dict[str, Any]:
        """Return the validated fields that a caller gave; ``...`` means not given, and None in a ``whole`` record.

        Raises: InputError kinds.
        """
        out = {}
        for name, stated in fields.items():
            if stated is ... and not whole:
                continue
            value = None if stated is ... else stated
            if value is None and name in cls.required:
                raise RequiredFieldMissing(field=name)
            out[name] = None if value is None else (cls.required.get(name) or cls.optional[name])(value, name)
        return out

    def update(
        self, key: uuid.UUID, fields: Mapping[str, Any], version: int | None, guard: LockToken | None
    ) -> Correction[R]:
        """Change fields of a record in place. Raises: as the handle's method."""
        changes = self.checked(fields)
        if not changes:
            raise RequiredFieldMissing("name at least one field to change", field="changes")
        embedded = () if self.relation.text is None else self.relation.text.embedded_columns
        text, vector = ("", None) if changes.keys().isdisjoint(embedded) else self._embed(key, changes)
        dated = not changes.keys().isdisjoint(self.relation.times.bounds)

        def work(uow: UnitOfWork) -> R:
            record = self._begin(uow, key, CorrectionAction.UPDATE, version, guard, dated=dated)
            self._check_active(record)
            stored = self._write(uow, record, self.revised(uow, record, changes), CorrectionAction.UPDATE)
            if self.text_of(stored) == text != self.text_of(record):
                self._vectors.attach(uow, self.relation.name, key, text, vector)
            return stored

        return work

    def end(self, key: uuid.UUID, at: Any, version: int | None, guard: LockToken | None) -> Correction[R]:
        """Let a record hold until an instant. Raises: as the handle's method."""
        wanted = arguments.as_instant(at, "at")

        def work(uow: UnitOfWork) -> R:
            record = self._begin(uow, key, CorrectionAction.END, version, guard, dated=True)
            now, until = from_us(uow.now_us), self._until(record)
            if wanted is None and until is not None and until <= now:
                return record  # it has ended
            self._check_active(record)
            stop = now if wanted is None else wanted
            self._check_begun(record, stop)
            return self._write(uow, record, self._with(record, {self._until_column: stop}), CorrectionAction.END)

        return work

    def delete(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Correction[R]:
        """Take a record out of use. Raises: as the handle's method."""

        def work(uow: UnitOfWork) -> R:
            record = self._begin(uow, key, CorrectionAction.DELETE, version, guard)
            if getattr(record, self._archive_column) is not None:
                return record
            deleted = self._with(record, {self._archive_column: from_us(uow.now_us)})
            return self._write(uow, record, deleted, CorrectionAction.DELETE)

        return work

    def restore(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Correction[R]:
        """Bring a record back into use that was deleted or archived. Raises: as the handle's method."""

        def work(uow: UnitOfWork) -> R:
            record = self._begin(uow, key, CorrectionAction.RESTORE, version, guard, dated=True)
            restored = self._with(record, {self._archive_column: None})
            return self._write(uow, record, restored, CorrectionAction.RESTORE)

        return work

    def supersede(
        self,
        key: uuid.UUID,
        fields: Mapping[str, Any],
        at: Any,
        idempotency_key: Any,
        version: int | None,
        guard: LockToken | None,
        sources: tuple[uuid.UUID, ...] = (),
    ) -> Correction[R]:
        """End a record and add the one that replaces it, drawn from the tasks ``sources``.

        Raises: as the handle's method.
        """
        changes = self.checked(fields)
        since = arguments.as_instant(at, "at")
        retried = arguments.as_name(idempotency_key, "idempotency_key")
        text, vector = self._embed(key, changes)

        def work(uow: UnitOfWork) -> R:
            uow.guard(guard, self._principal)
            self._serialize(uow)
            old: R = self._corrections.read(uow, self.relation, key, CorrectionAction.SUPERSEDE)
            later = self._superseding(uow, key)
            known = None if retried is None else self.with_key(uow, old, retried)
            if known is not None:
                if any(edge.source.id == self._key(known) for edge in later) and self._says(known, changes, since):
                    return known  # the same call again
                raise self._conflict(self._key(known), "its idempotency key was used; take another")
            arguments.check_version(self.relation.name, key, self._version(old), version)
            for edge in later:
                other: R | None = uow.find(self.relation, edge.source.id.bytes)
                if other is not None and since is not None and self._says(other, changes, since):
                    return other  # the same call again
                raise self._conflict(key, f"{self.relation.name} {edge.source.id} superseded it; correct that one")
            self._check_unmerged(uow, old)
            self._check_active(old)
            start = from_us(uow.now_us) if since is None else since
            self._check_begun(old, start)
            new, created = self.add(uow, old, changes, start, retried, sources)
            if not created:
                raise self._conflict(key, f"{self.relation.name} {self._key(new)} says the same already")
            self._link(uow, self._key(new), key)
            ended = self._with(old, self._end_of(old, new, start))
            self._write(uow, old, ended, CorrectionAction.SUPERSEDE, superseded_by=str(self._key(new)))
            if self.text_of(new) == text:
                self._vectors.attach(uow, self.relation.name, self._key(new), text, vector)
            self._emit(uow, self.added, new)
            self._corrections.listeners.added(uow, self.relation, new, self._principal.label)
            return new

        return work

    def undo(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Correction[R]:
        """Take back the newest correction of a record that stands. Raises: as the handle's method."""

        def work(uow: UnitOfWork) -> R:
            uow.guard(guard, self._principal)
            self._serialize(uow)
            record: R = self._corrections.read(uow, self.relation, key, CorrectionAction.UNDO)
            event = self._corrections.last(uow, self.relation, record)
            changes = {} if event is None else event.payload["changes"]
            if self._ends.supersede not in changes:
                self._check_unmerged(uow, record)
            arguments.check_version(self.relation.name, key, self._version(record), version)
            if event is None:
                raise self._conflict(key, "there is no correction of it to undo")
            successor = event.payload.get("superseded_by")
            if successor is not None:
                self._withdraw(uow, record, successor)
            revived = self._revived(record) if self._until_column in changes else {}
            stored: R = self._corrections.undo(uow, self.relation, record, event, **revived)
            if event.principal != self._principal.label:  # what another took away is not had back so
                self.require_own(uow, record, {name: getattr(stored, name) for name in changes})
            if not changes.keys().isdisjoint(self.relation.times.bounds):
                self._check_order(uow, stored)
            self._emit(uow, self.changed, stored)
            return stored

        return work

    def hold(self, uow: UnitOfWork, key: uuid.UUID, action: CorrectionAction) -> R:
        """Return a record, locked as its correction locks it, before work beside that. Raises: as ``end``."""
        return self._begin(uow, key, action, None, None, dated=True)

    def require_own(self, uow: UnitOfWork, record: R, changes: Mapping[str, Any]) -> None:
        """Raise PermissionDenied where a user names other readers of a record, or trusts it too much."""
        self._corrections.require_own(self.relation, record, changes, lambda: self.most_trusted(uow, record))

    # --- rules of one relation -------------------------------------------------------------------

    @abstractmethod
    def most_trusted(self, uow: UnitOfWork, record: R) -> tuple[TrustLabel, str]:
        """Return the highest label that a user may state for a record, and the knobs that set it."""

    @abstractmethod
    def text_of(self, record: R) -> str:
        """Return the text of a record that is embedded."""

    @abstractmethod
    def revised(self, uow: UnitOfWork, record: R, changes: Mapping[str, Any]) -> R:
        """Return a record with checked fields changed in place."""

    @abstractmethod
    def with_key(self, uow: UnitOfWork, old: R, idempotency_key: str) -> R | None:
        """Return the record that was stored with an idempotency key where the one that supersedes ``old`` would be."""

    @abstractmethod
    def add(
        self,
        uow: UnitOfWork,
        old: R,
        changes: Mapping[str, Any],
        start: datetime,
        idempotency_key: str | None,
        sources: tuple[uuid.UUID, ...],
    ) -> tuple[R, bool]:
        """Store the record that holds from ``start`` on, or find an equal one; return it and whether it is new."""

    # --- steps -----------------------------------------------------------------------------------

    @property
    def _ends(self) -> Ends:
        assert self.relation.ends is not None
        return self.relation.ends

    @property
    def _until_column(self) -> str:
        assert self.relation.times.until is not None  # only records that end are corrected
        return self.relation.times.until

    @property
    def _archive_column(self) -> str:
        assert self._ends.archive is not None
        return self._ends.archive

    @property
    def _marks(self) -> list[str]:
        """The columns that mark a record as taken back: out of use, but neither deleted nor superseded."""
        own = (self._ends.supersede, self._ends.archive)
        return [name for name in self.relation.active if name not in own]

    def _begin(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        action: CorrectionAction,
        version: int | None,
        guard: LockToken | None,
        *,
        dated: bool = False,
    ) -> R:
        """Return a record to correct, locked. ``dated``: the correction may change when it holds.

        Raises: as ``Corrections.read``; Conflict for one that was merged into another, or of another version.
        """
        uow.guard(guard, self._principal)
        if dated:
            self._serialize(uow)
        record: R = self._corrections.read(uow, self.relation, key, action)
        self._check_unmerged(uow, record)
        arguments.check_version(self.relation.name, key, self._version(record), version)
        return record

    def _serialize(self, uow: UnitOfWork) -> None:
        """Let no other correction change when records hold: linked ones must not hold at the same time."""
        if self.relation.times.as_of:
            uow.serialize(f"periods of {self.relation.plural}")

    def _embed(self, key: uuid.UUID, changes: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text to embed for a changed record, computed from the record as it is now, and its vectors.

        A record that the principal may not correct is shown to no provider: its text is empty.
        """
        located = self._engine.memory.snapshot.locate(key.bytes)
        record = None if located is None else self._engine.memory.entity(*located)
        if not isinstance(record, self.relation.entity) or not self._corrections.may_correct(self.relation, record):
            return "", None
        text = self.text_of(self._with(record, changes))
        return text, self._vectors.vector(self.relation.name, text) if text else None

    def _end_of(self, old: R, new: R, start: datetime) -> dict[str, Any]:
        """Return the columns that end a record which another one replaces from ``start`` on."""
        until = self._until(old)
        ended: dict[str, Any] = {} if until is not None and until <= start else {self._until_column: start}
        if not self.relation.times.as_of:
            assert self._ends.supersede is not None
            ended[self._ends.supersede] = self._key(new)
        return ended

    def _revived(self, record: R) -> dict[str, Any]:
        """Return the columns to clear in a record that was retired because its time was over."""
        retired, until = getattr(record, self._archive_column), self._until(record)
        is_lapsed = not self.relation.times.as_of and None not in (retired, until) and retired >= until
        return {self._archive_column: None} if is_lapsed else {}

    def _withdraw(self, uow: UnitOfWork, old: R, successor: str) -> None:
        """Take the record that superseded another out of use, and the link between them; nothing for a forgotten one.

        Raises: Conflict where that record was corrected or merged itself since; PermissionDenied for another author's.
        """
        name, replaced = self.relation.name, self._ends.supersede
        links = [edge for edge in self._superseding(uow, self._key(old)) if str(edge.source.id) == successor]
        for edge in links:
            new: R = uow.get(self.relation, edge.source.id.bytes)
            corrected = self._corrections.last(uow, self.relation, new)
            is_merged = replaced is not None and getattr(new, replaced) is not None
            if corrected is not None and replaced in corrected.payload["changes"]:
                is_merged = False
            if is_merged or corrected is not None:
                done = "merged since; correct that" if is_merged else "corrected since; undo that first"
                raise self._conflict(self._key(old), f"{name} {successor}, which superseded it, was {done}")
            self._corrections.check_author(self.relation, new, CorrectionAction.UNDO)
            self._emit(uow, self.changed, archive(uow, self.relation, new, self._principal))
            uow.update(EDGE, dataclasses.replace(edge, removed_at=from_us(uow.now_us)))

    def _write(self, uow: UnitOfWork, record: R, changed: R, action: CorrectionAction, **payload: Any) -> R:
        stored: R = self._corrections.write(uow, self.relation, record, changed, action, **payload)
        if stored is record:
            return record
        if any(getattr(stored, name) != getattr(record, name) for name in self.relation.times.bounds):
            self._check_order(uow, stored)
        self._emit(uow, self.changed, stored)
        return stored

    def _emit(self, uow: UnitOfWork, kind: EventType, record: R) -> None:
        key = self._key(record)
        self._engine.emit(
            uow,
            kind,
            principal=self._principal.label,
            trajectory_id=self.relation.task_of(record),
            scope_id=getattr(record, "scope_id", None),
            subject=(self.relation.name, key),
            payload={"id": str(key)},
        )

    def _link(self, uow: UnitOfWork, new: uuid.UUID, old: uuid.UUID) -> None:
        kind, now = EntityType(self.relation.name), from_us(uow.now_us)
        ends = EntityRef(kind, new), EntityRef(kind, old)
        edge = Edge(
            EdgeId(uuid7()), *ends, EdgeRelation.SUPERSEDES, 1.0, 1.0, now, auto_linked=False, user_created=True
        )
        uow.insert(EDGE, edge)

    # --- links between a record and what superseded it -------------------------------------------

    def _superseding(self, uow: UnitOfWork, key: uuid.UUID) -> list[Edge]:
        """Return the links in force from records that superseded a record."""
        edges: list[Edge] = uow.select_path(EDGE, "list_by_target", key.bytes)
        return [edge for edge in edges if self._supersedes(uow, edge, edge.source)]

    def _supersedes(self, uow: UnitOfWork, edge: Edge, end: EntityRef) -> bool:
        """Return whether an edge leads from a record to the one it superseded, and ``end`` was not taken back."""
        kinds = {edge.source.entity_type, edge.target.entity_type}
        if edge.relation is not EdgeRelation.SUPERSEDES or edge.removed_at is not None or kinds != {self.relation.name}:
            return False
        record = uow.find(self.relation, end.id.bytes)
        return record is not None and all(getattr(record, name) is None for name in self._marks)

    def _says(self, record: R, changes: Mapping[str, Any], since: datetime | None) -> bool:
        """Return whether a record is the one that a call to supersede another one made."""
        same = all(getattr(record, name) == value for name, value in changes.items())
        return same and (since is None or since == self._since(record))

    # --- refusals --------------------------------------------------------------------------------

    def _check_begun(self, record: R, at: datetime) -> None:
        """Raise InvalidValue for an instant before a record held."""
        since = self._since(record)
        if since is not None and at < since:
            reason = f"is before {self.relation.times.since}, {since.isoformat()}; take a later instant, or delete it"
            raise InvalidValue(field="at", reason=reason)

    def _check_active(self, record: R) -> None:
        """Raise Conflict for a record that is out of use; not for one that another record replaced."""
        if getattr(record, self._archive_column) is not None:
            reason = "it was deleted, or retired; undo that first, or add another one"
            raise self._conflict(self._key(record), reason)
        for name in self._marks:
            if getattr(record, name) is not None:
                word = name.removesuffix("_at").replace("_", " ")
                raise self._conflict(self._key(record), f"it was {word}; add another one")

    def _check_unmerged(self, uow: UnitOfWork, record: R) -> None:
        """Raise Conflict for a record that another one replaced, naming the one in use: corrections have no effect."""
        name, column, passed = self.relation.name, self._ends.supersede, {self._key(record)}
        into = None if column is None else getattr(record, column)
        if column is None or into is None:
            return
        while into not in passed and (found := uow.find(self.relation, into.bytes)) is not None:
            passed.add(into)
            into = getattr(found, column) or into
        done = "merged into" if self.relation.times.as_of else "superseded by"
        raise self._conflict(self._key(record), f"it was {done} {name} {into}; correct that one")

    def _check_order(self, uow: UnitOfWork, record: R) -> None:
        """Raise Conflict when a record would hold while one that superseded it holds, or one that it superseded."""
        if not self.relation.times.as_of:
            return  # the older one is out of use, whenever it held
        name, key = self.relation.name, self._key(record)
        pairs = [(record, uow.get(self.relation, edge.source.id.bytes)) for edge in self._superseding(uow, key)]
        older: list[Edge] = uow.select_path(EDGE, "list_by_source", key.bytes)
        older = [edge for edge in older if self._supersedes(uow, edge, edge.target)]
        pairs += [(uow.get(self.relation, edge.target.id.bytes), record) for edge in older]
        for old, new in pairs:
            since, until = self._since(new), self._until(old)
            if since is not None and (until is None or until > since):
                ids = f"{name} {self._key(new)} superseded {name} {self._key(old)}"
                raise self._conflict(key, f"{ids}, and both would hold; undo that, or correct it")

    def _conflict(self, key: uuid.UUID, reason: str) -> Conflict:
        return Conflict(entity_type=self.relation.name, id=key, reason=reason)

    # --- columns ---------------------------------------------------------------------------------

    def _key(self, record: R) -> uuid.UUID:
        return key_of(self.relation, record)

    def _version(self, record: R) -> int:
        version: int = record.version  # type: ignore[attr-defined]
        return version

    def _since(self, record: R) -> datetime | None:
        return None if self.relation.times.since is None else getattr(record, self.relation.times.since)

    def _until(self, record: R) -> datetime | None:
        until: datetime | None = getattr(record, self._until_column)
        return until

    def _with(self, record: R, changes: Mapping[str, Any]) -> R:
        changed: R = dataclasses.replace(record, **changes)  # type: ignore[type-var]
        return changed
