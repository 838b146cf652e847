"""Records that a policy prunes: in which range, how old, how doubtful. Source: C-157, C-228, K-063, K-095."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from caliber.config.policies import ActionConfig, PolicyTarget
from caliber.model.policies import Trigger
from caliber.model.time import from_us
from caliber.schema.catalog import Catalog
from caliber.schema.memories import BUILT_IN
from caliber.schema.relation import Relation
from caliber.schema.relations import NOTE, SCOPE, TURN
from caliber.storage.write.ending import prune
from caliber.storage.write.unit_of_work import UnitOfWork

_ALL_TIME_US = 2**62
ALL_ROWS = 2**31 - 1
_ANY_CONFIDENCE = 2.0  # above all there are

BY_SCOPE = (Trigger.SCOPE_CLOSE, Trigger.TURN)
"""Triggers whose range is one scope; that of the others is the whole trajectory."""


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


def relation_of(catalog: Catalog, target: str | None) -> Relation:
    """Return the relation whose records a prune action takes: of a scope its turns."""
    bound = None if target is None or target == PolicyTarget.SCOPE else catalog.named(target)
    return TURN if bound is None else bound.relation


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

    def stale(created: datetime, confidence: Any) -> bool:
        old = before is None or created <= before  # K-063: inclusive
        return old and (action.below_confidence is None or _below(confidence, action.below_confidence))

    relation = relation_of(catalog, action.target)
    if relation is TURN:
        scopes = _scopes_in_range(uow, action, trigger, trajectory_id, only)
        found = [turn for each in scopes for turn in uow.select_path(TURN, "list_by_scope", each.bytes)]
    elif relation is NOTE:
        found = uow.select_entities(NOTE, "note.of_trajectory", trajectory_id.bytes)
    else:
        owner, key = ("trajectory", trajectory_id) if only is None else ("scope", only)
        found = records_of(uow, relation, owner, key)
    return prune(uow, relation, [item for item in found if stale(item.created_at, getattr(item, "confidence", None))])


def _below(confidence: Any, least: float) -> bool:
    # What says nothing of its confidence is not doubted; a declared field of this name may be a text.
    return isinstance(confidence, int | float) and confidence < least


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
    if action.target is PolicyTarget.SCOPE:
        return prune(uow, TURN, uow.select_entities(TURN, "turn.of_closed_scopes", until) if below > 1 else ())
    relation = relation_of(catalog, action.target)
    return prune(uow, relation, uow.stale(relation, until, below))
