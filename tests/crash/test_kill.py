"""A writing process is killed at random moments: what it was told is stored is there, whole, and nothing is half there.

One kill in ``make test``, 30 in ``make prove``, 300 in ``make soak``, recorded in ``docs/evidence/``. Clients of
PostgreSQL and their server are killed too, two thirds as often; processes hear each other's events.
Source: design section 10; issue (PostgreSQL), Done when.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from support.crash.processes import Child
from support.crash.workload import Worker, check, content_of, settings_for
from support.evidence import record, scale, seed
from support.folders import open_folder
from support.local_server import LocalServer
from support.waits import holds_within, let_run

import caliber

CHILD = Path(__file__).parent / "writing_process.py"
KILLS = scale(30, 300, daily=1)
KILLS_A_STORE = 15


def run_and_kill(path: str, rng: random.Random, durability: str, name: str) -> tuple[list[dict[str, Any]], str]:
    """Start a writing process, kill it, and return what it had acknowledged and when it died."""
    threads = 4 if durability == "group" else 1
    process = subprocess.Popen(
        [sys.executable, str(CHILD), path, str(rng.random()), durability, str(threads), name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=1 << 20 if sys.platform == "linux" else -1,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if rng.random() < 0.1:
        # While it starts: opening reads, and writes the configuration.
        moment = "while opening"
        let_run(rng.uniform(0.1, 0.6))
        head = b""
    else:
        moment = "while writing"
        head = process.stdout.readline()
        let_run(rng.expovariate(1 / 0.12))
    # Nobody reads meanwhile: a writer that waited for a reader would die at rest.
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    errors = process.stderr.read().decode()
    process.wait(30)
    process.stdout.close()
    process.stderr.close()
    assert process.returncode == -signal.SIGKILL, f"it ended by itself: {errors}"
    lines = (head + rest).split(b"\n")
    # The last piece is a line that the kill cut off; nobody was told.
    return [entry for entry in map(json.loads, filter(None, lines[:-1])) if entry["kind"] != "ready"], moment


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 300)
def test_every_acknowledged_write_survives_a_kill(tmp_path: Path) -> None:
    # C-193; design section 10: process death
    started = time.monotonic()
    rng = random.Random(seed())
    print(f"seed {seed()}")
    ledger: list[dict[str, Any]] = []
    total = dict.fromkeys(("acknowledged", "while opening", "while writing", "commit", "group"), 0)
    path = ""
    kill = -1
    # A busy machine may kill every process before it did anything: go on until enough was acknowledged.
    while kill + 1 < KILLS or (total["acknowledged"] <= 5 * KILLS and kill < 10 * KILLS):
        kill += 1
        if kill % KILLS_A_STORE == 0:
            path = str(tmp_path / f"store-{kill}.db")
            caliber.create(settings_for(path))
            ledger = []
        durability = rng.choice(("commit", "group"))
        reported, moment = run_and_kill(path, rng, durability, f"kill {kill}")
        ledger += reported
        total["acknowledged"] += len(reported)
        total[moment] += 1
        total[durability] += 1
        faults = check(settings_for(path), ledger)
        assert faults == [], f"after kill {kill} of seed {seed()}, {durability}, {moment}: {faults[:10]}"
    assert total["acknowledged"] > 5 * KILLS, "the process was killed before it did anything"
    record(
        "kill",
        "A writing process killed with SIGKILL at random moments",
        {
            "seed": seed(),
            "kills": kill + 1,
            "killed while opening": total["while opening"],
            "killed while writing": total["while writing"],
            "rounds at durability commit": total["commit"],
            "rounds at durability group, four threads": total["group"],
            "acknowledged writes, all found whole after each kill": total["acknowledged"],
            "faults": 0,
            "seconds": round(time.monotonic() - started),
        },
    )


# --- the checker is itself tested ----------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A store that keeps what it promised, and its ledger."""
    path = tmp_path_factory.mktemp("kept") / "store.db"
    settings = settings_for(str(path))
    caliber.create(settings)
    ledger: list[dict[str, Any]] = []
    with caliber.open(settings) as memory:
        worker = Worker(memory, random.Random(5), "w", ledger.append)
        worker.begin()
        for _ in range(120):
            worker.step()
        for operation in ("_batch", "_close", "_note", "_artifact", "_lock", "_turn"):
            getattr(worker, operation)()
    assert check(settings, ledger) == []
    return path, ledger


@pytest.fixture
def honest(kept: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> tuple[Any, list[dict[str, Any]]]:
    """A copy of it to spoil."""
    shutil.copy(kept[0], tmp_path / "store.db")
    return settings_for(str(tmp_path / "store.db")), kept[1]


PLANTED = {
    "a lost turn": ("DELETE FROM turn WHERE turn_id = (SELECT max(turn_id) FROM turn)", "is lost"),
    "a lost note": ("DELETE FROM note WHERE note_id = (SELECT max(note_id) FROM note)", "is lost"),
    "a lost artifact": ("DELETE FROM artifact WHERE ordinal = 1", "is lost"),
    "a changed turn": ("UPDATE turn SET content = x'00' WHERE ordinal = 1", "not what was acknowledged"),
    "a shortened turn": ("UPDATE turn SET content = substr(content, 1, 30) WHERE length(content) > 100", "is damaged"),
    "a lost update": ("UPDATE note SET version = version - 1 WHERE version > 1", "lost version"),
    "half a batch": (
        "DELETE FROM turn WHERE substr(content, 1, 6) = x'626174636820' AND sequence % 2 = 0",
        "half written",
    ),
    "a reopened scope": ("UPDATE scope SET closed_at = NULL", "not closed as it was"),
    "a wrong counter": ("UPDATE scope SET turn_count = turn_count + 1 WHERE ordinal = 1", "counts"),
    "a forgotten token": ("UPDATE lock SET token = 0 + 1", "forgot token"),
    "a window over budget": ("UPDATE context_window SET used_tokens = max_tokens + 1", "over its budget"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_loss_is_caught(kind: str, honest: Any) -> None:
    settings, ledger = honest
    statement, expected = PLANTED[kind]
    connection = apsw.Connection(settings.storage.path)
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute(statement).fetchall()
    assert connection.total_changes(), "the fault was not planted"
    connection.close()
    faults = check(settings, ledger)
    assert any(expected in fault for fault in faults), faults[:5]


def test_store_that_does_not_open_is_caught(honest: Any) -> None:
    settings, ledger = honest
    Path(settings.storage.path).write_bytes(b"nothing of it is left")
    assert check(settings, ledger)[0].startswith("does not open")


def test_window_reported_over_budget_is_caught(honest: Any) -> None:
    settings, ledger = honest
    assert check(settings, [*ledger, {"kind": "window", "id": "w", "used": 11, "max": 10}])


def test_contents_can_be_told_whole() -> None:
    from support.crash.workload import intact

    for size in (1, 12, 100, 5_000):
        text = content_of("label", size)
        assert intact(text)
        assert not intact(text[:-1]) or len(text) < 10
        assert not intact(text + "x")
    assert dataclasses.is_dataclass(Worker)


TELLING = Path(__file__).parent / "telling_process.py"
WRITING = Path(__file__).parent / "writing_process.py"
KILLS_OF_MANY, LIVES_A_STORE = scale(20, 200, daily=2), 10
DSN = "CALIBER_TEST_MANY_DSN"
NO_LIMIT = pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 300)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    settings = {"max_connections": 200, "shared_buffers": "256MB"}
    with open_folder() as folder, LocalServer.start(folder / "server", settings=settings) as started:
        os.environ[DSN] = started.dsn
        with psycopg.connect(started.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        yield started
        del os.environ[DSN]


def on_postgres(schema: str, durability: str) -> dict[str, Any]:
    return {
        "storage__adapter": "postgres",
        "storage__schema_name": schema,
        "storage__durability": durability,
        "storage__pool_max": 6,
    }


TOLD = {"storage__feed_dsn": f"env:{DSN}"}
"""Commits are told: the process that only listens hears every event."""


# --- killed --------------------------------------------------------------------------------------------


class Killed:
    """A writing process, what it was told, and what kills it or its server."""

    def __init__(self, schema: str, rng: random.Random, name: str) -> None:
        self.durability = rng.choice(("commit", "group"))
        overrides = on_postgres(schema, self.durability)
        arguments = [str(rng.random()), self.durability, "4" if self.durability == "group" else "2", name]
        self.process = subprocess.Popen(
            [sys.executable, str(WRITING), f"env:{DSN}", *arguments, json.dumps(overrides)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.lines: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines += self.process.stdout  # type: ignore[arg-type]

    def until_more(self, lines: int) -> None:
        """Return once so many more lines came."""
        wanted = len(self.lines) + lines
        holds_within(lambda: len(self.lines) >= wanted or self.process.poll() is not None, 60)
        if len(self.lines) < wanted:
            self.process.kill()
            raise AssertionError(self.process.communicate()[1].decode())

    def kill(self) -> list[dict[str, Any]]:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self._reader.join(30)
        assert self.process.returncode == -signal.SIGKILL
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        whole = [line for line in self.lines if line.endswith(b"\n")]
        return [entry for entry in map(json.loads, whole) if entry["kind"] != "ready"]


@NO_LIMIT
def test_every_acknowledged_write_survives_killed_clients_and_servers(server: LocalServer) -> None:
    # issue, Done when: 200 rounds of killing server or client
    started = time.monotonic()
    rng = random.Random(seed())
    print(f"seed {seed()}")
    ledger: list[dict[str, Any]] = []
    total = dict.fromkeys(("acknowledged", "client", "server", "commit", "group"), 0)
    schema, lives = "", 0
    while total["client"] + total["server"] < KILLS_OF_MANY:
        if lives % LIVES_A_STORE == 0:
            schema, ledger = f"kill_{lives}", []
            caliber.create(settings_for(f"env:{DSN}", **on_postgres(schema, "commit")))
        lives += 1
        killed = Killed(schema, rng, f"life {lives}")
        killed.until_more(1)
        servers = rng.choice((0, 1, 2, 4)) if lives > 1 else 1
        for _ in range(servers):
            let_run(rng.expovariate(1 / 0.12))
            server.kill()
            let_run(rng.uniform(0, 0.1))
            server.restart()
            killed.until_more(2)  # it goes on without a restart of its own
        let_run(rng.expovariate(1 / 0.12))
        reported = killed.kill()
        ledger += reported
        total["acknowledged"] += len(reported)
        total["client"] += 1
        total["server"] += servers
        total[killed.durability] += 1
        faults = check(settings_for(f"env:{DSN}", **on_postgres(schema, "commit")), ledger)
        assert faults == [], f"in life {lives} of seed {seed()}, {servers} servers, {killed.durability}: {faults[:10]}"
    assert total["acknowledged"] > KILLS_OF_MANY, "nobody got to write"
    record(
        "kill-postgres",
        "A writing process, or its PostgreSQL server, killed with SIGKILL at random moments",
        {
            "seed": seed(),
            "kills": total["client"] + total["server"],
            "servers killed under a client that goes on": total["server"],
            "clients killed, and the store checked": total["client"],
            "clients at durability commit, two threads": total["commit"],
            "clients at durability group, four threads": total["group"],
            "acknowledged writes, all found whole after each killed client": total["acknowledged"],
            "faults": 0,
            "seconds": round(time.monotonic() - started),
        },
    )


# --- told ----------------------------------------------------------------------------------------------


@pytest.mark.prove
@NO_LIMIT
def test_events_of_other_processes(server: LocalServer) -> None:
    # C-242 to C-244, issue 5: every event once, in the order of commits; a gap is told of; what is undone is not heard
    overrides = {**on_postgres("told", "group"), **TOLD}
    caliber.create(settings_for(f"env:{DSN}", **overrides))
    order = json.dumps({"path": f"env:{DSN}", "overrides": overrides})
    tellers = [Child(TELLING, order) for _ in range(3)]
    try:
        assert [teller.answer() for teller in tellers] == ["ready"] * 3
        one, other, listener = tellers
        made: list[tuple[Child, str]] = []
        for at in range(6):  # one after the other: the order of commits is known
            writer = tellers[at % 2]
            made += [(writer, made_id) for made_id in writer.ask("make 2")]
            assert writer.ask("fail") == "refused"
        assert listener.ask(f"until {made[-1][1]}") == [each for _, each in made]
        heard = one.ask(f"until {made[-1][1]}")
        for of in (one, other):  # its own once too, told by itself
            ids = [each for writer, each in made if writer is of]
            assert [each for each in heard if each in ids] == ids
        assert len(heard) == len(made)
        for writer in (one, other):
            writer.send("make 10")
        at_once = [one.answer(), other.answer()]
        for last in (at_once[0][-1], at_once[1][-1]):
            heard = listener.ask(f"until {last}")[len(made) :]
        assert sorted(heard) == sorted(at_once[0] + at_once[1])
        assert [[each for each in heard if each in some] for some in at_once] == at_once
        heard = [each for each in other.ask(f"until {at_once[0][-1]}") if each in (*at_once[0], *at_once[1])]
        assert [[each for each in heard if each in some] for some in at_once] == at_once
        server.restart()
        again = []
        assert "missed" in listener.ask("until missed"), "nobody said that events may have been missed"
        for _ in range(2):
            again += one.ask("make 2")
        found = listener.ask(f"until {again[-1]}")
        assert found[len(made) + 20 :] == ["missed", *again]
    finally:
        for teller in tellers:
            teller.kill()
