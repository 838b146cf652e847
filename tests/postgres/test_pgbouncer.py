"""PostgreSQL behind the real PgBouncer in transaction mode: each transaction may get another server connection.

Skips where the program is not installed; CALIBER_TEST_PGBOUNCER names it where it is not on the path.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from support.configs import USER, config
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer, free_port
from support.postgres.pgbouncer import PROGRAM, until_it_answers
from support.threads import at_once
from support.waits import until

import caliber
from caliber.model.agents import LockToken
from caliber.model.errors import CaliberError, InvalidConfigValue

VARIABLE = "CALIBER_TEST_BOUNCED_DSN"
DIRECT = "CALIBER_TEST_DIRECT_DSN"
SERVER_CONNECTIONS = 2

pytestmark = [pytest.mark.prove, pytest.mark.skipif(not os.path.exists(PROGRAM), reason="PgBouncer is not installed")]  # noqa: PTH110


@pytest.fixture(scope="module")
def bounced() -> Iterator[str]:
    """The DSN of a PgBouncer in transaction mode that has fewer server connections than its clients want."""
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False, tcp=True) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
        to = psycopg.conninfo.conninfo_to_dict(server.tcp_dsn)
        port = free_port()
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{to['dbname']} = host={to['host']} port={to['port']} dbname={to['dbname']}"
            f" user={to['user']} password={to['password']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 100\n"
        )
        settings.chmod(0o644)
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([PROGRAM, "-q", *user, str(settings)])
        try:
            dsn = f"host=127.0.0.1 port={port} dbname={to['dbname']} user={to['user']}"
            until_it_answers(dsn)
            os.environ[VARIABLE] = dsn
            os.environ[DIRECT] = server.dsn
            yield dsn
        finally:
            os.environ.pop(VARIABLE, None)
            os.environ.pop(DIRECT, None)
            process.terminate()
            process.wait(10)


def settings_for(schema: str, **overrides: Any) -> Any:
    knobs = {"storage__adapter": "postgres", "storage__schema_name": schema, "storage__prepared_max": 0}
    return config(f"env:{VARIABLE}", **{**knobs, **overrides})


def test_writers_readers_and_locks_share_fewer_connections_than_they_want(bounced: str) -> None:
    # design section 5: it breaks LISTEN, session advisory locks and SET ROLE; none of them is used through it
    settings = settings_for("shared", storage__pool_max=6)
    caliber.create(settings)
    failed: list[BaseException] = []
    with caliber.open(settings) as one, caliber.open(settings) as other:
        trajectory = one.start_trajectory("goal", initiator=USER)
        scope = one.current_scope(trajectory.trajectory_id)
        assert scope is not None
        inspect(other).snapshot("latest")

        def write(at: int) -> None:
            memory = (one, other)[at % 2]
            try:
                for number in range(8):
                    memory.append_turn(scope.scope_id, role="user", content=f"{at}.{number}")
                    memory.add_note(
                        entity="e", entity_type="t", note_type="fact", content=f"note {at}.{number}", confidence=0.5
                    )
                lock = memory.agents.locks.acquire("resource", holder=str(at), wait_ms=20_000)
                token = LockToken(lock.resource, lock.token)
                memory.append_turn(scope.scope_id, role="user", content=f"{at} held it", guard=token)
                memory.agents.locks.release(token, holder=str(at))
            except BaseException as error:
                failed.append(error)

        at_once([partial(write, at) for at in range(4)])
        assert failed == []
        for memory in (one, other):
            memory.flush()
            inspect(memory).snapshot("latest")
            assert memory.admin.verify() == []
            assert len(memory.storage.turns.list_by_scope(scope.scope_id)) == 36
            assert memory.storage.notes.count() == 32


def test_limits_are_those_of_the_transaction(bounced: str) -> None:
    settings = settings_for("limits", storage__statement_timeout_ms=60)
    caliber.create(settings)
    with caliber.open(settings) as memory:
        with inspect(memory).store.read() as session, pytest.raises(CaliberError, match="timeout"):
            session.command("SELECT pg_sleep(5)")  # type: ignore[attr-defined]
        with psycopg.connect(bounced, prepare_threshold=None) as raw:
            assert [raw.execute("SHOW statement_timeout").fetchone() for _ in range(4)] == [("0",)] * 4
        memory.start_trajectory("goal", initiator=USER)


def test_commits_are_heard_of_past_it(bounced: str) -> None:
    # design section 5: LISTEN runs on a direct connection
    settings = settings_for("heard", storage__feed_dsn=f"env:{DIRECT}")
    caliber.create(settings)
    with caliber.open(settings) as one, caliber.open(settings) as other:
        assert one.admin.stats()["store"]["feed"]["mode"] == "listening"
        made = other.add_note(entity="e", entity_type="t", note_type="fact", content="told", confidence=0.5)
        until(lambda: made.note_id in [hit.id for hit in one.search("told", kinds=["note"]).hits], "it never heard")
    with pytest.raises(InvalidConfigValue, match="leads to a connection pool"):
        caliber.open(settings_for("heard", storage__feed_dsn=f"env:{VARIABLE}"))
