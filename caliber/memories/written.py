"""Writes to a memory: insert, change, remove; ``Records`` does so for those that were declared.

What every store has is written by calls of its own, which the refusal names: there is one way to do it.
"""

# ruff: noqa: ARG002  (each refuses, whatever it is given)

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from caliber.model.agents import LockToken
from caliber.model.errors import InvalidValue
from caliber.model.trust import TrustLabel
from caliber.schema.memories import MemoryBinding


class Written:
    """The half of a memory that is written to."""

    _name: str
    _bound: MemoryBinding

    @property
    def name(self) -> str:
        """The name of the memory."""
        return self._name

    def insert(
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
        """Store a record, given as a mapping, by keyword or both, and return it; durable when this returns.

        ``trajectory``, ``scope``, ``session`` and ``parent`` are ids of what it belongs to; what is above says where
        it is. The same idempotency key gives the same record. ``trust`` left out is ``trust.notes``.

        Raises: InputError kinds, all that is wrong in one error; NotFound, ConstraintViolation (a scope or session that
            has ended), Conflict (the key came with other content or another label), LockExpired; InvalidValue for a
            memory that is written by calls of its own.
        """
        raise self._refusal()

    def insert_many(
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
        """Store records in order, all or none.

        Where they differ in that, each may say itself where it belongs and when it was: ``scope_id``, ``parent_id``,
        ``occurred_at``, ``idempotency_key`` and so on.

        Raises: as ``insert``.
        """
        raise self._refusal()

    def update(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        changes: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
        **fields: Any,
    ) -> Any:
        """Change fields of a record and return it as stored; what it said is kept for replay.

        Other words without ``trust`` are trusted no more than ``trust.notes``.

        Raises: as ``insert``; NotFound; Conflict when ``version`` is no longer that of the record.
        """
        raise self._refusal()

    def archive(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> Any:
        """Take a record out of use, without deleting it, and return it. Raises: as ``update``."""
        raise self._refusal()

    def delete(
        self,
        id: uuid.UUID | str,  # noqa: A002  (as ``get``)
        *,
        version: int | None = None,
        guard: LockToken | None = None,
        deadline_ms: int | None = None,
    ) -> None:
        """Delete a record and those that belong to it, keeping what they said for replay. Raises: as ``update``."""
        raise self._refusal()

    def _refusal(self) -> InvalidValue:
        known = self._bound.relation.memory
        assert known is not None  # a declared memory is written here
        reason = f"{self._name} is written by {known.written_by}(...) and the calls beside it"
        return InvalidValue(field="memory", reason=reason)
