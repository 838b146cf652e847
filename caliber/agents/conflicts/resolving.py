"""Facet ``memory.agents.conflicts``: conflicts between agents are reported, listed, escalated and resolved.

Source: C-376, C-384, C-417, C-432 to C-435, C-441.
"""

from __future__ import annotations

import builtins
import dataclasses
import uuid
from typing import Any, Final, Literal

from caliber.access.identities import not_registered, require_registered
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers, require
from caliber.agents.acting import agent_named
from caliber.agents.conflicts import recording
from caliber.agents.conflicts.recording import Side
from caliber.engine.engine import Engine
from caliber.model import arguments, states
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents.registry import Agent, AgentId
from caliber.model.errors import InvalidValue, NotFound, PermissionDenied, RequiredFieldMissing
from caliber.model.events import EventType
from caliber.model.ids import Id, TrajectoryId
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, RecordConflict
from caliber.model.references import EntityRef
from caliber.model.time import from_us
from caliber.pcp.conflict_sides import audit, resolved, strategy_of
from caliber.pcp.conflicts import Conflicts
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, CONFLICT, TRAJECTORY
from caliber.storage.compile.session import StatementSession
from caliber.storage.write.unit_of_work import UnitOfWork

_OPEN: Final = (ConflictStatus.DETECTED, ConflictStatus.RESOLVING, ConflictStatus.ESCALATED)
_OF_AGENTS: Final = ("list_by_agent_a", "list_by_agent_b", "list_escalated")
_MOST: Final = 100_000
"""The most conflicts of one status that a list looks at."""


class _Reading:
    """The rows of a session, as a unit of work gives them."""

    def __init__(self, engine: Engine, session: StatementSession) -> None:
        self.catalog = engine.store.catalog
        self._plans = engine.store.plans
        self._session = session

    def find(self, relation: Relation, *key: Any) -> Any | None:
        plans = self._plans[relation.name]
        rows = self._session.run(plans.get, key)
        return plans.codec.decode(rows[0]) if rows else None

    def select_path(self, relation: Relation, path: str, *key: Any) -> list[Any]:
        plans = self._plans[relation.name]
        return [plans.codec.decode(row) for row in self._session.run(plans.lists[path], key)]


Rows = UnitOfWork | _Reading


class AgentConflicts:
    """The conflicts of a store, as one principal sees and resolves them.

    Of a conflict between records that may be hidden, those see it who see both. The agents of a conflict and the agent
    that it was escalated to see the others, and so do the application and administrators.
    """

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._readers = Readers(engine.part(TaskOwners), principal)

    def _check_open(self) -> None:
        self._engine.check_open()
        require_registered(self._engine, self._principal)

    # --- recording -------------------------------------------------------------------------------

    def report(
        self,
        item_a: EntityRef,
        item_b: EntityRef,
        *,
        conflict_type: ConflictType | str,
        reason: str,
        agent_a: str | EntityRef | None = None,
        agent_b: str | EntityRef | None = None,
        task: Id | None = None,
    ) -> RecordConflict:
        """Record that two records are at odds, such as the goals of two tasks, and return the conflict.

        A pair has one open conflict: reporting it again returns that one, and of a pair that was kept side by side the
        resolved one. ``agent_a`` and ``agent_b`` are the agents of the sides; left out, the authors of the records, or
        the agents of the tasks.

        Raises: InputError kinds; NotFound for a record or task that does not exist or is hidden; NotRegistered for an
            unknown agent; Conflict, to be tried again.
        """
        kind = arguments.as_enum(conflict_type, ConflictType, "conflict_type")
        why = arguments.as_text(reason, "reason", limit=arguments.MAX_NAME_CHARS)
        names = self._engine.store.catalog.by_name
        refs = [arguments.as_reference(item_a, "item_a", names), arguments.as_reference(item_b, "item_b", names)]
        if refs[0] == refs[1]:
            raise InvalidValue(field="item_b", reason="is item_a; a record alone is at odds with nothing")
        below = None if task is None else TrajectoryId(arguments.as_uuid(task, "task"))
        self._check_open()
        named = [None if each is None else agent_named(self._engine, each) for each in (agent_a, agent_b)]
        if below is not None:
            require(self._engine, self._readers, TRAJECTORY, below)

        def work(uow: UnitOfWork) -> RecordConflict:
            sides = []
            for ref, agent in zip(refs, named, strict=True):
                relation, row = self._record(uow, ref)
                if row is None:
                    raise self._readers.not_found(str(ref.entity_type), ref.id)
                known: Agent | None = None if agent is None else uow.find(AGENT, agent.ref.id.bytes)
                if agent is not None and known is None:
                    raise not_registered(agent.ref)
                sides.append(Side(ref, self._agent_of(uow, relation, row) if known is None else known.agent_id))
            by = self._principal.label
            return recording.record(self._engine, uow, kind, (sides[0], sides[1]), why, by, task=below)

        return self._engine.write(work)

    def _record(self, uow: UnitOfWork, ref: EntityRef) -> tuple[Relation, Any | None]:
        """Return the relation of a side, and its record; None for one that does not exist or is hidden."""
        relation = uow.catalog.by_name.get(ref.entity_type)
        if relation is None or len(relation.key) > 1:
            raise self._readers.not_found(str(ref.entity_type), ref.id)
        row = uow.find(relation, ref.id.bytes)
        return relation, row if row is not None and self._readers.allows_entity(relation, row) else None

    def _agent_of(self, uow: UnitOfWork, relation: Relation, row: Any) -> AgentId | None:
        """Return the agent whose record a side is: the agent of a task, or the author."""
        owner = relation.rights.owner
        if owner is not None and owner.agent is not None and getattr(row, owner.agent) is not None:
            known: Agent | None = uow.find(AGENT, getattr(row, owner.agent).bytes)
            return None if known is None else known.agent_id
        author = None if relation.rights.author is None else getattr(row, relation.rights.author)
        return recording.agent_of(uow, author if isinstance(author, str) else None)

    # --- seeing ----------------------------------------------------------------------------------

    def get(self, conflict: Id) -> RecordConflict:
        """Return a conflict. Raises: InputError kinds; NotFound for one that does not exist or is hidden."""
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()
        with self._engine.store.read() as session:
            return self._found(_Reading(self._engine, session), key)

    def list(
        self,
        *,
        status: ConflictStatus | str | None = None,
        conflict_type: ConflictType | str | None = None,
        agent: str | EntityRef | None = None,
        task: Id | None = None,
        limit: int = 100,
        after: Id | None = None,
    ) -> list[RecordConflict]:
        """Return open conflicts that the principal may see, the oldest first; with ``status`` those of one status.

        Those of a type, of a ``task``, and those that an ``agent`` is a side of or is to decide can be asked for.
        ``after`` is the id of the last conflict of the page before.

        Raises: InputError kinds.
        """
        wanted = None if status is None else arguments.as_enum(status, ConflictStatus, "status")
        kind = None if conflict_type is None else arguments.as_enum(conflict_type, ConflictType, "conflict_type")
        below = None if task is None else arguments.as_uuid(task, "task")
        most = arguments.as_whole(limit, "limit", 1)
        last = None if after is None else arguments.as_uuid(after, "after")
        self._check_open()
        party = None if agent is None else agent_named(self._engine, agent).ref.id

        with self._engine.store.read() as session:
            rows = _Reading(self._engine, session)
            if party is not None:
                found = [each for path in _OF_AGENTS for each in rows.select_path(CONFLICT, path, party.bytes)]
            elif below is not None:
                found = rows.select_path(CONFLICT, "list_by_trajectory", below.bytes)
            else:
                among = _OPEN if wanted is None else (wanted,)
                path = "list_by_status"
                found = [each for one in among for each in rows.select_path(CONFLICT, path, one.value, _MOST)]
            once = {each.conflict_id: each for each in found}
            out: builtins.list[RecordConflict] = []
            for each in sorted(once.values(), key=_key):
                if len(out) == most:
                    break
                if (
                    (each.is_open if wanted is None else each.status is wanted)
                    and kind in (None, each.conflict_type)
                    and (below is None or each.trajectory_id == below)
                    and (last is None or _key(each) > last.bytes)
                    and self._shows(rows, each)
                ):
                    out.append(each)
            return out

    def history(self, conflict: Id) -> builtins.list[RecordConflict]:
        """Return the conflicts that a pair has had, the oldest first, with the ``resolution`` of each.

        Raises: InputError kinds; NotFound for a conflict that does not exist or is hidden.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()

        with self._engine.store.read() as session:
            rows = _Reading(self._engine, session)
            now = self._found(rows, key)
            found = rows.select_path(CONFLICT, "list_by_item_a", now.item_a.id.bytes)
            return [each for each in found if each.item_b == now.item_b and self._shows(rows, each)]

    def _found(self, uow: Rows, key: uuid.UUID) -> RecordConflict:
        conflict: RecordConflict | None = uow.find(CONFLICT, key.bytes)
        if conflict is None or not self._shows(uow, conflict):
            raise NotFound(entity_type=CONFLICT.name, id=key)
        return conflict

    def _shows(self, uow: Rows, conflict: RecordConflict) -> bool:
        """Return whether the principal may know of a conflict: of a hidden record there is no trace."""
        principal, both = self._principal, 0
        for ref in (conflict.item_a, conflict.item_b):
            relation = uow.catalog.by_name.get(ref.entity_type)
            record = None if relation is None else uow.find(relation, ref.id.bytes)
            if record is None or relation is None:
                continue
            if not self._readers.allows_entity(relation, record):
                return False
            both += relation.rights.hides
        return both == 2 or principal.serves or self._is_party(conflict)

    def _is_party(self, conflict: RecordConflict) -> bool:
        if self._principal.kind is not PrincipalKind.AGENT:
            return False
        own = self._readers.sight().ids
        named = (conflict.agent_a_id, conflict.agent_b_id, conflict.escalated_to)
        return any(each is not None and each.bytes in own for each in named)

    # --- resolving -------------------------------------------------------------------------------

    def start(self, conflict: Id) -> RecordConflict:
        """Mark a detected conflict as being resolved, and return it; marking it again changes nothing.

        Raises: InputError kinds; NotFound; PermissionDenied as ``resolve``; InvalidStateTransition.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()

        def work(uow: UnitOfWork) -> RecordConflict:
            found = self._decided(uow, key, "resolve")
            states.CONFLICT.check(found.status, ConflictStatus.RESOLVING)
            if found.status is ConflictStatus.RESOLVING:
                return found
            now = from_us(uow.now_us)
            changed = dataclasses.replace(found, status=ConflictStatus.RESOLVING, updated_at=now)
            begun: RecordConflict = uow.update(CONFLICT, changed)
            return begun

        return self._engine.write(work)

    def escalate(self, conflict: Id) -> RecordConflict:
        """Leave a conflict to the nearest agent that both of its agents report to, or to a person; return it.

        The agent gets a message. Where it was escalated to an agent, the one above that gets it; a conflict whose
        ``escalated_to`` is None waits for the application or an administrator.

        Raises: InputError kinds; NotFound; PermissionDenied as ``resolve``; InvalidStateTransition for a resolved one.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()
        by = self._principal.label
        return self._engine.write(
            lambda uow: recording.escalate(self._engine, uow, self._decided(uow, key, "escalate"), by)
        )

    def resolve(
        self,
        conflict: Id,
        *,
        keep: Id | Literal["both"] | None = None,
        merged: EntityRef | None = None,
        strategy: ConflictResolution | str | None = None,
        reason: str | None = None,
        user: str | EntityRef | None = None,
    ) -> RecordConflict:
        """Resolve a conflict and return it.

        ``keep`` is the id of a side or of its agent, or "both" where they can stand side by side; ``merged`` is a
        record that stands for both. Between statements a ``strategy`` may decide, by default
        ``pcp.grounding.conflict_resolution``, and the side that loses ends, as ``memory.pcp.resolve`` does it: both do
        for a ``merged`` record. With ``manual`` the conflict is escalated. Resolving again in the same way changes
        nothing. ``user`` is whom the call is for, as in ``memory.pcp.resolve``.

        Raises: InputError kinds, also for the id of another record and for a strategy where no statements are at odds;
            NotFound; RequiredFieldMissing where nothing decides; InvalidStateTransition for a conflict that was
            resolved otherwise; PermissionDenied for who may not correct the side that ends and, of other conflicts, for
            who is neither their agent nor, once one was escalated, who decides; Conflict.
        """
        key = arguments.as_uuid(conflict, "conflict")
        stated = keep is None or (isinstance(keep, str) and keep == "both")
        kept = keep if stated else arguments.as_uuid(keep, "keep")
        by = None if strategy is None else arguments.as_enum(strategy, ConflictResolution, "strategy")
        why = None if reason is None else arguments.as_text(reason, "reason", limit=arguments.MAX_NAME_CHARS)
        names = self._engine.store.catalog.by_name
        into = None if merged is None else arguments.as_reference(merged, "merged", names)
        if sum(each is not None for each in (kept, by, into)) > 1:
            raise InvalidValue(field="keep", reason="is given with merged or strategy; one of them decides")
        self._check_open()
        return self._engine.write(lambda uow: self._resolved(uow, key, kept, into, by, why, user))

    def _resolved(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        keep: Any,
        merged: EntityRef | None,
        strategy: ConflictResolution | None,
        reason: str | None,
        user: str | EntityRef | None,
    ) -> RecordConflict:
        found = self._found(uow, key)
        nothing = keep is None and merged is None
        by = strategy_of(self._engine) if strategy is None and nothing else strategy
        if strategy is ConflictResolution.MANUAL:
            return recording.escalate(self._engine, uow, self._decided(uow, key, "escalate"), self._principal.label)
        if nothing and by is ConflictResolution.MANUAL:
            raise RequiredFieldMissing("give keep, merged or strategy: conflicts wait for a person", field="keep")
        keep = _side_of(found, keep)
        if merged is not None and self._record(uow, merged)[1] is None:
            raise self._readers.not_found(str(merged.entity_type), merged.id)
        if self._between_statements(uow, found):
            statements = Conflicts(self._engine, self._principal, self._readers, user)
            return statements.resolve_in(uow, key, keep, by or ConflictResolution.MANUAL, reason, merged)
        if nothing:
            raise RequiredFieldMissing("give keep or merged: a strategy decides between statements only", field="keep")
        return self._closed(uow, key, keep, merged, reason)

    def _closed(
        self, uow: UnitOfWork, key: uuid.UUID, keep: Any, merged: EntityRef | None, reason: str | None
    ) -> RecordConflict:
        """Resolve a conflict of which no side ends."""
        found = self._decided(uow, key, "resolve")
        winner = ConflictWinner.BOTH
        if merged is not None:
            winner = ConflictWinner.MERGED
        elif keep != "both":
            winner = ConflictWinner.A if _is_a(found, keep) else ConflictWinner.B
        if not found.is_open and found.winner is winner and found.merged_id == (merged.id if merged else None):
            return found
        states.CONFLICT.check(found.status, ConflictStatus.RESOLVED)
        label = self._principal.label
        closed = resolved(found, winner, ConflictResolution.MANUAL, reason, label, uow.now_us)
        if merged is not None:
            closed = dataclasses.replace(closed, merged_type=merged.entity_type, merged_id=merged.id)
        stored: RecordConflict = uow.update(CONFLICT, closed)
        audit(self._engine, uow, EventType.CONFLICT_RESOLVE, stored, label)
        return stored

    def _between_statements(self, uow: UnitOfWork, conflict: RecordConflict) -> bool:
        if conflict.item_a == conflict.item_b:
            return False  # two writes of one record, which stays
        found = (uow.catalog.by_name.get(ref.entity_type) for ref in (conflict.item_a, conflict.item_b))
        return all(each is not None and each.grounded is not None for each in found)

    def _decided(self, uow: UnitOfWork, key: uuid.UUID, action: str) -> RecordConflict:
        """Return a conflict that the principal may decide, locked. Raises: NotFound, PermissionDenied."""
        self._found(uow, key)
        uow.lock(CONFLICT, key.bytes)
        conflict = self._found(uow, key)
        if self._principal.serves:
            return conflict
        judged = conflict.status is ConflictStatus.ESCALATED
        parties = (conflict.escalated_to,) if judged else (conflict.agent_a_id, conflict.agent_b_id)
        own = self._readers.sight().ids if self._principal.kind is PrincipalKind.AGENT else ()
        if not any(each is not None and each.bytes in own for each in parties):
            resource = f"{CONFLICT.name} {key}"
            raise PermissionDenied(agent_id=self._principal.label, action=action, resource=resource)
        return conflict


def _key(conflict: RecordConflict) -> bytes:
    return conflict.conflict_id.bytes


def _is_a(conflict: RecordConflict, keep: uuid.UUID) -> bool:
    return keep in (conflict.item_a.id, conflict.agent_a_id) and (
        conflict.item_a != conflict.item_b or keep != conflict.agent_b_id
    )


def _side_of(conflict: RecordConflict, keep: Any) -> Any:
    """Return the side to keep, named by its id or its agent. Raises: InvalidValue for the id of something else."""
    if keep is None or keep == "both":
        return keep
    if keep == conflict.agent_a_id and keep != conflict.agent_b_id:
        return conflict.item_a.id if conflict.item_a != conflict.item_b else keep
    if keep == conflict.agent_b_id and keep != conflict.agent_a_id:
        return conflict.item_b.id if conflict.item_a != conflict.item_b else keep
    if keep in (conflict.item_a.id, conflict.item_b.id):
        return keep
    raise InvalidValue(field="keep", reason="is neither a side of this conflict nor the agent of one; name one or both")
