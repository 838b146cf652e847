"""Ids of records: typed aliases of UUID, the kinds of records, and ``EntityRef``, a reference as kind and id."""

from __future__ import annotations

import hashlib
import re
import unicodedata
import uuid
from enum import StrEnum
from typing import Final, NewType

from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.lazy_dataclass import dataclass

Id = uuid.UUID | str
"""An id, or its text."""

TrajectoryId = NewType("TrajectoryId", uuid.UUID)
ScopeId = NewType("ScopeId", uuid.UUID)
TurnId = NewType("TurnId", uuid.UUID)
TurnSummaryId = NewType("TurnSummaryId", uuid.UUID)
ArtifactId = NewType("ArtifactId", uuid.UUID)
NoteId = NewType("NoteId", uuid.UUID)
SessionId = NewType("SessionId", uuid.UUID)
EdgeId = NewType("EdgeId", uuid.UUID)
GrantId = NewType("GrantId", uuid.UUID)
IdentityId = NewType("IdentityId", uuid.UUID)
WindowId = NewType("WindowId", uuid.UUID)
CheckpointId = NewType("CheckpointId", uuid.UUID)
ConflictId = NewType("ConflictId", uuid.UUID)
LockId = NewType("LockId", uuid.UUID)
LockWaiterId = NewType("LockWaiterId", uuid.UUID)
ValueId = NewType("ValueId", uuid.UUID)
TodoId = NewType("TodoId", uuid.UUID)
CalendarEventId = NewType("CalendarEventId", uuid.UUID)
EventId = NewType("EventId", uuid.UUID)
SpaceId = NewType("SpaceId", uuid.UUID)

_new = uuid.UUID.__new__
_set = object.__setattr__
_UUID = uuid.UUID
_SAFE = uuid.SafeUUID.unknown


def uuid_from_bytes(raw: bytes) -> uuid.UUID:
    """Return the UUID of 16 bytes; several times cheaper than ``UUID(bytes=...)``."""
    value = _new(_UUID)
    _set(value, "int", int.from_bytes(raw, "big"))
    _set(value, "is_safe", _SAFE)
    return value


KEY_VERSION: Final = 8
"""The version of ids that follow from keys; of UUIDs this one leaves all other bits to us."""


def id_of_key(key: str) -> uuid.UUID:
    """Return the id of the record at a key, the same everywhere."""
    number = int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:16])
    return uuid.UUID(int=number & ~(0xF << 76) & ~(3 << 62) | (KEY_VERSION << 76) | (2 << 62))


class EntityType(StrEnum):
    """Kinds of records that errors, references and events can name. Source: C-016, K-011."""

    TRAJECTORY = "trajectory"
    SCOPE = "scope"
    TURN = "turn"
    TURN_SUMMARY = "turn_summary"
    ARTIFACT = "artifact"
    NOTE = "note"
    SESSION = "session"
    AGENT = "agent"
    USER = "user"
    SYSTEM = "system"
    EDGE = "edge"
    CHECKPOINT = "checkpoint"
    CONTEXT_WINDOW = "context_window"
    EMBEDDING = "embedding"
    EMBEDDING_SPACE = "embedding_space"
    EVENT = "event"
    LOCK = "lock"
    MESSAGE = "message"
    DELEGATION = "delegation"
    HANDOFF = "handoff"
    CONFLICT = "conflict"
    JOB = "job"
    CONFIG = "config"


_KINDS: Final = {kind.value: kind for kind in EntityType}


def kind_named(name: str) -> EntityType | str:
    """Return a kind of record by its name; a kind that is no member has its relation's name.

    Raises: ValueError for an unknown relation
    """
    if not name.isidentifier():
        raise ValueError(name)
    return _KINDS.get(name, name)


_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSEEN: Final = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\\s]+"
)
"""Texts of invisible characters alone."""


def is_invisible(text: str) -> bool:
    """Return whether a text has invisible characters, and no other ones."""
    return not text.isascii() and _UNSEEN.fullmatch(text) is not None


NAMESPACES: Final = {
    EntityType.USER: uuid.UUID("6c1d1f0e-3f0a-5c55-9a53-6a1c7e0b9d42"),
    EntityType.AGENT: uuid.UUID("0f5d6f0b-7a4e-5b1c-8f0d-2b7e9c3a1d64"),
}
"""The namespaces of names of users and agents, as ``uuid.uuid5`` takes them; they never change."""


@dataclass(frozen=True, slots=True)
class EntityRef:
    """A typed pointer to any record, agent or user. Source: C-017."""

    entity_type: EntityType | str
    id: uuid.UUID

    @classmethod
    def user(cls, name: str) -> EntityRef:
        """Return the user of a name: the same reference in every program. ``maria`` and ``Maria`` are two users.

        The id is that of ``named``, in the namespace 6c1d1f0e-3f0a-5c55-9a53-6a1c7e0b9d42. Raises: as ``named``.
        """
        return cls.named(EntityType.USER, name)

    @classmethod
    def agent(cls, name: str) -> EntityRef:
        """Return the agent of a name: the same reference in every program. Raises: as ``named``."""
        return cls.named(EntityType.AGENT, name)

    @classmethod
    def named(cls, kind: EntityType, name: str, namespace: str = "") -> EntityRef:
        """Return the user or agent of a name in a namespace of the application.

        The id is the UUID version 5 of the name, in Unicode form NFC and without white space around it, in the UUID
        namespace of its kind (``NAMESPACES``), or in that of the version 5 of ``namespace`` in it.

        Raises: DTypeError; InvalidValue for an empty name, and a kind that has no names.
        """
        if type(kind) not in (EntityType, str) or kind not in NAMESPACES:
            raise InvalidValue(field="kind", reason=f"must be one of {', '.join(NAMESPACES)}")
        if type(namespace) is not str or namespace:
            cls.plain_name(namespace, "namespace")
        base = NAMESPACES[kind]
        return cls(kind, uuid.uuid5(uuid.uuid5(base, namespace) if namespace else base, cls.plain_name(name)))

    @staticmethod
    def plain_name(name: str, field: str = "name") -> str:
        """Return a name as names are compared: in Unicode form NFC, without white space around it.

        Raises: DTypeError; InvalidValue for an empty or invisible name, or one with control characters, lone
            surrogates, or characters that turn the direction of a text: it would read as another name.
        """
        if not isinstance(name, str):
            raise DTypeError(field=field, expected="str", got=type(name).__name__)
        plain = unicodedata.normalize("NFC", name).strip()
        if not plain or is_invisible(plain):
            raise InvalidValue(field=field, reason="must not be empty, or of invisible characters alone")
        if not plain.isprintable() and (sign := _CONTROL.search(plain)) is not None:
            raise InvalidValue(field=field, reason=f"must not have a control character, such as U+{ord(sign[0]):04X}")
        return plain
