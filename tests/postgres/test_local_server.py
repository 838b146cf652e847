"""The private PostgreSQL server of the tests: what runs, and that it ends with the process that started it."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.local_server import LocalServer, children_of, is_alive
from support.waits import until

pytestmark = pytest.mark.prove

OWNER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.local_server import LocalServer
server = LocalServer.start(fsync=False)
print(server.pid, server.home, flush=True)
input()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    hba = ["local all guest scram-sha-256"]
    with LocalServer.start(settings={"work_mem": "7MB"}, hba=hba, tcp=True, fsync=False) as running:
        yield running


def one(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
    return row[0]


def test_it_is_private_and_has_pgvector(server: LocalServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("CREATE EXTENSION pg_trgm")
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'known'")
    assert one(server.dsn, "SELECT '[1,0]'::vector <=> '[0,1]'::vector") == pytest.approx(1.0)
    for name, value in {"server_encoding": "UTF8", "work_mem": "7MB", "fsync": "off", "timezone": "UTC"}.items():
        assert one(server.dsn, f"SHOW {name}") == value, name
    owner = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    for folder in (server.home, server.data_directory):
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (owner, 0o700)
    assert one(server.tcp_dsn, "SELECT 1") == 1
    for dsn in (server.tcp_dsn.replace("postgres:", "postgres:x"), f"{server.dsn_of(user='guest')}&password=wrong"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(dsn)


def test_killed_or_stopped_it_starts_again_with_its_data(server: LocalServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 5 AS n")
    assert server.pid is not None
    family = [server.pid, *children_of(server.pid)]
    assert len(family) > 5
    server.kill()
    assert not any(map(is_alive, family))
    server.restart()
    assert one(server.dsn, "SELECT n FROM kept") == 5
    server.stop()
    assert not server.running
    server.restart()
    assert one(server.tcp_dsn, "SELECT n FROM kept") == 5


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_it_ends_with_its_owner_and_leaves_nothing(how: str) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tests], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    pid, home = owner.stdout.readline().split()
    family = [int(pid), *children_of(int(pid))]
    if how == "killed":
        owner.kill()
    owner.communicate("\n" if how == "closed" else None)
    until(lambda: not any(map(is_alive, family)), "every process has ended")
    until(lambda: not Path(home).exists(), "its folder is gone")


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        LocalServer.start(settings={"no_such_setting": 1})
