"""Hearing of others' commits at once: LISTEN on a direct connection. Source: design section 5; decision 0099."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.databases import DSN, PostgresBackend, admin, note
from support.inspection import inspect
from support.threads import at_once
from support.waits import until

import caliber
from caliber.backends.postgres.writing.notify import channel_of, prefix_of, read
from caliber.cli.observing.top import print_stats
from caliber.cli.output import Output
from caliber.model.errors import InvalidConfigValue, MissingRequired, MultipleErrors

FEED = "CALIBER_TEST_FEED_DSN"


@pytest.fixture
def pg(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    monkeypatch.setenv(FEED, psycopg.conninfo.make_conninfo(postgres, application_name="ears"))
    yield made
    made.close()


def feed(memory: caliber.Caliber) -> dict[str, Any]:
    return memory.admin.stats()["store"]["feed"]  # type: ignore[no-any-return]


def contents(memory: caliber.Caliber) -> set[str]:
    return {hit.content for hit in memory.search("", kinds=["note"], limit=100).hits}


def listening(pg: PostgresBackend, **overrides: Any) -> caliber.Caliber:
    """Open a handle that writes nothing of its own accord: each write of a handle brings it the others' commits."""
    quiet = {"write_behind__trace_enabled": False, "write_behind__usage_enabled": False}
    return pg.open(pg.config(embedding_provider=None, storage__feed_dsn=f"env:{FEED}", **quiet, **overrides))


def cut() -> None:
    admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ears'")


def test_commits_of_others_are_heard_without_polling(pg: PostgresBackend) -> None:
    one, other = listening(pg), listening(pg)
    assert feed(one)["mode"] == "listening"
    note(other, "told")
    until(lambda: contents(one) == {"told"}, "it never heard")
    rows = {"entity": ["e"], "entity_type": ["t"], "note_type": ["fact"], "content": ["loaded"], "confidence": [1.0]}
    other.storage.bulk_load("note", pa.table(rows))
    until(lambda: contents(one) == {"told", "loaded"}, "it never heard of the load")
    assert one.admin.verify() == []


def test_own_commits_wake_nobody_here(pg: PostgresBackend) -> None:
    one, other = listening(pg), listening(pg)
    for at in range(5):
        note(one, f"own {at}")
    until(lambda: len(contents(other)) == 5, "it never heard")
    assert feed(one)["notifications"] == 0
    assert feed(other)["notifications"] >= 1


def test_nothing_is_told_where_nobody_is_to_hear(pg: PostgresBackend) -> None:
    """NOTIFY makes commits wait for each other: without feed_dsn there is none."""
    silent, telling = pg.open(), listening(pg)
    with psycopg.connect(os.environ[DSN], autocommit=True) as raw:
        raw.execute(f'LISTEN "{channel_of(pg.config().storage.schema_name)}"')
        note(silent, "untold")
        silent.flush()
        note(telling, "told")
        told = list(raw.notifies(timeout=20, stop_after=1))
        telling.flush()
        told += raw.notifies(timeout=0)
        writers = {read(each.payload).writer for each in told}
    assert writers == {inspect(telling).identity.hex()}
    assert feed(silent) == {"mode": "asking"}


def test_a_cut_connection_is_made_again_and_nothing_is_missed(pg: PostgresBackend) -> None:
    # issue 5, item 5: reconnection
    one, other = listening(pg), pg.open(pg.config(embedding_provider=None))
    for at in range(2):
        cut()
        note(other, f"untold {at}")  # the other has no feed_dsn: only the look after coming back finds it
        until(lambda at=at: f"untold {at}" in contents(one), "it did not look again when it was back")
        until(lambda at=at: feed(one)["connections"] == at + 2, "it never came back")
    assert feed(one)["mode"] == "listening"
    assert one.admin.verify() == []


def test_polling_goes_on_while_there_is_no_connection(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    admin("CREATE ROLE ears LOGIN")
    try:
        dsn = psycopg.conninfo.make_conninfo(os.environ[FEED], user="ears")
        monkeypatch.setenv(FEED, dsn)
        one, other = listening(pg, resident__feed_poll_ms=20), pg.open(pg.config(embedding_provider=None))
        assert feed(one)["mode"] == "listening"
        admin("ALTER ROLE ears NOLOGIN")
        cut()
        until(lambda: feed(one)["mode"] == "polling", "it did not say that it no longer listens")
        note(other, "polled")
        until(lambda: contents(one) == {"polled"}, "nobody polled")
        until(lambda: feed(one)["fault"] == "not let in", f"it said {feed(one)}")
        admin("ALTER ROLE ears LOGIN")
        until(lambda: feed(one)["mode"] == "listening", "it never came back")
        assert feed(one)["fault"] is None
        one.flush()
        errors = [event for event in one.storage.events.all() if event.payload.get("where") == "listener"]
        assert len(errors) == 1, "one report an outage"
    finally:
        for memory in pg.closing:
            memory()
        admin("DROP ROLE ears")


def test_store_opens_and_polls_where_nobody_answers(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FEED, "host=/nowhere dbname=x")
    memory = listening(pg, resident__feed_poll_ms=20)
    facts = feed(memory)
    assert facts.pop("channels") == prefix_of(pg.config().storage.schema_name) + "*"
    assert facts == {"mode": "polling", "notifications": 0, "connections": 0, "fault": "cannot connect"}
    print_stats(Output(json=False), memory.admin.stats())
    assert "arrive by polling (no connection to listen on: cannot connect)" in capsys.readouterr().out
    note(pg.open(), "polled")
    until(lambda: contents(memory) == {"polled"}, "nobody polled")


def test_feed_dsn_that_leads_elsewhere_is_refused(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    pg.create(pg.config())
    monkeypatch.setenv(FEED, psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="template1"))
    with pytest.raises(InvalidConfigValue, match="another database") as caught:
        listening(pg)
    assert caught.value.context["field"] == "storage.feed_dsn"
    monkeypatch.setenv(FEED, "nonsense=1 password=hunter2")
    with pytest.raises(InvalidConfigValue) as caught:
        listening(pg)
    assert caught.value.context["field"] == "storage.feed_dsn"
    assert "hunter2" not in str(caught.value)
    monkeypatch.delenv(FEED)
    with pytest.raises(MissingRequired, match=FEED):
        listening(pg)
    with pytest.raises(MultipleErrors):
        pg.config(storage__feed_dsn="host=/nowhere")


def test_closing_ends_it(pg: PostgresBackend) -> None:
    def threads() -> int:
        return sum(thread.name == "caliber-listener" for thread in threading.enumerate())

    before = threads()
    memory = listening(pg)
    assert threads() == before + 1
    memory.close()
    assert threads() == before
    until(lambda: not admin("SELECT 1 FROM pg_stat_activity WHERE application_name = 'ears'"), "its connection is left")


def test_writers_of_several_handles_end_alike(pg: PostgresBackend) -> None:
    handles = [listening(pg), listening(pg), listening(pg)]

    def write(at: int) -> None:
        for number in range(10):
            kept = note(handles[at], f"{at}.{number}")
            if number % 3 == 0:
                handles[at].storage.notes.delete(kept.note_id)

    at_once([partial(write, at) for at in range(3)])
    expected = {f"{at}.{number}" for at in range(3) for number in range(10) if number % 3}
    for memory in handles:
        until(lambda memory=memory: contents(memory) == expected, "it missed something")
        assert memory.admin.verify() == []
