"""Full text in PostgreSQL among transactions that overlap: what a build waits for, and what it never hides.

Source: K-170, K-171; docs/decisions/0081.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import psycopg
import pytest
from contract.entities import plain

from caliber.admin.checking import check_full_text
from caliber.model.errors import Conflict, Unavailable
from caliber.schema.relations import NOTE
from caliber.search.in_database.full_text import WordIndexer, indexer_of

PATIENT_S = 60
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"


@pytest.fixture
def backend(pg: Any) -> Any:
    return pg


@pytest.fixture
def store(backend: Any) -> Any:
    made = backend.store(embedding_provider=None)
    made.full_text.keep(indexer_of)
    return made


def insert(uow: Any, text: str) -> Any:
    key = uuid.uuid4()
    note = plain(NOTE, note_id=key, content=text, fingerprint=key.bytes * 2)
    uow.insert(NOTE, note)
    uow.select("change.bounds")  # sends it
    return note


def found(session: Any, store: Any, term: str) -> Any:
    plan = store.full_text.statements["search.words_note"]
    asked = {"terms": f'{{"terms": ["{term}"], "beginnings": []}}', "seen": "{}", "at_us": 0, "limit": 9}
    return session.run(plan, [asked.get(name) for name in plan.binds])


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def test_a_build_waits_for_writers_that_know_of_no_index(store: Any, postgres: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def write(uow: Any) -> None:
        insert(uow, "a lake")
        begun.set()
        assert go_on.wait(PATIENT_S)

    writer, _ = in_thread(lambda: store.write(write))
    assert begun.wait(PATIENT_S)
    builder, built = in_thread(lambda: store.full_text.rebuild(WordIndexer("english")))
    with psycopg.connect(postgres, autocommit=True) as watching:
        while watching.execute(WAITING).fetchone() == (0,):
            assert builder.is_alive()
    assert not built
    go_on.set()
    writer.join(PATIENT_S)
    builder.join(PATIENT_S)
    assert built == [1]
    assert store.full_text.state().complete
    assert store.full_text.check(WordIndexer("english")) == []


def test_a_writer_waits_for_a_build_and_keeps_its_index(store: Any, backend: Any) -> None:
    store.write(lambda uow: insert(uow, "a lake"))
    writers: list[threading.Thread] = []

    def building(*_: Any) -> None:
        writers.append(in_thread(lambda: store.write(lambda uow: insert(uow, "a boat")))[0])
        writers[0].join(0.2)
        assert writers[0].is_alive()

    assert store.full_text.rebuild(WordIndexer("english"), building) == 1
    writers[0].join(PATIENT_S)
    assert store.full_text.state().complete
    assert check_full_text(store, backend.config(embedding_provider=None)) == []
    with store.read() as session:
        assert len(found(session, store, "boat")) == 1


def test_a_session_older_than_the_tables_is_told_that_they_are_not_whole(store: Any) -> None:
    """Its snapshot shows none of their rows: an index that is whole would look empty."""
    store.write(lambda uow: insert(uow, "a lake"))
    store.full_text.rebuild(WordIndexer("english"))
    with store.read() as session:
        session.run(store.statements["change.bounds"], ())  # its snapshot is taken
        store.full_text.rebuild(WordIndexer("english"))
        state = store.full_text.state(session)
        assert not state.complete
    assert store.full_text.state().complete


def test_a_search_keeps_the_index_it_began_with(store: Any) -> None:
    store.write(lambda uow: insert(uow, "a lake"))
    store.full_text.rebuild(WordIndexer("english"))
    with store.read() as session:
        assert store.full_text.state(session).complete
        dropper, dropped = in_thread(store.full_text.drop)
        for _ in range(20):
            assert len(found(session, store, "lake")) == 1
        assert not dropped
    dropper.join(PATIENT_S)
    assert dropped == [True]
    assert store.full_text.state() is None


def test_a_table_that_is_held_for_good_is_said_to_be(backend: Any, postgres: str) -> None:
    store = backend.store(embedding_provider=None, storage__lock_timeout_ms=300)
    with psycopg.connect(postgres) as other:
        other.execute(f'SELECT count(*) FROM "{backend.schema}".text_state')  # as a dump does, for as long as it takes
        with pytest.raises(Unavailable, match="lock_timeout_ms"):
            store.full_text.rebuild(WordIndexer("english"))
        store.write(lambda uow: insert(uow, "others go on"))
    assert store.full_text.rebuild(WordIndexer("english")) == 1


def test_nothing_is_indexed_of_what_is_rolled_back(store: Any) -> None:
    store.full_text.rebuild(WordIndexer("english"))
    kept = store.write(lambda uow: insert(uow, "a lake"))
    with pytest.raises(Conflict):
        store.write(lambda uow: [insert(uow, "a boat"), uow.insert(NOTE, kept), uow.select("change.bounds")])
    assert store.full_text.check(WordIndexer("english")) == []
    with store.read() as session:
        for term, texts in (("lake", 1), ("boat", 0)):
            assert len(found(session, store, term)) == texts
