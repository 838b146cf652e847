"""Trajectory of an imported source (found by a stable id, or started), an import's lock, and its counts.

A source (a repository, a conversation, a folder) has an identity text. Without an owner its trajectory is shared: the
initiator is the system, with a UUID made of the identity. With an owner (``--for``) the initiator is the owner, and a
tag names the source. So a second import finds the trajectory of the first and continues it.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caliber.api.caliber import Caliber
from caliber.model.agents import LockToken
from caliber.model.process.interrupts import managed
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import Scope, Trajectory, TrajectoryStatus

_NAMESPACE = uuid.UUID("6f0e2c1a-54f5-5b0a-9a0c-0d6f3a6f7b11")
_LEASE_MS = 60_000
_WAIT_MS = 2_000


@dataclass(slots=True)
class Imported:
    """The outcome of an import. ``known`` records existed before."""

    commits: int = 0
    commits_known: int = 0
    turns: int = 0
    turns_known: int = 0
    scopes_closed: int = 0
    documents: int = 0
    decisions: int = 0
    notes: int = 0
    notes_known: int = 0
    notes_replaced: int = 0
    notes_archived: int = 0
    artifacts: int = 0
    artifacts_known: int = 0
    artifacts_replaced: int = 0

    @property
    def added(self) -> int:
        """The number of new records."""
        return self.turns + self.notes + self.artifacts


def initiator_of(identity: str, owner: EntityRef | None = None) -> EntityRef:
    """Return the initiator of a source's trajectory: its owner, else the source itself, which everybody shares."""
    return EntityRef(EntityType.SYSTEM, _id(identity)) if owner is None else owner


def trajectories_of(memory: Caliber, identity: str, owner: EntityRef | None = None) -> list[Trajectory]:
    """Return the trajectories that a source started for an owner, or for everybody; oldest first."""
    initiator = initiator_of(identity, owner)
    found: list[Trajectory] = memory.storage.trajectories.list_by_initiator(initiator.entity_type, initiator.id)
    if owner is None:
        return found
    # The initiator of an owned trajectory is no key of its source: a tag names the source.
    return [item for item in found if _tag(identity) in item.tags]


def start_trajectory_of(
    memory: Caliber, identity: str, goal: str, tags: Sequence[str], owner: EntityRef | None
) -> Trajectory:
    """Start a trajectory of a source."""
    named = tags if owner is None else (*tags, _tag(identity))
    return memory.start_trajectory(goal, initiator=initiator_of(identity, owner), tags=named)


def trajectory_of(
    memory: Caliber, identities: Sequence[str], goal: str, tags: Sequence[str], owner: EntityRef | None = None
) -> list[Trajectory]:
    """Return the trajectories of a source under any of its identities, the one that the import continues last.

    A suspended one is resumed. If all have ended, a new one begins under the identity of the first; the records of the
    ended ones still count as imported.
    """
    by_identity = {identity: trajectories_of(memory, identity, owner) for identity in identities}
    found = [item for items in by_identity.values() for item in items]
    for item in found:
        if item.status in (TrajectoryStatus.ACTIVE, TrajectoryStatus.SUSPENDED):
            if item.status is TrajectoryStatus.SUSPENDED:
                memory.resume_trajectory(item.trajectory_id)
            return [*(other for other in found if other is not item), item]
    first = next((identity for identity, items in by_identity.items() if items), identities[0])
    return [*found, start_trajectory_of(memory, first, goal, tags, owner)]


def _id(identity: str) -> uuid.UUID:
    return uuid.uuid5(_NAMESPACE, identity)


def _tag(identity: str) -> str:
    return f"source:{_id(identity).hex}"


def open_scope_of(memory: Caliber, trajectory: Trajectory) -> Scope:
    """Return the scope that new turns go to."""
    return memory.current_scope(trajectory.trajectory_id) or memory.open_scope(trajectory.trajectory_id)


@managed
def importing(memory: Caliber, identity: str) -> Iterator[None]:
    """Block other imports of the same source while this one determines the new content.

    The lease outlives a crash by a minute. Should a long import outlive the lease, turns stay single all the same, by
    their idempotency keys.
    """
    resource = f"import:{_id(identity)}"
    holder = f"{socket.gethostname()}:{os.getpid()}"
    lock = memory.agents.locks.acquire(resource, holder=holder, lease_ms=_LEASE_MS, wait_ms=_WAIT_MS)
    try:
        # Records that another process imported before it released the lock must be visible here, whatever
        # read_consistency is.
        memory._engine.store.catch_up()
        yield
    finally:
        memory.agents.locks.release(LockToken(lock.resource, lock.token), holder=holder)
