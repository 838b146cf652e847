"""SQL text of the irregular statements for SQLite; contracts in ``caliber.storage.compile.statements``."""

from __future__ import annotations

from caliber.backends.sqlite.dialect import DIALECT
from caliber.schema.relations import BY_NAME
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.statements import IRREGULAR
from caliber.storage.sql.core_statements import ENDED, core_statements, words_of
from caliber.storage.sql.message_statements import message_statements
from caliber.storage.sql.search_statements import embedding_statements

_CORE, _WORDS = core_statements(DIALECT), words_of(DIALECT)
_OWN = {
    "turn.last_said": (
        "SELECT {turn_row} FROM turn WHERE ordinal = (SELECT t.ordinal FROM scope AS s"
        " CROSS JOIN turn AS t ON t.scope_id = s.scope_id WHERE s.trajectory_id = ?1 AND t.role = 'user'"
        " AND t.rolled_back_at IS NULL ORDER BY s.sequence_number DESC, t.turn_number DESC LIMIT 1)"
    ),
    "turn_summary.hold_scope": (
        "SELECT scope_id FROM scope WHERE trajectory_id = ?1 AND scope_id = ?2 AND closed_at IS NULL"
    ),
    "turn_summary.ranges": (
        "SELECT first_turn, last_turn, length(source_turns) / 16 FROM turn_summary WHERE scope_id = ?1"
        " ORDER BY first_turn"
    ),
    # BEGIN IMMEDIATE keeps every other writer out already.
    "lock.serialize": "SELECT ?1 IS NOT NULL",
    "lock.ended": (
        "SELECT resource, 1 FROM (SELECT resource FROM lock AS old WHERE "
        + ENDED
        + " UNION SELECT resource FROM lock_waiter WHERE expires_at <= ?1)"
        " WHERE resource > ?2 ORDER BY resource LIMIT ?3"
    ),
    "change.prune": (
        "DELETE FROM change WHERE created_at < ?1"
        " AND sequence <= (SELECT sequence FROM change ORDER BY sequence DESC LIMIT 1 OFFSET max(?2, 1))"
    ),
    # Content that was replaced before the oldest stored window was assembled is not needed any more.
    "content.prune": (
        "DELETE FROM content_version WHERE replaced_at < min(?1,"
        " coalesce((SELECT min(assembled_at) FROM context_window), 9223372036854775807))"
    ),
}
_TEXTS = {
    **_CORE,
    "turn.hold_block": _CORE["turn.block"],  # BEGIN IMMEDIATE keeps others from changing them already
    **{name: text.format_map(_WORDS) for name, text in _OWN.items()},
    **embedding_statements(DIALECT),
    **message_statements(DIALECT),
}


def _plan(name: str) -> Plan:
    contract = IRREGULAR[name]
    results = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
    return Plan(name, _TEXTS[name], contract.parameters, results)


STATEMENTS: dict[str, Plan] = {name: _plan(name) for name in IRREGULAR}
