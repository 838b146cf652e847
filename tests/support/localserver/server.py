"""Class ``LocalServer``: starts, reports and stops a private PostgreSQL server.

::

    with LocalServer.start() as server:
        connection = psycopg.connect(server.dsn)

It needs no installation and no network. It listens on a Unix socket in a folder that only its owner can enter, and lets
that owner log in as any role, identified by the socket itself. A guard process owns the server: when the process that
started it ends, however that happens, the server ends and its files are removed. The next start removes the files that
a killed guard leaves.

Readiness is read from ``postmaster.pid``, as ``pg_ctl --wait`` does: no driver is needed.

Shapes of a place: a temporary server has one folder, ``caliber-pg-<uid>/<id>`` below the system's folder for temporary
files. With ``directory`` the cluster (``data``), its log and its password stay there, and only the socket is temporary.

Threads may share a server. A forked child may use its DSN and nothing else; the end of the parent ends the server.

Source: design section 11.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self
from urllib.parse import quote

from caliber.model.errors import InvalidValue, Unavailable
from caliber.model.process.interrupts import let_through
from support.localserver import files, guard
from support.localserver.files import SUPERUSER, Programs
from support.localserver.place import FEATURE, Account, Place, account, cannot_write, no_room
from support.localserver.settings import Options, Value, write_settings

StopMode = Literal["smart", "fast", "immediate"]

UNIX_PORT: Final = 5432
TCP_TRIES: Final = 5
LOG_TAIL_BYTES: Final = 4096

_SIGNALS: Final[Mapping[str, int]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_NOTHING: Final[Mapping[str, Value]] = MappingProxyType({})
_live: weakref.WeakSet[LocalServer] = weakref.WeakSet()


class LocalServer:
    """A running private PostgreSQL server; see the module for its guarantees."""

    def __init__(self, place: Place, programs: Programs, who: Account, options: Options) -> None:
        """Not for callers: use ``LocalServer.start``."""
        self._place = place
        self._programs = programs
        self._who = who
        self._options = options
        self._lock = threading.RLock()
        self._state: Literal["open", "closed", "forked"] = "open"
        self._pid: int | None = None
        self._port = UNIX_PORT
        self.guard, self._channel = _spawn_guard(place, programs, who)
        _live.add(self)

    @classmethod
    def start(
        cls,
        directory: str | os.PathLike[str] | None = None,
        *,
        settings: Mapping[str, Value] = _NOTHING,
        fsync: bool = True,
        tcp: bool = False,
        hba: Sequence[str] = (),
        locale: str = "C.UTF-8",
        user: str | None = None,
        cache_directory: str | os.PathLike[str] | None = None,
        timeout_ms: int = 60_000,
    ) -> LocalServer:
        """Start a server and return when it accepts connections.

        ``directory`` keeps the cluster there, made if it is not; without it everything goes with the server.
        ``settings`` are PostgreSQL's own. ``fsync=False`` also turns off full page writes: for data that nobody will
        miss. ``tcp`` adds a loopback port with a password (``tcp_dsn``). ``hba`` are lines of ``pg_hba.conf`` before
        the one that lets the owner in. ``locale`` is the cluster's: ``C.UTF-8`` and ``C`` are built in. ``user`` is
        who it runs as when root starts it, ``nobody`` otherwise.

        Raises: InvalidValue for an argument that cannot work; SchemaMismatch for a cluster of another version;
            Unavailable without the wheel, and if the disk is full, the directory in use, or the server ends or takes
            longer than ``timeout_ms``.
        """
        options = Options(settings, fsync=fsync, tcp=tcp, hba=hba, timeout_ms=timeout_ms)
        who = account(user)
        found = files.installed()
        cache = files.cache_folder(None if cache_directory is None else Path(cache_directory), who)
        programs = files.reachable(found, who, cache)
        template = files.template(programs, who, cache, locale)
        place = Place.claim(None if directory is None else Path(directory).absolute(), who, timeout_ms)
        try:
            server = cls(place, programs, who, options)
        except OSError as error:
            let_through(error)
            shutil.rmtree(place.runtime, ignore_errors=True)
            raise cannot_write(place.runtime, error) from error
        finally:
            # From here on the guard alone holds the lock that others wait for.
            place.release()
        try:
            _fill(place, programs, template, who, sync=fsync)
            server.restart()
        except BaseException:
            server.close()
            raise
        return server

    # --- properties --------------------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The connection string of the superuser, over the Unix socket."""
        return self.dsn_of()

    def dsn_of(self, *, database: str = "postgres", user: str = SUPERUSER) -> str:
        """Return a connection string of any role and database, over the Unix socket, without a password."""
        host = quote(str(self.socket_directory), safe="")
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={host}&port={self._port}"

    @property
    def tcp_dsn(self) -> str:
        """The superuser's connection string over loopback, with its password. Raises: InvalidValue without ``tcp``."""
        if not self._options.tcp:
            raise InvalidValue(field="tcp", reason="the server has no TCP port; start it with tcp=True")
        password = quote(self._place.password.read_text(), safe="")
        return f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._pid if self.running else None

    @property
    def port(self) -> int:
        """The number in the socket's name; also that of the TCP port, if there is one."""
        return self._port

    @property
    def running(self) -> bool:
        """True while the server's process runs."""
        return self._state == "open" and bool(self._ask({"do": "state"}).get("running"))

    @property
    def socket_directory(self) -> Path:
        """The folder of the Unix socket, to be given to clients as ``host``."""
        return self._place.sockets

    @property
    def data_directory(self) -> Path:
        """The cluster."""
        return self._place.data

    @property
    def log_path(self) -> Path:
        """The server's log since its directory was made."""
        return self._place.log

    def program(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's programs of this version, such as ``pg_dump``."""
        path = self._programs.path(name)
        if not path.exists():
            raise InvalidValue(field="name", reason=f"PostgreSQL has no program {name!r} here")
        return path

    def __repr__(self) -> str:
        return f"<LocalServer {self._place.data} {self._state}>"

    # --- operations --------------------------------------------------------------------------------------

    def restart(self, *, settings: Mapping[str, Value] | None = None) -> None:
        """Stop the server if it runs (``fast``), and start it; ``settings`` replace those it had.

        Raises: Unavailable, with the end of the server's log, if it does not come up.
        """
        with self._lock:
            self._check()
            if settings is not None:
                self._options = self._options.with_settings(settings)
            self.stop()
            for attempt in range(TCP_TRIES):
                if self._options.tcp:
                    self._port = free_port()
                self._write_settings()
                answer = self._ask({"do": "start", "timeout_ms": self._options.timeout_ms})
                if answer["ok"]:
                    self._pid = answer["pid"]
                    return
                log = self._log_from(answer.get("log_from", 0))
                is_port_taken = "could not bind" in log or "Address already in use" in log
                if not (self._options.tcp and is_port_taken) or attempt == TCP_TRIES - 1:
                    raise _did_not_start(answer["reason"], log, self._place.data, self._options.timeout_ms)

    def stop(self, mode: StopMode = "fast", *, timeout_ms: int | None = None) -> None:
        """Stop the server; ``restart`` starts it again.

        ``smart`` waits until clients have gone, ``fast`` sends them away, ``immediate`` leaves recovery to the next
        start.

        Raises: Unavailable if it has not ended within ``timeout_ms`` (as given to ``start``, if not given here); it
            then goes on ending.
        """
        if mode not in _SIGNALS:
            raise InvalidValue(field="mode", reason=f"must be one of {', '.join(_SIGNALS)}")
        with self._lock:
            self._check()
            wait_ms = self._options.timeout_ms if timeout_ms is None else timeout_ms
            answer = self._ask({"do": "stop", "signal": _SIGNALS[mode], "timeout_ms": wait_ms})
            if not answer["ok"]:
                raise Unavailable(
                    f"the server has not ended within {wait_ms} ms (mode {mode}); clients may still be connected",
                    reason="timeout",
                )

    def kill(self) -> None:
        """SIGKILL the server and all its processes, at once; ``restart`` starts it again and recovers."""
        with self._lock:
            self._check()
            self._ask({"do": "kill"})

    def close(self) -> None:
        """Stop the server and remove its temporary files; a kept directory stays. Closing twice is harmless."""
        with self._lock:
            if self._state != "open":
                return
            try:
                self._ask({"do": "close"})
            except Unavailable:
                # The guard was killed: its work is done from here.
                guard.end_orphan(self._place.data, keep=self._place.keep)
                shutil.rmtree(self._place.runtime, ignore_errors=True)
            finally:
                self._state = "closed"
                _live.discard(self)
                self._channel.close()
                self.guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._state == "forked":
            raise Unavailable(
                "this server belongs to the process that started it; a forked child may only connect to it",
                reason="forked",
                retryable=False,
            )
        if self._state == "closed":
            raise Unavailable("this server is closed; start another", reason="closed", retryable=False)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._check()
            try:
                self._channel.sendall(json.dumps(order).encode() + b"\n")
                reply = b""
                while not reply.endswith(b"\n"):
                    received = self._channel.recv(65536)
                    if not received:
                        break
                    reply += received
            except OSError as error:
                let_through(error)
                reply = b""
            if not reply.endswith(b"\n"):
                raise Unavailable(
                    "the server's guard is gone, so the server cannot be managed any more; close it and start another",
                    reason="no guard",
                    retryable=False,
                )
            answer: dict[str, Any] = json.loads(reply)
            return answer

    def _write_settings(self) -> None:
        try:
            write_settings(self._place.data, self._who, self._options, sockets=self._place.sockets, port=self._port)
        except OSError as error:
            let_through(error)
            raise cannot_write(self._place.data, error) from error

    def _log_from(self, begins: int) -> str:
        try:
            with self._place.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(max(begins, end - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace")
        except OSError as error:
            let_through(error)
            return ""

    def mark_forked(self) -> None:
        """Refuse every call from now on, in the copy of a forked child."""
        self._state = "forked"
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()
        # While this copy were open, the guard could not see the parent's end.
        self._channel.close()
        # The guard is no child of this process: there is nothing to wait for.
        self.guard.returncode = 0


def _spawn_guard(place: Place, programs: Programs, who: Account) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    order = {
        "command": [str(programs.path("postgres")), "-D", str(place.data)],
        "identity": who.identity(),
        "data": str(place.data),
        "log": str(place.log),
        "runtime": str(place.runtime),
        "keep": place.keep,
        "parent": os.getpid(),
    }
    with theirs, place.log.open("ab") as log:
        # A new session: signals of a terminal are not for the server.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(order)],
            stdin=theirs.fileno(),
            stdout=log,
            stderr=log,
            pass_fds=place.locks,
            cwd="/",
            start_new_session=True,
        )
    return process, ours


def _fill(place: Place, programs: Programs, template: Path, who: Account, *, sync: bool) -> None:
    """Create the cluster, unless it exists."""
    if place.data.exists():
        files.check_cluster(place.data, template, who)
        return
    try:
        place.password.touch(mode=0o600)
        place.password.write_text((template / "password").read_text())
    except OSError as error:
        let_through(error)
        raise cannot_write(place.password, error) from error
    # Of a folder that goes with its server nothing has to survive the machine.
    files.new_cluster(programs, template, place.data, who, sync=sync and place.keep)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _did_not_start(reason: str, log: str, data: Path, timeout_ms: int) -> Unavailable | InvalidValue:
    if "No space left on device" in log:
        return no_room(data, shutil.disk_usage(data).free)
    complaint = next((line for line in log.splitlines() if "FATAL:" in line or "LOG:  unrecognized" in line), "")
    if "configuration file" in complaint or "invalid value for parameter" in log or "unrecognized config" in log:
        return InvalidValue(field="settings", reason=f"PostgreSQL refuses them: {log.strip()}")
    if reason == "timeout":
        return Unavailable(f"{FEATURE} was not ready within {timeout_ms} ms:\n{log.strip()}", reason="timeout")
    return Unavailable(f"{FEATURE} did not start ({reason}):\n{log.strip()}", reason="did not start", retryable=False)


def _after_fork_in_child() -> None:
    for server in list(_live):
        server.mark_forked()
    _live.clear()


def _close_all() -> None:
    for server in list(_live):
        with contextlib.suppress(Unavailable):
            server.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
