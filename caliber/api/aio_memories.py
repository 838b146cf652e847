"""``Caliber.memory(name)`` for asyncio: the same calls with ``async``. Source: O-4, K-206."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from caliber.memories.memories import Memory
from caliber.model.agents import LockToken
from caliber.model.trust import TrustLabel
from caliber.model.windows import SearchResult


class AsyncMemory:
    """``Memory`` with ``async`` methods; each means what its namesake there means."""

    def __init__(self, memory: Memory, run: Callable[..., Awaitable[Any]]) -> None:
        self._memory = memory
        self._run = run

    @property
    def name(self) -> str:
        """See ``Memory.name``."""
        return self._memory.name

    @property
    def fields(self) -> tuple[str, ...]:
        """See ``Memory.fields``."""
        return self._memory.fields

    @property
    def Record(self) -> type[Any]:  # noqa: N802  (a class)
        """See ``Memory.Record``."""
        return self._memory.Record

    async def get(self, id: uuid.UUID | str) -> Any:  # noqa: A002  (as ``Memory.get``)
        """See ``Memory.get``."""
        return await self._run(self._memory.get, id)

    async def find(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (the pinned name)
        *,
        order_by: str | None = None,
        descending: bool = False,
        limit: int | None = None,
        after: Any = None,
        in_force: bool = True,
        **equal: Any,
    ) -> list[Any]:
        """See ``Memory.find``."""
        found: list[Any] = await self._run(
            self._memory.find,
            filter,
            order_by=order_by,
            descending=descending,
            limit=limit,
            after=after,
            in_force=in_force,
            **equal,
        )
        return found

    async def count(
        self,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``find``)
        *,
        in_force: bool = True,
        **equal: Any,
    ) -> int:
        """See ``Memory.count``."""
        count: int = await self._run(self._memory.count, filter, in_force=in_force, **equal)
        return count

    async def search(
        self,
        query: str,
        filter: str | Mapping[str, Any] | None = None,  # noqa: A002  (as ``Caliber.search``)
        *,
        limit: int | None = None,
        as_of: datetime | None = None,
        deadline_ms: int | None = None,
    ) -> SearchResult:
        """See ``Memory.search``."""
        result: SearchResult = await self._run(
            self._memory.search, query, filter, limit=limit, as_of=as_of, deadline_ms=deadline_ms
        )
        return result

    async def insert(
        self,
        record: Mapping[str, Any] | None = None,
        *,
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        occurred_at: datetime | None = None,
        trust: TrustLabel | str | None = None,
        idempotency_key: str | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
        **fields: Any,
    ) -> Any:
        """See ``Memory.insert``."""
        return await self._run(
            self._memory.insert,
            record,
            trajectory=trajectory,
            scope=scope,
            session=session,
            parent=parent,
            occurred_at=occurred_at,
            trust=trust,
            idempotency_key=idempotency_key,
            guard=guard,
            deadline_ms=deadline_ms,
            **fields,
        )

    async def insert_many(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        trajectory: uuid.UUID | str | None = None,
        scope: uuid.UUID | str | None = None,
        session: uuid.UUID | str | None = None,
        parent: uuid.UUID | str | None = None,
        trust: TrustLabel | str | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> list[Any]:
        """See ``Memory.insert_many``."""
        stored: list[Any] = await self._run(
            self._memory.insert_many,
            records,
            trajectory=trajectory,
            scope=scope,
            session=session,
            parent=parent,
            trust=trust,
            guard=guard,
            deadline_ms=deadline_ms,
        )
        return stored

    async def update(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``Memory.get``)
        changes: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
        **fields: Any,
    ) -> Any:
        """See ``Memory.update``."""
        return await self._run(
            self._memory.update, id, changes, version=version, guard=guard, deadline_ms=deadline_ms, **fields
        )

    async def archive(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``Memory.get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> Any:
        """See ``Memory.archive``."""
        return await self._run(self._memory.archive, id, version=version, guard=guard, deadline_ms=deadline_ms)

    async def delete(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``Memory.get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> None:
        """See ``Memory.delete``."""
        await self._run(self._memory.delete, id, version=version, guard=guard, deadline_ms=deadline_ms)

    def __repr__(self) -> str:
        return f"AsyncMemory({self.name})"
