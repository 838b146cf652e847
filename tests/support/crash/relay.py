"""A TCP relay between clients and a PostgreSQL server that stops passing bytes when it is told to: in one direction,
or in both. Connections stay open, and new ones are accepted.
"""

from __future__ import annotations

import socket
import subprocess
import sys

import psycopg

_PROGRAM = """
import socket, sys, threading
host, port = sys.argv[1:]
passing = {"up": threading.Event(), "down": threading.Event()}
for one in passing.values():
    one.set()
def server():
    if not host.startswith("/"):
        return socket.create_connection((host, int(port)))
    made = socket.socket(socket.AF_UNIX)
    made.connect(f"{host}/.s.PGSQL.{port}")
    return made
def pump(source, target, gate):
    try:
        while data := source.recv(65536):
            gate.wait()
            target.sendall(data)
        gate.wait()
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass
def connect(client):
    try:
        other = server()
    except OSError:
        client.close()
        return
    for source, target, way in ((client, other, "up"), (other, client, "down")):
        threading.Thread(target=pump, args=(source, target, passing[way]), daemon=True).start()
def obey(orders):
    while True:
        here, _ = orders.accept()
        with here, here.makefile("rw") as lines:
            silent = lines.readline().split()
            for way, gate in passing.items():
                (gate.clear if way in silent else gate.set)()
            print("done", file=lines, flush=True)
def listening():
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(64)
    return made
clients, orders = listening(), listening()
print(clients.getsockname()[1], orders.getsockname()[1], flush=True)
threading.Thread(target=obey, args=(orders,), daemon=True).start()
while True:
    threading.Thread(target=connect, args=(clients.accept()[0],), daemon=True).start()
"""


def silence(orders: int, *ways: str) -> None:
    """Pass nothing ``up`` (to the server) or ``down`` (to the client) from now on; without ways pass everything."""
    with socket.create_connection(("127.0.0.1", orders)) as here, here.makefile("rw") as lines:
        print(*ways, file=lines, flush=True)
        assert lines.readline() == "done\n"


class Relay:
    """The relay's process: ``dsn`` leads through it, ``orders`` is the port that ``silence`` needs."""

    def __init__(self, dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            host, port = connection.info.host, connection.info.port
        command = [sys.executable, "-S", "-c", _PROGRAM, host, str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        clients, self.orders = map(int, self._process.stdout.readline().split())
        self.dsn = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", hostaddr="", port=clients)

    def close(self) -> None:
        """Break every connection."""
        self._process.kill()
        self._process.communicate()
