"""A store's full text: made, kept by whoever writes, checked, refused when it cannot be trusted.

Vectors that a search in the database keeps are those that it would read, whoever writes, and whatever is erased.

Source: issues "Search in native memory", 1, and "The diet", 4; K-170, K-171; docs/decisions/0081, 0209.
"""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from contract.entities import plain
from support.drawn import needs
from support.evidence import scale, seed
from support.inspection import inspect, session_of

import caliber
from caliber.admin.checking import check_full_text, drop_full_text, rebuild_full_text
from caliber.kernels import Vocabulary
from caliber.model.errors import CaliberError, InvalidConfigValue, SchemaMismatch, Unavailable
from caliber.schema.relations import BY_NAME, NOTE
from caliber.search.in_database import candidates
from caliber.search.in_database.candidates import StoredVectors
from caliber.search.in_database.full_text import RULES, WordIndexer, indexer_of
from caliber.search.opening import SearchEngine
from caliber.storage.compile.codec import codec_of
from caliber.storage.sql.full_text import PART_MARK, TEXTS
from caliber.storage.sql.search_statements import search_contracts

pytestmark = pytest.mark.usefixtures("full_text")

WORDS = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}


def settings_of(backend: Any, mode: str, **options: Any) -> Any:
    return backend.config(search__mode=mode, search__weights=WORDS, embedding_provider=None, **options)


@pytest.fixture
@needs("reopen")
def filled(backend: Any, start: Any) -> Any:
    """A store that was made for search in memory: it has records and no full text."""
    agent = start(backend.open(settings_of(backend, "resident")))
    agent.say("we sail the lakes", name="Ines")
    agent.note("the lake was cold")
    agent.keep("a boat")
    agent.memory.close()
    return backend


def test_every_statement_is_there_with_its_contract(backend: Any) -> None:
    store = backend.store()
    store.full_text.rebuild(WordIndexer("english"))
    contracts = search_contracts(TEXTS)
    assert set(store.full_text.statements) == set(contracts)
    lists: dict[str, Any] = {"seen": "{}", "keys": "[]", "ordinals": "[1]", "space_id": bytes(16), "kinds": '["note"]'}
    lists |= {"terms": '{"terms": ["lake"], "beginnings": ["bo"]}'}
    with store.read() as session:
        for name, contract in contracts.items():
            plan = store.full_text.statements[name]
            expected = codec_of(BY_NAME[contract.rows_of]).names if contract.rows_of else contract.results
            assert (plan.name, plan.binds, plan.results) == (name, contract.parameters, expected)
            arguments = [None if bind.startswith("filter_") else lists.get(bind, 1) for bind in plan.binds]
            assert all(len(row) == len(plan.results) for row in session.run(plan, arguments))
            with pytest.raises(CaliberError):
                session.run(plan, [*arguments, 1])


def test_store_in_memory_mode_has_no_index_and_pays_nothing(filled: Any) -> None:
    store = filled.store()
    assert store.full_text.state() is None
    assert not store.full_text.drop()


def test_opening_without_full_text_is_refused_and_says_what_to_run(filled: Any) -> None:
    with pytest.raises(SchemaMismatch, match="caliber db rebuild-search"):
        filled.open(settings_of(filled, "backend"))
    seen: list[tuple[int, int]] = []
    assert rebuild_full_text(settings_of(filled, "backend"), lambda _, *done: seen.append(done)) == 3
    assert seen[-1] == (4, 4)  # the open scope has no summary to index
    memory = filled.open(settings_of(filled, "backend"))
    assert {hit.kind for hit in memory.search("lake boat sail").hits} == {"turn", "note", "artifact"}


def test_index_of_another_language_is_refused(filled: Any) -> None:
    rebuild_full_text(settings_of(filled, "backend"))
    german = settings_of(filled, "backend", search__keyword__language="german", search__keyword__similar_words="none")
    with pytest.raises(SchemaMismatch, match=r"english/\d+.*german/\d+.*rebuild-search"):
        filled.open(german)


def test_writers_of_either_mode_keep_the_index(filled: Any, start: Any) -> None:
    resident = start(filled.open(settings_of(filled, "resident")))
    resident.note("written before there was an index")
    rebuild_full_text(settings_of(filled, "backend"))
    stored = filled.open(settings_of(filled, "backend"))
    resident.note("a zebra, written by one that was open before")
    assert [hit.content[:7] for hit in stored.search("zebra").hits] == ["a zebra"]
    late = start(filled.open(settings_of(filled, "resident")))
    late.note("another zebra")
    assert len(stored.search("zebra").hits) == 2
    drop_full_text(settings_of(filled, "resident"))
    late.note("one more zebra, and no index")
    with pytest.raises(SchemaMismatch, match="rebuild-search"):
        stored.search("zebra")


@needs("gapless")
def test_index_made_after_a_failed_commit_is_kept(filled: Any, start: Any, monkeypatch: Any) -> None:
    """The number of a change record that was rolled back is given again: a writer must not take it for its own."""
    from caliber.backends.sqlite.connecting.connection import SqliteConnection

    agent = start(filled.open(settings_of(filled, "resident")))
    command = SqliteConnection.command

    def failing(self: Any, text: str) -> Any:
        if text == "COMMIT":
            raise Unavailable("planted", reason="input/output")
        return command(self, text)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteConnection, "command", failing)
        with pytest.raises(Unavailable, match="planted"):
            agent.note("never stored")
    rebuild_full_text(settings_of(filled, "backend"))
    agent.note("a zebra")
    assert len(filled.open(settings_of(filled, "backend")).search("zebra").hits) == 1


def test_write_that_nobody_can_index_marks_the_index_incomplete(filled: Any) -> None:
    rebuild_full_text(settings_of(filled, "backend"))
    old = filled.store()  # knows no rules at all
    plans = old.plans["note"]
    with old.read() as session:
        note = plans.codec.decode(session.run(plans.page, (-1, 1))[0])
    old.write(lambda uow: uow.delete(BY_NAME["note"], uow.get(BY_NAME["note"], note.note_id.bytes)))
    assert not old.full_text.state().complete
    with pytest.raises(SchemaMismatch, match="not complete"):
        filled.open(settings_of(filled, "backend"))
    rebuild_full_text(settings_of(filled, "backend"))
    assert filled.open(settings_of(filled, "backend")).search("cold").hits == ()


def test_an_interrupted_rebuild_leaves_the_index_as_it_was(filled: Any, start: Any) -> None:
    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    for there in (False, True):
        with pytest.raises(Stop):
            rebuild_full_text(settings_of(filled, "backend"), stop)
        assert (filled.store().full_text.state() is not None) is there
        if there:
            assert filled.open(settings_of(filled, "backend")).search("lake", kinds=["note"]).hits
            continue
        with pytest.raises(SchemaMismatch, match="rebuild-search"):
            filled.open(settings_of(filled, "backend"))
        rebuild_full_text(settings_of(filled, "backend"))
    start(filled.open(settings_of(filled, "resident"))).note("written after it")
    assert check_full_text(filled.store(), settings_of(filled, "backend")) == []


@needs("sharing")
def test_programs_that_open_an_empty_store_together_all_search_it(backend: Any) -> None:
    settings = settings_of(backend, "backend")
    backend.create(settings)
    together = threading.Barrier(4)

    def opened(_: int) -> str:
        together.wait()
        memory = caliber.open(settings)
        try:
            return str(memory.search("anything").reason)
        finally:
            memory.close()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(opened, range(4))) == {"not_resident"}


PLANTED = {
    "sqlite": (
        ("UPDATE text_note_entry SET digest = zeroblob(8)", "something else"),
        ("DELETE FROM text_turn WHERE rowid = 1", "not indexed"),
        ("INSERT INTO text_artifact_entry VALUES (77, 1, zeroblob(8))", "no such record"),
        ("DELETE FROM text_turn_entry", "something else"),
        ("UPDATE text_state SET complete = 0", "not complete"),
    ),
    "postgres": (
        ("UPDATE text_note_entry SET digest = decode('00', 'hex')", "something else"),
        ("DELETE FROM text_turn WHERE ordinal = 1", "not indexed"),
        ("UPDATE text_turn SET hits = 2 WHERE term = 'lake'", "not indexed"),
        ("UPDATE text_note SET terms = 1", "not indexed"),
        ("INSERT INTO text_artifact_entry VALUES (77, 1, decode('00', 'hex'), '')", "no such record"),
        ("DELETE FROM text_turn_entry", "something else"),
        ("UPDATE text_state SET complete = false", "not complete"),
        ("UPDATE text_state SET generation = 1", "not complete"),
    ),
}


def test_check_finds_planted_faults(filled: Any) -> None:
    settings = settings_of(filled, "backend")
    rebuild_full_text(settings)
    store = filled.store()
    assert check_full_text(store, settings) == []
    for planted, says in PLANTED[filled.adapter]:
        if filled.adapter == "sqlite":
            store.write(lambda uow, planted=planted: session_of(uow).command(planted))
        else:
            filled.tamper(None, planted)
        found = check_full_text(store, settings)
        assert any(says in line for line in found), (planted, found)
        rebuild_full_text(settings)
        assert check_full_text(store, settings) == []


def test_columns_that_do_not_fit_say_that_the_database_can_be_searched(filled: Any) -> None:
    big = "x" * 500
    memory = filled.open(settings_of(filled, "resident"))
    keys = [uuid.UUID(int=at + 1) for at in range(900)]
    many = [
        plain(NOTE, note_id=key, fingerprint=key.bytes * 2, entity=f"{key}{big}", content=f"lake {key}", tags=(big,))
        for key in keys
    ]
    inspect(memory).store.write(lambda uow: [uow.insert(NOTE, note) for note in many])
    memory.close()
    with pytest.raises(InvalidConfigValue, match=r'search\.mode = "backend"'):
        filled.open(settings_of(filled, "resident", resident__resident_bytes=1 << 20))
    small = settings_of(filled, "backend", resident__resident_bytes=1 << 20)
    rebuild_full_text(small)
    assert len(filled.open(small).search("lake", limit=999, kinds=["note"]).hits) == 901


def test_an_entry_costs_what_its_own_new_words_cost(monkeypatch: Any) -> None:
    # every write comes by here: beside 100,000 known words it once took as long as ten writes
    read: list[int] = []

    def reading(texts: Any) -> Any:
        def counted(self: Vocabulary, start: int, stop: int) -> list[str]:
            found: list[str] = texts(self, start, stop)
            read.append(len(found))
            return found

        return counted

    for name in ("term_texts", "part_texts"):
        monkeypatch.setattr(Vocabulary, name, reading(getattr(Vocabulary, name)))
    indexer, turn = WordIndexer("english"), BY_NAME["turn"]

    def costs(text: str) -> int:
        read.clear()
        row: list[Any] = [None] * (len(turn.columns) + 1)
        row[codec_of(turn).index("content")] = text.encode()
        indexer.entries(turn, [tuple(row)])
        return sum(read)

    assert costs(" ".join(f"w{at}" for at in range(1_000))) >= 2_000
    assert costs("w1 w2 w3") == 0
    assert costs("w1 one new word") <= 2 * 3


def test_entries_hold_terms_as_often_as_the_text_and_other_spellings_once() -> None:
    indexer = indexer_of(f"english/{RULES}")
    assert indexer is not None
    turn = BY_NAME["turn"]
    row = [None] * (len(turn.columns) + 1)
    row[codec_of(turn).index("content")] = b"Lakes, lake_side lake \x00 lakes"  # type: ignore[call-overload]
    (entry,) = indexer.entries(turn, [tuple(row)])
    tokens = entry.tokens.split(" ")
    assert tokens[: entry.terms] == ["lake", "lake", "side", "lake_side", "lake", "lake"]
    assert tokens[entry.terms :] == [f"{PART_MARK}lakes"]
    assert indexer_of("english/999") is None
    assert indexer_of("klingon/1") is None
    assert len(TEXTS) == 5


def test_database_without_full_text_is_searched_in_memory_only(backend: Any, monkeypatch: Any) -> None:
    none = property(lambda self: None, lambda self, value: None)
    monkeypatch.setattr(type(backend.store()), "full_text", none, raising=False)
    memory = backend.open(settings_of(backend, "resident"))
    assert memory.admin.verify() == []
    with pytest.raises(InvalidConfigValue, match=r"search\.mode.*no full text"):
        backend.open(settings_of(backend, "backend"))


ABOUT = {"entity": "x", "entity_type": "t", "note_type": "fact", "confidence": 1.0}


class Reading:
    """The vectors as one handle keeps them, beside those that are read anew; ``pages`` counts what was read."""

    def __init__(self, memory: Any) -> None:
        self.engine = inspect(memory).engine
        self.stored = self.engine.part(SearchEngine).stored
        self.kept = StoredVectors(self.engine.store, self.stored.kinds)
        self.pages = 0

    def nearest(self, kept: StoredVectors, session: Any, query: Any) -> list[tuple[str, list[bytes]]]:
        def ask(statement: str, *values: Any) -> Any:
            rows = session.run(self.stored.statements[f"search.{statement}"], values)
            self.pages += bool(rows)
            return rows

        (space,) = self.engine.memory.snapshot.spaces.values()
        keys, places = kept.nearest(session, space, query, ask)
        return [(kind, [keys[at] for at in some.tolist()]) for kind, some in sorted(places.items())]

    def compare(self, query: Any) -> int:
        """Assert that both are equal; return how many pages the keeping one read."""
        with self.engine.store.read() as session:
            self.pages = 0
            found, read = self.nearest(self.kept, session, query), self.pages
            anew = self.nearest(StoredVectors(self.engine.store, self.stored.kinds), session, query)
        assert found == anew
        return read


def query_of(reading: Reading, rng: random.Random) -> Any:
    (space,) = reading.engine.memory.snapshot.spaces.values()
    return np.array([rng.uniform(-1, 1) for _ in range(space.dimensions)], np.float32)


@pytest.mark.databases("all")
@needs("sharing")
def test_kept_vectors_are_those_of_the_database(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_PAGE_VECTORS", 3)
    rng = random.Random(f"{seed()} stored vectors")
    memory, other = (backend.open(search__mode="backend", jobs__poll_ms=0) for _ in range(2))
    reading = Reading(memory)
    made: list[Any] = []
    for step in range(scale(60, 400)):
        handle = rng.choice((memory, other))
        kind = rng.choice(("add", "add", "add", "change", "delete", "nothing", "forget"))
        if kind == "add" or not made:
            owner = {"user": "ana"} if rng.random() < 0.2 else {}
            made.append((handle.add_note(content=f"the lake {step} {rng.random()}", **ABOUT, **owner).note_id, owner))
        elif kind == "change":
            handle.update_note(rng.choice(made)[0], content=f"the boat {step} {rng.random()}")
        elif kind == "delete":
            handle.delete_note(made.pop(rng.randrange(len(made)))[0])
        elif kind == "forget":
            handle.forget(user="ana")
            made = [each for each in made if not each[1]]
        for each in (memory, other):
            each.flush()
        memory.search("", consistency="latest", kinds=[NOTE.name])
        if reading.engine.memory.snapshot.spaces:
            reading.compare(query_of(reading, rng))


@pytest.mark.databases("all")
@needs("sharing")
def test_vectors_are_read_once_and_then_those_that_were_added(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_PAGE_VECTORS", 4)
    memory = backend.open(search__mode="backend", jobs__poll_ms=0)
    notes = [memory.add_note(content=f"the lake {at}", **ABOUT).note_id for at in range(12)]
    memory.flush()
    reading, rng = Reading(memory), random.Random(1)
    query = query_of(reading, rng)
    ordered = reading.engine.store.feed.ordered
    assert reading.compare(query) == 3
    assert reading.compare(query) == (0 if ordered else 3)
    with reading.engine.store.read() as older:
        before = reading.nearest(reading.kept, older, query)
        for at in range(2):
            memory.add_note(content=f"a boat {at}", **ABOUT)
        memory.flush()
        assert reading.compare(query) == (1 if ordered else 4)
        assert reading.nearest(reading.kept, older, query) == before, "an earlier boundary sees no later vector"
    assert reading.compare(query) == (0 if ordered else 4)
    memory.delete_note(notes[0])
    memory.flush()
    reading.compare(query)
    reading.kept.forget(0)
    assert reading.compare(query) == 4
    monkeypatch.setattr(candidates, "_CHANGES_READ", 0)
    memory.add_note(content="one more", **ABOUT)
    memory.flush()
    assert reading.compare(query) == 4, "too many commits to look through"
    monkeypatch.setattr(candidates, "_KEPT_BYTES", 100)
    assert reading.compare(query) == (0 if ordered else 4), "what is kept stays"
    reading.kept.forget(0)
    assert [reading.compare(query) for _ in range(2)] == [4, 4], "a space over the limit is read for each query"
    reading.kept.forget(1 << 40)
    monkeypatch.setattr(candidates, "_KEPT_BYTES", 1 << 20)
    assert [reading.compare(query) for _ in range(2)] == [4, 4], "a search of before an erasure keeps nothing"
