"""Lookup of the tasks, sessions and records that a reader was granted, in resident memory. Source: C-422."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from caliber.engine.write_behind import Deferred
from caliber.model.access import Grant, Right
from caliber.model.references import EntityType
from caliber.model.time import from_us, to_us
from caliber.model.trajectory import Session
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations import GRANT, SESSION
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

NEVER: Final = 2**63 - 1


class Granted(NamedTuple):
    """The ids of what a reader was granted, until ``until_us`` or until a task is added, perhaps to a session."""

    keys: frozenset[bytes]
    until_us: int
    ended: tuple[tuple[bytes, int], ...] = ()
    """The ids of grants that ended by themselves and are not marked so yet, and when they ended."""


NOTHING: Final = Granted(frozenset(), NEVER)


def is_active(grant: Grant, now_us: int) -> bool:
    """Return whether a grant gives its right at an instant: until it ends or is revoked."""
    return grant.revoked_at is None and (grant.until is None or to_us(grant.until) > now_us)


class EndedGrants(Deferred):
    """Marks grants that were seen to have ended by themselves: a clock that goes back revives none of them."""

    def write(self, uow: UnitOfWork, items: Iterable[Any]) -> None:
        for key, until_us in items:
            uow.lock(GRANT, key)
            grant: Grant | None = uow.find(GRANT, key)
            if grant is None or grant.revoked_at is not None or grant.until is None:
                continue
            if to_us(grant.until) == until_us:  # not one that was extended meanwhile
                uow.update(GRANT, dataclasses.replace(grant, revoked_at=grant.until, updated_at=from_us(uow.now_us)))


Owners = Mapping[bytes, tuple[bytes, ...] | None]
"""By task: its user, and the agent that works on it; None for a task that everybody may see."""


def granted_to(
    grants: RelationSnapshot,
    sessions: RelationSnapshot,
    tasks: RelationSnapshot,
    owners: Owners,
    ids: Collection[bytes],
    now_us: int,
    *,
    writing: bool,
) -> Granted:
    """Return the rights that grants give the entities ``ids`` at an instant; with ``writing`` only those to write."""
    keys: set[bytes] = set()
    until_us, ended = NEVER, list[tuple[bytes, int]]()
    decode, to = codec_of(GRANT).decode, grants.interned_codes("to_id")
    for code in [to[key] for key in ids if key in to]:
        for row in np.flatnonzero((grants.column("to_id") == code) & grants.live_mask).tolist():
            grant: Grant = decode(grants.packed(row))
            if grant.revoked_at is None and grant.until is not None and not is_active(grant, now_us):
                ended.append((grant.grant_id.bytes, to_us(grant.until)))
            if not is_active(grant, now_us) or (writing and grant.right is not Right.WRITE):
                continue
            keys.add(grant.on.id.bytes)
            if grant.until is not None:
                until_us = min(until_us, to_us(grant.until))
    for key in tuple(keys):
        keys |= _of_session(sessions, tasks, owners, key)
    for key in tuple(keys):
        keys |= _below(tasks, owners, key)
    return Granted(frozenset(keys), until_us, tuple(ended))


def _under(tasks: RelationSnapshot, column: str, key: bytes) -> set[bytes]:
    return {tasks.entity_id(int(task)).bytes for task in tasks.group(column, key)}


def _of_session(sessions: RelationSnapshot, tasks: RelationSnapshot, owners: Owners, key: bytes) -> set[bytes]:
    """Return the tasks of a session, without those of another user than the session's."""
    found, row = _under(tasks, "session_id", key), sessions.find(key)
    if row < 0:
        return set()
    session: Session = codec_of(SESSION).decode(sessions.packed(row))
    if session.initiator.entity_type is not EntityType.USER:
        return found
    user = session.initiator.id.bytes
    return {task for task in found if (owner := owners.get(task, ())) is None or (owner and owner[0] == user)}


def _below(tasks: RelationSnapshot, owners: Owners, key: bytes) -> set[bytes]:
    """Return the tasks below a task, without those of another user than the task's, and what is below these."""
    user, found, waiting = owners.get(key), set[bytes](), [key]
    while waiting:
        for task in _under(tasks, "parent_trajectory_id", waiting.pop()) - found:
            owner = owners.get(task, ())
            if owner is None or (user and owner and owner[0] == user[0]):
                found.add(task)
                waiting.append(task)
    return found
