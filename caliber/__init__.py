"""CALIBER: the memory engine for AI agents; the names that programs import.

Everything an agent remembers lives in one durable store, is read in microseconds from native memory, and every
context window can be explained line by line and replayed::

    import caliber

    with caliber.open("caliber.toml") as memory:
        ...

Importing is cheap: names are loaded when they are first used, and nothing is read, opened or logged.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caliber import aio, dsl, kernels, model
    from caliber.api.caliber import Caliber
    from caliber.api.opening import create, migrate, open, purge, restore  # noqa: A004  (the pinned name)
    from caliber.api.tenants import Tenants
    from caliber.config import CaliberConfig, profiles
    from caliber.dsl.loading import load_config
    from caliber.model.access import Principal
    from caliber.model.agents import LockToken
    from caliber.model.deadline import deadline
    from caliber.model.errors import CaliberError
    from caliber.model.references import EntityRef, EntityType
    from caliber.model.trajectory import ToolCall
    from caliber.model.windows import ContextWindow, SearchResult

__version__ = "0.1.0"

_HOME = {
    "Caliber": "caliber.api.caliber",
    "CaliberConfig": "caliber.config",
    "CaliberError": "caliber.model.errors",
    "ContextWindow": "caliber.model.windows",
    "EntityRef": "caliber.model.references",
    "EntityType": "caliber.model.references",
    "LockToken": "caliber.model.agents",
    "Principal": "caliber.model.access",
    "SearchResult": "caliber.model.windows",
    "Tenants": "caliber.api.tenants",
    "ToolCall": "caliber.model.trajectory",
    "create": "caliber.api.opening",
    "deadline": "caliber.model.deadline",
    "load_config": "caliber.dsl.loading",
    "migrate": "caliber.api.opening",
    "open": "caliber.api.opening",
    "purge": "caliber.api.opening",
    "restore": "caliber.api.opening",
}
_MODULES = {
    "aio": "caliber.aio",
    "dsl": "caliber.dsl",
    "kernels": "caliber.kernels",
    "model": "caliber.model",
    "profiles": "caliber.config.profiles",
}

__all__ = [
    "Caliber",
    "CaliberConfig",
    "CaliberError",
    "ContextWindow",
    "EntityRef",
    "EntityType",
    "LockToken",
    "Principal",
    "SearchResult",
    "Tenants",
    "ToolCall",
    "aio",
    "create",
    "deadline",
    "dsl",
    "kernels",
    "load_config",
    "migrate",
    "model",
    "open",
    "profiles",
    "purge",
    "restore",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES and name not in _HOME:
        raise AttributeError(f"module 'caliber' has no attribute {name!r}")
    from caliber.model.process.interpreter import collector_paused

    with collector_paused(lasting=True):
        module = importlib.import_module(_MODULES.get(name) or _HOME[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
