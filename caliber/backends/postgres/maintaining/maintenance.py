"""Maintenance of a PostgreSQL schema: status, vacuum, views, consistent snapshots, and SQL for integrity checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from psycopg.errors import DependentObjectsStillExist

from caliber.backends.postgres.bulk.copying import Connection, limit, read
from caliber.backends.postgres.bulk.store import PostgresBulk
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.schema import catalog_in
from caliber.backends.postgres.statements import own
from caliber.dump.dumped_relations import BATCH_ROWS
from caliber.model.errors import Conflict, InternalError
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.compile.plan import RelationPlans, index_names
from caliber.storage.compile.session import StatementSession
from caliber.storage.compile.spelling import literal
from caliber.storage.maintain.maintenance import FollowerStatus, IndexStatus, RelationStatus, StoreStatus, Vacuumed
from caliber.storage.maintain.views import MARK, views_for

_SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"

_TABLES: Final = (
    "SELECT c.relname::text, pg_table_size(c.oid), pg_indexes_size(c.oid), coalesce(s.n_dead_tup, 0)"
    " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " LEFT JOIN pg_stat_user_tables AS s ON s.relid = c.oid"
    " WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY c.relname"
)
_INDEXES: Final = (
    "SELECT i.relname::text, t.relname::text, pg_relation_size(i.oid), x.indisvalid, coalesce(s.idx_scan, 0)"
    " FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid"
    " JOIN pg_namespace AS n ON n.oid = t.relnamespace LEFT JOIN pg_stat_user_indexes AS s ON s.indexrelid = i.oid"
    " WHERE n.nspname = %s ORDER BY i.relname"
)
_CONNECTIONS: Final = (
    "SELECT count(*) FILTER (WHERE datname = current_database()), current_setting('max_connections')::int,"
    " extract(epoch FROM max(now() - xact_start) FILTER (WHERE backend_type = 'client backend'"
    " AND pid <> pg_backend_pid()))::float8 FROM pg_stat_activity"
)
_FOLLOWERS: Final = (
    "SELECT application_name, coalesce(state, 'not shown to this user'), CASE WHEN pg_is_in_recovery() THEN NULL"
    " ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint END FROM pg_stat_replication ORDER BY 1"
)
_OWNED: Final = (
    "SELECT c.relname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relkind = 'r' AND (pg_has_role(c.relowner, 'USAGE') OR pg_has_role((SELECT d.datdba"
    " FROM pg_database AS d WHERE d.datname = current_database()), 'USAGE'))"
)
_OBJECTS: Final = (
    "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = %s"
)
_VIEWS: Final = f"{_OBJECTS} AND c.relkind = 'v' AND starts_with(obj_description(c.oid, 'pg_class'), %s)"
_SEQUENCES: Final = (
    "SELECT sequencename::text, coalesce(last_value, 0)::text FROM pg_sequences WHERE schemaname = '{schema}'"
)
_WAL_ALLOWED: Final = "SELECT has_function_privilege('pg_catalog.pg_ls_waldir()', 'execute')"
_WAL: Final = "SELECT coalesce(sum(size), 0)::bigint FROM pg_catalog.pg_ls_waldir()"


class PostgresMaintenance:
    """See ``caliber.storage.maintain.maintenance.Maintenance``."""

    copies_files = False

    def __init__(
        self,
        bulk: PostgresBulk,
        dialect: PostgresDialect,
        plans: dict[str, RelationPlans],
        store: str,
    ) -> None:
        self._bulk = bulk
        self._dialect = dialect
        self._plans = plans
        self._store = store

    # --- views -----------------------------------------------------------------------------------

    def create_views(self) -> list[str]:
        dialect = self._dialect
        with self._bulk.connection() as connection, connection.transaction():
            self._drop_views(connection)
            existing = {name for (name,) in connection.execute(_OBJECTS, (dialect.schema,)).fetchall()}
            made = list(views_for(dialect, existing))
            for name, comment, select in made:
                connection.execute(f"CREATE VIEW {dialect.table(name)} AS {select}")
                connection.execute(f"COMMENT ON VIEW {dialect.table(name)} IS {literal(comment)}")
        return [name for name, _, _ in made]

    def drop_views(self) -> list[str]:
        with self._bulk.connection() as connection, connection.transaction():
            return self._drop_views(connection)

    def _drop_views(self, connection: Connection) -> list[str]:
        """Remove CALIBER's views only; return their names. Raises: Conflict for one that other objects depend on."""
        rows = connection.execute(_VIEWS, (self._dialect.schema, MARK)).fetchall()
        # In one statement: foreign views may depend on several.
        names = ", ".join(self._dialect.table(name) for (name,) in rows)
        if names:
            try:
                connection.execute(f"DROP VIEW {names}")
            except DependentObjectsStillExist as error:
                reason = "other objects depend on the views; drop them first, and create them again afterwards"
                raise Conflict(entity_type="schema", id=self._dialect.schema, reason=reason) from error
        return sorted(name for (name,) in rows)

    # --- state -----------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        schema = self._dialect.schema
        with self._bulk.connection() as connection, connection.transaction():
            connection.execute(_SNAPSHOT)
            whole = PostgresSnapshot(connection, self._dialect)
            relations = whole.catalog.relations
            rows = {relation.name: whole.count(relation) for relation in relations}
            tables = connection.execute(_TABLES, (schema,)).fetchall()
            indexes = connection.execute(_INDEXES, (schema,)).fetchall()
            migration = _one(
                connection,
                "SELECT schema_version, min_reader_version, min_writer_version"
                f" FROM {self._dialect.table('schema_migration')} ORDER BY schema_version DESC LIMIT 1",
            )
            connections, most, oldest = _one(connection, _CONNECTIONS)
            followers = connection.execute(_FOLLOWERS).fetchall()
            wal = _one(connection, _WAL)[0] if _one(connection, _WAL_ALLOWED)[0] else None
        by_name = {name: RelationStatus(name, rows.get(name, 0), *sizes) for name, *sizes in tables}
        return StoreStatus(
            adapter="postgres",
            store=self._store,
            schema_version=migration[0],
            min_reader_version=migration[1],
            min_writer_version=migration[2],
            epoch=whole.epoch,
            sequence=whole.sequence,
            changes=rows["change"],
            bytes=sum(each.table_bytes + each.index_bytes for each in by_name.values()),
            free_bytes=None,
            wal_bytes=wal,
            relations=tuple(by_name[relation.name] for relation in relations if relation.name in by_name),
            indexes=tuple(IndexStatus(*row) for row in indexes),
            connections=connections,
            connections_max=most,
            followers=tuple(FollowerStatus(*row) for row in followers),
            oldest_transaction_s=oldest,
        )

    # --- room ------------------------------------------------------------------------------------

    def vacuum(self, *, full: bool, progress: Progress) -> Vacuumed:
        how = "FULL, ANALYZE" if full else "ANALYZE"
        with self._bulk.connection() as connection:
            before = self._bytes(connection)
            skipped = self.skipped(connection)
            names = list(self._plans)
            for done, name in enumerate(names):
                progress("vacuuming", done, len(names))
                if name not in skipped:
                    connection.execute(f"VACUUM ({how}) {self._dialect.table(name)}")
            progress("vacuuming", len(names), len(names))
            return Vacuumed(before, self._bytes(connection), None, None, tuple(skipped))

    def skipped(self, connection: Connection) -> list[str]:
        """Return the tables of other owners: VACUUM would skip them with an unread warning."""
        owned = {row[0] for row in connection.execute(_OWNED, (self._dialect.schema,)).fetchall()}
        return [name for name in self._plans if name not in owned]

    def _bytes(self, connection: Connection) -> int:
        tables = connection.execute(_TABLES, (self._dialect.schema,)).fetchall()
        return sum(table + index for _, table, index, _ in tables)

    # --- all of it -------------------------------------------------------------------------------

    @managed
    def snapshot(self) -> Iterator[PostgresSnapshot]:
        with self._bulk.connection() as connection, connection.transaction():
            connection.execute(_SNAPSHOT)
            # A process that does not know the newest schema would leave out new relations.
            limit(connection, self._bulk.target(), "schema_version")
            yield PostgresSnapshot(connection, self._dialect)

    def copy_to(self, path: Path, progress: Progress) -> tuple[str, int]:  # noqa: ARG002  (there is nothing to copy)
        raise InternalError("PostgreSQL has no file of a tenant to copy")

    def ordinals(self, session: StatementSession) -> dict[str, int]:
        return _last_ordinals(cast(PgConnection, session).command(_SEQUENCES.format(schema=self._dialect.schema)))

    def missing(self, session: StatementSession) -> list[str]:
        connection = cast(PgConnection, session)
        schema = self._dialect.schema
        columns = {row[0] for row in connection.run(own(self._dialect)["store.columns"], (schema,))}
        present = {
            row[0] for row in connection.command(f"SELECT indexname FROM pg_indexes WHERE schemaname = '{schema}'")
        }
        found = []
        for name, plans in self._plans.items():
            found += [f"column {column} of {name}" for column in plans.codec.names if f"{name}.{column}" not in columns]
            found += [f"index {index} of {name}" for index in index_names(plans) if index[:63] not in present]
        return found


class PostgresSnapshot:
    """See ``caliber.storage.maintain.maintenance.StoreSnapshot``; inside a transaction of the connection."""

    def __init__(self, connection: Connection, dialect: PostgresDialect) -> None:
        self._connection = connection
        self._dialect = dialect
        migration, change = dialect.table("schema_migration"), dialect.table("change")
        self.epoch: str = _one(connection, f"SELECT coalesce(min(epoch), '') FROM {migration}")[0]
        self.sequence = int(_one(connection, f"SELECT coalesce(max(sequence), 0) FROM {change}")[0])
        self.catalog = catalog_in(connection, dialect.table("memory_type"))

    def ordinals(self) -> dict[str, int]:
        return _last_ordinals(self._connection.execute(_SEQUENCES.format(schema=self._dialect.schema).encode()))

    def count(self, relation: Relation) -> int:
        return int(_one(self._connection, f"SELECT count(*) FROM {self._dialect.table(relation.name)}")[0])

    def read(self, relation: Relation) -> Iterator[Any]:
        return read(self._connection, self._dialect.table, relation, BATCH_ROWS)


def _last_ordinals(rows: Iterable[tuple[Any, ...]]) -> dict[str, int]:
    return {name.removesuffix("_ordinal_seq"): int(last) for name, last in rows}


def _one(connection: Connection, text: str) -> tuple[Any, ...]:
    row = connection.execute(text).fetchone()
    assert row is not None
    return cast("tuple[Any, ...]", row)
