"""SQLite backend through apsw: one file per store, one writer, many readers.

It has the functions of ``caliber.backends.protocol.BackendModule``, but for logins, which files do not have.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_HOMES: Final = {
    "create": ("schema", "create"),
    "migrate": ("schema", "migrate"),
    "plan_migration": ("schema", "plan_migration"),
    "restore": ("maintaining.restoring", "restore"),
    "open_store": ("store", "SqliteStore"),
    "open_records": ("directory", "SqliteRecords"),
    "open_replica": ("moving.replica", "SqliteReplica"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, member = _HOMES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), member)
