"""Service for context windows of one principal: assembles and stores them; logs and reads events.

While the records are in memory, ``assemble_context`` runs no SQL on the calling path.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.access.corrections import event_filter
from caliber.access.owners import entity_named, ids_of, names_of_user, own_names, user_of
from caliber.access.visibility import Readers
from caliber.config import CaliberConfig
from caliber.context.assembler import Assembled, assemble
from caliber.context.columns import entered
from caliber.context.conversation import TASKS
from caliber.context.gather.asking import DefaultQuery, default_query, stated_query
from caliber.context.inputs import AssemblyInputs
from caliber.context.pending_injections import NO_CLAIM, Claim, PendingInjections, consume_all, try_commit
from caliber.context.plan import plan_of
from caliber.context.record.log import WindowLog
from caliber.context.record.record import principal_of
from caliber.context.rules import OneShot
from caliber.embedding.service import Embeddings
from caliber.engine.engine import Engine
from caliber.engine.pacing import embedding_share_s
from caliber.engine.stale_inputs import check_erasures
from caliber.events.event_log import newest
from caliber.kernels import uuid7
from caliber.model import arguments
from caliber.model.access import Principal, PrincipalKind
from caliber.model.context import ContextPersistence, SectionType, StoredWindow, WindowDurability
from caliber.model.deadline import check, within
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import InvalidValue, NotFound
from caliber.model.events import Event, EventType, is_own
from caliber.model.knowledge import NOBODY
from caliber.model.references import EntityRef, EntityType, TrajectoryId, WindowId
from caliber.model.storage import ReadConsistency
from caliber.model.time import from_us, to_us
from caliber.model.windows import ContextWindow
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relations import CONFIG_DOCUMENT, CONTEXT_WINDOW, EVENT, IDENTITY
from caliber.search.in_database.stored import NOT_RESIDENT
from caliber.search.opening import ReadCheck, SearchEngine
from caliber.search.request import Asked
from caliber.search.service import NO_PROVIDER, Searching, in_one_space, query_vector
from caliber.search.stored_content import StoredContents
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

_NO_QUERY = DefaultQuery(None, None, "caller")
_COUNTED = (SectionType.NOTES, SectionType.ARTIFACTS)

TRACE_LIMIT: Final = 100
"""Events that a trace returns without a limit."""


class ContextService:
    """The reads of one principal."""

    def __init__(self, engine: Engine, principal: Principal, searching: Searching) -> None:
        self._engine = engine
        self._principal = principal
        self._label = principal.label
        self._shared = engine.part(SearchEngine)
        self._embeddings = engine.part(Embeddings)
        self._pending = engine.part(PendingInjections)
        self._windows = engine.part(WindowLog)
        self.searching = searching
        self._readers = searching.readers
        self.event_filter = event_filter(principal, searching.sees, self._readers)

    def seen_by(self, user: str | EntityRef | None) -> ContextService:
        """Return the same with the eyes of a user. Raises: as ``Readers.seeing_for``."""
        return self if user is None else ContextService(self._engine, self._principal, self.searching.seen_by(user))

    # --- windows ---------------------------------------------------------------------------------

    def assemble(
        self,
        trajectory_id: uuid.UUID,
        *,
        query: str | None = None,
        query_embedding: Any = None,
        max_tokens: int | None = None,
        as_of: datetime | None = None,
        extra_sections: Mapping[str, str | None] | None = None,
        consistency: ReadConsistency | str | None = None,
    ) -> ContextWindow:
        """Assemble a window, persist it as configured, and count the records it used."""
        engine, erased = self._engine, self._engine.memory.erasures
        engine.check_open()
        config = engine.config
        if query is not None:
            query = arguments.as_text(query, "query", allow_empty=True)
        budget = config.token_budget if max_tokens is None else arguments.as_whole(max_tokens, "max_tokens", 1)
        if budget > config.token_budget:
            raise InvalidValue(field="max_tokens", reason=f"must be at most token_budget = {config.token_budget}")
        # Ranking by vectors alone needs the query's vector; a search has other legs, which need a part of the deadline.
        alone = config.assembly.relevance == "vector"

        def ask(at: ResidentSnapshot) -> tuple[NDArray[np.float32] | None, str | None]:
            if alone or query is None or query_embedding is not None:
                return query_vector(self._embeddings.embedder, query, query_embedding, at), None
            vector, without = self.searching.embedded(query, at)
            return vector, None if without == NO_PROVIDER else without

        with within(None if alone else embedding_share_s()):
            snapshot, (vector, without) = in_one_space(engine, consistency, ask)
        check("the query was embedded")
        asked = stated_query(config, query, vector)
        consumed: frozenset[tuple[bytes, int]] = frozenset()
        takes = self._readers.writes_task(trajectory_id.bytes)
        while True:
            claim = self._pending.claim(trajectory_id, consumed) if takes else NO_CLAIM
            try:
                assembled = self._assemble(
                    snapshot, trajectory_id, budget, asked, without, as_of, extra_sections, claim.rules
                )
                check("the window was assembled")
                if self.leave_behind(assembled, trajectory_id, claim, erased):
                    checked = self._shared.read_check
                    return assembled.window if checked is None else self._checked(assembled.window, checked)
                # Another process consumed its injections: the next attempt must know.
                engine.snapshot(ReadConsistency.LATEST)
            except BaseException:
                self._pending.give_back(claim)
                raise
            self._pending.give_back(claim)
            consumed |= frozenset(claim.rows)

    def _checked(self, window: ContextWindow, checked: ReadCheck) -> ContextWindow:
        """Return a window with the findings about its records."""
        keys = [ref.id for section in window.sections for ref in section.sources if ref.id is not None]
        issues = checked.issues(self._readers.acting_for(window.trajectory_id), keys)
        return dataclasses.replace(window, issues=issues)

    def assemble_only(self, trajectory_id: uuid.UUID, max_tokens: int) -> ContextWindow:
        """Assemble without a query and without side effects: the window that a checkpoint stores."""
        snapshot = self._engine.snapshot()
        budget = min(max_tokens, self._engine.config.token_budget)
        return self._assemble(snapshot, trajectory_id, budget, _NO_QUERY, None, None, None).window

    def _assemble(
        self,
        snapshot: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        max_tokens: int,
        query: DefaultQuery | None,
        without_vector: str | None,
        as_of: datetime | None,
        extra_sections: Mapping[str, str | None] | None,
        once: tuple[OneShot, ...] = (),
    ) -> Assembled:
        """Assemble for a query; None stands for the last user turn, or the goal."""
        engine = self._engine
        readers = self._readers.acting_for(trajectory_id)
        snapshot, now = readers.within(snapshot), engine.clock.now_us()
        degraded: tuple[str, ...] = ()
        totals: Mapping[str, int] = {}
        searcher = self._shared.searcher
        space = self._embeddings.searched(snapshot)
        shared, names, owners = self._shared, self._user_names(trajectory_id), self._block_owners(trajectory_id)
        if shared.records is not None and shared.stored is not None:
            degraded = (NOT_RESIDENT,)
            asked = self._asked(readers, space, as_of, now)
            plan = plan_of(engine.config, once)
            from caliber.context.in_database.window_rows import WindowAsked, read_window

            embedder = self._embeddings.embedder
            request = WindowAsked(
                plan, trajectory_id, max_tokens, query, asked, self._principal, embedder, names, owners
            )
            read = read_window(engine.store, shared.stored, shared.records, engine.memory, snapshot, request)
            snapshot, query, totals = read.snapshot, read.query, read.totals
            searcher = shared.stored.searcher()
        elif query is None:
            space_id = None if space is None else space.space_id
            query = default_query(snapshot, engine.memory, trajectory_id, space_id, self._embeddings.embedder)
        return assemble(
            AssemblyInputs(
                snapshot=snapshot,
                trajectory_id=TrajectoryId(trajectory_id),
                max_tokens=max_tokens,
                as_of_us=now if as_of is None else to_us(as_of, "as_of"),
                now_us=now,
                window_id=WindowId(uuid7()),
                config=engine.config,
                config_hash=engine.config.hash.hex(),
                principal=self._label,
                masks=readers.masks(snapshot),
                used_by=readers.used_by,
                user_names=names,
                block_owners=owners,
                query=query.text,
                query_embedding=query.vector,
                without_vector=without_vector,
                vector_expected=query.origin == "caller",
                query_from=query.origin,
                space_id=None if space is None else space.space_id,
                extra_sections=arguments.as_mapping(extra_sections, "extra_sections"),
                totals=totals,
                degraded=degraded,
                once=once,
            ),
            engine.memory,
            searcher,
        )

    def _block_owners(self, trajectory_id: uuid.UUID) -> frozenset[bytes]:
        """Return everybody, and the user and the agent of a task and of the principal, if there are memory blocks."""
        if plan_of(self._engine.config).blocks is None:
            return frozenset()
        relations = self._engine.memory.snapshot.relations
        owners: list[bytes | None] = [NOBODY.bytes]
        tasks, identities = relations[TASKS], relations[IDENTITY.name]
        row = tasks.find(trajectory_id.bytes)
        if row >= 0:
            task, index = tasks.packed(row), tasks.layout.codec.index
            owners += [task[index("initiator_id")], task[index("user_id")], task[index("agent_id")]]
        if self._principal.kind is PrincipalKind.AGENT:
            owners.append(entity_named(identities, EntityType.AGENT, self._principal.id).id.bytes)
        return frozenset([key for owner in owners if owner is not None for key in ids_of(identities, owner)])

    def _user_names(self, trajectory_id: uuid.UUID) -> frozenset[str]:
        """Return the names of the user of a task, if windows have a section about the user."""
        if plan_of(self._engine.config).about is None:
            return frozenset()
        records = self._engine.memory.snapshot.relations
        task = records[TASKS].find(trajectory_id.bytes)
        user = None if task < 0 else user_of(self._engine.memory.entity(records[TASKS], task))
        return names_of_user(records[IDENTITY.name], user, self._principal)

    def _asked(self, readers: Readers, space: EmbeddingSpace | None, as_of: datetime | None, now: int) -> Asked:
        """Return the parameters shared by every search for records of a window."""
        return Asked(
            text="",
            vector=None,
            without_vector=None,
            space=space,
            kinds=(),
            limit=1,
            readers=readers,
            as_of_us=now if as_of is None else to_us(as_of, "as_of"),
            now_us=now,
        )

    def leave_behind(self, assembled: Assembled, trajectory_id: uuid.UUID, claim: Claim, erased: int) -> bool:
        """Store a window and its side effects; return False if others consumed its injections."""
        engine = self._engine
        config = engine.config
        window = assembled.window
        persistence = config.context_window_persistence
        if persistence.kind is not ContextPersistence.EPHEMERAL:
            build = _Stored(assembled, persistence.ttl_ms, config.hash)
            if config.write_behind.window_durability is WindowDurability.COMMIT:
                stored = build()

                def work(uow: UnitOfWork) -> bool:
                    check_erasures(uow, erased)
                    if not consume_all(uow, claim):
                        return False
                    uow.insert_new(CONTEXT_WINDOW, stored)
                    return True

                if not try_commit(claim, lambda: engine.store.write(work)):
                    return False
                self._pending.committed(claim)
            else:
                deferred = ((self._pending, None, claim),) if claim.rows else ()
                engine.behind.put((self._windows, window.window_id, (erased, build)), *deferred)
        elif claim.rows:
            engine.behind.put((self._pending, None, claim))
        at_us = to_us(window.assembled_at)
        if config.write_behind.usage_enabled:
            by = self._readers.acting_for(trajectory_id).used_by[0]
            engine.behind.put((self._shared.usage, None, (functools.partial(_owners_used, window), by, erased, at_us)))
        about = (EntityType.CONTEXT_WINDOW, window.window_id)
        event = functools.partial(
            engine.event,
            principal=self._label,
            trajectory_id=trajectory_id,
            scope_id=window.scope_id,
            subject=about,
            at_us=at_us,
        )
        if claim.rules:
            asked = [{"memory": rule.memory, "rule": rule.origin} for rule in claim.rules]
            engine.publish_later(functools.partial(event, EventType.CONTEXT_INJECT, payload={"asked": asked}), erased)
        engine.publish_later(functools.partial(_assembled, event, assembled), erased)
        return True

    def stored_window(self, window_id: uuid.UUID) -> StoredWindow:
        """Return a persisted window, also one that is not on disk yet. Raises: NotFound."""
        engine = self._engine
        engine.check_open()
        window = self._windows.pending(engine.behind, window_id)
        if window is None:
            plans = engine.store.plans[CONTEXT_WINDOW.name]
            with engine.store.read() as session:
                rows = session.run(plans.get, (window_id.bytes,))
            window = plans.codec.decode(rows[0]) if rows else None
        if window is not None and (window.expires_at is None or window.expires_at > from_us(engine.clock.now_us())):
            return window
        raise self._no_window(window_id)

    def _no_window(self, window_id: uuid.UUID) -> NotFound:
        """Return the error for a window that does not exist or is hidden: one text for both."""
        reason = "it was never persisted, has expired, or is not yours to read"
        if self._readers.everything:
            reason = "it was never persisted, or has expired"
        elif self._readers.serves_tasks:
            reason += "; pass user= to read a window of that user's task"
        message = f"window {window_id} was not found: {reason}"
        return NotFound(message, entity_type="context_window", id=window_id)

    def config_of(self, window: StoredWindow) -> CaliberConfig:
        """Return the configuration a window was made under. Raises: NotFound."""
        engine = self._engine
        if window.config_hash == engine.config.hash:
            return engine.config
        plans = engine.store.plans[CONFIG_DOCUMENT.name]
        with engine.store.read() as session:
            rows = session.run(plans.get, (window.config_hash,))
        if not rows:
            raise NotFound(entity_type="config", id=window.config_hash.hex())
        return CaliberConfig.from_canonical(plans.codec.decode(rows[0]).body)

    def recorded(self, window_id: uuid.UUID) -> tuple[StoredWindow, CaliberConfig, StoredContents]:
        """Return a window, its configuration, and its contents as far as the principal may see them by now.

        Windows hold what their principal could see. The application reads its windows of shared tasks, and for a user
        those of that user's tasks, and the user's.

        Raises: NotFound for a window of another principal, or of a task that this one may no longer see.
        """
        window, readers = self.stored_window(window_id), self._readers
        config, task, label = self.config_of(window), window.trajectory_id, principal_of(window.record)
        if readers.everything:
            return window, config, StoredContents(self._engine)
        serves = self._principal.serves
        own = readers.reads_window(task, label) if serves else self._wrote(label) and readers.sees_task(task.bytes)
        if not own:
            raise self._no_window(window_id)
        return window, config, StoredContents(self._engine, readers.acting_for(task))

    def _wrote(self, label: str) -> bool:
        """Return whether a label is one of the principal's, by any of its names."""
        identities = self._engine.memory.snapshot.relations[IDENTITY.name]
        return label == self._label or label in own_names(identities, self._principal)

    # --- the event log ---------------------------------------------------------------------------

    def trace(self, trajectory_id: uuid.UUID, event_type: EventType | str | None, limit: int | None) -> list[Event]:
        """Return the events of a trajectory and its session, newest first, those of a moment ago included."""
        engine = self._engine
        engine.check_open()
        count = TRACE_LIMIT if limit is None else arguments.as_whole(limit, "limit", 1)
        tasks = self._readers.within(engine.snapshot())[TASKS]
        number = tasks.find(trajectory_id.bytes)
        if number < 0 or not self._readers.sees_task(trajectory_id.bytes):
            raise self._readers.not_found(TASKS, trajectory_id)
        engine.behind.flush()
        path, name = "list_by_trajectory", None
        by: tuple[bytes | str, ...] = (trajectory_id.bytes,)
        if event_type is not None:
            name = str(arguments.as_text(event_type, "event_type"))
            if not (name.startswith("caliber_") or is_own(name)):
                name = arguments.as_enum(event_type, EventType, "event_type").value
            path, by = "list_by_trajectory_and_type", (*by, name)
        session = tasks.packed(number)[tasks.layout.codec.index("session_id")]
        rows = () if session is None else engine.read(lambda uow: uow.path_rows(EVENT, "list_by_subject", session))
        kind = codec_of(EVENT).index("event_type")
        of_session = [row for row in rows if name in (None, row[kind])]
        return newest(engine.store, path, by, count, self.event_filter, of_session)


def _assembled(event: Callable[..., Event], assembled: Assembled) -> Event:
    """Return the event of an assembly: its tokens, and how many candidates it let in and left out."""
    window, codes = assembled.window, assembled.decided.filled.codes
    included = len(entered(codes))
    payload = {
        "used_tokens": window.used_tokens,
        "max_tokens": window.max_tokens,
        "included": included,
        "excluded": len(codes) - included,
    }
    return event(EventType.CONTEXT_ASSEMBLE, payload=payload)


def open_windows(engine: Engine) -> None:
    """Register the parts that the windows of all principals share."""
    engine.add(PendingInjections(engine.memory))
    engine.add(WindowLog())


def _owners_used(window: ContextWindow) -> Iterator[tuple[str, uuid.UUID]]:
    """Yield the notes and artifacts that a window shows."""
    for section in window.sections:
        if section.section_type in _COUNTED:
            for source in section.sources:
                if source.id is not None:
                    yield source.source_type.value, source.id


class _Stored:
    """Builds the stored form of a window, once, on first use."""

    __slots__ = ("_assembled", "_config_hash", "_ttl_ms")

    def __init__(self, assembled: Assembled, ttl_ms: int | None, config_hash: bytes) -> None:
        self._assembled = assembled
        self._ttl_ms = ttl_ms
        self._config_hash = config_hash

    def __call__(self) -> StoredWindow:
        window = self._assembled.window
        expires = None if self._ttl_ms is None else from_us(to_us(window.assembled_at) + self._ttl_ms * 1_000)
        return StoredWindow(
            window_id=window.window_id,
            trajectory_id=window.trajectory_id,
            assembled_at=window.assembled_at,
            max_tokens=window.max_tokens,
            used_tokens=window.used_tokens,
            config_hash=self._config_hash,
            text_hash=self._assembled.text_hash,
            record=self._assembled.record,
            expires_at=expires,
        )
