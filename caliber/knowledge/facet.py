"""Handle methods for notes: add, update, supersede, end, delete and undo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import EllipsisType
from typing import Any

from caliber.access.corrections import CorrectionListeners
from caliber.access.identities import user_for
from caliber.access.owners import author_of, default_readers, require_own_readers, require_own_trust
from caliber.access.visibility import require
from caliber.embedding.embedding_target import attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.knowledge import notes as note_ops
from caliber.knowledge.notes import NewNote, NoteCorrections, as_readers
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.events import EventType
from caliber.model.knowledge import Note, NoteType
from caliber.model.process.interrupts import suppress
from caliber.model.references import EntityRef, EntityType, Id
from caliber.model.storage import ReadConsistency
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.unit_of_work import UnitOfWork


class NoteMethods:
    """Methods of ``Caliber`` that write notes."""

    _engine: Engine
    _principal: Principal
    _embeddings: Embeddings
    _searching: Searching

    def add_note(
        self,
        *,
        entity: str,
        entity_type: str,
        note_type: NoteType | str = NoteType.UNTYPED,
        content: str,
        confidence: float,
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
        importance: float | None = None,
        occurred_at: datetime | None = None,
        namespace: str | None = None,
        tags: Sequence[str] = (),
        user: str | EntityRef | None = None,
        visible_to: Sequence[str] | None = None,
        source_trajectory_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Add a note; an equal statement of a label about the same thing and time is stored once.

        Time is ``valid_from``, ``valid_until`` and ``occurred_at``: an event that happened twice is stored twice.
        ``note_type`` decides which roles' views show the note; one without a type is in all of them.
        A note for ``user``, the person by the name that the application has for them, is read by that user alone;
        ``visible_to`` lists readers otherwise: roles, and principals such as ``agent:planner``. Without either, the
        notes of a user are their own, those of an agent its role's, and those of an administrator everybody's. The
        application's are everybody's too, but with ``source_trajectory_ids`` of a user's task that user's. A user names
        no other readers, and no label above ``trust.notes``: ``access.grant`` shares a note.

        Raises: InputError kinds, PermissionDenied, Conflict (the idempotency key came with another note or label),
            LockExpired.
        """
        engine = self._engine
        if user is not None and visible_to is not None:
            raise InvalidValue(field="user", reason="is given with visible_to; one of them says who reads it")
        whose = None if user is None else user_for(engine, self._principal, user)
        self._searching.readers.require_kind(NOTE)
        sources = arguments.as_uuids(source_trajectory_ids, "source_trajectory_ids")
        for source in sources:
            require(engine, self._searching.readers, TRAJECTORY, source)
        if sources and self._principal.is_application and whose is None and visible_to is None:
            engine.snapshot(ReadConsistency.LATEST)  # another process may have just written the tasks
            whose = self._searching.readers.user_of_tasks(sources)
        if self._principal.is_user and visible_to is not None:
            names = self._searching.readers.visibility().names
            require_own_readers(self._principal.label, names, as_readers(visible_to, "visible_to"))
        readers = default_readers(self._principal, engine.config.access, whose)
        values = NoteCorrections.checked(
            {
                "entity": entity,
                "entity_type": entity_type,
                "note_type": note_type,
                "content": content,
                "confidence": confidence,
                "importance": importance,
                "valid_from": valid_from,
                "valid_until": valid_until,
                "occurred_at": occurred_at,
                "namespace": namespace,
                "tags": tags,
                "visible_to": readers if visible_to is None else visible_to,
                "trust": engine.config.trust.notes if trust is None else trust,
            },
            whole=True,
        )
        new = NewNote(
            **values,
            token_count=derived_value(NOTE, "token_count", engine.estimator, content=values["content"]),
            created_by=author_of(self._principal),
            source_trajectory_ids=sources,
            idempotency_key=arguments.as_name(idempotency_key, "idempotency_key"),
            labelled=trust is not None,
        )
        if self._principal.is_user:
            require_own_trust(self._principal.label, new.trust, engine.config.trust.notes)
        note_ops.check_validity(new.valid_from, new.valid_until)
        text = embedded_text(new.entity, new.content)

        def work(uow: UnitOfWork) -> Note:
            uow.guard(guard, self._principal)
            note, created = note_ops.add_note(uow, new)
            if created:
                attach(uow, "note", note.note_id, text, vector)
                engine.part(CorrectionListeners).added(uow, NOTE, note, self._principal.label)
            kind = EventType.NOTE_CREATE if created else EventType.NOTE_UPDATE
            of: dict[str, Any] = {"subject": (EntityType.NOTE, note.note_id), "payload": {"id": str(note.note_id)}}
            engine.emit(uow, kind, principal=self._principal.label, trajectory_id=NOTE.task_of(note), **of)
            return note

        vector = self._embeddings.vector("note", text)
        return engine.write(work)

    def update_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        entity: str | EllipsisType = ...,
        entity_type: str | EllipsisType = ...,
        note_type: NoteType | str | EllipsisType = ...,
        content: str | EllipsisType = ...,
        confidence: float | EllipsisType = ...,
        valid_from: datetime | EllipsisType | None = ...,
        valid_until: datetime | EllipsisType | None = ...,
        importance: float | EllipsisType | None = ...,
        occurred_at: datetime | EllipsisType | None = ...,
        namespace: str | EllipsisType | None = ...,
        tags: Sequence[str] | EllipsisType = ...,
        visible_to: Sequence[str] | EllipsisType | None = ...,
        trust: TrustLabel | str | EllipsisType = ...,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Correct a note that was wrong, and return it as stored; fields that are left out stay, None clears one.

        For a statement that was right and is no longer, use ``supersede_note``. New content without ``trust`` is
        trusted no more than ``trust.notes``. Windows that were assembled before can still be replayed. ``user`` is whom
        the call is for: the application corrects a user's notes with it, and shared notes without.

        Raises: InputError kinds; NotFound; PermissionDenied for a note of another author, or for another user, and to a
            user for other readers, or a label above ``trust.notes``; Conflict when ``version`` is no longer that of the
            note, when another note in use says the same, or when the note would hold while one that it superseded, or
            that superseded it, holds; LockExpired.
        """
        fields = {
            "entity": entity,
            "entity_type": entity_type,
            "note_type": note_type,
            "content": content,
            "confidence": confidence,
            "valid_from": valid_from,
            "valid_until": valid_until,
            "importance": importance,
            "occurred_at": occurred_at,
            "namespace": namespace,
            "tags": tags,
            "visible_to": visible_to,
            "trust": trust,
        }
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._note_corrections(user).update(key, fields, expected, guard))

    def supersede_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        content: str,
        at: datetime | None = None,
        confidence: float | EllipsisType = ...,
        importance: float | EllipsisType | None = ...,
        valid_until: datetime | EllipsisType | None = ...,
        occurred_at: datetime | EllipsisType | None = ...,
        tags: Sequence[str] | EllipsisType = ...,
        trust: TrustLabel | str | EllipsisType = ...,
        idempotency_key: str | None = None,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Replace a statement that was right by the one that holds from ``at`` (now, if left out) on; return that.

        The old note ends at ``at``, and a link of relation ``supersedes`` leads from the new one to it: a read with an
        earlier ``as_of`` finds the old one, a later one only the new one. What is left out is as in the old note, but
        ``trust``, which is ``trust.notes`` then, and ``occurred_at``. The same call with the same ``idempotency_key``
        returns the note that the first one made.

        Raises: as ``update_note``; InvalidValue for ``at`` before the old note held; Conflict for a note that another
            one superseded already, that was merged or deleted, or for a key that was used for something else.
        """
        fields = {
            "content": content,
            "confidence": confidence,
            "importance": importance,
            "valid_until": valid_until,
            "occurred_at": occurred_at,
            "tags": tags,
            "trust": trust,
        }
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(
            self._note_corrections(user).supersede(key, fields, at, idempotency_key, expected, guard)
        )

    def end_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        at: datetime | None = None,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Let a note hold until ``at`` (now, if left out), exclusive, and return it; one that has ended stays as it is.

        Raises: as ``update_note``; InvalidValue for ``at`` before the note held.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        return self._engine.write(self._note_corrections(user).end(key, at, expected, guard))

    def delete_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Take a note out of every search and window, and return it; it stays in the store until ``forget``.

        Raises: as ``update_note``.
        """
        return self._engine.write(
            self._note_corrections(user).delete(arguments.as_uuid(id, "id"), arguments.as_version(version), guard)
        )

    def restore_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Bring a note back that was deleted, or that retention or a policy archived, and return it; that is a use.

        A note in use stays as it is, and one that has ended: ``undo_note`` takes back that another one superseded it.
        ``undo_note`` takes back the restoring, too.

        Raises: as ``update_note``; Conflict for one that was merged into another, or says what another one says.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        note = self._engine.write(self._note_corrections(user).restore(key, expected, guard))
        with suppress(NotFound):  # of a note that was added in this transaction
            self._searching.seen_by(user).get(key)  # which counts the use
        return note

    def undo_note(
        self,
        id: Id,  # noqa: A002  (as ``get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
        guard: LockToken | None = None,
    ) -> Note:
        """Take back the newest correction of a note, and return the note as it was before; again, the one before that.

        Undoing ``supersede_note`` takes the new note out of use. Retention removes no correction from the log; a
        backup holds them, an export does not.

        Raises: as ``update_note``; PermissionDenied where another author wrote the new note; Conflict without a
            correction, where its values were changed again or forgotten since, or where the new note was corrected or
            merged since.
        """
        return self._engine.write(
            self._note_corrections(user).undo(arguments.as_uuid(id, "id"), arguments.as_version(version), guard)
        )

    def _note_corrections(self, user: str | EntityRef | None) -> NoteCorrections:
        self._engine.check_open()
        return NoteCorrections(self._engine, self._principal, user)
