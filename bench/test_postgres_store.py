"""Appending to a PostgreSQL tenant, against the bare driver writing the same rows. Goals: design section 9.

The bare driver knows every number beforehand and sends a turn's transaction in one pipeline; both sides commit
synchronously, with fsync on. What each writes is compared before anything is timed. A server shares the sync of commits
that come together by itself, so what a shared commit saves here is work of client and server: CPU is shown beside it.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.bare import for_psycopg
from harness.contest import OURS, PEER, Contender
from harness.notes import ME, sentence, settled
from harness.scale import usual
from harness.writers import per_second
from support.inspection import inspect
from support.local_server import LocalServer

import caliber
from caliber.api.caliber import Caliber
from caliber.kernels import uuid7

DSN = "CALIBER_BENCH_STORE_DSN"
WRITERS = 8
SECONDS, QUICK_SECONDS = usual(1.0, full=2.0), 0.1
WARM = 10
DURABLE = "PostgreSQL, fsync and synchronous_commit on both sides"

pytestmark = pytest.mark.benchmark(min_rounds=100, max_time=1.0, warmup=True, warmup_iterations=20)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer.start(settings={"max_connections": 100}) as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DSN, started.dsn)
        with psycopg.connect(started.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield started


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Close everything that a benchmark opened, also when it fails: an open connection fails the next benchmark."""
    with ExitStack() as stack:
        yield stack


class Tasks:
    """A tenant, and a task of its own for each writer."""

    def __init__(self, schema: str, durability: str, closing: ExitStack) -> None:
        overrides = {
            "storage.adapter": "postgres",
            "storage.schema_name": schema,
            "storage.durability": durability,
            "storage.pool_max": WRITERS + 1,
            "embedding.embed.turn": "off",
        }
        config = caliber.profiles.reference(f"env:{DSN}", **overrides)
        caliber.create(config)
        self.memory: Caliber = closing.enter_context(caliber.open(config, principal=caliber.Principal.admin()))
        self.schema = schema
        self.scopes = []
        for _ in range(WRITERS):
            task = self.memory.start_trajectory("Append", initiator=ME)
            scope = self.memory.current_scope(task.trajectory_id)
            assert scope is not None
            self.scopes.append(scope)

    def appending(self, at: int) -> Callable[[], None]:
        scope_id = self.scopes[at].scope_id

        def append() -> None:
            self.memory.append_turn(scope_id, role="user", content=sentence(7))

        for _ in range(WARM):
            append()
        return append


class Bare:
    """psycopg alone: the statements of one appended turn in one transaction, prepared, in one pipeline."""

    def __init__(self, like: Tasks, at: int, closing: ExitStack) -> None:
        store: Any = inspect(like.memory).store
        self.connection = closing.enter_context(psycopg.connect(os.environ[DSN], autocommit=True))
        self.connection.prepare_threshold = 0
        self.connection.execute(f"SET search_path TO {like.schema}, public")
        insert = store.plans["turn"].insert
        statements = [store.statements[name] for name in ("append.trajectory", "append.scope")]
        self.statements = [for_psycopg(plan.sql) for plan in (*statements, insert, store.statements["change.insert"])]
        self.scope = like.scopes[at]
        like.memory.append_turn(self.scope.scope_id, role="user", content=sentence(7))
        cursor = self.connection.execute("SELECT * FROM turn WHERE scope_id = %s LIMIT 1", [self.scope.scope_id])
        assert cursor.description is not None
        row = cursor.fetchone()
        assert row is not None
        named = dict(zip([column.name for column in cursor.description], row, strict=True))
        named["tool_calls"] = psycopg.types.json.Jsonb(named["tool_calls"])
        self.row = [named[name] for name in insert.binds]
        self.places = [insert.binds.index(name) for name in ("ordinal", "turn_id", "sequence", "turn_number")]
        self.tokens = named["token_count"]
        found = self.connection.execute("SELECT count(*) FROM turn WHERE scope_id = %s", [self.scope.scope_id])
        self.next = found.fetchone()[0] - 1  # type: ignore[index]
        self.ordinals: list[int] = []

    def append(self) -> None:
        if not self.ordinals:
            text = "SELECT nextval('turn_ordinal_seq') FROM generate_series(1, 64)"
            self.ordinals = [one for (one,) in self.connection.execute(text)]
        self.next += 1
        for place, value in zip(self.places, (self.ordinals.pop(), uuid7(), self.next, self.next), strict=True):
            self.row[place] = value
        now = datetime.datetime.now(datetime.UTC)
        counted = (self.tokens, 0, now, 1, self.scope.scope_id)
        values = (counted, counted, self.row, (bytes(16), bytes(54), now))
        with self.connection.pipeline():
            self.connection.execute("BEGIN")
            cursors = [
                self.connection.execute(text, [given[at] for at in order])
                for (text, order), given in zip(self.statements, values, strict=True)
            ]
            self.connection.execute("COMMIT")
        for cursor in cursors:
            assert cursor.fetchall()


def written(schema: str, scope: Any) -> Any:
    """Return the rows that one more turn wrote, apart from ids and times."""
    with psycopg.connect(os.environ[DSN]) as connection:
        connection.execute(f"SET search_path TO {schema}, public")
        return connection.execute(
            "SELECT u.role, u.content, u.token_count, u.tool_calls, u.sequence, u.turn_number, u.version, s.turn_count,"
            " s.next_sequence, s.tokens_input, t.turn_count, t.tokens_input, s.version - t.version,"
            " (SELECT count(*) FROM change) > 0"
            " FROM turn AS u JOIN scope AS s USING (scope_id) JOIN trajectory AS t ON t.trajectory_id = s.trajectory_id"
            " WHERE scope_id = %s ORDER BY u.sequence DESC LIMIT 1",
            [scope.scope_id],
        ).fetchone()


def assert_same_rows(ours: Tasks, bare: Bare, other: Tasks) -> None:
    bare.append()
    ours.memory.append_turn(ours.scopes[0].scope_id, role="user", content=sentence(7))
    ours.memory.append_turn(ours.scopes[0].scope_id, role="user", content=sentence(7))
    assert written(ours.schema, ours.scopes[0]) == written(other.schema, other.scopes[0])


@pytest.mark.usefixtures("server")
def test_append_turn_on_postgres(contest: Callable[..., None], closing: ExitStack) -> None:
    ours, other = Tasks("append_ours", "commit", closing), Tasks("append_bare", "commit", closing)
    bare = Bare(other, 0, closing)
    assert_same_rows(ours, bare, other)
    contest(
        "append_turn on PostgreSQL, durability commit",
        [
            Contender(OURS, "caliber", ours.appending(0), lambda: settled(ours.memory), at_most=1.1, note=DURABLE),
            Contender(PEER, f"psycopg {psycopg.__version__} alone, pipelined, the same rows", bare.append),
        ],
    )


def cpu_s(server: LocalServer) -> float:
    """Return the CPU seconds of this process and of the server's processes that run."""
    total = time.process_time()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(server.pid):
                total += int((folder / "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            continue  # it has ended meanwhile
    return total


def test_concurrent_writers_on_postgres(
    figure: Callable[..., None], quick: bool, server: LocalServer, closing: ExitStack
) -> None:
    ours, other = Tasks("group_ours", "group", closing), Tasks("group_bare", "commit", closing)
    bares = [Bare(other, at, closing) for at in range(WRITERS)]
    assert_same_rows(ours, bares[0], other)
    calls = [ours.appending(at) for at in range(WRITERS)]
    for bare in bares:
        for _ in range(WARM):
            bare.append()
    ratios, fairness, costs = [], [], []
    seconds = QUICK_SECONDS if quick else SECONDS
    for _ in range(1 if quick else 3):  # in turn: on a shared machine speed changes from second to second
        began = cpu_s(server)
        mine, fair = per_second(WRITERS, seconds, lambda at: calls[at])
        between = cpu_s(server)
        theirs, _ = per_second(WRITERS, seconds, lambda at: bares[at].append)
        costs.append((between - began) / mine / ((cpu_s(server) - between) / theirs))
        ratios.append(mine / theirs)
        fairness.append(fair)
    name = f"{WRITERS} writers at group on PostgreSQL"
    figure(f"{name}, against {WRITERS} connections committing one by one", statistics.median(ratios), "x", at_least=2.5)
    figure(f"{name}: slowest thread to mean", min(fairness), "", at_least=0.5)
    if Path("/proc/self/schedstat").exists():
        figure(f"{name}: CPU of client and server a write, against the same", statistics.median(costs), "x")
