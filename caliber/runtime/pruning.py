"""Taking records out of use: in which range, how old, how doubtful, and what "gone" means.

Turns are deleted, their content kept for replay; artifacts are retired; notes are archived.
Source: C-157, C-228, K-063, K-095, K-190.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta

from caliber.config.policies import ActionConfig, PolicyTarget
from caliber.knowledge import notes as note_ops
from caliber.model.entities import Artifact, Note, Turn
from caliber.model.enums import Trigger
from caliber.model.time import from_us
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, TURN
from caliber.storage.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle

_ALL_TIME_US = 2**62
_ANY_CONFIDENCE = 2.0  # above all there are

BY_SCOPE = (Trigger.SCOPE_CLOSE, Trigger.TURN)
"""Triggers whose range is one scope; that of the others is the whole trajectory."""


# --- what gone means -------------------------------------------------------------------------------


def drop_turns(uow: UnitOfWork, turns: Iterable[Turn]) -> int:
    """Delete turns, keeping their content for replay; return how many."""
    count = 0
    for turn in turns:
        uow.delete(TURN, turn)
        count += 1
    return count


def retire_artifacts(uow: UnitOfWork, artifacts: Iterable[Artifact]) -> int:
    """End the life of artifacts that are in use; return how many."""
    count = 0
    for artifact in artifacts:
        if artifact.retired_at is None:
            lifecycle.retire_artifact(uow, artifact)
            count += 1
    return count


def archive_notes(uow: UnitOfWork, notes: Iterable[Note]) -> int:
    """Take notes that are in use out of it; return how many."""
    count = 0
    for note in notes:
        if note.active:
            note_ops.archive_note(uow, note)
            count += 1
    return count


# --- by a policy -----------------------------------------------------------------------------------


def prune_in_range(
    uow: UnitOfWork, action: ActionConfig, trigger: Trigger, trajectory_id: uuid.UUID, scope_id: uuid.UUID | None
) -> int:
    """Do what a prune action says in the range of its trigger (C-228); return how many records.

    The range of ``scope_close`` and ``turn`` is the scope, of ``task_start`` and ``task_end`` the trajectory. Notes
    belong to no scope: their range is the trajectory always. A closing scope counts as closed.
    """
    before = None
    if action.older_than_ms is not None:
        before = from_us(uow.now_us) - timedelta(milliseconds=action.older_than_ms)
    only = scope_id if trigger in BY_SCOPE else None

    def stale(created: datetime, confidence: float | None) -> bool:
        old = before is None or created <= before  # K-063: inclusive
        return old and (action.below_confidence is None or _below(confidence, action.below_confidence))

    if action.target is PolicyTarget.NOTE:
        notes = uow.select_entities(NOTE, "note.of_trajectory", trajectory_id.bytes)
        return archive_notes(uow, [note for note in notes if stale(note.created_at, note.confidence)])
    if action.target is PolicyTarget.ARTIFACT:
        path, key = ("list_by_trajectory", trajectory_id) if only is None else ("list_by_scope", only)
        artifacts = uow.select_path(ARTIFACT, path, key.bytes)
        return retire_artifacts(uow, [item for item in artifacts if stale(item.created_at, item.confidence)])
    scopes = _scopes_in_range(uow, action, trigger, trajectory_id, only)
    turns = [turn for each in scopes for turn in uow.select_path(TURN, "list_by_scope", each.bytes)]
    return drop_turns(uow, [turn for turn in turns if stale(turn.created_at, None)])


def _below(confidence: float | None, least: float) -> bool:
    return confidence is not None and confidence < least  # what says nothing of its confidence is not doubted


def _scopes_in_range(
    uow: UnitOfWork, action: ActionConfig, trigger: Trigger, trajectory_id: uuid.UUID, only: uuid.UUID | None
) -> list[uuid.UUID]:
    closed_only = action.target is PolicyTarget.SCOPE
    if only is not None and (trigger is Trigger.SCOPE_CLOSE or not closed_only):
        return [only]
    scopes = uow.select_path(SCOPE, "list_by_trajectory", trajectory_id.bytes)
    return [
        scope.scope_id for scope in scopes if only in (None, scope.scope_id) and not (closed_only and scope.is_open)
    ]


def prune_everywhere(uow: UnitOfWork, action: ActionConfig) -> int:
    """Do what a prune action says in the whole tenant (C-228); return how many records."""
    until = _ALL_TIME_US if action.older_than_ms is None else uow.now_us - action.older_than_ms * 1_000
    below = _ANY_CONFIDENCE if action.below_confidence is None else action.below_confidence
    if action.target is PolicyTarget.NOTE:
        return archive_notes(uow, uow.select_entities(NOTE, "note.stale", until, below))
    if action.target is PolicyTarget.ARTIFACT:
        return retire_artifacts(uow, uow.select_entities(ARTIFACT, "artifact.stale", until, below))
    closed_only = int(action.target is PolicyTarget.SCOPE)
    return drop_turns(uow, uow.select_entities(TURN, "turn.stale", until, closed_only))
