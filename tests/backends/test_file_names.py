"""A file that lost its name while it was open is noticed before a write is acknowledged.

Source: docs/decisions/0200.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.configs import config
from support.inspection import inspect
from support.threads import at_once

import caliber
from caliber.model import EntityRef, EntityType
from caliber.model.errors import Conflict, Unavailable
from caliber.schema.relations import NOTE
from caliber.storage.bulk.protocol import OnExisting


class Opened:
    """A store with one turn, and a copy of it."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path, self.copy = path, path.with_name("copy.db")
        self.config = config(str(path), **{"embedding_provider": None, "policies": [], **settings})
        caliber.create(self.config)
        self.memory = caliber.open(self.config)
        goal = self.memory.start_trajectory("names", initiator=EntityRef(EntityType.AGENT, uuid.uuid4()))
        scope = self.memory.current_scope(goal.trajectory_id)
        self.scope = scope.scope_id
        self.say("before")
        self.memory.admin.backup(self.copy)

    def say(self, text: str) -> None:
        self.memory.append_turn(self.scope, role="user", content=text)

    def beside(self, ending: str) -> Path:
        return Path(f"{self.path}{ending}")

    def texts(self) -> list[str]:
        with caliber.open(self.config) as memory:
            return [turn.text for turn in memory.storage.turns.list_by_scope(self.scope)]


def close(memory: caliber.Caliber) -> None:
    with contextlib.suppress(Unavailable):
        memory.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "a.db")
    yield made
    close(made.memory)


def replaced(opened: Opened) -> str:
    for ending in ("-wal", "-shm"):
        opened.beside(ending).unlink()
    opened.copy.replace(opened.path)
    return "file replaced"


def replaced_alone(opened: Opened) -> str:
    opened.copy.replace(opened.path)
    return "file replaced"


def removed(opened: Opened) -> str:
    opened.path.unlink()
    return "file gone"


def moved(opened: Opened) -> str:
    opened.path.rename(opened.path.with_name("elsewhere.db"))
    return "file gone"


def folder_moved(opened: Opened) -> str:
    folder = opened.path.parent
    folder.rename(folder.with_name(f"{folder.name}-moved"))
    return "file gone"


def without_log(opened: Opened) -> str:
    opened.beside("-wal").unlink()
    return "file gone"


def with_another_index(opened: Opened) -> str:
    index = opened.beside("-shm")
    shutil.copy(index, opened.copy)
    opened.copy.replace(index)
    return "file replaced"


WAYS = (replaced, replaced_alone, removed, moved, folder_moved, without_log, with_another_index)


def refused(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(Unavailable) as caught:
        call()
    error = caught.value
    assert error.context["reason"] == reason
    assert not error.retryable
    assert "open the store again" in str(error)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_write_is_acknowledged(opened: Opened, way: Callable[[Opened], str]) -> None:
    reason = way(opened)
    refused(lambda: opened.say("into nowhere"), reason)
    refused(lambda: inspect(opened.memory).store.bulk_load(NOTE, [], OnExisting.ERROR, lambda *_: None), reason)
    refused(lambda: inspect(opened.memory).store.maintenance.create_views(), reason)
    refused(lambda: opened.memory.search("before", consistency="latest"), reason)


def test_nor_one_that_is_shared(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "a.db", **{"storage.durability": "group"})
    reason = replaced(opened)
    heard: list[str] = []

    def write() -> None:
        try:
            opened.say("into nowhere")
        except Unavailable as error:
            heard.append(error.context["reason"])

    at_once([write] * 4)
    assert heard == [reason] * 4
    close(opened.memory)


def test_nor_one_that_is_committed_as_the_file_goes(opened: Opened) -> None:
    connection = inspect(opened.memory).connection
    command = connection.raw.execute

    class Going:
        def execute(self, text: str, *values: Any) -> Any:
            if text == "COMMIT":
                replaced(opened)
            return command(text, *values)

        def __getattr__(self, name: str) -> Any:
            return getattr(raw, name)

    raw, connection.raw = connection.raw, Going()
    refused(lambda: opened.say("into nowhere"), "file replaced")
    connection.raw = raw


def test_what_is_left_behind_is_not_lost_in_silence(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "a.db", **{"write_behind.shutdown_ms": 100})
    inspect(opened.memory).engine.record_error("test", Unavailable(reason="something"))
    replaced(opened)
    with pytest.raises(Unavailable):
        opened.memory.flush()
    close(opened.memory)


def test_a_file_that_has_its_name_again_goes_on(opened: Opened) -> None:
    elsewhere = opened.path.with_name("elsewhere.db")
    opened.path.rename(elsewhere)
    refused(lambda: opened.say("into nowhere"), "file gone")
    elsewhere.rename(opened.path)
    opened.say("after")
    close(opened.memory)
    assert opened.texts() == ["before", "after"]


def test_a_new_reader_reads_no_other_file(opened: Opened) -> None:
    store = inspect(opened.memory).store
    store.close_readers()
    replaced(opened)

    def read() -> None:
        with store.read():
            pass

    refused(read, "file replaced")
    refused(read, "file replaced")  # its place is free again


def test_whoever_closes_leaves_the_log_of_the_file_that_came_instead(opened: Opened) -> None:
    replaced(opened)
    other = apsw.Connection(str(opened.path))
    other.execute("PRAGMA journal_mode = WAL").fetchall()
    other.execute("UPDATE trajectory SET goal = goal")
    log = opened.beside("-wal").stat()
    close(opened.memory)
    assert opened.beside("-wal").stat().st_ino == log.st_ino
    assert opened.beside("-shm").exists()
    other.close()


def test_a_link_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    opened = Opened(folder / "a.db")
    close(opened.memory)
    link = tmp_path / "link.db"
    link.symlink_to(opened.path)
    with caliber.open(config(str(link), embedding_provider=None, policies=[])) as memory:
        memory.append_turn(opened.scope, role="user", content="by the link")
        link.unlink()
        link.symlink_to(opened.copy)
        refused(lambda: memory.append_turn(opened.scope, role="user", content="lost"), "file replaced")
        link.unlink()
        link.symlink_to(opened.path)
    assert opened.texts() == ["before", "by the link"]


def test_a_store_in_memory_has_no_name_to_lose() -> None:
    with caliber.open(config(":memory:")) as memory:
        memory.start_trajectory("memory", initiator=EntityRef(EntityType.AGENT, uuid.uuid4()))


def test_a_file_that_was_emptied_is_noticed_and_ends_no_process(opened: Opened) -> None:
    """Read through memory mapping, it would end the process with SIGBUS."""
    opened.memory.flush()
    os.truncate(opened.path, 0)
    with pytest.raises(Unavailable, match="cut to nothing") as caught:
        opened.say("after")
    assert caught.value.context["reason"] == "file emptied"
    with pytest.raises(caliber.CaliberError):
        opened.memory.admin.vacuum()
    close(opened.memory)
    shutil.copy(opened.copy, opened.path)
    for ending in ("-wal", "-shm"):
        opened.beside(ending).unlink(missing_ok=True)
    assert opened.texts() == ["before"]


@pytest.mark.parametrize("ending", [".db", ".zip"])
def test_a_backup_in_the_place_of_a_folder_or_a_pipe_is_refused(opened: Opened, ending: str) -> None:
    folder, pipe = opened.path.with_name(f"folder{ending}"), opened.path.with_name(f"pipe{ending}")
    folder.mkdir()
    os.mkfifo(pipe)
    for place in (folder, pipe):
        with pytest.raises(Unavailable, match="it is no file"):
            opened.memory.admin.backup(place, replace=True)
    assert list(folder.iterdir()) == []


def test_a_backup_never_replaces_a_store_that_is_open_or_was_not_closed(opened: Opened) -> None:
    for place in (opened.path, opened.path.with_name("link.db")):
        if place != opened.path:
            place.symlink_to(opened.path)
        with pytest.raises(Conflict, match="open, or was not closed"):
            opened.memory.admin.backup(place, replace=True)
    opened.say("after")
    left = opened.copy.with_name("copy.db-wal")  # of a process that had the copy open and was killed
    left.write_bytes(b"frames of another store")
    before = opened.copy.read_bytes()
    for place in (opened.copy, opened.copy.with_name("new.db")):
        left.rename(left := place.with_name(f"{place.name}-wal"))
        with pytest.raises(Conflict, match="-wal is beside it"):
            opened.memory.admin.backup(place, replace=True)
    assert opened.copy.read_bytes() == before
    left.unlink()
    opened.memory.admin.backup(opened.copy, replace=True)
    close(opened.memory)
    assert opened.texts() == ["before", "after"]


def test_purging_a_file_that_nobody_may_change_does_not_blame_others(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    opened = Opened(store)
    opened.memory.close()
    if subprocess.run(["chattr", "+i", str(store)], capture_output=True, check=False).returncode:
        pytest.skip("files cannot be made unchangeable here")
    try:
        with pytest.raises(Unavailable) as caught:
            caliber.purge(opened.config)
    finally:
        subprocess.run(["chattr", "-i", str(store)], check=True)
    assert caught.value.context["reason"] != "locked"
    assert caliber.purge(opened.config).proven
