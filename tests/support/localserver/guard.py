"""Guard process that owns a private PostgreSQL server, and stops it when the process that started it ends.

``server`` runs this file as a script (isolated, standard library only) and talks to it over a socket: a line of JSON
each way. When the other end is closed, for whatever reason, the guard stops the server, removes its directory and ends.
It is the server's parent, so the server never runs unguarded, and no recycled process id is ever signalled.

A later start uses the same functions to remove a server whose guard was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
"""The environment of PostgreSQL's programs: without a user's locale, time zone or ``PG…`` variables."""

STARTED = ("ready", "standby")
POLL_S = 0.005
PARENT_CHECK_S = 1.0
STOP_S = 10.0
"""The time a temporary server has to stop before it is killed."""

PR_SET_CHILD_SUBREAPER = 36
IPC_RMID = 0


class Abandoned(Exception):
    """The other end is closed."""


# --- one server's processes --------------------------------------------------------------------------------


def postmaster_lines(data: Path) -> list[str]:
    """Return ``postmaster.pid``: process, directory, start, port, sockets, address, memory, status; or nothing."""
    try:
        return (data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def is_ready(data: Path, pid: int) -> bool:
    """Return whether the server accepts connections, by the line of its pid file that ``pg_ctl --wait`` reads."""
    lines = postmaster_lines(data)
    return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() in STARTED


def is_alive(pid: int) -> bool:
    """Return whether a process of that id exists and is not just waiting to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return True


def _listed(arguments: list[str]) -> str:
    return subprocess.run(["/bin/ps", *arguments], capture_output=True, text=True, check=False, env=ENVIRONMENT).stdout


def command_of(pid: int) -> str:
    """Return the command line of a process, arguments separated by spaces; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "" if sys.platform == "linux" else _listed(["-o", "command=", "-p", str(pid)]).strip()


def orphan_of(data: Path) -> int | None:
    """Return the id of a running server of this data directory, or None; ids that others have by now do not count."""
    lines = postmaster_lines(data)
    if not lines or not lines[0].lstrip("-").isdigit():
        return None
    pid = abs(int(lines[0]))
    return pid if pid > 1 and is_alive(pid) and command_of(pid).endswith(f"-D {data}") else None


def children_of(pid: int) -> list[int]:
    """Return the ids of the processes whose parent is ``pid``."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        rows = [line.split() for line in _listed(["-A", "-o", "pid=,ppid="]).splitlines()]
        return [int(row[0]) for row in rows if len(row) == 2 and row[1] == str(pid)]


def kill_tree(pid: int) -> None:
    """SIGKILL a server and all its processes, and return when they have ended.

    The children have to be killed too: a busy backend notices the death of its server only when it is done. The server
    is stopped first, so that it starts no further ones.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    family = [*children_of(pid), pid]
    for member in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    for member in family:
        while is_alive(member):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(member, os.WNOHANG)
            time.sleep(POLL_S)


def remove_shared_memory(data: Path) -> None:
    """Remove the segment that a killed server has left: some bytes, but a system has room for few. Linux only."""
    lines = postmaster_lines(data)
    words = lines[6].split() if len(lines) > 6 else []
    if len(words) != 2:
        return
    try:
        table = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:
        return
    column = {name: number for number, name in enumerate(table[0].split())}
    for line in table[1:]:
        row = line.split()
        if [row[column["key"]], row[column["shmid"]], row[column["nattch"]]] == [*words, "0"]:
            ctypes.CDLL(None).shmctl(int(words[1]), IPC_RMID, None)


def end_orphan(data: Path, *, keep: bool) -> None:
    """End a server whose guard was killed: in order if its data are kept, at once if not."""
    pid = orphan_of(data)
    if pid is not None and keep:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        while is_alive(pid) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if pid is not None and is_alive(pid):
        kill_tree(pid)
    remove_shared_memory(data)


# --- the guard ---------------------------------------------------------------------------------------------


class Guard:
    """One server at a time, on one data directory, for the process at the other end of ``channel``."""

    def __init__(self, channel: socket.socket, order: dict[str, Any]) -> None:
        self.channel = channel
        self.command: list[str] = order["command"]
        self.identity: dict[str, Any] = order["identity"]
        self.data = Path(order["data"])
        self.log = Path(order["log"])
        self.runtime = Path(order["runtime"])
        self.keep: bool = order["keep"]
        self.parent: int = order["parent"]
        self.server: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        """Answer requests until told to close, or until the other end is closed."""
        try:
            buffered = b""
            while True:
                self._wait_for_input()
                received = self.channel.recv(65536)
                if not received:
                    return
                buffered += received
                while b"\n" in buffered:
                    line, _, buffered = buffered.partition(b"\n")
                    order = json.loads(line)
                    answer = self.end() if order["do"] == "close" else self._answer(order)
                    self.channel.sendall(json.dumps(answer).encode() + b"\n")
                    if order["do"] == "close":
                        return
        except (Abandoned, OSError):
            pass
        finally:
            self.end()

    def _wait_for_input(self) -> None:
        # A process that was forked past Python's hooks may still hold the other end: the parent's death counts too.
        while not select.select([self.channel], [], [], PARENT_CHECK_S)[0]:
            if os.getppid() != self.parent:
                raise Abandoned

    def _answer(self, order: dict[str, Any]) -> dict[str, Any]:
        try:
            if order["do"] == "start":
                return self.start(order["timeout_ms"] / 1000)
            if order["do"] == "stop":
                return self.stop(order["signal"], order["timeout_ms"] / 1000)
            if order["do"] == "kill":
                self.kill()
            return {"ok": True, "running": self.runs()}
        except OSError as error:
            return {"ok": False, "reason": error.strerror or type(error).__name__}

    def runs(self) -> bool:
        return self.server is not None and self.server.poll() is None

    def start(self, timeout_s: float) -> dict[str, Any]:
        """Start the server and return when it accepts connections; where its part of the log begins, if it does not."""
        self.reap()
        with self.log.open("ab") as log:
            begins = log.tell()
            self.server = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                **self.identity,
            )
        deadline = time.monotonic() + timeout_s
        while not is_ready(self.data, self.server.pid):
            if self.server.poll() is not None:
                return {"ok": False, "reason": "exited", "log_from": begins}
            if time.monotonic() > deadline:
                self.kill()
                return {"ok": False, "reason": "timeout", "log_from": begins}
            self._breathe()
        return {"ok": True, "pid": self.server.pid}

    def stop(self, number: int, timeout_s: float) -> dict[str, Any]:
        """Send a signal and return when the server has ended."""
        if self.server is None or not self.runs():
            return {"ok": True}
        self.server.send_signal(number)
        deadline = time.monotonic() + timeout_s
        while self.runs():
            if time.monotonic() > deadline:
                return {"ok": False, "reason": "timeout"}
            self._breathe()
        return {"ok": True}

    def kill(self) -> None:
        """SIGKILL the server and everything it has started."""
        if self.server is not None and self.runs():
            kill_tree(self.server.pid)
            self.server.wait()
        self.reap()

    def reap(self) -> None:
        """Kill and reap the children of a server that died: Linux makes them the guard's."""
        if self.runs():
            return
        for child in children_of(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)

    def end(self) -> dict[str, Any]:
        """Stop the server, in order if its data are kept, and remove its temporary files."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if self.server is not None and self.runs():
                self.server.send_signal(signal.SIGINT if self.keep else signal.SIGQUIT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.server.wait(STOP_S)
            self.kill()
            remove_shared_memory(self.data)
        finally:
            shutil.rmtree(self.runtime, ignore_errors=True)
        return {"ok": not self.runtime.exists(), "reason": "not removed"}

    def _breathe(self) -> None:
        if select.select([self.channel], [], [], POLL_S)[0] and not self.channel.recv(1, socket.MSG_PEEK):
            raise Abandoned


def _leave(_number: int, _frame: object) -> None:
    raise Abandoned


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    if sys.platform == "linux":
        # Children of a killed server become this process's, so that they can be found and reaped.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with socket.socket(fileno=os.dup(0)) as channel:
        os.set_inheritable(channel.fileno(), False)
        Guard(channel, json.loads(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
