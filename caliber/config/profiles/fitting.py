"""Builder of a profile's values as nested data, adapted to the adapter and providers that a caller or file sets."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from caliber.config.nested import merged, override, value_at
from caliber.config.profiles.agents import AGENT_PROFILES, Change
from caliber.config.profiles.values import SECOND, postgres_values, reference_values, sqlite_values

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


NAMES: Final = ("reference", *AGENT_PROFILES)
EMBED_EXTRA: Final = ("tokenizers", "wordllama")
_ABSENT: Final = object()
DIMENSIONS: Final = ("vector.dimensions", "embedding_provider.dimensions")
FOLLOWED: Final = ("token_budget", *DIMENSIONS)
"""Knobs that others of a profile follow when they are changed."""


def embed_available() -> bool:
    """Return whether the extra ``embed`` is installed, without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in EMBED_EXTRA)


def values(profile: str, path: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested data of a profile, which is not validated yet; ``overrides`` as of ``reference``."""
    base = _base(path, overrides)
    if profile in AGENT_PROFILES:
        changes = AGENT_PROFILES[profile].changes
        changed = changes.get("token_budget")
        budget = overrides.get("token_budget", base["token_budget"] if changed is None else changed.value)
        vectors = base.get("embedding_provider") is not None
        base = override(base, changed_values(changes, budget if isinstance(budget, int) else 1, vectors=vectors))
    sections = {name: value for name, value in overrides.items() if isinstance(value, Mapping) and "." not in name}
    paths = {name: value for name, value in overrides.items() if name not in sections}
    made = override(merged(base, sections), {**_following(overrides, base), **paths})
    if isinstance(made.get("tenancy"), Mapping):
        made["tenancy"] = tenancy_values(made["tenancy"], made["storage"])
    return made


def tenancy_values(stated: Mapping[str, Any], storage: Any) -> dict[str, Any]:
    """Return a section ``tenancy`` with omitted parts: tenants in the database of ``storage``, or in files beside it.

    A source that the section names takes the knobs it omits from ``storage``, or from the reference where ``storage``
    is of the other database.
    """
    table = storage if isinstance(storage, Mapping) else {}
    sources = stated.get("sources", {value_at(stated, "new_tenants") or MAIN: {}})
    directory = stated.get("directory", {})
    filled = {
        "new_tenants": next(iter(sources), MAIN) if isinstance(sources, Mapping) else MAIN,
        "fence_ms": FENCE_MS,
        "verify_in_fence": True,
        "directory": directory_values(table, _adapter(directory, table)) if isinstance(directory, Mapping) else {},
    }
    if isinstance(sources, Mapping):
        filled["sources"] = {
            name: source_values(table, _adapter(source, table)) if isinstance(source, Mapping) else source
            for name, source in sources.items()
        }
    return merged(filled, stated)


def _adapter(stated: Mapping[str, Any], storage: Mapping[str, Any]) -> str:
    adapter = stated.get("adapter", storage.get("adapter"))
    return "postgres" if adapter == "postgres" else "sqlite"


def changed_values(changes: Mapping[str, Change], budget: int, *, vectors: bool) -> dict[str, Any]:
    """Return the values that a profile sets."""
    out = {path: change.value for path, change in changes.items() if vectors or not change.vectors}
    if "token_budget" in changes:
        out["token_budget"] = out["pcp.dosage.max_context_tokens"] = budget
    return out


def _base(path: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    given = overrides.get("embedding_provider", _ABSENT)
    embed = embed_available() if given is _ABSENT else given is not None
    adapter = overrides.get("storage.adapter", value_at(overrides, "storage.adapter"))
    base = reference_values(path, adapter, overrides.get("token_budget"), embed)
    if isinstance(given, Mapping):
        return merged(base, {"embedding_provider": given})
    if given is not _ABSENT:
        base["embedding_provider"] = given
    return base


def _following(overrides: Mapping[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the knobs that follow the changed ones."""
    provider = base.get("embedding_provider")
    if not isinstance(provider, Mapping):
        return {}
    changed = {path: value for path in DIMENSIONS if (value := value_at(overrides, path)) is not None} | dict(overrides)
    if "embedding_provider" in overrides and "dimensions" in provider:
        changed.setdefault("embedding_provider.dimensions", provider["dimensions"])
    return {
        other: changed[one] for one, other in (DIMENSIONS, DIMENSIONS[::-1]) if one in changed and other not in changed
    }
