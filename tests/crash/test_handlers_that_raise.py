"""A signal handler raises in the main thread, which writes with others: they go on, nothing is lost or doubled.

Source: design section 4.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.interrupted import EveryLineOnce, in_files

import caliber

TESTS = Path(__file__).resolve().parents[1]
CHILD = r"""
import collections, os, signal, sys, threading, uuid, caliber
import caliber
from caliber.model import EntityRef, EntityType
path, kind, tests = sys.argv[1:]
sys.path.insert(0, tests)
from support.inspection import inspect
class Late(Exception): pass
raised = []
def handler(*_):
    raised.append(1)
    if kind == "exit": sys.exit(0)
    raise Late
signal.signal(signal.SIGTERM, handler)
config = caliber.profiles.reference(path, **{"storage.durability": "group"})
caliber.create(config)
memory = caliber.open(config, principal=caliber.Principal.admin())
task = memory.start_trajectory("g", initiator=EntityRef(EntityType.AGENT, uuid.uuid4())).trajectory_id
scope = memory.current_scope(task).scope_id
said, ends, going = collections.Counter(), [], True
def write(name):
    at = 0
    try:
        while going:
            memory.append_turn(scope, role="user", content=f"{name} {at}")
            said[f"{name} {at}"] += 1
            at += 1
    except BaseException as error:
        if not (isinstance(error, caliber.CaliberError) and error.context.get("reason") == "closed"):
            ends.append(repr(error))
threads = [threading.Thread(target=write, args=(f"t{n}",), daemon=True) for n in range(3)]
for thread in threads: thread.start()
at = caught = 0
told = -1
while caught < 8:
    at += 1
    try:
        if told < caught:  # in here: the signal that this asks for may come at once
            told = caught
            print("now", flush=True)
        memory.append_turn(scope, role="user", content=f"main {at}")
        said[f"main {at}"] += 1
    except Late:
        caught += 1
        assert caught == len(raised), "what a handler raised was swallowed"
going = False
for thread in threads: thread.join(30)
assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
assert not ends, ends
with inspect(memory).store.read() as session:
    rows = session.run(inspect(memory).store.plans["turn"].page, (-1, 1_000_000))
codec = inspect(memory).store.plans["turn"].codec
place = codec.index("content")
stored = collections.Counter(str(codec.decode(row).text) for row in rows)
assert set(stored.values()) == {1}, "doubled"
assert set(said) <= set(stored), "lost"
assert not memory.admin.verify()
memory.close()
print("sound", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("kind", ["late", "exit"])
def test_what_a_handler_raises_is_the_main_threads_alone(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "a.db"), kind, str(TESTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        # One at a time: two that come at once are one to the process.
        for line in child.stdout:
            if line.strip() == "sound":
                break
            child.send_signal(signal.SIGTERM)
        try:
            _, errors = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    assert child.returncode == 0, errors
    assert (line.strip() == "sound") == (kind == "late"), errors


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
