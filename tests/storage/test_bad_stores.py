"""Bad stores and bad names, on both databases: refused with an error that says what to do, and nothing touched.

Two versions of CALIBER use one store at once while it is migrated under them. The process of the tests is the old
version. The new one, of which there are two processes, knows a schema version more: a column and a table (expand), and
later steps that old writers, then old readers, are not to see (contract).

Source: issue 5, Bad input and faults, and item 10; design sections 3 and 10.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from contract.entities import plain
from support.configs import USER, config
from support.crash.processes import Child
from support.drawn import needs
from support.inspection import inspect
from support.threads import begin

import caliber
from caliber.api.opening import plan_migration
from caliber.model.errors import InvalidValue, MultipleErrors, SchemaMismatch, Unavailable
from caliber.schema.relations import TRAJECTORY
from caliber.storage.migrate import migrations
from caliber.storage.migrate.migrations import BASELINE, MIGRATIONS, SCHEMA_VERSION

NEXT = SCHEMA_VERSION + 1
DEVELOPMENT = (
    "UPDATE schema_migration SET name = 'baseline', schema_version = 10, min_reader_version = 10,"
    " min_writer_version = 10"
)
"""Makes a store one of before the first release, whose schema versions counted from other schemas."""
REFUSED = "was made by a development version of CALIBER.* create another store"


def spoiled(backend: Any, statement: str) -> Any:
    """Return the configuration of a store that a statement was run on, behind everybody's back."""
    memory = backend.open()
    memory.start_trajectory("goal", initiator=USER)
    memory.flush()
    backend.tamper(memory, statement)
    memory.close()
    if backend.adapter == "postgres" and statement.startswith("UPDATE"):  # its schema serves the next test too
        step = MIGRATIONS[SCHEMA_VERSION]
        restored = (
            f"UPDATE schema_migration SET name = '{BASELINE}', schema_version = {SCHEMA_VERSION},"
            f" min_reader_version = {step.min_reader_version}, min_writer_version = {step.min_writer_version}"
        )
        backend.closing.append(lambda: backend.tamper(memory, restored))
    return backend.config()


# --- schemas of other versions ------------------------------------------------------------------------


@needs("reopen")
def test_store_of_a_newer_version_asks_for_an_upgrade(backend: Any) -> None:
    # issue, Bad input: schema of another version
    settings = spoiled(backend, f"UPDATE schema_migration SET schema_version = {NEXT}, min_writer_version = {NEXT}")
    for call in (caliber.open, lambda config: caliber.create(config, exist_ok=True)):
        with pytest.raises(SchemaMismatch, match="upgrade the package caliber-memory") as caught:
            call(settings)
        assert not caught.value.retryable


@needs("reopen")
def test_newer_store_that_still_lets_us_write_is_opened(backend: Any) -> None:
    settings = spoiled(backend, f"UPDATE schema_migration SET schema_version = {NEXT}")
    with caliber.open(settings) as memory:
        memory.start_trajectory("another", initiator=USER)
        assert memory.storage.trajectories.count() == 2
        assert memory.admin.verify() == []


@needs("reopen")
def test_store_of_an_older_version_says_how_to_migrate(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = spoiled(backend, f"UPDATE schema_migration SET schema_version = {SCHEMA_VERSION}")
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", NEXT)
    with pytest.raises(SchemaMismatch, match="caliber db migrate") as caught:
        caliber.open(settings)
    assert not caught.value.retryable


@needs("reopen")
def test_store_of_a_development_version_is_refused(backend: Any) -> None:
    # issue 41, Bad input
    settings = spoiled(backend, DEVELOPMENT)
    for call in (caliber.open, lambda config: caliber.create(config, exist_ok=True), caliber.migrate, plan_migration):
        with pytest.raises(SchemaMismatch, match=REFUSED) as caught:
            call(settings)
        assert "migrate`" not in caught.value.message, "no command can bring it up to date"
        assert "upgrade" not in caught.value.message, "nor can a newer version"
        assert not caught.value.retryable


@needs("reopen")
def test_archive_of_another_version_is_refused(backend: Any, tmp_path: Path) -> None:
    # issue 41, Bad input
    memory = backend.open()
    memory.start_trajectory("goal", initiator=USER)
    made = memory.admin.backup(tmp_path / "all.zip").path
    with zipfile.ZipFile(made) as file:
        parts = {info.filename: file.read(info) for info in file.infolist()}
    development = {"format": "caliber-archive-1", "schema_version": 10}
    for changes, message in (
        (development, "with the version of CALIBER that made it"),
        ({"schema_version": NEXT}, "newer version; upgrade CALIBER"),
    ):
        manifest = json.loads(parts["manifest.json"]) | changes
        with zipfile.ZipFile(made, "w") as file:
            for name, content in {**parts, "manifest.json": json.dumps(manifest).encode()}.items():
                file.writestr(name, content)
        with pytest.raises(InvalidValue, match=message):
            caliber.restore(backend.config(), made, replace=True)
    assert memory.storage.trajectories.count() == 1


def test_copy_of_a_development_version_is_refused(tmp_path: Path) -> None:
    settings = config(str(tmp_path / "store.db"))
    caliber.create(settings)
    with caliber.open(settings) as memory:
        copy = memory.admin.backup(tmp_path / "copy.db").path
    edited = apsw.Connection(str(copy))
    edited.execute(DEVELOPMENT).fetchall()
    edited.close()
    with pytest.raises(SchemaMismatch, match=REFUSED):
        caliber.restore(settings, copy, replace=True)
    caliber.open(settings).close()


@needs("reopen")
def test_unfinished_schema_is_refused(backend: Any) -> None:
    settings = spoiled(backend, "DELETE FROM schema_migration")
    for call in (caliber.open, caliber.migrate, plan_migration):
        with pytest.raises(SchemaMismatch, match="never finished"):
            call(settings)


@needs("reopen")
def test_table_that_is_gone_is_said(backend: Any) -> None:
    """Not as a fault of the transaction: the schema is what is wrong."""
    memory = backend.open()
    memory.start_trajectory("goal", initiator=USER)
    memory.flush()
    backend.tamper(memory, "ALTER TABLE lock RENAME TO gone")
    try:
        with pytest.raises(SchemaMismatch, match="caliber db") as caught:
            memory.agents.locks.acquire("resource", holder="me")
        assert not caught.value.retryable
        memory.start_trajectory("what needs no locks goes on", initiator=USER)
    finally:
        backend.tamper(memory, "ALTER TABLE gone RENAME TO lock")
    assert memory.agents.locks.acquire("resource", holder="me").holder == "me"


# --- paths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a?b.db", "a?mode=memory", "a%2e%2e%2fb.db", "a#b.db", "a'; DROP TABLE note; --.db"])
def test_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    # issue, Bad input: paths that try to escape
    settings = config(str(tmp_path / name))
    caliber.create(settings)
    with caliber.open(settings) as memory:
        memory.start_trajectory("goal", initiator=USER)
    with caliber.open(settings) as memory:
        assert memory.storage.trajectories.count() == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("parameters", ["", "?nolock=1", "?immutable=1", "?vfs=unix-none", "?mode=memory"])
def test_uri_is_refused(tmp_path: Path, parameters: str) -> None:
    """Its parameters would switch off what keeps two processes apart, or keep nothing at all."""
    with pytest.raises(MultipleErrors, match="expected a path, not a URI"):
        config(f"file:{tmp_path / 'a.db'}{parameters}")


def test_uri_in_a_variable_is_a_path_like_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALIBER_TEST_PATH", "file:a.db?nolock=1")
    settings = config("env:CALIBER_TEST_PATH")
    caliber.create(settings)
    caliber.open(settings).close()
    assert [path.name for path in tmp_path.iterdir()] == ["file:a.db?nolock=1"]


def test_a_program_may_change_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are made later too: to the file that was opened, and to no other of that name."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    caliber.create(config("store.db"))
    monkeypatch.chdir(tmp_path)
    caliber.create(config("store.db"))
    with caliber.open(config("store.db")) as memory:
        os.chdir(elsewhere)
        memory.start_trajectory("goal", initiator=USER)
        with inspect(memory).store.read(), inspect(memory).store.read():  # more than there are by now
            assert memory.storage.trajectories.count() == 1
        assert memory.admin.verify() == []
    with caliber.open(config("store.db")) as other:
        assert other.storage.trajectories.count() == 0


def test_path_that_no_file_system_takes_is_said(tmp_path: Path) -> None:
    settings = config(str(tmp_path / ("a" * 300)))
    for call in (caliber.create, caliber.open, caliber.migrate):
        with pytest.raises(Unavailable, match=r"correct storage\.path") as caught:
            call(settings)
        assert not caught.value.retryable


# --- locks -------------------------------------------------------------------------------------------


@needs("sharing")
def test_lock_of_another_is_waited_for_no_longer_than_configured(backend: Any) -> None:
    # issue 5, item 1: lock timeouts
    knobs = {"storage__lock_timeout_ms": 100} if backend.adapter == "postgres" else {"storage__busy_timeout_ms": 100}
    holder, waiter = backend.store(), backend.store(**knobs)
    trajectory = plain(TRAJECTORY)
    holder.write(lambda uow: uow.insert(TRAJECTORY, trajectory))

    def change(uow: Any) -> None:
        current = uow.get(TRAJECTORY, trajectory.trajectory_id.bytes)
        uow.update(TRAJECTORY, dataclasses.replace(current, turn_count=current.turn_count + 1))

    def meet(uow: Any) -> None:
        change(uow)
        with pytest.raises(Unavailable, match=r"lock_timeout_ms|busy_timeout_ms") as caught:
            waiter.write(change)
        assert caught.value.retryable
        assert caught.value.context["reason"] == "locked"

    holder.write(meet)
    waiter.write(change)
    assert waiter.write(lambda uow: uow.get(TRAJECTORY, trajectory.trajectory_id.bytes)).turn_count == 2


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
