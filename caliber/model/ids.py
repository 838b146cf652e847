"""Typed aliases of UUID for the ids of each kind of record, and a fast constructor of UUIDs from bytes."""

from __future__ import annotations

import uuid
from typing import NewType

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
