"""The conversation of a user: the task that ``remember`` goes on with when its caller names none, or a new one.

A task is looked up again in the transaction that starts one. That transaction is serialized by user, so that the first
messages of a user start one task, whichever threads and processes send them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final

from caliber.access.identities import keeping
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.model.ids import TrajectoryId
from caliber.model.references import EntityRef
from caliber.model.trajectory import Trajectory, TrajectoryStatus
from caliber.schema.relations import TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.service import Tasks

GOAL: Final = "Conversation"
"""The goal of a task that ``remember`` starts."""
_ALL: Final = 2**31 - 1


class Conversations:
    """The open conversations of users, as one principal goes on with them."""

    def __init__(self, engine: Engine, tasks: Tasks, goes_on: Callable[[TrajectoryId], bool]) -> None:
        """``goes_on``: whether the principal may write in a task; others are passed over."""
        self._engine = engine
        self._tasks = tasks
        self._goes_on = goes_on

    def of(self, owner: EntityRef, agent_id: uuid.UUID | None) -> tuple[EntityRef, TrajectoryId]:
        """Return a user, and the user's open task that was active last; a user without one gets a new task."""
        rows = self._engine.snapshot("latest")[TRAJECTORY.name]
        numbers = rows.group("initiator_id", owner.id.bytes).tolist()
        found = self._newest(owner, (self._engine.memory.entity(rows, number) for number in numbers))
        return (owner, found) if found is not None else self.start(owner, agent_id)

    def start(self, owner: EntityRef, agent_id: uuid.UUID | None) -> tuple[EntityRef, TrajectoryId]:
        """Start the task of a user, unless another caller has just done so."""
        who = keeping(self._engine, owner)
        codec = self._engine.store.plans[TRAJECTORY.name].codec
        status = codec.index("status")

        def work(uow: UnitOfWork) -> tuple[EntityRef, TrajectoryId, Claim | None]:
            user = who(uow)
            uow.serialize(f"caliber:conversation {user.id}")
            rows = uow.path_rows(TRAJECTORY, "list_by_initiator", str(user.entity_type), user.id.bytes, _ALL)
            active = (codec.decode(row) for row in rows if row[status] == TrajectoryStatus.ACTIVE)
            found = self._newest(user, active)
            if found is not None:
                return user, found, None
            started, claim = self._tasks.begin(uow, GOAL, user, agent_id, None)
            return user, started.trajectory_id, claim

        user, key, claim = self._engine.write(work)
        if claim is not None:
            self._tasks.after_commit(claim)
        return user, key

    def _newest(self, owner: EntityRef, tasks: Iterable[Trajectory]) -> TrajectoryId | None:
        """Return the conversation among the tasks of a user that was active last."""
        going = [
            (each.last_activity_at, each.trajectory_id)
            for each in tasks
            if each.status is TrajectoryStatus.ACTIVE and each.parent_trajectory_id is None and each.initiator == owner
            if self._goes_on(each.trajectory_id)
        ]
        return max(going)[1] if going else None
