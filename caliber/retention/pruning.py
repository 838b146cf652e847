"""Policy action ``prune``: removal by scope, age and confidence; lookup of the records in a trigger's range.

Source: C-157, C-228, K-063, K-095.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from caliber.config.policies import ActionConfig, PolicyTarget
from caliber.model.declared import Trigger
from caliber.model.time import from_us
from caliber.schema.catalog import Catalog
from caliber.schema.memories import BUILT_IN
from caliber.schema.relation import Relation
from caliber.schema.relations import SCOPE, TRAJECTORY, TURN
from caliber.storage.write.ending import prune
from caliber.storage.write.unit_of_work import UnitOfWork

_ALL_TIME_US = 2**62
ALL_ROWS = 2**31 - 1
_ANY_CONFIDENCE = 2.0  # above all there are

BY_SCOPE = (Trigger.SCOPE_CLOSE, Trigger.TURN)
"""Triggers whose range is one scope; that of the others is the whole trajectory."""


# --- which records -------------------------------------------------------------------------------


def records_of(uow: UnitOfWork, relation: Relation, owner: Relation, key: uuid.UUID) -> list[Any]:
    """Return the records that belong to a scope, trajectory or session, directly or through other records."""
    name = f"list_by_{owner.name}"
    if (listed := _listed(uow, relation, name, key)) is not None:
        return listed
    if relation.erase is not None and relation.erase.sources is not None:
        return uow.drawn_from(relation, key.bytes)
    for foreign in relation.foreign_keys:
        between = uow.catalog.by_name[foreign.relation]
        if (above := _listed(uow, between, name, key)) is not None:
            keys = [getattr(each, foreign.target) for each in above]
            return [record for each in keys for record in records_of(uow, relation, between, each)]
    return []


def _listed(uow: UnitOfWork, relation: Relation, name: str, key: uuid.UUID) -> list[Any] | None:
    path = next((path for path in relation.paths if path.name == name), None)
    if path is None:
        return None
    return uow.select_path(relation, name, key.bytes, *((ALL_ROWS,) if path.limited else ()))


def in_range(
    uow: UnitOfWork, relation: Relation, trigger: Trigger, trajectory_id: uuid.UUID, scope_id: uuid.UUID | None
) -> list[Any]:
    """Return the records in the range of a trigger (C-228).

    The range of ``scope_close`` and ``turn`` is the scope, of ``task_start`` and ``task_end`` the trajectory; of what
    belongs to no scope it is the trajectory always.
    """
    if trigger in BY_SCOPE and scope_id is not None and relation.has(SCOPE.key[0]):
        return records_of(uow, relation, SCOPE, scope_id)
    return records_of(uow, relation, TRAJECTORY, trajectory_id)


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
    """Run a prune action in the range of its trigger; return the number of records. A closing scope is closed."""
    relation = relation_of(catalog, action.target)
    assert relation.ends is not None  # the configuration prunes nothing that stays
    doubted = relation.ends.doubted
    before = None
    if action.older_than_ms is not None:
        before = from_us(uow.now_us) - timedelta(milliseconds=action.older_than_ms)

    def stale(record: Any) -> bool:
        old = before is None or getattr(record, relation.times.entered) <= before  # K-063: inclusive
        return old and (action.below_confidence is None or below(record, action.below_confidence))

    def below(record: Any, least: float) -> bool:
        confidence = None if doubted is None else getattr(record, doubted)
        return confidence is not None and confidence < least  # a record without a confidence is not doubted

    if action.target is PolicyTarget.SCOPE:
        scopes = _closed_scopes(uow, trigger, trajectory_id, scope_id)
        found = [record for each in scopes for record in records_of(uow, relation, SCOPE, each)]
    else:
        found = in_range(uow, relation, trigger, trajectory_id, scope_id)
    return prune(uow, relation, filter(stale, found))


def _closed_scopes(
    uow: UnitOfWork, trigger: Trigger, trajectory_id: uuid.UUID, scope_id: uuid.UUID | None
) -> list[uuid.UUID]:
    only = scope_id if trigger in BY_SCOPE else None
    if only is not None and trigger is Trigger.SCOPE_CLOSE:
        return [only]
    scopes = uow.select_path(SCOPE, "list_by_trajectory", trajectory_id.bytes)
    return [scope.scope_id for scope in scopes if only in (None, scope.scope_id) and not scope.is_open]


def prune_everywhere(uow: UnitOfWork, catalog: Catalog, action: ActionConfig) -> int:
    """Run a prune action in the whole tenant (C-228); return the number of records."""
    until = _ALL_TIME_US if action.older_than_ms is None else uow.now_us - action.older_than_ms * 1_000
    below = _ANY_CONFIDENCE if action.below_confidence is None else action.below_confidence
    if action.target is PolicyTarget.SCOPE:
        return prune(uow, TURN, uow.select_entities(TURN, "turn.of_closed_scopes", until) if below > 1 else ())
    relation = relation_of(catalog, action.target)
    return prune(uow, relation, uow.stale(relation, until, below))
