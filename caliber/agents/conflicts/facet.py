"""Facet ``memory.conflicts``: disagreements of records and of agents are reported, listed, escalated and resolved.

Source: C-286, C-376, C-384, C-417, C-432 to C-435, C-441.
"""

from __future__ import annotations

import builtins
import dataclasses
import itertools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from caliber.access.acting import agent_named
from caliber.access.identities import not_registered, require_registered
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers, require
from caliber.agents.conflicts import recording
from caliber.agents.conflicts.recording import Side
from caliber.engine.engine import Engine
from caliber.model import arguments, states
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents.registry import Agent, AgentId
from caliber.model.errors import InputError, InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.pcp import ConflictResolution, ConflictStatus, ConflictType, ConflictWinner, Disagreement
from caliber.model.references import EntityRef, Id, TrajectoryId
from caliber.model.storage import ReadConsistency
from caliber.model.time import from_us
from caliber.pcp.conflicts import Keep, StatementConflicts, close, strategy_of
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, CONFLICT, TRAJECTORY
from caliber.storage.write.unit_of_work import UnitOfWork

Allows = Callable[[Relation, Any], bool]


class Conflicts:
    """The conflicts of a store, as one principal sees and resolves them.

    Of a conflict between records that may be hidden, those see it who see both. The agents of a conflict and the agent
    that it was escalated to see the others, and so do the application and administrators.
    """

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal
        self._own = Readers(engine.part(TaskOwners), principal)

    def _readers(self, user: str | EntityRef | None) -> Readers:
        return self._own if user is None else self._own.seeing_for(user)

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
    ) -> Disagreement:
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
            require(self._engine, self._own, TRAJECTORY, below)

        def work(uow: UnitOfWork) -> Disagreement:
            sides = []
            for ref, agent in zip(refs, named, strict=True):
                relation, row = self._record(uow, ref, self._own.allows_entity)
                if row is None:
                    raise self._own.not_found(str(ref.entity_type), ref.id)
                known: Agent | None = None if agent is None else uow.find(AGENT, agent.ref.id.bytes)
                if agent is not None and known is None:
                    raise not_registered(agent.ref)
                sides.append(Side(ref, self._agent_of(uow, relation, row) if known is None else known.agent_id))
            by = self._principal.label
            return recording.record(self._engine, uow, kind, (sides[0], sides[1]), why, by, task=below)

        return self._engine.write(work)

    def _record(self, uow: UnitOfWork, ref: EntityRef, allows: Allows) -> tuple[Relation, Any | None]:
        """Return the relation of a side, and its record; None for one that does not exist or is hidden."""
        relation = uow.catalog.by_name.get(ref.entity_type)
        if relation is None or len(relation.key) > 1:
            raise self._own.not_found(str(ref.entity_type), ref.id)
        row = uow.find(relation, ref.id.bytes)
        return relation, row if row is not None and allows(relation, row) else None

    def _agent_of(self, uow: UnitOfWork, relation: Relation, row: Any) -> AgentId | None:
        """Return the agent whose record a side is: the agent of a task, or the author."""
        owner = relation.rights.owner
        if owner is not None and owner.agent is not None and getattr(row, owner.agent) is not None:
            known: Agent | None = uow.find(AGENT, getattr(row, owner.agent).bytes)
            return None if known is None else known.agent_id
        author = None if relation.rights.author is None else getattr(row, relation.rights.author)
        return recording.agent_of(uow, author if isinstance(author, str) else None)

    # --- seeing ----------------------------------------------------------------------------------

    def get(self, conflict: Id, *, user: str | EntityRef | None = None) -> Disagreement:
        """Return a conflict. Raises: InputError kinds; NotFound for one that does not exist or is hidden."""
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()
        allows = self._readers(user).allows_entity
        return self._engine.read(lambda uow: self._found(uow, key, allows))

    def list(
        self,
        *,
        between: Sequence[str | EntityRef] = (),
        status: ConflictStatus | str | None = None,
        conflict_type: ConflictType | str | None = None,
        task: Id | None = None,
        user: str | EntityRef | None = None,
        limit: int = 100,
        after: Id | None = None,
    ) -> list[Disagreement]:
        """Return open conflicts that the principal may see, the oldest first; with ``status`` those of one status.

        ``between`` names agents, each of which is a side of the conflict or is to decide it. ``task``: the conflict is
        of the task, or one side belongs to it or was drawn from it. ``user`` is whom the call is for, as in ``search``.
        ``after`` is the id of the last conflict of the page before.

        Raises: InputError kinds; NotFound for a task, or a conflict ``after``, that does not exist or is hidden.
        """
        agents = arguments.as_items(between, "between", "a sequence of agents")
        wanted = None if status is None else arguments.as_enum(status, ConflictStatus, "status")
        kind = None if conflict_type is None else arguments.as_enum(conflict_type, ConflictType, "conflict_type")
        of_task = None if task is None else arguments.as_uuid(task, "task")
        most = arguments.as_whole(limit, "limit", 1)
        last = None if after is None else arguments.as_uuid(after, "after")
        self._check_open()
        parties = {agent_named(self._engine, each).ref.id for each in agents}
        snapshot, readers = self._engine.snapshot(ReadConsistency.LATEST), self._readers(user)
        if of_task is not None:
            hidden = user is not None and not readers.sees_task(of_task.bytes)
            if hidden or snapshot[TRAJECTORY.name].find(of_task.bytes) < 0:
                raise NotFound(entity_type=TRAJECTORY.name, id=of_task)
            readers = readers if user is not None else readers.acting_for(of_task)
        rows = snapshot[CONFLICT.name]
        found: builtins.list[Disagreement] = [
            each
            for number in rows.rows().tolist()
            if (each := self._engine.memory.entity(rows, number))
            and (each.is_open if wanted is None else each.status is wanted)
            and kind in (None, each.conflict_type)
            and parties <= {each.agent_a_id, each.agent_b_id, each.escalated_to}
        ]
        allows = readers.allows_entity

        def page(uow: UnitOfWork) -> builtins.list[Disagreement]:
            start = None if last is None else _age(self._found(uow, last, allows))
            behind = (each for each in sorted(found, key=_age) if start is None or _age(each) > start)
            shown = (each for each in behind if self._shows(uow, each, allows, of_task))
            return builtins.list(itertools.islice(shown, most))

        return self._engine.read(page)

    def history(self, conflict: Id, *, user: str | EntityRef | None = None) -> builtins.list[Disagreement]:
        """Return the conflicts that a pair has had, the oldest first, with the ``resolution`` of each.

        Raises: InputError kinds; NotFound for a conflict that does not exist or is hidden.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()
        allows = self._readers(user).allows_entity

        def read(uow: UnitOfWork) -> builtins.list[Disagreement]:
            now = self._found(uow, key, allows)
            found = uow.select_path(CONFLICT, "list_by_item_a", now.item_a.id.bytes)
            return [each for each in found if each.item_b == now.item_b and self._shows(uow, each, allows)]

        return self._engine.read(read)

    def _found(self, uow: UnitOfWork, key: uuid.UUID, allows: Allows) -> Disagreement:
        conflict: Disagreement | None = uow.find(CONFLICT, key.bytes)
        if conflict is None or not self._shows(uow, conflict, allows):
            raise NotFound(entity_type=CONFLICT.name, id=key)
        return conflict

    def _shows(self, uow: UnitOfWork, conflict: Disagreement, allows: Allows, task: uuid.UUID | None = None) -> bool:
        """Return whether the principal may know of a conflict, and it is of a task: of a hidden record is no trace."""
        both, of_task = 0, task in (None, conflict.trajectory_id)
        for ref in (conflict.item_a, conflict.item_b):
            relation = uow.catalog.by_name.get(ref.entity_type)
            record = None if relation is None else uow.find(relation, ref.id.bytes)
            if relation is None or record is None:
                if relation is not None and relation.grounded is not None and not self._own.everything:
                    return False  # nobody knows any more who may read its words
                continue
            if not allows(relation, record):
                return False
            both += relation.rights.hides
            of_task = of_task or _is_of(relation, record, task)
        parties = (conflict.agent_a_id, conflict.agent_b_id, conflict.escalated_to)
        return of_task and (both == 2 or self._principal.serves or self._is_one_of(*parties))

    # --- resolving -------------------------------------------------------------------------------

    def start(self, conflict: Id) -> Disagreement:
        """Mark a detected conflict as being resolved, and return it; marking it again changes nothing.

        Raises: InputError kinds; NotFound; PermissionDenied as ``resolve``; InvalidStateTransition.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()

        def work(uow: UnitOfWork) -> Disagreement:
            found = self._decided(uow, key, "resolve", self._own.allows_entity)
            states.CONFLICT.check(found.status, ConflictStatus.RESOLVING)
            if found.status is ConflictStatus.RESOLVING:
                return found
            now = from_us(uow.now_us)
            changed = dataclasses.replace(found, status=ConflictStatus.RESOLVING, updated_at=now)
            begun: Disagreement = uow.update(CONFLICT, changed)
            return begun

        return self._engine.write(work)

    def escalate(self, conflict: Id) -> Disagreement:
        """Leave a conflict to the nearest agent that both of its agents report to, or to a person; return it.

        The agent gets a message. Where it was escalated to an agent, the one above that gets it; a conflict whose
        ``escalated_to`` is None waits for the application or an administrator.

        Raises: InputError kinds; NotFound; PermissionDenied as ``resolve``; InvalidStateTransition for a resolved one.
        """
        key = arguments.as_uuid(conflict, "conflict")
        self._check_open()
        by, allows = self._principal.label, self._own.allows_entity
        return self._engine.write(
            lambda uow: recording.escalate(self._engine, uow, self._decided(uow, key, "escalate", allows), by)
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
    ) -> Disagreement:
        """Resolve a conflict and return it. Nothing is overwritten, and undoing the end of a side opens it again.

        ``keep`` is the id of a side or of its agent, or "both" where they can stand side by side: the pair is not
        recorded again unless one of them changes. ``merged`` is a record that stands for both. Between statements the
        side that loses ends now, as ``end_note`` ends a note (both do for a ``merged`` record), and a ``strategy`` may
        decide, by default ``pcp.grounding.conflict_resolution``. With ``manual`` the conflict is escalated. Resolving
        again in the same way changes nothing. ``user`` is whom the call is for, as in ``search``.

        Raises: InputError kinds, also for the id of another record and for a strategy where no statements are at odds;
            NotFound; RequiredFieldMissing where nothing decides; InvalidStateTransition for a conflict that was
            resolved otherwise; PermissionDenied for who may not correct the side that ends and, of other conflicts, for
            who is neither their agent nor, once one was escalated, who decides; Conflict.
        """
        key = arguments.as_uuid(conflict, "conflict")
        kept: Keep | None = None
        if keep is not None:
            try:
                kept = "both" if isinstance(keep, str) and keep == "both" else arguments.as_uuid(keep, "keep")
            except InputError:
                raise InvalidValue(field="keep", reason='must be the id of a side, or "both"') from None
        by = None if strategy is None else arguments.as_enum(strategy, ConflictResolution, "strategy")
        why = None if reason is None else arguments.as_text(reason, "reason", limit=arguments.MAX_NAME_CHARS)
        names = self._engine.store.catalog.by_name
        into = None if merged is None else arguments.as_reference(merged, "merged", names)
        if sum(each is not None for each in (kept, by, into)) > 1:
            raise InvalidValue(field="keep", reason="is given with merged or strategy; one of them decides")
        self._check_open()
        readers, statements = self._readers(user), StatementConflicts(self._engine, self._principal, user)
        return self._engine.write(lambda uow: self._resolved(uow, key, kept, into, by, why, readers, statements))

    def _resolved(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        keep: Keep | None,
        merged: EntityRef | None,
        strategy: ConflictResolution | None,
        reason: str | None,
        readers: Readers,
        statements: StatementConflicts,
    ) -> Disagreement:
        found = self._found(uow, key, readers.allows_change)
        if strategy is ConflictResolution.MANUAL:
            found = self._decided(uow, key, "escalate", readers.allows_change, statements)
            return recording.escalate(self._engine, uow, found, self._principal.label)
        nothing = keep is None and merged is None
        by = strategy_of(self._engine) if strategy is None and nothing else strategy
        if nothing and by is ConflictResolution.MANUAL:
            raise RequiredFieldMissing("give keep, merged or strategy: conflicts wait for a person", field="keep")
        keep = _side_of(found, keep)
        if merged is not None and self._record(uow, merged, readers.allows_entity)[1] is None:
            raise self._own.not_found(str(merged.entity_type), merged.id)
        if _between_statements(uow, found):
            return statements.resolve(uow, key, keep, by or ConflictResolution.MANUAL, reason, merged)
        if nothing:
            raise RequiredFieldMissing("give keep or merged: a strategy decides between statements only", field="keep")
        found = self._decided(uow, key, "resolve", readers.allows_change)
        winner = ConflictWinner.BOTH
        if merged is not None:
            winner = ConflictWinner.MERGED
        elif isinstance(keep, uuid.UUID):
            winner = ConflictWinner.A if _is_a(found, keep) else ConflictWinner.B
        if not found.is_open and found.winner is winner and found.merged_id == (merged.id if merged else None):
            return found
        states.CONFLICT.check(found.status, ConflictStatus.RESOLVED)
        by_hand, label = ConflictResolution.MANUAL, self._principal.label
        return close(self._engine, uow, found, winner, by_hand, reason, label, merged)

    def _decided(
        self,
        uow: UnitOfWork,
        key: uuid.UUID,
        action: str,
        allows: Allows,
        statements: StatementConflicts | None = None,
    ) -> Disagreement:
        """Return a conflict that the principal may decide, locked; of ``statements``, one of which it may correct.

        Raises: NotFound; PermissionDenied.
        """
        self._found(uow, key, allows)
        uow.lock(CONFLICT, key.bytes)
        conflict = self._found(uow, key, allows)
        judged = conflict.status is ConflictStatus.ESCALATED
        parties = (conflict.escalated_to,) if judged else (conflict.agent_a_id, conflict.agent_b_id)
        if self._principal.serves or self._is_one_of(*parties):
            return conflict
        if statements is None or not _between_statements(uow, conflict):
            raise self._principal.denied(action, f"{CONFLICT.name} {key}")
        statements.check_corrects(uow, conflict, action)
        return conflict

    def _is_one_of(self, *agents: AgentId | None) -> bool:
        own = self._own.visibility().ids if self._principal.kind is PrincipalKind.AGENT else ()
        return any(each is not None and each.bytes in own for each in agents)


def _age(conflict: Disagreement) -> tuple[datetime, bytes]:
    return conflict.detected_at, conflict.conflict_id.bytes


def _is_of(relation: Relation, record: Any, task: uuid.UUID | None) -> bool:
    """Return whether a record belongs to a task, or was drawn from it."""
    names = () if relation.grounded is None else relation.grounded.sources
    values = [getattr(record, name) for name in (relation.rights.task, *names) if name is not None]
    return any(task == each or (isinstance(each, tuple) and task in each) for each in values)


def _between_statements(uow: UnitOfWork, conflict: Disagreement) -> bool:
    if conflict.item_a == conflict.item_b:
        return False  # two writes of one record, which stays
    found = (uow.catalog.by_name.get(ref.entity_type) for ref in (conflict.item_a, conflict.item_b))
    return all(each is not None and each.grounded is not None for each in found)


def _is_a(conflict: Disagreement, keep: uuid.UUID) -> bool:
    return keep in (conflict.item_a.id, conflict.agent_a_id) and (
        conflict.item_a != conflict.item_b or keep != conflict.agent_b_id
    )


def _side_of(conflict: Disagreement, keep: Keep | None) -> Keep | None:
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
