"""The same memory for asyncio: ``async with await caliber.aio.open(config) as memory``.

Calls run on a bounded pool of threads, so that the event loop never waits for a disk or a lock; kernels and
SQLite release the interpreter lock there. At most ``aio.queue`` calls wait for a thread; more wait in the loop.
A call that is cancelled before a thread took it never runs. One that a thread already took runs to its end, so
that nothing is half-written; its result is dropped. Source: O-4, K-206.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from caliber.api import opening
from caliber.api.aio_agents import AsyncLocks
from caliber.api.aio_memories import AsyncMemory
from caliber.api.aio_threads import CallThreads
from caliber.api.caliber import Caliber
from caliber.dsl.loading import ConfigSource
from caliber.llm.protocols import EmbeddingProvider, SummarizationProvider
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.erasure import ForgetReport
from caliber.model.errors import DTypeError
from caliber.model.events import Event, EventType
from caliber.model.ids import Id
from caliber.model.knowledge import Note, NoteType
from caliber.model.references import EntityRef
from caliber.model.schedules import ScheduledRule
from caliber.model.search import ReadConsistency
from caliber.model.time import Clock
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
    Turn,
    TurnRole,
)
from caliber.model.trust import TrustLabel
from caliber.model.windows import ContextWindow, SearchResult
from caliber.storage.protocol import ConnectionPool

T = TypeVar("T")

__all__ = ["AsyncCaliber", "create", "open"]


def __dir__() -> list[str]:
    return __all__


async def open(  # noqa: A001  (the pinned name)
    config: ConfigSource,
    *,
    tenant: str | None = None,
    principal: Principal | None = None,
    embedding_provider: EmbeddingProvider | None = None,
    previous_embedding_provider: EmbeddingProvider | None = None,
    summarization_provider: SummarizationProvider | None = None,
    clock: Clock | None = None,
    connection_pool: ConnectionPool | None = None,
) -> AsyncCaliber:
    """Open an existing store. Raises: as ``caliber.open``."""
    call = functools.partial(
        opening.open,
        config,
        tenant=tenant,
        principal=principal,
        embedding_provider=embedding_provider,
        previous_embedding_provider=previous_embedding_provider,
        summarization_provider=summarization_provider,
        clock=clock,
        connection_pool=connection_pool,
    )
    memory = await asyncio.get_running_loop().run_in_executor(None, call)
    settings = memory.config.aio
    return AsyncCaliber(memory, CallThreads(settings.workers, settings.queue))


async def create(config: ConfigSource, *, tenant: str | None = None, exist_ok: bool = False) -> None:
    """Create an empty store. Raises: as ``caliber.create``."""
    call = functools.partial(opening.create, config, tenant=tenant, exist_ok=exist_ok)
    await asyncio.get_running_loop().run_in_executor(None, call)


class AsyncCaliber:
    """``Caliber`` with ``async`` methods; each means what its namesake there means. Belongs to one event loop."""

    def __init__(self, memory: Caliber, pool: CallThreads) -> None:
        self._memory = memory
        self._pool = pool

    @property
    def sync(self) -> Caliber:
        """The same handle for synchronous code."""
        return self._memory

    @property
    def agents(self) -> AsyncLocks:
        """See ``Caliber.agents``."""
        return AsyncLocks(self._memory.agents, self._run)

    async def _run(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        return await self._pool.run(functools.partial(method, *args, **options))

    async def start_session(self, *, initiator: EntityRef, deadline_ms: int | None = None) -> Session:
        """See ``Caliber.start_session``."""
        return await self._run(self._memory.start_session, initiator=initiator, deadline_ms=deadline_ms)

    async def end_session(self, session_id: Id, *, deadline_ms: int | None = None) -> Session:
        """See ``Caliber.end_session``."""
        return await self._run(self._memory.end_session, session_id, deadline_ms=deadline_ms)

    async def start_trajectory(
        self,
        goal: str,
        *,
        initiator: EntityRef,
        parent: Id | None = None,
        session: Id | None = None,
        tags: Sequence[str] = (),
        deadline_ms: int | None = None,
    ) -> Trajectory:
        """See ``Caliber.start_trajectory``."""
        return await self._run(
            self._memory.start_trajectory,
            goal,
            initiator=initiator,
            parent=parent,
            session=session,
            tags=tags,
            deadline_ms=deadline_ms,
        )

    async def complete_trajectory(
        self,
        trajectory_id: Id,
        *,
        status: OutcomeStatus | str,
        summary: str,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> TrajectoryOutcome:
        """See ``Caliber.complete_trajectory``."""
        return await self._run(
            self._memory.complete_trajectory,
            trajectory_id,
            status=status,
            summary=summary,
            guard=guard,
            deadline_ms=deadline_ms,
        )

    async def suspend_trajectory(self, trajectory_id: Id, *, deadline_ms: int | None = None) -> Trajectory:
        """See ``Caliber.suspend_trajectory``."""
        return await self._run(self._memory.suspend_trajectory, trajectory_id, deadline_ms=deadline_ms)

    async def resume_trajectory(self, trajectory_id: Id, *, deadline_ms: int | None = None) -> Trajectory:
        """See ``Caliber.resume_trajectory``."""
        return await self._run(self._memory.resume_trajectory, trajectory_id, deadline_ms=deadline_ms)

    async def open_scope(self, trajectory_id: Id, *, deadline_ms: int | None = None) -> Scope:
        """See ``Caliber.open_scope``."""
        return await self._run(self._memory.open_scope, trajectory_id, deadline_ms=deadline_ms)

    async def close_scope(
        self, scope_id: Id, *, guard: LockToken | None = None, deadline_ms: int | None = None
    ) -> Scope:
        """See ``Caliber.close_scope``."""
        return await self._run(self._memory.close_scope, scope_id, guard=guard, deadline_ms=deadline_ms)

    async def current_scope(self, trajectory_id: Id) -> Scope | None:
        """See ``Caliber.current_scope``."""
        return await self._run(self._memory.current_scope, trajectory_id)

    async def append_turn(
        self,
        scope_id: Id,
        *,
        role: TurnRole | str,
        content: str | bytes,
        name: str | None = None,
        tool_calls: Sequence[ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        occurred_at: datetime | None = None,
        idempotency_key: str | None = None,
        model_id: str | None = None,
        token_count: int | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> Turn:
        """See ``Caliber.append_turn``."""
        return await self._run(
            self._memory.append_turn,
            scope_id,
            role=role,
            content=content,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            occurred_at=occurred_at,
            idempotency_key=idempotency_key,
            model_id=model_id,
            token_count=token_count,
            trust=trust,
            guard=guard,
            deadline_ms=deadline_ms,
        )

    async def append_turns(
        self,
        scope_id: Id,
        turns: Iterable[Mapping[str, Any]],
        *,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> list[Turn]:
        """See ``Caliber.append_turns``."""
        return await self._run(self._memory.append_turns, scope_id, turns, guard=guard, deadline_ms=deadline_ms)

    async def create_artifact(
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
        deadline_ms: int | None = None,
    ) -> Artifact:
        """See ``Caliber.create_artifact``."""
        return await self._run(
            self._memory.create_artifact,
            scope_id,
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
            guard=guard,
            deadline_ms=deadline_ms,
        )

    async def add_note(
        self,
        *,
        entity: str,
        entity_type: str,
        note_type: NoteType | str,
        content: str,
        confidence: float,
        valid_from: datetime | None = None,
        valid_until: datetime | None = None,
        importance: float | None = None,
        occurred_at: datetime | None = None,
        namespace: str | None = None,
        tags: Sequence[str] = (),
        visible_to: Sequence[str] | None = None,
        source_trajectory_ids: Sequence[Id] = (),
        idempotency_key: str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> Note:
        """See ``Caliber.add_note``."""
        return await self._run(
            self._memory.add_note,
            entity=entity,
            entity_type=entity_type,
            note_type=note_type,
            content=content,
            confidence=confidence,
            valid_from=valid_from,
            valid_until=valid_until,
            importance=importance,
            occurred_at=occurred_at,
            namespace=namespace,
            tags=tags,
            visible_to=visible_to,
            source_trajectory_ids=source_trajectory_ids,
            idempotency_key=idempotency_key,
            trust=trust,
            guard=guard,
            deadline_ms=deadline_ms,
        )

    async def consolidate_notes(self, trajectory_id: Id, *, deadline_ms: int | None = None) -> list[Note]:
        """See ``Caliber.consolidate_notes``."""
        return await self._run(self._memory.consolidate_notes, trajectory_id, deadline_ms=deadline_ms)

    async def get(self, id: Id) -> Any:  # noqa: A002  (the pinned name)
        """See ``Caliber.get``."""
        return await self._run(self._memory.get, id)

    def memory(self, name: str) -> AsyncMemory:
        """See ``Caliber.memory``; it does not wait for anything."""
        return AsyncMemory(self._memory.memory(name), self._run)

    async def assemble_context(
        self,
        trajectory_id: Id,
        *,
        query: str | None = None,
        query_embedding: Any = None,
        max_tokens: int | None = None,
        as_of: datetime | None = None,
        extra_sections: Mapping[str, str | None] | None = None,
        consistency: ReadConsistency | str | None = None,
        deadline_ms: int | None = None,
    ) -> ContextWindow:
        """See ``Caliber.assemble_context``."""
        return await self._run(
            self._memory.assemble_context,
            trajectory_id,
            query=query,
            query_embedding=query_embedding,
            max_tokens=max_tokens,
            as_of=as_of,
            extra_sections=extra_sections,
            consistency=consistency,
            deadline_ms=deadline_ms,
        )

    async def search(
        self,
        query: str,
        *,
        kinds: Sequence[str] | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | str | None = None,  # noqa: A002  (the pinned name)
        as_of: datetime | None = None,
        consistency: ReadConsistency | str | None = None,
        deadline_ms: int | None = None,
    ) -> SearchResult:
        """See ``Caliber.search``."""
        return await self._run(
            self._memory.search,
            query,
            kinds=kinds,
            limit=limit,
            filter=filter,
            as_of=as_of,
            consistency=consistency,
            deadline_ms=deadline_ms,
        )

    async def search_many(
        self,
        queries: Iterable[str],
        *,
        kinds: Sequence[str] | None = None,
        limit: int | None = None,
        filter: Mapping[str, Any] | str | None = None,  # noqa: A002  (the pinned name)
        as_of: datetime | None = None,
        consistency: ReadConsistency | str | None = None,
        deadline_ms: int | None = None,
    ) -> list[SearchResult]:
        """See ``Caliber.search_many``."""
        return await self._run(
            self._memory.search_many,
            queries,
            kinds=kinds,
            limit=limit,
            filter=filter,
            as_of=as_of,
            consistency=consistency,
            deadline_ms=deadline_ms,
        )

    async def explain(self, window_id: Id, *, exclusion: Id | None = None) -> dict[str, Any]:
        """See ``Caliber.explain``."""
        return await self._run(self._memory.explain, window_id, exclusion=exclusion)

    async def replay(self, window_id: Id) -> ContextWindow:
        """See ``Caliber.replay``."""
        return await self._run(self._memory.replay, window_id)

    async def trace(
        self, trajectory_id: Id, *, event_type: EventType | str | None = None, limit: int | None = None
    ) -> list[Event]:
        """See ``Caliber.trace``."""
        return await self._run(self._memory.trace, trajectory_id, event_type=event_type, limit=limit)

    async def stats(self) -> dict[str, Any]:
        """See ``Caliber.stats``."""
        return await self._run(self._memory.stats)

    async def verify(self) -> list[str]:
        """See ``Caliber.verify``."""
        return await self._run(self._memory.verify)

    async def maintain(self) -> dict[str, int]:
        """See ``Caliber.maintain``."""
        return await self._run(self._memory.maintain)

    async def schedules(self) -> list[ScheduledRule]:
        """See ``Caliber.schedules``."""
        return await self._run(self._memory.schedules)

    async def run_due(self) -> int:
        """See ``Caliber.run_due``."""
        return await self._run(self._memory.run_due)

    async def forget(
        self,
        *,
        entity: EntityRef | None = None,
        texts: Sequence[str] = (),
        dry_run: bool = False,
        even_if_shared: bool = False,
        wait_ms: int | None = None,
        scrub_log: bool = False,
    ) -> ForgetReport:
        """See ``Caliber.forget``."""
        return await self._run(
            self._memory.forget,
            entity=entity,
            texts=texts,
            dry_run=dry_run,
            even_if_shared=even_if_shared,
            wait_ms=wait_ms,
            scrub_log=scrub_log,
        )

    async def purge_trajectory(
        self, trajectory_id: Id, *, dry_run: bool = False, wait_ms: int | None = None, scrub_log: bool = False
    ) -> ForgetReport:
        """See ``Caliber.purge_trajectory``."""
        return await self._run(
            self._memory.purge_trajectory, trajectory_id, dry_run=dry_run, wait_ms=wait_ms, scrub_log=scrub_log
        )

    async def resume_forgetting(self, *, wait_ms: int | None = None) -> list[ForgetReport]:
        """See ``Caliber.resume_forgetting``."""
        return await self._run(self._memory.resume_forgetting, wait_ms=wait_ms)

    async def flush(self) -> None:
        """See ``Caliber.flush``."""
        await self._run(self._memory.flush)

    def acting_as(self, principal: Principal) -> AsyncCaliber:
        """See ``Caliber.acting_as``; it does not wait for anything."""
        return AsyncCaliber(self._memory.acting_as(principal), self._pool)

    def on_event(
        self, subscriber: Callable[[Event], None], *, event_type: str | None = None, elsewhere: bool = False
    ) -> Callable[[], None]:
        """See ``Caliber.on_event``; ``subscriber`` is called in the running event loop, and must not wait there."""
        if inspect.iscoroutinefunction(subscriber):
            raise DTypeError(field="subscriber", expected="a plain callable", got="a coroutine function")
        loop = asyncio.get_running_loop()
        bus = self._memory.events

        def hand_over(event: Event) -> None:
            loop.call_soon_threadsafe(bus.deliver, subscriber, event)

        return self._memory.on_event(hand_over, event_type=event_type, elsewhere=elsewhere)

    async def close(self) -> None:
        """See ``Caliber.close``."""
        # On a thread of its own: the pool may be full of calls that only closing will end.
        await asyncio.get_running_loop().run_in_executor(None, self._memory.close)
        self._pool.shut()

    async def __aenter__(self) -> AsyncCaliber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
