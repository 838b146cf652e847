"""Grants of a delegation: the shared records to the agent that works on it, what it produced to the delegator.

A grant names its delegation as the principal that gave it, so that the end of a delegation ends its own grants alone.
Source: C-422, C-426, C-429.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable
from typing import Any

from caliber.access.granted import is_active
from caliber.access.grants import audited, owns
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model.access import Principal
from caliber.model.agents.delegation import Delegation
from caliber.model.errors import NotFound, PermissionDenied
from caliber.model.events import EventType
from caliber.model.grants import Grant, Right
from caliber.model.ids import GrantId
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, BY_NAME, GRANT, NOTE, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork


def readable(
    uow: UnitOfWork, readers: Readers, artifacts: Iterable[uuid.UUID], notes: Iterable[uuid.UUID]
) -> list[tuple[EntityRef, Any]]:
    """Return records to share, each with its reference. Raises: NotFound for one that does not exist or is hidden."""
    found = _records(uow, readers, ARTIFACT, artifacts)
    found += _records(uow, readers, NOTE, notes)
    return found


def _records(
    uow: UnitOfWork, readers: Readers, relation: Relation, keys: Iterable[uuid.UUID]
) -> list[tuple[EntityRef, Any]]:
    found: list[tuple[EntityRef, Any]] = []
    for key in keys:
        record = uow.find(relation, key.bytes)
        if record is None or not readers.allows_entity(relation, record):
            raise NotFound(entity_type=relation.name, id=key)
        found.append((EntityRef(EntityType(relation.name), key), record))
    return found


def to_grant(
    engine: Engine,
    principal: Principal,
    readers: Readers,
    task: Delegation,
    records: Iterable[tuple[EntityRef, Any]],
) -> list[EntityRef]:
    """Return the produced records of a delegation that its delegator is to be granted; the others need no grant.

    The delegator sees the task below as a whole, everybody sees what no list limits, and it shared the rest itself.

    Raises: PermissionDenied for a record of others, which ``memory.access.grant`` would not grant either.
    """
    found: list[EntityRef] = []
    shared = {*task.shared_artifacts, *task.shared_notes}
    for ref, record in records:
        relation = BY_NAME[str(ref.entity_type)]
        if relation.rights.readers is not None:
            is_open = getattr(record, relation.rights.readers) is None
            may = owns(engine, principal, readers, relation, record)
        else:
            of = record.trajectory_id
            parties = engine.part(TaskOwners).of.get(of.bytes, ())
            is_open = parties is None or of == task.child_trajectory_id
            may = principal.serves or not readers.visibility().ids.isdisjoint(parties or ())
        if is_open or ref.id in shared:
            continue
        if not may:
            raise PermissionDenied(
                agent_id=principal.label, action="let the delegator read", resource=f"{relation.name} {ref.id}"
            )
        found.append(ref)
    return found


def share(engine: Engine, uow: UnitOfWork, task: Delegation, to: uuid.UUID, by: str) -> None:
    """Let an agent read the shared records of a delegation until it ends; those that are gone by now are left out."""

    def share_each(relation: Relation, keys: Iterable[uuid.UUID]) -> None:
        for key in keys:
            if uow.find(relation, key.bytes) is not None:
                about = EntityRef(EntityType(relation.name), key)
                grant_to(engine, uow, task, to, about, by, until_end=True)

    share_each(ARTIFACT, task.shared_artifacts)
    share_each(NOTE, task.shared_notes)


def show_task(engine: Engine, uow: UnitOfWork, task: Delegation, by: str) -> None:
    """Let the delegator read the task below, wherever it is hidden; this does not end with the delegation."""
    assert task.child_trajectory_id is not None
    below = EntityRef(EntityType(TRAJECTORY.name), task.child_trajectory_id)
    grant_to(engine, uow, task, task.delegator_agent_id, below, by)


def grant_to(
    engine: Engine,
    uow: UnitOfWork,
    task: Delegation,
    to: uuid.UUID,
    on: EntityRef,
    by: str,
    *,
    until_end: bool = False,
) -> None:
    """Let an agent read a record; with ``until_end`` until the deadline of the delegation, if it has one."""
    now = from_us(uow.now_us)
    until = task.deadline if until_end else None
    agent = EntityRef(EntityType.AGENT, to)
    grant = Grant(GrantId(uuid7()), agent, on, Right.READ, giver_of(task), until, None, now, now)
    uow.insert(GRANT, grant)
    audited(engine, uow, EventType.GRANT, grant, by)


def unshare(engine: Engine, uow: UnitOfWork, task: Delegation, from_: uuid.UUID | None, by: str) -> None:
    """End the grants of a delegation's shared records to an agent."""
    giver, now = giver_of(task), from_us(uow.now_us)
    for key in (*task.shared_artifacts, *task.shared_notes):
        for grant in uow.select_path(GRANT, "list_by_record", key.bytes):
            if grant.granted_by == giver and grant.to.id == from_ and is_active(grant, uow.now_us):
                ended: Grant = uow.update(GRANT, dataclasses.replace(grant, revoked_at=now, updated_at=now))
                audited(engine, uow, EventType.REVOKE, ended, by)


def giver_of(task: Delegation) -> str:
    """Return how grants name the delegation that gave them."""
    return f"delegation:{task.delegation_id}"
