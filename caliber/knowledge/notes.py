"""Writes of notes: insert, merge, change, supersede and sum up.

Source: C-046 to C-048, C-233, C-234, M-110, M-129 to M-141, K-111, K-131, K-132, K-190; docs/api.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from caliber.access.correcting import Check, RecordCorrections
from caliber.access.owners import author_of
from caliber.embedding.embedding_target import Vectors, attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model import arguments
from caliber.model.access import ADMIN, AgentRole, Principal, PrincipalKind
from caliber.model.errors import Conflict, InvalidValue
from caliber.model.events import CorrectionAction, EventType
from caliber.model.knowledge import Note, NoteType
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityRef, EntityType, NoteId, TrajectoryId
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import completed, derived_value
from caliber.storage.write.ending import log_change
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
            return _take_sources(uow, found, note.source_trajectory_ids, note.created_by or ""), False
    uow.insert(NOTE, note)
    return note, True


def _take_sources(uow: UnitOfWork, note: Note, sources: Sequence[uuid.UUID], by: str) -> Note:
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
    log_change(uow, NOTE, note, updated, CorrectionAction.MERGE, by.rpartition("@")[0])
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


_READERS: Final = (*(kind.value for kind in PrincipalKind), ADMIN, EntityType.USER.value)
"""The beginnings of principals and entities in lists of readers."""
_ROLES: Final = tuple(role.value for role in AgentRole)


def as_readers(value: Any, field: str) -> tuple[str, ...]:
    """Return a list of roles and principals. Raises: InvalidValue for an empty one, or an unknown role; DTypeError."""
    names = arguments.as_names(value, field)
    if not names:
        raise InvalidValue(field=field, reason="must name somebody, or be left out")
    for name in names:
        if ":" not in name and name not in _ROLES:
            reason = f"{name!r} is no role; give one of {', '.join(_ROLES)}, or a principal such as agent:planner"
            raise InvalidValue(field=field, reason=reason)
        kind, _, who = name.partition(":")
        if kind != name and (kind not in _READERS or not who.strip() or (kind == EntityType.USER and not _is_id(who))):
            person = f"human:{who}" if kind == EntityType.USER and who.strip() else "human:maria"
            reason = f"{name!r} is nobody; give a principal such as {person} or agent:planner, or user:<id>"
            raise InvalidValue(field=field, reason=reason)
    return names


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


REQUIRED: Final[dict[str, Check]] = {
    "entity": lambda value, field: arguments.as_text(value, field, limit=arguments.MAX_NAME_CHARS),
    "entity_type": lambda value, field: arguments.as_text(value, field, limit=arguments.MAX_NAME_CHARS),
    "note_type": lambda value, field: arguments.as_enum(value, NoteType, field),
    "content": arguments.as_text,
    "confidence": arguments.as_fraction,
    "trust": lambda value, field: arguments.as_enum(value, TrustLabel, field),
    "tags": arguments.as_names,
}
OPTIONAL: Final[dict[str, Check]] = {
    "importance": lambda value, field: arguments.as_fraction(value, field, 1, 10),
    "valid_from": arguments.as_instant,
    "valid_until": arguments.as_instant,
    "occurred_at": arguments.as_instant,
    "namespace": arguments.as_name,
    "visible_to": as_readers,
}


class NoteCorrections(RecordCorrections[Note]):
    """The corrections of notes that one principal makes."""

    relation = NOTE
    required = REQUIRED
    optional = OPTIONAL
    added = EventType.NOTE_CREATE
    changed = EventType.NOTE_UPDATE

    def __init__(
        self,
        engine: Engine,
        principal: Principal,
        user: str | EntityRef | None = None,
        *,
        rights: Principal | None = None,
    ) -> None:
        super().__init__(engine, principal, engine.part(Embeddings), user, rights)

    def text_of(self, record: Note) -> str:
        return embedded_text(record.entity, record.content)

    def most_trusted(self, uow: UnitOfWork, record: Note) -> tuple[TrustLabel, str]:  # noqa: ARG002
        return self._engine.config.trust.notes, "trust.notes"

    def revised(self, uow: UnitOfWork, record: Note, changes: Mapping[str, Any]) -> Note:
        """Return a note with changed fields; other content is trusted no more than ``trust.notes``, unless stated."""
        self.require_own(uow, record, changes)
        changed = dataclasses.replace(record, **changes)
        check_validity(changed.valid_from, changed.valid_until)
        if changed.content == record.content or "trust" in changes:
            return changed
        return dataclasses.replace(changed, trust=least_trusted(record.trust, self._engine.config.trust.notes))

    def with_key(self, uow: UnitOfWork, old: Note, idempotency_key: str) -> Note | None:  # noqa: ARG002
        columns = "created_by", "idempotency_key"
        found: Note | None = uow.find_by(NOTE, columns, author_of(self._principal), idempotency_key)
        return found

    def add(
        self,
        uow: UnitOfWork,
        old: Note,
        changes: Mapping[str, Any],
        start: datetime,
        idempotency_key: str | None,
        sources: tuple[uuid.UUID, ...],
    ) -> tuple[Note, bool]:
        self.require_own(uow, old, changes)
        until = old.valid_until if old.valid_until is not None and old.valid_until > start else None
        kept = {name: getattr(old, name) for name in (*REQUIRED, *OPTIONAL)}
        values = {
            **kept,
            "occurred_at": None,
            "trust": self._engine.config.trust.notes,
            **changes,
            "valid_from": start,
            "valid_until": changes.get("valid_until", until),
        }
        check_validity(start, values["valid_until"])
        new = NewNote(
            **values,
            token_count=derived_value(NOTE, "token_count", self._engine.estimator, content=values["content"]),
            created_by=author_of(self._principal),
            source_trajectory_ids=sources,
            idempotency_key=idempotency_key,
            labelled="trust" in changes,
        )
        return add_note(uow, new)
