"""Exceptions of signal handlers reach the main thread's caller from every line, and the handle goes on.

Source: design section 4.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.interrupted import EveryLineOnce, in_files

import caliber


def _write(memory: Any, scope: Any, _: Path) -> None:
    memory.append_turn(scope, role="user", content="turn")
    with caliber.deadline(60_000):
        memory.search("turn", consistency="latest")


def _backup(memory: Any, _: Any, folder: Path) -> None:
    memory.admin.backup(folder / "archive.zip", replace=True)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a connection that was just taken
@pytest.mark.parametrize(
    ("work", "files"),
    [
        (_write, ("/backends/", "/events/", "resident/memory.py", "storage/write/group.py")),
        (_backup, ("dump/archive.py", "admin/backup.py")),
    ],
    ids=["write", "backup"],
)
def test_a_handlers_exception_reaches_the_caller_from_every_line(
    backend: Any, work: Callable[[Any, Any, Path], None], files: tuple[str, ...], tmp_path: Path
) -> None:
    """No clause takes it for an error of the disk, the network or a library, and drops or translates it."""
    memory = backend.open(write_behind__trace_enabled=False, resident__feed_poll_ms=0)
    scope = memory.current_scope(memory.start_trajectory("goal", initiator=USER).trajectory_id).scope_id
    lines, lost = EveryLineOnce(in_files(*files)).lost(lambda: work(memory, scope, tmp_path))
    gc.collect()  # such a connection says here that it was left open, and not in a test that comes later
    assert not lost, "\n".join(lost)
    assert lines > 20
    assert memory.admin.verify() == []
