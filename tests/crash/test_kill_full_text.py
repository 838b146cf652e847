"""A writing process is killed while a store has full text: index and texts say the same, also while it is being made.

Ten kills in ``make prove``, 100 in ``make soak``. Source: design section 10; docs/decisions/0081.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from support.crash.workload import settings_for
from support.evidence import scale, seed
from support.waits import let_run

import caliber
from caliber.admin.full_text import check_full_text, rebuild_full_text
from caliber.backends import backend
from caliber.model import SystemClock
from caliber.model.errors import SchemaMismatch
from caliber.storage.sql.full_text import FullTextState

pytestmark = pytest.mark.prove

CHILD = Path(__file__).parent / "writing_process.py"
KILLS = scale(10, 100)


def faults_of(path: str) -> tuple[list[str], FullTextState | None]:
    settings = settings_for(path)
    store = backend("sqlite").open_store(settings, clock_us=SystemClock().now_us)
    try:
        return check_full_text(store, settings), store.full_text.state()
    finally:
        store.close()


def test_full_text_says_what_the_texts_say_after_every_kill(tmp_path: Path) -> None:
    rng = random.Random(seed())
    print(f"seed {seed()}")
    path = str(tmp_path / "store.db")
    caliber.create(settings_for(path))
    for kill in range(KILLS):
        durability = rng.choice(("commit", "group"))
        process = subprocess.Popen(
            [sys.executable, str(CHILD), path, str(rng.random()), durability, "2", f"kill {kill}"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            process.stdout.readline()
            if kill % 2 == 0:  # made while the other process writes, which finds out by itself
                let_run(rng.uniform(0.05, 0.2))
                rebuild_full_text(settings_for(path))
            let_run(rng.uniform(0.05, 0.3))
        finally:
            process.send_signal(signal.SIGKILL)
            process.stdout.read()
            process.wait(30)
            process.stdout.close()
        faults, state = faults_of(path)
        assert state is not None, kill
        assert state.complete, kill
        assert faults == [], (kill, durability, faults[:5])
    texts = apsw.Connection(path).execute("SELECT count(*) FROM turn").get
    indexed = apsw.Connection(path).execute("SELECT count(*) FROM text_turn_docsize").get
    assert texts == indexed > KILLS
    with caliber.open(settings_for(path, search__mode="backend")) as memory:
        assert memory.search("kill", kinds=["turn"]).hits


def test_kill_while_full_text_is_made_leaves_what_there_was(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    caliber.create(settings_for(path))
    with caliber.open(settings_for(path, embedding__embed__note="off")) as memory:
        for at in range(30):
            memory.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {at}", confidence=0.5)
    code = (
        "import sys, os, signal; sys.path.insert(0, sys.argv[2])\n"
        "from support.crash.workload import settings_for\n"
        "from caliber.admin.full_text import rebuild_full_text\n"
        "settings = settings_for(sys.argv[1])\n"
        "rebuild_full_text(settings, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    tests = str(Path(__file__).resolve().parents[1])
    for whole in (None, FullTextState("english/2", True, {})):
        assert subprocess.run([sys.executable, "-c", code, path, tests], check=False).returncode == -signal.SIGKILL
        assert faults_of(path) == ([], whole)
        if whole is None:
            with pytest.raises(SchemaMismatch, match="rebuild-search"):
                caliber.open(settings_for(path, search__mode="backend"))
            assert rebuild_full_text(settings_for(path)) == 30
