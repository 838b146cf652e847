"""A process is killed at moments of a transaction of five kinds of writes: all of them are there, or none.

Before and after each statement: about 30 moments in ``make prove``, each one in ``make soak``. Source: C-242; design
section 10.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.crash.processes import Forked, store_of
from support.crash.transacting import KNOBS, WRITES, spare, work, write, written
from support.databases import BACKENDS, DSN
from support.evidence import record, scale, seed

pytestmark = pytest.mark.prove

EACH = scale(18, 1)


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 300)
@pytest.mark.parametrize("mode", ["resident", "backend"])
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_a_transaction_is_there_whole_or_not_at_all(name: str, mode: str, tmp_path: Path, request: Any) -> None:
    if name == "postgres":
        request.getfixturevalue("postgres")
    knobs = {**KNOBS, "search__mode": mode}
    with closing(BACKENDS[name](tmp_path)) as backend:
        path, settings, dsn = store_of(backend)
        with backend.open(**knobs) as memory:
            scope = memory.open_scope(memory.start_trajectory("t", user="me").trajectory_id).scope_id
            spare(memory)
            write(memory, "before", scope)
            assert written(memory, "before") == [True] * len(WRITES)
            spare(memory)
        outcomes: dict[int, list[bool]] = {}
        at, moments = seed() % EACH, 0
        while not moments:
            process = Forked(work, path, settings | knobs, dsn, f"kill {at}", scope, at)
            process.process.join(60)
            if process.process.exitcode == 0:
                moments = process.reports.recv()
            else:
                assert process.process.exitcode == -signal.SIGKILL
            if name == "postgres":  # the server may still be at the transaction of the dead process
                with psycopg.connect(os.environ[DSN]) as connection:
                    connection.execute(f"LOCK TABLE {backend.qualified('scope')} IN ACCESS EXCLUSIVE MODE")
            with backend.open(**knobs) as memory:
                outcomes[at] = written(memory, f"kill {at}")
                spare(memory)
            at += EACH
    assert [at for at, found in outcomes.items() if any(found) != all(found)] == [], f"of {WRITES}"
    whole = [all(found) for found in outcomes.values()]
    assert whole == sorted(whole), "a kill before the commit left something, or one after it nothing"
    assert whole[-1]
    assert whole.count(False) > len(whole) // 2
    assert moments > 40
    record(
        f"kill-transactions-{name}-{mode}",
        "A process killed before and after statements of a transaction of five kinds of writes",
        {"seed": seed(), "moments": moments, "kills": len(whole) - 1, "faults": 0},
    )
