"""A server that is put back to an earlier state while programs have a store open. Source: issue 5, item 5; design 5."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.databases import DSN, PostgresBackend, note
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer

from caliber.backends.postgres.store import PostgresStore

pytestmark = pytest.mark.prove

KEPT = "kept by a pool in between"
"""The harder case, and what every run tries."""


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False) as made:
        yield made


@pytest.fixture
def lone(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    monkeypatch.setenv(DSN, server.dsn)
    ready, PostgresBackend.ready = PostgresBackend.ready, []
    made = PostgresBackend()
    yield made
    for close in made.closing:
        close()
    PostgresBackend.ready = ready  # the server goes with all that is in it


def copy(source: Path, target: Path) -> None:
    """Copy a stopped cluster, with its owners and modes."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    for path in (source, *source.rglob("*")):
        there = target / path.relative_to(source)
        state = path.lstat()
        os.chown(there, state.st_uid, state.st_gid, follow_symlinks=False)


@pytest.mark.parametrize("connections", [KEPT, "new"] if os.environ.get("CALIBER_SOAK") else [KEPT])
def test_earlier_state_is_noticed_however_far_it_went_on_since(
    server: LocalServer, lone: PostgresBackend, monkeypatch: pytest.MonkeyPatch, connections: str
) -> None:
    data = server.data_directory
    memory, other = lone.open(lone.config(embedding_provider=None)), lone.open(lone.config(embedding_provider=None))
    note(memory, "before the copy")
    memory.flush()
    server.stop()
    copy(data, data.with_name("earlier"))
    server.restart()
    for at in range(5):
        note(memory, f"lost {at}")
    inspect(memory).snapshot("latest")
    memory.flush()
    server.stop()
    copy(data.with_name("earlier"), data)
    server.restart()
    if connections != "new":  # PgBouncer's clients keep theirs: nothing tells them that the server is another
        monkeypatch.setattr(PostgresStore, "look_at", lambda self, connection: None)
    # More transactions than were lost: by their numbers alone nothing is amiss.
    for at in range(30):
        note(other, f"since {at}")
    other.flush()
    expected = {"before the copy", *(f"since {at}" for at in range(30))}
    reloads = memory.admin.stats()["resident"]["reloads"]
    for handle in (memory, other):
        found = handle.search("", kinds=["note"], limit=100, consistency="latest").hits
        assert {hit.content for hit in found} == expected
        assert handle.admin.verify() == []
    assert memory.admin.stats()["resident"]["reloads"] == reloads + 1
    note(memory, "goes on")
    assert memory.storage.notes.count() == 32
