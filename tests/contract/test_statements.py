"""The irregular statements: each exists, takes and gives what its contract says, and answers right on one dataset.

The expected answers are written out here once; every database must give them. Source: design section 3.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from support.entities import plain

from caliber.model.enums import ArtifactType, EntityType, EventFamily, NoteType
from caliber.model.time import from_us
from caliber.schema.relations import (
    ARTIFACT,
    BY_NAME,
    CHECKPOINT,
    CONTENT_VERSION,
    CONTEXT_WINDOW,
    EMBEDDING,
    EMBEDDING_CACHE,
    EMBEDDING_SPACE,
    EVENT,
    LOCK,
    NOTE,
    SCOPE,
    TRAJECTORY,
    TURN,
    USAGE,
)
from caliber.storage.changes import DELETE, UPSERT, pack_changes, unpack_changes
from caliber.storage.codec import codec_of, dump_json
from caliber.storage.protocol import Store
from caliber.storage.statements import IRREGULAR
from caliber.storage.unit_of_work import UnitOfWork


def uid(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


T1, T2, S1, S2 = uid(1), uid(2), uid(11), uid(12)
SPACE = uid(90)
EMPTY = uid(91)
"""A space that holds nothing."""

LAST = 2**62
"""Beyond every ordinal."""


def unnumbered(rows: list[Any]) -> list[Any]:
    """Return rows without their ordinals."""
    return [tuple(row[1:]) for row in rows]


def _dataset() -> list[tuple[Any, Any]]:
    hash_a, hash_b = b"a" * 32, b"b" * 32
    key = {"trajectory_id": T1, "scope_id": S1}
    return [
        (TRAJECTORY, plain(TRAJECTORY, trajectory_id=T1)),
        (TRAJECTORY, plain(TRAJECTORY, trajectory_id=T2)),
        (SCOPE, plain(SCOPE, scope_id=S1, trajectory_id=T1, sequence_number=4, next_sequence=2, summary="said")),
        (SCOPE, plain(SCOPE, scope_id=S2, trajectory_id=T1, sequence_number=2, closed_at=from_us(5))),
        (TURN, plain(TURN, turn_id=uid(21), **key, sequence=0, turn_number=0, content=b"one", idempotency_key="k")),
        (TURN, plain(TURN, turn_id=uid(22), **key, sequence=1, turn_number=1, content=b"")),
        (TURN, plain(TURN, turn_id=uid(23), **key, sequence=2, turn_number=2, content=b"three")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(31), **key, content_hash=hash_a, artifact_type=ArtifactType.FACT,
                         expires_at=from_us(100), content=b"A", idempotency_key="k")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(32), **key, content_hash=hash_a, artifact_type=ArtifactType.FACT,
                         expires_at=from_us(50), retired_at=from_us(60), content=b"old A")),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(33), **key, content_hash=hash_b, artifact_type=ArtifactType.FACT,
                         rolled_back_at=from_us(1), expires_at=from_us(50))),
        (ARTIFACT, plain(ARTIFACT, artifact_id=uid(34), **key, content_hash=hash_b, artifact_type=ArtifactType.CUSTOM,
                         content=b"B")),
        (NOTE, plain(NOTE, note_id=uid(41), fingerprint=b"1" * 32, entity="e", entity_type="t", content="n1",
                     note_type=NoteType.FACT, created_at=from_us(9), source_trajectory_ids=(T2, T1))),
        (NOTE, plain(NOTE, note_id=uid(42), fingerprint=b"2" * 32, entity="e", entity_type="t", content="n2",
                     note_type=NoteType.FACT, created_at=from_us(3))),
        (NOTE, plain(NOTE, note_id=uid(43), fingerprint=b"1" * 32, entity="e", entity_type="t", content="gone",
                     note_type=NoteType.FACT, archived_at=from_us(4), source_trajectory_ids=(T1,))),
        (NOTE, plain(NOTE, note_id=uid(44), fingerprint=b"1" * 32, entity="e", entity_type="t", content="keyed",
                     note_type=NoteType.META, idempotency_key="k")),
        (LOCK, plain(LOCK, lock_id=uid(51), resource="r", token=1, expires_at=from_us(10))),
        (LOCK, plain(LOCK, lock_id=uid(52), resource="r", token=3, expires_at=from_us(100))),
        (LOCK, plain(LOCK, lock_id=uid(53), resource="q", token=7, expires_at=from_us(10))),
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
        (USAGE, plain(USAGE, owner_type=EntityType.NOTE, owner_id=uid(41), access_count=5,
                      last_accessed_at=from_us(50))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(81), trajectory_id=T1, created_at=from_us(1))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(82), trajectory_id=T1, created_at=from_us(3))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(83), trajectory_id=T1, created_at=from_us(2))),
        (CHECKPOINT, plain(CHECKPOINT, checkpoint_id=uid(84), trajectory_id=T2, created_at=from_us(1))),
    ]  # fmt: skip


@pytest.fixture
def store(backend: Any) -> Store:
    store: Store = backend.store()
    store.write(lambda uow: [uow.insert(relation, entity) for relation, entity in _dataset()])
    return store


def ids(relation: Any, rows: list[Any]) -> list[int]:
    """Return the numbers of the rows' ids."""
    place = codec_of(relation).index(relation.key[0])
    return [uuid.UUID(bytes=row[place]).int for row in rows]


def read(store: Store, name: str, *parameters: Any) -> list[Any]:
    with store.read() as session:
        return session.run(store.statements[name], parameters)


def left(store: Store, relation: Any) -> list[int]:
    with store.read() as session:
        rows = session.run(store.plans[relation.name].page, (-1, 1_000))
    return ids(relation, rows)


def test_every_statement_is_there_with_its_contract(store: Store) -> None:
    assert set(store.statements) == set(IRREGULAR)
    for name, contract in IRREGULAR.items():
        plan = store.statements[name]
        expected = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
        assert (plan.name, plan.binds, plan.results) == (name, contract.parameters, expected)


@pytest.mark.parametrize("name", sorted(IRREGULAR))
def test_statement_takes_its_parameters_and_gives_its_columns(name: str, store: Store) -> None:
    """Run with as many parameters as declared; one more or one less is refused; rows are as wide as declared."""
    plan = store.statements[name]
    arguments = tuple(_argument(parameter) for parameter in plan.binds)

    class Undo(Exception):
        pass

    def work(uow: UnitOfWork) -> None:
        rows = uow._session.run(plan, arguments)
        assert all(len(row) == len(plan.results) for row in rows)
        raise Undo

    with pytest.raises(Undo):
        store.write(work)
    for wrong in ((*arguments, 1), arguments[:-1]):
        if len(wrong) != len(arguments):
            with pytest.raises(Exception, match=r"(?i)bind|parameter|transaction failed"):
                store.write(lambda uow, wrong=wrong: uow._session.run(plan, wrong))


def _argument(name: str) -> Any:
    if name == "ordinals":
        return "[1]"
    texts = {"model_id", "resource", "idempotency_key", "entity", "entity_type", "note_type", "artifact_type"}
    if name in texts:
        return "r"
    if name.endswith("_id"):
        return uid(1).bytes
    if name == "owner_type":
        return "note"
    if name in ("content_hash", "fingerprint"):
        return b"a" * 32
    if name == "writer":
        return b"w" * 16
    return b"" if name == "entries" else 1


READS: list[tuple[str, tuple[Any, ...], Callable[[list[Any]], Any], Any]] = [
    ("scope.next_sequence", (T1.bytes,), lambda rows: rows, [(5,)]),
    ("scope.next_sequence", (T2.bytes,), lambda rows: rows, [(0,)]),
    ("turn.by_idempotency", (T1.bytes, "k"), lambda rows: ids(TURN, rows), [21]),
    ("turn.by_idempotency", (T2.bytes, "k"), lambda rows: ids(TURN, rows), []),
    ("artifact.by_idempotency", (T1.bytes, "k"), lambda rows: ids(ARTIFACT, rows), [31]),
    ("artifact.active_by_hash", (T1.bytes, b"a" * 32, "fact"), lambda rows: ids(ARTIFACT, rows), [31]),
    ("artifact.active_by_hash", (T1.bytes, b"b" * 32, "fact"), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.active_by_hash", (T2.bytes, b"a" * 32, "fact"), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.expiring", (99,), lambda rows: ids(ARTIFACT, rows), []),
    ("artifact.expiring", (100,), lambda rows: ids(ARTIFACT, rows), [31]),
    ("note.by_idempotency", ("k",), lambda rows: ids(NOTE, rows), [44]),
    ("note.by_fingerprint", (b"1" * 32,), lambda rows: ids(NOTE, rows), [41]),
    ("note.of_trajectory", (T1.bytes,), lambda rows: sorted(ids(NOTE, rows)), [41, 43]),
    ("note.of_trajectory", (T1.bytes[8:] + T1.bytes[:8],), lambda rows: ids(NOTE, rows), []),
    ("lock.held", ("r", 3, 99), lambda rows: rows, [(3,)]),
    ("lock.held", ("r", 3, 100), lambda rows: rows, []),
    ("lock.held", ("r", 1, 5), lambda rows: rows, [(1,)]),
    ("lock.last_token", ("r",), lambda rows: rows, [(3,)]),
    ("lock.last_token", ("nothing",), lambda rows: rows, [(0,)]),
    ("content.at", ("note", 1, 1), lambda rows: rows, [("v2",)]),
    ("content.at", ("note", 1, 2), lambda rows: rows, [("v2",)]),
    ("content.at", ("note", 1, 3), lambda rows: rows, [("v5",)]),
    ("content.at", ("note", 1, 6), lambda rows: rows, []),
    ("content.owner", ("note", 1), lambda rows: rows, [(uid(41).bytes,)]),
    ("content.owner", ("turn", 1), lambda rows: rows, []),
    ("embedding.pending_turn", (SPACE.bytes, LAST, 9), unnumbered, [(uid(23).bytes, None, b"three")]),
    ("embedding.pending_turn", (SPACE.bytes, LAST, 0), lambda rows: rows, []),
    ("embedding.pending_turn", (SPACE.bytes, 3, 9), lambda rows: rows, []),
    ("embedding.pending_artifact", (SPACE.bytes, LAST, 9), lambda rows: [row[3] for row in rows], [b"B", b"A"]),
    ("embedding.pending_artifact", (SPACE.bytes, 4, 9), lambda rows: [row[3] for row in rows], [b"A"]),
    ("embedding.pending_note", (SPACE.bytes, LAST, 9), unnumbered,
     [(uid(44).bytes, "e", "keyed"), (uid(42).bytes, "e", "n2")]),
    ("embedding.pending_scope", (SPACE.bytes, LAST, 9), unnumbered, [(S1.bytes, None, "said")]),
    ("embedding.pending_up_turn", (SPACE.bytes, -1, 9), unnumbered, [(uid(23).bytes, None, b"three")]),
    ("embedding.pending_up_turn", (SPACE.bytes, 3, 9), lambda rows: rows, []),
    ("embedding.pending_up_artifact", (SPACE.bytes, -1, 9), lambda rows: [row[3] for row in rows], [b"A", b"B"]),
    ("embedding.pending_up_artifact", (SPACE.bytes, 1, 9), lambda rows: [row[3] for row in rows], [b"B"]),
    ("embedding.pending_up_note", (SPACE.bytes, -1, 1), unnumbered, [(uid(42).bytes, "e", "n2")]),
    ("embedding.pending_up_scope", (SPACE.bytes, -1, 9), unnumbered, [(S1.bytes, None, "said")]),
    ("embedding.unmoved_turn", (EMPTY.bytes, SPACE.bytes, -1, 9), unnumbered, [(uid(21).bytes,)]),
    ("embedding.unmoved_turn", (EMPTY.bytes, SPACE.bytes, 1, 9), lambda rows: rows, []),
    ("embedding.unmoved_turn", (SPACE.bytes, EMPTY.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.unmoved_note", (EMPTY.bytes, SPACE.bytes, -1, 9), unnumbered, [(uid(41).bytes,)]),
    ("embedding.unmoved_artifact", (EMPTY.bytes, SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.unmoved_scope", (EMPTY.bytes, SPACE.bytes, -1, 9), lambda rows: rows, []),
    ("embedding.hashes_turn", (SPACE.bytes, -1, 9), lambda rows: [row[:4] for row in rows],
     [(1, uid(21).bytes, None, b"one")]),
    ("embedding.hashes_turn", (SPACE.bytes, 1, 9), lambda rows: rows, []),
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


@pytest.mark.parametrize(
    ("name", "parameters", "shown", "expected"), READS, ids=[f"{read[0]}-{at}" for at, read in enumerate(READS)]
)
def test_reading_statement_answers(
    name: str, parameters: tuple[Any, ...], shown: Callable[[list[Any]], Any], expected: Any, store: Store
) -> None:
    assert shown(read(store, name, *parameters)) == expected


def test_append_statements_move_the_counters(store: Store) -> None:
    # K-094: figures are counted when turns are appended
    def work(uow: UnitOfWork) -> tuple[Any, Any]:
        scope = uow.change(SCOPE, "append.scope", 10, 20, 777, 3, S1.bytes)[0]
        trajectory = uow.change(TRAJECTORY, "append.trajectory", 10, 20, 777, 3, T1.bytes)[0]
        return codec_of(SCOPE).decode(scope), codec_of(TRAJECTORY).decode(trajectory)

    scope, trajectory = store.write(work)
    assert (scope.next_sequence, scope.turn_count, scope.tokens_input, scope.tokens_output) == (5, 3, 10, 20)
    assert (scope.last_activity_at, scope.version) == (from_us(777), 2)
    assert (trajectory.turn_count, trajectory.tokens_input, trajectory.tokens_output) == (3, 10, 20)
    assert (trajectory.last_activity_at, trajectory.version) == (from_us(777), 2)
    assert store.write(lambda uow: uow.change(SCOPE, "append.scope", 1, 1, 1, 1, S2.bytes)) == [], "a closed scope"


def test_pruning_statements_remove_what_they_say(store: Store) -> None:
    def run(name: str, *parameters: Any) -> int:
        return store.write(lambda uow: uow.execute(name, *parameters))

    assert run("checkpoint.prune", T1.bytes, 2) == 1
    assert left(store, CHECKPOINT) == [82, 83, 84]
    assert run("checkpoint.prune", T1.bytes, 0) == 2
    assert run("event.prune", 50) == 1
    assert left(store, EVENT) == [72, 73], "audit stays"
    assert run("embedding_cache.prune", 50) == 1
    assert run("lock.delete_expired", 10) == 1
    assert left(store, LOCK) == [52, 53], "the newest token of a resource stays, expired or not"
    assert run("content.prune", 0) == 0, "what was replaced a moment ago may still be asked for"
    assert run("content.prune", 2**62) == 1, "what was replaced before the oldest kept window"
    assert read(store, "content.at", "note", 1, 1) == [("v5",)]
    assert run("window.prune", 80, 30) == 1
    assert left(store, CONTEXT_WINDOW) == [61]
    assert run("window.prune", 0, 31) == 1
    assert run("content.prune", 2**62) == 1, "no window is left to ask for it"


def test_embedding_of_an_owner_is_dropped_and_returned(store: Store) -> None:
    dropped = store.write(lambda uow: (uow.remove(EMBEDDING, "embedding.drop_owner", uid(41).bytes), uow.changes))
    assert dropped[0] == 1
    assert [(change.operation, change.relation.name) for change in dropped[1]] == [(DELETE, "embedding")]
    assert read(store, "embedding.pending_note", SPACE.bytes, LAST, 9)[-1][1:] == (uid(41).bytes, "e", "n1")


def test_vectors_of_a_space_go_in_batches_and_strays_by_number(store: Store) -> None:
    def add(uow: UnitOfWork) -> None:
        # A note that is archived, an artifact that is retired, a scope that never was.
        for kind, owner in ((EntityType.NOTE, uid(43)), (EntityType.ARTIFACT, uid(32)), (EntityType.SCOPE, uid(19))):
            uow.insert(EMBEDDING, plain(EMBEDDING, space_id=SPACE, owner_type=kind, owner_id=owner, chunk_index=0))
        uow.insert(EMBEDDING, plain(EMBEDDING, space_id=SPACE, owner_type=EntityType.TURN, owner_id=uid(21),
                                    chunk_index=1))  # fmt: skip

    store.write(add)
    assert read(store, "embedding.of_space", SPACE.bytes) == [
        ("artifact", 1, 1), ("note", 2, 2), ("scope", 1, 1), ("turn", 2, 1),
    ]  # fmt: skip
    strays = {kind: read(store, f"embedding.strays_{kind}", -1, 9) for kind in ("turn", "artifact", "note", "scope")}
    assert {kind: [bool(row[1]) for row in rows] for kind, rows in strays.items()} == {
        "turn": [], "artifact": [False], "note": [False], "scope": [True],
    }  # fmt: skip
    assert read(store, "embedding.strays_note", strays["note"][0][0], 9) == []
    ordinals = dump_json([rows[0][0] for rows in strays.values() if rows])
    gone = store.write(lambda uow: (uow.remove(EMBEDDING, "embedding.drop_many", ordinals), uow.changes))
    assert gone[0] == 3
    assert {change.operation for change in gone[1]} == {DELETE}
    assert store.write(lambda uow: uow.execute("embedding.drop_some", SPACE.bytes, 2)) == 2
    assert store.write(lambda uow: uow.execute("embedding.drop_some", SPACE.bytes, 2)) == 1
    assert store.write(lambda uow: uow.execute("embedding.drop_some", SPACE.bytes, 2)) == 0


def test_cached_vectors_of_a_model_go_in_batches(store: Store) -> None:
    model = plain(EMBEDDING_CACHE).model_id

    def drop(dimensions: int) -> int:
        return store.write(lambda uow: uow.execute("embedding_cache.drop_some", model, dimensions, 1))

    assert [drop(8), drop(4), drop(4), drop(4)] == [0, 1, 1, 0]


def test_usage_is_counted_and_its_newest_instant_kept(store: Store) -> None:
    def bump(owner: uuid.UUID, count: int, now: int) -> Any:
        rows = store.write(lambda uow: uow.change(USAGE, "usage.bump", "note", owner.bytes, count, now))
        return codec_of(USAGE).decode(rows[0])

    known = bump(uid(41), 3, 40)
    assert (known.access_count, known.last_accessed_at, known.version) == (8, from_us(50), 2)
    new = bump(uid(42), 2, 60)
    assert (new.access_count, new.last_accessed_at, new.version) == (2, from_us(60), 1)


def test_changes_are_numbered_without_gaps_and_pruned_from_the_front(backend: Any) -> None:
    store: Store = backend.store()
    assert read(store, "change.bounds") == [(0, 0)]

    def insert(at: int) -> int:
        entries = pack_changes([(10, UPSERT, at, 1)])
        sequence: int = store.write(lambda uow: uow.select("change.insert", b"w" * 16, entries, at))[0][0]
        return sequence

    assert [insert(at) for at in (10, 20, 30, 40)] == [1, 2, 3, 4]
    assert read(store, "change.bounds") == [(1, 4)]
    rows = read(store, "change.since", 2)
    assert [row[0] for row in rows] == [3, 4]
    assert list(unpack_changes(rows[0][2])) == [(10, UPSERT, 30, 1)]
    assert store.write(lambda uow: uow.execute("change.prune", 25, 10)) == 2
    assert store.write(lambda uow: uow.execute("change.prune", 999, 0)) == 1, "the newest stays: it says where we are"
    assert read(store, "change.bounds") == [(4, 4)]
    assert insert(50) == 5


def test_rolled_back_change_leaves_no_gap(backend: Any) -> None:
    """Readers tell from a gap that the feed no longer reaches back; a rollback must not look like one."""
    backend.needs("gapless")
    store: Store = backend.store()

    class Undo(Exception):
        pass

    def failing(uow: UnitOfWork) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        uow.select("change.insert", b"w" * 16, b"", 1)
        raise Undo

    with pytest.raises(Undo):
        store.write(failing)
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert [row[0] for row in read(store, "change.since", 0)] == [1, 2]


def test_dataset_is_not_changed_by_reading(store: Store) -> None:
    before = {relation.name: left(store, relation) for relation in (NOTE, TURN, ARTIFACT)}
    for name, parameters, _, _ in READS:
        read(store, name, *parameters)
    assert before == {relation.name: left(store, relation) for relation in (NOTE, TURN, ARTIFACT)}
    assert dataclasses.is_dataclass(plain(NOTE))
