"""Correction of notes: the fields that change, and the note that supersedes another one.

Source: M-110, M-129 to M-141, K-131, K-132; docs/api.md.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from caliber.access.correcting import Check, RecordCorrections
from caliber.access.owners import author_of
from caliber.embedding.embedding_target import embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.knowledge.notes import NewNote, add_note, check_validity
from caliber.model import arguments
from caliber.model.access import ADMIN, AgentRole, Principal, PrincipalKind
from caliber.model.errors import InvalidValue
from caliber.model.events import EventType
from caliber.model.knowledge import Note, NoteType
from caliber.model.references import EntityRef, EntityType
from caliber.model.trust import TrustLabel, least_trusted
from caliber.schema.relations import NOTE
from caliber.storage.compile.derived import derived_value
from caliber.storage.write.unit_of_work import UnitOfWork

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
