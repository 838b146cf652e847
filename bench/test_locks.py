"""Locks that no other holder wants, against the bare driver running the same statements. Goals: issue "Many agents".

A call is an acquisition and a release, each in a transaction of its own. The bare driver reads what decides, writes the
row and commits; on PostgreSQL it sends in one pipeline what waits for no answer. The goal is that of durable commits.
A sync to disk hides what a call costs beside it, so the same stands there without a sync, and without a goal.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from harness.bare import for_psycopg
from harness.contest import OURS, PEER, Contender
from support.inspection import inspect
from support.local_server import LocalServer

import caliber
from caliber.api.caliber import Caliber
from caliber.model import LockToken
from caliber.model.time import EPOCH

DSN = "CALIBER_BENCH_LOCKS_DSN"
RESOURCE, HOLDER, LEASE_MS = "file", "agent:planner", 30_000
PAIRS = 20
KNOBS: dict[str, Any] = {"embedding_provider": None, "jobs.poll_ms": 0}
IN_MEMORY = Path("/dev/shm")


@pytest.fixture(params=[True, False], ids=["synced", "not synced"])
def synced(request: pytest.FixtureRequest, quick: bool) -> bool:
    """True if commits reach the disk."""
    if quick and not request.param:
        pytest.skip("left out by --quick")
    return bool(request.param)


@pytest.fixture
def closing_all() -> Iterator[ExitStack]:
    """Close everything that a benchmark opened, also when it fails: an open connection fails the next benchmark."""
    with ExitStack() as stack:
        yield stack


def opened(config: Any, closing_all: ExitStack) -> Caliber:
    caliber.create(config)
    memory: Caliber = closing_all.enter_context(caliber.open(config, principal=caliber.Principal.admin()))
    return memory


def locking(memory: Caliber) -> Callable[[], None]:
    locks = memory.agents.locks

    def call() -> None:
        lock = locks.acquire(RESOURCE, holder=HOLDER, lease_ms=LEASE_MS)
        assert locks.release(LockToken(RESOURCE, lock.token), holder=HOLDER)

    return call


def counted(memory: Caliber, call: Callable[[], None]) -> int:
    """Return the statements of a call, transaction control included on SQLite."""
    before = inspect(memory).store.statement_count()
    call()
    return inspect(memory).store.statement_count() - before


class Statements:
    """The statements of a store that a lock needs, and the place of each of its columns."""

    def __init__(self, memory: Caliber) -> None:
        store: Any = inspect(memory).store
        lock = store.plans["lock"]
        self.reads = [lock.lists["list_by_resource"], store.plans["lock_waiter"].lists["list_by_resource"]]
        self.serialize = store.statements.get("lock.serialize")
        self.update = lock.update
        self.index = lock.codec.index

    def changed(self, row: Any, **columns: Any) -> list[Any]:
        """Return the values of the update that changes columns of a row."""
        version = row[self.index("version")]
        columns["version"] = version + 1
        names = self.update.binds[:-2]
        values = [columns.get(name, row[self.index(name)]) for name in names]
        return [*values, row[self.index("lock_id")], version]


class BareSqlite:
    """apsw alone."""

    def __init__(self, file: str, statements: Statements, closing_all: ExitStack) -> None:
        self.statements = statements
        self.connection = closing_all.enter_context(closing(apsw.Connection(file)))
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self.connection.execute(f"PRAGMA {pragma}").fetchall()

    def transaction(self, changes: Callable[[int, int], dict[str, Any]]) -> None:
        run, statements = self.connection.execute, self.statements
        run("BEGIN IMMEDIATE")
        locks, waiters = (run(read.sql, (RESOURCE,)).fetchall() for read in statements.reads)
        now_us = time.time_ns() // 1_000
        row = locks[-1]
        assert not waiters
        held = row[statements.index("expires_at")] > now_us
        changed = changes(now_us, row[statements.index("token")])
        assert held == (changed["expires_at"] == 0)
        run(statements.update.sql, statements.changed(row, **changed)).fetchall()
        assert self.connection.changes() == 1
        run("COMMIT")

    def call(self) -> None:
        self.transaction(
            lambda now, token: {"token": token + 1, "acquired_at": now, "expires_at": now + LEASE_MS * 1_000}
        )
        self.transaction(lambda now, token: {"expires_at": 0})


class BarePostgres:
    """psycopg alone, with prepared statements."""

    def __init__(self, dsn: str, statements: Statements, closing_all: ExitStack) -> None:
        self.statements = statements
        self.connection = closing_all.enter_context(psycopg.connect(dsn, autocommit=True))
        self.connection.prepare_threshold = 0
        self.reads = [for_psycopg(plan.sql)[0] for plan in (statements.serialize, *statements.reads)]
        self.update, self.order = for_psycopg(statements.update.sql)

    def transaction(self, changes: Callable[[Any, int], dict[str, Any]]) -> None:
        connection, statements = self.connection, self.statements
        with connection.pipeline():
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            _, locks, waiters = [connection.execute(read, (RESOURCE,)) for read in self.reads]
            now = datetime.datetime.now(datetime.UTC)
            row = locks.fetchall()[-1]
            assert not waiters.fetchall()
            held = row[statements.index("expires_at")] > now
            changed = changes(now, row[statements.index("token")])
            assert held == (changed["expires_at"] == EPOCH)
            values = statements.changed(row, **changed)
            updated = connection.execute(self.update, [values[at] for at in self.order])
            connection.execute("COMMIT")
        assert updated.rowcount == 1

    def call(self) -> None:
        lease = datetime.timedelta(milliseconds=LEASE_MS)
        self.transaction(lambda now, token: {"token": token + 1, "acquired_at": now, "expires_at": now + lease})
        self.transaction(lambda now, token: {"expires_at": EPOCH})


def ours_of(settings: str, call: Callable[[], None], synced: bool) -> Contender:
    if synced:
        return Contender(OURS, "caliber", call, at_most=1.5, note=f"{settings} and fsync on both sides")
    return Contender(OURS, "caliber", call, note=f"{settings} on both sides, fsync costs nothing")


def rows(memory: Caliber, first: int) -> list[Any]:
    """Return the rows of locks, apart from ids and times: all are over. Tokens count from the ``first`` one."""
    found = memory.storage.locks.all()
    return [
        (each.resource, each.holder, each.mode, each.token - first, each.version, each.expires_at) for each in found
    ]


def token_of(memory: Caliber) -> int:
    """Return the token of the one lock."""
    (lock,) = memory.storage.locks.all()
    return lock.token


def compare(
    contest: Callable[..., None],
    figure: Callable[..., None],
    stores: Iterable[Caliber],
    bare_of: Callable[[Statements], Any],
    names: tuple[str, str, str],
    synced: bool,
) -> None:
    """Time a lock and its release against the bare driver on a twin of the store, once both leave the same rows.

    ``names``: the database, how it is set, and the driver.
    """
    (ours, other), (database, setting, driver) = stores, names
    call, first = locking(ours), locking(other)
    first()
    bare = bare_of(Statements(other))
    call()
    begun = token_of(ours), token_of(other)
    for _ in range(PAIRS):
        call()
        bare.call()
    assert rows(ours, begun[0]) == rows(other, begun[1])
    if synced:
        figure(f"statements of a lock and its release on {database}", counted(ours, call), "")
    contest(
        f"acquire and release a free lock on {database}{'' if synced else ', not synced'}",
        [ours_of(setting, call, synced), Contender(PEER, f"{driver}, the same rows", bare.call)],
    )


def test_lock_on_sqlite(
    contest: Callable[..., None], figure: Callable[..., None], tmp_path: Path, closing_all: ExitStack, synced: bool
) -> None:
    folder = tmp_path
    if not synced:
        if not IN_MEMORY.is_dir():
            pytest.skip("this system has no folder in memory")
        folder = Path(closing_all.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
    stores = (
        opened(caliber.profiles.reference(folder / f"{name}.db", **KNOBS), closing_all) for name in ("ours", "bare")
    )
    names = ("SQLite", "SQLite, WAL, synchronous=FULL", f"apsw {apsw.apsw_version()} alone")

    def bare_of(statements: Statements) -> BareSqlite:
        return BareSqlite(str(folder / "bare.db"), statements, closing_all)

    compare(contest, figure, stores, bare_of, names, synced)


def test_lock_on_postgres(
    contest: Callable[..., None],
    figure: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    closing_all: ExitStack,
    synced: bool,
) -> None:
    server = closing_all.enter_context(LocalServer.start(fsync=synced))
    monkeypatch.setenv(DSN, server.dsn)
    stores = (
        opened(
            caliber.profiles.reference(
                f"env:{DSN}", **{"storage.adapter": "postgres", "storage.schema_name": schema}, **KNOBS
            ),
            closing_all,
        )
        for schema in ("locks_ours", "locks_bare")
    )
    names = ("PostgreSQL", "PostgreSQL, synchronous_commit", f"psycopg {psycopg.__version__} alone, pipelined")

    def bare_of(statements: Statements) -> BarePostgres:
        return BarePostgres(os.environ[DSN], statements, closing_all)

    compare(contest, figure, stores, bare_of, names, synced)
