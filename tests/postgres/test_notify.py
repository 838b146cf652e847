"""Events told by commits, NOTIFY in their own transaction, and heard at once by LISTEN on a direct connection.

Source: C-242 to C-244, C-312; design section 5; decision 0099.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.configs import USER
from support.databases import DSN, PostgresBackend, admin, note
from support.inspection import inspect
from support.threads import at_once
from support.waits import until

import caliber
from caliber.backends.postgres.writing.notify import channel_of, named_channel, prefix_of, read
from caliber.cli.observing.top import print_stats
from caliber.cli.output import Output
from caliber.events import event_log
from caliber.model.access import AgentRole, Principal, PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import (
    DTypeError,
    IncompatibleOptions,
    InvalidConfigValue,
    LockExpired,
    MissingRequired,
    MultipleErrors,
)
from caliber.model.events import Event


@pytest.fixture
def pg(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    made = PostgresBackend()
    monkeypatch.setenv(FEED, psycopg.conninfo.make_conninfo(postgres, application_name="ears"))
    yield made
    made.close()


def started(memory: caliber.Caliber) -> tuple[Any, Any]:
    task = memory.start_trajectory("a secret goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    return task, scope


def keep(memory: caliber.Caliber, scope: Any, content: str, **more: Any) -> Any:
    return memory.create_artifact(
        scope.scope_id, artifact_type="fact", content=content, extraction_method="explicit", **more
    )


@pytest.mark.parametrize("durability", ["commit", "group"])
def test_named_events_go_out_with_their_commit(pg: PostgresBackend, durability: str) -> None:
    # C-242, C-243, C-312: the five names and policies' channels, {"id": …}, nothing of what was undone
    policy = {"name": "p", "rules": [{"on": "scope_close", "actions": [{"action": "notify", "channel": "closed"}]}]}
    memory = listening(pg, policies=[policy], storage__durability=durability)
    schema = pg.config().storage.schema_name
    names = ["trajectory_started", "scope_opened", "artifact_created", "scope_closed", "closed", "trajectory_completed"]
    with psycopg.connect(os.environ[DSN], autocommit=True) as raw:
        for name in names:
            raw.execute(f'LISTEN "{named_channel(schema, name)}"')
        task, scope = started(memory)
        made = keep(memory, scope, "a secret finding")
        with pytest.raises(LockExpired):
            keep(memory, scope, "undone", guard=LockToken("nobody's", 1))
        memory.close_scope(scope.scope_id)
        memory.complete_trajectory(task.trajectory_id, status="success", summary="done")
        told: list[tuple[str, str]] = []
        for each in raw.notifies(timeout=20):
            assert set(json.loads(each.payload)) == {"id", "event_id"}
            assert "secret" not in each.payload
            told.append((each.channel.removeprefix(prefix_of(schema)), json.loads(each.payload)["id"]))
            if told[-1][0] == names[-1]:
                break
        told += [(each.channel, each.payload) for each in raw.notifies(timeout=0)]
    assert sorted(told) == sorted(
        [
            ("trajectory_started", str(task.trajectory_id)),
            ("scope_opened", str(scope.scope_id)),
            ("artifact_created", str(made.artifact_id)),
            ("scope_closed", str(scope.scope_id)),
            ("closed", str(task.trajectory_id)),
            ("trajectory_completed", str(task.trajectory_id)),
        ]
    )


def test_events_from_elsewhere_are_true_when_heard(pg: PostgresBackend) -> None:
    one, other, stranger = listening(pg), listening(pg), pg.open()
    heard: list[Event] = []
    found: list[str] = []
    own: list[Event] = []

    def hear(event: Event) -> None:
        heard.append(event)
        if event.event_type == "artifact_create":
            assert event.subject_id is not None
            found.append(one.storage.artifacts.get(event.subject_id).text)

    stop = one.events.subscribe(hear, remote=True)
    one.events.subscribe(own.append)
    task, scope = started(other)
    made = keep(other, scope, "kept")
    until(lambda: found == ["kept"], "it never heard")
    assert [event.event_type for event in heard] == ["trajectory_start", "scope_open", "artifact_create"]
    last = heard[-1]
    assert (last.trajectory_id, last.scope_id, last.subject_id) == (
        task.trajectory_id, scope.scope_id, made.artifact_id,
    )  # fmt: skip
    assert last.payload == {"id": str(made.artifact_id)}
    assert own == [], "who did not ask for others' events is not told of them"
    note(one, "own")
    assert [event.event_type for event in heard[3:]] == ["note_create"] == [event.event_type for event in own]
    note(other, "the last")
    until(lambda: len(heard) == 5, "it never heard")
    stop()
    with pytest.raises(MissingRequired, match="DSN that leads to the database"):
        stranger.events.subscribe(hear, remote=True)


def test_of_others_notes_a_subscriber_hears_what_its_principal_may_read(pg: PostgresBackend) -> None:
    # Decision 0186: memory has taken the commit over before it is asked who may read the note
    one, other = listening(pg), listening(pg)
    planner = other.acting_as(Principal(PrincipalKind.AGENT, "planner", AgentRole.ORCHESTRATOR))
    worker = one.acting_as(Principal(PrincipalKind.AGENT, "worker", AgentRole.EXECUTOR))
    heard: dict[str, list[Any]] = {"admin": [], "worker": []}
    one.events.subscribe(lambda event: heard["admin"].append(event.subject_id), event_type="note_create", remote=True)
    worker.events.subscribe(
        lambda event: heard["worker"].append(event.subject_id), event_type="note_create", remote=True
    )
    made = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5}
    hidden = planner.add_note(content="for orchestrators", **made).note_id
    shared = other.add_note(content="for everybody", **made).note_id
    until(lambda: len(heard["admin"]) == 2 and heard["worker"], "it never heard")
    assert heard == {"admin": [hidden, shared], "worker": [shared]}


def test_a_transaction_of_many_events_is_told_in_parts(pg: PostgresBackend) -> None:
    # C-312: no payload is longer than the server takes, and no event is left out
    one, other = listening(pg), listening(pg)
    heard: list[str] = []
    one.events.subscribe(lambda event: heard.append(event.payload["id"]), remote=True)
    _, scope = started(other)
    events = [
        inspect(other).engine.event("note_create", scope_id=scope.scope_id, trajectory_id=scope.trajectory_id)
        for _ in range(200)
    ]

    own: list[Event] = []

    def work(uow: Any) -> None:
        for event in events[:-1]:
            uow.emit(event)
        event_log.log(uow, events[-1], own.append)

    inspect(other).write(work)
    assert own == events[-1:]
    note(other, "the last")
    until(lambda: len(heard) >= 203, "it never heard")
    assert len(heard) == 203
    assert heard[2:202] == [str(scope.scope_id)] * 200


def test_an_outage_is_told_as_a_gap(pg: PostgresBackend) -> None:
    one, other = listening(pg), listening(pg)
    heard: list[Event] = []
    one.events.subscribe(heard.append, event_type="note_create", remote=True)
    note(other, "before")
    until(lambda: heard, "it never heard")
    cut()
    until(lambda: len(heard) == 2, "the gap was not told of")
    until(lambda: feed(other)["mode"] == "listening", "it never came back")
    note(other, "after")
    until(lambda: len(heard) == 3, "it never heard")
    assert [event.event_type for event in heard] == ["note_create", "events_missed", "note_create"]
    assert heard[1].payload["last_event_id"] == str(heard[0].event_id)


def test_the_loop_hears_too(pg: PostgresBackend) -> None:
    other = listening(pg)
    quiet = {"write_behind__trace_enabled": False, "write_behind__usage_enabled": False}
    settings = pg.config(embedding_provider=None, storage__feed_dsn=f"env:{FEED}", **quiet)

    async def hear() -> None:
        arrived: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

        async def never(event: Event) -> None: ...

        async with await caliber.aio.open(settings) as memory:
            memory.events.subscribe(
                lambda event: arrived.put_nowait((event.event_type, threading.get_ident())), remote=True
            )
            with pytest.raises(DTypeError):
                memory.events.subscribe(never)
            await asyncio.to_thread(note, other, "told")
            assert await asyncio.wait_for(arrived.get(), 30) == ("note_create", threading.get_ident())

    asyncio.run(hear())


def test_a_file_tells_no_other_process(memory_store: caliber.Caliber) -> None:
    with pytest.raises(IncompatibleOptions, match=r"PostgreSQL with storage\.feed_dsn"):
        memory_store.events.subscribe(print, remote=True)


@pytest.fixture
def memory_store() -> Iterator[caliber.Caliber]:
    from support.configs import config

    settings = config(":memory:")
    with caliber.open(settings) as memory:
        yield memory


FEED = "CALIBER_TEST_FEED_DSN"


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
