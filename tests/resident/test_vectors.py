"""Vectors beside their owners' mirror: retired, replaced and renumbered, searched at old and new boundaries."""

from __future__ import annotations

import dataclasses
import random
import uuid

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caliber.kernels import VectorMatrix
from caliber.model.knowledge import Note, NoteType
from caliber.model.references import NoteId
from caliber.model.time import from_us
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.tables import Layout
from caliber.resident.vectors import VectorIndex, VectorSnapshot
from caliber.schema.relations import NOTE
from caliber.storage.compile.codec import codec_of

DIMENSIONS = 4
LAYOUT = Layout(NOTE)


def note(number: int, version: int = 1) -> Note:
    return Note(
        note_id=NoteId(uuid.UUID(int=number)),
        entity="e",
        entity_type="t",
        note_type=NoteType.FACT,
        content=f"note {number}",
        content_hash=bytes(32),
        fingerprint=bytes(32),
        confidence=1.0,
        token_count=1,
        created_at=from_us(0),
        updated_at=from_us(0),
        version=version,
    )


def unit(axis: int) -> bytes:
    vector = np.zeros(DIMENSIONS, "<f4")
    vector[axis] = 1.0
    return vector.tobytes()


def filled(count: int) -> tuple[Generation, VectorIndex]:
    generation = Generation(LAYOUT, 64)
    index = VectorIndex(DIMENSIONS, "cosine", 64)
    for number in range(count):
        row = generation.append(codec_of(NOTE).encode(note(number), number + 1))
        index.put_many([number + 1], [1], [uuid.UUID(int=number).bytes], [unit(number % DIMENSIONS)], [row])
    return generation, index


def best(generation: Generation, index: VectorIndex, axis: int, k: int = 99) -> list[int]:
    owners = RelationSnapshot(generation)
    vectors = VectorSnapshot(index, "m")
    query = np.frombuffer(unit(axis), np.float32)
    rows, _ = vectors.best(query, owners, owners.live_mask, k, 0.5)
    return [owners.entity_id(row).int for row in rows.tolist()]


def test_search_after_vectors_were_retired() -> None:
    # A count of live vectors is not the number of rows: masks must span them all.
    generation, index = filled(12)
    for ordinal in (1, 2, 3, 4, 5):
        assert index.remove(ordinal)
    assert best(generation, index, 1) == [5, 9]
    assert best(generation, index, 0) == [8]
    assert not index.remove(1)


def test_a_replaced_vector_counts_once() -> None:
    generation, index = filled(4)
    index.put_many([1], [2], [uuid.UUID(int=0).bytes], [unit(3)], [0])
    assert best(generation, index, 0) == []
    assert best(generation, index, 3) == [0, 3]


def test_an_updated_owner_keeps_its_vector_at_every_boundary() -> None:
    generation, index = filled(4)
    before = RelationSnapshot(generation)
    vectors_before = VectorSnapshot(index, "m")
    key = uuid.UUID(int=2).bytes
    old = generation.index.get(key, -1)
    changed = dataclasses.replace(note(2), content="changed", version=2)
    row = generation.append(codec_of(NOTE).encode(changed, 3))
    generation.retire([old])
    index.owner_moved(key, row)
    query = np.frombuffer(unit(2), np.float32)
    rows, _ = vectors_before.best(query, before, before.live_mask, 9, 0.5)
    assert [before.text(number) for number in rows.tolist()] == ["note 2"]
    after = RelationSnapshot(generation)
    rows, _ = VectorSnapshot(index, "m").best(query, after, after.live_mask, 9, 0.5)
    assert [after.text(number) for number in rows.tolist()] == ["changed"]


def test_a_vector_that_came_before_its_owner_is_found_with_it() -> None:
    # Commits of other processes may come to be known in another order than they were made in.
    generation, index = filled(3)
    index.put_many([9], [1], [uuid.UUID(int=7).bytes], [unit(3)], [-1])
    assert best(generation, index, 3) == []
    for number in (3, 7):
        row = generation.append(codec_of(NOTE).encode(note(number), number + 1), -1)
        index.owner_moved(uuid.UUID(int=number).bytes, row, fresh=True)
    assert best(generation, index, 3) == [7]


def test_compaction_renumbers_and_old_snapshots_stay() -> None:
    generation, index = filled(8)
    before = RelationSnapshot(generation)
    vectors_before = VectorSnapshot(index, "m")
    generation.retire([0, 1, 2])
    fresh = generation.compacted()
    index.renumber(fresh.index)
    assert best(fresh, index, 3) == [3, 7]
    assert best(fresh, index, 0) == [4]
    query = np.frombuffer(unit(0), np.float32)
    rows, _ = vectors_before.best(query, before, before.live_mask, 9, 0.5)
    assert [before.entity_id(row).int for row in rows.tolist()] == [0, 4]


def test_compacting_vectors_renumbers_them_and_old_snapshots_stay() -> None:
    generation, index = filled(12)
    before, vectors_before = RelationSnapshot(generation), VectorSnapshot(index, "m")
    for ordinal in (1, 2, 3, 4, 5, 6):
        index.remove(ordinal)
    assert index.dead == 6
    index.compact(generation.index)
    assert (index.dead, index.matrix.size) == (0, 6)
    assert best(generation, index, 1) == [9]
    assert best(generation, index, 3) == [7, 11]
    assert index.remove(8), "ordinals still find their vectors"
    assert best(generation, index, 3) == [11]
    query = np.frombuffer(unit(1), np.float32)
    rows, _ = vectors_before.best(query, before, before.live_mask, 9, 0.5)
    assert [before.entity_id(row).int for row in rows.tolist()] == [1, 5, 9]


def test_scores_of_given_rows() -> None:
    generation, index = filled(6)
    index.remove(6)
    owners = RelationSnapshot(generation)
    scores, present = VectorSnapshot(index, "m").scores(
        np.frombuffer(unit(1), np.float32), owners, np.array([5, 1, 0], np.int64)
    )
    assert present.tolist() == [False, True, True]
    assert scores.tolist() == [0.0, 1.0, 0.0]


@given(
    st.lists(st.lists(st.integers(0, 6), min_size=0, max_size=5), min_size=1, max_size=12),
    st.lists(st.integers(-3, 3), min_size=DIMENSIONS, max_size=DIMENSIONS).filter(any),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_the_best_chunk_of_an_owner_counts(
    chunks: list[list[int]], wanted: list[int], k: int, chance: random.Random
) -> None:
    """Owners with any number of vectors, in any order of arrival, against a loop over all of them."""
    corners = np.random.default_rng(7).standard_normal((7, DIMENSIONS)).astype(np.float32)
    generation = Generation(LAYOUT, 64)
    index = VectorIndex(DIMENSIONS, "cosine", 64)
    arrivals = [(number, corner) for number, corners_of in enumerate(chunks) for corner in corners_of]
    for number in range(len(chunks)):
        generation.append(codec_of(NOTE).encode(note(number), number + 1))
    chance.shuffle(arrivals)
    for ordinal, (number, corner) in enumerate(arrivals, start=1):
        owner = uuid.UUID(int=number).bytes
        vector = corners[corner].astype("<f4").tobytes()
        index.put_many([ordinal], [1], [owner], [vector], [generation.index.get(owner, -1)])
    owners = RelationSnapshot(generation)
    vectors = VectorSnapshot(index, "m")
    query = np.array(wanted, np.float32)

    matrix = VectorMatrix(DIMENSIONS, "cosine")
    matrix.append(corners)
    alone = matrix.snapshot().scores(query, np.arange(len(corners)))
    expected = {number: max(alone[corner] for corner in of) for number, of in enumerate(chunks) if of}

    scores, present = vectors.scores(query, owners, np.arange(len(chunks)))
    assert {number: score for number, score in enumerate(scores) if present[number]} == expected
    allowed = np.ones(len(chunks), np.bool_)
    allowed[::3] = False
    ranked = sorted((number for number in expected if allowed[number]), key=lambda number: (-expected[number], number))
    rows, found = vectors.best(query, owners, allowed, k, None)
    assert [owners.entity_id(row).int for row in rows.tolist()] == ranked[:k]
    assert found.tolist() == [expected[number] for number in ranked[:k]]


@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=6, unique_by=lambda at: at[0]
            ),
            st.lists(st.integers(1, 12), max_size=5),
            st.just("compact"),
        ),
        max_size=10,
    )
)
def test_vectors_put_and_removed_many_at_a_time_are_those_of_dictionaries(steps: list[object]) -> None:
    """Owners with several vectors, replaced, removed, all of them gone and back again."""
    generation, index = Generation(LAYOUT, 64), VectorIndex(DIMENSIONS, "cosine", 8)
    for number in range(4):
        generation.append(codec_of(NOTE).encode(note(number), number + 1))
    held: dict[int, tuple[bytes, bytes, int]] = {}
    for version, step in enumerate(steps, start=1):
        if step == "compact":
            index.compact(generation.index)
        elif isinstance(step, list) and step and isinstance(step[0], tuple):
            ordinals, owners = [at for at, _ in step], [uuid.UUID(int=owner).bytes for _, owner in step]
            vectors = [unit(at % DIMENSIONS) for at in ordinals]
            rows = [generation.index.get(owner, -1) for owner in owners]
            index.put_many(ordinals, [version] * len(step), owners, vectors, rows)
            held.update(zip(ordinals, zip(owners, vectors, [version] * len(step), strict=True), strict=True))
        elif isinstance(step, list):
            assert index.remove_many(step) == bool(held.keys() & set(step))
            for ordinal in step:
                held.pop(ordinal, None)
        assert index.content() == held
        assert len(index) == len(held)
        assert all(found for *_, found in index.places())
        for number in range(4):
            owner = uuid.UUID(int=number).bytes
            assert index.has_owner(owner) == any(known[0] == owner for known in held.values())
