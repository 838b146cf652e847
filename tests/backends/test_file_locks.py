"""A process never loses the locks on the files of its open stores, whatever it calls.

Closing any descriptor of a file drops all of the process's POSIX locks on it, and another process then removes the log
under the store. Source: caliber/model/process/files.py, docs/guarantees.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.api.doors import Doors, fill
from support.configs import config
from support.memories import FACT
from support.storage.locks_held import AT_REST, LOCKS, dangerous, locks_held
from support.tenancy.tenancies import tenancy_config

import caliber
from caliber.backends.sqlite.maintaining.erasing import SqliteEraser
from caliber.importing import chat
from caliber.importing import files as importing
from caliber.model.errors import CaliberError, SchemaMismatch, Unavailable
from caliber.model.process.files import InUse, is_in_use, open_file

pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="only Linux lists locks")


def _losses(calls: dict[str, Callable[[], Any]], *stores: Path) -> list[str]:
    """Make calls until one has lost a lock; return what is missing after which."""
    for name, call in calls.items():
        with contextlib.suppress(CaliberError, OSError):
            call()
        for store in stores:
            if missing := AT_REST - locks_held(store):
                return [f"{name}: {store.name}{ending} at {first}" for ending, first in sorted(missing)]
    return []


def test_no_public_call_loses_a_lock(tmp_path: Path) -> None:
    first, second = (config(str(tmp_path / name), memories=[FACT]) for name in ("a.db", "b.db"))
    with caliber.open(second, create=True), caliber.open(first, create=True) as memory:
        calls = {call.name: call.made for call in Doors(memory, fill(memory), tmp_path).calls()}
        assert _losses(calls, tmp_path / "a.db", tmp_path / "b.db") == []
        assert len(calls) > 150


def test_no_other_use_of_the_files_loses_a_lock(tmp_path: Path) -> None:
    path, link, copy = tmp_path / "a.db", tmp_path / "link.db", tmp_path / "copy.db"
    settings = config(str(path))
    link.symlink_to(path)
    with caliber.open(settings, create=True) as memory:
        memory.remember([{"role": "user", "content": "I am Carl"}], user="carl@example.org")
        for ending in (".zip", ".parquet", ".jsonl", ".toml"):
            os.link(path, tmp_path / f"hard{ending}")
        os.link(f"{path}-shm", tmp_path / "index.toml")

        def ingest() -> None:
            listing = importing.list_files(tmp_path)
            names = [name for name in listing.files if importing.read_text(listing, name, 1 << 30) is None]
            assert set(names) >= {"a.db", "a.db-shm", "a.db-wal", "link.db", "hard.zip", "hard.toml", "index.toml"}
            assert listing.skipped[importing.IN_USE] >= 7

        calls: dict[str, Callable[[], Any]] = {
            "forget": lambda: memory.forget(user="carl@example.org"),
            "second handle": lambda: caliber.open(settings).close(),
            "handle by a link": lambda: caliber.open(config(str(link))).close(),
            "in memory": lambda: caliber.open(config(":memory:")).close(),
            "copy": lambda: memory.admin.backup(copy),
            "restore elsewhere": lambda: caliber.restore(config(str(tmp_path / "new.db")), copy),
            "restore from itself": lambda: caliber.restore(config(str(tmp_path / "other.db")), path),
            "restore over itself": lambda: caliber.restore(settings, copy, replace=True),
            "archive": lambda: caliber.restore(config(str(tmp_path / "third.db")), tmp_path / "hard.zip"),
            "handle by a hard link": lambda: caliber.open(config(str(tmp_path / "hard.zip"))).close(),
            "create": lambda: caliber.create(settings, exist_ok=True),
            "migrate": lambda: caliber.migrate(settings),
            "purge": lambda: caliber.purge(settings),
            "vacuum": lambda: memory.admin.vacuum(full=True),
            "bulk load": lambda: memory.storage.bulk_load("note", tmp_path / "hard.parquet"),
            "configuration": lambda: caliber.load_config(path),
            "configuration by a hard link": lambda: caliber.load_config(tmp_path / "hard.toml"),
            "index of the log": lambda: caliber.load_config(tmp_path / "index.toml"),
            "conversations": lambda: chat.parse(tmp_path / "hard.jsonl", lambda _: None),
            "ingest": ingest,
        }
        assert _losses(calls, path) == []


def test_another_tenants_file_keeps_its_locks(tmp_path: Path) -> None:
    with caliber.Tenants(tenancy_config(tmp_path), create=True) as tenants, contextlib.ExitStack() as opened:
        for name in ("ana", "ben"):
            tenants.create(name, source="files")
        handles = {name: opened.enter_context(tenants.open(name)) for name in ("ana", "ben")}
        files = [Path(tenants.config(name).storage.path) for name in handles]
        ana = handles["ana"]
        calls: dict[str, Callable[[], Any]] = {
            "remember": lambda: ana.remember([{"role": "user", "content": "I am Carl"}], user="carl@example.org"),
            "forget": lambda: ana.forget(user="carl@example.org"),
            "create": lambda: tenants.create("carl", source="files"),
            "open and close": lambda: tenants.open("carl").__enter__().close(),
            "migrate": lambda: tenants.migrate("ben"),
            "drop": lambda: tenants.drop("carl"),
            "all": tenants.all,
        }
        assert _losses(calls, *files, tmp_path / "tenants.db") == []


def test_a_planted_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    original = SqliteEraser.places

    def places(eraser: SqliteEraser) -> Any:
        path.open("rb").close()
        return original(eraser)

    monkeypatch.setattr(SqliteEraser, "places", places)
    with caliber.open(config(str(path)), create=True) as memory:
        missing = _losses({"forget": lambda: memory.forget(texts=["nobody-has-this-name"])}, path)
    assert missing == ["forget: a.db at 1073741826"]
    assert not dangerous  # it is of a test, not of the package
    source = compile("path.open('rb').close()", str(Path(caliber.__file__).parent / "planted.py"), "exec")
    with caliber.open(config(str(path))):
        exec(source, {"path": path})
    assert dangerous.pop().endswith("planted.py:1 opened a file of an open store")


def test_a_file_is_not_opened_under_two_names(tmp_path: Path) -> None:
    with caliber.open(config(str(tmp_path / "a.db")), create=True) as memory:
        os.link(tmp_path / "a.db", tmp_path / "b.db")
        with pytest.raises(Unavailable) as caught:
            caliber.open(config(str(tmp_path / "b.db")))
        assert (caught.value.reason, caught.value.retryable) == ("open under another name", False)
        assert not (tmp_path / "b.db-wal").exists()
        memory.add_note(entity="e", entity_type="t", note_type="fact", content="c", confidence=0.5)


def test_a_file_is_free_once_its_last_handle_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first = caliber.open(config(str(path)), create=True)
    second = caliber.open(config(str(path)))
    first.close()
    with pytest.raises(InUse):
        open_file(path)
    moved = tmp_path / "moved.db"
    path.rename(moved)
    assert is_in_use(moved)
    moved.rename(path)
    second.close()
    open_file(path).close()


def test_a_file_that_did_not_open_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(SchemaMismatch) as caught:
        caliber.open(config(str(path)))
    assert not is_in_use(path)
    assert caught.tb is not None  # the error lives, and all that its frames have
