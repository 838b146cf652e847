"""Summaries of several notes, stored as one note, for retention's ``compress_on``."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from caliber.embedding.embedding_target import Vectors, attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.knowledge.notes import NewNote, add_note
from caliber.model.knowledge import Note
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.unit_of_work import UnitOfWork


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
