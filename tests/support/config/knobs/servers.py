"""Knobs that only PostgreSQL shows: of a store, of one as a tenant, of the directory of tenants, of vector indexes.

They are tried on one schema, which is that of a tenant too; ``server`` makes it once.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from support.config.knobs.case import FILE, NO_VECTORS, Case, Knobs, Place, released, works
from support.config.knobs.files import (
    HERE,
    SHORT_MS,
    SOURCE,
    STORE,
    closings,
    insert,
    store_of,
)
from support.config.knobs.files import tenancy as tenancy_in_files
from support.configs import config, policy
from support.databases import admin
from support.inspection import inspect, session_of
from support.storage.crowds import Gate
from support.waits import until

import caliber
from caliber.api.tenants import tenant_config
from caliber.backends.postgres.connecting.logins import dsn_of
from caliber.backends.postgres.directory import PostgresRecords
from caliber.config import CaliberConfig, profiles
from caliber.model import SystemClock
from caliber.model.errors import Unavailable

Seen = Callable[[CaliberConfig, Place], Any]

DSN = "CALIBER_TEST_DSN"
SECRET = "CALIBER_TEST_KNOB_SECRET"
NEEDS = ("postgres", "knob_server")


@dataclass(frozen=True)
class Server:
    """A tenant's schema on the server of the suite, the section that it is a tenant by, and a role that may use it."""

    schema: str
    role: str
    prefix: str
    tenancy: dict[str, Any]


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Make a tenant with a schema of its own, and remove all of it in the end."""
    prefix = f"k{uuid.uuid4().hex[:12]}"
    source = profiles.reference(f"env:{DSN}", **{"storage.adapter": "postgres"}).to_mapping()["storage"]
    tenancy = {
        "new_tenants": "here",
        "fence_ms": "20s",
        "verify_in_fence": True,
        "directory": {"adapter": "sqlite", "path": str(folder / "tenants.db")},
        "sources": {"here": {**source, "schema_name": f"{prefix}_{{tenant}}", "pool_max": 4}},
    }
    caliber.create(config("unused", tenancy=tenancy), tenant="one")
    made = Server(f"{prefix}_one", f"{prefix}_one", prefix, tenancy)
    admin(
        f"CREATE ROLE {made.role} LOGIN; GRANT USAGE ON SCHEMA {made.schema} TO {made.role};"
        f" GRANT ALL ON ALL TABLES IN SCHEMA {made.schema} TO {made.role}"
    )
    try:
        yield made
    finally:
        admin(f"DROP SCHEMA {made.schema} CASCADE; DROP OWNED BY {made.role}; DROP ROLE {made.role}")


# --- what is looked at -------------------------------------------------------------------------------


def asked(statement: str) -> Seen:
    """Return the observation of what a store's connection answers."""

    def see(config: CaliberConfig, place: Place) -> Any:
        with store_of(config, place).read() as session:
            return session.command(statement)[0][0]

    return see


def hears(config: CaliberConfig, place: Place) -> str:
    """Return whether the events of other processes can be subscribed to."""
    return works(store_of(config, place).require_remote_events)


def opens(config: CaliberConfig, place: Place) -> str:
    return works(lambda: store_of(config, place))


def reads_at_once(config: CaliberConfig, place: Place) -> int:
    """Return the number of simultaneous readers."""
    place.fixture("monkeypatch").setattr("caliber.backends.postgres.store.POOL_TIMEOUT_MS", 1)
    store = store_of(config, place)
    with ExitStack() as stack:
        for number in range(10):
            try:
                stack.enter_context(store.read())
            except Unavailable:
                return number
    return 10


def cancelled(run: Callable[[CaliberConfig, Place], Callable[[str], Any]]) -> Seen:
    """Return the observation of a statement that takes a twentieth of a second."""
    return lambda config, place: works(lambda: run(config, place)("SELECT pg_sleep(0.05)"))


def beside_a_lock(
    table: Callable[[Place], str], call: Callable[[CaliberConfig, Place], Callable[[], Any]]
) -> Callable[[CaliberConfig, Place], str]:
    """Return the observation of a call that meets somebody's lock, for a while."""

    def see(config: CaliberConfig, place: Place) -> str:
        write = call(config, place)
        with psycopg.connect(os.environ[DSN]) as other:
            other.execute(f"LOCK TABLE {table(place)} IN EXCLUSIVE MODE".encode())
            with released(other.rollback, gives_up=config.storage.lock_timeout_ms < SHORT_MS):  # type: ignore[union-attr]
                return works(write)

    return see


def statement_of_store(config: CaliberConfig, place: Place) -> Callable[[str], Any]:
    store = store_of(config, place)
    return lambda text: store.write(lambda uow: session_of(uow).command(text))


def insert_into_store(config: CaliberConfig, place: Place) -> Callable[[], Any]:
    return functools.partial(store_of(config, place).write, insert)


def secret_of(config: CaliberConfig, place: Place) -> list[str]:
    """Of which secrets the password is made that one logs in with."""
    place.environment(CALIBER_TEST_ONE="one", CALIBER_TEST_OTHER="other")
    settings: Any = config.storage
    password = psycopg.conninfo.conninfo_to_dict(dsn_of(settings))["password"]

    def of(secret: str) -> str:
        return hmac.new(secret.encode(), f"caliber role {settings.login_role}".encode(), hashlib.sha256).hexdigest()

    return [secret for secret in ("one", "other") if password == of(secret)]


# --- at either place -----------------------------------------------------------------------------------


def known(place: Place) -> Server:
    found: Server = place.fixture("knob_server")
    return found


def at(prefix: str, knob: str, see: Seen, one: Any, other: Any, **also: Any) -> Case:
    """Return the case of a knob of the store, or of a data source of tenants."""
    path = HERE if prefix == SOURCE else STORE

    def knobs(place: Place) -> Knobs:
        place.environment(**{SECRET: "secret"})
        made = known(place)
        base: dict[str, Any] = {"storage.path": f"env:{DSN}", "storage.adapter": "postgres"}
        base |= {"storage.schema_name": made.schema, "storage.pool_max": 4}
        where = {"tenancy": made.tenancy} if prefix == SOURCE else base
        given = {name: value(place) if callable(value) else value for name, value in also.items()}
        return {**NO_VECTORS, **where, **{f"{path}.{name}": value for name, value in given.items()}}

    def tenants(config: CaliberConfig, place: Place) -> Any:
        return see(tenant_config(config, "one"), place)

    named = f"{HERE}.{knob}" if prefix == SOURCE else ""
    return Case(f"{prefix}.{knob}", tenants if prefix == SOURCE else see, one, other, knobs, NEEDS, named)


def called(name: str) -> Callable[[Place], str]:
    """Return a function that makes a variable with the server's address, and the name of its connections."""

    def variable(place: Place) -> str:
        dsn = psycopg.conninfo.make_conninfo(os.environ[DSN], application_name=name)
        place.environment(**{f"CALIBER_TEST_{name.upper()}_DSN": dsn})
        return f"env:CALIBER_TEST_{name.upper()}_DSN"

    return variable


def role(prefix: str) -> Callable[[Place], str]:
    return lambda place: f"{known(place).prefix}_{{tenant}}" if prefix == SOURCE else known(place).role


def server_cases(prefix: str) -> Sequence[Case]:
    case = functools.partial(at, prefix)
    secret = f"env:{SECRET}"
    application = asked("SELECT current_setting('application_name')")
    acting = asked("SELECT current_user = session_user AND current_user LIKE 'k%'")
    prepared = asked("SELECT count(*) > 0 FROM pg_prepared_statements")
    locked = beside_a_lock(lambda place: f"{known(place).schema}.trajectory", insert_into_store)
    return (
        case("dsn", application, (called("one"), "one"), (called("other"), "other")),
        case("feed_dsn", hears, (None, "MissingRequired"), (f"env:{DSN}", "done")),
        case("pool_max", reads_at_once, (2, 2), (4, 4)),
        case("statement_timeout_ms", cancelled(statement_of_store), (10, "Unavailable"), ("20s", "done")),
        case("lock_timeout_ms", locked, (10, "Unavailable"), ("20s", "done")),
        case("prepared_max", prepared, (0, "f"), (4_096, "t")),
        case("login_role", acting, (None, "f"), (role(prefix), "t"), login_secret=secret),
        case(
            "login_secret",
            secret_of,
            ("env:CALIBER_TEST_ONE", ["one"]),
            ("env:CALIBER_TEST_OTHER", ["other"]),
            login_role=role(prefix),
        ),
    )


# --- where it is ---------------------------------------------------------------------------------------


def schemas(_: CaliberConfig, place: Place) -> list[str]:
    """Return the schemas that this observation may have made; they are removed."""
    prefix = fresh(place)
    found = [row[0] for row in admin(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{prefix}%' ORDER BY 1")]
    for name in found:
        admin(f"DROP SCHEMA {name} CASCADE")
    return [name.removeprefix(prefix) for name in found]


def after(make: Callable[[CaliberConfig], Any], see: Seen = schemas) -> Seen:
    def made(config: CaliberConfig, place: Place) -> Any:
        make(config)
        return see(config, place)

    return made


def fresh(place: Place) -> str:
    """Return the prefix of the names of new schemas."""
    prefix: str = place.known.setdefault("prefix", f"k{uuid.uuid4().hex[:12]}")
    return prefix


def directory_in(place: Place) -> dict[str, Any]:
    """Return a section ``tenancy.directory`` on the server."""
    return {
        "adapter": "postgres",
        "dsn": f"env:{DSN}",
        "schema_name": f"{fresh(place)}d",
    }


def create_tenant(config: CaliberConfig) -> None:
    caliber.create(config, tenant="one")


def where_cases() -> Sequence[Case]:
    def own(place: Place) -> Knobs:
        on = {"storage.path": f"env:{DSN}", "storage.adapter": "postgres"}
        return {**NO_VECTORS, **on}

    def of_source(place: Place) -> Knobs:
        source = {**known(place).tenancy["sources"]["here"], "schema_name": f"{fresh(place)}{{tenant}}"}
        directory = {"adapter": "sqlite", "path": str(place.folder / "tenants.db")}
        return {**NO_VECTORS, "tenancy": {**known(place).tenancy, "directory": directory, "sources": {"here": source}}}

    def in_directory(place: Place) -> Knobs:
        return {**NO_VECTORS, "tenancy": {**tenancy_in_files(place), "directory": directory_in(place)}}

    def named(suffix: str) -> Callable[[Place], str]:
        return lambda place: f"{fresh(place)}{suffix}"

    def directory(knob: str, see: Callable[[PostgresRecords, Place], Any], one: Any, other: Any) -> Case:
        def look(config: CaliberConfig, place: Place) -> Any:
            assert config.tenancy is not None
            records = PostgresRecords(config.tenancy.directory, create=True, clock_us=SystemClock().now_us)  # type: ignore[arg-type]
            try:
                with closing(records):
                    return see(records, place)
            finally:
                schemas(config, place)

        return Case(f"tenancy.directory.{knob}", look, one, other, in_directory, NEEDS)

    def told(statement: str) -> Callable[[PostgresRecords, Place], Any]:
        return lambda records, _: records.connection.command(statement)[0][0]

    def long_statement(records: PostgresRecords, _: Place) -> str:
        return works(lambda: records.work(lambda _: records.connection.command("SELECT pg_sleep(0.05)")))

    def locked(records: PostgresRecords, place: Place) -> str:
        table = f"{fresh(place)}d.tenant"
        with psycopg.connect(os.environ[DSN]) as other:
            other.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
            with released(other.rollback, gives_up=records.limits[1] < SHORT_MS):
                return works(lambda: records.work(lambda _: records.connection.command(f"LOCK TABLE {table}")))

    def seconds(records: PostgresRecords, _: Place) -> str:
        return str(records.connection.raw.info.get_parameters()["connect_timeout"])

    return (
        Case("storage.schema_name", after(caliber.create), (named("a"), ["a"]), (named("b"), ["b"]), own, NEEDS),
        Case(
            f"{SOURCE}.schema_name",
            after(create_tenant),
            (named("a_{tenant}"), ["a_one"]),
            (named("b_{tenant}"), ["b_one"]),
            of_source,
            NEEDS,
            f"{HERE}.schema_name",
        ),
        Case(
            "tenancy.directory.schema_name",
            after(create_tenant),
            (named("a"), ["a"]),
            (named("b"), ["b"]),
            in_directory,
            NEEDS,
        ),
        directory(
            "dsn",
            told("SELECT current_setting('application_name')"),
            (called("one"), "one"),
            (called("other"), "other"),
        ),
    )


# --- which database --------------------------------------------------------------------------------------


def places(config: CaliberConfig, place: Place) -> tuple[list[str], list[str]]:
    """Return the files and the schemas that exist."""
    found = sorted(str(path.relative_to(place.folder)) for path in place.folder.rglob("*.db"))
    return found, schemas(config, place)


def adapter_cases() -> Sequence[Case]:
    made = profiles.reference(f"env:{DSN}", **{"storage.adapter": "postgres"}).to_mapping()["storage"]

    def tenants(place: Place) -> Knobs:
        return {**NO_VECTORS, "tenancy": tenancy_in_files(place)}

    def schema(place: Place) -> Knobs:
        return {"storage.path": f"env:{DSN}", "storage.schema_name": f"{fresh(place)}s"}

    def source(place: Place) -> Knobs:
        return {HERE: {**made, "schema_name": f"{fresh(place)}{{tenant}}"}}

    def directory(place: Place) -> Knobs:
        return {"tenancy.directory": directory_in(place)}

    in_file = {"storage.path": FILE}
    own, one, tenants_file = "store.db", "here/one.db", "tenants.db"
    return (
        Case(
            "storage.adapter",
            after(caliber.create, places),
            ("sqlite", ([own], [])),
            ("postgres", ([], ["s"])),
            NO_VECTORS,
            NEEDS,
            beside=(in_file, schema),
        ),
        Case(
            f"{SOURCE}.adapter",
            after(create_tenant, places),
            ("sqlite", ([one, tenants_file], [])),
            ("postgres", ([tenants_file], ["one"])),
            tenants,
            NEEDS,
            f"{HERE}.adapter",
            ({}, source),
        ),
        Case(
            "tenancy.directory.adapter",
            after(create_tenant, places),
            ("sqlite", ([one, tenants_file], [])),
            ("postgres", ([one], ["d"])),
            tenants,
            NEEDS,
            beside=({}, directory),
        ),
    )


def lines_up(config: CaliberConfig, place: Place) -> str:
    """Return the state of a writer while another is at work: waiting to share a commit, or writing."""
    store = store_of(config, place)
    gate = Gate(store)
    thread = threading.Thread(target=store.write, args=(insert,))
    thread.start()
    until(lambda: bool(inspect(store).waiting) or not thread.is_alive())
    found = "waits" if thread.is_alive() else "writes"
    gate.open()
    thread.join(30)
    return found


def shared_cases() -> Sequence[Case]:
    """Return the cases that SQLite shares."""
    summarize = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})
    cases = (
        at(STORE, "durability", lines_up, ("commit", "writes"), ("group", "waits")),
        at(STORE, "serialization_retries", closings, (0, 1), (2, 3)),
    )
    also = {"policies": [summarize]}

    def with_policy(case: Case) -> Callable[[Place], Knobs]:
        def knobs(place: Place) -> Knobs:
            given = case.also(place) if callable(case.also) else case.also
            return {**given, **also}

        return knobs

    return [replace(case, also=with_policy(case), on="postgres") for case in cases]


CASES: tuple[Case, ...] = (
    *server_cases(STORE),
    *server_cases(SOURCE),
    *where_cases(),
    *adapter_cases(),
    *shared_cases(),
)
