"""Default values of section ``tenancy``: a directory beside the store, and one source in the store's database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from caliber.config.profiles.values import SECOND, postgres_values, sqlite_values

MAIN: Final = "main"
FENCE_MS: Final = 10 * SECOND
_DIRECTORY_FILE: Final = "tenants.db"
_TENANT_FILE: Final = "tenants/{tenant}.db"
_DIRECTORY_SCHEMA: Final = "caliber_tenants"
_TENANT_SCHEMA: Final = "tenant_{tenant}"


def source_values(storage: Mapping[str, Any], adapter: str) -> dict[str, Any]:
    """Return the values of a data source: those of ``storage``, with a place for each tenant."""
    alike = storage.get("adapter") == adapter
    if adapter == "postgres":
        values = dict(storage) if alike else {**postgres_values(""), "dsn": None}
        return {**_without_none(values), "schema_name": _TENANT_SCHEMA}
    values = dict(storage) if alike else sqlite_values("")
    return {**values, "path": _beside(values.get("path"), _TENANT_FILE)}


def directory_values(storage: Mapping[str, Any], adapter: str) -> dict[str, Any]:
    """Return the values of a directory of tenants."""
    alike = storage.get("adapter") == adapter
    if adapter == "postgres":
        values = dict(storage) if alike else {**postgres_values(""), "dsn": None}
        names = ("adapter", "dsn")
        named = {name: values.get(name) for name in names}
        return {**_without_none(named), "schema_name": _DIRECTORY_SCHEMA}
    values = dict(storage) if alike else sqlite_values("")
    return {
        "adapter": "sqlite",
        "path": _beside(values.get("path"), _DIRECTORY_FILE),
    }


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _beside(path: Any, name: str) -> str:
    """Return the path of a file in the folder of the store; a store in a variable or in memory has none."""
    return str(PurePath(path).parent / name) if isinstance(path, str) and ":" not in path else name
