"""Calls that are interrupted at any line leave nothing behind that stops the others. Source: design section 10."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.drawn import needs
from support.inspection import inspect, replaced, session_of
from support.interrupted import every_line, in_files
from support.threads import at_once
from support.waits import until

from caliber.schema.relations import SCOPE, TRAJECTORY, USAGE

# Who is interrupted while taking a connection drops it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_read_of_the_store_that_is_interrupted_leaves_no_transaction_open(backend: Any) -> None:
    store = backend.store()
    files = in_files(
        "sqlite/store.py", "sqlite/connecting/connection.py", "postgres/store.py", "postgres/connecting/pool.py"
    )

    def read() -> int:
        with store.read() as session:
            return len(session.run(store.plans["trajectory"].count, ()))

    assert read() == 1
    for lines in every_line(files):
        with lines.counted():
            read()
        assert read() == 1


@needs("reopen")
def test_a_close_that_is_interrupted_goes_on_when_it_is_repeated(backend: Any) -> None:
    files = in_files("/engine/", "/store.py", "postgres/connecting/pool.py")
    at = 0
    for at, lines in enumerate(every_line(files, step=7), 1):
        memory = backend.open(write_behind__flush_interval_ms=60_000)
        note = memory.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {at}", confidence=0.5)
        memory.get(note.note_id)
        with lines.counted():
            memory.close()
        memory.close()
        with contextlib.closing(backend.store()) as store, store.read() as session:
            assert session.run(store.plans[USAGE.name].count, ())[0][0] == at, "a use was lost"
        assert not [thread.name for thread in threading.enumerate() if thread.name == "caliber-behind"]
    assert at > 5


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # in SQLite no row is locked by itself
def test_the_task_of_a_scope_is_locked_before_the_scope(backend: Any) -> None:
    """Appending locks them in this order: work that is done again must not wait in a circle with it."""
    memory = backend.open()
    task = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    plans = inspect(memory).store.plans
    asked: list[Any] = []

    def work(uow: Any) -> None:
        run = session_of(uow).run
        uow.lock_reads()
        recording = type("Recording", (), {"run": lambda _, plan, key: asked.append(plan) or run(plan, key)})()
        with replaced(uow, "session", recording):
            assert uow.find(SCOPE, scope.scope_id.bytes) == scope

    inspect(memory).store.write(work)
    locks = [plans[TRAJECTORY.name].lock, plans[SCOPE.name].lock]
    assert [plan for plan in asked if plan in locks] == locks


def test_turns_and_artifacts_are_written_side_by_side(backend: Any) -> None:
    memory = backend.open(embedding_provider=None, embedding__embed__turn="off", embedding__embed__artifact="off")
    scope = memory.current_scope(memory.start_trajectory("goal", initiator=USER).trajectory_id).scope_id

    def write(name: int) -> None:
        for at in range(10):
            text = f"{name}.{at}"
            memory.append_turn(scope, role="user", content=text, idempotency_key=text)
            memory.create_artifact(scope, artifact_type="fact", content=text, extraction_method="explicit")

    at_once([partial(write, name) for name in range(4)])
    assert len(memory.storage.turns.list_by_scope(scope)) == 40


def test_a_write_that_stands_does_not_raise_as_the_handle_closes(backend: Any) -> None:
    memory = backend.open(embedding_provider=None, embedding__embed__note="off")
    memory.add_note(entity="e", entity_type="t", note_type="fact", content="before", confidence=0.5)
    heard: list[str] = []
    memory.events.subscribe(lambda event: heard.append(event.event_type))
    inspect(memory).behind.close(10_000)  # as ``close`` does first, while another thread writes
    note = memory.add_note(entity="e", entity_type="t", note_type="fact", content="beside", confidence=0.5)
    assert memory.storage.notes.get(note.note_id) is not None
    assert heard == ["note_create"]


def test_memory_has_the_last_state_of_a_row_that_a_shared_transaction_changed_twice(backend: Any) -> None:
    """The artifact is written while the turn before it in line is still being prepared: the turn comes last."""
    off = {f"embedding__embed__{kind}": "off" for kind in ("turn", "artifact")}
    memory = backend.open(storage__durability="group", embedding_provider=None, **off)
    scope = memory.current_scope(memory.start_trajectory("goal", initiator=USER).trajectory_id).scope_id
    store = inspect(memory).store
    leads, go_on = threading.Event(), threading.Event()

    def lead(_: Any) -> None:
        leads.set()
        go_on.wait(30)

    works = [
        lambda: store.write(lead),
        lambda: memory.append_turn(scope, role="user", content="turn"),
        lambda: memory.create_artifact(scope, artifact_type="fact", content="artifact", extraction_method="explicit"),
    ]
    threads = [threading.Thread(target=work) for work in works]
    for waiting, thread in enumerate(threads):
        thread.start()
        assert leads.wait(30)
        until(lambda waiting=waiting: inspect(store).waiting >= waiting)  # type: ignore[misc]
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert memory.admin.verify() == []


_FORK = """
import os, signal, sys, threading, time, caliber
from caliber.engine import engine
folder = sys.argv[1]
sys.path.insert(0, folder)
begun = threading.Event()
sys.begun = begun
thread = threading.Thread(target=lambda: __import__("slow_to_import"))
thread.start()
begun.wait()
process = os.fork()
if not process:
    signal.alarm(30)
    import slow_to_import
    os._exit(0 if slow_to_import.whole else 1)
thread.join()
import json.tool  # imports go on in the parent
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_during_an_import_of_another_thread_imports(tmp_path: Path) -> None:
    module = "import sys, time\nsys.begun.set()\ntime.sleep(0.5)\nwhole = True\n"
    (tmp_path / "slow_to_import.py").write_text(module)
    command = [sys.executable, "-W", "ignore", "-c", _FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
