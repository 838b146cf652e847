"""A pool that the caller made serves a store, and whoever else uses it. Source: issue 5, item 1; decision 0090."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from support.configs import USER
from support.databases import DSN, PostgresBackend, note
from support.inspection import inspect, session_of
from support.threads import at_once

import caliber
from caliber.model.errors import Conflict, DTypeError, IncompatibleOptions, InvalidValue, Unavailable

psycopg_pool = pytest.importorskip("psycopg_pool", reason="psycopg_pool is not installed: it is the caller's to bring")


@pytest.fixture
def pg(pg: PostgresBackend) -> PostgresBackend:
    """The backend, with its store already there."""
    pg.create(pg.config())
    return pg


@pytest.fixture
def pool(postgres: str) -> Iterator[Any]:
    """A pool as programs have them: not in autocommit, with rows of their own liking."""
    kwargs = {"row_factory": dict_row, "application_name": "lent"}
    with psycopg_pool.ConnectionPool(postgres, min_size=1, max_size=3, kwargs=kwargs, open=False) as made:
        yield made


def test_everything_goes_through_it_and_the_variable_is_not_read(
    pg: PostgresBackend, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.backends.postgres.store.POOL_TIMEOUT_MS", 20_000)
    settings = pg.config(storage__dsn="env:CALIBER_NO_SUCH_DSN")
    with caliber.open(settings, connection_pool=pool) as memory, pg.open() as other:
        kept = note(memory, "kept")
        memory.storage.notes.update(kept.note_id, content="changed")
        theirs = note(other, "theirs")
        inspect(memory).snapshot("latest")
        assert memory.get(theirs.note_id) == theirs
        memory.flush()
        arrow = memory.storage.bulk_read("note").read_all()
        assert sorted(arrow.column("content").to_pylist()) == ["changed", "theirs"]
        rows = arrow.select(["entity", "entity_type", "note_type", "confidence"]).append_column(
            "content", [["loaded 1", "loaded 2"]]
        )
        assert memory.storage.bulk_load("note", rows).loaded == 2
        with pytest.raises(Conflict):
            memory.storage.bulk_load("note", rows)
        assert memory.storage.bulk_load("note", rows, on_existing="skip").loaded == 0
        half = memory.storage.bulk_read("note", batch_rows=1)
        assert half.read_next_batch().num_rows == 1
        half.close()
        assert memory.storage.notes.count() == 4
        assert memory.admin.verify() == []
        with psycopg.connect(os.environ[DSN]) as raw:
            assert raw.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lent'").fetchone()
    assert not pool.closed, "whoever made it closes it"
    with pool.connection() as connection:
        assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}


def test_others_find_connections_as_they_left_them(pg: PostgresBackend, pool: Any) -> None:
    with caliber.open(pg.config(), connection_pool=pool) as memory:
        for at in range(3):
            note(memory, f"number {at}")
            memory.storage.bulk_read("note").read_all()
            with pool.connection() as connection:
                assert not connection.autocommit
                assert connection.isolation_level is None
                assert connection.execute("SELECT 1 AS one").fetchone() == {"one": 1}
                shown = connection.execute("SELECT current_setting('synchronous_commit') AS s").fetchone()
                assert shown == {"s": "on"}
                with connection.cursor() as cursor, cursor.copy("COPY (SELECT 7) TO STDOUT") as copy:
                    assert b"".join(copy) == b"7\n"
        assert memory.admin.stats()["store"]["connections_replaced"] == 0


def test_dead_connections_are_replaced(pg: PostgresBackend, pool: Any) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lent'"
    with caliber.open(pg.config(), connection_pool=pool) as memory:
        for at in range(3):
            with psycopg.connect(os.environ[DSN], autocommit=True) as raw:
                raw.execute(end)
            note(memory, f"number {at}")
            with psycopg.connect(os.environ[DSN], autocommit=True) as raw:
                raw.execute(end)
            assert memory.storage.notes.count() == at + 1
        assert memory.admin.stats()["store"]["connections_replaced"] > 0
        assert memory.admin.verify() == []


def test_writers_share_fewer_connections_than_they_are(
    pg: PostgresBackend, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.backends.postgres.store.POOL_TIMEOUT_MS", 30_000)
    settings = pg.config()
    with caliber.open(settings, connection_pool=pool) as memory, caliber.open(settings, connection_pool=pool) as other:
        task = memory.start_trajectory("goal", initiator=USER)
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None
        inspect(other).snapshot("latest")

        def write(handle: caliber.Caliber, at: int) -> None:
            for number in range(6):
                handle.append_turn(scope.scope_id, role="user", content=f"{at}.{number}")

        at_once([partial(write, (memory, other)[at % 2], at) for at in range(6)])
        for handle in (memory, other):
            inspect(handle).snapshot("latest")
            assert handle.admin.verify() == []
            turns = handle.storage.turns.list_by_scope(scope.scope_id)
            assert [turn.sequence for turn in turns] == list(range(36))


def test_empty_pool_and_closed_pool_are_said(
    pg: PostgresBackend, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue, Bad input: out of connections
    pool = psycopg_pool.ConnectionPool(postgres, min_size=2, max_size=2, open=True)
    monkeypatch.setattr("caliber.backends.postgres.store.POOL_TIMEOUT_MS", 50)
    with caliber.open(pg.config(), connection_pool=pool) as memory:
        note(memory, "before")
        memory.flush()
        held = [pool.getconn() for _ in range(2)]
        with pytest.raises(Unavailable, match="make the pool larger") as caught:
            note(memory, "while they are in use")
        assert caught.value.retryable
        assert caught.value.context["reason"] == "out of connections"
        for connection in held:
            pool.putconn(connection)
        note(memory, "after")
        memory.flush()
        pool.close()
        with pytest.raises(Unavailable, match="connection_pool is closed") as caught:
            note(memory, "late")
        assert not caught.value.retryable
        assert len(memory.search("", kinds=["note"]).hits) == 2, "reads come from memory"


@pytest.mark.parametrize("wrong", [object(), "postgresql://localhost", psycopg_pool.AsyncConnectionPool])
def test_what_is_no_pool_is_refused(pg: PostgresBackend, wrong: Any) -> None:
    if isinstance(wrong, type):
        wrong = wrong("", open=False)
    with pytest.raises(DTypeError, match="connection_pool"):
        caliber.open(pg.config(), connection_pool=wrong)


def test_connections_in_another_encoding_are_refused(pg: PostgresBackend, postgres: str) -> None:
    with (
        psycopg_pool.ConnectionPool(postgres, min_size=1, kwargs={"client_encoding": "latin1"}) as pool,
        pytest.raises(InvalidValue, match="client_encoding"),
    ):
        caliber.open(pg.config(), connection_pool=pool)


def test_a_file_takes_no_pool(file_backend: Any) -> None:
    file_backend.create(file_backend.config())
    with pytest.raises(IncompatibleOptions, match="connection_pool"):
        caliber.open(file_backend.config(), connection_pool=psycopg_pool.ConnectionPool("", open=False))


def test_default_isolation_of_a_session_changes_nothing(pg: PostgresBackend, postgres: str) -> None:
    """Locks that are waited for show what their holder wrote only in READ COMMITTED, so transactions ask for it."""
    kwargs = {"options": "-c default_transaction_isolation=serializable"}
    with (
        psycopg_pool.ConnectionPool(postgres, min_size=1, max_size=4, kwargs=kwargs, open=True) as pool,
        caliber.open(pg.config(), connection_pool=pool) as memory,
    ):
        level = inspect(memory).write(lambda uow: session_of(uow).command("SHOW transaction_isolation"))
        assert level == [("read committed",)]
        note(memory, "kept")
        memory.flush()
        assert memory.storage.bulk_read("note").read_all().num_rows == 1
