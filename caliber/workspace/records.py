"""Rights on to-dos and events of the calendar, links between to-dos, and the to-dos of an agent that leaves.

A list of readers, as notes have it, limits who sees a record. Source: P-042, P-045, C-422.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from caliber.access.identities import entity_of, require_registered, user_for
from caliber.access.owners import default_readers, may_change, private_to
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import CircularReference, ConstraintViolation, InvalidValue
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.model.workspace import Todo, TodoStatus
from caliber.schema.relation import Relation
from caliber.schema.relations import TODO, TODO_DEPENDENCY
from caliber.search.service import Searching
from caliber.storage.write.unit_of_work import UnitOfWork

R = TypeVar("R")


class SharedRecords:
    """The records of one relation, as one principal sees and changes them."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching, relation: Relation) -> None:
        self.engine = engine
        self.principal = principal
        self.relation = relation
        self._searching = searching

    def readers_for(self, user: str | EntityRef | None) -> Readers:
        """Return the readers of the principal, or of ``user``. Raises: PermissionDenied for another; NotRegistered."""
        self.engine.check_open()
        require_registered(self.engine, self.principal)
        return self._searching.seen_by(user).readers

    def placed(
        self, user: str | EntityRef | None, visible_to: Sequence[str] | None
    ) -> tuple[uuid.UUID | None, tuple[str, ...] | None]:
        """Return the user of a new record, if any, and its readers; None: everybody.

        Raises: InputError kinds; NotRegistered; PermissionDenied for a user who names another one, or readers.
        """
        engine, principal = self.engine, self.principal
        engine.check_open()
        require_registered(engine, principal)
        if user is not None and visible_to is not None:
            raise InvalidValue(field="user", reason="is given with visible_to; one of them says who sees it")
        if principal.is_user and visible_to is not None:
            raise principal.denied("name other readers of", f"a {self.relation.name}")
        whose = None if user is None else user_for(engine, principal, user)
        if whose is None and principal.is_user:
            whose = entity_of(engine, principal.id)
        if whose is not None:
            return whose.id, default_readers(principal, engine.config.access, whose)
        if visible_to is None:
            return None, None
        names = arguments.as_names(visible_to, "visible_to")
        if not names:
            raise InvalidValue(field="visible_to", reason="names nobody; leave it out to let everybody see it")
        return None, tuple(dict.fromkeys(names))

    def found(self, uow: UnitOfWork, key: uuid.UUID, readers: Readers) -> Any:
        """Return a record that may be seen, locked. Raises: NotFound."""
        uow.lock(self.relation, key.bytes)
        record = uow.find(self.relation, key.bytes)
        if record is None or not readers.allows_entity(self.relation, record):
            raise readers.not_found(self.relation.name, key)
        return record

    def read(self, key: uuid.UUID, readers: Readers) -> Any:
        """Return a record that may be seen, as it is stored now. Raises: NotFound."""
        record = self.engine.read(lambda uow: uow.find(self.relation, key.bytes))
        if record is None or not readers.allows_entity(self.relation, record):
            raise readers.not_found(self.relation.name, key)
        return record

    def visible(self, path: str, values: Sequence[Any], readers: Readers) -> list[Any]:
        """Return the records of an access path that may be seen, in its order."""
        plans = self.engine.store.plans[self.relation.name]
        with self.engine.store.read() as session:
            rows = session.run(plans.lists[path], tuple(values))
        return [plans.codec.decode(row) for row in rows if readers.allows_row(self.relation, row)]

    def require_own(self, record: Any, key: uuid.UUID, action: str) -> None:
        """Raise PermissionDenied unless the principal may change a record that it sees, as or for its author."""
        principal, ownership = self.principal, self.engine.config.access.ownership
        if principal.is_user and record.user_id is not None:
            return  # nobody else's can be seen
        if not may_change(record.created_by, principal, self.engine.memory, ownership=ownership):
            raise principal.denied(action, f"{self.relation.name} {key}")


def readable_by(readers: tuple[str, ...] | None, agent: EntityRef) -> tuple[str, ...] | None:
    """Return a list of readers with an agent among them, which is to work on the record."""
    name = private_to(agent)
    return readers if readers is None or name in readers else (*readers, name)


def not_readable_by(readers: tuple[str, ...] | None, agent: EntityRef) -> tuple[str, ...] | None:
    """Return a list of readers without an agent that ``readable_by`` added."""
    if readers is None:
        return None
    return tuple(each for each in readers if each != private_to(agent)) or readers


def awaited_by(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the to-dos that a to-do waits for."""
    return [link.depends_on for link in uow.select_path(TODO_DEPENDENCY, "list_by_todo", key.bytes)]


def parent_of(uow: UnitOfWork, key: uuid.UUID) -> Iterable[uuid.UUID]:
    """Return the to-do that a to-do belongs to, if any."""
    todo: Todo | None = uow.find(TODO, key.bytes)
    return () if todo is None or todo.parent_todo_id is None else (todo.parent_todo_id,)


def check_acyclic(
    uow: UnitOfWork, todo: uuid.UUID, other: uuid.UUID, beyond: Callable[[UnitOfWork, uuid.UUID], Iterable[uuid.UUID]]
) -> None:
    """Raise CircularReference if ``todo`` is reached from ``other``, or is it."""
    seen, open_ends = {other}, [other]
    while open_ends:
        key = open_ends.pop()
        if key == todo:
            raise CircularReference(entity_type=TODO.name, ids=[str(todo), str(other)])
        for found in beyond(uow, key):
            if found not in seen:
                seen.add(found)
                open_ends.append(found)


def check_ready(uow: UnitOfWork, todo: Todo) -> None:
    """Raise ConstraintViolation while a to-do that this one waits for is not completed."""
    if waits := waits_for(uow, todo):
        raise ConstraintViolation(constraint="todo_ready", reason=f"it waits for {waits} to-dos that are not completed")


def waits_for(uow: UnitOfWork, todo: Todo) -> int:
    """Return how many to-dos that are not completed a to-do waits for."""
    awaited = (uow.find(TODO, key.bytes) for key in awaited_by(uow, todo.todo_id))
    return sum(other is not None and other.status is not TodoStatus.COMPLETED for other in awaited)


def given(todo: Todo, agent: EntityRef) -> Todo:
    """Return a to-do that is assigned to an agent, which sees it while it is."""
    todo = taken(todo)
    return dataclasses.replace(todo, assigned_to=agent.id, visible_to=readable_by(todo.visible_to, agent))


def taken(todo: Todo) -> Todo:
    """Return a to-do that no agent is assigned to, and that its agent until now no longer sees as such."""
    if todo.assigned_to is None:
        return todo
    readers = not_readable_by(todo.visible_to, EntityRef(EntityType.AGENT, todo.assigned_to))
    return dataclasses.replace(todo, assigned_to=None, visible_to=readers)


def begun(todo: Todo) -> Todo:
    """Return a to-do that is in progress."""
    return dataclasses.replace(todo, status=TodoStatus.IN_PROGRESS)


def give_back(engine: Engine, uow: UnitOfWork, agent: EntityRef, by: str) -> None:
    """Take the to-dos that are still to do from an agent: they are pending, and no agent is assigned to them."""
    for each in uow.select_path(TODO, "list_by_agent", agent.id.bytes):
        if not each.is_open:
            continue  # it stays as it ended
        uow.lock(TODO, each.todo_id.bytes)
        todo: Todo | None = uow.find(TODO, each.todo_id.bytes)
        if todo is not None and todo.is_open and todo.assigned_to == agent.id:
            free = dataclasses.replace(taken(todo), status=TodoStatus.PENDING, updated_at=from_us(uow.now_us))
            emit_todo(engine, uow, uow.update(TODO, free), "assign", by)


def emit_todo(engine: Engine, uow: UnitOfWork, todo: Todo, action: str, by: str) -> None:
    """Emit the event of a change of a to-do that the principal ``by`` made."""
    payload = {"id": str(todo.todo_id), "action": action, "status": todo.status.value}
    if todo.assigned_to is not None:
        payload["assigned_to"] = str(todo.assigned_to)
    engine.emit(uow, "todo", principal=by, subject=(TODO.name, todo.todo_id), payload=payload)
