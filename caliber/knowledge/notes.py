"""Writes of notes: insert, merge, change and sum up. Source: C-046 to C-048, C-233, C-234, K-111, K-190."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from caliber.embedding.embedding_target import Vectors, attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model.errors import Conflict, InvalidValue
from caliber.model.knowledge import Note, NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import NoteId, TrajectoryId
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import completed, derived_value
from caliber.storage.write.unit_of_work import UnitOfWork

_BY_KEY = ("created_by", "idempotency_key")


@dataclass(frozen=True, slots=True)
class NewNote:
    """A note as checked, before it is stored; ``labelled`` when its caller states its label, and no rule does."""

    entity: str
    entity_type: str
    note_type: NoteType
    content: str
    confidence: float
    token_count: int
    importance: float | None = None
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    occurred_at: datetime | None = None
    namespace: str | None = None
    tags: tuple[str, ...] = ()
    visible_to: tuple[str, ...] | None = None
    created_by: str | None = None
    source_trajectory_ids: tuple[uuid.UUID, ...] = ()
    idempotency_key: str | None = None
    trust: TrustLabel = TrustLabel.WEB
    labelled: bool = True


_STATED: Final = tuple(each.name for each in dataclasses.fields(NewNote) if each.name != "labelled")


def check_validity(valid_from: datetime | None, valid_until: datetime | None) -> None:
    """Raise InvalidValue when a period ends before it begins (C-047)."""
    if valid_from is not None and valid_until is not None and valid_until < valid_from:
        raise InvalidValue(field="valid_until", reason="must not be before valid_from")


def add_note(uow: UnitOfWork, new: NewNote) -> tuple[Note, bool]:
    """Store a note, or find the same statement already there; return it and whether it is new.

    Raises: Conflict when an author's idempotency key comes again with another statement, or another label.
    """
    now = from_us(uow.now_us)
    note = Note(
        note_id=NoteId(uuid7()),
        content_hash=b"",
        fingerprint=b"",
        created_at=now,
        updated_at=now,
        base_importance=new.importance,
        **{name: getattr(new, name) for name in _STATED},
    )
    note = completed(NOTE, note, None)
    if note.idempotency_key is not None:
        known: Note | None = uow.find_by(NOTE, _BY_KEY, note.created_by, note.idempotency_key)
        if known is not None:
            again = note if new.labelled else completed(NOTE, dataclasses.replace(note, trust=known.trust), None)
            if known.fingerprint != again.fingerprint:
                reason = "its idempotency key was used for another note"
                raise Conflict(entity_type="note", id=known.note_id, reason=reason)
            return known, False
    else:
        found: Note | None = uow.find_by(NOTE, ("fingerprint",), note.fingerprint)
        if found is not None:
            return _take_sources(uow, found, note.source_trajectory_ids), False
    uow.insert(NOTE, note)
    return note, True


def _take_sources(uow: UnitOfWork, note: Note, sources: Sequence[uuid.UUID]) -> Note:
    missing = [source for source in sources if source not in note.source_trajectory_ids]
    if not missing:
        return note
    updated: Note = uow.update(
        NOTE,
        dataclasses.replace(
            note,
            source_trajectory_ids=(*note.source_trajectory_ids, *(TrajectoryId(item) for item in missing)),
            updated_at=from_us(uow.now_us),
        ),
    )
    return updated


def change_note(uow: UnitOfWork, note: Note, estimator: Estimator, **changes: Any) -> Note:
    """Write changed fields of a note that was read in this unit of work; its derived fields follow."""
    changed = dataclasses.replace(note, **changes)
    check_validity(changed.valid_from, changed.valid_until)
    if changed == note:
        return note
    changed = completed(NOTE, changed, estimator, changes.keys())
    stored: Note = uow.update(NOTE, dataclasses.replace(changed, updated_at=from_us(uow.now_us)))
    return stored


class NoteSums:
    """Makes notes of summaries."""

    relation = NOTE

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prepare(self, notes: Sequence[Note], summary: str, trust: TrustLabel) -> tuple[NewNote, Vectors | None]:
        """Return the summary of notes with its tokens and vector."""
        newest = notes[-1]
        new = NewNote(
            entity=newest.entity,
            entity_type=newest.entity_type,
            note_type=newest.note_type,
            content=summary,
            confidence=min(note.confidence for note in notes),
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=summary),
            importance=max((note.importance for note in notes if note.importance is not None), default=None),
            valid_from=newest.valid_from,
            valid_until=newest.valid_until,
            namespace=newest.namespace,
            tags=tuple(dict.fromkeys(tag for note in notes for tag in note.tags)),
            visible_to=newest.visible_to,
            created_by=newest.created_by,
            source_trajectory_ids=tuple(dict.fromkeys(item for note in notes for item in note.source_trajectory_ids)),
            trust=trust,
        )
        return new, self._engine.part(Embeddings).vector(NOTE.name, embedded_text(new.entity, summary))

    def write(self, uow: UnitOfWork, new: NewNote, vector: Vectors | None, scope_id: uuid.UUID | None) -> Note:  # noqa: ARG002
        """Store it; notes belong to no scope."""
        note, created = add_note(uow, new)
        if created:
            attach(uow, NOTE.name, note.note_id, embedded_text(note.entity, note.content), vector)
        return note
