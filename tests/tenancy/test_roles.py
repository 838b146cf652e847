"""A login role a tenant: the database itself keeps tenants apart. Source: O-1, issue 5, items 1 and 8."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from support.configs import USER
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer, free_port
from support.postgres.pgbouncer import PROGRAM, until_it_answers
from support.tenancy.tenancies import SECOND, SECRET, tenancy_config

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.postgres.connecting.dialling import connect, dsn_of, password_of
from caliber.backends.postgres.schema import dialect_for
from caliber.backends.postgres.store import shared_for
from caliber.config import CaliberConfig
from caliber.model.errors import Conflict, Unavailable

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def both(second_postgres: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaliberConfig]:
    """Two tenants with login roles on one server, and something in each."""
    settings = tenancy_config(tmp_path_factory.mktemp("roles"), tenancy__new_tenants="second")
    for name in ("alice", "bob"):
        caliber.create(settings, tenant=name)
        with caliber.open(settings, tenant=name) as memory:
            memory.start_trajectory(f"the secret of {name}", initiator=USER)
    yield settings
    with caliber.Tenants(settings) as tenants:
        for tenant in tenants.all():
            tenants.drop(tenant.name)


def storage_of(settings: CaliberConfig, name: str) -> Any:
    with caliber.Tenants(settings) as tenants:
        return tenants.config(name).storage


@pytest.fixture
def alice(both: CaliberConfig) -> Iterator[psycopg.Connection[Any]]:
    """A bare connection with the login of one tenant, whatever SQL its holder thinks of."""
    with psycopg.connect(dsn_of(storage_of(both, "alice")), autocommit=True) as connection:
        yield connection


ATTEMPTS = {
    "read": 'SELECT * FROM "{bob}".trajectory',
    "write": 'DELETE FROM "{bob}".trajectory',
    "count through COPY": 'COPY "{bob}".turn TO STDOUT',
    "next number": "SELECT nextval('\"{bob}\".turn_ordinal_seq')",
    "lock": 'BEGIN; LOCK TABLE "{bob}".text_state',
    "view on it": 'CREATE VIEW "{alice}".spy AS SELECT * FROM "{bob}".trajectory',
    "reference to it": 'CREATE TABLE "{alice}".spy (id uuid REFERENCES "{bob}".trajectory (trajectory_id))',
    "table in it": 'CREATE TABLE "{bob}".mine (a int)',
    "fence around it": 'CREATE FUNCTION "{bob}".caliber_fence() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$',
    "another role": 'SET ROLE "{bob_role}"',
    "another role for a transaction": 'BEGIN; SET LOCAL ROLE "{bob_role}"',
    "another session": 'SET SESSION AUTHORIZATION "{bob_role}"',
    "membership": 'GRANT "{bob_role}" TO "{alice_role}"',
    "the schema's owner": 'ALTER SCHEMA "{bob}" OWNER TO "{alice_role}"',
    "a trap in public": "CREATE TABLE public.trajectory (a int)",
    "a role": "CREATE ROLE helper LOGIN",
    "a file": "SELECT pg_read_file('postgresql.conf')",
    "a program": "COPY (SELECT 1) TO PROGRAM 'true'",
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_the_database_refuses_to_cross(both: CaliberConfig, alice: psycopg.Connection[Any], what: str) -> None:
    # issue 5 item 1: "grants that stop cross-tenant reads in the database"
    one, other = storage_of(both, "alice"), storage_of(both, "bob")
    statement = ATTEMPTS[what].format(
        alice=one.schema_name, bob=other.schema_name, alice_role=one.login_role, bob_role=other.login_role
    )
    with pytest.raises(errors.InsufficientPrivilege):
        alice.execute(statement.encode())


def test_a_search_path_leads_nowhere(both: CaliberConfig, alice: psycopg.Connection[Any]) -> None:
    other = storage_of(both, "bob").schema_name
    alice.execute(f'SET search_path TO "{other}", public'.encode())
    with pytest.raises(errors.UndefinedTable):  # a schema one may not use is passed over
        alice.execute(b"SELECT * FROM trajectory")
    own = storage_of(both, "alice").schema_name
    assert alice.execute(f'SELECT goal FROM "{own}".trajectory'.encode()).fetchall() == [("the secret of alice",)]


def test_a_role_has_one_password_and_only_its_own(both: CaliberConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = storage_of(both, "alice"), storage_of(both, "bob")
    mixed = psycopg.conninfo.conninfo_to_dict(dsn_of(one)) | {"user": other.login_role}
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(**mixed)
    secret = os.environ[SECRET]  # the variable that login_secret names
    monkeypatch.setenv(SECRET, "another secret")
    with pytest.raises(Unavailable) as refused:
        caliber.open(both, tenant="alice")
    assert refused.value.context["reason"] == "wrong password"
    assert "another secret" not in str(refused.value)
    monkeypatch.setenv(SECRET, secret)
    with psycopg.connect(os.environ[SECOND]) as connection:
        stored = connection.execute(
            b"SELECT rolpassword FROM pg_authid WHERE rolname = %s", (one.login_role,)
        ).fetchone()
    assert stored[0].startswith("SCRAM-SHA-256$")


def test_what_works_for_a_role_is_what_works_without(both: CaliberConfig) -> None:
    """It owns its schema: reads, writes, loads, upkeep, and what is created beside rows."""
    with caliber.open(both, tenant="bob") as memory:
        trajectory = memory.start_trajectory("everything", initiator=USER)
        scope = memory.current_scope(trajectory.trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content="hello")
        memory.storage.bulk_load("note", memory.storage.bulk_read("note").read_all(), on_existing="skip")
        memory.assemble_context(trajectory.trajectory_id, query="hello")
        memory.flush()
        memory.admin.maintain()
        assert memory.admin.verify() == []
    assert caliber.migrate(both, tenant="bob") == []


def test_without_the_right_to_make_roles_it_says_what_to_grant(
    both: CaliberConfig, second_postgres: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue 5, bad input: missing rights
    admin = os.environ[SECOND]
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(b"CREATE ROLE plain LOGIN PASSWORD 'plain'")
        connection.execute(b"GRANT CREATE ON DATABASE postgres TO plain")
        try:
            settings = tenancy_config(tmp_path, tenancy__new_tenants="second")
            monkeypatch.setenv(SECOND, psycopg.conninfo.make_conninfo(admin, user="plain", password="plain"))
            with pytest.raises(Unavailable) as refused:
                caliber.create(settings, tenant="carol")
            assert refused.value.context["reason"] == "missing rights"
            assert "CREATEROLE" in str(refused.value)
            with pytest.raises(Unavailable, match="never finished"):
                caliber.open(settings, tenant="carol")
            connection.execute(b"ALTER ROLE plain CREATEROLE")
            caliber.create(settings, tenant="carol")  # goes on with what was begun
            with caliber.open(settings, tenant="carol") as memory:
                memory.start_trajectory("with rights", initiator=USER)
            with caliber.Tenants(settings) as tenants:
                role = tenants.config("carol").storage.login_role
                tenants.drop("carol")
            found = connection.execute(b"SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
            assert found is None
        finally:
            connection.execute(b"DROP OWNED BY plain")
            connection.execute(b"DROP ROLE plain")


def test_a_role_that_is_somebody_elses_is_left_alone(both: CaliberConfig, second_postgres: LocalServer) -> None:
    with caliber.Tenants(both) as tenants:
        place = inspect(tenants).directory.new_place("dora", "second")
        role = storage_of(both, "alice").login_role.replace("alice", "dora")
        with psycopg.connect(os.environ[SECOND], autocommit=True) as connection:
            connection.execute(f'CREATE ROLE "{role}" LOGIN SUPERUSER'.encode())
            try:
                with pytest.raises(Conflict, match="not this tenant's"):
                    tenants.create("dora")
                found = connection.execute(b"SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.location,))
                assert found.fetchone() is None
            finally:
                connection.execute(f'DROP ROLE "{role}"'.encode())
        tenants.create("dora")


def test_a_role_that_is_used_elsewhere_stays_with_what_it_owns(
    second_postgres: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue 5 item 8: "nothing lost"; roles are a server's: other databases of it, or another name for one, share them
    other = f"other_{tmp_path.name[-20:].replace('-', '_')}"
    with psycopg.connect(os.environ[SECOND], autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{other}"'.encode())
    monkeypatch.setenv("CALIBER_TEST_OTHER_DSN", psycopg.conninfo.make_conninfo(os.environ[SECOND], dbname=other))
    known: Any = tenancy_config(tmp_path, tenancy__new_tenants="second").to_mapping()
    place = known["tenancy"]["sources"]["second"]
    sources = {"second": place, "again": place, "other": {**place, "dsn": "env:CALIBER_TEST_OTHER_DSN"}}
    settings = CaliberConfig.from_mapping({**known, "tenancy": {**known["tenancy"], "sources": sources}})

    def goal() -> str:
        with caliber.open(settings, tenant="alice") as memory:
            said: str = memory.storage.trajectories.get(task).goal
            return said

    def broken_off(begun: str, *_: Any) -> None:
        if begun == "finish":
            raise KeyboardInterrupt

    caliber.create(settings, tenant="alice")
    with caliber.open(settings, tenant="alice") as memory:
        task = memory.start_trajectory("stay", initiator=USER).trajectory_id
    with caliber.Tenants(settings) as tenants:
        with pytest.raises(Conflict, match="something else"):
            tenants.move("alice", "again")
        tenants.abort_move("alice")
        assert goal() == "stay"
        with pytest.raises(KeyboardInterrupt):
            tenants.move("alice", "other", progress=broken_off)
        tenants.abort_move("alice")
        assert goal() == "stay"
        with psycopg.connect(os.environ["CALIBER_TEST_OTHER_DSN"], autocommit=True) as connection:
            schema = tenants.config("alice").storage.schema_name
            connection.execute(f'CREATE SCHEMA "{schema}"'.encode())
            with pytest.raises(Conflict, match="not of role"):
                tenants.move("alice", "other")
            assert tenants.abort_move("alice").target is None
            connection.execute(f'DROP SCHEMA "{schema}"'.encode())
        tenants.move("alice", "other")
        tenants.drop_old("alice")
        assert goal() == "stay"
        role = tenants.config("alice").storage.login_role
        tenants.drop("alice")
    with psycopg.connect(os.environ[SECOND]) as connection:
        assert connection.execute(b"SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone() is None


@pytest.mark.skipif(not os.path.exists(PROGRAM), reason="PgBouncer is not installed")  # noqa: PTH110
def test_own_logins_work_through_pgbouncer(both: CaliberConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 5: in transaction mode SET ROLE does not last; logins of one's own do
    to = psycopg.conninfo.conninfo_to_dict(os.environ[SECOND])
    stores = {name: storage_of(both, name) for name in ("alice", "bob")}
    with open_folder() as folder:
        users = {str(to["user"]): str(to["password"])}
        users |= {str(each.login_role): password_of(each) for each in stores.values()}
        (folder / "users.txt").write_text("".join(f'"{user}" "{word}"\n' for user, word in users.items()))
        (folder / "users.txt").chmod(0o644)
        port = free_port()
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n{to['dbname']} = host={to['host']} port={to['port']} dbname={to['dbname']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {folder / 'users.txt'}\npool_mode = transaction\n"
            "default_pool_size = 2\n"
        )
        (folder / "pgbouncer.ini").chmod(0o644)
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([PROGRAM, "-q", *user, str(folder / "pgbouncer.ini")])
        try:
            bounced = psycopg.conninfo.make_conninfo(os.environ[SECOND], host="127.0.0.1", port=port)
            until_it_answers(bounced)
            monkeypatch.setenv(SECOND, bounced)
            unprepared = both.with_overrides(**{"tenancy.sources.second.prepared_max": 0})
            for name in ("alice", "bob"):
                with caliber.open(unprepared, tenant=name) as memory:
                    goals = [each.goal for each in memory.storage.trajectories.all()]
                    assert f"the secret of {name}" in goals
                    memory.start_trajectory(f"through a pool, {name}", initiator=USER)
            with (
                psycopg.connect(dsn_of(stores["alice"]), prepare_threshold=None) as connection,
                pytest.raises(errors.InsufficientPrivilege),
            ):
                connection.execute(f'SELECT * FROM "{stores["bob"].schema_name}".trajectory'.encode())
        finally:
            process.terminate()
            process.wait(10)


def test_many_who_need_pgvector_first_all_get_it(
    second_postgres: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # two moves into one new database: who makes the role of a tenant makes the extension, too
    fresh = f"fresh_{tmp_path.name[-20:].replace('-', '_')}"
    with psycopg.connect(os.environ[SECOND], autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{fresh}"'.encode())
    monkeypatch.setenv("CALIBER_TEST_FRESH_DSN", psycopg.conninfo.make_conninfo(os.environ[SECOND], dbname=fresh))
    knobs = {"storage.adapter": "postgres", "storage.schema_name": "any"}
    shared = shared_for(caliber.profiles.reference("env:CALIBER_TEST_FRESH_DSN", **knobs).storage)
    connections = [connect(shared) for _ in range(4)]
    begin = threading.Barrier(len(connections))

    def need(connection: PgConnection) -> str:
        begin.wait(30)
        return dialect_for(connection, "any", "any").vector_schema

    try:
        with ThreadPoolExecutor(len(connections)) as pool:
            assert list(pool.map(need, connections)) == ["public"] * len(connections)
    finally:
        for each in connections:
            each.close()
