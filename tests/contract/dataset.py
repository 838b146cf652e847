"""Fixed dataset for contract tests of the irregular SQL statements: parameters and expected results of each.

Source: design section 3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from caliber.model.events import EventFamily
from caliber.model.knowledge import NOBODY, NoteType
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.model.trajectory import ArtifactType, ToolCall, TurnRole
from caliber.schema.relation import Relation
from caliber.schema.relations import (
    AGENT,
    ARTIFACT,
    CHECKPOINT,
    CONTENT_VERSION,
    CONTEXT_WINDOW,
    DELEGATION,
    EDGE,
    EMBEDDING,
    EMBEDDING_CACHE,
    EMBEDDING_SPACE,
    EVENT,
    GRANT,
    HANDOFF,
    LOCK,
    LOCK_WAITER,
    NOTE,
    SCOPE,
    SESSION,
    TRAJECTORY,
    TURN,
    TURN_SUMMARY,
    USAGE,
    WORKSPACE_VALUE,
)
from caliber.storage.compile.codec import Row, codec_of, dump_json
from contract.entities import plain


def uid(number: int) -> uuid.UUID:
    """Return the id with a number."""
    return uuid.UUID(int=number)


T1, T2, S1, S2 = uid(1), uid(2), uid(11), uid(12)
SPACE = uid(90)
EMPTY = uid(91)
"""A space that holds nothing."""

LAST: Final = 2**62
"""Beyond every ordinal."""


def note(number: int) -> EntityRef:
    """Return a note by the number of its id."""
    return EntityRef(EntityType.NOTE, uid(number))


def listed(*numbers: int) -> str:
    """Return ids as statements take several."""
    return dump_json([uid(number).hex for number in numbers])


class At(NamedTuple):
    """Stands for the ordinal of the row whose id has a number: databases may begin to count where they like."""

    number: int


def resolved(parameters: tuple[Any, ...], ordinals: Mapping[int, int]) -> tuple[Any, ...]:
    """Return parameters with ordinals in the places of rows."""
    return tuple(ordinals[each.number] if isinstance(each, At) else each for each in parameters)


def unnumbered(rows: list[Row]) -> list[Any]:
    """Return rows without their ordinals."""
    return [tuple(row[1:]) for row in rows]


def keys(rows: list[Row]) -> list[uuid.UUID]:
    """Return the ids that come second in rows, sorted."""
    return sorted(uuid.UUID(bytes=row[1]) for row in rows)


def dataset() -> list[tuple[Relation, Any]]:
    """Return every row, in an order in which references already exist."""
    hash_a, hash_b = b"a" * 32, b"b" * 32
    key = {"trajectory_id": T1, "scope_id": S1}
    return [
        (SESSION, plain(SESSION, session_id=uid(5))),
        (TRAJECTORY, plain(TRAJECTORY, trajectory_id=T1, initiator=EntityRef(EntityType.USER, uid(6)),
                           session_id=uid(5))),
        (TRAJECTORY, plain(TRAJECTORY, trajectory_id=T2, initiator=EntityRef(EntityType.SYSTEM, uid(7)))),
        (SCOPE, plain(SCOPE, scope_id=S1, trajectory_id=T1, sequence_number=4, next_sequence=2, summary="said")),
        (SCOPE, plain(SCOPE, scope_id=S2, trajectory_id=T1, sequence_number=2, closed_at=from_us(5))),
        (TURN, plain(TURN, turn_id=uid(21), **key, sequence=0, turn_number=0, content=b"one", idempotency_key="k")),
        (TURN, plain(TURN, turn_id=uid(22), **key, sequence=1, turn_number=1, content=b"",
                     role=TurnRole.TOOL)),
        (TURN, plain(TURN, turn_id=uid(23), **key, sequence=2, turn_number=2, content=b"three",
                     role=TurnRole.ASSISTANT, tool_calls=(ToolCall("1", "f", "{}"),))),
        (TURN_SUMMARY, plain(TURN_SUMMARY, turn_summary_id=uid(25), **key, first_turn=0, last_turn=1,
                             source_turns=(uid(21), uid(22)), content="said")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(31), **key, content_hash=hash_a, artifact_type=ArtifactType.FACT,
                         expires_at=from_us(100), content=b"A", idempotency_key="k")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(32), **key, content_hash=hash_a, artifact_type=ArtifactType.FACT,
                         expires_at=from_us(50), retired_at=from_us(60), content=b"old A")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(33), **key, content_hash=hash_b, artifact_type=ArtifactType.FACT,
                         rolled_back_at=from_us(1), expires_at=from_us(50))),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(34), **key, content_hash=hash_b, artifact_type=ArtifactType.CUSTOM,
                         content=b"B", confidence=0.25)),
        (NOTE, plain(NOTE, note_id=uid(41), fingerprint=b"1" * 32, entity="e", entity_type="t", content="n1",
                     note_type=NoteType.FACT, created_at=from_us(9), source_trajectory_ids=(T2, T1))),
        (NOTE, plain(NOTE, note_id=uid(42), fingerprint=b"2" * 32, entity="e", entity_type="t", content="n2",
                     note_type=NoteType.FACT, created_at=from_us(3), confidence=0.5)),
        (NOTE, plain(NOTE, note_id=uid(43), fingerprint=b"1" * 32, entity="e", entity_type="t", content="gone",
                     note_type=NoteType.FACT, archived_at=from_us(4), source_trajectory_ids=(T1,))),
        (NOTE, plain(NOTE, note_id=uid(44), fingerprint=b"1" * 32, entity="e", entity_type="t", content="keyed",
                     note_type=NoteType.META, created_by="agent:a@", idempotency_key="k")),
        (LOCK, plain(LOCK, lock_id=uid(51), resource="r", token=1, expires_at=from_us(10))),
        (LOCK, plain(LOCK, lock_id=uid(52), resource="r", token=3, expires_at=from_us(100),
                     holder="agent:a@")),
        (LOCK, plain(LOCK, lock_id=uid(53), resource="q", token=7, expires_at=from_us(10))),
        (LOCK_WAITER, plain(LOCK_WAITER, waiter_id=uid(55), resource="r", ticket=4, expires_at=from_us(100),
                            holder="agent:a@")),
        (LOCK_WAITER, plain(LOCK_WAITER, waiter_id=uid(56), resource="r", ticket=2, expires_at=from_us(10))),
        (LOCK_WAITER, plain(LOCK_WAITER, waiter_id=uid(57), resource="q", ticket=9, expires_at=from_us(50),
                            holder="agent:a@")),
        (CONTENT_VERSION, plain(CONTENT_VERSION, owner_type=EntityType.NOTE, owner_ordinal=1, owner_version=2,
                                owner_id=uid(41), body="v2", replaced_at=from_us(20))),
        (CONTENT_VERSION, plain(CONTENT_VERSION, owner_type=EntityType.NOTE, owner_ordinal=1, owner_version=5,
                                owner_id=uid(41), body="v5", replaced_at=from_us(40))),
        (CONTEXT_WINDOW, plain(CONTEXT_WINDOW, window_id=uid(61), trajectory_id=T1, assembled_at=from_us(30))),
        (CONTEXT_WINDOW, plain(CONTEXT_WINDOW, window_id=uid(62), trajectory_id=T1, assembled_at=from_us(70),
                               expires_at=from_us(80))),
        (EVENT, plain(EVENT, event_id=uid(71), family=EventFamily.TRACE, created_at=from_us(10))),
        (EVENT, plain(EVENT, event_id=uid(72), family=EventFamily.AUDIT, created_at=from_us(10))),
        (EVENT, plain(EVENT, event_id=uid(73), family=EventFamily.TRACE, created_at=from_us(50))),
        (EMBEDDING_CACHE, plain(EMBEDDING_CACHE, content_hash=hash_a, dimensions=4, created_at=from_us(10))),
        (EMBEDDING_CACHE, plain(EMBEDDING_CACHE, content_hash=hash_b, dimensions=4, created_at=from_us(50))),
        (EMBEDDING_SPACE, plain(EMBEDDING_SPACE, space_id=SPACE)),
        (EMBEDDING, plain(EMBEDDING, space_id=SPACE, owner_type=EntityType.TURN, owner_id=uid(21), chunk_index=0)),
        (EMBEDDING, plain(EMBEDDING, space_id=SPACE, owner_type=EntityType.NOTE, owner_id=uid(41), chunk_index=0)),
        (USAGE, plain(USAGE, usage_id=uid(41), owner_type=EntityType.NOTE, owner_id=uid(41), used_by=NOBODY,
                      access_count=5, last_accessed_at=from_us(50))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(81), trajectory_id=T1, created_at=from_us(1))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(82), trajectory_id=T1, created_at=from_us(3))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(83), trajectory_id=T1, created_at=from_us(2))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(84), trajectory_id=T2, created_at=from_us(1))),
        (AGENT, plain(AGENT, agent_id=uid(95))),
        (DELEGATION, plain(DELEGATION, delegation_id=uid(96), delegator_agent_id=uid(95), parent_trajectory_id=T1)),
        (DELEGATION, plain(DELEGATION, delegation_id=uid(97), delegator_agent_id=uid(95), parent_trajectory_id=T1,
                           completed_at=from_us(9))),
        (HANDOFF, plain(HANDOFF, handoff_id=uid(98), from_agent_id=uid(95), **key, snapshot=b"all",
                        to_agent_type="coder")),
        (HANDOFF, plain(HANDOFF, handoff_id=uid(99), from_agent_id=uid(95), **key, completed_at=from_us(9))),
        (WORKSPACE_VALUE, plain(WORKSPACE_VALUE, value_id=uid(101), key="a/one")),
        (WORKSPACE_VALUE, plain(WORKSPACE_VALUE, value_id=uid(102), key="a/two", deleted_at=from_us(1))),
        (WORKSPACE_VALUE, plain(WORKSPACE_VALUE, value_id=uid(103), key="b/one")),
        (WORKSPACE_VALUE, plain(WORKSPACE_VALUE, value_id=uid(104), key="a%")),
        (EDGE, plain(EDGE, edge_id=uid(111), source=note(41), target=note(42))),
        (EDGE, plain(EDGE, edge_id=uid(112), source=note(43), target=note(41), removed_at=from_us(1))),
        (EDGE, plain(EDGE, edge_id=uid(113), source=note(42), target=note(43))),
        (GRANT, plain(GRANT, grant_id=uid(121), on=note(41))),
        (GRANT, plain(GRANT, grant_id=uid(122), on=note(42))),
    ]  # fmt: skip


def ids(relation: Relation, rows: list[Row]) -> list[int]:
    """Return the numbers of the rows' ids."""
    place = codec_of(relation).index(relation.key[0])
    return [uuid.UUID(bytes=row[place]).int for row in rows]


def argument(name: str) -> Any:
    """Return something that a statement's parameter of this name can be."""
    if name == "ordinals":
        return "[1]"
    if name in ("message_ids", "agent_ids", "record_ids"):
        return f'["{uid(1).hex}"]'
    if name in ("kinds", "resources"):
        return '["r"]'
    if name == "outcome":
        return "done"
    texts = {"model_id", "resource", "idempotency_key", "entity", "entity_type", "note_type", "artifact_type"}
    texts |= {"kind", "state", "claimant", "holder", "prefix", "status", "agent_type", "after_resource"}
    if name == "trust":
        return "web"
    if name == "family":
        return "trace"
    if name in texts:
        return "r"
    if name.endswith("_id") or name in ("mailbox", "mailbox_of_type", "claimed_by", "used_by"):
        return uid(1).bytes
    if name in ("owner_type", "initiator_type"):
        return "note"
    if name in ("content_hash", "fingerprint"):
        return b"a" * 32
    if name == "writer":
        return b"w" * 16
    return b"" if name == "entries" else 1


_SAME: Final = "artifact.by_trajectory_id_content_hash_artifact_type_trust"
READS: Final[list[tuple[str, tuple[Any, ...], Callable[[list[Row]], Any], Any]]] = [
    ("scope.next_sequence", (T1.bytes,), lambda rows: rows, [(5,)]),
    ("scope.next_sequence", (T2.bytes,), lambda rows: rows, [(0,)]),
    ("turn.by_trajectory_id_idempotency_key", (T1.bytes, "k"), lambda rows: ids(TURN, rows), [21]),
    ("turn.by_trajectory_id_idempotency_key", (T2.bytes, "k"), lambda rows: ids(TURN, rows), []),
    ("artifact.by_trajectory_id_idempotency_key", (T1.bytes, "k"), lambda rows: ids(ARTIFACT, rows), [31]),
    ("turn.by_trajectory_id_turn_number", (T1.bytes, 1), lambda rows: ids(TURN, rows), [22]),
    ("turn.by_trajectory_id_turn_number", (T2.bytes, 1), lambda rows: ids(TURN, rows), []),
    ("turn.newest", (S1.bytes, 2), lambda rows: ids(TURN, rows), [23, 22]),
    ("turn.newest", (S1.bytes, 9), lambda rows: ids(TURN, rows), [23, 22, 21]),
    ("turn.newest", (S2.bytes, 9), lambda rows: ids(TURN, rows), []),
    ("turn.last_said", (T1.bytes,), lambda rows: ids(TURN, rows), [21]),
    ("turn.last_said", (T2.bytes,), lambda rows: ids(TURN, rows), []),
    ("turn.outline", (S1.bytes, 0), lambda rows: rows, [(0, 0, 0), (1, 1, 0), (2, 0, 1)]),
    ("turn.outline", (S1.bytes, 2), lambda rows: rows, [(2, 0, 1)]),
    ("turn.outline", (S2.bytes, 0), lambda rows: rows, []),
    ("turn.block", (T1.bytes, S1.bytes, 1, 2), lambda rows: ids(TURN, rows), [22, 23]),
    ("turn.block", (T1.bytes, S1.bytes, 3, 9), lambda rows: ids(TURN, rows), []),
    ("turn.block", (T1.bytes, S2.bytes, 0, 9), lambda rows: ids(TURN, rows), []),
    ("turn.block", (T2.bytes, S1.bytes, 0, 9), lambda rows: ids(TURN, rows), []),
    ("turn_summary.overlapping", (S1.bytes, 1, 1), lambda rows: ids(TURN_SUMMARY, rows), [25]),
    ("turn_summary.overlapping", (S1.bytes, 0, 9), lambda rows: ids(TURN_SUMMARY, rows), [25]),
    ("turn_summary.overlapping", (S1.bytes, 2, 9), lambda rows: ids(TURN_SUMMARY, rows), []),
    ("turn_summary.overlapping", (S2.bytes, 0, 9), lambda rows: ids(TURN_SUMMARY, rows), []),
    ("turn_summary.ranges", (S1.bytes,), lambda rows: rows, [(0, 1, 2)]),
    ("turn_summary.ranges", (S2.bytes,), lambda rows: rows, []),
    (_SAME, (T1.bytes, b"a" * 32, "fact", "system"), lambda rows: ids(ARTIFACT, rows), [31]),
    (_SAME, (T1.bytes, b"a" * 32, "fact", "user"), lambda rows: ids(ARTIFACT, rows), []),
    (_SAME, (T1.bytes, b"b" * 32, "fact", "system"), lambda rows: ids(ARTIFACT, rows), []),
    (_SAME, (T2.bytes, b"a" * 32, "fact", "system"), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.lapsed", (99,), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.lapsed", (100,), lambda rows: ids(ARTIFACT, rows), [31]),
    ("turn.stale", (LAST, 2.0), lambda rows: ids(TURN, rows), [21, 22, 23]),
    ("turn.stale", (LAST, 1.0), lambda rows: ids(TURN, rows), []),
    ("turn.stale", (9, 2.0), lambda rows: ids(TURN, rows), []),
    ("turn.of_closed_scopes", (LAST,), lambda rows: ids(TURN, rows), []),
    ("artifact.stale", (LAST, 2.0), lambda rows: ids(ARTIFACT, rows), [31, 34]),
    ("artifact.stale", (LAST, 0.5), lambda rows: ids(ARTIFACT, rows), [34]),
    ("artifact.stale", (LAST, 0.25), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.stale", (9, 2.0), lambda rows: ids(ARTIFACT, rows), []),
    ("note.stale", (LAST, 2.0), lambda rows: ids(NOTE, rows), [41, 42, 44]),
    ("note.stale", (9, 2.0), lambda rows: ids(NOTE, rows), [41, 42]),
    ("note.stale", (8, 2.0), lambda rows: ids(NOTE, rows), [42]),
    ("note.stale", (LAST, 0.5), lambda rows: ids(NOTE, rows), [41, 44]),
    ("note.by_created_by_idempotency_key", ("agent:a@", "k"), lambda rows: ids(NOTE, rows), [44]),
    ("note.by_created_by_idempotency_key", ("agent:b@", "k"), lambda rows: ids(NOTE, rows), []),
    ("note.by_fingerprint", (b"1" * 32,), lambda rows: ids(NOTE, rows), [41]),
    ("event.recent", ("trace", 10, 9), lambda rows: ids(EVENT, rows), [73, 71]),
    ("event.recent", ("trace", 11, 9), lambda rows: ids(EVENT, rows), [73]),
    ("event.recent", ("trace", 10, 1), lambda rows: ids(EVENT, rows), [73]),
    ("event.recent", ("activity", 0, 9), lambda rows: ids(EVENT, rows), []),
    ("note.drawn_from", (T1.bytes,), lambda rows: sorted(ids(NOTE, rows)), [41, 43]),
    ("note.drawn_from", (T1.bytes[8:] + T1.bytes[:8],), lambda rows: ids(NOTE, rows), []),
    ("lock.held", ("r", 3, 99), lambda rows: rows, [("agent:a@",)]),
    ("lock.held", ("r", 3, 100), lambda rows: rows, []),
    ("lock.held", ("r", 1, 5), lambda rows: rows, [(plain(LOCK).holder,)]),
    ("lock.list_live", (9, None, 9), lambda rows: ids(LOCK, rows), [51, 53, 52]),
    ("lock.list_live", (9, None, 2), lambda rows: ids(LOCK, rows), [51, 53]),
    ("lock.list_live", (10, None, 9), lambda rows: ids(LOCK, rows), [52]),
    ("lock.list_live", (9, "agent:a@", 9), lambda rows: ids(LOCK, rows), [52]),
    ("lock.list_live", (9, "agent:b@", 9), lambda rows: ids(LOCK, rows), []),
    ("lock_waiter.list_live", (9, None, 9), lambda rows: ids(LOCK_WAITER, rows), [57, 56, 55]),
    ("lock_waiter.list_live", (9, None, 2), lambda rows: ids(LOCK_WAITER, rows), [57, 56]),
    ("lock_waiter.list_live", (10, None, 9), lambda rows: ids(LOCK_WAITER, rows), [57, 55]),
    ("lock_waiter.list_live", (9, "agent:a@", 9), lambda rows: ids(LOCK_WAITER, rows), [57, 55]),
    ("lock_waiter.list_live", (9, "agent:b@", 9), lambda rows: ids(LOCK_WAITER, rows), []),
    ("delegation.any_of_task", (T1.bytes,), lambda rows: rows, [(1,)]),
    ("delegation.any_of_task", (T2.bytes,), lambda rows: rows, []),
    ("delegation.open_of_task", (T1.bytes,), lambda rows: ids(DELEGATION, rows), [96]),
    ("delegation.open_of_task", (T2.bytes,), lambda rows: ids(DELEGATION, rows), []),
    ("handoff.open_of_task", (T1.bytes,), lambda rows: ids(HANDOFF, rows), [98]),
    ("handoff.open_of_task", (T2.bytes,), lambda rows: ids(HANDOFF, rows), []),
    ("handoff.brief_by_trajectory", (T1.bytes,), lambda rows: ids(HANDOFF, rows), [98, 99]),
    ("handoff.brief_by_trajectory", (T1.bytes,), lambda rows: {codec_of(HANDOFF).decode(row).snapshot for row in rows},
     {b""}),
    ("handoff.brief_by_agent", (uid(95).bytes,), lambda rows: ids(HANDOFF, rows), [98, 99]),
    ("handoff.brief_by_agent", (uid(96).bytes,), lambda rows: ids(HANDOFF, rows), []),
    ("handoff.brief_by_status", ("initiated",), lambda rows: ids(HANDOFF, rows), [98, 99]),
    ("handoff.brief_by_status", ("completed",), lambda rows: ids(HANDOFF, rows), []),
    ("handoff.brief_pending_of_type", ("coder",), lambda rows: ids(HANDOFF, rows), [98]),
    ("handoff.brief_pending_of_type", ("tester",), lambda rows: ids(HANDOFF, rows), []),
    ("workspace_value.by_prefix", ("a/",), lambda rows: sorted(ids(WORKSPACE_VALUE, rows)), [101, 102]),
    ("workspace_value.by_prefix", ("",), lambda rows: sorted(ids(WORKSPACE_VALUE, rows)), [101, 102, 103, 104]),
    ("workspace_value.by_prefix", ("a%",), lambda rows: ids(WORKSPACE_VALUE, rows), [104]),
    ("workspace_value.by_prefix", ("A/",), lambda rows: ids(WORKSPACE_VALUE, rows), []),
    ("workspace_value.by_prefix", ("a/one more",), lambda rows: ids(WORKSPACE_VALUE, rows), []),
    ("workspace_value.by_key", ("a/one",), lambda rows: ids(WORKSPACE_VALUE, rows), [101]),
    ("edge.of_records", (listed(41),), lambda rows: ids(EDGE, rows), [111, 112]),
    ("edge.of_records", (listed(41, 42),), lambda rows: ids(EDGE, rows), [111, 112, 113]),
    ("edge.of_records", (listed(44),), lambda rows: ids(EDGE, rows), []),
    ("access_grant.of_records", (listed(41, 44),), lambda rows: ids(GRANT, rows), [121]),
    ("access_grant.of_records", (listed(41, 42),), lambda rows: ids(GRANT, rows), [121, 122]),
    ("content.at", ("note", 1, 1), lambda rows: rows, [("v2",)]),
    ("content.at", ("note", 1, 2), lambda rows: rows, [("v2",)]),
    ("content.at", ("note", 1, 3), lambda rows: rows, [("v5",)]),
    ("content.at", ("note", 1, 6), lambda rows: rows, []),
    ("content.owner", ("note", 1), lambda rows: rows, [(uid(41).bytes,)]),
    ("content.owner", ("turn", 1), lambda rows: rows, []),
    ("embedding.pending_turn", (SPACE.bytes, LAST, 9), unnumbered, [(uid(23).bytes, None, b"three")]),
    ("embedding.pending_turn", (SPACE.bytes, LAST, 0), lambda rows: rows, []),
    ("embedding.pending_turn", (SPACE.bytes, At(23), 9), lambda rows: rows, []),
    ("embedding.pending_artifact", (SPACE.bytes, LAST, 9), lambda rows: [row[3] for row in rows], [b"B", b"A"]),
    ("embedding.pending_artifact", (SPACE.bytes, At(34), 9), lambda rows: [row[3] for row in rows], [b"A"]),
    ("embedding.pending_note", (SPACE.bytes, LAST, 9), unnumbered,
     [(uid(44).bytes, "e", "keyed"), (uid(42).bytes, "e", "n2")]),
    ("embedding.pending_scope", (SPACE.bytes, LAST, 9), unnumbered, [(S1.bytes, None, "said")]),
    ("embedding.pending_up_turn", (SPACE.bytes, -1, 9), unnumbered, [(uid(23).bytes, None, b"three")]),
    ("embedding.pending_up_turn", (SPACE.bytes, At(23), 9), lambda rows: rows, []),
    ("embedding.pending_up_artifact", (SPACE.bytes, -1, 9), lambda rows: [row[3] for row in rows], [b"A", b"B"]),
    ("embedding.pending_up_artifact", (SPACE.bytes, At(31), 9), lambda rows: [row[3] for row in rows], [b"B"]),
    ("embedding.pending_up_note", (SPACE.bytes, -1, 1), unnumbered, [(uid(42).bytes, "e", "n2")]),
    ("embedding.pending_up_scope", (SPACE.bytes, -1, 9), unnumbered, [(S1.bytes, None, "said")]),
    ("embedding.unmoved_turn", (EMPTY.bytes, SPACE.bytes, -1, 9), unnumbered, [(uid(21).bytes,)]),
    ("embedding.unmoved_turn", (EMPTY.bytes, SPACE.bytes, At(21), 9), lambda rows: rows, []),
    ("embedding.unmoved_turn", (SPACE.bytes, EMPTY.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.unmoved_note", (EMPTY.bytes, SPACE.bytes, -1, 9), unnumbered, [(uid(41).bytes,)]),
    ("embedding.unmoved_artifact", (EMPTY.bytes, SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.unmoved_scope", (EMPTY.bytes, SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.hashes_turn", (SPACE.bytes, -1, 9), lambda rows: [row[1:4] for row in rows],
     [(uid(21).bytes, None, b"one")]),
    ("embedding.hashes_turn", (SPACE.bytes, At(21), 9), lambda rows: rows, []),
    ("embedding.hashes_note", (SPACE.bytes, -1, 9), lambda rows: [row[1:4] for row in rows],
     [(uid(41).bytes, "e", "n1")]),
    ("embedding.hashes_scope", (SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.hashes_artifact", (SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.progress_turn", (SPACE.bytes,), lambda rows: rows, [(2, 1)]),
    ("embedding.progress_turn", (EMPTY.bytes,), lambda rows: rows, [(2, 2)]),
    ("embedding.progress_artifact", (SPACE.bytes,), lambda rows: rows, [(2, 2)]),
    ("embedding.progress_note", (SPACE.bytes,), lambda rows: rows, [(3, 2)]),
    ("embedding.progress_scope", (SPACE.bytes,), lambda rows: rows, [(1, 1)]),
    ("embedding.of_space", (EMPTY.bytes,), lambda rows: rows, []),
    ("embedding.strays_turn", (-1, 9), lambda rows: rows, []),
    ("embedding.strays_artifact", (-1, 9), lambda rows: rows, []),
    ("embedding.strays_note", (-1, 9), lambda rows: rows, []),
    ("embedding.strays_scope", (-1, 9), lambda rows: rows, []),
    ("embedding.spaceless", (-1, 9), lambda rows: rows, []),
]  # fmt: skip
