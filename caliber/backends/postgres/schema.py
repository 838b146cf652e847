"""DDL of a tenant's PostgreSQL schema: creates, migrates and checks it, one transaction each."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg

from caliber.backends.postgres.connecting.connection import BEGIN, PgConnection, Shared, simple
from caliber.backends.postgres.connecting.dialling import connect
from caliber.backends.postgres.dialect import TEMPLATE, PostgresDialect, dialect_of, placed
from caliber.backends.postgres.searching.search_plans import kept_plan, spoil_of, state_table
from caliber.backends.postgres.statements import ADVISORY_CLASS, irregular
from caliber.model.errors import Conflict, SchemaMismatch, StorageError, Unavailable
from caliber.model.process.interrupts import managed
from caliber.model.time import from_us
from caliber.schema.catalog import BUILT_IN, Catalog
from caliber.schema.memory_types import MemoryType
from caliber.schema.relations import MEMORY_TYPE, RELATIONS, SCHEMA_MIGRATION, TENANT
from caliber.schema.relations.storage import Migration, StoredMemory
from caliber.storage.compile.plan import Plan, RelationPlans, compile_relation, plans_of
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
from caliber.storage.migrate.migrations import (
    baseline_of,
    check_migratable,
    check_versions,
    checksum_of,
    migration_of,
    missing_versions,
    shuts_out,
    statements_of,
)
from caliber.storage.sql.full_text import unpacked_memories
from caliber.storage.stored_memories import first_memories, stored_memories

OLDEST_SERVER: Final = 140_000
OLDEST_VECTOR: Final = (0, 5)


_FIELDS: Final = tuple(field.name for field in dataclasses.fields(RelationPlans))


@functools.lru_cache(maxsize=16)
def compile_plans(dialect: PostgresDialect) -> dict[str, RelationPlans]:
    """Return the regular statements of every relation, for one schema. They are compiled once: tenants are many."""
    return {
        name: RelationPlans(**{field: _placed(getattr(plans, field), dialect.schema) for field in _FIELDS})
        for name, plans in _template(dialect.vector_schema).items()
    }


@functools.lru_cache(maxsize=4)
def _template(vector_schema: str) -> dict[str, RelationPlans]:
    dialect = dialect_of(TEMPLATE, vector_schema)
    return {relation.name: compile_relation(relation, dialect) for relation in RELATIONS}


def _placed(part: Any, schema: str) -> Any:
    """Return a part of a relation's plans for a store's schema."""
    if isinstance(part, Plan):
        return placed(part, schema)
    if isinstance(part, dict):
        return {key: placed(plan, schema) for key, plan in part.items()}
    if isinstance(part, tuple):
        return tuple(statement.replace(TEMPLATE, schema) for statement in part)
    return part


def check_server(connection: PgConnection, store: str) -> None:
    """Refuse servers that are too old. Raises: SchemaMismatch."""
    if connection.pg.server_version < OLDEST_SERVER:
        major = connection.pg.server_version // 10_000
        raise SchemaMismatch(store=store, reason=f"PostgreSQL {major} is older than 14; upgrade the server")


def find_vector(connection: PgConnection, store: str) -> str | None:
    """Return the schema that pgvector lives in, or None where it is not installed. Raises: SchemaMismatch."""
    rows = connection.command(
        "SELECT n.nspname, e.extversion, t.oid FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace"
        " JOIN pg_type AS t ON t.typnamespace = n.oid AND t.typname = 'vector' WHERE e.extname = 'vector'"
    )
    if not rows:
        return None
    schema, version, oid = rows[0]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_VECTOR:
        raise SchemaMismatch(store=store, reason=f"pgvector {version} is older than 0.5; ALTER EXTENSION vector UPDATE")
    connection.shared.vector_oid = int(oid)
    connection.shared.vector_version = tuple(int(part) for part in version.split(".")[:2])
    return str(schema)


def create(
    shared: Shared,
    schema: str,
    *,
    exist_ok: bool,
    clock_us: Callable[[], int],
    declared: Sequence[MemoryType] = (),
) -> None:
    """Create a tenant's schema with everything in it, or nothing.

    Raises: Conflict when it is there already and ``exist_ok`` is false; SchemaMismatch for a schema that is not ours,
        a server that is too old or one without pgvector; Unavailable.
    """
    with alone(shared, schema) as connection:
        check_server(connection, shared.store)
        vector_schema = find_vector(connection, shared.store) or _install_vector(connection, shared.store)
        dialect = dialect_of(schema, vector_schema)
        plans = compile_plans(dialect)
        if _holds_something(connection, schema):
            if not exist_ok:
                raise Conflict(
                    entity_type="store", id=schema, reason="it exists already; open it, or pass exist_ok=True"
                )
            check_schema(connection, plans, shared.store)
            return
        statements = [statement for relation in plans.values() for statement in relation.create]
        statements += state_table(dialect)
        memories = first_memories(declared, clock_us())
        memory_plans = plans_of(BUILT_IN.with_memories(memories), plans, dialect)
        own_statements = [line for name in memory_plans if name not in plans for line in memory_plans[name].create]
        # A user with more rights may have created the empty schema for us.
        if not _exists(connection, schema):
            connection.command(f"CREATE SCHEMA {quote(schema)}")
        connection.exchange(*(simple(statement) for statement in (*statements, *own_statements)))
        _record(connection, plans, baseline_of(checksum_of(statements), clock_us()))
        plan = plans[MEMORY_TYPE.name]
        for memory in memories:
            connection.run(plan.insert, plan.codec.encode(memory))


def migrate(shared: Shared, schema: str, *, clock_us: Callable[[], int], lock_timeout_ms: int = 0) -> list[int]:
    """Apply every missing schema version, all or none; return the versions applied.

    It waits for running transactions, and other writers queue behind it: at most ``lock_timeout_ms``.
    """
    with alone(shared, schema) as connection:
        connection.command(f"SET LOCAL lock_timeout = {lock_timeout_ms}")  # behind another migrator it waits as it must
        dialect, plans, applied = applied_versions(connection, shared, schema)
        missing = missing_versions(applied)
        connection.command(f"SET LOCAL search_path TO {quote(schema)}, pg_temp")
        if shuts_out(applied, missing):
            # Each transaction of a store reads it first: when this one has the lock, older processes are out.
            connection.command(f"LOCK TABLE {SCHEMA_MIGRATION.name} IN ACCESS EXCLUSIVE MODE")
        for version in missing:
            statements = statements_of(version, dialect)
            for statement in statements:
                connection.command(statement)
            _record(connection, plans, migration_of(version, checksum_of(statements), clock_us(), applied[0].epoch))
    validate_checks(shared, schema, lock_timeout_ms)
    return list(missing)


def validate_checks(shared: Shared, schema: str, lock_timeout_ms: int) -> None:
    """Validate every check that is not validated, also those of a killed migration.

    Others read and write meanwhile, which they could not while a check is replaced.
    """
    with alone(shared, schema) as connection:
        connection.command(f"SET LOCAL lock_timeout = {lock_timeout_ms}")
        found = connection.command(
            "SELECT format('ALTER TABLE %s VALIDATE CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint"
            f" WHERE connamespace = '{schema}'::regnamespace AND contype = 'c' AND NOT convalidated"
            " ORDER BY conrelid, conname"
        )
        for (statement,) in found:
            connection.command(statement)


def check_schema(connection: PgConnection, plans: dict[str, RelationPlans], store: str) -> str:
    """Return the epoch of a store that this version may use. Raises: SchemaMismatch."""
    plan = plans[SCHEMA_MIGRATION.name]
    applied = [plan.codec.decode(row) for row in connection.run(plan.lists["list_all"], ())]
    check_versions(store, applied)
    return str(applied[0].epoch)


def dialect_for(connection: PgConnection, schema: str, store: str) -> PostgresDialect:
    """Return the dialect of a schema that need not be there; pgvector is installed where it is not."""
    return dialect_of(schema, find_vector(connection, store) or _install_vector(connection, store))


def require_store(connection: PgConnection, schema: str, store: str) -> PostgresDialect:
    """Return the dialect of an existing store.

    Raises: Unavailable when there is none; SchemaMismatch for a schema that is not ours, or without pgvector.
    """
    check_server(connection, store)
    vector_schema = find_vector(connection, store)
    dialect = dialect_of(schema, vector_schema or "public")
    if not _exists(connection, schema):
        raise Unavailable(
            f"{store} does not exist; run `caliber create`, or check storage.schema_name",
            reason="missing",
            retryable=False,
        )
    _require_ours(connection, schema, store)
    if vector_schema is None:
        raise SchemaMismatch(store=store, reason=_NO_VECTOR)
    return dialect


_NO_VECTOR: Final = "the database has no pgvector; CREATE EXTENSION vector there (its package must be on the server)"


@managed
def alone(shared: Shared, schema: str) -> Iterator[PgConnection]:
    """Run in one transaction that no other creator or migrator of the schema runs beside."""
    connection = connect(shared)
    try:
        connection.command(BEGIN)
        connection.command(f"SELECT pg_advisory_xact_lock({ADVISORY_CLASS}, hashtext('{schema}'))")
        yield connection
        connection.command("COMMIT")
    finally:
        connection.reset()
        connection.close()


def applied_versions(
    connection: PgConnection, shared: Shared, schema: str
) -> tuple[PostgresDialect, dict[str, RelationPlans], list[Migration]]:
    """Return the dialect and the plans of an existing store, and the schema versions it has.

    Raises: SchemaMismatch for a store that cannot be migrated.
    """
    dialect = require_store(connection, schema, shared.store)
    plans = compile_plans(dialect)
    plan = plans[SCHEMA_MIGRATION.name]
    applied = [plan.codec.decode(row) for row in connection.run(plan.lists["list_all"], ())]
    check_migratable(shared.store, applied)
    return dialect, plans, applied


def _record(connection: PgConnection, plans: dict[str, RelationPlans], row: Migration) -> None:
    plan = plans[SCHEMA_MIGRATION.name]
    connection.run(plan.insert, plan.codec.encode(row))


def _install_vector(connection: PgConnection, store: str) -> str:
    alone = not connection.in_transaction
    try:
        if alone:
            connection.command(BEGIN)
        # Extensions belong to the database: creators of other schemas may want it at the same moment.
        connection.command(f"SELECT pg_advisory_xact_lock({ADVISORY_CLASS}, 0)")
        connection.command("CREATE EXTENSION IF NOT EXISTS vector")
        if alone:
            connection.command("COMMIT")
    except (StorageError, Unavailable) as error:
        raise SchemaMismatch(store=store, reason=_NO_VECTOR) from error
    found = find_vector(connection, store)
    assert found is not None
    return found


def _exists(connection: PgConnection, schema: str) -> bool:
    return bool(connection.command(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'"))


def _holds_something(connection: PgConnection, schema: str) -> bool:
    """Return whether a schema holds tables. Raises: SchemaMismatch when they are not ours."""
    rows = connection.command(
        "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
    )
    if rows:
        _require_ours(connection, schema, f"schema {schema}")
    return bool(rows)


COMMENTS: Final = (
    "SELECT c.relname::text, obj_description(c.oid, 'pg_class') FROM pg_class AS c JOIN pg_namespace AS n"
    " ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relname IN ('schema_migration', 'tenant')"
)


def is_store(comments: Mapping[str, str | None]) -> bool:
    """Return whether a schema with such comments on its tables is a store, and no directory of tenants."""
    ours = comments.get(SCHEMA_MIGRATION.name) == SCHEMA_MIGRATION.comment
    return ours and comments.get(TENANT.name) != TENANT.comment


def _require_ours(connection: PgConnection, schema: str, store: str) -> None:
    if not is_store({str(name): comment for name, comment in connection.command(COMMENTS.format(schema=schema))}):
        raise SchemaMismatch(store=store, reason="the schema is not a CALIBER store; choose another name")


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
