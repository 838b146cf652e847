"""PostgreSQL alone: names, rights, races between transactions, lost connections, its change feed.

Everything else about it is proven by the contract suite, of which it is one backend.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from contract.entities import plain
from contract.world import together
from support.configs import USER
from support.databases import DSN, PostgresBackend, admin, note
from support.folders import open_folder
from support.inspection import inspect, replaced
from support.local_server import LocalServer
from support.memories import FACT
from support.threads import begin
from support.waits import until

import caliber
from caliber.admin.checking import rebuild_full_text
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.postgres.statements import ADVISORY_CLASS
from caliber.backends.postgres.writing.feed import Snapshot
from caliber.config.secret import LiteralDsn
from caliber.model import FixedClock
from caliber.model.agents import LockToken
from caliber.model.deadline import within
from caliber.model.errors import (
    CaliberError,
    Conflict,
    InvalidConfigValue,
    LockExpired,
    MissingRequired,
    MultipleErrors,
    SchemaMismatch,
    StorageError,
    Unavailable,
)
from caliber.schema.predicate import Comparison, Either, Operator
from caliber.schema.relations import EVENT, NOTE, SCHEMA_MIGRATION, TRAJECTORY
from caliber.storage.compile.conditions import Listing, compile_stored
from caliber.storage.protocol import Store

PASSWORD = "hunter2swordfish"


@pytest.fixture(scope="module")
def own_server() -> Iterator[LocalServer]:
    """A server that tests may stop and kill."""
    hba = ("local all outsider scram-sha-256",)
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False, hba=hba) as server:
        yield server


@pytest.fixture
def lone(own_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    """A backend on the server that tests may stop and kill."""
    monkeypatch.setenv(DSN, own_server.dsn)
    ready, PostgresBackend.ready = PostgresBackend.ready, []
    made = PostgresBackend()
    yield made
    if not own_server.running:  # the test failed while it was down: the next one is not to
        own_server.restart()
    made.close()
    PostgresBackend.ready = ready


def add_one(store: Store, trajectory: Any) -> None:
    import dataclasses

    def work(uow: Any) -> None:
        current = uow.get(TRAJECTORY, trajectory.trajectory_id.bytes)
        uow.update(TRAJECTORY, dataclasses.replace(current, turn_count=current.turn_count + 1))

    store.write(work)


# --- names, configurations, what is found ------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ['a"; DROP SCHEMA public; --', "a b", "Upper", "pg_mine", "1st", "a" * 64, "ä", "", "information_schema"]
)
def test_schema_name_that_is_none_is_refused_by_the_configuration(name: str) -> None:
    # issue, Bad input: tenant names that try to inject
    with pytest.raises(MultipleErrors) as caught:
        caliber.profiles.reference(f"env:{DSN}", **{"storage.adapter": "postgres", "storage.schema_name": name})
    assert [error.context["field"] for error in caught.value.errors] == ["storage.schema_name"]


def test_dsn_is_a_reference_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # K-072, design section 10: no DSNs in messages
    with pytest.raises(MultipleErrors) as caught:
        caliber.profiles.reference(f"postgresql://u:{PASSWORD}@host/db", **{"storage.adapter": "postgres"})
    assert PASSWORD not in str(caught.value)
    config = caliber.profiles.reference("env:CALIBER_NO_SUCH_DSN", **{"storage.adapter": "postgres"})
    with pytest.raises(MissingRequired, match="CALIBER_NO_SUCH_DSN"):
        caliber.open(config)
    monkeypatch.setenv("CALIBER_NO_SUCH_DSN", f"postgresql://u:{PASSWORD}@host/db?nonsense=1")
    with pytest.raises(InvalidConfigValue) as refused:
        caliber.open(config)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_knobs_of_one_adapter_are_refused_by_the_other() -> None:
    with pytest.raises(MultipleErrors) as caught:
        caliber.profiles.reference(f"env:{DSN}", **{"storage.adapter": "postgres", "storage.readers": 64})
    assert [error.context["field"] for error in caught.value.errors] == ["storage.readers"]
    with pytest.raises(MultipleErrors) as caught:
        caliber.profiles.reference("a.db", **{"storage.pool_max": 3})
    assert [error.context["field"] for error in caught.value.errors] == ["storage.pool_max"]


def test_schema_of_somebody_else_is_left_alone(pg: PostgresBackend) -> None:
    config = pg.config(storage__schema_name="somebodys")
    admin("CREATE SCHEMA somebodys")
    try:
        admin("CREATE TABLE somebodys.schema_migration (a int)")
        for call in (caliber.create, caliber.open, caliber.migrate):
            with pytest.raises(SchemaMismatch, match="not a CALIBER store"):
                call(config)
        assert admin("SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                     " WHERE n.nspname = 'somebodys' AND c.relkind = 'r'") == [(1,)]  # fmt: skip
    finally:
        admin("DROP SCHEMA somebodys CASCADE")


def test_empty_schema_made_by_somebody_with_more_rights_is_used(pg: PostgresBackend) -> None:
    settings = pg.config()
    admin(f"CREATE SCHEMA IF NOT EXISTS {settings.storage.schema_name}")
    pg.open(settings).start_trajectory("goal", initiator=USER)


def test_two_creators_at_once_make_one_store(pg: PostgresBackend) -> None:
    # issue, Bad input: two migrators at once
    settings = pg.config(storage__schema_name="made_by_two")
    try:
        ends = together(4, lambda at: caliber.create(settings))
        assert sorted(type(end).__name__ for end in ends) == ["Conflict", "Conflict", "Conflict", "NoneType"]
        assert together(3, lambda at: caliber.migrate(settings)) == [[], [], []]
        caliber.open(settings).close()
    finally:
        admin("DROP SCHEMA IF EXISTS made_by_two CASCADE")


def test_creation_that_fails_leaves_nothing(pg: PostgresBackend) -> None:
    """A schema is created with everything in it or not at all."""
    from caliber.backends.postgres import schema

    def failing(*_: Any) -> None:
        raise StorageError("planted")

    settings = pg.config(storage__schema_name="half_made")
    with replaced(schema, "record", failing), pytest.raises(StorageError, match="planted"):
        caliber.create(settings)
    assert admin("SELECT 1 FROM pg_namespace WHERE nspname = 'half_made'") == []


def test_migration_is_applied_whole_or_not_at_all(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue 5, item 1: transactional migrate
    from caliber.storage.migrate import migrations
    from caliber.storage.migrate.migrations import MIGRATIONS, SCHEMA_VERSION, MigrationStep

    store = pg.store()
    name = pg.config().storage.schema_name
    good, bad = "CREATE TABLE more (a BIGINT)", "CREATE TABLE more (b BIGINT)"

    def applied(*statements: str) -> list[int]:
        step = MigrationStep("more", SCHEMA_VERSION, SCHEMA_VERSION, convert=lambda _: statements)
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, SCHEMA_VERSION + 1: step})
            return caliber.migrate(pg.config())

    with pytest.raises(StorageError):
        applied(good, bad)
    tables = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{name}' AND tablename = 'more'"
    assert admin(tables) == [(0,)]
    assert applied(good) == [SCHEMA_VERSION + 1]
    assert admin(tables) == [(1,)]
    assert applied(good) == []
    store.close()
    with pg.open() as memory:
        assert memory.storage.schema_migrations.count() == 2
    admin(f"DROP TABLE {name}.more; DELETE FROM {name}.schema_migration WHERE schema_version > {SCHEMA_VERSION}")


def test_database_without_pgvector_says_what_is_missing(pg: PostgresBackend) -> None:
    # issue, Bad input: missing extension
    admin("CREATE DATABASE bare")
    admin("CREATE ROLE plain LOGIN")
    dsn = psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="bare", user="plain")
    admin("GRANT CREATE ON DATABASE bare TO plain")
    with psycopg.connect(psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="bare"), autocommit=True) as raw:
        raw.execute("ALTER DATABASE bare OWNER TO CURRENT_USER")
        raw.execute("REVOKE CREATE ON DATABASE bare FROM plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DSN, dsn)
        with pytest.raises(SchemaMismatch, match="CREATE EXTENSION vector"):
            caliber.create(pg.config())
    admin("DROP DATABASE bare")
    admin("DROP ROLE plain")


def test_pgvector_in_another_schema_is_found_there(pg: PostgresBackend) -> None:
    # design section 3: pgvector's schema is read from pg_extension
    admin("CREATE DATABASE elsewhere")
    dsn = psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DSN, dsn)
        admin("CREATE SCHEMA tools")
        admin("CREATE EXTENSION vector SCHEMA tools")
        caliber.create(pg.config())
        with caliber.open(pg.config()) as memory:
            note(memory, "has a vector")
            assert memory.admin.verify() == []
            assert memory.search("vector").hits[0].content == "has a vector"
        rebuild_full_text(pg.config(search__mode="backend"))
        with caliber.open(pg.config(search__mode="backend")) as memory:
            assert memory.storage.embedding_spaces.report()[0].index == "hnsw"
            assert "vector" in memory.search("vector").hits[0].found_by
    admin("DROP DATABASE elsewhere")


# --- rights and passwords ----------------------------------------------------------------------------


def test_a_dsn_that_is_written_out_is_used_and_never_told(pg: PostgresBackend) -> None:
    # K-072, decision 0011
    dsn = psycopg.conninfo.make_conninfo(os.environ[DSN], password=PASSWORD)
    written = LiteralDsn(dsn)
    assert written.is_sealed
    settings = pg.config().with_overrides(**{"storage.dsn": written})
    pg.adopt(settings)
    caliber.create(settings, exist_ok=True)
    with caliber.open(settings) as memory:
        remembered = note(memory, "found by a DSN in the program")
        assert memory.get(remembered.note_id).content == "found by a DSN in the program"
        assert PASSWORD not in f"{memory!r} {memory.admin.stats()!r} {inspect(memory).engine.config!r}"
        task = memory.start_trajectory("windows say under which configuration", initiator=USER).trajectory_id
        window = memory.assemble_context(task)
    with caliber.open(pg.config()) as memory:  # the document of the other configuration is without the DSN
        assert memory.replay(window.window_id).text == window.text
    broken = settings.with_overrides(**{"storage.dsn": LiteralDsn(f"postgresql://u:{PASSWORD}@host/db?nonsense=1")})
    with pytest.raises(InvalidConfigValue) as caught:
        caliber.open(broken)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_wrong_password_is_refused_and_not_shown(lone: PostgresBackend, own_server: LocalServer) -> None:
    # issue, Bad input: wrong password (not shown)
    admin(f"CREATE ROLE outsider LOGIN PASSWORD '{PASSWORD}'")
    try:
        with pytest.MonkeyPatch.context() as patch:
            dsn = psycopg.conninfo.make_conninfo(own_server.dsn_of(user="outsider"), password=f"wrong{PASSWORD}")
            patch.setenv(DSN, dsn)
            with pytest.raises(Unavailable) as caught:
                caliber.open(lone.config())
        assert caught.value.context["reason"] == "wrong password"
        assert not caught.value.retryable
        assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    finally:
        admin("DROP ROLE outsider")


def test_missing_right_is_said(lone: PostgresBackend, own_server: LocalServer) -> None:
    # issue, Bad input: missing rights
    lone.store()
    admin(f"CREATE ROLE outsider LOGIN PASSWORD '{PASSWORD}'")
    try:
        dsn = psycopg.conninfo.make_conninfo(own_server.dsn_of(user="outsider"), password=PASSWORD)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DSN, dsn)
            with pytest.raises(Unavailable) as caught:
                caliber.open(lone.config())
        assert caught.value.context["reason"] == "missing rights"
    finally:
        admin("DROP ROLE outsider")


def test_out_of_connections_is_said(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue, Bad input: out of connections
    monkeypatch.setattr("caliber.backends.postgres.store.POOL_TIMEOUT_MS", 50)
    store = pg.store(storage__pool_max=2)
    with store.read() as one, store.read() as two:
        for session in (one, two):
            session.run(store.plans["note"].count, ())
        with pytest.raises(Unavailable, match="pool_max") as caught:
            store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert caught.value.retryable
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))


# --- races -------------------------------------------------------------------------------------------


def test_work_that_is_done_again_tells_of_its_events_once(pg: PostgresBackend) -> None:
    memory = pg.open()
    writer = inspect(memory).writer
    heard: list[str] = []
    memory.events.subscribe(lambda event: heard.append(event.event_type))

    def lose_once(*arguments: Any) -> Any:
        raise Conflict(entity_type="transaction", id="", reason="planted", retryable=True)

    with replaced(writer, "commit", lose_once, once=True):
        memory.start_trajectory("goal", initiator=USER)
    assert memory.storage.trajectories.count() == 1
    assert sorted(heard) == ["scope_open", "trajectory_start"]


def test_inserts_cost_no_round_trip_of_their_own(pg: PostgresBackend) -> None:
    # docs/decisions/0090
    store = pg.store()
    store.write(lambda uow: [uow.insert(TRAJECTORY, plain(TRAJECTORY)) for _ in range(2)])
    with pytest.MonkeyPatch.context() as patch:
        trips = []
        exchange = PgConnection.exchange

        def counted(self: Any, *commands: Any) -> Any:
            trips.append(len(commands))
            return exchange(self, *commands)

        patch.setattr(PgConnection, "exchange", counted)
        store.write(lambda uow: [uow.insert(TRAJECTORY, plain(TRAJECTORY)) for _ in range(2)])
    assert len(trips) == 2, "one that begins and inserts, one that commits"


def test_rule_broken_by_a_waiting_insert_is_an_error_of_the_write(pg: PostgresBackend) -> None:
    store = pg.store()
    taken = plain(NOTE)
    store.write(lambda uow: uow.insert(NOTE, taken))
    with pytest.raises(Conflict):
        store.write(lambda uow: (uow.insert(TRAJECTORY, plain(TRAJECTORY)), uow.insert(NOTE, taken)))
    with store.read() as session:
        assert session.run(store.plans["trajectory"].count, ()) == [(0,)]


def test_without_retries_the_loser_is_told(pg: PostgresBackend) -> None:
    store = pg.store(storage__serialization_retries=0)
    trajectory = plain(TRAJECTORY)
    store.write(lambda uow: uow.insert(TRAJECTORY, trajectory))
    import dataclasses

    def overtaken(uow: Any) -> None:
        current = uow.get(TRAJECTORY, trajectory.trajectory_id.bytes)
        add_one(store, trajectory)
        uow.update(TRAJECTORY, dataclasses.replace(current, turn_count=9))

    with pytest.raises(Conflict) as caught:
        store.write(overtaken)
    assert caught.value.retryable


def test_deadlock_is_tried_again(pg: PostgresBackend) -> None:
    # issue, Bad input: deadlock
    store = pg.store()
    one, two = plain(NOTE), plain(NOTE, fingerprint=b"2" * 32)
    store.write(lambda uow: [uow.insert(NOTE, one), uow.insert(NOTE, two)])
    import dataclasses

    met = threading.Barrier(2)
    tries = []

    def change(first: Any, second: Any) -> None:
        def work(uow: Any) -> None:
            tries.append(first.note_id)
            for item in (first, second):
                current = uow.get(NOTE, item.note_id.bytes)
                uow.update(NOTE, dataclasses.replace(current, confidence=current.confidence / 2))
                if item is first and len(tries) <= 2:
                    met.wait(10)

        store.write(work)

    ends = together(2, lambda at: change(one, two) if at else change(two, one))
    assert ends == [None, None]
    assert len(tries) > 2, "one of them was the victim"
    for item in (one, two):
        stored = store.write(lambda uow, item=item: uow.get(NOTE, item.note_id.bytes))
        assert stored.confidence == item.confidence / 4


def test_row_lock_is_waited_for_no_longer_than_the_deadline(pg: PostgresBackend) -> None:
    store = pg.store()
    trajectory = plain(TRAJECTORY)
    store.write(lambda uow: uow.insert(TRAJECTORY, trajectory))
    with psycopg.connect(os.environ[DSN]) as other:
        other.execute(f"SELECT 1 FROM {inspect(store).schema}.trajectory FOR UPDATE")  # type: ignore[attr-defined]
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught, within(0.08):
            store.write(lambda uow: uow.delete(TRAJECTORY, uow.get(TRAJECTORY, trajectory.trajectory_id.bytes)))
        assert time.monotonic() - started < 5
        assert caught.value.retryable
    add_one(store, trajectory)


def test_statement_timeout_is_an_error_and_nothing_more(pg: PostgresBackend) -> None:
    # issue, Bad input: statement timeout
    store = pg.store(storage__statement_timeout_ms=60)
    with store.read() as session, pytest.raises(Unavailable, match="timeout"):
        session.command("SELECT pg_sleep(5)")  # type: ignore[attr-defined]
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    with psycopg.connect(os.environ[DSN]) as other:
        assert other.execute("SHOW statement_timeout").fetchall() == [("0",)], "set for our transactions alone"


def test_turn_cannot_slip_under_a_trajectory_being_deleted(pg: PostgresBackend) -> None:
    """Referrers of a row are looked up under a lock: mirrors learn of every row that goes."""
    here, there = pg.open(), pg.open()
    for _ in range(4):
        trajectory = here.start_trajectory("goal", initiator=USER)
        scope = here.current_scope(trajectory.trajectory_id)
        assert scope is not None
        inspect(there).snapshot("latest")

        def delete(trajectory: Any = trajectory) -> None:
            here.storage.trajectories.delete(trajectory.trajectory_id)

        def append(scope: Any = scope) -> None:
            for at in range(5):
                there.append_turn(scope.scope_id, role="user", content=str(at))

        for end in together(2, lambda at, delete=delete, append=append: (delete, append)[at]()):
            assert end is None or isinstance(end, CaliberError), end
    for memory in (here, there):
        memory.flush()
        inspect(memory).snapshot("latest")
        assert memory.admin.verify() == []


def test_lease_that_runs_out_while_a_guarded_write_waits_lets_nothing_through(pg: PostgresBackend) -> None:
    # K-037: whoever takes the lock over meanwhile must not find the old holder's write after its own
    clock = FixedClock()
    memory = pg.open(clock=clock)
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    lock = memory.agents.locks.acquire("file", holder="a", lease_ms=400)
    token = LockToken(lock.resource, lock.token)
    schema = pg.config().storage.schema_name
    ends: list[Any] = []

    def write() -> None:
        try:
            ends.append(memory.append_turn(scope.scope_id, role="user", content="late", guard=token))
        except CaliberError as error:
            ends.append(error)

    with psycopg.connect(os.environ[DSN]) as other:
        other.execute(f"SELECT pg_advisory_xact_lock({ADVISORY_CLASS}, hashtext('{schema}/' || 'file'))")
        thread = begin(write)
        until(lambda: pg.has_waiting(memory))
        clock.advance(ms=500)
    thread.result(30)
    assert [type(end) for end in ends] == [LockExpired]
    assert memory.storage.turns.count() == 0


# --- connections that break --------------------------------------------------------------------------


def test_connection_that_the_server_ended_is_replaced(pg: PostgresBackend) -> None:
    memory = pg.open()
    note(memory, "before")
    admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caliber'")
    note(memory, "after")
    assert memory.admin.stats()["store"]["connections_replaced"] >= 1
    assert memory.admin.verify() == []


def test_reading_after_connections_were_ended_asks_another(pg: PostgresBackend) -> None:
    memory = pg.open()
    note(memory, "kept")
    for _ in range(3):
        admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caliber'")
        assert memory.storage.notes.count() == 1
        admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caliber'")
        inspect(memory).store.changed_elsewhere()


def test_connection_that_breaks_inside_a_transaction_is_an_error_and_nothing_is_written(pg: PostgresBackend) -> None:
    store = pg.store()
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))

    def work(uow: Any) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'caliber'")
        uow.insert(TRAJECTORY, plain(TRAJECTORY))

    with pytest.raises(Unavailable) as caught:
        store.write(work)
    assert caught.value.retryable
    assert caught.value.context["reason"] == "connection lost"
    with store.read() as session:
        assert session.run(store.plans["trajectory"].count, ()) == [(1,)]


@pytest.mark.parametrize("committed", [True, False])
def test_commit_whose_answer_is_lost_is_looked_up(pg: PostgresBackend, committed: bool) -> None:
    """Neither reported as failed although it stands, nor taken for done although it does not: then it is done again."""
    memory = pg.open()
    writer = inspect(memory).writer

    def cut(connection: Any, *arguments: Any) -> Any:
        exchange = type(connection).exchange

        def exchange_and_break(self: Any, *commands: Any) -> Any:
            if self is not connection:
                return exchange(self, *commands)
            pid = self.pg.backend_pid
            if committed:
                exchange(self, *commands)
            admin("SELECT pg_terminate_backend(%s)", pid)
            self.close()
            raise Unavailable("planted", reason="connection lost")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(connection), "exchange", exchange_and_break)
            return commit(connection, *arguments)

    with replaced(writer, "commit", cut, once=True) as commit:
        kept = note(memory, "stands once")
    assert memory.get(kept.note_id).content == "stands once"
    assert memory.storage.notes.count() == 1
    assert memory.admin.stats()["store"]["retried"] == (0 if committed else 1)
    assert memory.admin.verify() == []


def test_number_given_out_again_after_a_crash_is_not_taken_for_ours(
    lone: PostgresBackend, own_server: LocalServer
) -> None:
    """A crashed server forgets the number of a transaction of which nothing was on disk, and another one gets it."""
    memory = lone.open(write_behind__trace_enabled=False)  # so that nobody else commits
    note(memory, "before")
    memory.flush()
    store = inspect(memory).store
    exchange = PgConnection.exchange
    numbers: list[int] = []

    def crash_at_commit(self: Any, *commands: Any) -> Any:
        if numbers or not commands or commands[-1].arguments[0] != b"COMMIT":
            return exchange(self, *commands)
        numbers.append(self.begun)
        own_server.kill()
        own_server.restart()
        while True:  # what others write meanwhile
            with psycopg.connect(own_server.dsn) as other:
                other.execute(f"UPDATE {inspect(store).schema}.feed SET pruned_to = pruned_to")
                numbers.append(int(other.execute("SELECT pg_current_xact_id()::text").fetchone()[0]))  # type: ignore[index]
            if numbers[-1] >= numbers[0]:
                break
        self.close()
        raise Unavailable("planted", reason="connection lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PgConnection, "exchange", crash_at_commit)
        kept = note(memory, "stands once")
    assert numbers[0] in numbers[1:], "the number was not given out again: this proves nothing"
    assert memory.storage.notes.get(kept.note_id).content == "stands once", "acknowledged, and lost"
    assert memory.storage.notes.count() == 2
    assert memory.admin.verify() == []


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_server_that_comes_back_is_used_again(lone: PostgresBackend, own_server: LocalServer, how: str) -> None:
    # issue, Bad input: server restarted, killed (-9)
    memory = lone.open()
    note(memory, "harbour")
    reloads = memory.admin.stats()["resident"]["reloads"]
    if how == "kill":
        own_server.kill()
    else:
        own_server.stop(how, timeout_ms=30_000)  # type: ignore[arg-type]
    with pytest.raises(Unavailable) as caught:
        note(memory, "while it is down")
    assert caught.value.retryable
    assert [hit.content for hit in memory.search("harbour").hits] == ["harbour"], "reads come from memory"
    own_server.restart()
    note(memory, "after")
    inspect(memory).snapshot("latest")
    assert memory.admin.stats()["resident"]["reloads"] == reloads + 1, "it might have been restored to an earlier state"
    assert sorted(item.content for item in memory.storage.notes.all()) == ["after", "harbour"]
    assert memory.admin.verify() == []


# --- prepared statements -----------------------------------------------------------------------------


def test_nothing_is_prepared_where_the_pool_in_between_cannot(pg: PostgresBackend) -> None:
    # design section 5: PgBouncer in transaction mode
    memory = pg.open(storage__prepared_max=0)
    note(memory, "unprepared")
    store = inspect(memory).store
    with store.read() as session:
        assert session.command("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == [("0",)]  # type: ignore[attr-defined]
        assert session.command("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [("0",)]  # type: ignore[attr-defined]
    assert memory.search("unprepared").hits[0].content == "unprepared"
    assert memory.admin.verify() == []


def test_statements_are_prepared_when_first_used_and_no_more_than_allowed(pg: PostgresBackend) -> None:
    # design section 3: many relations cost a handle nothing
    many = [{**FACT, "name": f"fact_{at}", "fields": FACT["fields"][1:]} for at in range(10)]
    for most in (3, 1_024):
        memory = pg.open(storage__prepared_max=most, storage__pool_max=2, memories=many)
        for at in range(10):
            facts = memory.records(f"fact_{at}")
            fact = facts.insert(subject=f"{most}", kind="claim")
            assert facts.update(fact.record_id, score=0.5).version == 2
            assert facts.find(subject=f"{most}") == [facts.get(fact.record_id)]
        with inspect(memory).store.read() as session:
            prepared = session.command("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'caliber%'")  # type: ignore[attr-defined]
        assert 0 < int(prepared[0][0]) <= (3 if most == 3 else 200)
        memory.close()


def test_store_that_has_become_too_new_is_refused_in_the_same_words_each_time(pg: PostgresBackend) -> None:
    """A refused transaction's prepared statements are not prepared again under the same names."""
    store = pg.store()
    newer = plain(SCHEMA_MIGRATION, schema_version=1_000, min_reader_version=1_000, min_writer_version=1_000)
    store.write(lambda uow: uow.insert(SCHEMA_MIGRATION, newer))
    for _ in range(4):
        for work in (lambda uow: uow.insert(NOTE, plain(NOTE)), lambda uow: uow.find(NOTE, b"x" * 16)):
            with pytest.raises(SchemaMismatch, match="needs a newer CALIBER"):
                store.write(work)
        with pytest.raises(SchemaMismatch, match="needs a newer CALIBER"), store.read() as session:
            session.run(store.plans["note"].count, ())


def test_statements_lost_behind_our_back_are_prepared_again(pg: PostgresBackend) -> None:
    """A pool in between may give us another server connection, or somebody may DEALLOCATE."""
    store = pg.store(storage__pool_max=2)
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    with store.read() as session:
        session.command("DEALLOCATE ALL")  # type: ignore[attr-defined]
    for _ in range(3):
        store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    with store.read() as session:
        assert session.run(store.plans["trajectory"].count, ()) == [(4,)]


# --- the change feed ---------------------------------------------------------------------------------


def test_snapshots_are_read_as_postgresql_spells_them() -> None:
    snapshot = Snapshot.parse("10:20:10,14")
    assert [xid for xid in range(8, 23) if snapshot.shows(xid)] == [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]
    assert Snapshot.parse("7:7:").shows(6)
    assert not Snapshot.parse("7:7:").shows(7)


def test_transaction_that_commits_late_is_not_missed(pg: PostgresBackend) -> None:
    """It has a lower number than what was read long ago, and every reader still hears of it."""
    memory, early = pg.open(), pg.store()
    began, go = threading.Event(), threading.Event()

    def slow(uow: Any) -> None:
        uow.insert(NOTE, plain(NOTE, content="late"))
        began.set()
        assert go.wait(30)

    thread = begin(lambda: early.write(slow))
    assert began.wait(30)
    note(pg.open(), "early")
    inspect(memory).snapshot("latest")
    assert {item.content for item in memory.search("", kinds=["note"]).hits} == {"early"}
    go.set()
    thread.result(30)
    assert inspect(memory).store.changed_elsewhere()
    inspect(memory).snapshot("latest")
    assert {item.content for item in memory.search("", kinds=["note"]).hits} == {"early", "late"}
    assert memory.admin.verify() == []


def test_feed_does_not_wait_for_a_long_transaction_of_another_database(pg: PostgresBackend) -> None:
    # design section 5: waiting below xmin stalls behind any long transaction of another database
    admin("CREATE DATABASE neighbour")
    with psycopg.connect(psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="neighbour")) as other:
        other.execute("SELECT pg_current_xact_id()")
        here, there = pg.open(), pg.open()
        for at in range(3):
            note(there, f"number {at}")
            inspect(here).snapshot("latest")
            assert len(here.search("", kinds=["note"]).hits) == at + 1
        assert not inspect(here).store.changed_elsewhere(), "what was read is not news again"
        reloads = here.admin.stats()["resident"]["reloads"]
        inspect(there).write(lambda uow: uow.execute("change.prune", 2**60, 0))
        inspect(here).snapshot("latest")
        assert here.admin.stats()["resident"]["reloads"] == reloads, "nothing of what it could still need was removed"
    admin("DROP DATABASE neighbour")


# --- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [
    {"a\0b": "c\0", "\ufdd0": "\ufdd00\ufdd01"},
    {"large": 1e22, "larger": 1.5e300, "small": 5e-324, "whole": 10**16, "text": "1e+22"},
    {"nested": [{"deep": ["\0", 1.0, True, None]}], "quote": '"\\u0000\\', "empty": {}},
])  # fmt: skip
def test_json_comes_back_as_it_went_in(pg: PostgresBackend, payload: dict[str, Any]) -> None:
    store = pg.store()
    event = plain(EVENT, payload=payload)
    store.write(lambda uow: uow.insert(EVENT, event))
    stored = store.write(lambda uow: uow.get(EVENT, event.event_id.bytes)).payload
    assert stored == payload
    assert repr(stored) == repr(dict(sorted(payload.items())) if "a\0b" not in payload else stored)


def test_facts_name_the_driver(pg: PostgresBackend) -> None:
    # design section 11: doctor names which implementation is in use
    facts = pg.store().facts()
    assert facts["driver_implementation"] == psycopg.pq.__impl__
    assert psycopg.pq.__impl__ in facts["summary"]
    assert facts["bytes"] > 0


def test_damage_is_found(pg: PostgresBackend) -> None:
    store = pg.store()
    name = pg.config().storage.schema_name
    assert store.integrity() == []
    admin(f"ALTER TABLE {name}.note ADD CONSTRAINT planted CHECK (confidence < 2) NOT VALID")
    admin(f"ALTER TABLE {name}.event RENAME COLUMN principal TO who")
    try:
        assert sorted(store.integrity()) == [
            "column principal of event is missing",
            "constraint planted was never checked; VALIDATE it",
        ]
    finally:
        admin(f"ALTER TABLE {name}.note DROP CONSTRAINT planted")
        admin(f"ALTER TABLE {name}.event RENAME COLUMN who TO principal")


def test_statements_that_callers_make_up_are_not_kept(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection and its server remember a bounded number of statements, however many shapes of filters there are."""
    monkeypatch.setattr("caliber.backends.postgres.connecting.connection.PASSING_MAX", 5)
    store = pg.store()
    with store.read() as session:
        assert isinstance(session, PgConnection)
        for count in range(2, 30):
            asked = Either(tuple(Comparison("token_count", Operator.EQUAL, at) for at in range(count)))
            assert compile_stored(asked, NOTE, store.dialect).ordinals(session, {}) == []
            assert list(Listing(NOTE, asked, store.dialect).rows(session, {})) == []
        assert not any(b"note." in name for name in session.prepared)
        assert 0 < len(session.shared.passing) <= 5
