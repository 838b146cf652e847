"""Faults of a server: each is a typed error that says what to do, leaves nothing half-written, and is
over when it is over, without opening again. Source: issue 5, Bad input and faults; design section 10.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from contract.entities import plain
from support.configs import USER, config
from support.databases import DSN, PostgresBackend, admin, note
from support.folders import open_folder
from support.inspection import inspect, session_of
from support.local_server import LocalServer
from support.threads import begin
from support.waits import until

import caliber
from caliber.backends import backend
from caliber.backends.postgres import schema as schemas
from caliber.model import SystemClock
from caliber.model.errors import CaliberError, Conflict, SchemaMismatch, Unavailable
from caliber.schema.relations import NOTE, TRAJECTORY
from caliber.storage.migrate import migrations
from caliber.storage.migrate.migrations import MIGRATIONS, SCHEMA_VERSION, MigrationStep


@pytest.fixture
def guest(pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The configuration of a login role that owns nothing, and may do all that a running store does."""
    pg.create(pg.config())
    name = pg.config().storage.schema_name
    admin(
        f"CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA {name} TO guest;"
        f" GRANT ALL ON ALL TABLES IN SCHEMA {name} TO guest; GRANT ALL ON ALL SEQUENCES IN SCHEMA {name} TO guest"
    )
    monkeypatch.setenv("CALIBER_TEST_GUEST_DSN", psycopg.conninfo.make_conninfo(os.environ[DSN], user="guest"))
    yield pg.config(embedding_provider=None, storage__dsn="env:CALIBER_TEST_GUEST_DSN")
    for close in pg.closing:
        close()
    admin("DROP OWNED BY guest; DROP ROLE guest")


@pytest.fixture
def trigger(pg: PostgresBackend) -> Iterator[Callable[[str], None]]:
    """Have the server run PL/pgSQL for each trajectory that is inserted."""
    pg.create(pg.config())
    name = pg.config().storage.schema_name

    def make(body: str) -> None:
        admin(
            f"CREATE SEQUENCE IF NOT EXISTS {name}.tries; CREATE FUNCTION {name}.fault() RETURNS trigger"
            f" LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;"
            f" CREATE TRIGGER fault BEFORE INSERT ON {name}.trajectory FOR EACH ROW EXECUTE FUNCTION {name}.fault()"
        )

    yield make
    for close in pg.closing:
        close()
    admin(f"DROP FUNCTION {name}.fault CASCADE; DROP SEQUENCE {name}.tries")


# --- the disk ----------------------------------------------------------------------------------------


@pytest.fixture
def small_tablespace(postgres: str) -> Iterator[str]:
    """A tablespace on a file system of two megabytes."""
    folder = Path(tempfile.mkdtemp(prefix="caliber-small-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("mounting a small file system is not permitted here")
    try:
        place = folder / "space"
        place.mkdir()
        data = Path(admin("SHOW data_directory")[0][0])
        shutil.chown(place, data.stat().st_uid, data.stat().st_gid)
        admin(f"CREATE TABLESPACE small LOCATION '{place}'")
        yield "small"
        admin("DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def test_full_disk_of_the_server_is_said_and_survived(pg: PostgresBackend, small_tablespace: str) -> None:
    # issue, Bad input: out of disk. The server's free bytes are not to be had through SQL.
    memory = pg.open(pg.config(embedding_provider=None))
    name = pg.config().storage.schema_name
    admin(f"ALTER TABLE {name}.turn SET TABLESPACE {small_tablespace}")
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    written = 0
    try:

        def fill() -> None:
            nonlocal written
            for _ in range(200):
                memory.append_turn(scope.scope_id, role="user", content=os.urandom(60_000))
                written += 1

        with pytest.raises(Unavailable, match="free space there") as caught:
            fill()
        assert caught.value.retryable
        assert caught.value.context["reason"] == "disk full"
        assert memory.get(scope.scope_id).turn_count == written > 5
        assert memory.assemble_context(task.trajectory_id).used_tokens > 0, "reads go on"
    finally:
        admin(f"ALTER TABLE {name}.turn SET TABLESPACE pg_default")
    memory.append_turn(scope.scope_id, role="user", content="after")
    memory.flush()
    assert memory.admin.verify() == []
    assert memory.storage.turns.count() == written + 1


@pytest.mark.skipif(not os.environ.get("CALIBER_SOAK"), reason="waits ten seconds for a server that is gone")
def test_server_that_cannot_write_its_log_goes_down_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for its write-ahead log PostgreSQL stops. A COMMIT under way then has an outcome nobody knows."""
    with open_folder() as folder:
        disk = folder / "disk"
        disk.mkdir(mode=0o755)
        if (
            os.geteuid() != 0
            or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=180m,mode=755", "none", str(disk)],
                capture_output=True,
                check=False,
            ).returncode
        ):
            pytest.skip("mounting a small file system is not permitted here")
        try:
            settings = {"max_wal_size": "64MB", "min_wal_size": "32MB", "wal_recycle": False}
            with LocalServer.start(disk / "server", fsync=False, settings=settings) as server:
                monkeypatch.setenv("CALIBER_TEST_SMALL_DSN", server.dsn)
                knobs = {"storage__adapter": "postgres", "storage__schema_name": "small", "embedding_provider": None}
                small = config("env:CALIBER_TEST_SMALL_DSN", **knobs)
                caliber.create(small)
                with caliber.open(small) as memory:
                    _fill_the_disk(memory, disk)
        finally:
            subprocess.run(["umount", str(disk)], check=True)


def _fill_the_disk(memory: caliber.Caliber, disk: Path) -> None:
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    memory.flush()
    written: list[Any] = []

    def append(content: bytes) -> None:
        written.append(memory.append_turn(scope.scope_id, role="user", content=content).turn_id)

    def fill() -> None:
        while True:
            append(os.urandom(200_000))

    rest = disk / "rest"
    rest.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - (6 << 20))))
    for attempt in (fill, lambda: append(b"still full")):
        with pytest.raises(Unavailable) as caught:
            attempt()
        assert caught.value.retryable
    assert len(written) > 3
    rest.unlink()

    def comes_back() -> bool:
        try:
            append(b"after")
        except Unavailable:
            return False
        return True

    until(comes_back, "it did not come back")
    memory.flush()
    assert memory.admin.verify() == []
    kept = {turn.turn_id for turn in memory.storage.turns.list_by_scope(scope.scope_id)}
    # The write whose outcome is unknown may be there; all that were acknowledged are.
    assert kept.issuperset(written)
    assert len(kept) <= len(written) + 1


def test_temporary_files_that_reach_their_limit_are_said(pg: PostgresBackend) -> None:
    store = pg.store()
    with store.read() as session:
        session.command("SET LOCAL work_mem = '64kB'")  # type: ignore[attr-defined]
        session.command("SET LOCAL temp_file_limit = '64kB'")  # type: ignore[attr-defined]
        with pytest.raises(CaliberError) as caught:
            session.command("SELECT * FROM generate_series(1, 100000) AS n ORDER BY n DESC LIMIT 1 OFFSET 99999")  # type: ignore[attr-defined]
    assert caught.value.context["reason"] == "limit reached"
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))


# --- a server that takes no writes, no connections, or is another -------------------------------------


def test_server_that_turns_read_only_is_said_and_survived(pg: PostgresBackend) -> None:
    # issue, Bad input: read-only
    memory = pg.open()
    note(memory, "before")
    memory.flush()
    admin("ALTER SYSTEM SET default_transaction_read_only = on")
    try:
        admin("SELECT pg_reload_conf()")
        until(lambda: admin("SHOW default_transaction_read_only") == [("on",)], "it did not reload")

        def write() -> None:
            for at in range(2_000):  # each session reads the setting when it next has nothing to do
                note(memory, f"refused {at}")

        with pytest.raises(Unavailable, match="primary") as caught:
            write()
        assert caught.value.context["reason"] == "read-only"
        assert caught.value.retryable, "it may be promoted"
        stored = memory.storage.notes.count()
        assert len(memory.search("", kinds=["note"], limit=200).hits) == stored
        with pytest.raises(Unavailable, match="read-only"):
            caliber.open(pg.config())
    finally:
        with psycopg.connect(os.environ[DSN], autocommit=True) as raw:
            raw.execute("SET default_transaction_read_only = off")
            raw.execute("ALTER SYSTEM RESET default_transaction_read_only")
            raw.execute("SELECT pg_reload_conf()")
    until(lambda: admin("SHOW default_transaction_read_only") == [("off",)], "it did not reload")

    def written() -> bool:
        try:
            return bool(note(memory, "after"))
        except Unavailable:
            return False

    until(written, "it stayed read-only")
    memory.flush()
    assert memory.admin.verify() == []
    assert memory.storage.notes.count() == stored + 1


@pytest.mark.parametrize(("where", "reason"), [
    ({"dbname": "nowhere"}, "no such database"),
    ({"user": "nobody_knows"}, "not let in"),
    ({"host": "/nowhere"}, "cannot connect"),
])  # fmt: skip
def test_dsn_that_leads_nowhere_is_said_and_not_shown(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch, where: dict[str, str], reason: str
) -> None:
    dsn = psycopg.conninfo.make_conninfo(os.environ[DSN], password="hunter2swordfish", **where)
    monkeypatch.setenv("CALIBER_TEST_LOST_DSN", dsn)
    settings = pg.config(storage__dsn="env:CALIBER_TEST_LOST_DSN")
    for call in (caliber.open, caliber.create, caliber.migrate):
        with pytest.raises(Unavailable, match=r"storage\.dsn|the DSN") as caught:
            call(settings)
        assert caught.value.context["reason"] == reason
        assert caught.value.retryable == (reason == "cannot connect")
        for told in (str(caught.value), repr(caught.value.context)):
            assert "hunter2" not in told
            assert next(iter(where.values())) not in told


def test_server_out_of_connections_is_said(pg: PostgresBackend, guest: Any) -> None:
    # issue, Bad input: out of connections, the server's own
    store = backend("postgres").open_store(guest, clock_us=SystemClock().now_us)
    pg.closing.append(store.close)
    with store.read() as session:
        session.run(store.plans["note"].count, ())
        admin("ALTER ROLE guest CONNECTION LIMIT 1")
        with pytest.raises(Unavailable, match="takes no more connections") as caught:
            store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
        assert caught.value.retryable
        assert caught.value.context["reason"] == "out of connections"
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))


def test_server_and_extension_that_are_too_old_are_refused(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue, Bad input: wrong version
    pg.create(pg.config())
    calls = (caliber.open, caliber.migrate, lambda config: caliber.create(config, exist_ok=True))
    for limit, value, advice in (
        ("OLDEST_SERVER", 990_000, "upgrade the server"),
        ("OLDEST_VECTOR", (99, 0), "ALTER EXTENSION vector UPDATE"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(schemas, limit, value)
            for call in calls:
                with pytest.raises(SchemaMismatch, match=advice) as caught:
                    call(pg.config())
                assert not caught.value.retryable


def test_store_whose_extension_was_dropped_says_what_is_missing(pg: PostgresBackend) -> None:
    # issue, Bad input: missing extension
    admin("CREATE DATABASE dropped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DSN, psycopg.conninfo.make_conninfo(os.environ[DSN], dbname="dropped"))
        caliber.create(pg.config())
        admin("DROP EXTENSION vector CASCADE")
        for call in (caliber.open, caliber.migrate):
            with pytest.raises(SchemaMismatch, match="CREATE EXTENSION vector"):
                call(pg.config())
    admin("DROP DATABASE dropped")


# --- rights ------------------------------------------------------------------------------------------


def test_right_that_is_taken_away_and_given_back(pg: PostgresBackend, guest: Any) -> None:
    # issue, Bad input: missing rights
    memory = caliber.open(guest)
    pg.closing.append(memory.close)
    name = pg.config().storage.schema_name
    note(memory, "before")
    admin(f"REVOKE INSERT ON {name}.change FROM guest")  # the last statement of a write
    with pytest.raises(Unavailable, match="grant it") as caught:
        note(memory, "refused")
    assert caught.value.context["reason"] == "missing rights"
    assert not caught.value.retryable
    assert memory.storage.notes.count() == 1, "nothing half-written"
    admin(f"GRANT INSERT ON {name}.change TO guest")
    note(memory, "after")
    memory.flush()
    assert {hit.content for hit in memory.search("", kinds=["note"]).hits} == {"before", "after"}
    assert memory.admin.verify() == []


def test_creating_without_the_right_leaves_nothing(pg: PostgresBackend, guest: Any) -> None:
    settings = pg.config(storage__dsn=str(guest.storage.dsn), storage__schema_name="not_for_guests")
    with pytest.raises(Unavailable, match="lacks a right"):
        caliber.create(settings)
    assert admin("SELECT 1 FROM pg_namespace WHERE nspname = 'not_for_guests'") == []


# --- what goes wrong in the middle of a transaction ---------------------------------------------------


def test_serialization_failure_is_tried_again(pg: PostgresBackend, trigger: Callable[[str], None]) -> None:
    # issue, Bad input: serialization failure
    name = pg.config().storage.schema_name
    trigger(f"IF nextval('{name}.tries') % 3 > 0 THEN RAISE EXCEPTION 'planted' USING ERRCODE = '40001'; END IF;")
    store = pg.store()
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert store.facts()["retried"] == 2
    impatient = pg.store(storage__serialization_retries=1)
    with pytest.raises(Conflict, match="another writer was first") as caught:
        impatient.write(lambda uow: (uow.insert(NOTE, plain(NOTE)), uow.insert(TRAJECTORY, plain(TRAJECTORY))))
    assert caught.value.retryable
    with store.read() as session:
        assert session.run(store.plans["note"].count, ()) == [(0,)], "nothing half-written"
        assert session.run(store.plans["trajectory"].count, ()) == [(1,)]


@pytest.mark.parametrize("limit", ["statement_timeout", "deadline"])
def test_write_that_takes_too_long_is_undone(pg: PostgresBackend, trigger: Callable[[str], None], limit: str) -> None:
    # issue, Bad input: statement timeout; O-17: deadlines
    trigger("IF NEW.goal = 'slow' THEN PERFORM pg_sleep(20); END IF;")
    knobs = {"storage__statement_timeout_ms": 150} if limit == "statement_timeout" else {}
    memory = pg.open(pg.config(embedding_provider=None, **knobs))
    started = time.monotonic()
    bound = caliber.deadline(150) if limit == "deadline" else contextlib.nullcontext()
    with pytest.raises(Unavailable, match="wrote nothing") as caught, bound:
        memory.start_trajectory("slow", initiator=USER)
    assert time.monotonic() - started < 15
    assert caught.value.retryable
    assert caught.value.context["reason"] == "timeout"
    memory.start_trajectory("quick", initiator=USER)
    assert memory.storage.trajectories.count() == 1
    assert memory.storage.scopes.count() == 1
    assert memory.admin.verify() == []


def test_transaction_that_the_server_ends_is_said(pg: PostgresBackend) -> None:
    """``idle_in_transaction_session_timeout`` ends the connection while the work thinks."""
    store = pg.store(storage__serialization_retries=0)

    def work(uow: Any) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        session_of(uow).command("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
        pid = session_of(uow).pg.backend_pid
        until(lambda: not admin(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"), "it was not ended")
        uow.insert(TRAJECTORY, plain(TRAJECTORY))

    with pytest.raises(Unavailable, match=r"try again|wrote nothing") as caught:
        store.write(work)
    assert caught.value.retryable
    with store.read() as session:
        assert session.run(store.plans["trajectory"].count, ()) == [(0,)]


def test_connection_cut_while_a_relation_is_read(pg: PostgresBackend) -> None:
    # issue, Bad input: connection cut in the middle of COPY, the other way
    memory = pg.open(pg.config(embedding_provider=None))
    store = inspect(memory).store
    store.write(
        lambda uow: [
            uow.insert(NOTE, plain(NOTE, content="x" * 2_000_000, fingerprint=bytes([at]) * 32)) for at in range(6)
        ]
    )
    reader = memory.storage.bulk_read("note", batch_rows=1)
    reader.read_next_batch()
    admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY (%'")
    with pytest.raises(Unavailable, match="connection lost") as caught:
        reader.read_all()
    assert caught.value.retryable
    assert memory.storage.bulk_read("note").read_all().num_rows == 6


# --- migrations and what is prepared ------------------------------------------------------------------


def test_migration_waits_for_writers_under_way_and_no_longer_than_it_may(
    pg: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration lets writers under way finish; new ones wait behind it, hence the limit."""
    store = pg.store()
    settings = pg.config(storage__lock_timeout_ms=100)
    closing = MigrationStep("closing", 1, SCHEMA_VERSION + 1)
    monkeypatch.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, SCHEMA_VERSION + 1: closing})
    began, go = threading.Event(), threading.Event()

    def slow(uow: Any) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        uow.find(TRAJECTORY, b"x" * 16)
        began.set()
        assert go.wait(30)

    thread = begin(lambda: store.write(slow))
    assert began.wait(30)
    with pytest.raises(Unavailable, match="lock_timeout_ms") as caught:
        caliber.migrate(settings)
    assert caught.value.retryable
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    go.set()
    thread.result(30)
    assert caliber.migrate(settings) == [SCHEMA_VERSION + 1]
    with pytest.raises(SchemaMismatch, match="upgrade"):
        store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    name = settings.storage.schema_name
    assert admin(f"SELECT count(*) FROM {name}.trajectory") == [(2,)]
    admin(f"DELETE FROM {name}.schema_migration WHERE name = 'closing'")


def test_plan_whose_result_has_another_shape_is_made_anew(pg: PostgresBackend) -> None:
    """A migration may change a column while statements on it are prepared."""
    memory = pg.open(pg.config(embedding_provider=None))
    lock = memory.agents.locks.acquire("resource", holder="one")
    name = pg.config().storage.schema_name
    for kind in ('TEXT COLLATE "C"', 'TEXT COLLATE "default"'):
        admin(f"ALTER TABLE {name}.lock ALTER COLUMN holder TYPE {kind}")
        for _ in range(3):
            lock = memory.agents.locks.acquire("resource", holder="one")
        assert lock.holder == "one"
