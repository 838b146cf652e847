"""Correction of notes: update, supersede, end or delete a note, with an audit event and undo.

Source: M-110, M-129 to M-141, K-131, K-132; docs/api.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
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
Correction = Callable[[UnitOfWork], Note]
"""Work that corrects a note in a transaction, and returns the note that says so now."""
_PERIODS: Final = "periods of notes"
"""What corrections wait for that change when notes hold: notes that are linked must not hold at the same time."""


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
    """The corrections of notes that one principal makes: each method prepares one, and returns the work that writes it.

    Preparing may ask the embedding provider, so no transaction is open then.
    """

    def __init__(self, engine: Engine, principal: Principal, user: str | EntityRef | None = None) -> None:
        self._engine = engine
        self._principal = principal
        self._corrections = Corrections(engine, principal, user)
        self._embeddings = engine.part(Embeddings)

    def update(
        self, key: uuid.UUID, fields: Mapping[str, Any], version: int | None, guard: LockToken | None
    ) -> Correction:
        """Change fields of a note in place. Raises: as ``Caliber.update_note``."""
        changes = checked(fields)
        if not changes:
            raise RequiredFieldMissing("name at least one field to change", field="changes")
        text = self._text(key, changes) if {"entity", "content"} & changes.keys() else ""
        vector = self._embeddings.vector(NOTE.name, text) if text else None
        dated = bool({"valid_from", "valid_until"} & changes.keys())

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            if dated:
                uow.serialize(_PERIODS)
            note = self._in_force(uow, key, CorrectionAction.UPDATE)
            arguments.check_version(NOTE.name, key, note.version, version)
            changed = dataclasses.replace(note, **changes)
            check_validity(changed.valid_from, changed.valid_until)
            if changed.content != note.content and "trust" not in changes:
                least = least_trusted(note.trust, self._engine.config.trust.notes)
                changed = dataclasses.replace(changed, trust=least)
            stored = self._write(uow, note, changed, CorrectionAction.UPDATE)
            if _text_of(stored) == text != _text_of(note):
                attach(uow, NOTE.name, key, text, vector)
            return stored

        return work

    def end(self, key: uuid.UUID, at: Any, version: int | None, guard: LockToken | None) -> Correction:
        """Let a note hold until an instant. Raises: as ``Caliber.end_note``."""
        wanted = arguments.as_instant(at, "at")

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            uow.serialize(_PERIODS)
            note = self._in_force(uow, key, CorrectionAction.END)
            arguments.check_version(NOTE.name, key, note.version, version)
            now = from_us(uow.now_us)
            if wanted is None and note.valid_until is not None and note.valid_until <= now:
                return note  # it has ended
            until = now if wanted is None else wanted
            if note.valid_from is not None and until < note.valid_from:
                raise _too_early(note)
            return self._write(uow, note, dataclasses.replace(note, valid_until=until), CorrectionAction.END)

        return work

    def delete(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Correction:
        """Take a note out of use. Raises: as ``Caliber.delete_note``."""

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note = self._in_force(uow, key, CorrectionAction.DELETE)
            arguments.check_version(NOTE.name, key, note.version, version)
            if note.archived_at is not None:
                return note
            changed = dataclasses.replace(note, archived_at=from_us(uow.now_us))
            return self._write(uow, note, changed, CorrectionAction.DELETE)

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
    ) -> Correction:
        """End a note and add the one that holds from then on, drawn from the tasks ``sources``.

        Raises: as ``Caliber.supersede_note``.
        """
        changes = checked(fields)
        since = arguments.as_instant(at, "at")
        retried = arguments.as_name(idempotency_key, "idempotency_key")
        labelled = "trust" in changes
        text = self._text(key, changes)
        vector = self._embeddings.vector(NOTE.name, text) if text else None

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            uow.serialize(_PERIODS)
            old: Note = self._corrections.read(uow, NOTE, key, CorrectionAction.SUPERSEDE)
            later = _superseding(uow, key)
            known = self._with_key(uow, retried)
            if known is not None:
                if any(edge.source.id == known.note_id for edge in later) and _says(known, changes, since):
                    return known  # the same call again
                raise Conflict(
                    entity_type=NOTE.name, id=known.note_id, reason="its idempotency key was used; take another"
                )
            arguments.check_version(NOTE.name, key, old.version, version)
            start = from_us(uow.now_us) if since is None else since
            for edge in later:
                other: Note | None = uow.find(NOTE, edge.source.id.bytes)
                if other is not None and since is not None and _says(other, changes, since):
                    return other  # the same call again
                reason = f"note {edge.source.id} superseded it; correct that one"
                raise Conflict(entity_type=NOTE.name, id=key, reason=reason)
            _check_unmerged(uow, old)
            if old.archived_at is not None:
                raise Conflict(entity_type=NOTE.name, id=key, reason="it was deleted; undo that first, or add a note")
            if old.valid_from is not None and start < old.valid_from:
                raise _too_early(old)
            values = {"trust": self._engine.config.trust.notes, **changes}
            new = self._successor(old, values, start, retried, labelled, sources)
            note, created = add_note(uow, new)
            if not created:
                reason = f"note {note.note_id} says the same already"
                raise Conflict(entity_type=NOTE.name, id=key, reason=reason)
            _link(uow, note.note_id, old.note_id)
            ended = (
                old
                if old.valid_until is not None and old.valid_until <= start
                else dataclasses.replace(old, valid_until=start)
            )
            self._write(uow, old, ended, CorrectionAction.SUPERSEDE, superseded_by=str(note.note_id))
            if _text_of(note) == text:
                attach(uow, NOTE.name, note.note_id, text, vector)
            self._emit(uow, EventType.NOTE_CREATE, note)
            return note

        return work

    def undo(self, key: uuid.UUID, version: int | None, guard: LockToken | None) -> Correction:
        """Take back the newest correction of a note that stands. Raises: as ``Caliber.undo_note``."""

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            uow.serialize(_PERIODS)
            note = self._in_force(uow, key, CorrectionAction.UNDO)
            arguments.check_version(NOTE.name, key, note.version, version)
            event = self._corrections.last(uow, NOTE, note)
            if event is None:
                raise Conflict(entity_type=NOTE.name, id=key, reason="there is no correction of it to undo")
            successor = event.payload.get("superseded_by")
            if successor is not None:
                self._withdraw(uow, note, successor)
            stored: Note = self._corrections.undo(uow, NOTE, note, event)
            if "valid_from" in event.payload["changes"] or "valid_until" in event.payload["changes"]:
                _check_order(uow, stored)
            self._emit(uow, EventType.NOTE_UPDATE, stored)
            return stored

        return work

    # --- steps -----------------------------------------------------------------------------------

    def _in_force(self, uow: UnitOfWork, key: uuid.UUID, action: CorrectionAction) -> Note:
        """Return a note to correct. Raises: as ``Corrections.read``; Conflict for one that was merged into another."""
        note: Note = self._corrections.read(uow, NOTE, key, action)
        _check_unmerged(uow, note)
        return note

    def _text(self, key: uuid.UUID, changes: Mapping[str, Any]) -> str:
        """Return the text to embed for a changed note, computed from the note as it is now; empty for no vector.

        A note that the principal may not correct is shown to no provider.
        """
        located = self._engine.memory.snapshot.locate(key.bytes)
        note = None if located is None else self._engine.memory.entity(*located)
        if not isinstance(note, Note) or not self._corrections.may_correct(NOTE, note):
            return ""
        return _text_of(dataclasses.replace(note, **changes))

    def _with_key(self, uow: UnitOfWork, idempotency_key: str | None) -> Note | None:
        """Return the note that the principal stored with an idempotency key."""
        if idempotency_key is None:
            return None
        columns = "created_by", "idempotency_key"
        found: Note | None = uow.find_by(NOTE, columns, author_of(self._principal), idempotency_key)
        return found

    def _successor(
        self,
        old: Note,
        changes: Mapping[str, Any],
        start: Any,
        idempotency_key: str | None,
        labelled: bool,
        sources: tuple[uuid.UUID, ...],
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
            source_trajectory_ids=sources,
            idempotency_key=idempotency_key,
            labelled=labelled,
        )

    def _withdraw(self, uow: UnitOfWork, old: Note, successor: str) -> None:
        """Take the note that superseded another out of use, and the link between them; nothing for a forgotten one.

        Raises: Conflict where that note was corrected or merged itself since; PermissionDenied for another author's.
        """
        links = [edge for edge in _superseding(uow, old.note_id) if str(edge.source.id) == successor]
        for edge in links:
            new: Note = uow.get(NOTE, edge.source.id.bytes)
            if new.superseded_by is not None or self._corrections.last(uow, NOTE, new) is not None:
                done = "corrected since; undo that first" if new.superseded_by is None else "merged since; correct that"
                reason = f"note {successor}, which superseded it, was {done}"
                raise Conflict(entity_type=NOTE.name, id=old.note_id, reason=reason)
            self._corrections.check_author(NOTE, new, CorrectionAction.UNDO)
            self._emit(uow, EventType.NOTE_UPDATE, archive(uow, NOTE, new))
            uow.update(EDGE, dataclasses.replace(edge, removed_at=from_us(uow.now_us)))

    def _write(self, uow: UnitOfWork, note: Note, changed: Note, action: CorrectionAction, **payload: Any) -> Note:
        stored: Note = self._corrections.write(uow, NOTE, note, changed, action, **payload)
        if stored is note:
            return note
        if (stored.valid_from, stored.valid_until) != (note.valid_from, note.valid_until):
            _check_order(uow, stored)
        self._emit(uow, EventType.NOTE_UPDATE, stored)
        return stored

    def _emit(self, uow: UnitOfWork, kind: EventType, note: Note) -> None:
        about = (EntityType.NOTE, note.note_id)
        label = self._principal.label
        uow.emit(self._engine.event(kind, principal=label, subject=about, payload={"id": str(note.note_id)}))


def _text_of(note: Note) -> str:
    return embedded_text(note.entity, note.content)


def _too_early(note: Note) -> InvalidValue:
    assert note.valid_from is not None
    since = note.valid_from.isoformat()
    return InvalidValue(field="at", reason=f"is before valid_from, {since}; take a later instant, or delete the note")


def _check_unmerged(uow: UnitOfWork, note: Note) -> None:
    """Raise Conflict for a note that was merged into another, naming the one in force: corrections have no effect."""
    into, passed = note.superseded_by, {note.note_id}
    if into is None:
        return
    while into not in passed and (found := uow.find(NOTE, into.bytes)) is not None and found.superseded_by is not None:
        passed.add(into)
        into = found.superseded_by
    raise Conflict(entity_type=NOTE.name, id=note.note_id, reason=f"it was merged into note {into}; correct that one")


def _says(note: Note, changes: Mapping[str, Any], since: datetime | None) -> bool:
    """Return whether a note is what a call to supersede another one made."""
    same = all(getattr(note, name) == value for name, value in changes.items())
    return same and since in (None, note.valid_from)


def _superseding(uow: UnitOfWork, key: uuid.UUID) -> list[Edge]:
    """Return the links in force from notes that superseded a note."""
    return [edge for edge in uow.select_path(EDGE, "list_by_target", key.bytes) if _supersedes(uow, edge, edge.source)]


def _superseded(uow: UnitOfWork, key: uuid.UUID) -> list[Edge]:
    """Return the links in force to notes that a note superseded."""
    return [edge for edge in uow.select_path(EDGE, "list_by_source", key.bytes) if _supersedes(uow, edge, edge.target)]


def _supersedes(uow: UnitOfWork, edge: Edge, end: EntityRef) -> bool:
    """Return whether an edge leads from a note to the one it superseded; ``end`` is not known to be there."""
    kinds = {edge.source.entity_type, edge.target.entity_type}
    in_force = edge.relation is EdgeRelation.SUPERSEDES and edge.removed_at is None
    return in_force and kinds == {EntityType.NOTE} and uow.find(NOTE, end.id.bytes) is not None


def _check_order(uow: UnitOfWork, note: Note) -> None:
    """Raise Conflict when a note would hold while one that superseded it holds, or one that it superseded."""
    pairs = [(note, uow.get(NOTE, edge.source.id.bytes)) for edge in _superseding(uow, note.note_id)]
    pairs += [(uow.get(NOTE, edge.target.id.bytes), note) for edge in _superseded(uow, note.note_id)]
    for old, new in pairs:
        if new.valid_from is not None and (old.valid_until is None or old.valid_until > new.valid_from):
            reason = f"note {new.note_id} superseded note {old.note_id}, and both would hold; undo that, or correct it"
            raise Conflict(entity_type=NOTE.name, id=note.note_id, reason=reason)


def _link(uow: UnitOfWork, new: NoteId, old: NoteId) -> None:
    now = from_us(uow.now_us)
    ends = EntityRef(EntityType.NOTE, new), EntityRef(EntityType.NOTE, old)
    edge = Edge(EdgeId(uuid7()), *ends, EdgeRelation.SUPERSEDES, 1.0, 1.0, now, auto_linked=False, user_created=True)
    uow.insert(EDGE, edge)
