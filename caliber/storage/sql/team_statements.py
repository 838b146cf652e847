"""SQL statements of agents and of the workspace.

Signs of life of many agents, delegations and handoffs that have not ended, removal of records that ended, and values
whose keys begin with a text.
"""

from __future__ import annotations

from caliber.model.agents.delegation import HandoffStatus
from caliber.model.agents.registry import AgentStatus
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, DELEGATION, HANDOFF, RELATIONS, WORKSPACE_VALUE
from caliber.schema.traits import Finished
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import literal, quote, quote_all

_SNAPSHOT = HANDOFF.column("snapshot")
_INITIATED = literal(HandoffStatus.INITIATED)
_FAILED, _IDLE = literal(AgentStatus.FAILED), literal(AgentStatus.IDLE)


def team_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about agents and the workspace, in the words of a database."""
    agents, agent = dialect.table(AGENT.name), quote_all(codec_of(AGENT).names)
    values, value = dialect.table(WORKSPACE_VALUE.name), quote_all(codec_of(WORKSPACE_VALUE).names)
    delegations, delegation = dialect.table(DELEGATION.name), quote_all(codec_of(DELEGATION).names)
    handoffs, handoff = dialect.table(HANDOFF.name), quote_all(codec_of(HANDOFF).names)
    # A list leaves out the snapshots, which may be large: they read as empty.
    empty = f"CAST('' AS {dialect.type_of(_SNAPSHOT)})"
    brief = ", ".join(empty if name == _SNAPSHOT.name else quote(name) for name in codec_of(HANDOFF).names)
    listed, oldest = f"SELECT {brief} FROM {handoffs} WHERE", "ORDER BY initiated_at, ordinal"
    given = f"FROM {delegations} WHERE parent_trajectory_id = {dialect.placeholder(1)} AND completed_at IS NULL"
    passed = f"FROM {handoffs} WHERE trajectory_id = {dialect.placeholder(1)} AND completed_at IS NULL"
    one, now = dialect.placeholder(1), dialect.placeholder(2)
    ids = dialect.one_of(AGENT.column("agent_id"), "agent_id", dialect.list_placeholder(1))
    # Locked in the order of their ids: two calls about the same agents wait for each other, and end.
    held = f"SELECT agent_id FROM {agents} WHERE {ids} ORDER BY agent_id{dialect.update_lock}"
    ended = ((each, each.finished) for each in RELATIONS)
    return {
        **{f"{each.name}.prune": _prune(dialect, each, trait) for each, trait in ended if trait is not None},
        "agent.renew": (
            f"UPDATE {agents} SET last_heartbeat = {now}, version = version + 1,"
            f" status = CASE WHEN status = {_FAILED} THEN {_IDLE} ELSE status END"
            f" WHERE agent_id {dialect.among(held)} RETURNING {agent}"
        ),
        "delegation.any_of_task": f"SELECT 1 {given} UNION ALL SELECT 1 {passed} LIMIT 1",
        "delegation.open_of_task": f"SELECT {delegation} {given} ORDER BY created_at, ordinal",
        "handoff.open_of_task": f"SELECT {handoff} {passed} {oldest}",
        "handoff.brief_by_trajectory": f"{listed} trajectory_id = {one} {oldest}",
        "handoff.brief_by_agent": f"{listed} from_agent_id = {one} OR to_agent_id = {one} {oldest}",
        "handoff.brief_by_status": f"{listed} status = {one} {oldest}",
        "handoff.brief_pending_of_type": (
            f"{listed} to_agent_type = {one} AND to_agent_id IS NULL AND status = {_INITIATED} {oldest}"
        ),
        # No range of an index: databases order texts by the rules of a language.
        "workspace_value.by_prefix": f"SELECT {value} FROM {values} WHERE substr(key, 1, length({one})) = {one}",
    }


def _prune(dialect: Dialect, relation: Relation, trait: Finished) -> str:
    """Return the statement that deletes the records that ended first, before an instant, at most so many."""
    table, key = dialect.table(relation.name), quote(relation.key[0])
    since, open_ = quote(trait.since), ", ".join(literal(state) for state in trait.open)
    # NOT IN: with a list of final states a planner would read all records that ended, by the index of the states.
    over = f"{since} IS NOT NULL AND {since} < {dialect.placeholder(1)} AND {quote(trait.status)} NOT IN ({open_})"
    # In one order: two processes that delete the same page wait for each other.
    order = f"ORDER BY {since}, {key} LIMIT {dialect.placeholder(2)}{dialect.row_lock}"
    page = f"SELECT {key} FROM {table} WHERE {over} {order}"
    return f"DELETE FROM {table} WHERE {key} {dialect.among(page)}"
