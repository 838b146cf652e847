"""SQL statements of tasks, locks, the change feed and kept content. One text serves both databases."""

from __future__ import annotations

from typing import Final

from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import quote_all

ENDED: Final = (
    "old.expires_at <= {one} AND old.resource > ''"
    " AND (EXISTS (SELECT 1 FROM {lock} AS newer WHERE newer.resource = old.resource AND newer.token > old.token)"
    " OR NOT EXISTS (SELECT 1 FROM {lock} AS live WHERE live.resource = old.resource AND live.expires_at > {one}))"
)
"""Rows of ended locks, without the newest one of a resource where another lock lasts: its token must keep rising."""
_TEXTS: Final = {
    "append.scope": (
        "UPDATE {scope} SET next_sequence = next_sequence + {four}, turn_count = turn_count + {four},"
        " tokens_input = tokens_input + {one}, tokens_output = tokens_output + {two}, last_activity_at = {three},"
        " version = version + 1 WHERE scope_id = {five} AND closed_at IS NULL RETURNING {scope_row}"
    ),
    "append.trajectory": (
        "UPDATE {trajectory} SET turn_count = turn_count + {four}, tokens_input = tokens_input + {one},"
        " tokens_output = tokens_output + {two}, last_activity_at = {three}, version = version + 1"
        " WHERE trajectory_id = (SELECT trajectory_id FROM {scope} WHERE scope_id = {five}) RETURNING {trajectory_row}"
    ),
    "scope.next_sequence": "SELECT coalesce(max(sequence_number) + 1, 0) FROM {scope} WHERE trajectory_id = {one}",
    "turn.newest": (
        "SELECT {turn_row} FROM {turn} WHERE scope_id = {one} AND rolled_back_at IS NULL"
        " ORDER BY turn_number DESC LIMIT {two}"
    ),
    "turn.outline": (
        "SELECT turn_number, CAST(role = 'tool' AS INTEGER), CAST(CAST(tool_calls AS TEXT) <> '[]' AS INTEGER)"
        " FROM {turn} WHERE scope_id = {one} AND turn_number >= {two} AND rolled_back_at IS NULL ORDER BY turn_number"
    ),
    "turn.block": (
        "SELECT {turn_row} FROM {turn} WHERE trajectory_id = {one} AND scope_id = {two}"
        " AND turn_number BETWEEN {three} AND {four} AND rolled_back_at IS NULL ORDER BY turn_number"
    ),
    "turn_summary.overlapping": (
        "SELECT {turn_summary_row} FROM {turn_summary} WHERE scope_id = {one} AND first_turn <= {three}"
        " AND last_turn >= {two} ORDER BY first_turn"
    ),
    "turn.of_closed_scopes": (
        "SELECT {turn_row} FROM {turn} WHERE created_at <= {one}"
        " AND scope_id IN (SELECT scope_id FROM {scope} WHERE closed_at IS NOT NULL) ORDER BY ordinal"
    ),
    "memory.revision": "SELECT count(*), CAST(coalesce(sum(version), 0) AS BIGINT) FROM {memory_type}",
    "lock.held": "SELECT holder FROM {lock} WHERE resource = {one} AND token = {two} AND expires_at > {three}",
    # The resource '' has the row with the highest token that was deleted.
    "lock.of_resource": "SELECT {lock_row} FROM {lock} WHERE resource IN ({one}, '') ORDER BY token",
    "lock.delete_ended": (
        "DELETE FROM {lock} AS old WHERE old.resource IN ({texts_two}) AND " + ENDED + " RETURNING token"
    ),
    "lock.list_live": (
        "SELECT {lock_row} FROM {lock} WHERE expires_at > {one} AND (holder = {two} OR {two} IS NULL)"
        " ORDER BY expires_at, lock_id LIMIT {three}"
    ),
    "lock_waiter.list_live": (
        "SELECT {lock_waiter_row} FROM {lock_waiter} WHERE expires_at > {one} AND (holder = {two} OR {two} IS NULL)"
        " ORDER BY resource, ticket LIMIT {three}"
    ),
    "lock_waiter.delete_ended": "DELETE FROM {lock_waiter} WHERE expires_at <= {one} AND resource IN ({texts_two})",
    "change.since": "SELECT sequence, writer, entries FROM {change} WHERE sequence > {one} ORDER BY sequence",
    "change.bounds": "SELECT coalesce(min(sequence), 0), coalesce(max(sequence), 0) FROM {change}",
    "change.insert": (
        "INSERT INTO {change} (writer, entries, created_at) VALUES ({one}, {two}, {three}) RETURNING sequence"
    ),
    "content.at": (
        "SELECT body FROM {content_version} WHERE owner_type = {one} AND owner_ordinal = {two}"
        " AND owner_version >= {three} ORDER BY owner_version LIMIT 1"
    ),
    "content.owner": (
        "SELECT owner_id FROM {content_version} WHERE owner_type = {one} AND owner_ordinal = {two} LIMIT 1"
    ),
    "window.prune": "DELETE FROM {context_window} WHERE expires_at <= {one} OR assembled_at < {two}",
    "event.prune": "DELETE FROM {event} WHERE created_at < {one} AND family <> 'audit'",
    "event.recent": (
        "SELECT {event_row} FROM {event} WHERE family = {one} AND created_at >= {two}"
        " ORDER BY created_at DESC LIMIT {three}"
    ),
    "event.drop_trace": "DELETE FROM {event} WHERE trajectory_id = {one} AND family = 'trace'",
    "usage.bump": (
        "INSERT INTO {usage} AS known (usage_id, owner_type, owner_id, used_by, access_count, last_accessed_at,"
        " version) VALUES ({one}, {two}, {three}, {four}, {five}, {six}, 1) ON CONFLICT (usage_id) DO UPDATE"
        " SET access_count = known.access_count + excluded.access_count,"
        " last_accessed_at = CASE WHEN excluded.last_accessed_at > known.last_accessed_at"
        " THEN excluded.last_accessed_at ELSE known.last_accessed_at END,"
        " version = known.version + 1 RETURNING {usage_row}"
    ),
    # Those that recoveries made are counted apart. Those to which they went stay with them, and below each other
    # one that stays the newest one of a recovery: it tells on which course the older ones are.
    "checkpoint.prune": (
        "WITH asked AS (SELECT ordinal FROM {checkpoint} WHERE trajectory_id = {one} AND recovered_to IS NULL"
        " ORDER BY ordinal DESC LIMIT {two}), made AS (SELECT ordinal, recovered_to FROM {checkpoint}"
        " WHERE trajectory_id = {one} AND recovered_to IS NOT NULL ORDER BY ordinal DESC LIMIT {two}),"
        " kept AS (SELECT ordinal, recovered_to FROM made UNION SELECT ordinal, NULL FROM asked"
        " UNION SELECT target.ordinal, target.recovered_to FROM {checkpoint} AS target"
        " JOIN made ON target.checkpoint_id = made.recovered_to)"
        " DELETE FROM {checkpoint} WHERE trajectory_id = {one} AND ordinal < {three}"
        " AND ordinal NOT IN (SELECT ordinal FROM kept)"
        " AND ordinal NOT IN (SELECT max(older.ordinal) FROM kept JOIN {checkpoint} AS older"
        " ON older.trajectory_id = {one} AND older.recovered_to IS NOT NULL AND older.ordinal < kept.ordinal"
        " WHERE kept.recovered_to IS NULL GROUP BY kept.ordinal)"
    ),
}


def words_of(dialect: Dialect) -> dict[str, str]:
    """Return the values of the names in texts: tables, their ``_row`` of columns, and the parameters."""
    words = {name: dialect.table(name) for name in BY_NAME}
    words |= {f"{name}_row": quote_all(codec_of(relation).names) for name, relation in BY_NAME.items()}
    numbers = ("one", "two", "three", "four", "five", "six")
    words |= {number: dialect.placeholder(at) for at, number in enumerate(numbers, start=1)}
    return words | {"texts_two": dialect.in_texts(2)}


def core_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement, by its name in ``IRREGULAR``."""
    words = words_of(dialect)
    return {name: text.format_map(words) for name, text in _TEXTS.items()}
