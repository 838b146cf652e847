"""Notes: adding, merging, changing. Source: C-046 to C-048, C-233, C-234, K-111, K-190."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from caliber.kernels import sha256_batch, uuid7
from caliber.model.errors import Conflict, InvalidValue
from caliber.model.ids import NoteId, TrajectoryId
from caliber.model.knowledge import Note, NoteType
from caliber.model.time import from_us, to_us
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE
from caliber.storage.write.unit_of_work import UnitOfWork

_SAID = ("entity", "entity_type", "note_type", "content", "valid_from", "valid_until", "namespace", "trust")
FINGERPRINTED = (*_SAID, "visible_to", "created_by", "occurred_at")
"""The columns that a fingerprint is made of."""


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

    @property
    def content_hash(self) -> bytes:
        return hashlib.sha256(self.content.encode()).digest()

    @property
    def fingerprint(self) -> bytes:
        """A hash of all that makes two notes the same statement: who is to be believed, when and how long it holds."""
        return fingerprint_of(self)


def fingerprint_of(note: NewNote | Note) -> bytes:
    """Return the hash of what makes two notes the same statement."""
    return hashlib.sha256(
        _statement(
            note.entity,
            note.entity_type,
            note.note_type.value,
            note.content,
            None if note.valid_from is None else to_us(note.valid_from),
            None if note.valid_until is None else to_us(note.valid_until),
            note.namespace,
            note.trust.value,
            visible_to=note.visible_to,
            created_by=note.created_by,
            occurred_at=None if note.occurred_at is None else to_us(note.occurred_at),
        )
    ).digest()


def fingerprints_of(columns: Mapping[str, Sequence[Any]]) -> list[bytes]:
    """Return the fingerprints of notes given as columns of driver values (lists of names as JSON)."""
    statements = []
    rest = zip(columns["visible_to"], columns["created_by"], columns["occurred_at"], strict=True)
    for said, (names, author, when) in zip(zip(*(columns[name] for name in _SAID), strict=True), rest, strict=True):
        visible_to = None if names is None else json.loads(names)
        statements.append(_statement(*said, visible_to=visible_to, created_by=author, occurred_at=when))
    return [row.tobytes() for row in sha256_batch(statements)]


def _statement(*said: Any, visible_to: Sequence[str] | None, created_by: str | None, occurred_at: int | None) -> bytes:
    # What not everybody sees is its author's own: nobody gets, or adds to, a note hidden from him.
    parts = [*said, None if visible_to is None else [*sorted(visible_to), created_by]]
    if occurred_at is not None:  # swimming in May is not swimming in July
        parts.append(occurred_at)
    return json.dumps(parts, ensure_ascii=False).encode()


def check_validity(valid_from: datetime | None, valid_until: datetime | None) -> None:
    """Raise InvalidValue when a period ends before it begins (C-047)."""
    if valid_from is not None and valid_until is not None and valid_until < valid_from:
        raise InvalidValue(field="valid_until", reason="must not be before valid_from")


def add_note(uow: UnitOfWork, new: NewNote) -> tuple[Note, bool]:
    """Store a note, or find the same statement already there; return it and whether it is new.

    Raises: Conflict when an author's idempotency key comes again with another statement, or another label.
    """
    if new.idempotency_key is not None:
        known: Note | None = uow.find_again(NOTE, new.created_by, new.idempotency_key)
        if known is not None:
            again = new if new.labelled else dataclasses.replace(new, trust=known.trust)
            if known.fingerprint != again.fingerprint:
                reason = "its idempotency key was used for another note"
                raise Conflict(entity_type="note", id=known.note_id, reason=reason)
            return known, False
    else:
        found = uow.select_entities(NOTE, "note.by_fingerprint", new.fingerprint)
        if found:
            return _take_sources(uow, found[0], new.source_trajectory_ids), False
    now = from_us(uow.now_us)
    note = Note(
        note_id=NoteId(uuid7()),
        entity=new.entity,
        entity_type=new.entity_type,
        note_type=new.note_type,
        content=new.content,
        content_hash=new.content_hash,
        fingerprint=new.fingerprint,
        confidence=new.confidence,
        token_count=new.token_count,
        created_at=now,
        updated_at=now,
        importance=new.importance,
        base_importance=new.importance,
        valid_from=new.valid_from,
        valid_until=new.valid_until,
        source_trajectory_ids=tuple(TrajectoryId(item) for item in new.source_trajectory_ids),
        occurred_at=new.occurred_at,
        namespace=new.namespace,
        tags=new.tags,
        visible_to=new.visible_to,
        created_by=new.created_by,
        idempotency_key=new.idempotency_key,
        trust=new.trust,
    )
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


def change_note(uow: UnitOfWork, note: Note, count_tokens: Callable[[bytes], int], **changes: Any) -> Note:
    """Write changed fields of a note that was read in this unit of work; its derived fields follow."""
    changed = dataclasses.replace(note, **changes)
    check_validity(changed.valid_from, changed.valid_until)
    if changed == note:
        return note
    derived = derived_of(changed, count_tokens)
    stored: Note = uow.update(NOTE, dataclasses.replace(changed, **derived, updated_at=from_us(uow.now_us)))
    return stored


def derived_of(note: Note, count_tokens: Callable[[bytes], int]) -> dict[str, Any]:
    """Return what follows from what a note says: hashes, and how many tokens its content has."""
    content = note.content.encode()
    return {
        "content_hash": hashlib.sha256(content).digest(),
        "fingerprint": fingerprint_of(note),
        "token_count": count_tokens(content),
    }
