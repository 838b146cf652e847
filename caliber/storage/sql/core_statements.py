"""SQL statements of tasks, locks, the change feed, kept content, agents, the workspace, and the job queue.

Also those that lower a record's trust label to the least trusted of its parts (``Trust.least_of``). One text serves
both databases; the dialect writes parameters and locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from caliber.model.agents.delegation import HandoffStatus
from caliber.model.agents.registry import AgentStatus
from caliber.model.jobs import JobOutcome, JobState
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import (
    AGENT,
    BY_NAME,
    DELEGATION,
    EDGE,
    ERASURE,
    GRANT,
    HANDOFF,
    JOB,
    RELATIONS,
    TRAJECTORY,
    WORKSPACE_VALUE,
)
from caliber.schema.traits import Finished
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import literal, quote, quote_all

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
    core = {name: text.format_map(words) for name, text in _TEXTS.items()}
    for relation, ends in ((EDGE, ("source_id", "target_id")), (GRANT, ("on_id",))):
        ids = [dialect.one_of(relation.column(end), end, dialect.list_placeholder(1)) for end in ends]
        found = (f"SELECT {words[f'{relation.name}_row']} FROM {words[relation.name]} WHERE {each}" for each in ids)
        core[f"{relation.name}.of_records"] = f"{' UNION '.join(found)} ORDER BY ordinal"
    return core | _trust_statements(dialect) | _team_statements(dialect) | _job_statements(dialect)


def distrust_of(label: str) -> str:
    """Return the place of a label in the order of trust: 0 for the most trusted."""
    cases = " ".join(f"WHEN '{each}' THEN {each.distrust}" for each in TrustLabel)
    return f"CASE {label} {cases} END"


def _trust_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each statement, by its name in ``IRREGULAR``."""
    return {
        name: sql
        for owner in RELATIONS
        if owner.trust is not None and owner.trust.least_of is not None
        for name, sql in _of(owner, owner.trust.column, BY_NAME[owner.trust.least_of], dialect)
    }


def _of(owner: Relation, label: str, parts: Relation, dialect: Dialect) -> Iterator[tuple[str, str]]:
    assert parts.trust is not None  # the least of their labels
    refers = next(key for key in parts.foreign_keys if key.relation == owner.name)
    one, two = dialect.placeholder(1), dialect.placeholder(2)
    table, trust, key = dialect.table(owner.name), quote(label), quote(refers.target)
    row = quote_all(codec_of(owner).names)
    lower = (
        f"UPDATE {table} SET {trust} = {one}, version = version + 1 WHERE {key} = {two}"
        f" AND {distrust_of(trust)} < {distrust_of(one)} RETURNING {row}"
    )
    yield f"{owner.name}.distrust", lower
    labels = " ".join(f"WHEN {each.distrust} THEN '{each}'" for each in TrustLabel)
    # Locked in the order of their keys, as by writers that share a transaction.
    lower_loaded = (
        f"WITH loaded AS (SELECT {quote(refers.column)} AS of_owner, max({distrust_of(quote(parts.trust.column))})"
        f" AS least FROM {dialect.table(parts.name)} WHERE ordinal > {one} GROUP BY {quote(refers.column)}),"
        f" fallen AS (SELECT of_owner, least FROM {table} AS mine JOIN loaded ON of_owner = mine.{key}"
        f" WHERE {distrust_of(f'mine.{trust}')} < least ORDER BY of_owner{dialect.update_lock})"
        f" UPDATE {table} SET {trust} = CASE least {labels} END, version = version + 1 FROM fallen"
        f" WHERE {key} = of_owner AND {distrust_of(trust)} < least RETURNING {row}"
    )
    yield f"{owner.name}.distrust_loaded", lower_loaded


_SNAPSHOT = HANDOFF.column("snapshot")
_INITIATED = literal(HandoffStatus.INITIATED)
_FAILED, _IDLE = literal(AgentStatus.FAILED), literal(AgentStatus.IDLE)


def _team_statements(dialect: Dialect) -> dict[str, str]:
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


_CLAIMED = "available_at = {until}, scheduled_at = {now}, begun_at = coalesce(begun_at, {now}), claimed_by = {claimant}"


def _job_statements(dialect: Dialect) -> dict[str, str]:
    """Return the text of each irregular statement about jobs, in the words of a database."""
    job, trajectory = dialect.table(JOB.name), dialect.table(TRAJECTORY.name)
    row = ", ".join(quote(name) for name in codec_of(JOB).names)
    one, two, three, four, five = (dialect.placeholder(at) for at in range(1, 6))
    outcomes = ", ".join(literal(outcome) for outcome in JobOutcome)
    erased = f"(SELECT count(*) FROM {dialect.table(ERASURE.name)})"
    ack = f"ended_at = {three}, outcome = {four}, claimed_by = NULL, version = version + 1"
    claimed = _CLAIMED.format(now=two, until=three, claimant=four) + ", attempts = attempts + 1, version = version + 1"
    available = f"SELECT job_id FROM {job} WHERE kind = {one} AND ended_at IS NULL AND available_at <= {two}"
    newest = f"SELECT scheduled_at FROM {job} WHERE ended_at IS NULL AND scheduled_at >= {two}"
    ahead = f"({newest} ORDER BY scheduled_at DESC LIMIT 1) IS NOT NULL"  # any one would do; so both use the index
    skip = f"{dialect.row_lock} SKIP LOCKED" if dialect.row_lock else ""
    first = f"{available} ORDER BY available_at LIMIT {five}{skip}"
    # The task is locked first: a deletion of the task locks it too, and then its jobs.
    task = f"SELECT trajectory_id FROM {trajectory} WHERE trajectory_id = {five}"
    task = f"WITH task AS MATERIALIZED ({task} FOR KEY SHARE) SELECT trajectory_id FROM task" if skip else task
    return {
        "job.next": (
            f"SELECT value, (SELECT available_at FROM {job} WHERE kind = value AND ended_at IS NULL"
            f" ORDER BY available_at LIMIT 1), {ahead} FROM ({dialect.in_texts(1)}) AS kinds"
        ),
        "event.drop_many": f"DELETE FROM {dialect.table('event')} WHERE ordinal IN ({dialect.in_integers(1)})",
        # An array, or the database may look for the first ones more than once, and claim more.
        "job.claim": (f"UPDATE {job} SET {claimed} WHERE job_id {dialect.among(first)} RETURNING {row}"),
        "job.claim_one": (
            f"UPDATE {job} SET {claimed} WHERE job_id = {one} AND ended_at IS NULL"
            f" AND (claimed_by IS NULL OR available_at <= {two}) RETURNING {row}"
        ),
        "job.hold": (
            f"SELECT job_id FROM {job} WHERE job_id = {one} AND version = {two} AND ended_at IS NULL{dialect.row_lock}"
        ),
        "job.extend": (
            f"UPDATE {job} SET scheduled_at = {three}, available_at = {four}"
            f" WHERE job_id = {one} AND version = {two} AND ended_at IS NULL"
        ),
        "job.report": (
            f"UPDATE {job} SET attempts = CASE WHEN done < {three} THEN 1 ELSE attempts END,"
            f" error = CASE WHEN done < {three} THEN NULL ELSE error END, done = {three}, total = {four}"
            f" WHERE job_id = {one} AND version = {two} AND ended_at IS NULL"
        ),
        "job.end": (
            f"UPDATE {job} SET {ack} WHERE job_id = {one} AND version = {two} AND ended_at IS NULL RETURNING {erased}"
        ),
        "job.end_of_task": (
            f"UPDATE {job} SET {ack} WHERE job_id = {one} AND version = {two} AND trajectory_id = ({task})"
            f" AND ended_at IS NULL RETURNING {erased}"
        ),
        "job.prune": f"DELETE FROM {job} WHERE outcome IN ({outcomes}) AND ended_at < {one}",
        "job.prune_abandoned": (
            f"DELETE FROM {job} WHERE ended_at IS NULL AND available_at < {one} AND kind NOT IN ({dialect.in_texts(2)})"
        ),
        "job.list_open": (
            f"SELECT {row} FROM {job} WHERE ended_at IS NULL AND ({one} = '' OR kind = {one})"
            f" AND ({two} = '' OR (claimed_by IS NULL) = ({two} = {literal(JobState.WAITING)}))"
            f" ORDER BY kind, available_at LIMIT {three}"
        ),
        "job.list_ended": (
            f"SELECT {row} FROM {job} WHERE ended_at IS NOT NULL AND outcome = {one} AND ({two} = '' OR kind = {two})"
            f" ORDER BY ended_at DESC LIMIT {three}"
        ),
        "job.counts": (f"SELECT kind, count(*) FROM {job} WHERE ended_at IS NULL GROUP BY kind ORDER BY kind"),
    }
