"""Configuration sections of tenancy: place of the tenant directory, and databases for tenants' stores.

A data source is a complete ``storage`` section whose file or schema is a pattern: ``{tenant}`` stands for the name.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from caliber.config.knobs import Duration, Flag, FrozenMap, Name, Section, knob
from caliber.config.secret import SecretRef
from caliber.config.storage import MEMORY, PostgresConfig, StorageConfig, path_text, resolved, schema_text
from caliber.model.tenants import place_name

MARK: Final = "{tenant}"


def _marked(value: str) -> str:
    if value.count(MARK) != 1:
        raise PydanticCustomError("pattern", "must hold {tenant} once, where the tenant's name goes", {"tenant": MARK})
    return value


def _schema_pattern(value: str) -> str:
    schema_text(_marked(value).replace(MARK, "a"))
    return value


def _file(value: str) -> str:
    if value == MEMORY:
        raise PydanticCustomError("path", "the directory must outlive the process: name a file")
    return path_text(value)


class SqliteSource(StorageConfig):
    """A data source of SQLite files, one a tenant."""

    path: Annotated[Name, AfterValidator(path_text), AfterValidator(_marked)] = knob(
        "File of a tenant, with {tenant} for its name; its folder is created, but none above it.",
        "O-1",
    )

    def store_at(self, location: str, tenant: str) -> StorageConfig:  # noqa: ARG002  (the role of the other kind)
        """Return the store of one tenant."""
        return StorageConfig(**{**self.model_dump(), "path": location})

    def location_of(self, tenant: str) -> str:
        """Return the location of a new tenant."""
        return self.path.replace(MARK, place_name(tenant))


class PostgresSource(PostgresConfig):
    """A data source of PostgreSQL schemas, one a tenant."""

    schema_name: Annotated[Name, AfterValidator(_schema_pattern)] = knob(
        "Schema of a tenant, with {tenant} for its name.", "O-1"
    )
    login_role: Annotated[Name, AfterValidator(_schema_pattern)] | None = knob(
        "Login role of a tenant, with {tenant} for its name: it owns the schema, and sees no other. Default:"
        " the user of the DSN, for all tenants.",
        "O-1",
        optional=True,
    )

    def store_at(self, location: str, tenant: str) -> PostgresConfig:
        """Return the store of one tenant."""
        role = None if self.login_role is None else self.login_role.replace(MARK, place_name(tenant))
        return PostgresConfig(**{**self.model_dump(), "schema_name": location, "login_role": role})

    def location_of(self, tenant: str) -> str:
        """Return the location of a new tenant."""
        return self.schema_name.replace(MARK, place_name(tenant))


class SqliteDirectory(Section):
    """The directory of tenants in a SQLite file."""

    adapter: Literal["sqlite"] = knob("Database of the directory.", "O-1")
    path: Annotated[Name, AfterValidator(_file)] = knob(
        "File of the directory, relative to this file, or env:NAME for a variable that holds it.", "O-1"
    )

    def resolve_path(self) -> str:
        """Return the path to open now. Raises: MissingRequired when the named variable is unset."""
        return resolved(self.path)


class PostgresDirectory(Section):
    """The directory of tenants in a PostgreSQL schema."""

    adapter: Literal["postgres"] = knob("Database of the directory.", "O-1")
    dsn: SecretRef = knob("DSN of the database, as env:NAME of a variable that holds it.", "K-072")
    schema_name: Annotated[Name, AfterValidator(schema_text)] = knob("Schema of the directory.", "O-1")


def _adapter_of(value: Any) -> str:
    adapter = value.get("adapter") if isinstance(value, Mapping) else getattr(value, "adapter", None)
    return "postgres" if adapter == "postgres" else "sqlite"


AnySource = Annotated[
    Annotated[SqliteSource, Tag("sqlite")] | Annotated[PostgresSource, Tag("postgres")], Discriminator(_adapter_of)
]
AnyDirectory = Annotated[
    Annotated[SqliteDirectory, Tag("sqlite")] | Annotated[PostgresDirectory, Tag("postgres")],
    Discriminator(_adapter_of),
]


class TenancyConfig(Section):
    """Many tenants, spread over several databases."""

    new_tenants: Name = knob("Data source that a new tenant goes to.", "O-1")
    fence_ms: Duration = knob(
        "Longest time that a move, at its end, waits for writes under way and blocks new ones before it gives up.",
        "ours",
        unit="ms",
        gt=0,
    )
    verify_in_fence: Flag = knob(
        "Compare every row while writers wait (false: compare before, and then only the rows that changed since).",
        "ours",
    )
    directory: AnyDirectory = knob("The directory: the data source of each tenant.", "O-1")
    sources: Annotated[FrozenMap[AnySource], Field(min_length=1)] = knob("The data sources, by name.", "O-1")
