"""A network to PostgreSQL that can fall silent: connections stay open, and nothing comes through."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import psycopg

_PROXY = """
import socket, sys, threading
host, port = sys.argv[1:]
def server():
    if not host.startswith("/"):
        return socket.create_connection((host, int(port)))
    there = socket.socket(socket.AF_UNIX)
    there.connect(f"{host}/.s.PGSQL.{port}")
    return there
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen(64)
print(listening.getsockname()[1], flush=True)
while True:
    here, _ = listening.accept()
    there = server()
    for ends in ((here, there), (there, here)):
        threading.Thread(target=pump, args=ends, daemon=True).start()
"""
_LONGEST_S = 60


class Network:
    """A process between clients and a server. Stopped it is a network that loses everything, and says nothing."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            host, port = connection.info.host, connection.info.port
        command = [sys.executable, "-c", _PROXY, host, str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        here = int(self._process.stdout.readline())
        self.dsn = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=here)
        self._end: subprocess.Popen[Any] | None = None

    def fall_silent(self) -> None:
        """Let nothing through any more. A process that is frozen could not end it: another does, after a minute."""
        self._process.send_signal(signal.SIGSTOP)
        again = f"sleep {_LONGEST_S}; kill -CONT {self._process.pid}"
        self._end = subprocess.Popen(["sh", "-c", f"{again} & trap 'kill $!' TERM; wait"], stdin=subprocess.DEVNULL)

    def come_back(self) -> None:
        """Deliver what was sent meanwhile, and all that follows."""
        self._process.send_signal(signal.SIGCONT)
        self._stop_waiting()

    def close(self) -> None:
        """Break every connection."""
        self._stop_waiting()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _stop_waiting(self) -> None:
        if self._end is not None:
            self._end.terminate()
            self._end.wait()
            self._end = None
