"""Handle method ``remember``, and facet ``memory.learning``: what was learnt from messages, and taking it back."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Final

import numpy as np

from caliber.access.identities import current
from caliber.access.owners import TaskOwners, user_of
from caliber.access.visibility import Readers
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.learning.learner import KIND, Learner
from caliber.learning.messages import Conversations, check_messages, digest, resent
from caliber.learning.owner import owner_of
from caliber.learning.undoing import batch_of, result_of, undo
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import ConstraintViolation, InvalidValue, NotFound, RequiredFieldMissing, Unavailable
from caliber.model.jobs import JobState
from caliber.model.joining import refuse_inside
from caliber.model.learning import Learned
from caliber.model.references import EntityRef, EntityType, Id, TrajectoryId
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Trajectory, Turn, TurnRole
from caliber.schema.relations import NOTE, SCOPE, TRAJECTORY, TURN
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.facet import TaskMethods
from caliber.trajectory.turns import NewTurn

_BEHIND: Final = 64
"""Turns behind an edited message that are still found."""


class LearningMethods(TaskMethods):
    """Methods of ``Caliber`` that learn from messages."""

    def remember(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        user: str | EntityRef | None = None,
        task: Id | None = None,
        wait: bool = True,
    ) -> Learned:
        """Append messages to a task, and learn facts and preferences about the user from them.

        Messages are mappings as providers write them. ``user`` is the person who talks, by name; ``task``
        the task, or None for the one of this user that was active last, or a new one. A message with an ``id`` is
        appended once to a task. Messages without are compared with the end of the task: those that it ends with are
        there already, so that a call may be repeated, and may bring the whole conversation each time. An answer that
        comes otherwise than it was, between messages that are there, replaces the stored one. Where a conversation that
        is brought whole goes on otherwise, with an edited question or for another answer, the turns behind leave it.

        The turns are committed first. With ``wait`` False a job learns from them behind the call, and
        ``memory.learning.get`` returns the result later; it goes on after a crash in either case. Only messages of
        the user teach. docs/learning.md.

        Raises: InputError kinds; NotFound; ConstraintViolation (a task that ended); Conflict (an id came with another
            message before); Unavailable (with ``learned_id``, ``task`` and ``turns`` once the turns are stored).
        """
        new = check_messages(self._engine.estimator, self._engine.config.trust.of_turn, messages)
        if arguments.as_flag(wait, "wait"):
            refuse_inside("remember learns from what is committed, unless wait=False", self._engine.store)
        with ExitStack() as stack:
            self._engine.check_open()
            settle = self._engine.part(Embeddings).settle
            stack.callback(self._engine.after_commit, settle)  # the next window finds what this call stored
            self._searching.readers.require_kind(SCOPE, TURN, NOTE, read=True)
            self._searching.readers.require_kind(TRAJECTORY, SCOPE, TURN, NOTE)
            try:
                owner, trajectory_id, every, added = self._store(user, task, new, wait)
            except (ConstraintViolation, NotFound):  # somebody recovered, ended or forgot the task meanwhile
                owner, trajectory_id, every, added = self._store(user, task, new, wait)
            learner = self._engine.part(Learner)
            keys = tuple(turn.turn_id for turn in every)
            job_id = added[0][0] if added else batch_of(self._engine, trajectory_id, every)
            if job_id is None:
                return Learned(None, trajectory_id, keys, JobState.DONE)
            try:
                if not added:
                    if wait:
                        learner.finish(job_id)
                    ids = owner_of(self._engine, owner).ids
                    return result_of(self._engine, job_id, every, lambda whose: whose in ids)
                if (claim := added[0][1]) is not None and learner.learn_now(claim) == 0:
                    return Learned(job_id, trajectory_id, keys, JobState.DONE)
                return result_of(self._engine, job_id, every)
            except Unavailable as error:
                reason = error.context.get("reason", error.kind)
                raise Unavailable(
                    f"the turns are stored, but learning from them stopped ({reason}): a job goes on with it; call "
                    "again with the same messages, or read memory.learning.get(learned_id)",
                    reason=reason,
                    learned_id=job_id,
                    task=trajectory_id,
                    turns=keys,
                ) from error

    def _store(
        self, user: str | EntityRef | None, task: Id | None, new: Sequence[NewTurn], now: bool
    ) -> tuple[EntityRef, TrajectoryId, list[Turn], list[tuple[uuid.UUID, Claim | None]]]:
        """Append what is new to the task; return its user, its id, all turns, and the job that learns, if there is."""
        owner, trajectory_id = self._conversation(user, task)
        learner = self._engine.part(Learner)
        added: list[tuple[uuid.UUID, Claim | None]] = []

        def also(uow: UnitOfWork, turns: list[Turn]) -> None:
            added[:] = [job for job in [learner.enqueue(uow, turns, owner, self._principal, now=now)] if job]

        author = None if user is None else owner
        every = self._tasks.retry(lambda: self._write(trajectory_id, new, also, author))
        return owner, trajectory_id, every, added

    def _conversation(self, user: str | EntityRef | None, task: Id | None) -> tuple[EntityRef, TrajectoryId]:
        """Return the user who talks, and the task that the messages belong to."""
        if task is not None:
            snapshot = self._engine.snapshot("latest")
            found = self._tasks.find(snapshot, TRAJECTORY.name, self._own(TRAJECTORY, arguments.as_uuid(task, "task")))
            assert isinstance(found, Trajectory)
            private_to = user_of(found)
            if private_to is None:
                reason = "is a task that everybody may see: leave it out, or start one with start_trajectory(user=...)"
                raise InvalidValue(field="task", reason=reason)
            # A user talks for nobody else, in whoever's task.
            talks = user is not None or self._principal.is_user
            owner = current(self._engine, self._initiator(user, None) if talks else private_to)
            key = found.trajectory_id
            readers = self._searching.readers.seeing_for(owner)
            if not (readers.sees_task(key.bytes) and readers.writes_task(key.bytes)):
                raise NotFound(f"task {key} was not found for {user}", entity_type=TRAJECTORY.name, id=key)
            return owner, found.trajectory_id
        owner = self._initiator(user, None)
        if owner.entity_type is not EntityType.USER:
            raise RequiredFieldMissing(
                "user is required: whose messages are these? Pass user='maria@example.com', or call it on"
                " memory.as_user('maria@example.com')",
                field="user",
            )
        return Conversations(self._engine, self._tasks, self._goes_on).of(owner, self._agent())

    def conversations(
        self, user: str | EntityRef | None = None, *, limit: int = 20, after: Trajectory | Id | None = None
    ) -> list[Trajectory]:
        """Return the tasks of a user, also ended ones: the one that was active last first, at most ``limit``.

        ``user`` is a name or reference; the handle of a user needs none. A page begins behind ``after``, a task or its
        id. Tasks below others are left out.

        Raises: InputError kinds; PermissionDenied for another user; NotFound for an ``after`` that there is not.
        """
        self._engine.check_open()
        if user is None and not self._principal.is_user:
            raise RequiredFieldMissing("user is required: whose conversations? such as 'maria'", field="user")
        most = arguments.as_whole(limit, "limit", 1)
        readers, tasks = self._searching.seen_by(user).readers, self._engine.snapshot("latest")[TRAJECTORY.name]
        rows = {
            row
            for name in ("initiator_id", "user_id")
            for code in (tasks.interned_codes(name).get(key, -1) for key in readers.used_by)
            for row in np.flatnonzero((tasks.column(name) == code) & tasks.live_mask).tolist()
        }
        found: list[Trajectory] = [self._engine.memory.entity(tasks, row) for row in rows]
        found = [each for each in found if each.parent_trajectory_id is None]
        found = [self._shown(TRAJECTORY, each) for each in found if readers.allows_entity(TRAJECTORY, each)]
        found.sort(key=_latest, reverse=True)
        if after is not None:
            if not isinstance(after, Trajectory):
                key = arguments.as_uuid(after, "after")
                after = next((each for each in found if each.trajectory_id == key), None)
                if after is None:
                    raise NotFound(entity_type=TRAJECTORY.name, id=key)
            last = _latest(after)
            found = [each for each in found if _latest(each) < last]
        return found[:most]

    def _goes_on(self, trajectory_id: TrajectoryId) -> bool:
        """Return whether the principal may go on with a task of the user that it acts for."""
        readers, key = self._searching.readers, trajectory_id.bytes
        return readers.serves_tasks or (readers.sees_task(key) and readers.writes_task(key))

    def _write(
        self,
        trajectory_id: TrajectoryId,
        new: Sequence[NewTurn],
        also: Callable[[UnitOfWork, list[Turn]], None],
        user: EntityRef | None,
    ) -> list[Turn]:
        """Append the messages that a task lacks, and let new answers replace old ones; return their turns, in order.

        The key of a message without an id holds its place in the task, so of two equal calls at once one appends. The
        instructions that a call begins with are those of the task: another text replaces the one before.
        """
        told = [at for at, each in enumerate(new) if each.role is not TurnRole.SYSTEM or each.idempotency_key]
        task, scope, tail, complete = self._tail(trajectory_id, len(told))
        now = from_us(self._engine.clock.now_us())
        found = resent([new[at] for at in told], tail, now, complete=complete)
        known = {told[at]: turn for at, turn in found.known.items()}
        own = self._author(user, task=trajectory_id)  # nobody's words are replaced by another
        replaced = {told[at]: turn for at, turn in found.replaced.items() if turn.author_id == own}
        gone = found.gone if all(turn.author_id == own for turn in found.gone) else []
        number, leads, fresh = task.turn_count, 0, dict[int, NewTurn]()
        for at, each in enumerate(new):
            if at in known or at in replaced:
                continue
            key = each.idempotency_key
            if key is None and each.role is TurnRole.SYSTEM:
                first = at == leads
                leads += first
                key = f"system {at}" if first else f"system {digest(each)}"
                stored = self._under(trajectory_id, key)
                if stored is not None and (stored.author_id == own or each.says(stored)):
                    (known if each.says(stored) else replaced)[at] = stored
                    continue
                if stored is not None:
                    key = f"system {digest(each)}"
                if any(key == other.idempotency_key for other in fresh.values()):
                    continue  # the same instructions twice in one call
            elif key is None:
                key = f"{number} {digest(each)}"
                number += 1
            fresh[at] = dataclasses.replace(each, idempotency_key=key)
        if fresh or replaced or gone:
            pairs = [(turn, new[at]) for at, turn in replaced.items()]
            scope = scope or self._tasks.open_scope(trajectory_id)
            changed = self._append(scope.scope_id, list(fresh.values()), None, also, user, pairs, gone)
            known.update(zip([*replaced, *fresh], changed, strict=True))
        return [known[at] for at in sorted(known)]

    def _under(self, trajectory_id: TrajectoryId, key: str) -> Turn | None:
        """Return the turn of a task that has an idempotency key."""
        by_key = ("trajectory_id", "idempotency_key")
        found: Turn | None = self._engine.read(lambda uow: uow.find_by(TURN, by_key, trajectory_id.bytes, key))
        return found if found is not None and found.rolled_back_at is None else None

    def _tail(self, trajectory_id: TrajectoryId, size: int) -> tuple[Trajectory, Scope | None, list[Turn], bool]:
        """Return a task, its open scope, the last turns that ``size`` messages may repeat, and whether these are all.

        Instructions of the system are not among them.
        """
        key = trajectory_id.bytes

        def read(uow: UnitOfWork) -> tuple[Trajectory, Scope | None, list[Turn], bool]:
            task: Trajectory = uow.get(TRAJECTORY, key)
            # Messages that bring a conversation up to an edited one are fewer than its turns.
            most = 2 * size + (_BEHIND if size > 2 else 0)
            first = max(0, task.turn_count - most) if size else task.turn_count
            # Mostly the open one holds as many as are asked for.
            scopes: list[Scope] = uow.select_path(SCOPE, "list_open", key)[-1:]
            current = scopes[0] if scopes else None
            if not scopes or scopes[0].start_turn > first:
                scopes = uow.select_path(SCOPE, "list_by_trajectory", key)
            found: list[Turn] = []
            for scope in reversed(scopes):
                block = (key, scope.scope_id.bytes, first, task.turn_count)
                found[:0] = uow.select_entities(TURN, "turn.block", *block)
                if scope.start_turn <= first:
                    break
            return task, current, [turn for turn in found if turn.role is not TurnRole.SYSTEM], not first

        return self._engine.read(read)


def _latest(task: Trajectory) -> tuple[datetime, bytes]:
    return task.last_activity_at, task.trajectory_id.bytes


class Learning:
    """The results of learning from messages, and undoing them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._jobs = engine.part(JobQueue)
        self._readers = Readers(engine.part(TaskOwners), principal)

    def get(self, learned_id: Id) -> Learned:
        """Return the result of a call of ``remember``, done or not, by ``Learned.learned_id``.

        Raises: NotFound.
        """
        self._engine.check_open()
        return self._own(arguments.as_uuid(learned_id, "learned_id"))

    def undo(self, learned_id: Id) -> Learned:
        """Take back everything that one call of ``remember`` learnt; the turns stay. A second time changes nothing.

        Raises: NotFound; PermissionDenied unless the principal is the user, the application or an admin; Conflict while
            it is not learnt yet, and when a fact was corrected since.
        """
        self._engine.check_open()
        self._readers.require_kind(NOTE)
        key = self._own(arguments.as_uuid(learned_id, "learned_id")).learned_id
        assert key is not None
        undo(self._engine, self._principal, key)
        return result_of(self._engine, key)

    def _own(self, key: uuid.UUID) -> Learned:
        """Return the result of a call, in a task that the principal may see. Raises: NotFound."""
        self._readers.require_kind(TURN, NOTE, read=True)
        readers, ids = self._readers, self._readers.visibility().ids
        may = not self._principal.is_user
        found = result_of(self._engine, key, reads=lambda whose: may or whose.bytes in ids)
        if not readers.serves_tasks and not readers.sees_task(found.trajectory_id.bytes):
            raise NotFound(entity_type=KIND, id=key)
        return found
