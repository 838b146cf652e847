"""Facet ``memory.identities``: names of users and agents, resolved to entities, and merging of duplicate ones.

A name resolves to the same entity in every process, also before it was ever stored: the id is made of kind, namespace
and name. Further names of one person, and the ids of entities that were merged, are rows of relation ``identity``.

Source: O-17, K-194, K-195, C-420.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from caliber.engine.engine import Engine
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Identity, MergedIdentities, Principal, PrincipalKind
from caliber.model.errors import Conflict, InvalidValue, NotRegistered
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType, IdentityId
from caliber.model.storage import ReadConsistency
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, IDENTITY
from caliber.storage.compile.codec import Row
from caliber.storage.write.unit_of_work import UnitOfWork

MERGED: Final = ":merged"
"""The namespace of ids of entities that were merged into another; no application's namespace begins with a colon."""

_KINDS: Final = (EntityType.USER, EntityType.AGENT)
OWN_KIND: Final = {PrincipalKind.HUMAN: EntityType.USER, PrincipalKind.AGENT: EntityType.AGENT}
"""The kind of entity that a principal is, by name, in the records of a store."""
AGENTS: Final = OWN_KIND[PrincipalKind.AGENT]
"""The kind of entity that principals are which are agents."""
_BY_NAME: Final = ("entity_type", "namespace", "name")
_LOCKED: Final = "caliber:identities"


def entity_of(
    engine: Engine,
    who: str | EntityRef,
    kind: EntityType = EntityType.USER,
    *,
    field: str = "user",
    namespace: str = "",
    register: bool = True,
) -> EntityRef:
    """Return the entity of a name, or the one that a reference stands for by now; a new name is stored.

    Raises: DTypeError; InvalidValue for an empty or overlong name, or a reference of another kind.
    """
    if isinstance(who, EntityRef):
        return current(engine, as_entity(who, kind, field))
    derived = EntityRef.named(kind, arguments.as_text(who, field, limit=arguments.MAX_NAME_CHARS), namespace)
    name = EntityRef.plain_name(who)
    found = _found(engine, kind, namespace, name)
    if found is not None:
        return found.entity
    if register:

        def work(uow: UnitOfWork) -> None:
            uow.serialize(_LOCKED)
            # The entity may have been merged before it had this name, as one that was only referred to.
            _insert(uow, current_in(uow, derived), namespace, name)

        engine.write(work)
        found = _found(engine, kind, namespace, name)  # another process may have been first, with another entity
    return current(engine, derived) if found is None else found.entity


def as_entity(reference: EntityRef, kind: EntityType, field: str) -> EntityRef:
    """Return a reference to an entity of a kind. Raises: DTypeError, InvalidValue."""
    found = arguments.as_reference(reference, field)
    if found.entity_type is not kind:
        raise InvalidValue(field=field, reason=f"is a reference to {found.entity_type}; it must be to {kind}")
    return found


def user_for(engine: Engine, principal: Principal, user: str | EntityRef) -> EntityRef:
    """Return the user that a call is for: agents and administrators may act for any, a user for itself alone.

    Raises: as ``entity_of``; PermissionDenied.
    """
    if not principal.is_user:
        return entity_of(engine, user)
    own = entity_of(engine, principal.id)
    if entity_of(engine, user, register=False) != own:
        raise principal.denied("act for", "another user")
    return own


def current(engine: Engine, reference: EntityRef) -> EntityRef:
    """Return the entity that a reference stands for by now: the one its own was merged into, or its own."""
    if reference.entity_type not in _KINDS or not engine.memory.snapshot[IDENTITY.name].count():
        return reference
    found = _found(engine, reference.entity_type, MERGED, str(reference.id))
    return reference if found is None else found.entity


def keeping(engine: Engine, reference: EntityRef) -> Callable[[UnitOfWork], EntityRef]:
    """Return a function that gives the entity of a reference in a transaction, until whose end no other takes it over.

    Otherwise a record could be written with an entity whose records a merge has just renamed.
    """
    if reference.entity_type not in _KINDS or not engine.memory.snapshot[IDENTITY.name].count():
        return lambda _: reference

    def kept(uow: UnitOfWork) -> EntityRef:
        entity = reference
        while True:
            uow.serialize(f"{_LOCKED} {entity.id}")
            before, entity = entity, current_in(uow, entity)
            if entity == before:
                return entity

    return kept


def names_of(engine: Engine, entity: EntityRef) -> list[Identity]:
    """Return the names of an entity, the oldest first."""
    return [each for each in identities_of(engine, entity) if each.namespace != MERGED]


def labels_of_agent(engine: Engine, agent: EntityRef) -> set[str]:
    """Return the labels of an agent: locks, tasks and values of the workspace name it by them."""
    names = {each.name for each in names_of(engine, agent)}
    rows = engine.snapshot(ReadConsistency.LATEST)[AGENT.name]
    number = rows.find(agent.id.bytes)
    if number >= 0:
        names.add(engine.memory.entity(rows, number).name)
    return {Principal.agent(name).label for name in names}


def requires_registration(engine: Engine, principal: Principal) -> bool:
    """Return whether a principal is an agent that acts only once the registry has it."""
    is_agent = principal.kind is PrincipalKind.AGENT and not principal.serves
    return is_agent and engine.config.agents.registration == "required"


def require_registered(engine: Engine, principal: Principal) -> None:
    """Raise NotRegistered for an agent that the registry does not have, where the configuration asks for that."""
    if requires_registration(engine, principal):
        agent = entity_of(engine, principal.id, AGENTS, field="agent", register=False)
        for consistency in (None, ReadConsistency.LATEST):  # another process may have just registered it
            if engine.snapshot(consistency)[AGENT.name].find(agent.id.bytes) >= 0:
                return
        raise not_registered(agent)


def not_registered(agent: EntityRef) -> NotRegistered:
    """Return the refusal of an agent that the registry does not have."""
    return NotRegistered(
        f"agent {agent.id} is not registered: register it with memory.agents.register(...)", agent_id=str(agent.id)
    )


def identities_in(uow: UnitOfWork, entity: EntityRef) -> list[Identity]:
    """Return the names and merged ids of an entity as a transaction has them, the oldest first."""
    found: list[Identity] = uow.select_path(IDENTITY, "list_by_entity", entity.id.bytes)
    return [each for each in found if each.entity == entity]


def merged_into(engine: Engine, entity: EntityRef) -> list[uuid.UUID]:
    """Return the ids of the entities that were merged into an entity."""
    return [uuid.UUID(each.name) for each in identities_of(engine, entity) if each.namespace == MERGED]


def identities_of(engine: Engine, entity: EntityRef) -> list[Identity]:
    """Return the names of an entity, and the ids of those that were merged into it, in namespace ``MERGED``."""
    return engine.read(lambda uow: identities_in(uow, entity))


class Identities:
    """The names of users and agents, as one principal uses them."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def resolve(
        self, name: str | EntityRef, *, kind: EntityType | str = EntityType.USER, namespace: str = ""
    ) -> EntityRef:
        """Return the user or agent of a name, in every process the same one; a new name is stored.

        ``kind`` is ``user`` or ``agent``; ``namespace`` tells names of one source from those of another, such as
        ``auth0``. Of a reference, return what it stands for by now. Names are compared in Unicode form NFC, without
        white space around them: ``maria`` and ``Maria`` are two users. A user resolves own names alone.

        Raises: InputError kinds; PermissionDenied for a user, for any name that is not known as that user's.
        """
        self._engine.check_open()
        wanted, within = _kind(kind), _namespace(namespace)
        if not self._principal.is_user:
            return entity_of(self._engine, name, wanted, field="name", namespace=within)
        own = entity_of(self._engine, self._principal.id, EntityType.USER, field="name")
        found = entity_of(self._engine, name, wanted, field="name", namespace=within, register=False)
        if found != own:
            raise self._principal.denied("resolve", "a name of others")
        return own

    def add(
        self, name: str, to: str | EntityRef, *, kind: EntityType | str = EntityType.USER, namespace: str = ""
    ) -> Identity:
        """Give the user or agent ``to`` one more name, and return it; the same name again changes nothing.

        ``namespace`` is that of the new name; a name given for ``to`` is of the namespace ``""``.

        Raises: InputError kinds; PermissionDenied unless the principal is an admin or the application; Conflict for a
            name that another entity has: ``merge`` them if they are one person.
        """
        self._check("name", by_application=True)
        wanted, within = _kind(kind), _namespace(namespace)
        EntityRef.named(wanted, arguments.as_text(name, "name", limit=arguments.MAX_NAME_CHARS), within)
        plain = EntityRef.plain_name(name)
        entity = entity_of(self._engine, to, wanted, field="to")

        def work(uow: UnitOfWork) -> Identity:
            uow.serialize(_LOCKED)
            owner = current_in(uow, entity)
            found: Identity | None = uow.find_by(IDENTITY, _BY_NAME, wanted.value, within, plain)
            if found is None:
                return _insert(uow, owner, within, plain)
            if found.entity != owner:
                reason = f"is a name of {wanted} {found.entity.id}; merge the two if they are one person"
                raise Conflict(entity_type=f"{wanted} name", id=found.identity_id, reason=reason)
            return found

        return self._engine.write(work)

    def names(
        self, of: str | EntityRef, *, kind: EntityType | str = EntityType.USER, namespace: str = ""
    ) -> list[Identity]:
        """Return every name of a user or agent, the oldest first; none for a name that was never stored.

        Raises: InputError kinds; PermissionDenied unless the principal is an admin or the application.
        """
        self._check("list", by_application=True)
        within = _namespace(namespace)
        entity = entity_of(self._engine, of, _kind(kind), field="of", namespace=within, register=False)
        return names_of(self._engine, entity)

    def merge(
        self, duplicate: str | EntityRef, into: str | EntityRef, *, kind: EntityType | str = EntityType.USER
    ) -> MergedIdentities:
        """Make two users or agents one: the names and tasks of ``duplicate`` are those of ``into`` from now on.

        One transaction changes every record, and logs an audit event. References to the old entity are understood
        still. ``remaining`` counts the records that name the old one afterwards: 0, but for delegations and handoffs
        of an agent that is merged into one that is not registered. The same merge again changes nothing.

        Raises: InputError kinds; PermissionDenied unless the principal is an admin.
        """
        self._check("merge")
        wanted = _kind(kind)
        old = entity_of(self._engine, duplicate, wanted, field="duplicate")
        entity = entity_of(self._engine, into, wanted, field="into")

        def work(uow: UnitOfWork) -> MergedIdentities:
            uow.serialize(_LOCKED)
            # Another merge may have been first: what both stand for is read again under the lock.
            left, right = current_in(uow, old), current_in(uow, entity)
            if left == right:
                return MergedIdentities(old, right, (), {}, 0)
            uow.serialize(f"{_LOCKED} {left.id}")  # records that name it are written before, or after
            return self._merge(uow, left, right)

        return self._engine.write(work)

    def _merge(self, uow: UnitOfWork, old: EntityRef, entity: EntityRef) -> MergedIdentities:
        moved: list[Identity] = uow.select_path(IDENTITY, "list_by_entity", old.id.bytes)
        moved = [each for each in moved if each.entity == old]
        now = from_us(uow.now_us)
        for each in moved:
            uow.update(IDENTITY, dataclasses.replace(each, entity=entity, updated_at=now))
        _insert(uow, entity, MERGED, str(old.id))
        records: Counter[str] = Counter()
        for relation, field, row in _naming(uow, old):
            if relation.versioned and self._renamed(uow, relation, field, row, old, entity):
                records[relation.name] += 1
        remaining = sum(1 for _ in _naming(uow, old))
        names = tuple(each.name for each in moved if each.namespace != MERGED)
        payload = {"old": str(old.id), "entity": str(entity.id), "records": dict(records)}
        by, about = self._principal.label, (entity.entity_type, entity.id)
        self._engine.audit(uow, EventType.IDENTITY_MERGE, principal=by, subject=about, payload=payload)
        return MergedIdentities(old, entity, names, dict(records), remaining)

    def _renamed(
        self, uow: UnitOfWork, relation: Relation, field: str, row: Row, old: EntityRef, entity: EntityRef
    ) -> bool:
        """Have a field of one record refer to ``entity``, if it still refers to ``old``; return whether it did."""
        key = self._engine.store.plans[relation.name].codec.key_of(row)
        # Not the row of the page: others may change it meanwhile, and this locks it.
        record: Any = uow.find(relation, *key)
        held = None if record is None else getattr(record, field)
        if held not in (old, old.id) or not _may_hold(uow, relation, field, entity):
            return False
        uow.update(relation, dataclasses.replace(record, **{field: entity if held == old else entity.id}))
        return True

    def _check(self, action: str, *, by_application: bool = False) -> None:
        self._engine.check_open()
        if not (by_application and self._principal.is_application):
            self._principal.require_admin(action, "identities")


def _naming(uow: UnitOfWork, entity: EntityRef) -> Iterator[tuple[Relation, str, Row]]:
    """Yield each field of a record, as this transaction has it, that refers to an entity."""
    for relation in uow.catalog.relations:
        first = int(relation.ordinal)
        # Its name, the place of its id, and that of the kind if it may be one of several.
        fields: list[tuple[str, int, int | None]] = [
            (column.name, first + at, None) for at, column in enumerate(relation.columns) if column.identity
        ]
        for composite in relation.composites:
            if composite.cls is EntityRef:
                columns = dict(composite.parts)
                kind, key = (first + relation.index(columns[part]) for part in ("entity_type", "id"))
                fields.append((composite.field, key, kind))
        for row in itertools.chain.from_iterable(uow.pages(relation)) if fields else ():
            for field, key_at, kind_at in fields:
                held = uow.current(relation, row)
                is_of_kind = kind_at is None or held[kind_at] == str(entity.entity_type)
                if is_of_kind and held[key_at] == entity.id.bytes:
                    yield relation, field, held


def _may_hold(uow: UnitOfWork, relation: Relation, field: str, entity: EntityRef) -> bool:
    """Return whether the relation that a field refers to, if there is one, has an entity: an agent is registered."""
    others = [uow.catalog.by_name[each.relation] for each in relation.foreign_keys if each.column == field]
    return all(uow.find(other, entity.id.bytes) is not None for other in others)


def current_in(uow: UnitOfWork, reference: EntityRef) -> EntityRef:
    """Return the entity that a reference stands for by now, as a transaction has it; see ``current``."""
    found: Identity | None = uow.find_by(IDENTITY, _BY_NAME, str(reference.entity_type), MERGED, str(reference.id))
    return reference if found is None else found.entity


def named_in(uow: UnitOfWork, kind: EntityType, name: str) -> EntityRef:
    """Return the entity of a name, as a transaction has it; see ``entity_of``. Raises: InputError kinds."""
    found: Identity | None = uow.find_by(IDENTITY, _BY_NAME, kind.value, "", EntityRef.plain_name(name))
    return current_in(uow, EntityRef.named(kind, name)) if found is None else found.entity


def _found(engine: Engine, kind: EntityType | str, namespace: str, name: str) -> Identity | None:
    return engine.read(lambda uow: uow.find_by(IDENTITY, _BY_NAME, str(kind), namespace, name))


def _insert(uow: UnitOfWork, entity: EntityRef, namespace: str, name: str) -> Identity:
    now = from_us(uow.now_us)
    identity = Identity(IdentityId(uuid7()), entity, namespace, name, now, now)
    uow.insert_new(IDENTITY, identity)
    return identity


def _kind(value: EntityType | str) -> EntityType:
    kind = arguments.as_enum(value, EntityType, "kind")
    if kind not in _KINDS:
        raise InvalidValue(field="kind", reason="must be user or agent")
    return kind


def _namespace(value: str) -> str:
    namespace = arguments.as_text(value, "namespace", allow_empty=True, limit=arguments.MAX_NAME_CHARS)
    if namespace.startswith(":"):
        raise InvalidValue(field="namespace", reason="must not begin with a colon")
    return namespace
