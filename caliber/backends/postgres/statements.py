"""Irregular SQL statements of PostgreSQL: those of every backend, and its own for sessions, feed and status.

Contracts of the former: ``caliber.storage.compile.statements``. They need nothing newer than PostgreSQL 14.
``{name}`` stands for a relation's table, ``{name_row}`` for its columns.
"""

from __future__ import annotations

import functools
from typing import Final

from caliber.backends.postgres.dialect import TEMPLATE, PostgresDialect, dialect_of, placed
from caliber.schema.catalog import Catalog
from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.statements import IRREGULAR
from caliber.storage.sql.core_statements import ENDED, core_statements, words_of
from caliber.storage.sql.message_statements import message_statements
from caliber.storage.sql.search_statements import embedding_statements

_TEXTS: Final = {
    "turn.last_said": (
        "SELECT {turn_row} FROM {turn} WHERE ordinal = (SELECT t.ordinal FROM {scope} AS s"
        " JOIN {turn} AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = $1 AND t.role = 'user'"
        " AND t.rolled_back_at IS NULL ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1)"
    ),
    # The task, then the scope, then turns: a deletion of the task locks them in this order, so no deadlock occurs.
    "turn_summary.hold_scope": (
        "WITH task AS MATERIALIZED (SELECT trajectory_id AS of_task FROM {trajectory} WHERE trajectory_id = $1"
        " FOR KEY SHARE) SELECT mine.scope_id FROM {scope} AS mine JOIN task ON of_task = mine.trajectory_id"
        " WHERE mine.scope_id = $2 AND mine.closed_at IS NULL FOR KEY SHARE OF mine"
    ),
    "turn_summary.ranges": (
        "SELECT first_turn, last_turn, cardinality(source_turns) FROM {turn_summary} WHERE scope_id = $1"
        " ORDER BY first_turn"
    ),
    # Two integers: the first keeps our locks apart from other programs' in the same database.
    "lock.serialize": ("SELECT pg_advisory_xact_lock({advisory_class}, hashtext({advisory_schema} || $1)) IS NOT NULL"),
    # A resource that another transaction works on is not waited for.
    "lock.ended": (
        "WITH page AS MATERIALIZED (SELECT resource FROM (SELECT old.resource FROM {lock} AS old WHERE "
        + ENDED
        + " UNION SELECT resource FROM {lock_waiter} WHERE expires_at <= $1) AS ended"
        " WHERE resource > $2 ORDER BY resource LIMIT $3::bigint)"
        " SELECT resource, pg_try_advisory_xact_lock({advisory_class}, hashtext({advisory_schema} || resource))"
        " FROM page ORDER BY resource"
    ),
    # Only records older than every running transaction: a reader that is up to date misses nothing.
    "change.prune": (
        "WITH doomed AS (SELECT old.sequence, old.xid FROM {change} AS old WHERE old.created_at < $1"
        " AND old.sequence <= (SELECT sequence FROM {change} ORDER BY sequence DESC LIMIT 1 OFFSET greatest($2, 1))"
        " AND old.xid < pg_snapshot_xmin(pg_current_snapshot())),"
        " noted AS (UPDATE {feed} SET pruned_to = (SELECT xid FROM doomed ORDER BY xid DESC LIMIT 1)"
        " WHERE pruned_to < (SELECT xid FROM doomed ORDER BY xid DESC LIMIT 1))"
        " DELETE FROM {change} AS gone USING doomed WHERE gone.sequence = doomed.sequence"
    ),
    # Content that was replaced before the oldest stored window was assembled is not needed any more.
    "content.prune": (
        "DELETE FROM {content_version} WHERE replaced_at < least($1,"
        " coalesce((SELECT min(assembled_at) FROM {context_window}), 'infinity'))"
    ),
}

FENCE: Final = "caliber_fence"
MOVED: Final = "caliber_moved"
"""A function that is in a schema once its tenant is elsewhere: readers ask for it by name."""
ADVISORY_CLASS: Final = 0x43414C42
"""``CALB``: the first key of every advisory lock of ours."""

# Bounded above too, which changes no answer: of a range open to one side the planner believes that it holds a third of
# the table, and reads all of it.
_NOT_SEEN: Final = (
    "xid >= pg_snapshot_xmin($1::pg_snapshot) AND xid <= pg_snapshot_xmax(pg_current_snapshot())"
    " AND NOT pg_visible_in_snapshot(xid, $1::pg_snapshot)"
)

# A server that was restored was restarted. Not as text, which each session writes in its own time zone.
_STARTED: Final = "(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"

_OWN: Final[dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]]] = {
    "session.limits": (
        (
            "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),"
            " (SELECT max(min_reader_version) FROM {schema_migration})"
        ),
        ("statement_timeout", "lock_timeout"),
        ("statement_timeout", "lock_timeout", "needed"),
    ),
    # The transaction's own number, before anything is written: after a lost connection it tells whether the COMMIT
    # succeeded. It also waits here while a fence is being put up (``fence``), before it holds any lock that others
    # need.
    "session.write": (
        (
            "SELECT pg_current_xact_id()::text, set_config('statement_timeout', $1, true),"
            " set_config('lock_timeout', $2, true), set_config('synchronous_commit', 'on', true),"
            " (SELECT analyzer || ' ' || memories FROM {text_state}),"
            " (SELECT max(min_writer_version) FROM {schema_migration})"
        ),
        ("statement_timeout", "lock_timeout"),
        ("xid", "statement_timeout", "lock_timeout", "synchronous_commit", "full_text", "needed"),
    ),
    # Readers go on; writers wait until everything was checked.
    "session.outcome": ("SELECT pg_xact_status($1::text::xid8)", ("xid",), ("status",)),
    "session.recorded": (
        "SELECT EXISTS (SELECT 1 FROM {change} WHERE xid = $1::text::xid8 AND writer = $2 AND created_at = $3)",
        ("xid", "writer", "created_at"),
        ("recorded",),
    ),
    "session.server": (
        f"SELECT (pg_control_system()).system_identifier::text || ' ' || {_STARTED}::text",
        (),
        ("server",),
    ),
    "session.writable": (
        (
            "SELECT obj_description(to_regproc({fence}), 'pg_proc') IS NOT NULL, to_regproc({moved}) IS NOT NULL,"
            " pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean"
        ),
        (),
        ("fenced", "moved", "read_only"),
    ),
    "feed.bound": (
        f"SELECT pg_current_snapshot()::text, coalesce((SELECT max(sequence) FROM {{change}}), 0), {_STARTED}",
        (),
        ("snapshot", "sequence", "started"),
    ),
    # Whether records were removed that a reader at $1 has not seen.
    "feed.reach": (
        "SELECT pruned_to >= pg_snapshot_xmin($1::text::pg_snapshot) FROM {feed}",
        ("snapshot",),
        ("cut",),
    ),
    "feed.since": (
        "SELECT sequence, writer, entries, xid::text FROM {change} WHERE "
        + _NOT_SEEN.replace("$1::", "$1::text::")
        + " ORDER BY sequence",
        ("snapshot",),
        ("sequence", "writer", "entries", "xid"),
    ),
    "feed.foreign": (
        "SELECT EXISTS (SELECT 1 FROM {change} WHERE "
        + _NOT_SEEN.replace("$1::", "$1::text::")
        + f" AND writer <> $2) OR {_STARTED} <> $3, to_regproc({{moved}}) IS NOT NULL",
        ("snapshot", "writer", "started"),
        ("foreign", "moved"),
    ),
    "feed.notify": (
        (
            "SELECT count(*) FROM unnest($1::text[], $2::text[]) AS message (channel, payload),"
            " LATERAL pg_notify(message.channel, message.payload)"
        ),
        ("channels", "payloads"),
        ("told",),
    ),
    "store.bytes": (
        (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1::text AND c.relkind = 'r'"
        ),
        ("schema",),
        ("bytes",),
    ),
    "store.faults": (
        (
            "SELECT 'index ' || c.relname || ' is not valid; REINDEX it' FROM pg_index AS i"
            " JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1::text AND NOT i.indisvalid"
            " UNION ALL SELECT 'constraint ' || k.conname || ' was never checked; VALIDATE it' FROM pg_constraint AS k"
            " JOIN pg_namespace AS n ON n.oid = k.connamespace WHERE n.nspname = $1::text AND NOT k.convalidated"
        ),
        ("schema",),
        ("fault",),
    ),
    "store.columns": (
        (
            "SELECT c.relname::text || '.' || a.attname::text FROM pg_attribute AS a"
            " JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1::text AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"
        ),
        ("schema",),
        ("column",),
    ),
}


def _names(dialect: PostgresDialect) -> dict[str, str]:
    names = words_of(dialect) | {name: dialect.table(name) for name in ("feed", "text_state")}
    names["moved"], names["fence"] = f"'{dialect.table(MOVED)}'", f"'{dialect.table(FENCE)}'"
    names["advisory_class"] = str(ADVISORY_CLASS)
    names["advisory_schema"] = f"'{dialect.schema}/'"
    return names


@functools.lru_cache(maxsize=16)
def irregular(dialect: PostgresDialect) -> dict[str, Plan]:
    """Return the irregular statements of every backend, for one schema."""
    return {name: placed(plan, dialect.schema) for name, plan in irregular_plans(dialect.vector_schema).items()}


@functools.lru_cache(maxsize=4)
def irregular_plans(vector_schema: str) -> dict[str, Plan]:
    dialect = dialect_of(TEMPLATE, vector_schema)
    names = _names(dialect)
    out = {}
    texts = core_statements(dialect)
    texts["turn.hold_block"] = texts["turn.block"] + " FOR SHARE"
    texts |= {name: text.format_map(names) for name, text in _TEXTS.items()}
    texts |= embedding_statements(dialect) | message_statements(dialect)
    for name, contract in IRREGULAR.items():
        results = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
        out[name] = Plan(name, texts[name], contract.parameters, results)
    return out


@functools.lru_cache(maxsize=16)
def own(dialect: PostgresDialect) -> dict[str, Plan]:
    """Return the statements that only this backend has, for one schema."""
    names = _names(dialect)
    return {name: Plan(name, text.format_map(names), binds, results) for name, (text, binds, results) in _OWN.items()}


def holding(dialect: PostgresDialect, catalog: Catalog) -> Plan:
    """Return the plan that keeps everybody else from writing any record, and locking any, until the transaction ends.

    Who had locked a row, and then waited to write another, would make an erasure that writes the locked one wait too.
    """
    tables = ", ".join(dialect.table(name) for name in catalog.by_name if name != "schema_migration")
    return Plan("erase.hold", f"LOCK TABLE {tables} IN EXCLUSIVE MODE", (), ())


def reserving(dialect: PostgresDialect, catalog: Catalog) -> dict[str, Plan]:
    """Return the plan that reserves ordinals, by relation."""
    return {
        name: Plan(
            f"{name}.reserve",
            f"SELECT nextval('{dialect.table(f'{name}_ordinal_seq')}'::regclass) FROM generate_series(1, $1::bigint)",
            ("count",),
            ("ordinal",),
        )
        for name, relation in catalog.by_name.items()
        if relation.ordinal
    }
