"""Correction of notes: update, supersede, end or delete a note, with an audit event and undo.

Source: M-110, M-129 to M-141, K-131, K-132; docs/api.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from caliber.access.corrections import Corrections
from caliber.access.visibility import author_of
from caliber.embedding.embedding_target import attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.knowledge.notes import NewNote, add_note, check_validity
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import Conflict, InvalidValue, RequiredFieldMissing
from caliber.model.events import CorrectionAction, EventType
from caliber.model.ids import EdgeId, NoteId
from caliber.model.knowledge import Edge, EdgeRelation, Note, NoteType
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relations import EDGE, NOTE
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.ending import archive
from caliber.storage.write.unit_of_work import UnitOfWork

Check = Callable[[Any, str], Any]


def as_readers(value: Any, field: str) -> tuple[str, ...]:
    """Return a list of roles and principals. Raises: InvalidValue for an empty one; DTypeError."""
    names = arguments.as_names(value, field)
    if not names:
        raise InvalidValue(field=field, reason="must name somebody, or be left out")
    return names


REQUIRED: Final[dict[str, Check]] = {
    "entity": lambda value, field: arguments.as_text(value, field, limit=arguments.MAX_NAME_CHARS),
    "entity_type": lambda value, field: arguments.as_text(value, field, limit=arguments.MAX_NAME_CHARS),
    "note_type": lambda value, field: arguments.as_enum(value, NoteType, field),
    "content": arguments.as_text,
    "confidence": arguments.as_fraction,
    "trust": lambda value, field: arguments.as_enum(value, TrustLabel, field),
    "tags": arguments.as_names,
}
"""How each field that a note always has is checked."""
OPTIONAL: Final[dict[str, Check]] = {
    "importance": lambda value, field: arguments.as_fraction(value, field, 1, 10),
    "valid_from": arguments.as_instant,
    "valid_until": arguments.as_instant,
    "occurred_at": arguments.as_instant,
    "namespace": arguments.as_name,
    "visible_to": as_readers,
}
"""How each field that a note may lack is checked; None clears it."""


def checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the validated fields that a caller gave; the value ``...`` means not given.

    Raises: InputError kinds.
    """
    out = {}
    for name, value in fields.items():
        if value is ...:
            continue
        if value is None and name in REQUIRED:
            raise RequiredFieldMissing(field=name)
        out[name] = None if value is None else (REQUIRED.get(name) or OPTIONAL[name])(value, name)
    return out


class NoteCorrections:
    """The corrections of notes that one principal makes."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._corrections = Corrections(engine, principal)
        self._embeddings = engine.part(Embeddings)

    def update(self, key: uuid.UUID, fields: Mapping[str, Any], version: int | None, guard: LockToken | None) -> Note:
        """Change fields of a note in place. Raises: as ``Caliber.update_note``."""
        changes = checked(fields)
        if not changes:
            raise RequiredFieldMissing("name at least one field to change", field="changes")
        # The vector also depends on unchanged fields: it is computed from the note as it is now.
        named = {name for name in ("entity", "content") if name in changes}
        known = self._engine.memory.snapshot.locate(key.bytes) if named else None
        before = None if known is None else self._engine.memory.entity(*known)
        text = "" if not isinstance(before, Note) else _text_of(dataclasses.replace(before, **changes))
        vector = self._embeddings.vector(NOTE.name, text) if text else None

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.UPDATE, version)
            changed = dataclasses.replace(note, **changes)
            check_validity(changed.valid_from, changed.valid_until)
            if changed.content != note.content and "trust" not in changes:
                least = least_trusted(note.trust, self._engine.config.trust.notes)
                changed = dataclasses.replace(changed, trust=least)
            stored = self._write(uow, note, changed, CorrectionAction.UPDATE)
            if _text_of(stored) == text != _text_of(note):
                attach(uow, NOTE.name, key, text, vector)
            return stored

        return self._engine.write(work)

    def end(self, key: uuid.UUID, at: Any, version: int | None, guard: LockToken | None) -> Note:
        """Let a note hold until an instant. Raises: as ``Caliber.end_note``."""
        wanted = arguments.as_instant(at, "at")

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.END, version)
            now = from_us(uow.now_us)
            if wanted is None and note.valid_until is not None and note.valid_until <= now:
                return note  # it has ended
            until = now if wanted is None else wanted
            if note.valid_from is not None and until < note.valid_from:
                raise InvalidValue(field="at", reason=f"is before valid_from, {note.valid_from.isoformat()}")
            return self._write(uow, note, dataclasses.replace(note, valid_until=until), CorrectionAction.END)

        return self._engine.write(work)

    def delete(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Note:
        """Take a note out of use. Raises: as ``Caliber.delete_note``."""

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.DELETE, version)
            if note.archived_at is not None:
                return note
            changed = dataclasses.replace(note, archived_at=from_us(uow.now_us))
            return self._write(uow, note, changed, CorrectionAction.DELETE)

        return self._engine.write(work)

    def supersede(
        self,
        key: uuid.UUID,
        fields: Mapping[str, Any],
        at: Any,
        idempotency_key: Any,
        version: int | None,
        guard: LockToken | None,
    ) -> Note:
        """End a note and add the one that holds from then on. Raises: as ``Caliber.supersede_note``."""
        changes = checked(fields)
        since = arguments.as_instant(at, "at")
        retried = arguments.as_name(idempotency_key, "idempotency_key")
        labelled = "trust" in changes
        located = self._engine.memory.snapshot.locate(key.bytes)
        before = None if located is None else self._engine.memory.entity(*located)
        text = _text_of(dataclasses.replace(before, **changes)) if isinstance(before, Note) else ""
        vector = self._embeddings.vector(NOTE.name, text) if text else None

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            old: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.SUPERSEDE, version)
            start = from_us(uow.now_us) if since is None else since
            new = self._successor(old, {"trust": self._engine.config.trust.notes, **changes}, start, retried, labelled)
            note, created = add_note(uow, new)
            later = _successor_of(uow, key)
            if later is not None and later == note.note_id and not created:
                return note  # the same call again
            if later is not None:
                raise Conflict(entity_type=NOTE.name, id=key, reason=f"note {later} superseded it; correct that one")
            if not created:
                reason = f"note {note.note_id} says the same already"
                raise Conflict(entity_type=NOTE.name, id=key, reason=reason)
            if old.archived_at is not None:
                raise Conflict(entity_type=NOTE.name, id=key, reason="it was deleted; undo that first, or add a note")
            if old.valid_from is not None and start < old.valid_from:
                raise InvalidValue(field="at", reason=f"is before valid_from, {old.valid_from.isoformat()}")
            _link(uow, note.note_id, old.note_id)
            ended = old if old.valid_until is not None and old.valid_until <= start else _until(old, start)
            self._write(uow, old, ended, CorrectionAction.SUPERSEDE, superseded_by=str(note.note_id))
            if _text_of(note) == text:
                attach(uow, NOTE.name, note.note_id, text, vector)
            self._emit(uow, EventType.NOTE_CREATE, note)
            return note

        return self._engine.write(work)

    def undo(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Note:
        """Take back the newest correction of a note that stands. Raises: as ``Caliber.undo_note``."""

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.UNDO, version)
            event = self._corrections.last(uow, NOTE, note)
            if event is None:
                raise Conflict(entity_type=NOTE.name, id=key, reason="there is no correction of it to undo")
            successor = event.payload.get("superseded_by")
            if successor is not None:
                self._withdraw(uow, note, uuid.UUID(successor))
            stored: Note = self._corrections.undo(uow, NOTE, note, event)
            self._emit(uow, EventType.NOTE_UPDATE, stored)
            return stored

        return self._engine.write(work)

    # --- steps -----------------------------------------------------------------------------------

    def _successor(
        self, old: Note, changes: Mapping[str, Any], start: Any, idempotency_key: str | None, labelled: bool
    ) -> NewNote:
        """Return the note that is valid from ``start`` on: the old one with the caller's changes."""
        until = old.valid_until if old.valid_until is not None and old.valid_until > start else None
        kept = {name: getattr(old, name) for name in (*REQUIRED, *OPTIONAL)}
        values = {**kept, "occurred_at": None, **changes, "valid_from": start}
        values["valid_until"] = changes.get("valid_until", until)
        check_validity(start, values["valid_until"])
        return NewNote(
            **values,
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=values["content"]),
            created_by=author_of(self._principal),
            source_trajectory_ids=(),
            idempotency_key=idempotency_key,
            labelled=labelled,
        )

    def _withdraw(self, uow: UnitOfWork, old: Note, successor: uuid.UUID) -> None:
        """Take the note that superseded another out of use, and the link between them.

        Raises: Conflict where that note was corrected itself since.
        """
        new: Note | None = uow.find(NOTE, successor.bytes)
        if new is not None and self._corrections.last(uow, NOTE, new) is not None:
            reason = f"note {successor}, which superseded it, was corrected since; undo that first"
            raise Conflict(entity_type=NOTE.name, id=old.note_id, reason=reason)
        if new is not None:
            archive(uow, NOTE, new)
        for edge in _superseding(uow, old.note_id):
            uow.update(EDGE, dataclasses.replace(edge, removed_at=from_us(uow.now_us)))

    def _write(self, uow: UnitOfWork, note: Note, changed: Note, action: CorrectionAction, **payload: Any) -> Note:
        stored: Note = self._corrections.write(uow, NOTE, note, changed, action, **payload)
        if stored is not note:
            self._emit(uow, EventType.NOTE_UPDATE, stored)
        return stored

    def _emit(self, uow: UnitOfWork, kind: EventType, note: Note) -> None:
        about = (EntityType.NOTE, note.note_id)
        label = self._principal.label
        uow.emit(self._engine.event(kind, principal=label, subject=about, payload={"id": str(note.note_id)}))


def _text_of(note: Note) -> str:
    return embedded_text(note.entity, note.content)


def _until(note: Note, end: Any) -> Note:
    return dataclasses.replace(note, valid_until=end)


def _superseding(uow: UnitOfWork, key: uuid.UUID) -> list[Edge]:
    """Return the links in force from notes that superseded a note."""
    edges: list[Edge] = uow.select_path(EDGE, "list_by_target", key.bytes)
    return [edge for edge in edges if edge.relation is EdgeRelation.SUPERSEDES and edge.removed_at is None]


def _successor_of(uow: UnitOfWork, key: uuid.UUID) -> uuid.UUID | None:
    edges = _superseding(uow, key)
    return edges[0].source.id if edges else None


def _link(uow: UnitOfWork, new: NoteId, old: NoteId) -> None:
    now = from_us(uow.now_us)
    ends = EntityRef(EntityType.NOTE, new), EntityRef(EntityType.NOTE, old)
    edge = Edge(EdgeId(uuid7()), *ends, EdgeRelation.SUPERSEDES, 1.0, 1.0, now, auto_linked=False, user_created=True)
    uow.insert(EDGE, edge)
