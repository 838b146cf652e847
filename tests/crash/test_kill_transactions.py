"""A process is killed before each statement of a transaction of five kinds of writes: all of them are there, or none.

Every fourth statement in ``make prove``, each one in ``make soak``. Source: C-242; design section 10.
"""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.crash.processes import Forked, store_of
from support.crash.transacting import KNOBS, work, write, written
from support.databases import BACKENDS
from support.evidence import record, scale, seed

pytestmark = pytest.mark.prove

EACH = 5 - scale(1, 4)


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 300)
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_a_transaction_is_there_whole_or_not_at_all(name: str, tmp_path: Path, request: Any) -> None:
    if name == "postgres":
        request.getfixturevalue("postgres")
    with closing(BACKENDS[name](tmp_path)) as backend:
        backend.create(backend.config(**KNOBS))
        memory: Any = backend.open(**KNOBS)
        scope = memory.open_scope(memory.start_trajectory("t", user="me").trajectory_id).scope_id
        write(memory, "before", scope)
        assert written(memory, "before") == [True] * 5
        kills, at, statements = 0, seed() % EACH, 0
        while not statements:
            process = Forked(work, *store_of(backend), f"kill {at}", scope, at)
            process.process.join(60)
            if process.process.exitcode == 0:
                statements = process.reports.recv()
            else:
                assert process.process.exitcode == -signal.SIGKILL
                kills += 1
            found = _after(backend, f"kill {at}")
            assert found == [bool(statements)] * 5, f"at statement {at}: {found}"
            at += EACH
    assert statements > 10
    record(
        f"kill-transactions-{name}",
        "A process killed before statements of a transaction of five kinds of writes",
        {"seed": seed(), "statements": statements, "kills": kills, "faults": 0},
    )


def _after(backend: Any, label: str) -> list[bool]:
    memory = backend.open(**KNOBS)
    try:
        return written(memory, label)
    finally:
        memory.close()
