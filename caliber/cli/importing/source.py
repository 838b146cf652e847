"""Where imported things belong: one trajectory a source, found again by who started it.

A source (a repository, a conversation, a folder) has an identity text; the UUID made of it starts the source's
trajectory. So a second import finds the first one's trajectory through an index, and goes on there.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from caliber.model.entities import EntityRef, Scope, Trajectory
from caliber.model.enums import EntityType, TrajectoryStatus
from caliber.runtime.caliber import Caliber

_NAMESPACE = uuid.UUID("6f0e2c1a-54f5-5b0a-9a0c-0d6f3a6f7b11")
_LEASE_MS = 60_000
_WAIT_MS = 2_000


@dataclass(slots=True)
class Imported:
    """What an import did. ``known`` was there already."""

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
        """How many records are new."""
        return self.turns + self.notes + self.artifacts


def initiator_of(identity: str) -> EntityRef:
    """Return who starts the trajectory of a source: the source itself."""
    return EntityRef(EntityType.SYSTEM, uuid.uuid5(_NAMESPACE, identity))


def trajectories_of(memory: Caliber, identity: str) -> list[Trajectory]:
    """Return the trajectories a source started, oldest first."""
    who = initiator_of(identity)
    found: list[Trajectory] = memory.storage.trajectories.list_by_initiator(who.entity_type, who.id)
    return found


def trajectory_of(memory: Caliber, identities: Sequence[str], goal: str, tags: Sequence[str]) -> list[Trajectory]:
    """Return the trajectories of a source known under any of its identities, the one to go on with last.

    A suspended one is resumed. Where all have ended, a new one begins under the same initiator; what the ended ones
    hold is known all the same.
    """
    found = [item for identity in identities for item in trajectories_of(memory, identity)]
    for item in found:
        if item.status in (TrajectoryStatus.ACTIVE, TrajectoryStatus.SUSPENDED):
            if item.status is TrajectoryStatus.SUSPENDED:
                memory.resume_trajectory(item.trajectory_id)
            return [*(other for other in found if other is not item), item]
    initiator = found[0].initiator if found else initiator_of(identities[0])
    return [*found, memory.start_trajectory(goal, initiator=initiator, tags=tags)]


def open_scope_of(memory: Caliber, trajectory: Trajectory) -> Scope:
    """Return the scope that new turns go to."""
    return memory.current_scope(trajectory.trajectory_id) or memory.open_scope(trajectory.trajectory_id)


@contextmanager
def importing(memory: Caliber, identity: str) -> Iterator[None]:
    """Keep other imports of the same source out while this one decides what is new.

    The lease outlives a crash by a minute. Should a long import outlive the lease, turns stay single all the same,
    by their idempotency keys.
    """
    resource = f"import:{uuid.uuid5(_NAMESPACE, identity)}"
    holder = f"{socket.gethostname()}:{os.getpid()}"
    lock = memory.agents.acquire(resource, holder=holder, lease_ms=_LEASE_MS, wait_ms=_WAIT_MS)
    from caliber.model.entities import LockToken

    try:
        # What another process imported until it let go of the lock must be seen here, whatever read_consistency says.
        memory._engine.store.catch_up()
        yield
    finally:
        memory.agents.release(LockToken(lock.resource, lock.token), holder=holder)
