"""Base configuration of a program (a profile or another configuration), which supplies the settings it omits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from caliber.config.faults import wrong
from caliber.config.loading import Base
from caliber.config.storage import POSTGRES_ADAPTERS
from caliber.config.tree import CaliberConfig
from caliber.model.errors import MultipleErrors

_STORE: Final = "store.db"
_VARIABLE: Final = "env:CALIBER_DSN"


def base_of(base: CaliberConfig | str | None) -> Base | None:
    """Return the base that fills in the knobs that a file leaves out.

    A profile fits itself to the file: to its adapter, and to vectors where it speaks of a provider or of their space.
    Where the store is stays for the file to say.

    Raises: MultipleErrors when there is no profile of the name.
    """
    if base is None:
        return None
    if isinstance(base, CaliberConfig):
        data = base.to_data()
        return lambda _: data
    from caliber.config import profiles  # not for those who leave nothing out

    named: Any = base
    if not isinstance(named, str) or named not in profiles.PROFILES:
        names = ", ".join(profiles.PROFILES)
        raise MultipleErrors(errors=[wrong("base", base, f"there is no such profile; there are {names}")])
    name = base
    return lambda said: _fitted(name, said)


def _fitted(profile: str, said: Mapping[str, Any]) -> dict[str, Any]:
    from caliber.config import profiles
    from caliber.config.profiles import services

    storage, vector, provider = (_table(said, name) for name in ("storage", "vector", "embedding_provider"))
    dimensions = provider.get("dimensions") or vector.get("dimensions") or services.EMBEDDING["static"]["dimensions"]
    stand_in = {**services.EMBEDDING["static"], "dimensions": dimensions if isinstance(dimensions, int) else 1}
    adapter = storage.get("adapter", "sqlite")
    where = _VARIABLE if adapter in POSTGRES_ADAPTERS else _STORE
    kind = {"storage.adapter": "postgres"} if adapter in POSTGRES_ADAPTERS else {}
    made = profiles.PROFILES[profile](where, embedding_provider=stand_in if provider else None, **kind).to_data()
    if vector and not provider:
        # A space and nobody who embeds: vectors are handed in.
        made["vector"] = profiles.PROFILES[profile](where, embedding_provider=stand_in, **kind).to_data()["vector"]
    made["embedding_provider"] = None
    made["storage"]["adapter"] = adapter
    if adapter in POSTGRES_ADAPTERS:
        del made["storage"]["dsn"]
    return made


def _table(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = said.get(name)
    return found if isinstance(found, Mapping) else {}
