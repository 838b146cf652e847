"""Names, source numbers and row look-ups of a conversation's relations (task, scope, turn), for window code.

The other modules of this package use traits of relations only and name no relation. Source: design, section 2.
"""

from __future__ import annotations

import uuid
from datetime import tzinfo
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.model.references import ScopeId
from caliber.model.trajectory import TurnRole
from caliber.resident.conversation import moments_of
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relations import SCOPE, TRAJECTORY, TURN, TURN_SUMMARY
from caliber.schema.traits import NEVER_US
from caliber.text.dates import Moment

TASKS: Final = TRAJECTORY.name
SCOPES: Final = SCOPE.name
TURNS: Final = TURN.name
BLOCKS: Final = TURN_SUMMARY.name

SPOKEN: Final = 2
"""The number of a turn as a part of the conversation; a recalled one is a line of a passage, and has another."""
PASSAGE: Final = TURN.in_windows.number
SUMMARY: Final = SCOPE.in_windows.number
BLOCK: Final = TURN_SUMMARY.in_windows.number


def open_scopes(scopes: RelationSnapshot, trajectory_id: uuid.UUID) -> NDArray[np.int64]:
    """Return the rows of a trajectory's open scopes. Shapes: ``int64[n]``"""
    rows: NDArray[np.int64] = scopes.group("trajectory_id", trajectory_id.bytes)
    still_open: NDArray[np.int64] = rows[scopes.column("closed_at")[rows] == NEVER_US]
    return still_open


def newest_scope(scopes: RelationSnapshot, open_rows: NDArray[np.int64]) -> tuple[ScopeId | None, bytes | None]:
    """Return the newest open scope, if there is one, and its key."""
    if not len(open_rows):
        return None, None
    scope_id = scopes.entity_id(int(open_rows[np.argmax(scopes.column("sequence_number")[open_rows])]))
    return ScopeId(scope_id), scope_id.bytes


def closed_scopes(scopes: RelationSnapshot, trajectory: bytes) -> NDArray[np.int64]:
    """Return the rows of a trajectory's closed scopes that have a summary. Shapes: ``int64[n]``"""
    rows = scopes.group("trajectory_id", trajectory)
    rows = rows[(scopes.column("closed_at")[rows] != NEVER_US) & (scopes.column("rolled_back_at")[rows] == 0)]
    closed: NDArray[np.int64] = rows[scopes.column("summary_tokens")[rows] > 0]
    return closed


def moment_of(snapshot: ResidentSnapshot, trajectory: bytes, now_us: int, zone: tzinfo) -> Moment:
    """Return the instant of the last user turn of a task, or now, with the zone that makes the user's days."""
    row = last_said(snapshot, trajectory)
    return Moment(now_us, zone) if row < 0 else moments_of(snapshot[TURNS], np.array([row]), zone)[0]


def last_said(snapshot: ResidentSnapshot, trajectory: bytes) -> int:
    """Return the row of the last user turn of a task, or -1."""
    turns, scopes = snapshot[TURNS], snapshot[SCOPES]
    own_scopes = scopes.group("trajectory_id", trajectory)
    user = turns.enum_code("role", TurnRole.USER.value)
    for scope in own_scopes[np.argsort(-scopes.column("sequence_number")[own_scopes], kind="stable")].tolist():
        rows = turns.group("scope_id", scopes.entity_id(scope).bytes)
        user_rows = rows[turns.column("role")[rows] == user]
        if len(user_rows):
            return int(user_rows[np.argmax(turns.column("turn_number")[user_rows])])
    return -1
