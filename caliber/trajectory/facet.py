"""Handle methods for tasks: start and end sessions, trajectories and scopes, append turns, add artifacts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from caliber.access.identities import OWN_KIND, current, entity_of, keeping, require_registered, user_for
from caliber.access.owners import guest_in
from caliber.access.visibility import require
from caliber.embedding.embedding_target import attach, embedded_text
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.events import EventType
from caliber.model.knowledge import Note
from caliber.model.references import EntityRef, EntityType, Id, ScopeId, id_of_key
from caliber.model.trajectory import (
    TTL,
    Artifact,
    ArtifactType,
    ExtractionMethod,
    OutcomeStatus,
    Scope,
    Session,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    TrajectoryStatus,
    Turn,
    TurnRole,
)
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import ARTIFACT, NOTE, SCOPE, SESSION, TRAJECTORY, TURN
from caliber.search.service import Searching
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.group import Pipelined, pipelined
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import artifacts as artifact_ops
from caliber.trajectory import lifecycle
from caliber.trajectory import turns as turn_ops
from caliber.trajectory.service import Tasks
from caliber.trajectory.summarizer import TurnSummarizer

T = TypeVar("T")


def _id_at(key: str) -> uuid.UUID:
    """Return the id of the task with a key."""
    (name,) = arguments.as_names((key,), "key")
    return id_of_key(f"trajectory\n{name}")


class TaskMethods:
    """Methods of ``Caliber`` that write sessions, tasks, scopes, turns and artifacts."""

    _searching: Searching

    def __init__(self, engine: Engine, principal: Principal, tasks: Tasks) -> None:
        self._engine = engine
        self._principal = principal
        self._tasks = tasks
        self._embeddings = engine.part(Embeddings)
        self._summarizer = engine.find_part(TurnSummarizer)

    # --- sessions and trajectories -----------------------------------------------------------------

    def start_session(self, *, user: str | EntityRef | None = None, initiator: EntityRef | None = None) -> Session:
        """Start a session, which artifacts with ``ttl='session'`` live as long as."""

        def work(uow: UnitOfWork) -> Session:
            session = lifecycle.start_session(uow, who(uow))
            self._emit(uow, EventType.SESSION_START, (EntityType.SESSION, session.session_id))
            return session

        self._searching.readers.require_kind(SESSION)
        who = keeping(self._engine, self._initiator(user, initiator))
        return self._engine.write(work)

    def _initiator(self, user: str | EntityRef | None, initiator: EntityRef | None) -> EntityRef:
        """Return the entity that starts a task or session.

        Raises: RequiredFieldMissing, InvalidValue, DTypeError, NotRegistered.
        """
        self._engine.check_open()
        require_registered(self._engine, self._principal)
        if user is not None and initiator is not None:
            raise InvalidValue(field="user", reason="is given with initiator; one of them says who starts it")
        if user is not None:
            return self._user(user)
        if initiator is not None:
            reference = current(self._engine, arguments.as_reference(initiator, "initiator"))
            return self._user(reference) if reference.entity_type is EntityType.USER else reference
        kind = OWN_KIND.get(self._principal.kind)
        if kind is None or self._principal.is_admin:
            raise RequiredFieldMissing(
                "user is required: whom is it for? Pass user='maria@example.com', or call it on"
                " memory.as_user('maria@example.com')",
                field="user",
            )
        return entity_of(self._engine, self._principal.id, kind)

    def _user(self, user: str | EntityRef) -> EntityRef:
        """Return the user that a call is for.

        Raises: InvalidValue, DTypeError; PermissionDenied for one user who acts for another.
        """
        return user_for(self._engine, self._principal, user)

    def _agent(self) -> uuid.UUID | None:
        """Return the agent that this handle acts for, which then sees the tasks that it starts for users."""
        if self._principal.kind is not PrincipalKind.AGENT or self._principal.is_admin:
            return None
        return entity_of(self._engine, self._principal.id, EntityType.AGENT).id

    def _own(
        self, relation: Relation, key: uuid.UUID, *, write: bool = True, below: Relation | None = None
    ) -> uuid.UUID:
        """Return the id of a record that the principal may see.

        Raises: NotFound for another one; PermissionDenied with ``write`` for one that it may only read, or below which
            it may not write records of relation ``below``.
        """
        if write:
            require_registered(self._engine, self._principal)
        require(self._engine, self._searching.readers, relation, key, write=write, below=below)
        return key

    def _shown(self, relation: Relation, record: T) -> T:
        """Return a record as the principal sees it, whose rights by kind may hide some values."""
        readers = self._searching.readers
        return readers.shown(relation, record) if readers.limited else record

    def end_session(self, session_id: Id) -> Session:
        """End a session and retire records that end with it; ending it again changes nothing. Raises: NotFound."""
        engine, session_key = self._engine, self._own(SESSION, arguments.as_uuid(session_id, "session_id"))

        def work(uow: UnitOfWork) -> Session:
            session, ended = lifecycle.end_session(uow, session_key)
            if ended:
                self._tasks.retention.session_ended(uow, session)
                self._emit(uow, EventType.SESSION_END, (EntityType.SESSION, session.session_id))
            return session

        return engine.write(work)

    def start_trajectory(
        self,
        goal: str,
        *,
        user: str | EntityRef | None = None,
        initiator: EntityRef | None = None,
        parent: Id | None = None,
        session: Id | None = None,
        tags: Sequence[str] = (),
        key: str | None = None,
        exist_ok: bool = False,
    ) -> Trajectory:
        """Start a task; its scope 0 is open at once.

        ``user`` is the person it is for, by the name that the application has for them, such as an email address; or
        ``initiator`` is the user, agent or system that starts it. On the handle of a user or agent without
        administration both may be left out. ``key`` is your own name for it, such as the id of a chat: one task of the
        store has it. With ``exist_ok`` the task that has it is returned as it is, ended or not, if it is of that user.

        Raises: InputError kinds, NotFound (parent, session), ConstraintViolation (an ended parent or session,
            nesting beyond ``pcp.context_dag.max_depth``), NotRegistered (an agent, where ``agents.registration`` asks),
            Conflict (a task has the key).
        """
        readers = self._searching.readers
        readers.require_kind(TRAJECTORY)
        at = None if key is None else _id_at(key)
        if arguments.as_flag(exist_ok, "exist_ok") and at is None:
            raise InvalidValue(field="exist_ok", reason="is for a task with a key")
        above = None if parent is None else self._own(TRAJECTORY, arguments.as_uuid(parent, "parent"))
        during = None if session is None else self._own(SESSION, arguments.as_uuid(session, "session"))
        starter = self._initiator(user, initiator)
        given = None if user is None and initiator is None else starter
        started = self._tasks.start(
            arguments.as_text(goal, "goal"),
            initiator=starter,
            agent_id=self._agent(),
            parent=above,
            session=during,
            tags=arguments.as_names(tags, "tags"),
            key=at,
            known=partial(self._goes_on_with, given) if exist_ok else None,
        )
        return self._shown(TRAJECTORY, started)

    def _goes_on_with(self, given: EntityRef | None, task: Trajectory) -> bool:
        """Return whether the principal may write to a task that there is, which is that of the user ``given``."""
        readers = self._searching.readers
        if not readers.allows_change(TRAJECTORY, task):
            return False
        readers.require_write(TRAJECTORY, codec_of(TRAJECTORY).encode(task), SCOPE)
        return given is None or given.id in (task.initiator.id, task.user_id)

    def trajectory(self, key: str) -> Trajectory:
        """Return the task that was started with a key. Raises: NotFound, InputError kinds."""
        at = self._own(TRAJECTORY, _id_at(key), write=False)
        found: Trajectory = self._engine.read(lambda uow: uow.get(TRAJECTORY, at.bytes))
        return self._shown(TRAJECTORY, found)

    def complete_trajectory(
        self, trajectory_id: Id, *, status: OutcomeStatus | str, summary: str = "", guard: LockToken | None = None
    ) -> TrajectoryOutcome:
        """End a task: close its open scopes, run the policies on task_end, store the outcome.

        ``summary`` says what came of it, and may be left out. The delegation that
        it is of ends with it, and the delegations and handoffs of the task.

        Raises: NotFound, InvalidStateTransition, ConstraintViolation (sub-trajectories still alive), LockExpired.
        """
        return self._tasks.complete(
            self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id")),
            status=arguments.as_enum(status, OutcomeStatus, "status"),
            summary=arguments.as_text(summary, "summary", allow_empty=True),
            guard=guard,
        )

    def suspend_trajectory(self, trajectory_id: Id) -> Trajectory:
        """Pause a task. Raises: NotFound, InvalidStateTransition."""
        trajectory = self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id"))
        return self._shown(TRAJECTORY, self._tasks.move(trajectory, TrajectoryStatus.SUSPENDED))

    def resume_trajectory(self, trajectory_id: Id) -> Trajectory:
        """Resume a paused task. Raises: NotFound, InvalidStateTransition."""
        trajectory = self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id"))
        return self._shown(TRAJECTORY, self._tasks.move(trajectory, TrajectoryStatus.ACTIVE))

    # --- scopes ------------------------------------------------------------------------------------

    def open_scope(self, trajectory_id: Id) -> Scope:
        """Open the next scope; earlier ones may stay open. Raises: NotFound, InvalidStateTransition."""
        trajectory = self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id"), below=SCOPE)
        return self._shown(SCOPE, self._tasks.open_scope(trajectory))

    def close_scope(self, scope_id: Id, *, guard: LockToken | None = None) -> Scope:
        """Close a scope and run the policies on scope_close; a closed one is returned as it is.

        Raises: NotFound, LockExpired; what a provider raised, when ``close.on_llm_failure`` is fail.
        """
        scope = self._own(SCOPE, arguments.as_uuid(scope_id, "scope_id"))
        return self._shown(SCOPE, self._tasks.close_scope(scope, guard))

    def current_scope(self, trajectory_id: Id) -> Scope | None:
        """Return the newest open scope of a trajectory, or None. Raises: NotFound."""
        found = self._tasks.current_scope(
            self._searching.readers.within(self._engine.snapshot()),
            self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id"), write=False),
        )
        return None if found is None else self._shown(SCOPE, found)

    # --- turns -------------------------------------------------------------------------------------

    def append_turn(
        self,
        scope_id: Id,
        *,
        role: TurnRole | str,
        content: str | bytes,
        name: str | None = None,
        tool_calls: Sequence[ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        thinking: Sequence[Mapping[str, Any]] | None = None,
        is_error: bool | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        model_id: str | None = None,
        token_count: int | None = None,
        raw: Any = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
    ) -> Turn:
        """Append a message to an open scope; durable when this returns.

        Content may be empty, and bytes are kept as they are. A turn of a tool needs its ``tool_call_id``. The same
        idempotency key gives the same turn. ``trust`` is the origin of the content; its default is in section ``trust``
        of the configuration. ``thinking`` are blocks of Anthropic's models, ``is_error`` says that a tool failed: both
        are sent back as they are. ``raw`` is the message in the form of a program, a value of JSON or bytes:
        ``Turn.raw`` gives it back, nothing else shows or finds it.

        Raises: InputError kinds, NotFound, ConstraintViolation (closed scope, ended trajectory), Conflict (the key
            came with other content or another label), LockExpired, PermissionDenied (a user states a label above
            the default).
        """
        new = turn_ops.check_turn(
            self._engine.estimator,
            self._engine.config.trust.of_turn,
            role=role,
            content=content,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            thinking=thinking,
            is_error=is_error,
            occurred_at=occurred_at,
            idempotency_key=idempotency_key,
            model_id=model_id,
            token_count=token_count,
            raw=raw,
            trust=trust,
        )
        return self._append(arguments.as_uuid(scope_id, "scope_id"), [new], guard)[0]

    def append_turns(
        self, scope_id: Id, turns: Iterable[Mapping[str, Any]], *, guard: LockToken | None = None
    ) -> list[Turn]:
        """Append messages in order, all or none; each is a mapping of ``append_turn``'s keywords. Raises: as it."""
        new = turn_ops.check_turns(self._engine.estimator, self._engine.config.trust.of_turn, turns)
        scope = arguments.as_uuid(scope_id, "scope_id")
        return self._append(scope, new, guard) if new else []

    def delete_turns(self, scope_id: Id, *, last: int | None = None, guard: LockToken | None = None) -> list[Turn]:
        """Delete the last turns of an open scope, or all, and return them in order.

        Searches and windows no longer have them; a window that showed one can be replayed as long as windows are kept.
        A guest of the task deletes turns of its own. Artifacts and facts that were drawn from them before stay.

        Raises: NotFound, ConstraintViolation (closed scope, ended trajectory), PermissionDenied, LockExpired.
        """
        most = None if last is None else arguments.as_whole(last, "last", 1)
        scope = self._own(SCOPE, arguments.as_uuid(scope_id, "scope_id"), below=TURN)
        return self._delete_turns(scope, guard, lambda turns: turns if most is None else turns[-most:])

    def delete_turn(self, turn_id: Id, *, guard: LockToken | None = None) -> Turn:
        """Delete a turn of an open scope, as ``delete_turns``, and return it. Raises: as it."""
        key = arguments.as_uuid(turn_id, "turn_id")
        turn: Turn | None = self._engine.read(lambda uow: uow.find(TURN, key.bytes))
        if turn is None or not self._searching.readers.allows_change(TURN, turn):
            raise NotFound(entity_type="turn", id=key)
        scope = self._own(SCOPE, turn.scope_id, below=TURN)
        deleted = self._delete_turns(scope, guard, lambda turns: [each for each in turns if each.turn_id == key])
        if not deleted:
            raise NotFound(entity_type="turn", id=key)
        return deleted[0]

    def _delete_turns(
        self, scope_id: uuid.UUID, guard: LockToken | None, choose: Callable[[list[Turn]], list[Turn]]
    ) -> list[Turn]:
        author, readers = self._author(scope_id=scope_id), self._searching.readers

        def work(uow: UnitOfWork) -> list[Turn]:
            uow.guard(guard, self._principal)
            chosen = choose(turn_ops.turns_to_change(uow, scope_id))
            for turn in chosen:
                if not readers.allows_change(TURN, turn) or author not in (None, turn.author_id):
                    raise self._principal.denied("delete", "a turn of others")
                uow.delete(TURN, turn)
            return chosen

        return self._engine.write(work)

    def _append(
        self,
        scope_id: uuid.UUID,
        new: list[turn_ops.NewTurn],
        guard: LockToken | None,
        also: Callable[[UnitOfWork, list[Turn]], None] | None = None,
        user: EntityRef | None = None,
        replaced: Sequence[tuple[Turn, turn_ops.NewTurn]] = (),
        gone: Sequence[Turn] = (),
    ) -> list[Turn]:
        """Append turns of a ``user``, or of the principal, and write some in place of ``replaced``; return both.

        ``also`` is called in each attempt of their transaction: with the turns if one is new, else with none. The
        turns that are ``gone`` are taken back.

        Raises: StaleInputs if a turn to replace was changed since.
        """
        engine, blocks = self._engine, self._summarizer
        if not self._searching.readers.serves_tasks:
            self._own(SCOPE, scope_id, below=TURN)
        if not self._principal.is_admin and self._principal.is_user:  # the first is no call
            limit, label = engine.config.trust, self._principal.label
            new = [turn_ops.labelled_by_user(turn, label, limit) for turn in new]
            replaced = [(old, turn_ops.labelled_by_user(turn, label, limit)) for old, turn in replaced]
        author_id = self._author(user, scope_id=scope_id)
        vectors = None
        embedder = self._embeddings.embedder
        if embedder is not None:
            written = [*[turn for _, turn in replaced], *new] if replaced else new
            texts = [embedded_text(turn.name, turn.content.decode("utf-8", "replace")) for turn in written]
            vectors = embedder.prepare("turn", texts)

        def work(uow: UnitOfWork) -> Pipelined[tuple[list[Turn], list[Callable[[], None]]]]:
            uow.guard(guard, self._principal)
            stored = yield from turn_ops.append_turns(uow, scope_id, new, author_id)
            appended = bool(uow.changes)  # turns that were there already change nothing
            changed = stored
            for turn in gone:
                turn_ops.take_back(uow, turn)
            if replaced:
                changed = [turn_ops.replace_turn(uow, old, turn) for old, turn in replaced] + stored
            if vectors is not None:
                for turn, text, vector in zip(changed, texts, vectors, strict=True):
                    attach(uow, "turn", turn.turn_id, text, vector)
            if also is not None:
                also(uow, stored if appended else [])
            if not appended:
                return changed, []
            if blocks is not None:
                size = blocks.size
                if blocks.waiting or stored[-1].turn_number // size > (stored[0].turn_number - 1) // size:
                    blocks.appended(uow, stored)
            # Of several, the first may have been there already, in another scope.
            return changed, self._tasks.appended(uow, stored[0].trajectory_id, ScopeId(scope_id))

        stored, after_commit = engine.write(pipelined(work))
        if after_commit:
            self._tasks.after_append(after_commit)
        return stored

    def _author(
        self, user: EntityRef | None = None, *, scope_id: uuid.UUID | None = None, task: uuid.UUID | None = None
    ) -> uuid.UUID | None:
        """Return the id of a user, or of the principal, in a task of others; None in a task of its own."""
        if user is None and self._principal.is_admin:
            return None
        if user is not None:
            return guest_in(self._engine, user, scope_id=scope_id, trajectory_id=task)
        visibility = self._searching.readers.visibility
        return guest_in(self._engine, self._principal, visibility, scope_id=scope_id, trajectory_id=task, register=True)

    # --- artifacts ---------------------------------------------------------------------------------

    def create_artifact(
        self,
        scope_id: Id,
        *,
        artifact_type: ArtifactType | str,
        content: str | bytes,
        extraction_method: ExtractionMethod | str,
        confidence: float | None = None,
        ttl: TTL | str | int | None = None,
        source_turn: int | None = None,
        schema_version: str | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
    ) -> Artifact:
        """Store a typed output; equal content of one type and label is stored once per trajectory.

        - ``scope_id``: the open scope that it is an output of.
        - ``artifact_type``: what it is, such as ``code_patch``; rules and windows choose by it.
        - ``content``: a text, or bytes; windows show it, and searches find the words of a text.
        - ``extraction_method``: how it was found: ``explicit`` if the agent stated it.
        - ``confidence``: in [0, 1]; None if nobody measured it.
        - ``ttl``: ``persistent`` (as None), ``session``, ``scope``, a duration such as ``1h``, or milliseconds.
        - ``source_turn``: the number of the turn that it came from.
        - ``schema_version``: the form of the content, for programs that read it.
        - ``occurred_at``: when it came about; None for now.
        - ``idempotency_key``: the same key gives the same artifact, so that a call may be repeated.
        - ``trust``: left out, the label of ``source_turn``, or else ``trust.artifacts``; never above ``source_turn``'s.
        - ``guard``: a lock that must still be held when it is stored.

        Raises: InputError kinds, NotFound, ConstraintViolation (closed scope, refused by lint), Conflict (the
            idempotency key came with other content or another label), LockExpired, PermissionDenied (a user states a
            label above the one without it).
        """
        engine = self._engine
        new = artifact_ops.check_artifact(
            engine.estimator,
            artifact_type=artifact_type,
            content=content,
            extraction_method=extraction_method,
            confidence=confidence,
            ttl=ttl,
            source_turn=source_turn,
            schema_version=schema_version,
            occurred_at=occurred_at,
            idempotency_key=idempotency_key,
            trust=trust,
        )
        scope = self._own(SCOPE, arguments.as_uuid(scope_id, "scope_id"), below=ARTIFACT)
        text = new.content.decode("utf-8", "replace")
        user = self._principal.label if new.trust is not None and self._principal.is_user else None
        issues = artifact_ops.lint_on_write(engine, new)
        author_id = self._author(scope_id=scope)

        def work(uow: UnitOfWork) -> Artifact:
            uow.guard(guard, self._principal)
            artifact, created = artifact_ops.create_artifact(
                uow, scope, new, unlabelled=engine.config.trust.artifacts, user=user, author_id=author_id
            )
            if created:
                attach(uow, "artifact", artifact.artifact_id, text, vector)
                about = (EntityType.ARTIFACT, artifact.artifact_id)
                of = {"trajectory_id": artifact.trajectory_id, "scope_id": artifact.scope_id}
                self._emit(uow, EventType.ARTIFACT_CREATE, about, **of)
                if issues:
                    uow.emit(artifact_ops.lint_event(engine, self._principal.label, artifact, issues))
            return artifact

        vector = self._embeddings.vector("artifact", text)
        return engine.write(work)

    # --- notes drawn from a task -------------------------------------------------------------------

    def consolidate_notes(self, trajectory_id: Id) -> list[Note]:
        """Draw knowledge from a trajectory and merge it into existing notes about the same things.

        Raises: NotFound, ProviderNotConfigured, LlmError kinds.
        """
        self._searching.readers.require_kind(SCOPE, TURN, ARTIFACT, NOTE, read=True)
        self._searching.readers.require_kind(NOTE)
        return self._tasks.consolidate(
            self._own(TRAJECTORY, arguments.as_uuid(trajectory_id, "trajectory_id"), below=NOTE)
        )

    def _emit(self, uow: UnitOfWork, kind: EventType, about: tuple[EntityType, uuid.UUID], **of: uuid.UUID) -> None:
        told = {"id": str(about[1])}
        self._engine.emit(uow, kind, principal=self._principal.label, subject=about, payload=told, **of)
