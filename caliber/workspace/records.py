"""Rights on to-dos and events of the calendar: those of a user are that user's, the others everybody's.

A list of readers, as notes have it, limits who sees a record. Source: P-042, P-045, C-422.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from caliber.access.identities import entity_of, require_registered, user_for
from caliber.access.owners import default_readers, may_change, private_to
from caliber.access.visibility import Readers
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal
from caliber.model.errors import InvalidValue, PermissionDenied
from caliber.model.references import EntityRef
from caliber.schema.relation import Relation
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
            raise PermissionDenied(
                agent_id=principal.label, action="name other readers of", resource=f"a {self.relation.name}"
            )
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
            resource = f"{self.relation.name} {key}"
            raise PermissionDenied(agent_id=principal.label, action=action, resource=resource)


def readable_by(readers: tuple[str, ...] | None, agent: EntityRef) -> tuple[str, ...] | None:
    """Return a list of readers with an agent among them, which is to work on the record."""
    name = private_to(agent)
    return readers if readers is None or name in readers else (*readers, name)


def not_readable_by(readers: tuple[str, ...] | None, agent: EntityRef) -> tuple[str, ...] | None:
    """Return a list of readers without an agent that ``readable_by`` added."""
    if readers is None:
        return None
    return tuple(each for each in readers if each != private_to(agent)) or readers
