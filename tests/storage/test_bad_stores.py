"""Bad stores and bad names, on both databases: refused with an error that says what to do, and nothing touched.

Source: issue 5, Bad input and faults; design section 10.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from contract.entities import plain
from support.configs import USER, config
from support.drawn import needs
from support.inspection import inspect

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
