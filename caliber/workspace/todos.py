"""To-dos of the workspace: created, claimed by one agent, assigned, completed or cancelled, and what they wait for.

A claim locks the to-do's row, so that of two agents one gets it. One transaction at a time changes what a to-do waits
for and belongs to, so that two writers cannot close a circle between them. Source: P-042, P-043, P-063, P-064.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from types import EllipsisType
from typing import Any, Final

from caliber.access.acting import acting_agent, agent_named, registered, require_assignable
from caliber.access.owners import author_of
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments, states
from caliber.model.access import Principal, PrincipalKind
from caliber.model.errors import Conflict, ConstraintViolation, InvalidValue, NotFound
from caliber.model.references import EntityRef, Id, TodoId
from caliber.model.time import from_us
from caliber.model.workspace import Todo, TodoDependency, TodoKind, TodoPriority, TodoStatus
from caliber.schema.relations import AGENT, TODO, TODO_DEPENDENCY
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.workspace.records import (
    SharedRecords,
    awaited_by,
    begun,
    check_acyclic,
    check_ready,
    emit_todo,
    given,
    parent_of,
    taken,
    waits_for,
)

_LINKS: Final = "caliber:workspace:todo-links"
"""Serializes changes of what to-dos wait for and belong to."""
_URGENT_FIRST: Final = tuple(reversed(TodoPriority))

Change = Callable[[UnitOfWork, Todo], Todo]


class Todos:
    """The to-dos that one principal sees, adds and works on. An agent's own run is a trajectory, not a to-do."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._records = SharedRecords(engine, principal, searching, TODO)

    # --- adding and changing ---------------------------------------------------------------------

    def add(
        self,
        title: str,
        *,
        description: str = "",
        kind: TodoKind | str | None = None,
        priority: TodoPriority | str = TodoPriority.MEDIUM,
        due_at: datetime | None = None,
        scheduled_at: datetime | None = None,
        parent: Id | None = None,
        depends_on: Sequence[Id] = (),
        user: str | EntityRef | None = None,
        visible_to: Sequence[str] | None = None,
    ) -> Todo:
        """Add a pending to-do that no agent is assigned to, and return it.

        A to-do for ``user``, or of a user, has the ``kind`` user, and is seen by that user and the agent that does it;
        other to-dos are shared work of the agents, of kind coordination, seen by everybody, or by ``visible_to``. It
        is ready once each to-do that it ``depends_on`` is completed.

        Raises: InputError kinds; NotFound for a parent or a to-do to wait for that is hidden or does not exist;
            PermissionDenied for another user.
        """
        user_id, readers = self._records.placed(user, visible_to)
        of_user = TodoKind.COORDINATION if user_id is None else TodoKind.USER
        if kind is not None and arguments.as_enum(kind, TodoKind, "kind") is not of_user:
            needs = "needs user" if user_id is None else "is user: the to-do is for a user"
            raise InvalidValue(field="kind", reason=needs)
        above = None if parent is None else arguments.as_uuid(parent, "parent")
        awaited = tuple(dict.fromkeys(arguments.as_uuids(depends_on, "depends_on")))
        now = from_us(self._engine.clock.now_us())
        made = Todo(
            todo_id=TodoId(uuid7()),
            title=arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS),
            description=arguments.as_text(description, "description", allow_empty=True),
            kind=of_user,
            status=TodoStatus.PENDING,
            priority=arguments.as_enum(priority, TodoPriority, "priority"),
            created_at=now,
            updated_at=now,
            due_at=arguments.as_instant(due_at, "due_at"),
            scheduled_at=arguments.as_instant(scheduled_at, "scheduled_at"),
            parent_todo_id=None if above is None else TodoId(above),
            user_id=user_id,
            visible_to=readers,
            created_by=author_of(self._principal),
        )
        seen, embeddings = self._records.readers_for(user), self._engine.part(Embeddings)

        def work(uow: UnitOfWork) -> Todo:
            at = from_us(uow.now_us)
            todo = dataclasses.replace(made, created_at=at, updated_at=at)
            others = {*awaited} if above is None else {*awaited, above}
            for other in sorted(others, key=lambda each: each.bytes):  # in one order, as by every writer
                self._records.found(uow, other, seen)  # a new to-do closes no circle
            uow.insert(TODO, todo)
            embeddings.attach(uow, TODO.name, todo.todo_id, todo.title, vectors)
            for other in awaited:
                uow.insert_new(TODO_DEPENDENCY, TodoDependency(todo.todo_id, TodoId(other), at))
            emit_todo(self._engine, uow, todo, "add", self._principal.label)
            return todo

        vectors = embeddings.vector(TODO.name, made.title)
        return self._engine.write(work)

    def update(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        title: str | EllipsisType = ...,
        description: str | EllipsisType = ...,
        priority: TodoPriority | str | EllipsisType = ...,
        due_at: datetime | EllipsisType | None = ...,
        scheduled_at: datetime | EllipsisType | None = ...,
        parent: Id | EllipsisType | None = ...,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """Change a to-do, and return it as stored; fields that are left out stay, None clears one.

        Raises: InputError kinds; NotFound; PermissionDenied unless it is the principal's own, or one that it is
            assigned to; CircularReference for a ``parent`` that belongs to the to-do; Conflict when ``version`` is no
            longer that of the to-do.
        """
        fields: dict[str, Any] = {}
        if not isinstance(title, EllipsisType):
            fields["title"] = arguments.as_text(title, "title", limit=arguments.MAX_NAME_CHARS)
        if not isinstance(description, EllipsisType):
            fields["description"] = arguments.as_text(description, "description", allow_empty=True)
        if not isinstance(priority, EllipsisType):
            fields["priority"] = arguments.as_enum(priority, TodoPriority, "priority")
        if not isinstance(due_at, EllipsisType):
            fields["due_at"] = arguments.as_instant(due_at, "due_at")
        if not isinstance(scheduled_at, EllipsisType):
            fields["scheduled_at"] = arguments.as_instant(scheduled_at, "scheduled_at")
        above = None if isinstance(parent, EllipsisType) or parent is None else arguments.as_uuid(parent, "parent")
        moves = not isinstance(parent, EllipsisType)
        if moves:
            fields["parent_todo_id"] = above
        readers = self._records.readers_for(user)

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            if above is not None:
                self._records.found(uow, above, readers)
                check_acyclic(uow, todo.todo_id, above, parent_of)
            return dataclasses.replace(todo, **fields)

        return self._change(id, user, version, "update", change, links=moves, title=fields.get("title"))

    # --- working on it ---------------------------------------------------------------------------

    def claim(
        self,
        id: Id | None = None,  # noqa: A002  (as ``Caliber.get``)
        *,
        agent: str | EntityRef | None = None,
        user: str | EntityRef | None = None,
    ) -> Todo | None:
        """Take an unassigned to-do for an agent, and begin it; of several agents that try, one gets it.

        Without ``id`` it is the most urgent of the to-dos that are ready and seen, the oldest first; None if there is
        none. The handle's own agent claims; the application names it in ``agent``.

        Raises: InputError kinds; NotFound; PermissionDenied for another agent; Conflict for a to-do that was claimed;
            ConstraintViolation for one that is not ready; InvalidStateTransition for one that has ended;
            NotRegistered.
        """
        acting = acting_agent(self._engine, self._principal, agent)
        readers = self._records.readers_for(user)
        wanted = None if id is None else arguments.as_uuid(id, "id")

        def take(uow: UnitOfWork, key: uuid.UUID) -> Todo:
            todo: Todo = self._records.found(uow, key, readers)
            if todo.assigned_to is not None:
                raise Conflict(entity_type=TODO.name, id=key, reason="an agent has it already", retryable=False)
            states.TODO.check(todo.status, TodoStatus.IN_PROGRESS)
            check_ready(uow, todo)
            uow.lock(AGENT, acting.ref.id.bytes)  # archiving it waits, and gives back what it takes here
            registered(uow, self._engine.config, acting)
            return self._stored(uow, begun(given(todo, acting.ref)), "claim")

        if wanted is not None:
            return self._engine.write(lambda uow: take(uow, wanted))
        for priority in _URGENT_FIRST:
            for todo in self._records.visible("list_by_status", (TodoStatus.PENDING.value, priority.value), readers):
                if todo.assigned_to is None and self._is_due(todo):
                    try:
                        return self._engine.write(functools.partial(take, key=todo.todo_id))
                    except (Conflict, ConstraintViolation, NotFound):
                        continue  # another agent was quicker, or it is not ready
        return None

    def assign(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        agent: str | EntityRef | None,
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """Assign a to-do to an agent, another one than before too; None takes it from its agent. It is pending then.

        Raises: InputError kinds; NotFound; NotRegistered; PermissionDenied unless the to-do is the principal's own, or
            one that it is assigned to; InvalidStateTransition for a to-do that has ended; Conflict.
        """
        named = None if agent is None else agent_named(self._engine, agent)

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            if not todo.is_open:
                states.TODO.check(todo.status, TodoStatus.IN_PROGRESS)
            if named is None:
                return dataclasses.replace(taken(todo), status=TodoStatus.PENDING)
            if todo.assigned_to == named.ref.id:
                return todo
            uow.lock(AGENT, named.ref.id.bytes)
            if uow.find(AGENT, named.ref.id.bytes) is None:
                registered(uow, self._engine.config, named)
            else:
                require_assignable(uow, named.ref)
            return dataclasses.replace(given(todo, named.ref), status=TodoStatus.PENDING)

        return self._change(id, user, version, "assign", change)

    def start(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """Begin a to-do that is assigned, or a user's own.

        Raises: as ``assign``; ConstraintViolation for a to-do that is not ready.
        """

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            if todo.assigned_to is None and todo.kind is TodoKind.COORDINATION:
                reason = "nobody is assigned to it: claim it, or assign it to an agent"
                raise ConstraintViolation(constraint="todo_assigned", reason=reason)
            states.TODO.check(todo.status, TodoStatus.IN_PROGRESS)
            check_ready(uow, todo)
            return begun(todo)

        return self._change(id, user, version, "start", change)

    def complete(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """Note that a to-do is done: those that wait for it alone are ready then. Raises: as ``start``."""

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            states.TODO.check(todo.status, TodoStatus.COMPLETED)
            check_ready(uow, todo)
            return dataclasses.replace(todo, status=TodoStatus.COMPLETED, completed_at=from_us(uow.now_us))

        return self._change(id, user, version, "complete", change)

    def cancel(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """End a to-do that need not be done; those that wait for it stay waiting. Raises: as ``assign``."""

        def change(_: UnitOfWork, todo: Todo) -> Todo:
            states.TODO.check(todo.status, TodoStatus.CANCELLED)
            return dataclasses.replace(todo, status=TodoStatus.CANCELLED)

        return self._change(id, user, version, "cancel", change)

    def reopen(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
        version: int | None = None,
    ) -> Todo:
        """Let a to-do that was completed or cancelled be pending again, without an agent. Raises: as ``assign``."""

        def change(_: UnitOfWork, todo: Todo) -> Todo:
            if todo.is_open:
                raise ConstraintViolation(constraint="todo_ended", reason="the to-do has not ended")
            return dataclasses.replace(taken(todo), status=TodoStatus.PENDING, completed_at=None)

        return self._change(id, user, version, "reopen", change)

    # --- what it waits for -----------------------------------------------------------------------

    def depend(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        on: Id,
        *,
        user: str | EntityRef | None = None,
    ) -> bool:
        """Let a to-do wait for another one; return False if it does already.

        Raises: InputError kinds; NotFound; PermissionDenied as ``update``; CircularReference for a to-do that waits for
            this one, directly or not.
        """
        other = arguments.as_uuid(on, "on")
        readers = self._records.readers_for(user)
        added = False

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            nonlocal added
            self._records.found(uow, other, readers)
            check_acyclic(uow, todo.todo_id, other, awaited_by)
            link = TodoDependency(todo.todo_id, TodoId(other), from_us(uow.now_us))
            added = uow.insert_new(TODO_DEPENDENCY, link)
            return todo

        self._change(id, user, None, "depend", change, links=True)
        return added

    def release(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        on: Id,
        *,
        user: str | EntityRef | None = None,
    ) -> bool:
        """Let a to-do no longer wait for another one; return False if it did not. Raises: as ``update``."""
        other = arguments.as_uuid(on, "on")
        removed = False

        def change(uow: UnitOfWork, todo: Todo) -> Todo:
            nonlocal removed
            link = uow.find(TODO_DEPENDENCY, todo.todo_id.bytes, other.bytes)
            removed = link is not None
            if link is not None:
                uow.delete(TODO_DEPENDENCY, link)
            return todo

        self._change(id, user, None, "release", change, links=True)
        return removed

    def dependencies(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
    ) -> list[Todo]:
        """Return the to-dos that a to-do waits for, done or not, as far as the principal may see them.

        Raises: InputError kinds; NotFound.
        """
        key = arguments.as_uuid(id, "id")
        readers = self._records.readers_for(user)
        self._records.read(key, readers)
        found = self._engine.read(lambda uow: [uow.find(TODO, other.bytes) for other in awaited_by(uow, key)])
        return [todo for todo in found if todo is not None and readers.allows_entity(TODO, todo)]

    # --- reading ---------------------------------------------------------------------------------

    def get(
        self,
        id: Id,  # noqa: A002  (as ``Caliber.get``)
        *,
        user: str | EntityRef | None = None,
    ) -> Todo:
        """Return a to-do. Raises: InputError kinds; NotFound, also for one that the principal may not see."""
        key = arguments.as_uuid(id, "id")
        todo: Todo = self._records.read(key, self._records.readers_for(user))
        return todo

    def list(
        self,
        *,
        status: TodoStatus | str | None = None,
        agent: str | EntityRef | None = None,
        parent: Id | None = None,
        ready: bool = False,
        user: str | EntityRef | None = None,
        limit: int = 100,
    ) -> list[Todo]:
        """Return the to-dos that are still to do, or those of one status: the most urgent first, then the oldest.

        ``agent``: those assigned to it. ``parent``: the parts of a to-do. ``ready``: pending ones without an agent that
        wait for nothing, neither for a to-do nor for ``scheduled_at``.

        Raises: InputError kinds; PermissionDenied for another user.
        """
        wanted = None if status is None else arguments.as_enum(status, TodoStatus, "status")
        above = None if parent is None else arguments.as_uuid(parent, "parent")
        assigned = None if agent is None else agent_named(self._engine, agent).ref.id
        only_ready, most = arguments.as_flag(ready, "ready"), arguments.as_whole(limit, "limit", 1)
        states = (TodoStatus.PENDING, TodoStatus.IN_PROGRESS) if wanted is None else (wanted,)
        readers = self._records.readers_for(user)
        out: list[Todo] = []
        for priority in _URGENT_FIRST:
            of_rank: list[Todo] = []
            for each in states:
                of_rank += self._records.visible("list_by_status", (each.value, priority.value), readers)
            for todo in sorted(of_rank, key=lambda todo: (todo.created_at, todo.todo_id.bytes)):
                if len(out) == most:
                    return out
                fits = assigned in (None, todo.assigned_to) and above in (None, todo.parent_todo_id)
                if fits and (not only_ready or self._is_ready(todo)):
                    out.append(todo)
        return out

    # --- within a transaction ----------------------------------------------------------------------

    def _change(
        self,
        id: Id,  # noqa: A002
        user: str | EntityRef | None,
        version: int | None,
        action: str,
        change: Change,
        *,
        links: bool = False,
        title: str | None = None,
    ) -> Todo:
        """Change a to-do that is the principal's own or assigned to it.

        ``links``: what it waits for or belongs to; ``title``: its new one, to be embedded.
        """
        key, expected = arguments.as_uuid(id, "id"), arguments.as_version(version)
        readers, embeddings = self._records.readers_for(user), self._engine.part(Embeddings)
        # Before the transaction: it may read, and in memory a reader waits for the writer.
        is_agent = self._principal.kind is PrincipalKind.AGENT
        me = acting_agent(self._engine, self._principal).ref.id if is_agent else None

        def work(uow: UnitOfWork) -> Todo:
            if links:
                uow.serialize(_LINKS)
            todo: Todo = self._records.found(uow, key, readers)
            if me is None or todo.assigned_to != me:
                self._records.require_own(todo, key, action)
            arguments.check_version(TODO.name, key, todo.version, expected)
            changed = change(uow, todo)
            stored = todo if changed is todo else self._stored(uow, changed, action)
            embeddings.attach(uow, TODO.name, key, stored.title, vectors)
            return stored

        vectors = None if title is None else embeddings.vector(TODO.name, title)
        return self._engine.write(work)

    def _stored(self, uow: UnitOfWork, todo: Todo, action: str) -> Todo:
        stored: Todo = uow.update(TODO, dataclasses.replace(todo, updated_at=from_us(uow.now_us)))
        emit_todo(self._engine, uow, stored, action, self._principal.label)
        return stored

    # --- ready or not ------------------------------------------------------------------------------

    def _is_due(self, todo: Todo) -> bool:
        return todo.scheduled_at is None or todo.scheduled_at <= from_us(self._engine.clock.now_us())

    def _is_ready(self, todo: Todo) -> bool:
        if todo.status is not TodoStatus.PENDING or todo.assigned_to is not None or not self._is_due(todo):
            return False
        return not self._engine.read(lambda uow: waits_for(uow, todo))
