"""Taking records out of use: in which range, how old, how doubtful, and what "gone" means.

Turns are deleted, their content kept for replay; artifacts are retired; notes are archived.
Source: C-157, C-228, K-063, K-095, K-190.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from caliber.config.policies import ActionConfig, PolicyTarget
from caliber.knowledge import notes as note_ops
from caliber.model.errors import NotFound
from caliber.model.knowledge import Note
from caliber.model.policies import Trigger
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Artifact
from caliber.schema.catalog import Catalog
from caliber.schema.memories import BUILT_IN
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle

_ALL_TIME_US = 2**62
ALL_ROWS = 2**31 - 1
_ANY_CONFIDENCE = 2.0  # above all there are

BY_SCOPE = (Trigger.SCOPE_CLOSE, Trigger.TURN)
"""Triggers whose range is one scope; that of the others is the whole trajectory."""


# --- what gone means -------------------------------------------------------------------------------


def drop(uow: UnitOfWork, relation: Relation, records: Iterable[Any]) -> int:
    """Delete records, keeping their content for replay; return how many. Somebody else may have deleted some by now."""
    count = 0
    for record in records:
        with contextlib.suppress(NotFound):
            uow.delete(relation, record)
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


# --- which records -------------------------------------------------------------------------------


def records_of(uow: UnitOfWork, relation: Relation, owner: str, key: uuid.UUID) -> list[Any]:
    """Return the records of a ``scope``, ``trajectory`` or ``session``."""
    path = f"list_by_{owner}"
    limited = next(item.limited for item in relation.paths if item.name == path)
    return uow.select_path(relation, path, key.bytes, *((ALL_ROWS,) if limited else ()))


def own_relation(catalog: Catalog, action: ActionConfig) -> Relation | None:
    """Return the relation of an action's target where that is a declared memory of the store's own."""
    if action.target is None or action.target in BUILT_IN:
        return None
    return catalog.memories[action.target].relation


# --- by a policy -----------------------------------------------------------------------------------


def prune_in_range(
    uow: UnitOfWork,
    catalog: Catalog,
    action: ActionConfig,
    trigger: Trigger,
    trajectory_id: uuid.UUID,
    scope_id: uuid.UUID | None,
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

    own = own_relation(catalog, action)
    if own is not None:
        owner, key = ("trajectory", trajectory_id) if only is None else ("scope", only)
        return drop(uow, own, [item for item in records_of(uow, own, owner, key) if stale(*_graded(item))])
    if action.target is PolicyTarget.NOTE:
        notes = uow.select_entities(NOTE, "note.of_trajectory", trajectory_id.bytes)
        return archive_notes(uow, [note for note in notes if stale(note.created_at, note.confidence)])
    if action.target is PolicyTarget.ARTIFACT:
        owner, key = ("trajectory", trajectory_id) if only is None else ("scope", only)
        artifacts = records_of(uow, ARTIFACT, owner, key)
        return retire_artifacts(uow, [item for item in artifacts if stale(item.created_at, item.confidence)])
    scopes = _scopes_in_range(uow, action, trigger, trajectory_id, only)
    turns = [turn for each in scopes for turn in uow.select_path(TURN, "list_by_scope", each.bytes)]
    return drop(uow, TURN, [turn for turn in turns if stale(turn.created_at, None)])


def _graded(record: Any) -> tuple[datetime, float | None]:
    return record.created_at, getattr(record, "confidence", None)


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


def prune_everywhere(uow: UnitOfWork, catalog: Catalog, action: ActionConfig) -> int:
    """Do what a prune action says in the whole tenant (C-228); return how many records."""
    until = _ALL_TIME_US if action.older_than_ms is None else uow.now_us - action.older_than_ms * 1_000
    below = _ANY_CONFIDENCE if action.below_confidence is None else action.below_confidence
    own = own_relation(catalog, action)
    if own is not None:
        return _drop_everywhere(uow, own, until, below)
    if action.target is PolicyTarget.NOTE:
        return archive_notes(uow, uow.select_entities(NOTE, "note.stale", until, below))
    if action.target is PolicyTarget.ARTIFACT:
        return retire_artifacts(uow, uow.select_entities(ARTIFACT, "artifact.stale", until, below))
    closed_only = int(action.target is PolicyTarget.SCOPE)
    return drop(uow, TURN, uow.select_entities(TURN, "turn.stale", until, closed_only))


def _drop_everywhere(uow: UnitOfWork, relation: Relation, until_us: int, below: float) -> int:
    decode, stale = codec_of(relation).decode, []
    for page in uow.pages(relation):
        for row in page:
            record = decode(row)
            created, confidence = _graded(record)
            # As of artifacts: what says nothing of its confidence is not doubted.
            if to_us(created) <= until_us and (1.0 if confidence is None else confidence) < below:
                uow.adopt(relation, row)
                stale.append(record)
    return drop(uow, relation, stale)
