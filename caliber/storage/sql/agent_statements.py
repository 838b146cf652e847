"""SQL statements of agents: signs of life of many agents at once."""

from __future__ import annotations

from caliber.model.agents.registry import AgentStatus
from caliber.schema.relations import AGENT
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import literal, quote_all

_FAILED, _IDLE = literal(AgentStatus.FAILED), literal(AgentStatus.IDLE)


def agent_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about agents, in the words of a database."""
    table, row, now = dialect.table(AGENT.name), quote_all(codec_of(AGENT).names), dialect.placeholder(2)
    ids = dialect.one_of(AGENT.column("agent_id"), "agent_id", dialect.list_placeholder(1))
    # Locked in the order of their ids: two calls about the same agents wait for each other, and end.
    held = f"SELECT agent_id FROM {table} WHERE {ids} ORDER BY agent_id{dialect.update_lock}"
    return {
        "agent.renew": (
            f"UPDATE {table} SET last_heartbeat = {now}, version = version + 1,"
            f" status = CASE WHEN status = {_FAILED} THEN {_IDLE} ELSE status END"
            f" WHERE agent_id {dialect.among(held)} RETURNING {row}"
        ),
    }
