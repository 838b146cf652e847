"""PostgreSQL backend through psycopg 3, one schema per tenant. Importing the package loads no driver.

It has the functions of ``caliber.backends.protocol.BackendModule``.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from caliber.model.errors import ExtraNotInstalled

_HOMES: Final = {
    "create": ("store", "create"),
    "migrate": ("store", "migrate"),
    "plan_migration": ("store", "plan_migration"),
    "restore": ("store", "restore"),
    "open_store": ("store", "PostgresStore"),
    "open_records": ("directory", "PostgresRecords"),
    "open_replica": ("moving.replica", "PostgresReplica"),
    "create_role": ("roles", "create_role"),
    "drop_role": ("roles", "drop_role"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("psycopg") is None:
        raise ExtraNotInstalled(feature="storage.adapter = postgres", extra="postgres")
    module, member = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), member)
