"""The databases under test. Another database joins by adding itself to ``BACKENDS`` and to ``drawn.LACKS``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from contract.target import ContractTarget

import caliber
from caliber.backends import backend as backend_module
from caliber.config import CaliberConfig, PostgresConfig, StorageConfig
from caliber.model import Clock, SystemClock
from caliber.schema.relations import RELATIONS
from caliber.storage.migrate.migrations import BASELINE, MIGRATIONS, SCHEMA_VERSION
from caliber.storage.protocol import Store
from support.configs import AGENT, config
from support.drawn import LACKS
from support.folders import open_folder
from support.inspection import inspect
from support.local_server import LocalServer
from support.tenancy import tenancies

DSN = "CALIBER_TEST_DSN"
"""Names the server of the suite; without it, tests start a private one."""


class Backend:
    """One database under test: makes configurations and stores, and closes what was opened."""

    adapter = "sqlite"

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        target = ContractTarget(
            name=name, module=backend_module(self.adapter), fresh=lambda _: self.config(), lacks=LACKS[name]
        )
        self.has = target.has
        self.created: set[str] = set()
        self.closing: list[Callable[[], None]] = []

    def config(self, **overrides: Any) -> CaliberConfig:
        return config(self.path, **overrides)

    def store_of(self, settings: CaliberConfig) -> str:
        """Return the setting that distinguishes the store of one configuration from another's."""
        return settings.storage.shown

    def create(self, settings: CaliberConfig) -> None:
        """Create the store of a configuration unless this test did already."""
        if self.has("reopen") and self.store_of(settings) not in self.created:
            self.created.add(self.store_of(settings))
            backend_module(self.adapter).create(settings, exist_ok=False, clock_us=SystemClock().now_us)

    def open(
        self,
        settings: CaliberConfig | None = None,
        *,
        principal: caliber.Principal | None = None,
        embedding_provider: Any = None,
        summarization_provider: Any = None,
        clock: Clock | None = None,
        tracer: Any = None,
        **overrides: Any,
    ) -> caliber.Caliber:
        """Open a handle, creating the store the first time."""
        settings = settings or self.config(**overrides)
        self.create(settings)
        memory = caliber.open(
            settings,
            principal=principal,
            embedding_provider=embedding_provider,
            summarization_provider=summarization_provider,
            clock=clock,
            tracer=tracer,
        )
        self.closing.append(memory.close)
        return memory

    def store(self, *, clock: Clock | None = None, **overrides: Any) -> Store:
        """Open the bare store, without mirrors or anything behind."""
        settings = self.config(**overrides)
        self.create(settings)
        store = backend_module(self.adapter).open_store(settings, clock_us=(clock or SystemClock()).now_us)
        self.closing.append(store.close)
        return store

    @property
    def knobs(self) -> dict[str, Any]:
        """The changes of ``config`` to the reference, besides its path, for processes that make it themselves."""
        return {}

    def tamper(self, memory: caliber.Caliber, statement: str) -> None:
        """Change the store behind the back of everybody who has it open."""
        with inspect(memory).lend_connection() as connection:
            connection.command(statement)

    def damage(self, memory: caliber.Caliber, statement: str) -> None:
        """Break the store where its own rules would not let anybody: as a disk, a tool or a bad repair may."""
        self.tamper(memory, "PRAGMA foreign_keys = OFF")
        names = {relation.name: f'"{relation.name}"' for relation in RELATIONS}
        forget = "UPDATE sqlite_sequence SET seq = 1 WHERE name = 'turn'"
        self.tamper(memory, statement.format(**names, prefix="", bytes="x'00'", forget_numbers=forget))
        self.tamper(memory, "PRAGMA foreign_keys = ON")

    def has_waiting(self, memory: caliber.Caliber) -> bool:
        """Return whether a write waits for the end of another one."""
        return inspect(memory).waiting > 0

    def qualified(self, table: str) -> str:
        """Return a table of this test as a statement of nobody's names it."""
        return f'"{table}"'

    def close(self) -> None:
        for close in reversed(self.closing):
            close()


class PostgresBackend(Backend):
    """PostgreSQL: one schema a test, all on one server.

    Making a schema takes a hundred times as long as emptying one: a test's own schema is emptied and serves the next.
    """

    adapter = "postgres"
    ready: ClassVar[list[str]] = []
    suite_dsn: ClassVar[str] = ""
    """The server of the suite, which no test stops."""
    _cleaner: ClassVar[psycopg.Connection[Any] | None] = None

    def __init__(self) -> None:
        super().__init__("postgres", f"env:{DSN}")
        self.schema = f"test_{uuid.uuid4().hex[:20]}"
        self.recycled = bool(self.ready)
        if self.recycled:
            self.schema = self.ready.pop()
            self.adopt(self.config())

    def create(self, settings: CaliberConfig) -> None:
        new = self.store_of(settings) not in self.created
        super().create(settings)
        if settings.memories and not new and self.recycled:
            self.recycled = False  # what it is made of now is its own
            backend_module(self.adapter).migrate(settings, clock_us=SystemClock().now_us)

    def adopt(self, settings: CaliberConfig) -> None:
        """Take note of a store that somebody else has created."""
        self.created.add(self.store_of(settings))

    def forsake(self) -> None:
        """Give up a recycled store."""
        self.recycled = False
        self.created.clear()
        with psycopg.connect(os.environ[DSN]) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    def config(self, **overrides: Any) -> CaliberConfig:
        known = {name: value for name, value in overrides.items() if name not in SQLITE_KNOBS}
        return config(self.path, **{**self.knobs, **known})

    @property
    def knobs(self) -> dict[str, Any]:
        return {"storage__adapter": "postgres", "storage__schema_name": self.schema, "storage__pool_max": 6}

    def tamper(self, memory: caliber.Caliber, statement: str) -> None:
        with psycopg.connect(os.environ[DSN]) as connection:
            connection.execute(f'SET search_path TO "{self.schema}"')
            connection.execute(statement)

    def damage(self, memory: caliber.Caliber, statement: str) -> None:
        names = {relation.name: self.qualified(relation.name) for relation in RELATIONS}
        forget = f"SELECT setval('{self.schema}.turn_ordinal_seq', 1)"
        text = statement.format(**names, prefix=f'"{self.schema}".', bytes="'\\x00'::bytea", forget_numbers=forget)
        self.tamper(memory, f"SET LOCAL session_replication_role = replica; {text}")

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows that a person sees who queries the database."""
        with psycopg.connect(os.environ[DSN]) as connection:
            return connection.execute(text).fetchall()

    def has_waiting(self, memory: caliber.Caliber) -> bool:
        return self.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [(0,)]

    def qualified(self, table: str) -> str:
        return f'"{self.schema}"."{table}"'

    def close(self) -> None:
        super().close()
        made = {shown.split()[1] for shown in self.created}  # one schema may be shown in two ways
        statements = [f'DROP SCHEMA "{schema}" CASCADE' for schema in made - {self.schema}]
        if self.schema in made:
            statements.append(DERIVED.format(schema=self.schema))
            statements += [f'DELETE FROM "{self.schema}"."{relation.name}"' for relation in reversed(EMPTIED)]
            statements += [
                f"SELECT setval('{self.schema}.{relation.name}_{column}_seq', 1, false)"
                for relation in EMPTIED
                if (column := "ordinal" if relation.ordinal else "sequence" if relation.auto_key else None)
            ]
        if not statements:
            return
        with self._cleaning() as connection:
            connection.execute("; ".join(statements))
            if self.schema in made:
                names = "name, schema_version, min_reader_version, min_writer_version"
                versions = connection.execute(f'SELECT {names} FROM "{self.schema}".schema_migration').fetchall()
                step = MIGRATIONS[SCHEMA_VERSION]
                expected = (BASELINE, SCHEMA_VERSION, step.min_reader_version, step.min_writer_version)
                if versions == [expected]:
                    self.ready.append(self.schema)
                else:  # the test wrote there
                    connection.execute(f'DROP SCHEMA "{self.schema}" CASCADE')

    @classmethod
    @contextmanager
    def _cleaning(cls) -> Iterator[psycopg.Connection[Any]]:
        """Begin a transaction on the connection that empties schemas: it knows their tables, and is ten times as fast.

        A server that a test has for itself, to stop and to kill, is asked by a connection of its own.
        """
        if os.environ[DSN] != cls.suite_dsn:
            with psycopg.connect(os.environ[DSN]) as connection:
                yield connection
            return
        if cls._cleaner is None:
            cls._cleaner = psycopg.connect(cls.suite_dsn, autocommit=True)
        with cls._cleaner.transaction():
            yield cls._cleaner

    @classmethod
    def finish(cls) -> None:
        """Close the connection that empties schemas."""
        if cls._cleaner is not None:
            cls._cleaner.close()
            cls._cleaner = None


DERIVED = """
DO $$ DECLARE thing text; BEGIN
  FOR thing IN SELECT format('%s IF EXISTS %I.%I', CASE relkind WHEN 'r' THEN 'TABLE' WHEN 'v' THEN 'VIEW' ELSE 'INDEX'
    END, '{schema}', relname) FROM pg_class WHERE relnamespace = '{schema}'::regnamespace
    AND ((relkind = 'r' AND relname ~ '^(text|memory)_' AND relname NOT IN ('text_state', 'memory_type'))
      OR (relkind = 'i' AND relname ~ '^vector_') OR relkind = 'v')
  LOOP EXECUTE 'DROP ' || thing || ' CASCADE'; END LOOP;
  DELETE FROM "{schema}".text_state;
END $$"""
"""Drops the views of a test, and what it has made to search with: other tests are not to pay for it."""

EMPTIED = tuple(relation for relation in RELATIONS if relation.name != "schema_migration")
SQLITE_KNOBS = frozenset(
    f"storage__{name}" for name in StorageConfig.model_fields if name not in PostgresConfig.model_fields
)
"""Knobs that tests turn to have their way with SQLite, and that PostgreSQL has no use for."""

BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "sqlite": lambda folder: Backend("sqlite", str(folder / "store.db")),
    "sqlite-memory": lambda folder: Backend("sqlite-memory", ":memory:"),
    "postgres": lambda folder: PostgresBackend(),
}


def admin(statement: str, *parameters: Any) -> list[Any]:
    """Run a statement on the suite's server as a person would, and return its rows."""
    with psycopg.connect(os.environ[DSN], autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def suite_server() -> Iterator[str]:
    """Serve the suite: the DSN that CALIBER_TEST_DSN names, or that of a private server, which ends with the run."""
    if os.environ.get(DSN):
        PostgresBackend.suite_dsn = os.environ[DSN]
        yield os.environ[DSN]
        PostgresBackend.finish()
        for schema in PostgresBackend.ready:
            with psycopg.connect(os.environ[DSN]) as connection:
                connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
        return
    # A hundred stores may be open at once: one a viewer in the tests of privacy.
    settings = {"deadlock_timeout": "50ms", "max_connections": 500}
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False, settings=settings) as server:
        os.environ[DSN] = PostgresBackend.suite_dsn = server.dsn
        try:
            yield server.dsn
        finally:
            PostgresBackend.finish()
            del os.environ[DSN]


@contextmanager
def second_server() -> Iterator[LocalServer]:
    """Start another cluster, whose logins have passwords."""
    with (
        open_folder() as folder,
        LocalServer.start(
            folder / "server", fsync=False, tcp=True, settings={"min_wal_size": "32MB", "max_wal_size": "64MB"}
        ) as server,
    ):
        os.environ[tenancies.SECOND] = server.tcp_dsn
        os.environ[tenancies.SECRET] = uuid.uuid4().hex
        try:
            yield server
        finally:
            del os.environ[tenancies.SECOND], os.environ[tenancies.SECRET]


class RecycledSchemas:
    """The backend of PostgreSQL, for which creating a store is done when a test before has left one that is empty."""

    def __init__(self) -> None:
        self._module = backend_module("postgres")
        self._backends: dict[str, PostgresBackend] = {}

    def fresh(self, folder: Path) -> CaliberConfig:
        made = PostgresBackend()
        settings = made.config()
        self._backends[made.store_of(settings)] = made
        return settings

    def create(self, config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None:
        made = self._backends[config.storage.shown]
        if not made.recycled:
            self._module.create(config, exist_ok=exist_ok, clock_us=clock_us)
            made.adopt(config)
        elif config.memories:
            self._module.migrate(config, clock_us=clock_us)
        made.recycled = False

    def migrate(self, config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> list[int]:
        return self._module.migrate(config, clock_us=clock_us, drop=drop)

    def open_store(self, config: CaliberConfig, *, clock_us: Callable[[], int]) -> Store:
        made = self._backends[config.storage.shown]
        if made.recycled:  # it must look as if nobody had created it
            made.forsake()
        return self._module.open_store(config, clock_us=clock_us)

    def discard(self, config: CaliberConfig) -> None:
        self._backends.pop(config.storage.shown).close()


def note(memory: caliber.Caliber, content: str, **options: Any) -> Any:
    """Add a note that says nothing but its content."""
    values = {"entity": "e", "entity_type": "t", "note_type": "fact", "confidence": 0.5}
    return memory.add_note(content=content, **{**values, **options})


class Agent:
    """A handle with a trajectory under way."""

    def __init__(self, memory: caliber.Caliber, goal: str = "test the store") -> None:
        self.memory = memory
        self.trajectory = memory.start_trajectory(goal, initiator=AGENT)
        scope = memory.current_scope(self.trajectory.trajectory_id)
        assert scope is not None
        self.scope = scope

    @property
    def trajectory_id(self) -> Any:
        return self.trajectory.trajectory_id

    @property
    def scope_id(self) -> Any:
        return self.scope.scope_id

    def say(self, content: str | bytes, role: str = "user", **options: Any) -> Any:
        if role == "tool":
            options.setdefault("tool_call_id", "call")
        return self.memory.append_turn(self.scope_id, role=role, content=content, **options)

    def keep(self, content: str | bytes, **options: Any) -> Any:
        options.setdefault("artifact_type", "fact")
        options.setdefault("extraction_method", "explicit")
        return self.memory.create_artifact(self.scope_id, content=content, **options)

    def note(self, content: str, **options: Any) -> Any:
        return note(self.memory, content, **{"entity": "thing", "entity_type": "topic", "confidence": 0.9, **options})
