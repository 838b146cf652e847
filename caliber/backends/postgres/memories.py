"""Declared memories of a tenant in PostgreSQL: reads their catalog, plans and takes steps of their migration."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg

from caliber.backends.postgres.connecting.connection import PgConnection, Shared, simple
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.schema import alone, applied_versions
from caliber.backends.postgres.searching.full_text_plans import kept_plan, spoil_of
from caliber.backends.postgres.statements import irregular
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.relations import MEMORY_TYPE
from caliber.schema.relations.memory import StoredMemory
from caliber.storage.compile.spelling import quote
from caliber.storage.migrate.memory_steps import (
    MemoryStep,
    MigrationPlan,
    Wanted,
    left_alone,
    memory_steps,
    next_step,
    with_texts,
)
from caliber.storage.migrate.migrations import missing_versions
from caliber.storage.sql.full_text import unpacked_memories
from caliber.storage.stored_memories import stored_memories

Connection = psycopg.Connection[Any]


def catalog_in(connection: Connection, table: str) -> Catalog:
    """Return the catalog of a store, asked on a driver's own connection; ``table`` is that of ``memory_type``."""
    names = ", ".join(quote(column.name) for column in MEMORY_TYPE.columns)
    rows = connection.execute(f"SELECT {names} FROM {table} ORDER BY code".encode()).fetchall()
    return BUILT_IN.with_memories(StoredMemory(*row) for row in rows)


def _with_texts(connection: PgConnection, dialect: PostgresDialect, step: MemoryStep) -> MemoryStep:
    """Return a step as it has to be taken in a store that has full text."""
    rows = connection.run(kept_plan(dialect), ())
    return with_texts(step, unpacked_memories(rows[0][0]) if rows else None, spoil_of(dialect))


def take_step(
    shared: Shared, schema: str, target: Wanted, *, clock_us: Callable[[], int], lock_timeout_ms: int
) -> bool:
    """Take the next step towards the target memories; return whether there was one.

    It waits for running transactions, and other writers queue behind it: at most ``lock_timeout_ms``.
    """
    with alone(shared, schema) as connection:
        connection.command(f"SET LOCAL lock_timeout = {lock_timeout_ms}")
        dialect, plans, _ = applied_versions(connection, shared, schema)
        step = next_step(shared.store, stored_memories(connection, plans), target, dialect, from_us(clock_us()))
        if step is None:
            return False
        statements = _with_texts(connection, dialect, step).statements
        if statements:
            connection.exchange(*(simple(statement) for statement in statements))
        plan = plans[MEMORY_TYPE.name]
        connection.run(plan.insert if step.is_new else plan.upsert, plan.codec.encode(step.row))
        connection.run(irregular(dialect)["change.insert"], (os.urandom(16), step.record, clock_us()))
        return True


def planned(shared: Shared, schema: str, target: Wanted, *, clock_us: Callable[[], int]) -> MigrationPlan:
    """Return the steps that would run."""
    with alone(shared, schema) as connection:
        dialect, plans, applied = applied_versions(connection, shared, schema)
        rows = stored_memories(connection, plans)
        found = memory_steps(shared.store, rows, target, dialect, from_us(clock_us()))
        steps = [_with_texts(connection, dialect, step) for step in found]
        missing = missing_versions(applied)
    return MigrationPlan(missing, tuple(steps), tuple(left_alone(rows, target)))
