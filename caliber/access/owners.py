"""Owners of tasks, and the entities and names that a principal counts as, from resident memory.

A task of a user is seen by that user, and by the agent that works on it; every other task by all. Source: C-422, K-194.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.identities import AGENTS, MERGED, OWN_KIND, entity_of
from caliber.config.access.rights import AccessConfig
from caliber.model.access import ADMIN, AgentRole, Identity, Principal, PrincipalKind
from caliber.model.errors import PermissionDenied
from caliber.model.knowledge import NOBODY
from caliber.model.references import EntityRef, EntityType
from caliber.model.trajectory import Trajectory
from caliber.model.trust import TrustLabel, least_trusted
from caliber.resident.memory import ResidentMemory
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relations import IDENTITY, SCOPE, TRAJECTORY
from caliber.storage.compile.codec import codec_of

if TYPE_CHECKING:
    from caliber.access.rights import RightRules, Rights
    from caliber.engine.engine import Engine

_PRINCIPALS: Final = {kind: principal for principal, kind in OWN_KIND.items()}
OF_PEOPLE: Final = (f"{PrincipalKind.HUMAN.value}:", f"{EntityType.USER.value}:", f"{ADMIN}:")
"""The beginnings of names of persons in lists of readers."""
ROLES: Final = frozenset(role.value for role in AgentRole)
OF_OTHERS: Final = tuple(
    f"{kind.value}:" for kind in (PrincipalKind.AGENT, PrincipalKind.SYSTEM, PrincipalKind.APPLICATION)
)
"""The beginnings of names of principals that are no persons."""
_TASK: Final = codec_of(SCOPE).index("trajectory_id")
_OWNERS: Final = tuple(codec_of(TRAJECTORY).index(name) for name in ("initiator_id", "user_id", "agent_id"))


@dataclass(frozen=True, slots=True, eq=False)
class Visibility:
    """The ids of the entities that a reader is, and its names as lists of readers have them.

    ``serves`` is true of the application, and of an administrator who acts for a user: they see what is hidden from
    no person.
    """

    ids: frozenset[bytes]
    names: frozenset[str]
    serves: bool = False
    granted: frozenset[bytes] = frozenset()
    """The ids of the tasks, sessions and records that others let this reader see."""
    rights: Rights | None = None
    """The rights of an agent by kind of record; None for every right."""
    used_by: tuple[bytes, ...] = (NOBODY.bytes,)
    """The ids under which uses are counted that this reader may know of: those of the user acted for, else its own."""

    def is_on(self, readers: Collection[str]) -> bool:
        """Return whether a list of readers lets this reader see a record."""
        if not self.names.isdisjoint(readers):
            return True
        # A name that is nobody's may have been a person's.
        return self.serves and all(name in ROLES or name.startswith(OF_OTHERS) for name in readers)


def private_to(entity: EntityRef) -> str:
    """Return the name of an entity in lists of readers, which no merge or new name of it changes."""
    return f"{entity.entity_type}:{entity.id}"


def names_of_reader(
    identities: RelationSnapshot, principal: Principal, user: EntityRef | str | None
) -> tuple[frozenset[bytes], frozenset[str], tuple[bytes, ...]]:
    """Return the ids and names of a principal, and of the ``user`` that it acts for, by reference or name.

    The last are the ids of the user alone, or else of the principal: the present one, and those merged into it.
    """
    names = set() if principal.is_admin else {principal.label}
    if principal.role is not None:
        names.add(principal.role.value)
    if isinstance(user, str):  # readers of records may list the name before it is a stored one
        names |= {Principal.user(user).label, Principal.user(EntityRef.plain_name(user)).label}
    entities = [] if user is None else [person(identities, user)]
    kind = OWN_KIND.get(principal.kind)
    if kind is not None and not principal.is_admin:
        entities.append(entity_named(identities, kind, principal.id))
    ids = []
    for entity in entities:
        ids.append(ids_of(identities, entity.id.bytes))
        names.add(private_to(entity))
        for known in _having(identities, "entity_id", entity.id.bytes):
            if known.namespace == MERGED:
                names.add(f"{entity.entity_type}:{known.name}")
            elif not known.namespace and known.entity == entity:
                names.add(f"{_PRINCIPALS[EntityType(entity.entity_type)].value}:{known.name}")
    return frozenset().union(*ids), frozenset(names), tuple(ids[0]) if ids else (NOBODY.bytes,)


def ids_of(identities: RelationSnapshot, entity: bytes) -> list[bytes]:
    """Return the id of an entity, and those of the entities that were merged into it."""

    def made() -> list[bytes]:
        known = _having(identities, "entity_id", entity)
        return [entity, *(uuid.UUID(each.name).bytes for each in known if each.namespace == MERGED)]

    return identities.once(entity, made)


def names_of_user(
    identities: RelationSnapshot, user: EntityRef | None, principal: Principal | None = None
) -> frozenset[str]:
    """Return the names by which records may call a user, and the id; none without a user.

    A user who reads is called by that name too, before any record made it a stored one.
    """
    if user is None:
        return frozenset()
    known = _having(identities, "entity_id", user.id.bytes)
    names = {str(user.id), *(each.name for each in known if not each.namespace and each.entity == user)}
    if principal is not None and principal.is_user and entity_named(identities, EntityType.USER, principal.id) == user:
        names.add(EntityRef.plain_name(principal.id))
    return frozenset(names)


def person(identities: RelationSnapshot, user: EntityRef | str) -> EntityRef:
    """Return the user that a name or reference stands for by now."""
    if isinstance(user, str):
        return entity_named(identities, EntityType.USER, user)
    return _stands_for(identities, user)


def _having(identities: RelationSnapshot, column: str, value: Any) -> Iterator[Identity]:
    """Yield the names whose ``column`` has a value."""
    code = identities.interned_codes(column).get(value, -1)
    decode = codec_of(IDENTITY).decode
    for row in np.flatnonzero((identities.column(column) == code) & identities.live_mask).tolist():
        yield decode(identities.packed(row))


def entity_named(identities: RelationSnapshot, kind: EntityType, name: str) -> EntityRef:
    """Return the entity that a name stands for by now."""
    plain = EntityRef.plain_name(name)
    for known in _having(identities, "name", plain):
        if known.entity.entity_type == kind and not known.namespace:
            return known.entity
    return _stands_for(identities, EntityRef.named(kind, plain))


def guest_in(
    engine: Engine,
    who: EntityRef | Principal,
    visibility: Callable[[], Visibility] | None = None,
    *,
    scope_id: uuid.UUID | None = None,
    trajectory_id: uuid.UUID | None = None,
    register: bool = False,
) -> uuid.UUID | None:
    """Return the id of a user, or of a principal with its ``visibility``, in others' tasks; None in its own.

    The task is one of a scope or of an id. Administrators and the application are guests nowhere. ``register`` stores
    the name of a principal that is a new one, which no transaction may do.
    """
    if isinstance(who, Principal) and (who.is_admin or who.kind not in OWN_KIND):
        return None
    snapshot, own = engine.snapshot(), set()
    tasks = snapshot[TRAJECTORY.name]
    key = None if trajectory_id is None else trajectory_id.bytes
    if scope_id is not None:
        scopes = snapshot[SCOPE.name]
        number = scopes.find(scope_id.bytes)
        key = None if number < 0 else scopes.packed(number)[_TASK]
    number = -1 if key is None else tasks.find(key)
    if number >= 0:
        row = tasks.packed(number)
        own = {row[at] for at in _OWNERS}
    if visibility is not None and not own.isdisjoint(visibility().ids):
        return None
    if isinstance(who, EntityRef):
        user = who
    elif register:
        user = entity_of(engine, who.id, OWN_KIND[who.kind])
    else:  # a transaction may ask: nothing reads the store
        user = entity_named(engine.memory.snapshot.relations[IDENTITY.name], OWN_KIND[who.kind], who.id)
    return None if user.id.bytes in own else user.id


def _stands_for(identities: RelationSnapshot, reference: EntityRef) -> EntityRef:
    for known in _having(identities, "name", str(reference.id)):
        if known.entity.entity_type == reference.entity_type and known.namespace == MERGED:
            return known.entity
    return reference


class TaskOwners:
    """The ids of the entities that may see each task of a user: a part of an open tenant, which follows its commits."""

    def __init__(
        self, memory: ResidentMemory, clock_us: Callable[[], int], access: AccessConfig, catalog: Catalog
    ) -> None:
        self.memory = memory
        self._access = access
        self._catalog = catalog
        self._rules: RightRules | None = None
        self.workers: dict[bytes, tuple[bytes, ...]] = {}
        """By task: the agents that started it or work on it, once the rights of an agent were asked for."""
        self.on_ended: Callable[[Sequence[tuple[bytes, int]]], object] = lambda _: None
        """Called with the grants that were seen to have ended by themselves: id, and when."""
        self._clock_us = clock_us
        self._latest_us = 0
        self._lock = threading.Lock()
        self.generation: Generation | None = None
        self.of: dict[bytes, tuple[bytes, ...] | None] = {}
        """By task: its user, and the agent that works on it; None for a task that everybody may see."""
        self.read = 0
        """The number of rows read: another one when a task was added since."""
        self.changes = 0
        """Another number when a known task may have another owner than before."""

    def rules(self) -> RightRules:
        """Return the rules of agents' rights by kind of record; from now on the agents of each task are known."""
        from caliber.access.rights import RightRules  # most processes act for no agent

        with self._lock:
            if self._rules is None:
                self._rules = RightRules(self._access, self._catalog)
                self.generation, self.read = None, 0  # the tasks are read again, for their agents
            return self._rules

    def now_us(self) -> int:
        """Return the present instant in microseconds, or the latest one asked for: what has ended stays ended."""
        self._latest_us = max(self._latest_us, self._clock_us())
        return self._latest_us

    def follow(self) -> None:
        """Read the tasks that were committed since the last call."""
        with self._lock:
            tasks = self.memory.snapshot[TRAJECTORY.name]
            if tasks.generation is not self.generation:
                self.generation, self.read, self.changes = tasks.generation, 0, self.changes + 1
            for key, owners in self._from(tasks, self.read):
                if self.of.get(key, owners) != owners:
                    self.changes += 1
                self.of[key] = owners
            for key, workers in self._workers(tasks, self.read) if self._rules else ():
                if self.workers.get(key, workers) != workers:
                    self.changes += 1
                self.workers[key] = workers
            self.read = max(self.read, tasks.length)

    @staticmethod
    def _from(tasks: RelationSnapshot, start: int) -> Iterator[tuple[bytes, tuple[bytes, ...] | None]]:
        """Yield each task from row ``start`` on, with its owners."""
        keys = tasks.ties()[start:].astype(">u8").tobytes()
        user = tasks.enum_code("initiator_type", EntityType.USER.value)
        by_user = (tasks.column("initiator_type")[start:] == user).tolist()
        columns = [
            [tasks.interned(name)[code] for code in tasks.column(name)[start:].tolist()]
            for name in ("initiator_id", "user_id", "agent_id")
        ]
        for at, (is_own, initiator, other, agent) in enumerate(zip(by_user, *columns, strict=True)):
            owner = initiator if is_own else other
            owners = None if owner is None else (owner,) if agent is None else (owner, agent)
            yield keys[16 * at : 16 * at + 16], owners

    @staticmethod
    def _workers(tasks: RelationSnapshot, start: int) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        """Yield each task from row ``start`` on, with the agents that started it or work on it."""
        at = [codec_of(TRAJECTORY).index(name) for name in ("initiator_type", "initiator_id", "agent_id")]
        place = tasks.layout.key_places[0]
        for number in range(start, tasks.length):
            row = tasks.packed(number)
            kind, initiator, agent = (row[column] for column in at)
            started = () if kind != AGENTS.value else (initiator,)
            yield row[place], started if agent is None else (*started, agent)


def own_names(identities: RelationSnapshot, principal: Principal) -> frozenset[str]:
    """Return the labels under which a principal wrote records: that of each of its names."""
    return names_of_reader(identities, principal, None)[1]


def may_change(created_by: str | None, principal: Principal, memory: ResidentMemory, *, ownership: str) -> bool:
    """Return whether ``principal`` may change or remove a record that it sees: its author, an admin, the application.

    The author is the one person under any of its names. Source: M-130, M-137.
    """
    if principal.serves:
        return True
    if created_by is None:
        return False
    author, _, role = created_by.rpartition("@")
    if ownership == "role" and principal.role is not None:
        return role == principal.role.value
    return author == principal.label or author in own_names(memory.snapshot.relations[IDENTITY.name], principal)


def may_correct_as_user(created_by: str | None, readers: Sequence[str] | None, names: Collection[str]) -> bool:
    """Return whether the user of these names may correct a record: its author, or the only person who reads it."""
    people = people_in(readers)
    return (bool(people) and people.issubset(names)) or (created_by or "").rpartition("@")[0] in names


def require_own_readers(
    label: str, names: Collection[str], readers: Sequence[str] | None, known: Sequence[str] | None = ()
) -> None:
    """Raise PermissionDenied where a user lets others read a note than the note's readers until now, ``known``."""
    if readers == known or (readers is not None and set(readers) <= {*names, *(known or ())}):
        return
    message = (
        f"{label} may not name other readers in visible_to: leave it out, and share the note with "
        "memory.access.grant(to=..., on=note_id)"
    )
    raise PermissionDenied(message, agent_id=label, action="name other readers of", resource="a note")


def require_own_trust(label: str, trust: TrustLabel, limit: TrustLabel, knobs: str = "trust.notes") -> None:
    """Raise PermissionDenied where a user trusts a record more than the limit, which ``knobs`` set."""
    if least_trusted(trust, limit) is not trust:
        message = f"{label} may not label a record {trust}: at most {limit}, by {knobs}; leave trust out"
        raise PermissionDenied(message, agent_id=label, action=f"label {trust}", resource="a record")


def author_of(principal: Principal) -> str:
    """Return how ``created_by`` names a principal: its label, ``@`` and its role, if it has one."""
    return f"{principal.label}@{principal.role.value if principal.role else ''}"


def default_readers(
    principal: Principal, access: AccessConfig, user: EntityRef | None = None
) -> tuple[str, ...] | None:
    """Return the readers of a note that names none: its author, and the roles of its author's role (M-131).

    A note for ``user`` is read by that user, and by the agent that wrote it. None: by everybody.
    """
    is_author = principal.kind is not PrincipalKind.SYSTEM and not principal.serves
    if user is not None:
        return (private_to(user), principal.label) if is_author else (private_to(user),)
    if principal.kind is PrincipalKind.HUMAN and is_author:
        return (principal.label,)
    if principal.kind is not PrincipalKind.AGENT or principal.role is None:
        return None
    return (principal.label, *access.default_visibility[principal.role.value])


def people_in(readers: Sequence[str] | None) -> set[str]:
    """Return the persons that a list of readers names; none for a record that everybody may read."""
    return {name for name in readers or () if name.startswith(OF_PEOPLE)}


def user_of(trajectory: Trajectory) -> EntityRef | None:
    """Return the user that a task is private to; None for one that everybody may see."""
    if trajectory.initiator.entity_type is EntityType.USER:
        return trajectory.initiator
    return None if trajectory.user_id is None else EntityRef(EntityType.USER, trajectory.user_id)


def user_of_row(tasks: RelationSnapshot, row: int) -> bytes | None:
    """Return the id of the user that a task is private to, as ``user_of`` does of an entity."""
    by_user = tasks.column("initiator_type")[row] == tasks.enum_code("initiator_type", EntityType.USER.value)
    name = "initiator_id" if by_user else "user_id"
    user: bytes | None = tasks.interned(name)[int(tasks.column(name)[row])]
    return user


def tasks_of_user(tasks: RelationSnapshot, user: bytes) -> NDArray[np.bool_]:
    """Return the mask of the tasks that are private to a user. Shapes: ``bool[length of the mirror]``"""
    by_user = tasks.column("initiator_type") == tasks.enum_code("initiator_type", EntityType.USER.value)
    starter, served = (tasks.interned_codes(name).get(user, -1) for name in ("initiator_id", "user_id"))
    own: NDArray[np.bool_] = tasks.column("user_id") == served
    own[by_user] = tasks.column("initiator_id")[by_user] == starter
    return own


def may_be_latest(task: Trajectory, principal: Principal, ids: Collection[bytes]) -> bool:
    """Return whether ``latest`` may name a task that a principal may work on: of a user only the user's own."""
    user = user_of(task)
    return not principal.is_user or (user is not None and user.id.bytes in ids)
