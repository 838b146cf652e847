"""SQL text of the irregular statements for SQLite; contracts in ``caliber.storage.compile.statements``."""

from __future__ import annotations

from caliber.backends.sqlite.dialect import DIALECT
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

ROW = {name: quote_all(codec_of(relation).names) for name, relation in BY_NAME.items()}


_ENDED = (
    "expires_at <= ?1 AND resource > ''"
    " AND (EXISTS (SELECT 1 FROM lock AS newer WHERE newer.resource = lock.resource AND newer.token > lock.token)"
    " OR NOT EXISTS (SELECT 1 FROM lock AS live WHERE live.resource = lock.resource AND live.expires_at > ?1))"
)
"""Rows of ended locks, without the newest one of a resource where another lock lasts: its token must keep rising."""

_TEXTS = {
    "append.scope": (
        "UPDATE scope SET next_sequence = next_sequence + ?4, turn_count = turn_count + ?4,"
        " tokens_input = tokens_input + ?1, tokens_output = tokens_output + ?2, last_activity_at = ?3,"
        f" version = version + 1 WHERE scope_id = ?5 AND closed_at IS NULL RETURNING {ROW['scope']}"
    ),
    "append.trajectory": (
        "UPDATE trajectory SET turn_count = turn_count + ?4, tokens_input = tokens_input + ?1,"
        " tokens_output = tokens_output + ?2, last_activity_at = ?3, version = version + 1"
        " WHERE trajectory_id = (SELECT trajectory_id FROM scope WHERE scope_id = ?5)"
        f" RETURNING {ROW['trajectory']}"
    ),
    "scope.next_sequence": "SELECT coalesce(max(sequence_number) + 1, 0) FROM scope WHERE trajectory_id = ?1",
    "turn.newest": (
        f"SELECT {ROW['turn']} FROM turn WHERE scope_id = ?1 AND rolled_back_at IS NULL"
        " ORDER BY turn_number DESC LIMIT ?2"
    ),
    "turn.last_said": (
        f"SELECT {ROW['turn']} FROM turn WHERE ordinal = (SELECT t.ordinal FROM scope AS s"
        " CROSS JOIN turn AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = ?1 AND t.role = 'user'"
        " AND t.rolled_back_at IS NULL ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1)"
    ),
    "turn.outline": (
        "SELECT turn_number, role = 'tool', tool_calls <> '[]' FROM turn WHERE scope_id = ?1 AND turn_number >= ?2"
        " AND rolled_back_at IS NULL"
        " ORDER BY turn_number"
    ),
    "turn.block": (
        f"SELECT {ROW['turn']} FROM turn WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4"
        " AND rolled_back_at IS NULL"
        " ORDER BY turn_number"
    ),
    # BEGIN IMMEDIATE keeps others from changing them already.
    "turn.hold_block": (
        f"SELECT {ROW['turn']} FROM turn WHERE trajectory_id = ?1 AND scope_id = ?2 AND turn_number BETWEEN ?3 AND ?4"
        " AND rolled_back_at IS NULL"
        " ORDER BY turn_number"
    ),
    "turn_summary.hold_scope": (
        "SELECT scope_id FROM scope WHERE trajectory_id = ?1 AND scope_id = ?2 AND closed_at IS NULL"
    ),
    "turn_summary.overlapping": (
        f"SELECT {ROW['turn_summary']} FROM turn_summary WHERE scope_id = ?1 AND first_turn <= ?3 AND last_turn >= ?2"
        " ORDER BY first_turn"
    ),
    "turn_summary.ranges": (
        "SELECT first_turn, last_turn, length(source_turns) / 16 FROM turn_summary WHERE scope_id = ?1"
        " ORDER BY first_turn"
    ),
    "turn.of_closed_scopes": (
        f"SELECT {ROW['turn']} FROM turn WHERE created_at <= ?1"
        " AND scope_id IN (SELECT scope_id FROM scope WHERE closed_at IS NOT NULL) ORDER BY ordinal"
    ),
    "memory.revision": "SELECT count(*), coalesce(sum(version), 0) FROM memory_type",
    # BEGIN IMMEDIATE keeps every other writer out already.
    "lock.serialize": "SELECT ?1 IS NOT NULL",
    "lock.held": "SELECT holder FROM lock WHERE resource = ?1 AND token = ?2 AND expires_at > ?3",
    # The resource '' has the row with the highest token that was deleted.
    "lock.of_resource": f"SELECT {ROW['lock']} FROM lock WHERE resource IN (?1, '') ORDER BY token",
    "lock.ended": (
        f"SELECT resource, 1 FROM (SELECT resource FROM lock WHERE {_ENDED}"
        " UNION SELECT resource FROM lock_waiter WHERE expires_at <= ?1)"
        " WHERE resource > ?2 ORDER BY resource LIMIT ?3"
    ),
    "lock.delete_ended": (
        f"DELETE FROM lock WHERE resource IN (SELECT value FROM json_each(?2)) AND {_ENDED} RETURNING token"
    ),
    "lock.list_live": (
        f"SELECT {ROW['lock']} FROM lock WHERE expires_at > ?1 AND (?2 IS NULL OR holder = ?2)"
        " ORDER BY expires_at, lock_id LIMIT ?3"
    ),
    "lock_waiter.list_live": (
        f"SELECT {ROW['lock_waiter']} FROM lock_waiter WHERE expires_at > ?1 AND (?2 IS NULL OR holder = ?2)"
        " ORDER BY resource, ticket LIMIT ?3"
    ),
    "lock_waiter.delete_ended": (
        "DELETE FROM lock_waiter WHERE expires_at <= ?1 AND resource IN (SELECT value FROM json_each(?2))"
    ),
    "change.since": "SELECT sequence, writer, entries FROM change WHERE sequence > ?1 ORDER BY sequence",
    "change.bounds": "SELECT coalesce(min(sequence), 0), coalesce(max(sequence), 0) FROM change",
    "change.insert": "INSERT INTO change (writer, entries, created_at) VALUES (?1, ?2, ?3) RETURNING sequence",
    "change.prune": (
        "DELETE FROM change WHERE created_at < ?1"
        " AND sequence <= (SELECT sequence FROM change ORDER BY sequence DESC LIMIT 1 OFFSET max(?2, 1))"
    ),
    "content.at": (
        "SELECT body FROM content_version WHERE owner_type = ?1 AND owner_ordinal = ?2 AND owner_version >= ?3"
        " ORDER BY owner_version LIMIT 1"
    ),
    "content.owner": "SELECT owner_id FROM content_version WHERE owner_type = ?1 AND owner_ordinal = ?2 LIMIT 1",
    # Content that was replaced before the oldest stored window was assembled is not needed any more.
    "content.prune": (
        "DELETE FROM content_version WHERE replaced_at < min(?1,"
        " coalesce((SELECT min(assembled_at) FROM context_window), 9223372036854775807))"
    ),
    "window.prune": "DELETE FROM context_window WHERE expires_at <= ?1 OR assembled_at < ?2",
    "event.prune": "DELETE FROM event WHERE created_at < ?1 AND family <> 'audit'",
    "event.recent": (
        f"SELECT {ROW['event']} FROM event WHERE family = ?1 AND created_at >= ?2 ORDER BY created_at DESC LIMIT ?3"
    ),
    "event.drop_trace": "DELETE FROM event WHERE trajectory_id = ?1 AND family = 'trace'",
    "usage.bump": (
        "INSERT INTO usage (usage_id, owner_type, owner_id, used_by, access_count, last_accessed_at, version)"
        " VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1) ON CONFLICT (usage_id) DO UPDATE"
        " SET access_count = access_count + excluded.access_count,"
        " last_accessed_at = max(last_accessed_at, excluded.last_accessed_at), version = version + 1"
        f" RETURNING {ROW['usage']}"
    ),
    # Those that recoveries made are counted apart. Those to which they went stay with them, and below each other
    # one that stays the newest one of a recovery: it tells on which course the older ones are.
    "checkpoint.prune": (
        "WITH asked AS (SELECT ordinal FROM checkpoint WHERE trajectory_id = ?1 AND recovered_to IS NULL"
        " ORDER BY ordinal DESC LIMIT ?2), made AS (SELECT ordinal, recovered_to FROM checkpoint"
        " WHERE trajectory_id = ?1 AND recovered_to IS NOT NULL ORDER BY ordinal DESC LIMIT ?2),"
        " kept AS (SELECT ordinal, recovered_to FROM made UNION SELECT ordinal, NULL FROM asked"
        " UNION SELECT target.ordinal, target.recovered_to FROM checkpoint AS target"
        " JOIN made ON target.checkpoint_id = made.recovered_to)"
        " DELETE FROM checkpoint WHERE trajectory_id = ?1 AND ordinal < ?3"
        " AND ordinal NOT IN (SELECT ordinal FROM kept)"
        " AND ordinal NOT IN (SELECT max(older.ordinal) FROM kept JOIN checkpoint AS older"
        " ON older.trajectory_id = ?1 AND older.recovered_to IS NOT NULL AND older.ordinal < kept.ordinal"
        " WHERE kept.recovered_to IS NULL GROUP BY kept.ordinal)"
    ),
    **embedding_statements(DIALECT),
    **job_statements(DIALECT),
    **message_statements(DIALECT),
    **trust_statements(DIALECT),
    **team_statements(DIALECT),
}


def _plan(name: str) -> Plan:
    contract = IRREGULAR[name]
    results = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
    return Plan(name, _TEXTS[name], contract.parameters, results)


STATEMENTS: dict[str, Plan] = {name: _plan(name) for name in IRREGULAR}
