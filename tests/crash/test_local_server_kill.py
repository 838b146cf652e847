"""A private PostgreSQL server ends with whoever started it, and data outlive the server being killed.

Every test has a folder for temporary files of its own, so that what others run is neither counted nor swept.
Source: design sections 10 and 11.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.evidence import record, scale, seed
from support.folders import open_folder
from support.localserver import guard
from support.localserver.server import LocalServer
from support.waits import let_run, until

from caliber.model.errors import Unavailable

pytestmark = pytest.mark.prove

CHILD = Path(__file__).parent / "serving_process.py"
START_KILLS = scale(20, 200)
SERVER_KILLS = scale(10, 100)
BUSY = "SELECT count(*) FROM generate_series(1, 4000000000)"
SHARED_MEMORY = Path("/proc/sysvipc/shm")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with open_folder() as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        yield folder
        while OWNERS:
            OWNERS.pop().kill()
        until(lambda: processes_of(folder) == [], "every guard has ended")


def processes_of(folder: Path) -> list[str]:
    """Return the guards and servers whose command line names the folder."""
    if sys.platform == "linux":
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    else:
        pids = [int(word) for word in subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True).stdout.split()]
    commands = [guard.command_of(pid) for pid in pids if guard.is_alive(pid)]
    return [command for command in commands if str(folder) in command and "serving_process" not in command]


def servers_of(temporary: Path) -> list[Path]:
    """Return the folders of servers there are."""
    return [path for path in temporary.glob("caliber-pg-*/*") if path.is_dir()]


def segments_of(*creators: int) -> set[str]:
    """Return the shared memory that servers made and that is still there: others, killed in their tests, leave some."""
    if not SHARED_MEMORY.exists():
        return set()
    rows = [line.split() for line in SHARED_MEMORY.read_text().splitlines()]
    return {row[1] for row in rows[1:] if int(row[rows[0].index("cpid")]) in creators}


OWNERS: list[Owner] = []


class Owner:
    """A process that starts a server, says where that is, and waits."""

    def __init__(self, mode: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), mode, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        OWNERS.append(self)
        self.say()

    def say(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended by itself"
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> None:
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


def query(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return row[0]


class Running:
    """A statement that a backend is busy with, in a thread of its own."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.backend = self.connection.info.backend_pid
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        until(lambda: query(dsn, f"SELECT count(*) FROM pg_stat_activity WHERE query = '{BUSY}'") == 1, "busy")

    def _run(self) -> None:
        try:
            self.connection.execute(BUSY)
        except psycopg.OperationalError as error:
            self.error = error

    def cut(self) -> None:
        self.thread.join(30)
        assert self.error is not None
        self.connection.close()


# --- whoever started it is killed ------------------------------------------------------------------------------


def test_killed_owner_leaves_nothing(temporary: Path) -> None:
    owner = Owner("start")
    where = owner.say()
    busy = Running(where["dsn"])
    family = [where["guard"], where["pid"], *guard.children_of(where["pid"])]
    assert segments_of(where["pid"]) or not SHARED_MEMORY.exists(), "or nothing is looked for"
    assert busy.backend in family
    assert len(family) > 5
    owner.kill()
    until(lambda: not any(guard.is_alive(pid) for pid in family), "every process has ended")
    until(lambda: not Path(where["folder"]).exists(), "its folder is gone")
    busy.cut()
    assert segments_of(where["pid"]) == set()


def test_owner_killed_while_it_starts_leaves_nothing(temporary: Path) -> None:
    rng = random.Random(seed())
    for _ in range(START_KILLS):
        owner = Owner("start")
        # Anything from before the first folder is made until after the server is ready.
        let_run(rng.uniform(0.0, 0.5))
        owner.kill()
        until(lambda: processes_of(temporary) == [], "no process is left")
    # Folders that no guard knew of yet are swept by who comes next.
    with LocalServer.start(fsync=False) as server:
        assert [folder.name for folder in servers_of(temporary)] == [server.socket_directory.parent.name]
    assert servers_of(temporary) == []
    record(
        "private-server",
        "A private PostgreSQL server whose owner is killed while it starts",
        {"owners killed": START_KILLS, "processes left": 0, "folders left after the next start": 0, "seed": seed()},
    )


def test_owner_and_guard_killed_are_swept_at_the_next_start(temporary: Path) -> None:
    owner = Owner("start")
    where = owner.say()
    busy = Running(where["dsn"])
    family = [where["pid"], *guard.children_of(where["pid"])]
    os.kill(where["guard"], signal.SIGKILL)
    owner.kill()
    # Nobody is left who could have ended it, so it runs on; the sweep has something to do.
    assert query(where["dsn"], "SELECT 1") == 1
    with LocalServer.start(fsync=False):
        assert not any(guard.is_alive(pid) for pid in family)
        assert not Path(where["folder"]).exists()
    busy.cut()
    assert segments_of(where["pid"]) == set()


def test_owner_that_ends_without_closing(temporary: Path) -> None:
    owner = Owner("leave")
    where = owner.say()
    owner.wait()
    assert owner.process.returncode == 0
    # Not only soon after: it was closed before the process ended.
    assert not Path(where["folder"]).exists()
    assert not guard.is_alive(where["pid"])


def test_forked_child_neither_ends_nor_keeps_it(temporary: Path) -> None:
    owner = Owner("fork")
    said = [owner.say(), owner.say()]
    where = next(item for item in said if "dsn" in item)
    assert next(item for item in said if "refused" in item)["refused"] == ["forked"] * 3
    assert query(where["dsn"], "SELECT 1") == 1
    owner.kill()
    try:
        until(lambda: not Path(where["folder"]).exists(), "its folder is gone")
        assert guard.is_alive(where["child"])
    finally:
        os.kill(where["child"], signal.SIGKILL)
    assert not guard.is_alive(where["pid"])


def test_terminal_signals_are_not_for_the_server(temporary: Path) -> None:
    owner = Owner("start")
    where = owner.say()
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(where["guard"], number)
    assert os.getsid(where["guard"]) != os.getsid(owner.process.pid)
    assert os.getsid(where["pid"]) != os.getsid(owner.process.pid)
    assert query(where["dsn"], "SELECT 1") == 1
    # Ended on purpose, it does not leave its server alone.
    os.kill(where["guard"], signal.SIGTERM)
    until(lambda: not Path(where["folder"]).exists(), "its folder is gone")
    assert not guard.is_alive(where["pid"])
    owner.kill()


def test_killed_guard_is_said_and_cleaned_up_after(temporary: Path) -> None:
    server = LocalServer.start(fsync=False)
    process = server.pid
    assert process is not None
    os.kill(server.guard.pid, signal.SIGKILL)
    for call in (server.restart, server.stop, server.kill):
        with pytest.raises(Unavailable, match="guard is gone"):
            call()
    server.close()
    assert not guard.is_alive(process)
    assert servers_of(temporary) == []
    assert segments_of(process) == set()


# --- the server is killed --------------------------------------------------------------------------------------


def write_until_cut(dsn: str, acknowledged: list[int]) -> None:
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            start = max(acknowledged, default=0)
            for number in range(start + 1, start + 1_000_000):
                connection.execute("INSERT INTO written VALUES (%s)", [number])
                acknowledged.append(number)
    except psycopg.OperationalError:
        pass


def test_acknowledged_rows_survive_a_kill(temporary: Path) -> None:
    rng = random.Random(seed())
    acknowledged: list[int] = []
    with LocalServer.start() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE written (n int PRIMARY KEY)")
        for _ in range(SERVER_KILLS):
            writer = threading.Thread(target=write_until_cut, args=(server.dsn, acknowledged))
            already = len(acknowledged)
            writer.start()
            until(lambda already=already: len(acknowledged) > already, "a first row")  # type: ignore[misc]
            let_run(rng.uniform(0.0, 0.1))
            server.kill()
            assert not server.running
            writer.join(30)
            server.restart()
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                stored = {row[0] for row in connection.execute("SELECT n FROM written")}
                # At most the row whose commit was under way may be there unasked.
                connection.execute("DELETE FROM written WHERE n > %s", [max(acknowledged)])
            assert set(acknowledged) <= stored
            assert len(stored) <= len(acknowledged) + 1


def test_server_killed_by_others_can_be_restarted(temporary: Path) -> None:
    """The kernel kills the first process only; a busy backend does not notice, and would stand in a restart's way."""
    with LocalServer.start(fsync=False) as server:
        busy = Running(server.dsn)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.running, "the server has ended")
        server.restart()
        busy.cut()
        assert query(server.dsn, "SELECT 1") == 1
        assert not guard.is_alive(busy.backend)


def test_kill_takes_every_process(temporary: Path) -> None:
    with LocalServer.start(fsync=False) as server:
        busy = Running(server.dsn)
        assert server.pid is not None
        family = [server.pid, *guard.children_of(server.pid)]
        server.kill()
        assert not any(guard.is_alive(pid) for pid in family)
        busy.cut()
    # It was not started again, which would have cleaned up.
    assert segments_of(family[0]) == set()


@pytest.mark.parametrize("also_guard", [False, True])
def test_kept_directory_can_be_used_right_after_its_owner_was_killed(
    temporary: Path, also_guard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = temporary / "kept"
    owner = Owner("start", str(kept))
    where = owner.say()
    with psycopg.connect(where["dsn"], autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 5 AS n")
    if also_guard:
        os.kill(where["guard"], signal.SIGKILL)
        # The next one does not sweep where this one was: it knows the directory only.
        (temporary / "elsewhere").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary / "elsewhere"))
    owner.kill()
    with LocalServer.start(kept, fsync=False) as server:
        assert query(server.dsn, "SELECT n FROM kept") == 5
        assert not guard.is_alive(where["pid"])
    assert (kept / "data").exists()
    if not also_guard:
        assert servers_of(temporary) == []


def test_sweep_leaves_alone_what_lives(temporary: Path) -> None:
    """A recorded process id may be somebody else's by now, and a living server's folder is never touched."""
    with LocalServer.start(fsync=False) as server:
        stale = server.socket_directory.parent.with_name("0000dead")
        (stale / "data").mkdir(parents=True)
        (stale / "data_directory").write_text(f"{stale / 'data'}\ntemporary")
        (stale / "data" / "postmaster.pid").write_text(f"{server.pid}\n{stale / 'data'}\n")
        bystander = subprocess.Popen(["sleep", "60"])
        other = stale.with_name("0001dead")
        (other / "data").mkdir(parents=True)
        (other / "data_directory").write_text(f"{other / 'data'}\ntemporary")
        (other / "data" / "postmaster.pid").write_text(f"{bystander.pid}\n")
        with LocalServer.start(fsync=False):
            assert not stale.exists()
            assert not other.exists()
        assert bystander.poll() is None
        bystander.kill()
        bystander.wait()
        assert query(server.dsn, "SELECT 1") == 1
