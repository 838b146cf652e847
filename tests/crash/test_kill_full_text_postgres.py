"""Programs that write to PostgreSQL are killed while full text is made: index and texts say the same.

Four kills in ``make prove``, 40 in ``make soak``. Source: design section 10; docs/decisions/0081.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.crash.workload import settings_for
from support.evidence import scale, seed
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer
from support.waits import let_run

import caliber
from caliber.admin.full_text import check_full_text, drop_full_text, rebuild_full_text
from caliber.search.in_database.full_text import WordIndexer

pytestmark = pytest.mark.prove

CHILD = Path(__file__).parent / "writing_process.py"
KILLS = scale(4, 40)
DSN = "CALIBER_TEST_TEXT_DSN"
STORE = {"storage__adapter": "postgres", "storage__schema_name": "killed", "storage__pool_max": 6}


@pytest.fixture
def dsn(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False) as server:
        monkeypatch.setenv(DSN, server.dsn)
        yield f"env:{DSN}"


def test_full_text_says_what_the_texts_say_after_every_kill(dsn: str) -> None:
    rng = random.Random(seed())
    print(f"seed {seed()}")
    settings = settings_for(dsn, **STORE)
    caliber.create(settings)
    indexed = 0
    for kill in range(KILLS):
        orders = json.dumps({**STORE, "storage__durability": rng.choice(("commit", "group"))})
        process = subprocess.Popen(
            [sys.executable, str(CHILD), dsn, str(rng.random()), "commit", "3", f"kill {kill}", orders],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            for _ in range(rng.randrange(20, 60)):
                assert process.stdout.readline()
            if kill % 8 == 5:
                drop_full_text(settings)
            if kill % 4 == 0 or kill % 8 == 5:  # while it writes: it finds out by itself
                indexed = rebuild_full_text(settings)
            let_run(rng.uniform(0, 0.3))
        finally:
            process.send_signal(signal.SIGKILL)
            process.stdout.read()
            process.wait(30)
            process.stdout.close()
        with caliber.open(settings) as memory:
            store = inspect(memory).store
            state = store.full_text.state()
            assert state is not None, kill
            assert state.complete, kill
            faults = check_full_text(store, settings)
            assert faults == [], (kill, orders, faults[:5])
    with caliber.open(settings_for(dsn, search__mode="backend", **STORE)) as memory:
        assert memory.search("kill", kinds=["turn"]).hits
        assert inspect(memory).store.full_text.rebuild(WordIndexer("english")) >= indexed > 0
