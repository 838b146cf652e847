"""A writing process is killed while a store has full text: index and texts say the same, also while it is being made.

Ten kills of SQLite in ``make prove`` and four of PostgreSQL, ten times as many in ``make soak``.
Source: design section 10; docs/decisions/0081.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.crash.workload import settings_for
from support.evidence import scale, seed
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer
from support.waits import let_run

import caliber
from caliber.admin.checking import check_full_text, drop_full_text, rebuild_full_text
from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.model import SystemClock
from caliber.model.errors import SchemaMismatch
from caliber.search.in_database.full_text import WordIndexer
from caliber.storage.sql.full_text import FullTextState

pytestmark = pytest.mark.prove

CHILD = Path(__file__).parent / "writing_process.py"
KILLS = {"sqlite": scale(10, 100), "postgres": scale(4, 40)}
DSN = "CALIBER_TEST_TEXT_DSN"
POSTGRES = {"storage__adapter": "postgres", "storage__schema_name": "killed", "storage__pool_max": 6}


@pytest.fixture(params=KILLS)
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """The path of a store, and its knobs."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.db"), {}
        return
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False) as server:
        monkeypatch.setenv(DSN, server.dsn)
        yield f"env:{DSN}", POSTGRES


def faults_of(settings: CaliberConfig) -> tuple[list[str], FullTextState | None]:
    store = backend(settings.storage.adapter).open_store(settings, clock_us=SystemClock().now_us)
    try:
        return check_full_text(store, settings), store.full_text.state()
    finally:
        store.close()


def test_full_text_says_what_the_texts_say_after_every_kill(place: tuple[str, dict[str, Any]]) -> None:
    rng = random.Random(seed())
    print(f"seed {seed()}")
    path, knobs = place
    settings = settings_for(path, **knobs)
    caliber.create(settings)
    kills = KILLS[settings.storage.adapter]
    indexed = 0
    for kill in range(kills):
        orders = json.dumps({**knobs, "storage__durability": rng.choice(("commit", "group"))})
        process = subprocess.Popen(
            [sys.executable, str(CHILD), path, str(rng.random()), "commit", "3", f"kill {kill}", orders],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for _ in range(rng.randrange(20, 60)):
                assert process.stdout.readline()
            if kill % 8 == 5:
                drop_full_text(settings)
            if kill % 2 == 0 or kill % 8 == 5:  # while it writes: it finds out by itself
                indexed = rebuild_full_text(settings)
            let_run(rng.uniform(0, 0.3))
        finally:
            process.send_signal(signal.SIGKILL)
            process.stdout.read()
            process.wait(30)
            process.stdout.close()
        faults, state = faults_of(settings)
        assert state is not None, kill
        assert state.complete, kill
        assert faults == [], (kill, orders, faults[:5])
    with caliber.open(settings_for(path, search__mode="backend", **knobs)) as memory:
        assert memory.search("kill", kinds=["turn"]).hits
        assert memory.storage.turns.count() > kills
        assert inspect(memory).store.full_text.rebuild(WordIndexer("english")) >= indexed > 0


def test_kill_while_full_text_is_made_leaves_what_there_was(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    caliber.create(settings_for(path))
    with caliber.open(settings_for(path, embedding__embed__note="off")) as memory:
        for at in range(30):
            memory.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {at}", confidence=0.5)
    code = (
        "import sys, os, signal; sys.path.insert(0, sys.argv[2])\n"
        "from support.crash.workload import settings_for\n"
        "from caliber.admin.checking import rebuild_full_text\n"
        "settings = settings_for(sys.argv[1])\n"
        "rebuild_full_text(settings, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    tests = str(Path(__file__).resolve().parents[1])
    for whole in (None, FullTextState("english/2", True, {})):
        assert subprocess.run([sys.executable, "-c", code, path, tests], check=False).returncode == -signal.SIGKILL
        assert faults_of(settings_for(path)) == ([], whole)
        if whole is None:
            with pytest.raises(SchemaMismatch, match="rebuild-search"):
                caliber.open(settings_for(path, search__mode="backend"))
            assert rebuild_full_text(settings_for(path)) == 30
