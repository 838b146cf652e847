"""Messages between real processes: time from send to receipt, cost of waiting, throughput. Goals: issue "Many agents".

A receiver in another process reports when each message came, by the clock that all processes of a machine share. The
bare driver beside it does the least: insert and notify in one transaction; on arrival delete and return the row.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness.mail import BATCH, KNOBS, RECEIVER, SENDER, TYPE, consumed, fill, mail, receiver
from harness.scale import usual
from support.inspection import inspect
from support.local_server import LocalServer

import caliber
from caliber.model import Principal

DSN = "CALIBER_BENCH_MESSAGES_DSN"
SENDS, QUICK_SENDS = 100, 3
IDLE_S, QUICK_IDLE_S = usual(2.0, full=5.0), 0.2
MESSAGES, QUICK_MESSAGES = usual(5_000, full=20_000), 200
CONSUMERS, QUICK_CONSUMERS = 8, 2
IN_MEMORY = Path("/dev/shm")

Figures = Callable[..., None]


@pytest.fixture(scope="module", params=[True, False], ids=["synced", "not synced"])
def synced(request: pytest.FixtureRequest, quick: bool) -> bool:
    """True if commits reach the disk. A sync hides what a message costs beside it, so the other has no goal."""
    if quick and not request.param:
        pytest.skip("left out by --quick")
    return bool(request.param)


@pytest.fixture(scope="module")
def server(synced: bool) -> Iterator[LocalServer]:
    settings = {"max_connections": 200}
    with LocalServer.start(settings=settings, fsync=synced) as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DSN, started.dsn)
        yield started


@pytest.fixture
def folder(synced: bool, tmp_path: Path) -> Iterator[Path]:
    if synced:
        yield tmp_path
    elif IN_MEMORY.is_dir():
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            yield Path(folder)
    else:
        pytest.skip("this system has no folder in memory")


def on_postgres(schema: str) -> Any:
    named = {"storage.adapter": "postgres", "storage.schema_name": schema, "storage.feed_dsn": f"env:{DSN}"}
    config = caliber.profiles.reference(f"env:{DSN}", **named, **KNOBS)
    caliber.create(config)
    return config


def statements_of(memory: caliber.Caliber, call: Callable[[], Any]) -> int:
    before = inspect(memory).store.statement_count()
    call()
    return inspect(memory).store.statement_count() - before


def delays(config: Any, dsn: tuple[str, str] | None, quick: bool) -> tuple[float, list[float]]:
    """Return the share of a core of a waiting receiver, and the seconds from each send to its receipt."""
    spread = random.Random(1)
    took = []
    with caliber.open(config, principal=Principal.admin()) as memory:
        for name in (SENDER, RECEIVER):
            memory.agents.register(name, type=TYPE)
        messages = mail(memory, SENDER)
        with receiver(config, dsn, QUICK_IDLE_S if quick else IDLE_S) as (share, reports):
            for number in range(QUICK_SENDS if quick else SENDS):
                time.sleep(spread.uniform(0.01, 0.04))  # the receiver waits again, at another point of its look
                began = time.monotonic()
                messages.send(number, to=RECEIVER)
                payload, came = reports.recv()
                assert payload == number
                took.append(came - began)
            messages.send(None, to=RECEIVER)
            assert reports.recv()[0] is None
        assert len(messages.list(state="acknowledged", limit=len(took) + 2)) == len(took) + 1
    return share, took


def bare_delays(dsn: str, sends: int) -> list[float]:
    """Return the seconds from each send to its receipt by psycopg alone: LISTEN, one row inserted, one deleted."""
    spread = random.Random(1)
    came: dict[int, float] = {}
    arrived = threading.Semaphore(0)

    def receive(connection: psycopg.Connection[Any]) -> None:
        while True:
            list(connection.notifies(stop_after=1))  # as a loop over them, it keeps the connection to itself
            row = connection.execute("DELETE FROM bare RETURNING payload").fetchone()
            assert row is not None
            came[row[0]] = time.monotonic()
            arrived.release()
            if row[0] == sends - 1:
                return

    took = []
    with psycopg.connect(dsn, autocommit=True) as one, psycopg.connect(dsn, autocommit=True) as two:
        one.execute("CREATE TABLE bare (payload bigint)")
        two.execute("LISTEN bare")
        thread = threading.Thread(target=receive, args=(two,), daemon=True)
        thread.start()
        for number in range(sends):
            time.sleep(spread.uniform(0.01, 0.04))
            began = time.monotonic()
            with one.pipeline(), one.transaction():
                one.execute("INSERT INTO bare VALUES (%s)", (number,))
                one.execute("NOTIFY bare")
            assert arrived.acquire(timeout=60)
            took.append(came[number] - began)
        thread.join()
    return took


def report(figure: Figures, database: str, goal_ms: float | None, share: float, took: list[float]) -> None:
    figure(f"send to receipt in another process, p50, {database}", statistics.median(took) * 1e3, "ms", at_most=goal_ms)
    ninth = statistics.quantiles(took, n=10)[-1]
    figure(f"send to receipt in another process, p90, {database}", ninth * 1e3, "ms")
    figure(f"a waiting receiver, share of a core, {database}", share * 100, "%", at_most=0.5)


def test_delay_on_sqlite(figure: Figures, quick: bool, folder: Path, synced: bool) -> None:
    config = caliber.profiles.reference(folder / "store.db", **KNOBS)
    caliber.create(config)
    share, took = delays(config, None, quick)
    report(figure, "SQLite" if synced else "SQLite, not synced", 20 if synced else None, share, took)


def test_delay_on_postgres(figure: Figures, quick: bool, server: LocalServer, synced: bool) -> None:
    share, took = delays(on_postgres("delay"), (DSN, server.dsn), quick)
    bare = bare_delays(server.dsn, QUICK_SENDS if quick else SENDS)
    database = "PostgreSQL" if synced else "PostgreSQL, not synced"
    report(figure, database, 5 if synced else None, share, took)
    ratio = statistics.median(took) / statistics.median(bare)
    figure(f"the same, to psycopg's LISTEN, one row inserted and deleted, {database}", ratio, "x")


def test_throughput_on_postgres(figure: Figures, quick: bool, server: LocalServer, synced: bool) -> None:
    config, sent = on_postgres("throughput"), QUICK_MESSAGES if quick else MESSAGES
    consumers = [f"consumer {at}" for at in range(QUICK_CONSUMERS if quick else CONSUMERS)]
    with caliber.open(config, principal=Principal.admin()) as memory:
        for name in (SENDER, *consumers):
            memory.agents.register(name, type=TYPE)
        took, payloads = consumed(config, (DSN, server.dsn), consumers, lambda: fill(memory, range(sent)))
        assert sorted(payloads) == list(range(sent))
        messages = mail(memory, consumers[0])
        fill(memory, range(BATCH + 1))
        found: list[Any] = []
        of_claim = statements_of(memory, lambda: found.extend(messages.claim(BATCH)))
        assert [each.payload for each in found] == list(range(BATCH))
        of_ack = statements_of(memory, lambda: messages.ack(found))
    task = f"{sent:,} messages through {CONSUMERS} consumers on PostgreSQL"
    if synced:
        figure(task, sent / took, "/s", at_least=5_000)
        figure(f"statements of a claim of {BATCH} messages on PostgreSQL", of_claim, "")
        figure(f"statements of an acknowledgement of {BATCH} messages on PostgreSQL", of_ack, "")
    else:
        figure(f"{task}, not synced", sent / took, "/s")
