"""Catalogue of irregular SQL statements: names, parameters and result columns; each backend supplies the text.

A test proves that a backend has all of them, with these parameters and results.
"""

from __future__ import annotations

from caliber.model.lazy_dataclass import dataclass
from caliber.schema.relations import RELATIONS


@dataclass(frozen=True, slots=True)
class Irregular:
    """The contract of one irregular statement; ``rows_of`` names the relation whose whole rows it returns."""

    parameters: tuple[str, ...]
    rows_of: str | None = None
    results: tuple[str, ...] = ()


_HELD = ("message_id", "mailbox", "topic")

IRREGULAR: dict[str, Irregular] = {
    "append.scope": Irregular(("tokens_input", "tokens_output", "now", "turns", "scope_id"), rows_of="scope"),
    "append.trajectory": Irregular(("tokens_input", "tokens_output", "now", "turns", "scope_id"), rows_of="trajectory"),
    "scope.next_sequence": Irregular(("trajectory_id",), results=("sequence",)),
    "turn.newest": Irregular(("scope_id", "limit"), rows_of="turn"),
    "turn.last_said": Irregular(("trajectory_id",), rows_of="turn"),
    "turn.outline": Irregular(("scope_id", "turn_number"), results=("turn_number", "is_result", "calls")),
    "turn.block": Irregular(("trajectory_id", "scope_id", "first_turn", "last_turn"), rows_of="turn"),
    "turn.hold_block": Irregular(("trajectory_id", "scope_id", "first_turn", "last_turn"), rows_of="turn"),
    "turn_summary.hold_scope": Irregular(("trajectory_id", "scope_id"), results=("scope_id",)),
    "turn_summary.overlapping": Irregular(("scope_id", "first_turn", "last_turn"), rows_of="turn_summary"),
    "turn_summary.ranges": Irregular(("scope_id",), results=("first_turn", "last_turn", "source_turns")),
    "turn.of_closed_scopes": Irregular(("created_until",), rows_of="turn"),
    "memory.revision": Irregular((), results=("memories", "versions")),
    "lock.serialize": Irregular(("resource",), results=("serialized",)),
    "lock.held": Irregular(("resource", "token", "now"), results=("holder",)),
    "lock.of_resource": Irregular(("resource",), rows_of="lock"),
    "lock.ended": Irregular(("now", "after_resource", "limit"), results=("resource", "is_free")),
    "lock.delete_ended": Irregular(("now", "resources"), results=("token",)),
    "lock.list_live": Irregular(("now", "holder", "limit"), rows_of="lock"),
    "lock_waiter.list_live": Irregular(("now", "holder", "limit"), rows_of="lock_waiter"),
    "lock_waiter.delete_ended": Irregular(("now", "resources")),
    "change.since": Irregular(("sequence",), results=("sequence", "writer", "entries")),
    "change.bounds": Irregular((), results=("first", "last")),
    "change.insert": Irregular(("writer", "entries", "created_at"), results=("sequence",)),
    "change.prune": Irregular(("older_than", "keep_rows")),
    "content.at": Irregular(("owner_type", "owner_ordinal", "owner_version"), results=("body",)),
    "content.owner": Irregular(("owner_type", "owner_ordinal"), results=("owner_id",)),
    "content.prune": Irregular(("before",)),
    "window.prune": Irregular(("now", "older_than")),
    "event.prune": Irregular(("older_than",)),
    "event.recent": Irregular(("family", "since", "limit"), rows_of="event"),
    "event.drop_trace": Irregular(("trajectory_id",)),
    "event.drop_many": Irregular(("ordinals",)),
    "embedding_cache.prune": Irregular(("older_than",)),
    "embedding_cache.drop_some": Irregular(("model_id", "dimensions", "limit")),
    "edge.of_records": Irregular(("record_ids",), rows_of="edge"),
    "access_grant.of_records": Irregular(("record_ids",), rows_of="access_grant"),
    "embedding.drop_owner": Irregular(("owner_id",), rows_of="embedding"),
    "embedding.drop_many": Irregular(("ordinals",), rows_of="embedding"),
    "embedding.drop_some": Irregular(("space_id", "limit")),
    "embedding.of_space": Irregular(("space_id",), results=("owner_type", "vectors", "records")),
    "embedding.spaceless": Irregular(("after", "limit"), results=("ordinal",)),
    "usage.bump": Irregular(("usage_id", "owner_type", "owner_id", "used_by", "count", "now"), rows_of="usage"),
    "job.next": Irregular(("kinds", "ahead"), results=("kind", "available_at", "is_ahead")),
    "job.claim": Irregular(("kind", "now", "until", "claimant", "limit"), rows_of="job"),
    "job.claim_one": Irregular(("job_id", "now", "until", "claimant"), rows_of="job"),
    "job.hold": Irregular(("job_id", "version"), results=("job_id",)),
    "job.extend": Irregular(("job_id", "version", "now", "until")),
    "job.report": Irregular(("job_id", "version", "done", "total")),
    "job.end": Irregular(("job_id", "version", "now", "outcome"), results=("erasures",)),
    "job.end_of_task": Irregular(("job_id", "version", "now", "outcome", "trajectory_id"), results=("erasures",)),
    "job.prune": Irregular(("ended_before",)),
    "job.prune_abandoned": Irregular(("available_before", "kinds")),
    "job.list_open": Irregular(("kind", "state", "limit"), rows_of="job"),
    "job.list_ended": Irregular(("outcome", "kind", "limit"), rows_of="job"),
    "job.counts": Irregular((), results=("kind", "jobs")),
    "agent.renew": Irregular(("agent_ids", "now"), rows_of="agent"),
    "delegation.any_of_task": Irregular(("trajectory_id",), results=("found",)),
    "delegation.open_of_task": Irregular(("trajectory_id",), rows_of="delegation"),
    "handoff.open_of_task": Irregular(("trajectory_id",), rows_of="handoff"),
    "handoff.brief_by_trajectory": Irregular(("trajectory_id",), rows_of="handoff"),
    "handoff.brief_by_agent": Irregular(("agent_id",), rows_of="handoff"),
    "handoff.brief_by_status": Irregular(("status",), rows_of="handoff"),
    "handoff.brief_pending_of_type": Irregular(("agent_type",), rows_of="handoff"),
    "workspace_value.by_prefix": Irregular(("prefix",), rows_of="workspace_value"),
    "message.ready": Irregular(("mailbox", "mailbox_of_type", "now", "ahead"), results=("rank", "rank_of_type")),
    "message.claim": Irregular(
        ("mailbox", "rank", "now", "until", "ahead", "claim_id", "claimed_by", "limit"), rows_of="agent_message"
    ),
    "message.ack": Irregular(("message_ids", "claim_id", "now", "claimed_by"), results=_HELD),
    "message.extend": Irregular(("message_ids", "claim_id", "now", "until", "claimed_by"), results=_HELD),
    "message.release": Irregular(("message_ids", "claim_id", "now", "until", "claimed_by"), results=_HELD),
    "message.backlog": Irregular(("mailbox", "now", "limit"), results=("messages",)),
    "message.next": Irregular(("mailbox", "mailbox_of_type", "now"), results=("available_at",)),
    "message.expire": Irregular(("now",)),
    "message.prune": Irregular(("ended_before",)),
    "message.list": Irregular(("state", "now", "limit"), rows_of="agent_message"),
    "message.list_of": Irregular(("state", "now", "limit", "agent_id", "mailbox"), rows_of="agent_message"),
    "checkpoint.prune": Irregular(("trajectory_id", "keep", "before")),
}

_LACKING = ("ordinal", "owner_id", "head", "content")


def of_embedded(kind: str) -> dict[str, Irregular]:
    """Return the statements about the vectors of one kind of record."""
    return {
        f"embedding.pending_{kind}": Irregular(("space_id", "before", "limit"), results=_LACKING),
        f"embedding.pending_up_{kind}": Irregular(("space_id", "after", "limit"), results=_LACKING),
        f"embedding.unmoved_{kind}": Irregular(
            ("space_id", "from_space_id", "after", "limit"), results=("ordinal", "owner_id")
        ),
        f"embedding.hashes_{kind}": Irregular(
            ("space_id", "after", "limit"), results=("ordinal", "owner_id", "head", "content", "content_hash")
        ),
        f"embedding.progress_{kind}": Irregular(("space_id",), results=("total", "pending")),
        f"embedding.strays_{kind}": Irregular(("after", "limit"), results=("ordinal", "is_gone")),
    }


for _relation in RELATIONS:
    if _relation.embedded is not None:
        IRREGULAR |= of_embedded(_relation.name)
    if _relation.trust is not None and _relation.trust.least_of is not None:
        IRREGULAR[f"{_relation.name}.distrust"] = Irregular(("trust", "owner_id"), rows_of=_relation.name)
        IRREGULAR[f"{_relation.name}.distrust_loaded"] = Irregular(("after",), rows_of=_relation.name)
    if _relation.finished is not None:
        IRREGULAR[f"{_relation.name}.prune"] = Irregular(("ended_before", "limit"))
