"""Many processes use one tenant at the same time; clients and server are killed under them. Source: design section 10.

A second and two kills in ``make test``, 20 in ``make prove``; eight processes for a minute and 200 kills in
``make soak``, recorded in ``docs/evidence/``. Source: issue (PostgreSQL), Done when.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.configs import USER
from support.crash.processes import Child
from support.crash.workload import check, settings_for
from support.evidence import record, scale, seed
from support.folders import open_folder
from support.localserver.server import LocalServer
from support.waits import holds_within, let_run

import caliber

MIXING = Path(__file__).parent / "mixing_process.py"
TELLING = Path(__file__).parent / "telling_process.py"
WRITING = Path(__file__).parent / "writing_process.py"
PROCESSES, SECONDS = scale(2, 8), scale(1, 60)
KILLS, LIVES_A_STORE = scale(20, 200, daily=2), 10
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


# --- together ------------------------------------------------------------------------------------------


class Mix:
    """Processes that write, and one that listens, on one store that was just made."""

    def __init__(self, path: str, overrides: dict[str, Any]) -> None:
        self.settings = settings_for(path, **overrides)
        caliber.create(self.settings)
        with caliber.open(self.settings) as memory:
            trajectory = memory.start_trajectory("shared", initiator=USER)
            scope = memory.current_scope(trajectory.trajectory_id)
            assert scope is not None
            note = memory.add_note(entity="counter", entity_type="t", note_type="fact", content="0", confidence=1)
        self.scope, self.counter = scope.scope_id, note.note_id
        order = {
            "path": path, "seconds": SECONDS, "epoch": time.time(),
            "trajectory": str(trajectory.trajectory_id), "scope": str(scope.scope_id), "counter": str(note.note_id),
        }  # fmt: skip
        self.processes = []
        for at in range(PROCESSES + 1):
            # Half of them share commits among threads; the last one only listens.
            threads = 0 if at == PROCESSES else 1 + at % 2
            durability = {"storage__durability": "group" if at % 2 else "commit"}
            own = {**order, "name": at, "threads": threads, "overrides": {**overrides, **durability}}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(MIXING), json.dumps(own)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line, process.communicate()[1]
        return line

    def _tell(self, word: object) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()

    def run(self) -> tuple[list[dict[str, Any]], dict[str, Any], int, int]:
        """Return the results of each thread, the listener's events, and the counts of transactions and events."""
        for process in self.processes:
            assert self._line(process) == "ready"
        self._tell("go on")
        ends = [json.loads(self._line(process)) for process in self.processes]
        assert [failure for end in ends for failure in end[2]] == []
        writers = [writer for end in ends for writer in end[0]]
        self._tell(sum(len(writer["made"]) for writer in writers))
        last = [json.loads(self._line(process)) for process in self.processes]
        assert [faults for faults, _ in last] == [[]] * len(last), "memory of a process differs from the store"
        for process in self.processes:
            _, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
        told = last[-1][1]
        if told is not None:
            assert_all_told(told, writers)
        own = sum(end[4] for end in ends[:-1])
        return writers, {**ends[-1][1], "told": told}, sum(end[3] for end in ends), own

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def assert_all_told(told: list[str], writers: list[dict[str, Any]]) -> None:
    """Assert that a process that made none of them heard of each event once, those of a thread in their order."""
    maker = {made: at for at, writer in enumerate(writers) for made in writer["made"]}
    assert len(told) == len(maker), "an event was heard twice, or never"
    heard: list[list[str]] = [[] for _ in writers]
    for one in told:
        heard[maker[one]].append(one)
    assert heard == [writer["made"] for writer in writers], "events were heard in another order"


def assert_nothing_lost(mix: Mix, writers: list[dict[str, Any]]) -> dict[str, int]:
    keys: dict[str, list[str]] = {}
    for writer in writers:
        for key, ids in writer["keys"].items():
            assert keys.setdefault(key, ids) == ids, "two records under one idempotency key"
    appended = {text: (number, sequence) for writer in writers for number, sequence, text in writer["appended"]}
    assert len(appended) == sum(len(writer["appended"]) for writer in writers)
    counted = sum(writer["counted"] for writer in writers)
    kept = {one for writer in writers for one in writer["kept"]}
    tokens = [token for writer in writers for token in writer["tokens"]]
    assert len(set(tokens)) == len(tokens), "two holders were given one fencing token"
    with caliber.open(mix.settings) as memory:
        stored = memory.storage.turns.list_by_scope(mix.scope)
        assert [turn.sequence for turn in stored] == list(range(len(appended) + len(keys)))
        assert [turn.turn_number for turn in stored] == list(range(len(stored)))
        found = {turn.text: (turn.turn_number, turn.sequence) for turn in stored if not turn.idempotency_key}
        assert found == appended
        assert {str(turn.turn_id) for turn in stored if turn.idempotency_key} == {ids[0] for ids in keys.values()}
        notes = [note for note in memory.storage.notes.all() if note.idempotency_key]
        assert {str(note.note_id) for note in notes} == {ids[1] for ids in keys.values()}
        assert len(notes) == len(keys)
        counter = memory.get(mix.counter)
        assert (counter.content, counter.version) == (str(counted), 1 + counted), "an update was lost"
        assert {str(artifact.artifact_id) for artifact in memory.storage.artifacts.all()} == kept
        assert memory.admin.verify() == []
    raced = sum(sum(key in writer["keys"] for writer in writers) > 1 for key in keys)
    return {"turns": len(appended), "counted": counted, "keys": len(keys), "raced": raced, "tokens": len(tokens)}


def prove(name: str, what: str, mix: Mix) -> None:
    try:
        writers, listened, retried, heard = mix.run()
        figures = assert_nothing_lost(mix, writers)
    finally:
        mix.close()
    assert all(len(writer["appended"]) > 2 for writer in writers), "one hardly got to write"
    assert figures["raced"] > 0, "no two processes wrote under one key"
    assert listened["seen"] > 1, "the listener heard of nobody"
    told = {}
    if listened["told"] is not None:
        assert listened["told"], "nobody told of an event"
        told = {"events of others heard by a process that only listens, each once and in order": len(listened["told"])}
    record(
        name,
        f"Many processes on {what}",
        {
            "writing processes": PROCESSES,
            "threads that write": len(writers),
            "seconds": SECONDS,
            "turns appended to one scope, numbered without gaps": figures["turns"],
            "conditional updates of one record, none lost": figures["counted"],
            "of them told of a lost race and done again": sum(writer["lost_races"] for writer in writers),
            "idempotency keys, each with one record": figures["keys"],
            "of them written by several processes": figures["raced"],
            "fencing tokens, each given once": figures["tokens"],
            "records deleted again": sum(len(writer["deleted"]) for writer in writers),
            "windows assembled at the latest state": sum(writer["windows"] for writer in writers),
            "transactions tried again inside": retried,
            "events heard by each process of its own commits, each once and in order": heard,
            **told,
            "looks of a process that only listens, never backwards": listened["looks"],
            "mirrors that differ from the store at the end": 0,
        },
    )


@NO_LIMIT
def test_processes_on_one_tenant(server: LocalServer) -> None:
    # issue, Done when: no lost update, no duplicate, mirrors equal, every event once and in order
    overrides = {**on_postgres("many", "commit"), **TOLD}
    prove("many-processes-postgres", "one PostgreSQL tenant", Mix(f"env:{DSN}", overrides))


@pytest.mark.soak
@NO_LIMIT
def test_processes_on_one_file(tmp_path: Path) -> None:
    overrides = {"storage__busy_timeout_ms": 60_000}
    prove("many-processes-sqlite", "one SQLite file", Mix(str(tmp_path / "store.db"), overrides))


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
            assert pipe is not None
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
    while total["client"] + total["server"] < KILLS:
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
    assert total["acknowledged"] > KILLS, "nobody got to write"
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
