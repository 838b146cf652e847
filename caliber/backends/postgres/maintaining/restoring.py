"""Restore of an archive into a tenant's PostgreSQL schema: empties, loads by COPY and verifies in one transaction.

Readers see the old records until the commit; writers wait. Grants, indexes and the schema itself stay.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

from psycopg import RawCursor

from caliber.backends.postgres import schema as schemas
from caliber.backends.postgres.bulk.copying import Connection, columns_in, copy_in, limit, pieces_of, sent
from caliber.backends.postgres.bulk.store import PostgresBulk
from caliber.backends.postgres.connecting.connection import PgConnection, Shared
from caliber.backends.postgres.connecting.dialling import connect
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.maintaining.maintenance import PostgresSnapshot
from caliber.backends.postgres.schema import catalog_in
from caliber.config.storage import PostgresConfig
from caliber.dump.archive import Archive
from caliber.dump.dumped_relations import dump_relations, record_relations, relations_to_empty
from caliber.kernels.copy.rows import CopyRows
from caliber.model.errors import Conflict, InternalError
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations import MEMORY_TYPE
from caliber.storage.bulk.load import ahead
from caliber.storage.compile.plan import compile_relation
from caliber.storage.write.changes import RELOAD_RECORD


def restore(
    shared: Shared,
    settings: PostgresConfig,
    archive: Archive,
    *,
    replace: bool,
    clock_us: Callable[[], int],
    progress: Progress,
) -> str:
    """Replace a tenant's records with an archive's; return its new epoch. A missing schema is created.

    Raises: Conflict for a store with records unless ``replace``; StorageError for an archive that is damaged;
        SchemaMismatch, Unavailable. The store is then as it was.
    """
    schema, lock_timeout_ms = settings.schema_name, settings.lock_timeout_ms
    schemas.create(shared, schema, exist_ok=True, clock_us=clock_us)
    opened = connect(shared)
    try:
        dialect = schemas.require_store(opened, schema, shared.store)
    finally:
        opened.close()

    @managed
    def lend() -> Iterator[PgConnection]:
        with closing(connect(shared)) as connection:
            yield connection

    bulk = PostgresBulk(shared, lend, dialect, lock_timeout_ms, clock_us, _nothing_loaded)
    with bulk.connection() as connection, connection.transaction():
        return _Restoring(connection, bulk, dialect, archive, progress).run(shared.store, replace)


def _nothing_loaded(_: PgConnection, relation: Relation, __: Sequence[int]) -> None:
    raise InternalError(f"a restore writes {relation.name} itself; full text is made anew when all is there")


class _Restoring:
    """One transaction that restores."""

    def __init__(
        self,
        connection: Connection,
        bulk: PostgresBulk,
        dialect: PostgresDialect,
        archive: Archive,
        progress: Progress,
    ) -> None:
        self._connection = connection
        self._target = bulk.target()
        self._dialect = dialect
        self._archive = archive
        self._progress = progress

    def run(self, store: str, replace: bool) -> str:
        # A process that does not know the newest schema would replace records that it does not know.
        limit(self._connection, self._target, "schema_version")
        there = catalog_in(self._connection, self._dialect.table(MEMORY_TYPE.name))
        tables = ", ".join(self._dialect.table(relation.name) for relation in there.relations)
        # Readers go on; writers wait, and then find another store.
        self._connection.execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE")
        records = (f"EXISTS (SELECT 1 FROM {self._dialect.table(each.name)})" for each in record_relations(there))
        if not replace and self._one(f"SELECT {' OR '.join(records)}"):
            raise Conflict(entity_type="store", id=store, reason="it holds records; --force replaces all of them")
        for name in (*self._derived(), *(relation.name for relation in relations_to_empty(there))):
            self._connection.execute(f"DELETE FROM {self._dialect.table(name)}")
        self._make_memories(there)
        done = 0
        for relation in dump_relations(self._archive.catalog):
            done = self._load(relation, done)
        self._archive.verify(PostgresSnapshot(self._connection, self._dialect), self._progress)
        return self._renew()

    def _make_memories(self, there: Catalog) -> None:
        """Replace the tables of declared memories that differ from the archive's."""
        coming = {
            relation.name: compile_relation(relation, self._dialect).create
            for relation in self._archive.catalog.declared_relations
        }
        kept: set[str] = set()
        for memory in there.memories.values():  # parents first: children of a replaced parent are replaced too
            relation, parent = memory.relation, there.memories.get(memory.type.parent or "")
            same = coming.get(relation.name) == compile_relation(relation, self._dialect).create
            if same and (parent is None or parent.relation.name in kept):
                kept.add(relation.name)
        for relation in reversed(there.declared_relations):
            if relation.name not in kept:
                self._connection.execute(f"DROP TABLE {self._dialect.table(relation.name)}".encode())
        for name, statements in coming.items():
            for statement in () if name in kept else statements:
                self._connection.execute(statement.encode())

    def _derived(self) -> list[str]:
        """Return the full-text tables: derived from the records, and rebuilt."""
        rows = self._connection.execute(
            "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY c.relname",
            (self._dialect.schema,),
        ).fetchall()
        return [name for (name,) in rows if name.startswith("text_")]

    def _load(self, relation: Relation, before: int) -> int:
        done = before

        def pieces(coming: Iterable[CopyRows]) -> Iterator[memoryview]:
            nonlocal done
            for rows in coming:
                yield from pieces_of(rows)
                done += rows.rows
                self._progress("restoring rows", done, self._archive.rows)

        made = (sent(relation, batch) for batch in self._archive.batches(relation))
        with closing(ahead(made)) as coming:
            copy_in(self._connection, columns_in(self._dialect.table(relation.name), relation), pieces(coming))
        member = self._archive.member(relation)
        if member is not None and member.last_ordinal:
            sequence = self._target.sequence(relation.name)
            # Never back: this takes effect at once, also when all the rest is undone, and others may hold numbers.
            text = "SELECT setval($1::regclass, greatest($2::bigint, pg_sequence_last_value($1::regclass)))"
            with RawCursor(self._connection) as raw:
                raw.execute(text, (sequence, member.last_ordinal))
        return done

    def _renew(self) -> str:
        """Begin a new epoch, which makes every follower reload the store."""
        epoch = str(uuid.uuid4())
        change, migration = self._dialect.table("change"), self._dialect.table("schema_migration")
        with RawCursor(self._connection) as raw:
            raw.execute(
                f"INSERT INTO {change} (writer, entries, created_at) VALUES ($1, $2, $3)",
                (self._target.writer, RELOAD_RECORD, self._target.now),
            )
            raw.execute(f"UPDATE {migration} SET epoch = $1", (epoch,))
        return epoch

    def _one(self, text: str) -> Any:
        row = self._connection.execute(text).fetchone()
        assert row is not None
        return cast("tuple[Any, ...]", row)[0]
