"""Rules of which principal may see or change a record, by its readers, task and author, and masks of visible rows.

A list of readers names roles (``executor``), principals (``human:maria``) and entities (``user:<id>``). A record of a
user's task is seen by that user, the task's agent, and those who were granted it. Everybody may see the others; an
admin sees everything. The application sees what is hidden from no person, and acts for the user of a task that a call
names.

Source: M-118 to M-141, K-130 to K-132.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from caliber.access.granted import NEVER, NOTHING, granted_to
from caliber.access.identities import as_entity
from caliber.access.owners import OF_OTHERS, ROLES, TaskOwners, Visibility, names_of_reader, person
from caliber.engine.engine import Engine
from caliber.kernels.evaluator import Allowed
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.references import EntityRef, EntityType
from caliber.model.storage import ReadConsistency
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, GRANT, IDENTITY, SESSION, TRAJECTORY
from caliber.storage.compile.codec import Row, codec_of, dump_json

if TYPE_CHECKING:
    from caliber.access.kinds import KindLimits

_ACTING: Final = 256
"""The most users that one handle remembers verdicts of."""


Rows = TypeVar("Rows", bound=Mapping[str, Iterable[Row]])
"""Rows by relation."""


class Readers:
    """The records that a principal may see; distinct lists of readers, and tasks, are judged once.

    ``user`` is the one that an administrator, an agent or the application acts for.
    """

    __slots__ = (
        "_acting",
        "_identities",
        "_kinds",
        "_known",
        "_masks",
        "_memory",
        "_owners",
        "_principal",
        "_seen",
        "_user",
        "_writing",
        "everything",
        "limited",
        "serves_tasks",
    )

    def __init__(
        self,
        owners: TaskOwners,
        principal: Principal,
        user: EntityRef | str | None = None,
        *,
        only_writable: bool = False,
    ) -> None:
        self._owners = owners
        self._memory = owners.memory
        self._principal = principal
        self._user = user
        self.everything = principal.is_admin and user is None
        self.serves_tasks = principal.serves and user is None
        """True where a call about a task may name any task: it acts for the task's user then."""
        self._kinds: KindLimits | None = None
        if principal.kind is PrincipalKind.AGENT:
            from caliber.access.kinds import KindLimits  # most processes act for no agent

            self._kinds = KindLimits.of(owners, principal)
        self.limited = self._kinds is not None
        """True where rights by kind may hide values of a record."""
        self._writing: Readers | None = self if only_writable else None
        # As one, so that threads may share it: a visibility, and what it was made of.
        self._seen = _Seen(None, None, None, -1, NEVER, Visibility(frozenset(), frozenset(), principal.serves))
        self._acting: dict[EntityRef | str, Readers] = {}
        self._masks: dict[str, tuple[RelationSnapshot, tuple[Visibility, int, int], Allowed | None]] = {}
        # By relation and column: replaced as one, so that threads may share it.
        self._known: dict[tuple[str, str], _Judged] = {}

    def acting_for(self, trajectory_id: uuid.UUID) -> Readers:
        """Return the readers of a window of a task: with those of the task's user; for who acts for users only they.

        Raises: NotFound for a task that the principal may not see.
        """
        visibility = self.visibility()
        owners = self._owners.of.get(trajectory_id.bytes)
        readable = self._kinds is None or self._kinds.reads_task(visibility.rights, trajectory_id.bytes)
        if self.serves_tasks:
            if owners is None:
                return self
        elif not readable or not self.sees_task(trajectory_id.bytes):
            raise NotFound(entity_type=TRAJECTORY.name, id=trajectory_id)
        elif owners is None or owners[0] in visibility.ids or visibility.ids.isdisjoint(owners):
            return self  # who was granted the task sees no other record of its user
        return self._with_user(EntityRef(EntityType.USER, uuid.UUID(bytes=owners[0])))

    def seeing_for(self, user: EntityRef | str) -> Readers:
        """Return the readers of a call for a user by reference or name: those of a window of that user's task.

        A name that is not stored sees what is shared, and what lists it.

        Raises: DTypeError, InvalidValue; PermissionDenied for a user who names another one.
        """
        if isinstance(user, EntityRef):
            user = as_entity(user, EntityType.USER, "user")
        else:
            EntityRef.named(EntityType.USER, arguments.as_text(user, "user", limit=arguments.MAX_NAME_CHARS))
        principal = self._principal
        if principal.is_user:
            identities = self._memory.snapshot.relations[IDENTITY.name]
            if person(identities, user) != person(identities, principal.id):
                raise principal.denied("act for", "another user")
            return self
        return self._with_user(user)

    def _with_user(self, user: EntityRef | str) -> Readers:
        known = self._acting.get(user)
        if known is None:
            if len(self._acting) >= _ACTING:
                self._acting.clear()
            known = self._acting[user] = Readers(self._owners, self._principal, user)
        return known

    def visibility(self, snapshot: ResidentSnapshot | None = None) -> Visibility:
        """Return the entities and names of the principal by now, or at a snapshot that was just taken."""
        relations, owners = (snapshot or self._memory.snapshot).relations, self._owners
        tasks = relations[TRAJECTORY.name]
        if tasks.generation is not owners.generation or tasks.length > owners.read:
            owners.follow()
        identities, grants, seen = relations[IDENTITY.name], relations[GRANT.name], self._seen
        agents = None if self._kinds is None else relations[AGENT.name]
        if (
            identities is not seen.identities
            or agents is not seen.agents
            or grants is not seen.grants
            or seen.tasks not in (-1, owners.read)
            or (seen.until_us < NEVER and owners.now_us() >= seen.until_us)
        ):
            ids, names, used_by = names_of_reader(identities, self._principal, self._user)
            granted, read = NOTHING, owners.read
            if ids and grants.length:
                sessions, only_writable = relations[SESSION.name], self._writing is self
                granted = granted_to(grants, sessions, tasks, owners.of, ids, owners.now_us(), writing=only_writable)
                if granted.ended:
                    owners.on_ended(granted.ended)
            visibility = seen.visibility
            rights = None if self._kinds is None or agents is None else self._kinds.now(identities, agents)
            if (ids, names, granted.keys, rights) != (
                visibility.ids,
                visibility.names,
                visibility.granted,
                visibility.rights,
            ):
                visibility = Visibility(ids, names, self._principal.serves, granted.keys, rights, used_by)
            seen = _Seen(identities, agents, grants, read if granted.keys else -1, granted.until_us, visibility)
            self._seen = seen
        return seen.visibility

    used_by = property(
        lambda self: self.visibility().used_by, doc="The ids whose uses of records may show in an answer."
    )

    def writing(self) -> Readers:
        """Return the readers of what the principal may write to, as far as grants limit that."""
        if self.everything or not self.visibility().granted:
            return self
        if self._writing is None:
            self._writing = Readers(self._owners, self._principal, self._user, only_writable=True)
        return self._writing

    def require_write(self, relation: Relation, row: Row, below: Relation | None = None) -> None:
        """Raise PermissionDenied for a visible record that the principal may only read.

        ``below`` is the relation of records that are written below it, if not the record itself is.
        """
        if self._kinds is not None:
            self._kinds.require_write(self.visibility().rights, below or relation, relation, row)
        writing = self.writing()
        if writing is not self and not writing.allows_row(relation, row):
            key = uuid.UUID(bytes=row[codec_of(relation).index(relation.key[0])])
            raise self._principal.denied("write to", f"{relation.name} {key}")

    # --- rights of agents by kind ----------------------------------------------------------------

    def require_kind(self, *relations: Relation, read: bool = False) -> None:
        """Raise PermissionDenied unless the principal may write records of each relation; ``read``: read all."""
        if self._kinds is not None:
            self._kinds.require(self.visibility().rights, relations, read=read)

    def reads_subject(self, relation: str, key: uuid.UUID | None) -> bool:
        """Return whether rights by kind let the principal see an event about a record of a relation."""
        return self._kinds is None or self._kinds.reads_subject(self.visibility().rights, relation, key)

    def hides_kinds(self) -> bool:
        """Return whether rights by kind hide some records from the principal."""
        rights = self.visibility().rights
        return rights is not None and rights.hides

    def within(self, snapshot: ResidentSnapshot) -> ResidentSnapshot:
        """Return a snapshot without the records of kinds that the principal may not read."""
        return snapshot if self._kinds is None else self._kinds.within(self.visibility().rights, snapshot)

    def shown(self, relation: Relation, entity: Any) -> Any:
        """Return a record that may be seen, without values that follow from records of kinds that may not."""
        if self._kinds is None or not relation.follows:
            return entity
        codec, rights = codec_of(relation), self.visibility().rights
        row = codec.encode(entity)
        return entity if (part := self._kinds.without_hidden(rights, relation, row)) is row else codec.decode(part)

    def require_columns(self, relation: Relation, names: Iterable[str]) -> None:
        """Raise PermissionDenied for columns whose values rights by kind hide of some record that may be seen."""
        if self._kinds is not None:
            self._kinds.require_columns(self.visibility().rights, relation, names)

    def readable(self, catalog: Catalog, rows: Rows) -> Rows:
        """Return rows by relation without those of kinds that the principal may not read."""
        if self._kinds is None:
            return rows
        return self._kinds.readable(self.visibility().rights, catalog, rows)  # type: ignore[return-value]

    def writes_task(self, key: bytes) -> bool:
        """Return whether the principal may write to a task that it sees."""
        if self._kinds is not None and not self._kinds.writes_task(self.visibility().rights, key):
            return False
        writing = self if self.everything else self.writing()
        return writing is self or writing.sees_task(key)

    # --- whole relations -------------------------------------------------------------------------

    def over(self, rows: RelationSnapshot, *, any_kind: bool = False, texts: bool = True) -> Allowed | None:
        """Return the mask over the rows of a relation, or None: everything.

        ``any_kind``: whatever rights by kind. Without ``texts`` also the rows of which those hide the text.
        """
        relation = rows.layout.relation
        if self.everything or not relation.rights.hides:
            return None
        if self._kinds is not None and not any_kind:
            return self._kinds.narrowed(self.visibility().rights, rows, self.over(rows, any_kind=True), texts=texts)
        columns = [name for name in (relation.rights.readers, relation.rights.task) if name is not None]
        if relation.rights.owner is not None or relation.rights.ends:
            seen = np.fromiter((self.allows(rows, number) for number in range(rows.length)), np.bool_, rows.length)
        elif len(columns) == 1:
            verdicts = self._verdicts(rows, columns[0])
            if verdicts.all():
                return None
            granted = self._granted(rows) if relation.rights.readers is not None or relation.rights.grantable else []
            mask = Allowed(rows.column(columns[0]), verdicts, interned=True)
            if not granted:
                return mask
            seen = mask.mask()
            seen[granted] = True
        else:
            seen = np.ones(rows.length, np.bool_)
            for name in columns:
                verdicts = self._verdicts(rows, name)
                if not verdicts.all():
                    seen &= verdicts[rows.column(name)]
        return None if seen.all() else Allowed(np.arange(rows.length, dtype=np.int32), seen)

    def _granted(self, rows: RelationSnapshot) -> list[int]:
        """Return the rows of a relation that the principal was granted one by one."""
        return [number for key in self.visibility().granted if (number := rows.find(key)) >= 0]

    def _verdicts(self, rows: RelationSnapshot, column: str) -> NDArray[np.bool_]:
        """Return for each distinct value of a column of readers, or of tasks, whether it lets the principal see."""
        visibility, values = self.visibility(), rows.interned(column)
        place, of_tasks = (rows.relation.name, column), column == rows.relation.rights.task
        known = self._known.get(place)
        # A compaction makes a new list with other numbers; within one, values are only ever added.
        if (
            known is None
            or known.values is not values
            or known.visibility is not visibility
            or (of_tasks and known.changes != self._owners.changes)
        ):
            known = _Judged(values, visibility, self._owners.changes, self._owners.read, np.zeros(0, np.bool_), ())
        elif len(known.verdicts) == len(values) and not (known.missing and known.read != self._owners.read):
            return known.verdicts
        judge = self.judge_task if of_tasks else self.judge_list
        verdicts = np.empty(len(values), np.bool_)
        start = len(known.verdicts)
        verdicts[:start] = known.verdicts
        missing = []
        for at in (*known.missing, *range(start, len(verdicts))):
            verdict = judge(visibility, values[at])
            verdicts[at] = bool(verdict)
            if verdict is None:
                missing.append(at)
        self._known[place] = _Judged(values, visibility, known.changes, self._owners.read, verdicts, tuple(missing))
        return verdicts

    def judge_list(self, visibility: Visibility, text: Any) -> bool:
        return text is None or visibility.is_on(json.loads(text))

    def judge_task(self, visibility: Visibility, key: Any) -> bool | None:
        """Return whether a task may be seen; None for one that memory does not have yet, or no more."""
        if key is None:
            return True
        owners = self._owners.of.get(key, ())
        if owners == ():
            return None
        return owners is None or any(owner in visibility.ids for owner in owners) or key in visibility.granted

    def masks(self, snapshot: ResidentSnapshot) -> dict[str, Allowed]:
        """Return the mask of each relation with text of which not everything may be seen, by name."""
        masks: dict[str, Allowed] = {}
        if self.everything:
            return masks
        visibility = self.visibility()
        made_of = (visibility, self._owners.changes, self._owners.read)
        for name, rows in snapshot.relations.items():
            relation = rows.layout.relation
            if relation.rights.readers is None and relation.rights.task is None:
                continue
            kept = self._masks.get(name)
            if kept is None or kept[0] is not rows or kept[1] != made_of:
                kept = self._masks[name] = (rows, made_of, self.over(rows))
            if kept[2] is not None:
                masks[name] = kept[2]
        return masks

    def stated(self, *, archived: bool = False) -> str:
        """Return the parameter of a search in the database, as JSON.

        ``names`` are those of the principal in lists of readers, ``others`` the names and beginnings of names of which
        a list may consist that hides nothing from a person; ``ids`` are the entities whose tasks it may see, without
        them all; ``granted`` the tasks and records that it was granted; ``archived`` asks for archived records too.
        """
        found: dict[str, Any] = {"used_by": [key.hex().upper() for key in self.used_by]}
        if archived:
            found["archived"] = "true"
        if not self.everything:
            visibility = self.visibility()
            found["names"] = sorted(visibility.names)
            if visibility.serves:
                found["others"] = [*sorted(ROLES), *OF_OTHERS]
            found["ids"] = sorted(key.hex().upper() for key in visibility.ids)
            if visibility.rights is not None:
                found |= visibility.rights.stated()
            if visibility.granted:
                found["granted"] = sorted(key.hex().upper() for key in visibility.granted)
        return dump_json(found)

    # --- single records --------------------------------------------------------------------------

    def allows(self, rows: RelationSnapshot, number: int) -> bool:
        """Return whether one row may be seen."""
        return self.everything or self.allows_row(rows.relation, rows.packed(number))

    def allows_row(self, relation: Relation, row: Row) -> bool:
        """Return whether a row as it is stored may be seen."""
        if self.everything or not relation.rights.hides:
            return True
        if self._kinds is not None and not self._kinds.may_read(self.visibility().rights, relation, row):
            return False
        index = codec_of(relation).index
        owned = relation.rights.readers is not None or relation.rights.owner is not None
        if (owned or relation.rights.grantable) and row[index(relation.key[0])] in self.visibility().granted:
            return True
        if relation.rights.readers is not None and not self._listed(row[index(relation.rights.readers)]):
            return False
        if relation.rights.task is not None and not self.sees_task(row[index(relation.rights.task)]):
            return False
        parts = {each.field: dict(each.parts) for each in relation.composites}
        if relation.rights.owner is not None:
            kind, by = (row[index(parts[relation.rights.owner.by][name])] for name in ("entity_type", "id"))
            owner = by if kind == EntityType.USER.value else _at(row, index, relation.rights.owner.user)
            if owner is not None and self.visibility().ids.isdisjoint(
                (owner, _at(row, index, relation.rights.owner.agent))
            ):
                return False
        return all(self.sees(row[index(parts[end]["id"])]) for end in relation.rights.ends)

    def allows_entity(self, relation: Relation, entity: Any) -> bool:
        """Return whether a record may be seen."""
        if self.everything or not relation.rights.hides:
            return True
        return self.allows_row(relation, codec_of(relation).encode(entity))

    def allows_change(self, relation: Relation, entity: Any) -> bool:
        """Return whether a call may name a record to change it, or to write below it: it may be seen, or its user be
        acted for.
        """
        return (self.serves_tasks and not relation.rights.listed) or self.allows_entity(relation, entity)

    def not_found(self, entity_type: str, key: uuid.UUID) -> NotFound:
        """Return the error for a record that does not exist or is hidden: one text for both.

        The application is told that it may name a user.
        """
        if self.everything or not self.serves_tasks:
            return NotFound(entity_type=entity_type, id=key)
        hint = f"{entity_type} {key} was not found in what everybody may see; pass user= to read what is of a user"
        return NotFound(hint, entity_type=entity_type, id=key)

    def sees(self, key: bytes, *, unknown: bool = True) -> bool:
        """Return whether the record of an id may be seen; ``unknown`` for an id without a record in memory."""
        found = self._memory.snapshot.locate(key)
        return unknown if found is None else self.allows(*found)

    def sees_task(self, key: bytes | None) -> bool:
        """Return whether the records of a task may be seen, or of none."""
        if self.everything or key is None:
            return True
        return bool(self.judge_task(self.visibility(), key))

    def user_of_tasks(self, tasks: Sequence[uuid.UUID]) -> EntityRef | None:
        """Return the user that these tasks are private to; None if they are shared.

        Raises: InvalidValue for tasks of several users; NotFound for one that is not there: it may have been a user's
        """
        rows = self._memory.snapshot[TRAJECTORY.name]
        for task in tasks:
            if rows.find(task.bytes) < 0:
                raise NotFound(entity_type=TRAJECTORY.name, id=task)
        self.visibility()
        owners = {found[0] for task in tasks if (found := self._owners.of.get(task.bytes)) is not None}
        if len(owners) > 1:
            reason = "are tasks of several users; pass user or visible_to to state who may read the note"
            raise InvalidValue(field="source_trajectory_ids", reason=reason)
        return EntityRef(EntityType.USER, uuid.UUID(bytes=owners.pop())) if owners else None

    def reads_window(self, trajectory_id: uuid.UUID, label: str) -> bool:
        """Return whether who acts for users may read a window that the principal ``label`` assembled of a task.

        It may be the user's own window, or one that was assembled for the task's user: an administrator's windows of
        shared tasks hold every user's records.
        """
        if not self.sees_task(trajectory_id.bytes):
            return False
        is_private = self._owners.of.get(trajectory_id.bytes) is not None
        return label in self.visibility().names or (is_private and label == self._principal.label)

    def _listed(self, names: Any) -> bool:
        """Return whether a list of readers as it is stored, JSON or None, lets the principal see a record."""
        return self.everything or self.judge_list(self.visibility(), names)


def _at(row: Row, index: Callable[[str], int], column: str | None) -> Any:
    return None if column is None else row[index(column)]


def require(
    engine: Engine,
    readers: Readers,
    relation: Relation,
    key: uuid.UUID,
    *,
    write: bool = False,
    below: Relation | None = None,
) -> None:
    """Raise NotFound unless a task or a record below it exists and may be seen, or its user be acted for.

    Raises: PermissionDenied with ``write``, for one that the principal may only read, or below which it may not write
        records of relation ``below``.
    """
    if readers.serves_tasks:
        return  # the transaction finds it, or does not
    for consistency in (None, ReadConsistency.LATEST):  # another process may have just written it
        rows = engine.snapshot(consistency)[relation.name]
        number = rows.find(key.bytes)
        if number >= 0 and readers.allows(rows, number):
            if write:
                readers.require_write(relation, rows.packed(number), below)
            return
    raise NotFound(entity_type=relation.name, id=key)


class _Seen(NamedTuple):
    """A visibility, and what it depends on: ``tasks`` is the number of tasks read, or -1 where none matters."""

    identities: RelationSnapshot | None
    agents: RelationSnapshot | None
    grants: RelationSnapshot | None
    tasks: int
    until_us: int
    visibility: Visibility


class _Judged(NamedTuple):
    """Verdicts about the distinct values of a column, and what they depend on."""

    values: list[Any]
    visibility: Visibility
    changes: int
    read: int
    verdicts: NDArray[np.bool_]
    missing: tuple[int, ...]
    """The places of tasks that memory did not have."""
