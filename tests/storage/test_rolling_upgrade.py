"""Two versions of CALIBER use one store at once while it is migrated under them. Source: issue 5, item 10; design 3.

This process is the old version. The new one, of which there are two processes, knows a schema version more: a column
and a table (expand), and later steps that old writers, then old readers, are not to see (contract).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER
from support.crash.processes import Child
from support.drawn import needs
from support.threads import begin

import caliber
from caliber.model.errors import SchemaMismatch, Unavailable
from caliber.storage.migrate.migrations import SCHEMA_VERSION

CHILD = Path(__file__).parent / "upgrading_process.py"
QUIET = {
    "embedding_provider": None,
    # What reads leave behind could not be written any more in the end, which closing would say.
    "write_behind__trace_enabled": False,
    "write_behind__usage_enabled": False,
}


@pytest.fixture(scope="module")
def started(postgres: str) -> Iterator[list[Child]]:
    """Two processes of the next version, for all databases: starting one takes as long as all it does here."""
    processes = [Child(CHILD), Child(CHILD)]
    for process in processes:
        assert process.answer() == "ready"
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
@needs("sharing")
def newer(backend: Any, started: list[Child]) -> Iterator[list[Child]]:
    backend.create(backend.config())
    table = f'"{backend.config().storage.schema_name}".note' if backend.adapter == "postgres" else "note"
    for process in started:
        process.ask("use", [backend.path, {**backend.knobs, **QUIET}, table])
    yield started
    for process in started:
        process.ask("close")


def contents(memory: caliber.Caliber) -> list[str]:
    return sorted(hit.content for hit in memory.search("", kinds=["note"], limit=500, consistency="latest").hits)


def test_old_and_new_use_a_store_that_is_migrated_under_them(backend: Any, newer: list[Child]) -> None:
    # issue 5, item 10; Bad input: two migrators at once
    old = backend.open(**QUIET)
    task = old.start_trajectory("goal", initiator=USER)
    scope = old.current_scope(task.trajectory_id)
    failed: list[BaseException] = []
    stop, begun = threading.Event(), threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        try:
            while not stop.is_set():
                old.append_turn(scope.scope_id, role="user", content=f"turn {written}")
                written += 1
                begun.set()
                stop.wait(0.005)  # there is one machine for all
        except BaseException as error:
            failed.append(error)
            begun.set()

    writer = begin(write)
    assert begun.wait(30)

    # Expand: both migrate at the same moment, while the old version writes.
    for process in newer:
        process.send("migrate")
    assert sorted(process.answer() for process in newer) == [[], [SCHEMA_VERSION + 1]]
    for process in newer:
        assert process.ask("open") is None
    kept = [process.ask(f"write new{at} 5") for at, process in enumerate(newer)]
    mine = old.add_note(entity="e", entity_type="t", note_type="fact", content="old 0", confidence=0.5)
    stop.set()
    writer.result(30)
    assert failed == []
    expected = sorted(["old 0", *(f"new{at} {number}" for at in range(2) for number in range(5))])
    assert contents(old) == expected
    assert newer[0].ask("notes") == expected

    # What the new version keeps in its column stays when the old one changes the row.
    assert newer[0].ask("mood") is None
    old.storage.notes.update(mine.note_id, content="old 1")
    for each in kept:
        old.storage.notes.update(each, confidence=0.25)
    assert newer[1].ask("moods") == ["calm"] * 11
    assert old.storage.bulk_read("note").read_all().num_rows == 11
    assert old.admin.verify() == []
    assert newer[0].ask("verify") == []
    with caliber.open(backend.config(**QUIET)) as another:
        assert another.storage.turns.count() == written, "an old program also opens what is expanded"

    # Contract, writers: the old version is refused from the next write on, and still reads.
    assert newer[0].ask("contract") == [SCHEMA_VERSION + 2]
    for call in (
        lambda: old.append_turn(scope.scope_id, role="user", content="too late"),
        lambda: old.agents.locks.acquire("resource", holder="old"),
        lambda: old.storage.bulk_load("note", old.storage.bulk_read("note").read_all(), on_existing="skip"),
        lambda: caliber.open(backend.config(**QUIET)),
    ):
        with pytest.raises(SchemaMismatch, match="upgrade the package caliber-memory") as caught:
            call()
        assert not caught.value.retryable
    newer[0].ask("write later 2")
    assert len(contents(old)) == 13
    assert old.storage.turns.count() == written, "nothing of it was written"

    # Contract, readers: it reads no more what it might not understand.
    assert newer[0].ask("contract") == [SCHEMA_VERSION + 3]
    newer[0].ask("write last 1")
    for read in (lambda: contents(old), lambda: old.storage.bulk_read("note").read_all(), old.storage.notes.count):
        with pytest.raises(SchemaMismatch, match="upgrade the package caliber-memory"):
            read()
    assert newer[0].ask("verify") == []
    assert len(newer[1].ask("notes")) == 14
    # An error that it noted behind meanwhile, such as its feed being refused, cannot be written any more.
    with contextlib.suppress(Unavailable):
        old.close()
