"""Vector indexes in PostgreSQL: what they find against what there is, and that the planner uses them.

Source: issue "PostgreSQL", 4; design, section 3; K-102 to K-104, K-154; docs/decisions/0121.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from support.databases import DSN, PostgresBackend
from support.inspection import inspect
from support.memories import FACT, STEP
from support.providers import CountingEmbeddings

import caliber
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.backends.postgres.searching import vector_index as module
from caliber.backends.postgres.searching.search_plans import Space, index_name, nearest_plan
from caliber.kernels import VectorMatrix
from caliber.model import EventType, Principal, PrincipalKind
from caliber.model.embedding import DistanceMetric, EmbeddingSpace, SpaceState
from caliber.model.references import SpaceId
from caliber.schema.relations import EMBEDDING_SPACE, NOTE
from caliber.search.filtering.filters import Where, conditions_of
from caliber.search.in_database.candidates import Candidates, StoredVectors
from caliber.search.in_database.full_text import WordIndexer
from caliber.search.request import Asked
from caliber.storage.compile.conditions import parameters, unfiltered
from caliber.storage.protocol import Near

ADMIN = Principal(PrincipalKind.SYSTEM, "test", is_admin=True)
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOTES = 1_600
ENTITIES = np.array(["rare" if at % 230 == 5 else "odd" if at % 2 else "even" for at in range(NOTES)])
SPACES = {
    "cosine": (DistanceMetric.COSINE, 32, NOTES),
    "l2": (DistanceMetric.L2, 24, 900),
    "inner_product": (DistanceMetric.INNER_PRODUCT, 24, 900),
    "half": (DistanceMetric.COSINE, 2_048, 240),
    "exact": (DistanceMetric.COSINE, 4_096, 60),
}
INDEXED = [name for name in SPACES if name != "exact"]


@dataclass
class World:
    """One store with several spaces: the same notes in each, with other vectors."""

    backend: Any
    store: Any
    notes: list[uuid.UUID]
    spaces: dict[str, EmbeddingSpace]
    vectors: dict[str, NDArray[np.float32]]
    owners: TaskOwners

    def matrix(self, name: str) -> VectorMatrix:
        space = self.spaces[name]
        matrix = VectorMatrix(space.dimensions, space.metric.value)
        matrix.append(self.vectors[name])
        return matrix

    def asked(self, name: str, query: NDArray[np.float32], **conditions: Any) -> Asked:
        now_us = int(NOW.timestamp()) * 1_000_000
        space = self.spaces[name]
        return Asked(
            "",
            query,
            None,
            space,
            ("note",),
            10,
            Readers(self.owners, ADMIN),
            now_us,
            now_us,
            where=Where(conditions_of([NOTE], conditions), {}) if conditions else None,
        )

    def found(self, name: str, query: NDArray[np.float32], store: Any = None, **conditions: Any) -> list[int]:
        """Return which notes of a space come into question for a query, the ten nearest of them, by number."""
        store = store or self.store
        settings = self.backend.config().search.model_copy(update={"vector_candidates": 10, "candidate_factor": 1})
        asked = self.asked(name, query, **conditions)
        with store.read() as session:
            vectors = StoredVectors(store, asked.kinds)
            found = Candidates(session, store, store.full_text.statements, settings, vectors, asked).nearest()
        return sorted(row[0] - 1 for row in found["note"])

    def near(self, name: str, query: NDArray[np.float32], records: int = 10, **conditions: Any) -> Any:
        filters = parameters(NOTE, conditions_of([NOTE], conditions).get("note"))
        assert filters is not None
        now_us = int(NOW.timestamp()) * 1_000_000
        near = Near("note", query.astype("<f4").tobytes(), "[]", now_us, filters, records)
        with self.store.read() as session:
            return self.store.vector_index.nearest(session, self.spaces[name], near)

    def best(self, name: str, query: NDArray[np.float32], among: NDArray[np.bool_] | None = None) -> list[int]:
        rows, _ = self.matrix(name).snapshot().topk(query, 10, mask=among)
        return sorted(rows.tolist())


def queries(name: str, count: int) -> NDArray[np.float32]:
    return np.random.default_rng(9).standard_normal((count, SPACES[name][1])).astype(np.float32)


@pytest.fixture(scope="module")
def world(postgres: str) -> Iterator[World]:
    rng = np.random.default_rng(5)
    backend = PostgresBackend()
    memory = backend.open(backend.config(embedding_provider=None))
    notes = [uuid.UUID(int=at + 1) for at in range(NOTES)]
    memory.storage.bulk_load(
        "note",
        pa.table(
            {
                "note_id": pa.array([note.bytes for note in notes], pa.binary(16)),
                "entity": ENTITIES.tolist(),
                "entity_type": ["topic"] * NOTES,
                "note_type": ["fact"] * NOTES,
                "content": [f"note {at}" for at in range(NOTES)],
                "confidence": [1.0] * NOTES,
                "created_at": pa.array([NOW] * NOTES, pa.timestamp("us", "UTC")),
            }
        ),
    )
    spaces, vectors = {}, {}
    for at, (name, (metric, dimensions, count)) in enumerate(SPACES.items()):
        space = EmbeddingSpace(SpaceId(uuid.UUID(int=2**100 + at)), name, dimensions, metric, SpaceState.RETIRED, NOW)
        inspect(memory).store.write(lambda uow, space=space: uow.insert(EMBEDDING_SPACE, space))
        vectors[name] = rng.standard_normal((count, dimensions)).astype(np.float32)
        ends = np.arange(0, count * dimensions + 1, dimensions, np.int32)
        memory.storage.bulk_load(
            "embedding",
            pa.table(
                {
                    "space_id": pa.array([space.space_id.bytes] * count, pa.binary(16)),
                    "owner_type": ["note"] * count,
                    "owner_id": pa.array([note.bytes for note in notes[:count]], pa.binary(16)),
                    "chunk_index": [0] * count,
                    "content_hash": [bytes(32)] * count,
                    "vector": pa.ListArray.from_arrays(ends, pa.array(vectors[name].ravel())),
                    "generated_at": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
                }
            ),
        )
        spaces[name] = space
    memory.close()
    store = backend.store(vector__index_type="hnsw")
    store.full_text.rebuild(WordIndexer("english"))
    told: list[tuple[str, int, int]] = []
    for name, space in spaces.items():
        made = store.vector_index.build(space, lambda *said: told.append(said)) if name == "cosine" else None
        assert (store.vector_index.open(space) if made is None else made) is (name != "exact")
    yield World(backend, store, notes, spaces, vectors, inspect(memory).part(TaskOwners))
    backend.close()


def explained(world: World, name: str, generic: bool) -> str:
    """Return the plan of the statement as it was prepared, under the settings that it runs with."""
    space = Space.of(world.spaces[name])
    plan = nearest_plan(NOTE, space, world.store.vector_index.dialect)
    query = "[" + ",".join(["0.5"] * space.dimensions) + "]"
    filters = ", ".join(["NULL"] * (len(plan.binds) - 4))
    index = world.store.vector_index
    with world.store.read() as session:
        session.later(index.plans.begin["hnsw"], ("100", "20000"))
        session.command(f"SET LOCAL plan_cache_mode = {'force_generic_plan' if generic else 'force_custom_plan'}")
        session.command(f'PREPARE "asked {name} {generic}" AS {plan.sql}')
        execute = f"EXECUTE \"asked {name} {generic}\"('{query}', '[]', '2026-01-02', 20, {filters})"
        lines = session.command(f"EXPLAIN (COSTS OFF) {execute}")
        session.command(f'DEALLOCATE "asked {name} {generic}"')
    return "\n".join(str(line[0]) for line in lines)


@pytest.mark.parametrize("name", INDEXED)
def test_the_planner_uses_the_index_of_the_space(world: World, name: str) -> None:
    for generic in (False, True):
        plan = explained(world, name, generic)
        assert f"Index Scan using {index_name(world.spaces[name].space_id, NOTE)} on embedding" in plan, plan
        assert "Sort" not in plan


@pytest.mark.parametrize("name", SPACES)
def test_nearly_all_of_the_nearest_are_found(world: World, name: str) -> None:
    # issue, 4: recall@10 against exact at least 0.95
    hit = asked = 0
    for query in queries(name, 25):
        best = world.best(name, query)
        hit += len(set(best) & set(world.found(name, query)))
        asked += len(best)
    assert hit / asked >= (0.95 if name in INDEXED else 1.0)
    # what was found came from the index, but for the space that has none
    rows = world.near(name, queries(name, 1)[0])
    assert (rows is None) is (name == "exact")
    assert rows is None or 10 <= len(rows) <= 20


def test_filters_never_return_too_few(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue, 4: filtered queries return k whenever k match
    rare = np.flatnonzero(ENTITIES == "rare").tolist()
    assert len(rare) == 7
    for query in queries("cosine", 5):
        assert world.found("cosine", query, entity="rare") == rare
        assert world.found("cosine", query, entity="nobody") == []
        for few in (4_096, 100):  # each record that meets the filter is compared; every page is read
            monkeypatch.setattr(module, "FEW", few)
            for scanned in (1, 20_000):
                monkeypatch.setattr(module, "HNSW_MAX_SCAN_TUPLES", scanned)
                found = world.found("cosine", query, entity=["odd", "rare"])
                best = world.best("cosine", query, np.isin(ENTITIES, ["odd", "rare"]))
                assert len(found) == 10
                assert len(set(found) & set(best)) >= 9


@pytest.mark.parametrize("most", [16_384, 40])
def test_records_with_many_vectors_count_once(world: World, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty chunks of each of five notes lie nearer than any other: ten records are asked for, and ten come.

    So they do where the nearest vectors that an index is asked for at most are of those five alone.
    """
    monkeypatch.setattr(module, "MOST", most)
    query = queries("l2", 1)[0]
    space = world.spaces["l2"]
    insert = (
        f'INSERT INTO "{world.backend.schema}".embedding (space_id, owner_type, owner_id, chunk_index, content_hash,'
        " vector, generated_at, version) SELECT %s, 'note', %s, n, sha256(''), %s::vector, now(), 1"
        " FROM generate_series(1, 20) AS n RETURNING ordinal"
    )
    made: list[int] = []
    with psycopg.connect(os.environ[DSN], autocommit=True) as other:
        try:
            for note in world.notes[:5]:
                made += [row[0] for row in other.execute(insert, (space.space_id, note, str(query.tolist())))]
            found = world.found("l2", query)
        finally:
            other.execute(f'DELETE FROM "{world.backend.schema}".embedding WHERE ordinal = ANY(%s)', (made,))
    assert len(found) == 10
    assert set(range(5)) <= set(found)


def test_a_query_beyond_half_precision_is_compared_with_every_vector(world: World) -> None:
    query = queries("half", 1)[0] * np.float32(1e6)
    assert world.near("half", query) is None
    assert world.found("half", query) == world.best("half", query)


def test_ivfflat_is_built_when_there_is_enough_to_cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # K-154
    space = world.spaces["inner_product"]
    monkeypatch.setattr(module, "IVFFLAT_PROBES", 16)
    settings = {"vector__index_type": "ivf_flat"}
    monkeypatch.setattr(module, "IVFFLAT_LISTS", 500)
    many = world.backend.store(**settings)
    assert not many.vector_index.build(space)  # and what was there of another kind is gone
    assert many.vector_index.of(space.space_id) is None
    assert not many.vector_index.open(space)
    monkeypatch.setattr(module, "IVFFLAT_LISTS", 20)
    store = world.backend.store(**settings)
    assert store.vector_index.build(space)
    assert store.vector_index.of(space.space_id) == ("ivfflat", True, "")
    hit = 0
    for query in queries("inner_product", 20):
        hit += len(set(world.best("inner_product", query)) & set(world.found("inner_product", query, store)))
        assert len(world.found("inner_product", query, store, entity="rare")) == 4
    assert hit >= 0.95 * 200  # of points that form no clusters: most lists are looked into
    assert world.store.vector_index.build(space)
    assert world.store.vector_index.of(space.space_id) == ("hnsw", True, "")


def test_what_is_not_as_configured_or_not_finished_is_made_anew(world: World) -> None:
    # K-102: IF NOT EXISTS would keep an index that is not what is asked for
    space = world.spaces["half"]
    name = index_name(space.space_id, NOTE)
    with psycopg.connect(os.environ[DSN], autocommit=True) as other:

        def oid() -> Any:
            query = "SELECT c.oid, c.reloptions FROM pg_class AS c WHERE relname = %s"
            return other.execute(query, (name,)).fetchone()

        before = oid()
        assert world.store.vector_index.build(space)
        assert oid() == before
        store = world.backend.store(vector__index_type="hnsw", vector__hnsw_m=8, vector__hnsw_ef_construction=40)
        assert store.vector_index.open(space)
        assert oid() == before  # opening changes nothing that works
        assert store.vector_index.build(space)
        assert set(oid()[1]) == {"m=8", "ef_construction=40"}
        other.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s", (oid()[0],))
        assert store.vector_index.of(space.space_id) == ("hnsw", False, "")
        assert not store.vector_index.open(space)
        assert world.found("half", queries("half", 1)[0], store) == world.best("half", queries("half", 1)[0])
        assert world.store.vector_index.build(space)
        assert world.store.vector_index.of(space.space_id) == ("hnsw", True, "")


def test_indexes_follow_the_life_of_a_space(pg: PostgresBackend, start: Any) -> None:
    """Made as it comes into use, of a new model before it takes over, and dropped with it."""
    first, second = CountingEmbeddings(), CountingEmbeddings(48)
    plain: dict[str, Any] = {"embedding_provider": None, "search__mode": "backend", "embedding__reembed": "manual"}
    plain |= {"embedding__embed": {"default": "commit"}}
    vector = pg.config().vector.model_dump(mode="json")

    def opened(provider: Any) -> Any:
        settings = pg.config(**plain, vector={**vector, "dimensions": provider.dimensions})
        return start(pg.open(settings, embedding_provider=provider))

    agent = opened(first)
    old = agent.memory.storage.embedding_spaces.report()[0]
    assert old.index == "hnsw"
    note = agent.note("a lake")
    agent.memory.close()
    memory = opened(second).memory
    assert [space.index for space in memory.storage.embedding_spaces.report()] == ["hnsw", None]
    memory.storage.embedding_spaces.reembed()
    report = memory.storage.embedding_spaces.report()
    assert [(space.state, space.index) for space in report] == [("retired", "hnsw"), ("in use", "hnsw")]
    assert [hit.id for hit in memory.search("thing\na lake", kinds=["note"]).hits] == [note.note_id]
    memory.storage.embedding_spaces.drop(old.name)
    assert inspect(memory).store.vector_index.of(old.space_id) is None


def test_what_keeps_an_index_from_being_made_keeps_nobody_out(pg: PostgresBackend, start: Any) -> None:
    settings = pg.config(search__mode="backend", storage__lock_timeout_ms=250)
    pg.create(settings)
    with psycopg.connect(os.environ[DSN]) as other:
        other.execute(f'LOCK TABLE "{pg.schema}".embedding IN ROW EXCLUSIVE MODE')  # as one who writes for long
        agent = start(pg.open(settings))
    assert [space.index for space in agent.memory.storage.embedding_spaces.report()] == [None]
    note = agent.note("a lake")
    agent.memory.flush()
    events = agent.memory.storage.events.all()
    errors = [event.payload for event in events if event.event_type == EventType.ERROR]
    assert [error["where"] for error in errors] == ["embedding index"]
    hit = agent.memory.search("lake").hits[0]
    assert (hit.id, "vector" in hit.found_by) == (note.note_id, True)
    agent.memory.admin.rebuild_search()
    assert [space.index for space in agent.memory.storage.embedding_spaces.report()] == ["hnsw"]
    exact = pg.open(pg.config(search__mode="backend", vector__index_type="exact"))
    assert exact.search("lake").hits[0] == hit
    exact.admin.rebuild_search()
    assert [space.index for space in exact.storage.embedding_spaces.report()] == [None]


def test_a_store_searched_in_memory_has_no_index(pg: PostgresBackend) -> None:
    memory = pg.open()
    assert [space.index for space in memory.storage.embedding_spaces.report()] == [None]


def test_a_declared_memory_has_an_index_of_its_own(pg: PostgresBackend) -> None:
    # C-135: made where the memory came after the space, asked by searches, and gone after it
    provider = CountingEmbeddings()
    options: dict[str, Any] = {"search__mode": "backend", "embedding__embed__default": "commit"}
    options |= {"search__weights": {"vector": 1.0, "keyword": 0.0, "graph": 0.0, "importance": 0.0}}

    def indexes() -> list[str]:
        found = pg.ask(f"SELECT indexname::text FROM pg_indexes WHERE schemaname = '{pg.schema}'")
        return sorted(name.rpartition("_")[2] for (name,) in found if name.startswith("vector_"))

    pg.open(pg.config(**options), embedding_provider=provider).close()
    assert indexes() == ["artifact", "note", "scope", "todo", "turn"]
    settings = pg.config(memories=[FACT, STEP], **options)
    caliber.migrate(settings)
    memory = pg.open(settings, embedding_provider=provider)
    assert indexes() == ["artifact", "m64", "note", "scope", "todo", "turn"], "and none where nothing is embedded"
    facts, indexed = memory.records("fact"), inspect(memory).store.vector_index
    rows = [
        {"subject": "rare" if at % 60 == 7 else "often", "kind": "claim", "content": f"fact number {at}"}
        for at in range(300)
    ]
    made = facts.insert_many(rows)
    (space,) = inspect(memory).resident.snapshot.spaces.values()
    vector = np.asarray(provider.embed_batch(["fact number 7"])[0], np.float32)
    filters = unfiltered(inspect(memory).store.catalog.by_name["memory_fact"])
    with inspect(memory).store.read() as session:
        near = Near("memory_fact", vector.tobytes(), "[]", int(NOW.timestamp()) * 1_000_000, filters, 10)
        rows_found = indexed.nearest(session, space, near)
    assert rows_found is not None, "the index was asked"
    assert 10 <= len(rows_found) < 40
    assert len(facts.search("fact number 7", limit=3).hits) == 3
    assert {hit.id for hit in facts.search("fact number 7", {"subject": "rare"}, limit=9).hits} == {
        record.record_id for record in made if record.subject == "rare"
    }
    memory.close()
    caliber.migrate(pg.config(**options), drop=["fact", "step"])
    memory = pg.open(pg.config(**options), embedding_provider=provider)
    memory.admin.rebuild_search()
    assert indexes() == ["artifact", "note", "scope", "todo", "turn"]
