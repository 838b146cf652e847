"""A writing process is killed at random moments: what it was told is stored is there, whole, and nothing is half there.

One kill in ``make test``, 30 in ``make prove``, 300 in ``make soak``, recorded in ``docs/evidence/``.
Source: design section 10.
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
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.crash.workload import Worker, check, content_of, settings_for
from support.evidence import record, scale, seed
from support.waits import let_run

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
