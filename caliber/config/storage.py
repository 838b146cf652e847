"""Configuration sections of the store: SQLite file or PostgreSQL schema, resident memory, write-behind, retention."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Tag
from pydantic_core import PydanticCustomError

from caliber.config.knobs import Duration, Flag, Int, Name, Real, Retention, Section, knob
from caliber.config.secret import PREFIX, Dsn, SecretRef, is_reference
from caliber.model.context import WindowDurability
from caliber.model.storage import Durability, ReadConsistency

SQLITE_ADAPTERS: Final = ("sqlite", "libsql")
POSTGRES_ADAPTERS: Final = ("postgres", "cockroachdb")
"""Databases of one family have one section; which of them are built is known to ``caliber.backends`` (O-3)."""
MEMORY: Final = ":memory:"
_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}\Z")


def _adapter(value: Any) -> Any:
    if value == "redis":
        reason = "it keeps nothing for good; use sqlite or postgres"
        raise PydanticCustomError("unsupported", reason, {"provider": value})
    return value


def path_text(value: str) -> str:
    """Refuse an invalid path of a file."""
    if "://" in value:
        raise PydanticCustomError("secret", "an address may hold credentials: name it as env:MY_DSN")
    if value.startswith(PREFIX) and not is_reference(value):
        raise PydanticCustomError("path", "expected env: and the name of an environment variable")
    if value.startswith("file:"):
        # SQLite would take parameters from it that switch locking off, or keep nothing.
        raise PydanticCustomError("path", "expected a path, not a URI; leave out file:")
    if "\0" in value:
        raise PydanticCustomError("path", "a path cannot contain a zero byte")
    return value


def schema_text(value: str) -> str:
    """Refuse an invalid name of a schema."""
    if not _SCHEMA_NAME.match(value) or value == "information_schema":
        raise PydanticCustomError(
            "schema", "must be lower-case letters, digits and _, at most 63, not beginning with a digit or pg_"
        )
    return value


def resolved(path: str) -> str:
    """Return a file's path with the variable read and ``~`` expanded. Raises: MissingRequired."""
    path = SecretRef(path).resolve() if path.startswith(PREFIX) else path
    return str(Path(path).expanduser()) if path.startswith("~") else path


class StorageConfig(Section):
    """The durable store in SQLite."""

    adapter: Annotated[Literal["sqlite", "libsql"], BeforeValidator(_adapter)] = knob("Database of the store.", "O-3")
    path: Annotated[Name, AfterValidator(path_text)] = knob(
        "File of the store, relative to this file, or env:NAME for a variable that holds it.", "K-072"
    )
    durability: Durability = knob(
        "A write returns after its own commit is on disk, or after one that concurrent writers share.",
        "design",
    )
    busy_timeout_ms: Duration = knob("Longest wait for another process's write lock.", "ours", unit="ms", ge=0)
    readers: Int = knob("Connections that read while one writes.", "ours", ge=1, le=256)
    wal_autocheckpoint_pages: Int = knob(
        "Pages in the WAL before a checkpoint writes them into the file; raise it when bulk writes wait for it.",
        "ours",
        unit="pages",
        ge=1,
    )
    serialization_retries: Int = knob(
        "Retries of a transaction that lost a race, before Conflict.", "ours", ge=0, le=1_000
    )

    def resolve_path(self) -> str:
        """Return the path to open now: the variable read, ``~`` expanded.

        Raises: MissingRequired when the named variable is unset.
        """
        return resolved(self.path)

    @property
    def in_memory(self) -> bool:
        """True if the store lives only as long as the process."""
        return self.path == MEMORY

    @property
    def shown(self) -> str:
        """The name of the store in messages. Raises: MissingRequired when the named variable is unset."""
        return self.resolve_path()


class PostgresConfig(Section):
    """The durable store in PostgreSQL: one schema a tenant."""

    adapter: Literal["postgres", "cockroachdb"] = knob("Database of the store.", "O-3")
    dsn: Dsn = knob("DSN of the database, as env:NAME of a variable that holds it.", "K-072")
    feed_dsn: SecretRef | None = knob(
        "DSN of the same database without a pool between, as env:NAME: processes learn of commits at once (LISTEN).",
        "design",
        optional=True,
    )
    schema_name: Annotated[Name, AfterValidator(schema_text)] = knob("Schema of the tenant.", "O-1")
    durability: Durability = knob(
        "A write returns after its own commit is on disk, or after one that concurrent writers share.",
        "design",
    )
    pool_max: Int = knob("Most connections of one open store.", "ours", ge=2, le=1_024)
    statement_timeout_ms: Duration = knob("Longest time of a statement; 0 sets no limit.", "design", unit="ms", ge=0)
    lock_timeout_ms: Duration = knob("Longest wait for another's row lock; 0 sets no limit.", "design", unit="ms", ge=0)
    prepared_max: Int = knob(
        "Most statements that a connection prepares, each at its first use; 0 for none (behind some pools).",
        "design",
        ge=0,
        le=65_536,
    )
    serialization_retries: Int = knob(
        "Retries of a transaction that lost a race, before Conflict.", "ours", ge=0, le=1_000
    )
    login_role: Annotated[Name, AfterValidator(schema_text)] | None = knob(
        "Role to log in as, instead of the user of the DSN.", "O-1", optional=True
    )
    login_secret: SecretRef | None = knob(
        "Secret that passwords of login roles are derived from, as env:NAME of a variable.",
        "O-1",
        optional=True,
    )

    @property
    def in_memory(self) -> bool:
        """True if the store lives only as long as the process."""
        return False

    @property
    def shown(self) -> str:
        """The name of the store in messages: never a DSN that may hold a password."""
        return f"schema {self.schema_name} of {self.dsn}"


def _adapter_of(value: Any) -> str:
    adapter = value.get("adapter") if isinstance(value, Mapping) else getattr(value, "adapter", None)
    # A value that is no adapter at all is refused where most configurations are.
    return "postgres" if adapter in POSTGRES_ADAPTERS else "sqlite"


AnyStorage = Annotated[
    Annotated[StorageConfig, Tag("sqlite")] | Annotated[PostgresConfig, Tag("postgres")], Discriminator(_adapter_of)
]
"""The store in one of the databases; ``adapter`` selects it, and with it the allowed knobs."""


class ResidentConfig(Section):
    """The native mirror that reads are answered from."""

    resident_bytes: Int = knob(
        "Most memory of the mirror; texts are evicted first, then f32 vectors.",
        "design",
        unit="bytes",
        ge=1 << 20,
    )
    read_consistency: ReadConsistency = knob(
        "Reads see this process's writes at once and others' when polled (local), or check first (latest).", "design"
    )
    feed_poll_ms: Duration = knob(
        "Interval of the search for writes of other processes; 0 never polls.", "design", unit="ms", ge=0
    )
    warm_after_ms: Duration = knob(
        "Delay after opening until words are indexed in the background; 0: at the first search.",
        "ours",
        unit="ms",
        ge=0,
    )
    evaluator: Literal["numpy", "numba"] = knob("Compiler of predicates and formulas.", "design")


class WriteBehindConfig(Section):
    """Write-behind: the writes that follow reads, and when they reach the disk."""

    flush_interval_ms: Duration = knob("Longest time an entry waits.", "design", unit="ms", gt=0)
    shutdown_ms: Duration = knob("Longest time close() spends draining the queue.", "design", unit="ms", ge=0)
    window_durability: WindowDurability = knob(
        "Time of storing a window: before assemble_context returns (commit), or after (behind).", "O-12"
    )
    usage_enabled: Flag = knob("Count reads of each record, with the time of the last one.", "O-10")
    trace_enabled: Flag = knob("Record reads in the event log.", "O-12")
    operation_share: Real = knob(
        "Share of public calls and jobs that are recorded in the event log with their durations; 0 records none, and"
        " costs nothing.",
        "C-294",
        ge=0,
        le=1,
    )


class RetentionConfig(Section):
    """Retention of operational records, and the sweeps of declared memories."""

    windows_ms: Retention = knob(
        "Persisted windows, also those that an earlier configuration kept for longer; and delegations and handoffs,"
        ' from the time at which they ended, as a handoff holds a window. "forever" keeps them.',
        "design",
        unit="ms",
    )
    events_ms: Retention = knob('Events; "forever" keeps them.', "design", unit="ms")
    changes_ms: Retention = knob('Change records that feed other processes; "forever" keeps them.', "design", unit="ms")
    apply_every_ms: Duration = knob(
        "Interval at which an open store applies these limits; 0 leaves it to maintain().",
        "ours",
        unit="ms",
        ge=0,
    )
    sweep_every_ms: Duration = knob(
        "Interval at which an open store removes records of declared memories beyond their retention"
        " (duration, max); 0 leaves it to maintain().",
        "C-136",
        unit="ms",
        ge=0,
    )


class AioConfig(Section):
    """The asynchronous face."""

    workers: Int = knob("Threads that serve asynchronous calls.", "O-4", ge=1, le=1_024)
    queue: Int = knob("Asynchronous calls that may wait for a thread.", "O-4", ge=1, le=1 << 20)


def expand_dir(path: str) -> Path:
    """Return a directory of the configuration with ``~`` expanded."""
    return Path(path).expanduser()
