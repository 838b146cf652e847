"""Creating, opening, refusing: every file that is not a store of ours says what it is and what to do (Bad input).

What only files have is tested on files; PostgreSQL has its own ways of not being there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from contract.entities import plain
from support.configs import USER, config
from support.inspection import inspect

import caliber
from caliber.backends import backend as backend_module
from caliber.backends.sqlite import open_records
from caliber.backends.sqlite import schema as sqlite_schema
from caliber.config.tenancy import SqliteDirectory
from caliber.model.errors import (
    CaliberError,
    Conflict,
    InvalidConfigValue,
    MultipleErrors,
    ProviderNotSupported,
    SchemaMismatch,
    StorageError,
    Unavailable,
)
from caliber.schema.relations import NOTE
from caliber.storage.migrate import migrations
from caliber.storage.migrate.migrations import BASELINE, MIGRATIONS, SCHEMA_VERSION, MigrationStep

NEXT = SCHEMA_VERSION + 1


def made(path: Path, **overrides: Any) -> Any:
    settings = config(str(path), **overrides)
    caliber.create(settings)
    return settings


def edit(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement).fetchall()
    connection.close()


def refused(settings: Any) -> CaliberError:
    """Return the error of opening; whatever it is, the file must be as it was."""
    path = Path(settings.storage.path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CaliberError) as caught:
        caliber.open(settings)
    if before is not None:
        assert path.read_bytes() == before, "refusing must not change the file"
    assert str(caught.value)
    return caught.value


def test_missing_file_says_how_to_create_it(tmp_path: Path) -> None:
    error = refused(config(str(tmp_path / "nothing.db")))
    assert isinstance(error, Unavailable)
    assert not error.retryable
    assert "caliber create" in str(error)
    assert not (tmp_path / "nothing.db").exists(), "looking must not create"


def test_missing_folder_is_said(tmp_path: Path) -> None:
    settings = config(str(tmp_path / "no" / "such" / "store.db"))
    with pytest.raises(Unavailable, match="folder does not exist"):
        caliber.create(settings)
    assert not (tmp_path / "no").exists()


def test_folder_is_not_a_store(tmp_path: Path) -> None:
    error = refused(config(str(tmp_path)))
    assert isinstance(error, SchemaMismatch)
    assert "folder" in str(error)


def test_empty_file_says_how_to_create(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    error = refused(config(str(path)))
    assert isinstance(error, SchemaMismatch)
    assert "empty" in str(error)
    assert "caliber create" in str(error)
    caliber.create(config(str(path)))
    caliber.open(config(str(path))).close()


def journal_of(pages: int) -> bytes:
    """Return a rollback journal of a transaction that began with so many pages and has saved none."""
    head = bytes.fromhex("d9d505f920a163d7") + bytes(4) + b"\x01\x02\x03\x04"
    return (head + pages.to_bytes(4, "big") + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")).ljust(512, b"\x00")


INTERRUPTED = [b"S", b"SQLite format 3", b"\x00" * 20]
"""What a power cut may leave of the first page of a new database, where a journal tells that the file was empty."""


@pytest.mark.parametrize(("content", "journal"), [
    *((content, None) for content in (b"x", *INTERRUPTED, b"a text " * 700, bytes(8192))),
    *((content, journal_of(3)) for content in (b"x", *INTERRUPTED, b"a text " * 700)),
    *((content, b"a diary") for content in (b"x", *INTERRUPTED)),
    *((content, journal_of(0)) for content in (b"x", b"SQL is a language", b"a text " * 700)),
])  # fmt: skip
def test_file_of_something_else_is_left_as_it_is(content: bytes, journal: bytes | None, tmp_path: Path) -> None:
    # issue 12, First, item 1: SQLite takes a file of one byte for an empty one, and rolls back what is no database
    path, beside, backup = tmp_path / "other.db", tmp_path / "other.db-journal", tmp_path / "backup.db"
    with caliber.open(made(tmp_path / "store.db")) as memory:
        memory.admin.backup(backup)
    path.write_bytes(content)
    if journal is not None:
        beside.write_bytes(journal)
    directory = SqliteDirectory(adapter="sqlite", path=str(path))
    for call in (
        lambda settings: caliber.create(settings),
        lambda settings: caliber.create(settings, exist_ok=True),
        lambda settings: caliber.open(settings),
        lambda settings: caliber.migrate(settings),
        lambda settings: caliber.restore(settings, backup, replace=True),
        lambda _: open_records(directory, create=True, clock_us=lambda: 1),
    ):
        with pytest.raises((SchemaMismatch, Conflict), match=r"not a CALIBER store|exists already"):
            call(config(str(path)))
        assert path.read_bytes() == content
        assert (beside.read_bytes() if beside.exists() else None) == journal


@pytest.mark.parametrize("content", INTERRUPTED)
def test_interrupted_creation_says_how_to_create(content: bytes, tmp_path: Path) -> None:
    # issue 12, First, item 1
    path, beside = tmp_path / "store.db", tmp_path / "store.db-journal"
    path.write_bytes(content)
    beside.write_bytes(journal_of(0))
    for _ in range(2):
        error = refused(config(str(path)))
        assert isinstance(error, SchemaMismatch)
        assert "the file is empty; run `caliber create`" in str(error)
        assert (path.read_bytes(), beside.read_bytes()) == (content, journal_of(0))
    caliber.open(made(path)).close()
    assert [each.name for each in tmp_path.iterdir()] == ["store.db"]


_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # the bytes that SQLite's readers share
"""


def test_locks_of_an_open_store_outlast_creating_it_again(tmp_path: Path) -> None:
    """A process that closes a file gives up its locks on it, those of its open connections too."""
    settings = made(tmp_path / "store.db")
    command = [sys.executable, "-c", _LOCK, str(tmp_path / "store.db")]
    with caliber.open(settings):
        for _ in range(2):
            caliber.create(settings, exist_ok=True)
            assert b"BlockingIOError" in subprocess.run(command, stderr=subprocess.PIPE, check=False).stderr
    subprocess.run(command, check=True)


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    edit(path, "CREATE TABLE theirs (a)")
    error = refused(config(str(path)))
    assert isinstance(error, SchemaMismatch)
    assert "not a CALIBER store" in str(error)


def test_truncated_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    settings = made(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 1000])
    with pytest.raises(StorageError):
        caliber.open(settings)


def test_store_of_an_older_version_says_how_to_migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    settings = made(path)
    step = MigrationStep("more", SCHEMA_VERSION, NEXT, convert=lambda _: ("CREATE TABLE more (a INTEGER) STRICT",))
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", NEXT)
    monkeypatch.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, NEXT: step})
    error = refused(settings)
    assert isinstance(error, SchemaMismatch)
    assert "caliber db migrate" in str(error)
    assert caliber.migrate(settings) == [NEXT]
    assert caliber.migrate(settings) == [], "what is applied is not applied again"
    with caliber.open(settings) as memory:
        applied = memory.storage.schema_migrations.list_all()
        assert [(item.schema_version, item.name) for item in applied] == [(SCHEMA_VERSION, BASELINE), (NEXT, "more")]
        assert applied[0].epoch == applied[1].epoch


def test_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    settings = made(path)
    good = "CREATE TABLE more (a INTEGER) STRICT"
    step = MigrationStep("bad", SCHEMA_VERSION, NEXT, convert=lambda _: (good, "CREATE TABLE more (b)"))
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "SCHEMA_VERSION", NEXT)
        patched.setattr(migrations, "MIGRATIONS", {**MIGRATIONS, NEXT: step})
        with pytest.raises(StorageError):
            caliber.migrate(settings)
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").fetchall() == [(0,)]
    connection.close()
    caliber.open(settings).close()


def test_creation_that_fails_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema is created whole or not at all, and what is left does not stand in the way."""
    settings = config(str(tmp_path / "store.db"))
    plans = dict(sqlite_schema.PLANS)

    class Broken:
        create = ("CREATE TABLE broken (",)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_schema, "PLANS", {**plans, "broken": Broken()})
        with pytest.raises(StorageError):
            caliber.create(settings)
    with pytest.raises(SchemaMismatch, match="caliber create"):
        caliber.open(settings)
    caliber.create(settings)
    caliber.open(settings).close()


def test_unknown_adapter_names_those_there_are() -> None:
    with pytest.raises(ProviderNotSupported, match="sqlite"):
        backend_module("oracle")


def test_configuration_faults_come_before_any_file(tmp_path: Path) -> None:
    with pytest.raises(MultipleErrors):
        config(str(tmp_path / "x.db"), storage__readers=0)
    with pytest.raises(CaliberError):
        caliber.open(str(tmp_path / "missing.toml"))
    with pytest.raises(CaliberError):
        caliber.open(42)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_store_in_memory_is_made_by_opening_it(tmp_path: Path) -> None:
    settings = config(":memory:")
    with pytest.raises(SchemaMismatch, match="just open it"):
        caliber.create(settings)
    with caliber.open(settings) as first, caliber.open(settings) as second:
        first.start_trajectory("goal", initiator=USER)
        assert first.admin.stats()["records"]["trajectory"] == 1
        assert second.admin.stats()["records"]["trajectory"] == 0, "two stores in memory share nothing"


# --- files that cannot be written ----------------------------------------------------------------


_OPEN = """
    import os, sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from caliber.model.errors import Unavailable
    from support.configs import USER, config
    settings = config(sys.argv[1])
    if os.geteuid() == 0:
        # Root may write what is read-only. Everything is loaded first: another user may not reach the interpreter.
        with caliber.open(config(':memory:')) as memory:
            memory.start_trajectory('goal', initiator=USER)
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
    try:
        with caliber.open(settings) as memory:
            memory.start_trajectory('goal', initiator=USER)
    except Unavailable as error:
        print('UNAVAILABLE', error.context['reason'], error.retryable, error)
    else:
        print('WRITTEN')
"""
TESTS = str(Path(__file__).resolve().parents[1])


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="caliber-modes-"))
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="file modes of POSIX")
@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o755), (0o644, 0o555), (0o444, 0o555)])
def test_read_only_file_or_folder_is_said(file_mode: int, folder_mode: int, open_to_all: Path) -> None:
    # issue, Bad input: a read-only disk
    path = open_to_all / "store.db"
    made(path)
    bytes_before = path.read_bytes()
    path.chmod(file_mode)
    open_to_all.chmod(folder_mode)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_OPEN), str(path), TESTS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UNAVAILABLE"), done.stdout
    assert "False" in done.stdout, "a mode does not change by waiting"
    assert "writable" in done.stdout
    open_to_all.chmod(0o755)
    path.chmod(0o644)
    assert path.read_bytes() == bytes_before
    with caliber.open(config(str(path))) as memory:
        assert memory.admin.verify() == []


def test_path_through_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable):
        caliber.open(config(str(tmp_path / "file" / "store.db")))


_FULL = """
    import resource, signal, sys
    sys.path.insert(0, sys.argv[2])
    import caliber
    from caliber.model.errors import Unavailable
    from support.configs import USER, config
    settings = config(sys.argv[1], storage__wal_autocheckpoint_pages=100000, write_behind__trace_enabled=False)
    memory = caliber.open(settings)
    trajectory = memory.start_trajectory('goal', initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    acknowledged = 0
    try:
        while True:
            memory.append_turn(scope.scope_id, role='user', content=b'x' * 20_000)
            acknowledged += 1
    except Unavailable as error:
        print(error.context['reason'], '|', error.retryable, '|', error)
    print(acknowledged, memory.get(scope.scope_id).turn_count)
    # Reads go on; and once there is room, so do writes, without opening again.
    assert memory.assemble_context(trajectory.trajectory_id).used_tokens > 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    memory.append_turn(scope.scope_id, role='user', content=b'after')
    assert memory.admin.verify() == [], memory.admin.verify()
    memory.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits of POSIX")
def test_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    # issue, Bad input: a full disk. The size limit of a process stands for the disk's.
    path = tmp_path / "store.db"
    settings = made(path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FULL), str(path), TESTS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reason, retryable, message = done.stdout.splitlines()[0].split(" | ")
    assert reason in ("disk full", "input/output"), message
    assert retryable == "True"
    acknowledged, counted = map(int, done.stdout.splitlines()[1].split())
    assert acknowledged == counted > 10
    with caliber.open(settings) as memory:
        assert memory.admin.verify() == []
        assert memory.storage.turns.count() == acknowledged + 1


def test_database_that_may_not_grow_is_said_and_survived(file_backend: Any) -> None:
    # The same, reported by the database itself as full.
    memory = file_backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    connection = inspect(memory).connection
    pages = connection.pragma("page_count")
    connection.command(f"PRAGMA max_page_count = {pages + 20}")
    written = 0

    def fill() -> None:
        nonlocal written
        for _ in range(100):
            memory.append_turn(scope.scope_id, role="user", content=b"x" * 20_000)
            written += 1

    with pytest.raises(Unavailable, match=r"\d+ bytes are free there") as caught:
        fill()
    assert caught.value.context["reason"] == "disk full"
    assert caught.value.context["free_bytes"] > 0
    assert caught.value.retryable
    assert memory.get(scope.scope_id).turn_count == written
    connection.command("PRAGMA max_page_count = 1000000")
    memory.append_turn(scope.scope_id, role="user", content="after")
    assert memory.admin.verify() == []
    assert memory.storage.turns.count() == written + 1


# --- somebody else has the write lock ------------------------------------------------------------

_HOLD = """
    import sys, apsw
    connection = apsw.Connection(sys.argv[1])
    connection.execute('BEGIN IMMEDIATE')
    print('held', flush=True)
    sys.stdin.readline()
    connection.execute('ROLLBACK')
"""


class Holder:
    """Another process that holds the write lock of a file."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_HOLD), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline().strip() == "held"

    def let_go(self) -> None:
        self._process.communicate("\n", timeout=30)


def test_second_process_holding_the_write_lock_is_unavailable(file_backend: Any) -> None:
    # issue, Bad input: a second process holding the write lock
    memory = file_backend.open(storage__busy_timeout_ms=200, write_behind__trace_enabled=False)
    trajectory = memory.start_trajectory("goal", initiator=USER)
    memory.flush()
    holder = Holder(file_backend.path)
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            memory.start_trajectory("another", initiator=USER)
        assert 0.15 < time.monotonic() - started < 2
        assert caught.value.retryable
        assert caught.value.context["reason"] == "locked"
        assert "another process holds the write lock" in str(caught.value)
        assert "busy_timeout_ms" in str(caught.value)
        assert memory.get(trajectory.trajectory_id) == trajectory, "reads do not wait for writers"
    finally:
        holder.let_go()
    memory.start_trajectory("another", initiator=USER)
    assert memory.storage.trajectories.count() == 2


def test_lock_that_is_let_go_in_time_is_not_noticed(file_backend: Any) -> None:
    import threading

    memory = file_backend.open(storage__busy_timeout_ms=10_000)
    holder = Holder(file_backend.path)
    timer = threading.Timer(0.2, holder.let_go)
    timer.start()
    memory.start_trajectory("goal", initiator=USER)
    timer.join()


def test_connections_are_made_as_configured(file_backend: Any) -> None:
    for pages, readers in ((10, 1), (20, 2)):
        store = file_backend.store(storage__wal_autocheckpoint_pages=pages, storage__readers=readers)
        assert inspect(store).connection.pragma("wal_autocheckpoint") == pages
        with store.read():
            assert bool(store.readers.free) is (readers > 1)


def test_deadline_is_shorter_than_the_busy_timeout(file_backend: Any) -> None:
    memory = file_backend.open(storage__busy_timeout_ms=30_000, write_behind__trace_enabled=False)
    holder = Holder(file_backend.path)
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught, caliber.deadline(100):
            memory.start_trajectory("goal", initiator=USER)
        assert time.monotonic() - started < 5
        assert caught.value.retryable
    finally:
        holder.let_go()
    memory.start_trajectory("goal", initiator=USER)
    assert memory.storage.trajectories.count() == 1


def test_store_opens_while_another_process_writes(file_backend: Any) -> None:
    """Opening writes the configuration; it waits for the lock like any write."""
    file_backend.create(file_backend.config())
    holder = Holder(file_backend.path)
    try:
        with pytest.raises(Unavailable) as caught:
            caliber.open(file_backend.config(storage__busy_timeout_ms=100))
        assert caught.value.retryable
    finally:
        holder.let_go()
    caliber.open(file_backend.config()).close()


def test_memory_too_small_for_the_columns_is_said(tmp_path: Path) -> None:
    settings = made(tmp_path / "store.db")
    notes = [plain(NOTE, fingerprint=at.to_bytes(32, "big")) for at in range(4_000)]
    with caliber.open(settings) as memory:
        inspect(memory).write(lambda uow: [uow.insert(NOTE, note) for note in notes])
    with pytest.raises(InvalidConfigValue, match="raise the limit"):
        caliber.open(config(settings.storage.path, resident__resident_bytes=1 << 20))
    caliber.open(settings).close()


def test_an_opening_that_fails_leaves_no_thread(backend: Any, monkeypatch: Any) -> None:
    settings = backend.config(embedding__embed__note="behind", resident__feed_poll_ms=10)
    backend.open(settings).close()
    before = set(threading.enumerate())

    def broken(*_: Any, **__: Any) -> None:
        raise StorageError("planted")

    monkeypatch.setattr("caliber.engine.engine.WriteBehind", broken)
    with pytest.raises(StorageError, match="planted"):
        backend.open(settings)
    assert set(threading.enumerate()) <= before
