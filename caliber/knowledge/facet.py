"""Methods of the handle about notes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from caliber.access.visibility import author_of, default_visible_to
from caliber.embedding.embedding_target import attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.knowledge import notes as note_ops
from caliber.knowledge.notes import NewNote
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.deadline import bounded
from caliber.model.events import EventType
from caliber.model.ids import Id
from caliber.model.knowledge import Note, NoteType
from caliber.model.references import EntityType
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.unit_of_work import UnitOfWork


class NoteMethods:
    """Methods of ``Caliber`` that write notes."""

    _engine: Engine
    _principal: Principal
    _embeddings: Embeddings

    def add_note(
        self,
        *,
        entity: str,
        entity_type: str,
        note_type: NoteType | str,
        content: str,
        confidence: float,
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
        importance: float | None = None,
        occurred_at: datetime | None = None,
        namespace: str | None = None,
        tags: Sequence[str] = (),
        visible_to: Sequence[str] | None = None,
        source_trajectory_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> Note:
        """Keep a piece of knowledge; the same statement of a label about the same thing and time is kept once.

        Time is ``valid_from``, ``valid_until`` and ``occurred_at``: what happened twice is kept twice.
        ``visible_to`` lists roles and principals (``agent:planner``); without it an agent's notes are seen as
        ``access.default_visibility`` says, anybody else's by all. ``trust`` says where the content came from; left out
        it is ``trust.notes``. Units: confidence 0–1, importance 1–10.

        Raises: InputError kinds, Conflict (the idempotency key came with another note or label), LockExpired.
        """
        engine = self._engine
        body = arguments.as_text(content, "content")
        seen_by = self._visible_to() if visible_to is None else arguments.as_names(visible_to, "visible_to")
        if visible_to is not None and not seen_by:
            from caliber.model.errors import InvalidValue

            raise InvalidValue(field="visible_to", reason="must name somebody, or be left out")
        new = NewNote(
            entity=arguments.as_text(entity, "entity", limit=arguments.MAX_NAME_CHARS),
            entity_type=arguments.as_text(entity_type, "entity_type", limit=arguments.MAX_NAME_CHARS),
            note_type=arguments.as_enum(note_type, NoteType, "note_type"),
            content=body,
            confidence=arguments.as_fraction(confidence, "confidence"),
            token_count=derived_value(NOTE, "token_count", engine.estimator, content=body),
            importance=None if importance is None else arguments.as_fraction(importance, "importance", 1, 10),
            valid_from=arguments.as_instant(valid_from, "valid_from"),
            valid_until=arguments.as_instant(valid_until, "valid_until"),
            occurred_at=arguments.as_instant(occurred_at, "occurred_at"),
            namespace=arguments.as_name(namespace, "namespace"),
            tags=arguments.as_names(tags, "tags"),
            visible_to=seen_by,
            created_by=author_of(self._principal),
            source_trajectory_ids=arguments.as_uuids(source_trajectory_ids, "source_trajectory_ids"),
            idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
            trust=engine.config.trust.notes if trust is None else arguments.as_enum(trust, TrustLabel, "trust"),
            labelled=trust is not None,
        )
        note_ops.check_validity(new.valid_from, new.valid_until)
        text = embedded_text(new.entity, new.content)

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard)
            note, created = note_ops.add_note(uow, new)
            if created:
                attach(uow, "note", note.note_id, text, vector)
            kind = EventType.NOTE_CREATE if created else EventType.NOTE_UPDATE
            about = (EntityType.NOTE, note.note_id)
            uow.emit(
                engine.event(kind, principal=self._principal.label, subject=about, payload={"id": str(note.note_id)})
            )
            return note

        with bounded(deadline_ms):
            vector = self._embeddings.vector("note", text)
            return engine.write(work)

    def _visible_to(self) -> tuple[str, ...] | None:
        visibility = self._engine.config.access.default_visibility
        roles = None if self._principal.role is None else visibility.for_role(self._principal.role)
        return default_visible_to(self._principal, roles)
