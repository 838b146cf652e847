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
from caliber.storage.compile.spelling import quote_all
from caliber.storage.compile.statements import IRREGULAR
from caliber.storage.sql.embedding_statements import embedding_statements
from caliber.storage.sql.job_statements import job_statements
from caliber.storage.sql.message_statements import message_statements
from caliber.storage.sql.team_statements import team_statements
from caliber.storage.sql.trust_statements import trust_statements

_ENDED: Final = (
    "old.expires_at <= $1 AND old.resource > ''"
    " AND (EXISTS (SELECT 1 FROM {lock} AS newer WHERE newer.resource = old.resource AND newer.token > old.token)"
    " OR NOT EXISTS (SELECT 1 FROM {lock} AS live WHERE live.resource = old.resource AND live.expires_at > $1))"
)
"""Rows of ended locks, without the newest one of a resource where another lock lasts: its token must keep rising."""

_TEXTS: Final = {
    "append.scope": (
        "UPDATE {scope} SET next_sequence = next_sequence + $4::bigint, turn_count = turn_count + $4::bigint,"
        " tokens_input = tokens_input + $1::bigint, tokens_output = tokens_output + $2::bigint,"
        " last_activity_at = $3, version = version + 1 WHERE scope_id = $5 AND closed_at IS NULL"
        " RETURNING {scope_row}"
    ),
    "append.trajectory": (
        "UPDATE {trajectory} SET turn_count = turn_count + $4::bigint, tokens_input = tokens_input + $1::bigint,"
        " tokens_output = tokens_output + $2::bigint, last_activity_at = $3, version = version + 1"
        " WHERE trajectory_id = (SELECT trajectory_id FROM {scope} WHERE scope_id = $5) RETURNING {trajectory_row}"
    ),
    "scope.next_sequence": "SELECT coalesce(max(sequence_number) + 1, 0) FROM {scope} WHERE trajectory_id = $1",
    "turn.newest": (
        "SELECT {turn_row} FROM {turn} WHERE scope_id = $1 AND rolled_back_at IS NULL"
        " ORDER BY turn_number DESC LIMIT $2::bigint"
    ),
    "turn.last_said": (
        "SELECT {turn_row} FROM {turn} WHERE ordinal = (SELECT t.ordinal FROM {scope} AS s"
        " JOIN {turn} AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = $1 AND t.role = 'user'"
        " AND t.rolled_back_at IS NULL ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1)"
    ),
    "turn.outline": (
        "SELECT turn_number, (role = 'tool')::int, (tool_calls::text <> '[]')::int FROM {turn} WHERE scope_id = $1"
        " AND turn_number >= $2 AND rolled_back_at IS NULL ORDER BY turn_number"
    ),
    "turn.block": (
        "SELECT {turn_row} FROM {turn} WHERE trajectory_id = $1 AND scope_id = $2"
        " AND turn_number BETWEEN $3 AND $4 AND rolled_back_at IS NULL ORDER BY turn_number"
    ),
    "turn.hold_block": (
        "SELECT {turn_row} FROM {turn} WHERE trajectory_id = $1 AND scope_id = $2"
        " AND turn_number BETWEEN $3 AND $4 AND rolled_back_at IS NULL ORDER BY turn_number FOR SHARE"
    ),
    # The task, then the scope, then turns: a deletion of the task locks them in this order, so no deadlock occurs.
    "turn_summary.hold_scope": (
        "WITH task AS MATERIALIZED (SELECT trajectory_id AS of_task FROM {trajectory} WHERE trajectory_id = $1"
        " FOR KEY SHARE) SELECT mine.scope_id FROM {scope} AS mine JOIN task ON of_task = mine.trajectory_id"
        " WHERE mine.scope_id = $2 AND mine.closed_at IS NULL FOR KEY SHARE OF mine"
    ),
    "turn_summary.overlapping": (
        "SELECT {turn_summary_row} FROM {turn_summary} WHERE scope_id = $1 AND first_turn <= $3 AND last_turn >= $2"
        " ORDER BY first_turn"
    ),
    "turn_summary.ranges": (
        "SELECT first_turn, last_turn, cardinality(source_turns) FROM {turn_summary} WHERE scope_id = $1"
        " ORDER BY first_turn"
    ),
    "turn.of_closed_scopes": (
        "SELECT {turn_row} FROM {turn} WHERE created_at <= $1"
        " AND scope_id IN (SELECT scope_id FROM {scope} WHERE closed_at IS NOT NULL) ORDER BY ordinal"
    ),
    "memory.revision": "SELECT count(*), coalesce(sum(version), 0)::bigint FROM {memory_type}",
    # Two integers: the first keeps our locks apart from other programs' in the same database.
    "lock.serialize": ("SELECT pg_advisory_xact_lock({advisory_class}, hashtext({advisory_schema} || $1)) IS NOT NULL"),
    "lock.held": "SELECT holder FROM {lock} WHERE resource = $1 AND token = $2 AND expires_at > $3",
    # The resource '' has the row with the highest token that was deleted.
    "lock.of_resource": "SELECT {lock_row} FROM {lock} WHERE resource IN ($1, '') ORDER BY token",
    # A resource that another transaction works on is not waited for.
    "lock.ended": (
        "WITH page AS MATERIALIZED (SELECT resource FROM (SELECT old.resource FROM {lock} AS old WHERE "
        + _ENDED
        + " UNION SELECT resource FROM {lock_waiter} WHERE expires_at <= $1) AS ended"
        " WHERE resource > $2 ORDER BY resource LIMIT $3::bigint)"
        " SELECT resource, pg_try_advisory_xact_lock({advisory_class}, hashtext({advisory_schema} || resource))"
        " FROM page ORDER BY resource"
    ),
    "lock.delete_ended": (
        "DELETE FROM {lock} AS old WHERE old.resource IN (SELECT value FROM jsonb_array_elements_text($2::jsonb))"
        " AND " + _ENDED + " RETURNING token"
    ),
    "lock.list_live": (
        "SELECT {lock_row} FROM {lock} WHERE expires_at > $1 AND ($2::text IS NULL OR holder = $2::text)"
        " ORDER BY expires_at, lock_id LIMIT $3::bigint"
    ),
    "lock_waiter.list_live": (
        "SELECT {lock_waiter_row} FROM {lock_waiter} WHERE expires_at > $1 AND ($2::text IS NULL OR holder = $2::text)"
        " ORDER BY resource, ticket LIMIT $3::bigint"
    ),
    "lock_waiter.delete_ended": (
        "DELETE FROM {lock_waiter} WHERE expires_at <= $1"
        " AND resource IN (SELECT value FROM jsonb_array_elements_text($2::jsonb))"
    ),
    "change.since": "SELECT sequence, writer, entries FROM {change} WHERE sequence > $1 ORDER BY sequence",
    "change.bounds": "SELECT coalesce(min(sequence), 0), coalesce(max(sequence), 0) FROM {change}",
    "change.insert": "INSERT INTO {change} (writer, entries, created_at) VALUES ($1, $2, $3) RETURNING sequence",
    # Only records older than every running transaction: a reader that is up to date misses nothing.
    "change.prune": (
        "WITH doomed AS (SELECT old.sequence, old.xid FROM {change} AS old WHERE old.created_at < $1"
        " AND old.sequence <= (SELECT sequence FROM {change} ORDER BY sequence DESC LIMIT 1 OFFSET greatest($2, 1))"
        " AND old.xid < pg_snapshot_xmin(pg_current_snapshot())),"
        " noted AS (UPDATE {feed} SET pruned_to = (SELECT xid FROM doomed ORDER BY xid DESC LIMIT 1)"
        " WHERE pruned_to < (SELECT xid FROM doomed ORDER BY xid DESC LIMIT 1))"
        " DELETE FROM {change} AS gone USING doomed WHERE gone.sequence = doomed.sequence"
    ),
    "content.at": (
        "SELECT body FROM {content_version} WHERE owner_type = $1 AND owner_ordinal = $2 AND owner_version >= $3"
        " ORDER BY owner_version LIMIT 1"
    ),
    "content.owner": "SELECT owner_id FROM {content_version} WHERE owner_type = $1 AND owner_ordinal = $2 LIMIT 1",
    # Content that was replaced before the oldest stored window was assembled is not needed any more.
    "content.prune": (
        "DELETE FROM {content_version} WHERE replaced_at < least($1,"
        " coalesce((SELECT min(assembled_at) FROM {context_window}), 'infinity'))"
    ),
    "window.prune": "DELETE FROM {context_window} WHERE expires_at <= $1 OR assembled_at < $2",
    "event.prune": "DELETE FROM {event} WHERE created_at < $1 AND family <> 'audit'",
    "event.recent": (
        "SELECT {event_row} FROM {event} WHERE family = $1::text AND created_at >= $2"
        " ORDER BY created_at DESC LIMIT $3::bigint"
    ),
    "event.drop_trace": "DELETE FROM {event} WHERE trajectory_id = $1 AND family = 'trace'",
    "usage.bump": (
        "INSERT INTO {usage} AS known (usage_id, owner_type, owner_id, used_by, access_count, last_accessed_at,"
        " version) VALUES ($1, $2, $3, $4, $5, $6, 1) ON CONFLICT (usage_id) DO UPDATE"
        " SET access_count = known.access_count + excluded.access_count,"
        " last_accessed_at = greatest(known.last_accessed_at, excluded.last_accessed_at),"
        " version = known.version + 1 RETURNING {usage_row}"
    ),
    # Those that recoveries made are counted apart. Those to which they went stay with them, and below each other
    # one that stays the newest one of a recovery: it tells on which course the older ones are.
    "checkpoint.prune": (
        "WITH asked AS (SELECT ordinal FROM {checkpoint} WHERE trajectory_id = $1 AND recovered_to IS NULL"
        " ORDER BY ordinal DESC LIMIT $2), made AS (SELECT ordinal, recovered_to FROM {checkpoint}"
        " WHERE trajectory_id = $1 AND recovered_to IS NOT NULL ORDER BY ordinal DESC LIMIT $2),"
        " kept AS (SELECT ordinal, recovered_to FROM made UNION SELECT ordinal, NULL FROM asked"
        " UNION SELECT target.ordinal, target.recovered_to FROM {checkpoint} AS target"
        " JOIN made ON target.checkpoint_id = made.recovered_to)"
        " DELETE FROM {checkpoint} WHERE trajectory_id = $1 AND ordinal < $3"
        " AND ordinal NOT IN (SELECT ordinal FROM kept)"
        " AND ordinal NOT IN (SELECT max(older.ordinal) FROM kept JOIN {checkpoint} AS older"
        " ON older.trajectory_id = $1 AND older.recovered_to IS NOT NULL AND older.ordinal < kept.ordinal"
        " WHERE kept.recovered_to IS NULL GROUP BY kept.ordinal)"
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
    names = {name: dialect.table(name) for name in (*BY_NAME, "feed", "text_state")}
    for name, relation in BY_NAME.items():
        names[f"{name}_row"] = quote_all(codec_of(relation).names)
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
    texts = {name: text.format_map(names) for name, text in _TEXTS.items()}
    texts |= embedding_statements(dialect) | job_statements(dialect) | trust_statements(dialect)
    texts |= message_statements(dialect) | team_statements(dialect)
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
