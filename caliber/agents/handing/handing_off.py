"""Facet ``memory.agents.handoffs``: an agent passes its task on to another one, with what that needs to continue.

A handoff keeps its own copy of the task's window. Accepting is one transaction: the task's agent, its open
delegations, and a turn with the notes, which the receiver's next window holds.

Source: C-375, C-383, C-402, C-430, C-431, C-440, C-445, K-039.
"""

from __future__ import annotations

import builtins
import dataclasses
import uuid
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from caliber.access.acting import registered, require_assignable
from caliber.access.visibility import Readers
from caliber.agents.handing.ending import Endings, share, show_task, unshare
from caliber.agents.handing.parties import Parties, packed, unpacked, without_snapshot
from caliber.context.service import ContextService
from caliber.embedding.embedding_target import attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.stale_inputs import StaleInputs, check_erasures, erasures
from caliber.kernels import uuid7
from caliber.model import arguments, states
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents.delegation import Handoff, HandoffId, HandoffSnapshot, HandoffStatus
from caliber.model.agents.registry import Agent
from caliber.model.errors import HandoffFailed, InvalidValue, NotFound
from caliber.model.events import EventType
from caliber.model.references import EntityRef, EntityType, Id, ScopeId, TrajectoryId
from caliber.model.time import from_us
from caliber.model.trajectory import Scope, Trajectory, TrajectoryStatus
from caliber.schema.relations import DELEGATION, HANDOFF, SCOPE, TRAJECTORY
from caliber.search.service import Searching
from caliber.storage.write.group import Pipelined, pipelined
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle
from caliber.trajectory import turns as turn_ops
from caliber.trajectory.service import Tasks
from caliber.trajectory.summarizer import TurnSummarizer

_MAX_TOKENS: Final = 2**31 - 1
"""A window's budget: as much as the configuration allows."""
_HANDED_BACK: Final = "the task was handed back to the agent that delegated it"
_LISTS: Final = (("next_steps", "Next steps"), ("blockers", "Blockers"), ("open_questions", "Open questions"))


class Handoffs(Parties[Handoff]):
    """Tasks that agents pass on, as one principal gives, takes and sees them."""

    _relation = HANDOFF
    _agents = ("from_agent_id", "to_agent_id")
    _addressed = "to_agent_type"
    _waits = HandoffStatus.INITIATED
    _tasks_of = ("trajectory_id",)
    _told: ClassVar = {"giver": "from_agent_id", "receiver": "to_agent_id"}
    _paths: ClassVar = {
        "task": ("by_trajectory",),
        "agent": ("by_agent",),
        "taker": ("by_agent",),
        "status": ("by_status",),
        "type": ("pending_of_type",),
    }

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks) -> None:
        super().__init__(engine, principal)
        self._tasks = tasks
        self._endings = Endings(engine, tasks.retention, cascade=False)

    # --- giving ----------------------------------------------------------------------------------

    def initiate(
        self,
        task: Id,
        *,
        reason: str,
        notes: str,
        to: str | EntityRef | None = None,
        to_type: str | None = None,
        next_steps: Iterable[str] = (),
        blockers: Iterable[str] = (),
        open_questions: Iterable[str] = (),
        scope: Id | None = None,
        agent: str | EntityRef | None = None,
    ) -> Handoff:
        """Offer a task to an agent, or to the first agent of a type that accepts it, and return the handoff.

        The handoff keeps the task's window as it is now, also where windows are not persisted. The task stays the
        agent's until it is accepted. ``scope`` is the scope to continue in, by default the current one. ``agent`` is
        the agent that hands over.

        Raises: InputError kinds; NotRegistered; NotFound; PermissionDenied for a task that the principal may only read;
            HandoffFailed for a task that ended, has another agent, is being handed off already, or has no open scope.
        """
        key = arguments.as_uuid(task, "task")
        why, words = arguments.as_text(reason, "reason"), arguments.as_text(notes, "notes")
        addressee = self._addressee(to, to_type)
        steps, blocked = self._texts(next_steps, "next_steps"), self._texts(blockers, "blockers")
        questions = self._texts(open_questions, "open_questions")
        self._check_length("notes", why, words, *steps, *blocked, *questions)
        wanted = None if scope is None else arguments.as_uuid(scope, "scope")
        engine = self._engine

        def attempt() -> Handoff:
            erased = erasures(engine)
            window = ContextService(engine, self._principal, Searching(engine, self._principal)).assemble_only(
                key, _MAX_TOKENS
            )

            def work(uow: UnitOfWork) -> Handoff:
                check_erasures(uow, erased)
                uow.lock(TRAJECTORY, key.bytes)
                owned: Trajectory = uow.get(TRAJECTORY, key.bytes)
                me = registered(uow, engine.config, acting)
                other = None if addressee.agent is None else require_assignable(uow, addressee.agent.ref)
                if other is not None and other.agent_id == me.agent_id:
                    raise HandoffFailed(reason="an agent cannot hand a task over to itself")
                self._check_works_on(owned, me)
                now = from_us(uow.now_us)
                made = Handoff(
                    handoff_id=HandoffId(uuid7()),
                    from_agent_id=me.agent_id,
                    trajectory_id=TrajectoryId(key),
                    scope_id=self._scope(uow, owned, wanted).scope_id,
                    context_snapshot_id=window.window_id,
                    snapshot=packed(window, engine.memory.snapshot),
                    handoff_notes=words,
                    reason=why,
                    status=HandoffStatus.INITIATED,
                    initiated_at=now,
                    updated_at=now,
                    to_agent_id=None if other is None else other.agent_id,
                    to_agent_type=addressee.type,
                    next_steps=steps,
                    blockers=blocked,
                    open_questions=questions,
                )
                if not uow.insert_new(HANDOFF, made):
                    raise HandoffFailed(reason="the task is being handed off already")
                self._logged(uow, EventType.HANDOFF_INITIATE, made)
                return without_snapshot(made)

            return engine.write(work)

        self._check_open()
        acting = self._acting(agent, "hand over as")
        self._writes(key)
        return self._tasks.retry(attempt)

    def _check_works_on(self, task: Trajectory, me: Agent) -> None:
        """Raise HandoffFailed unless an agent works on a task, or none does and the application acts for it."""
        if states.TRAJECTORY.is_terminal(task.status):
            raise HandoffFailed(reason=f"the task is {task.status.value}")
        worker = task.agent_id
        if worker is None and task.initiator.entity_type is EntityType.AGENT:
            worker = task.initiator.id
        if worker is None and self._principal.serves:
            return
        if worker != me.agent_id:
            raise HandoffFailed(reason="another agent works on the task")

    @staticmethod
    def _scope(uow: UnitOfWork, task: Trajectory, wanted: uuid.UUID | None) -> Scope:
        """Return the open scope of a task to continue in. Raises: InvalidValue, HandoffFailed."""
        found: list[Scope] = uow.select_path(SCOPE, "list_open", task.trajectory_id.bytes)
        if wanted is not None:
            found = [each for each in found if each.scope_id == wanted]
            if not found:
                raise InvalidValue(field="scope", reason="must be an open scope of the task")
        if not found:
            raise HandoffFailed(reason="the task has no open scope; open one")
        return max(found, key=lambda each: each.sequence_number)

    # --- taking ----------------------------------------------------------------------------------

    def accept(self, handoff_id: Id, *, agent: str | EntityRef | None = None) -> Handoff:
        """Take over a task: the agent becomes the agent of the task, and its next window holds the notes.

        They are a turn of the task, with reason, next steps, blockers and open questions. Of agents that accept at once
        one wins. Delegations of the task, and by its agent, pass on with it; a delegation whose task goes back to the
        agent that delegated it fails, and the task goes on. Accepting again changes nothing.

        Raises: InputError kinds; NotFound; NotRegistered; PermissionDenied for an agent that it is not addressed to;
            HandoffFailed where another agent was first, it was rejected, the task ended, or has another agent by now.
        """
        key, engine = arguments.as_uuid(handoff_id, "handoff_id"), self._engine
        self._check_open()
        acting = self._acting(agent, "accept as")
        blocks, embedder = engine.find_part(TurnSummarizer), engine.part(Embeddings).embedder
        offered: Handoff | None = self._found(key)
        if offered is None or not self._may_accept(offered):
            raise self._not_found(key)
        turn = turn_ops.own_words(engine.estimator, engine.config, briefing(offered))
        text = embedded_text(None, briefing(offered))
        vectors = None if embedder is None else embedder.prepare("turn", [text])

        def work(uow: UnitOfWork) -> Pipelined[tuple[Handoff, list[Callable[[], None]]]]:
            handoff, task = self._locked(uow, key, self._may_accept)
            me = registered(uow, engine.config, acting)
            if handoff.to_agent_id == me.agent_id and handoff.status is HandoffStatus.ACCEPTED:
                return handoff, []
            if handoff.status is not HandoffStatus.INITIATED:
                taken = handoff.accepted_at is not None
                reason = "another agent accepted it" if taken else f"it is {handoff.status.value}"
                raise HandoffFailed(reason=reason)
            self._check_addressed(handoff.to_agent_id, handoff.to_agent_type, me, key)
            if briefing(handoff) != briefing(offered):  # a name was forgotten in between
                raise StaleInputs(entity_type=HANDOFF.name, id=key, reason="its notes were changed meanwhile")
            self._check_still_owned(task, handoff, me)
            accepted = self._take(uow, handoff, task, me)
            stored = yield from turn_ops.append_turns(uow, accepted.scope_id, [turn], handoff.from_agent_id)
            if vectors is not None:
                attach(uow, "turn", stored[0].turn_id, text, vectors[0])
            if blocks is not None:
                blocks.appended(uow, stored)
            self._logged(uow, EventType.HANDOFF_ACCEPT, accepted)
            return accepted, self._tasks.appended(uow, task.trajectory_id, ScopeId(accepted.scope_id))

        handoff, after_commit = self._tasks.retry(lambda: engine.write(pipelined(work)))
        if after_commit:
            self._tasks.after_append(after_commit)
        return without_snapshot(handoff)

    @staticmethod
    def _check_still_owned(task: Trajectory, handoff: Handoff, me: Agent) -> None:
        if states.TRAJECTORY.is_terminal(task.status):
            raise HandoffFailed(reason=f"the task is {task.status.value}")
        if task.agent_id not in (None, handoff.from_agent_id):
            raise HandoffFailed(reason="the task has another agent by now")
        if me.agent_id == handoff.from_agent_id:
            raise HandoffFailed(reason="an agent cannot hand a task over to itself")

    def _take(self, uow: UnitOfWork, handoff: Handoff, task: Trajectory, me: Agent) -> Handoff:
        """Move a task to the agent that accepts it, in a transaction."""
        now = from_us(uow.now_us)
        if task.status is not TrajectoryStatus.ACTIVE:
            lifecycle.move_trajectory(uow, task.trajectory_id, TrajectoryStatus.ACTIVE)
            task = uow.get(TRAJECTORY, task.trajectory_id.bytes)
        uow.update(TRAJECTORY, dataclasses.replace(task, agent_id=me.agent_id, updated_at=now, last_activity_at=now))
        scope: Scope | None = uow.find(SCOPE, handoff.scope_id.bytes)
        if scope is None or not scope.is_open:
            found = uow.select_path(SCOPE, "list_open", task.trajectory_id.bytes)
            scope = found[-1] if found else lifecycle.open_scope(uow, task.trajectory_id)
        self._move_delegations(uow, handoff, me)
        moved: Handoff = uow.update(
            HANDOFF,
            dataclasses.replace(
                handoff,
                status=HandoffStatus.ACCEPTED,
                to_agent_id=me.agent_id,
                scope_id=scope.scope_id,
                accepted_at=now,
                updated_at=now,
            ),
        )
        return moved

    def _move_delegations(self, uow: UnitOfWork, handoff: Handoff, me: Agent) -> None:
        """Let the receiver go on with the delegation that the task is of, and get the results of those it gave.

        A delegation that comes back to its delegator fails: nobody works on it for another agent.
        """
        now, by, giver = from_us(uow.now_us), self._principal.label, handoff.from_agent_id
        for each in uow.select_path(DELEGATION, "list_by_child", handoff.trajectory_id.bytes):
            if each.is_open and each.delegator_agent_id == me.agent_id:
                self._endings.end(uow, each, _HANDED_BACK, by)
            elif each.is_open and each.delegatee_agent_id == giver:
                unshare(self._engine, uow, each, giver, by)
                moved = uow.update(
                    DELEGATION, dataclasses.replace(each, delegatee_agent_id=me.agent_id, updated_at=now)
                )
                share(self._engine, uow, moved, me.agent_id, by)
        for each in uow.select_path(DELEGATION, "list_by_parent", handoff.trajectory_id.bytes):
            if each.is_open and each.delegator_agent_id == giver and each.delegatee_agent_id != me.agent_id:
                moved = uow.update(
                    DELEGATION, dataclasses.replace(each, delegator_agent_id=me.agent_id, updated_at=now)
                )
                if moved.child_trajectory_id is not None:
                    show_task(self._engine, uow, moved, by)

    def complete(self, handoff_id: Id, *, agent: str | EntityRef | None = None) -> Handoff:
        """End an accepted handoff: the receiver has all that it needs.

        Raises: InputError kinds; NotFound; PermissionDenied unless the agent accepted it; InvalidStateTransition.
        """
        key = arguments.as_uuid(handoff_id, "handoff_id")
        acting = self._acting_on(agent, "complete as")

        def work(uow: UnitOfWork) -> Handoff:
            handoff, _ = self._locked(uow, key, self._may_name)
            if handoff.to_agent_id != acting:
                raise self._denied("complete", key)
            return self._ended(uow, handoff, HandoffStatus.COMPLETED, EventType.HANDOFF_COMPLETE)

        return self._engine.write(work)

    def reject(self, handoff_id: Id, *, reason: str, agent: str | EntityRef | None = None) -> Handoff:
        """Decline a handoff that names the agent, or take back one that it initiated; the task stays with its agent.

        Raises: InputError kinds; NotFound; PermissionDenied for another agent; InvalidStateTransition for one that was
            accepted or ended.
        """
        key, why = arguments.as_uuid(handoff_id, "handoff_id"), arguments.as_text(reason, "reason")
        acting = self._acting_on(agent, "reject as")

        def work(uow: UnitOfWork) -> Handoff:
            handoff, _ = self._locked(uow, key, self._may_name)
            if acting not in (handoff.to_agent_id, handoff.from_agent_id):
                raise self._denied("reject", key)
            return self._ended(uow, handoff, HandoffStatus.REJECTED, EventType.HANDOFF_REJECT, why)

        return self._engine.write(work)

    def _ended(
        self, uow: UnitOfWork, handoff: Handoff, status: HandoffStatus, kind: EventType, reason: str | None = None
    ) -> Handoff:
        states.HANDOFF.check(handoff.status, status)
        now = from_us(uow.now_us)
        ended: Handoff = uow.update(
            HANDOFF,
            dataclasses.replace(handoff, status=status, completed_at=now, updated_at=now, rejection_reason=reason),
        )
        self._logged(uow, kind, ended)
        return without_snapshot(ended)

    # --- seeing ----------------------------------------------------------------------------------

    def get(self, handoff_id: Id, *, user: str | EntityRef | None = None) -> Handoff:
        """Return a handoff.

        ``user`` is whom the call is for, as in ``list``.

        Raises: InputError kinds; NotFound for one that does not exist or is hidden; PermissionDenied for another user.
        """
        key = arguments.as_uuid(handoff_id, "handoff_id")
        return without_snapshot(self._seen(key, user))

    def snapshot(self, handoff_id: Id, *, user: str | EntityRef | None = None) -> HandoffSnapshot:
        """Return the window that the task had when the handoff began, as far as the principal may read its records.

        The agent that it names reads it as the agent of the task would; one of the type that it is for once it has
        accepted. ``user`` is whom the call is for, as in ``list``.

        Raises: as ``get``; PermissionDenied for an agent of the type, before it has accepted; StorageError if damaged.
        """
        key = arguments.as_uuid(handoff_id, "handoff_id")
        handoff = self._seen(key, user)
        if user is not None and self._principal.serves:
            readers = self._readers.seeing_for(user)
        else:
            readers = self._readers_of(handoff)
        return unpacked(handoff, readers, self._engine.snapshot(), self._engine.count_text)

    def _readers_of(self, handoff: Handoff) -> Readers:
        """Return the readers of a handoff's snapshot. Raises: PermissionDenied for an agent that may accept it yet."""
        readers, task = self._readers, handoff.trajectory_id
        if self._principal.kind is PrincipalKind.AGENT:
            own, receiver = readers.visibility().ids, handoff.to_agent_id
            is_receiver = receiver is not None and receiver.bytes in own
            if not is_receiver and handoff.from_agent_id.bytes not in own:
                raise self._denied("read the snapshot before accepting", handoff.handoff_id)
            user = self._user_of(task)
            if is_receiver and handoff.status is HandoffStatus.INITIATED and user is not None:
                return readers.seeing_for(user)  # what accepting lets it read
        try:
            return readers.acting_for(task)
        except NotFound:  # its agent no longer
            return readers

    def _read(self, path: str, *key: Any) -> builtins.list[Any]:
        """Return the handoffs of a list, as the database has them, without their snapshots. Raises: Unavailable."""
        return self._engine.read(lambda uow: uow.select_entities(HANDOFF, f"handoff.brief_{path}", *key))


def briefing(handoff: Handoff) -> str:
    """Return the text of a handoff, as the receiver's window holds it."""
    parts = [f"Handoff: {handoff.reason}", handoff.handoff_notes]
    for name, title in _LISTS:
        values: tuple[str, ...] = getattr(handoff, name)
        if values:
            parts.append("\n".join((f"{title}:", *(f"- {value}" for value in values))))
    return "\n\n".join(parts)
