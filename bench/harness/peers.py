"""The packages CALIBER is compared with. A task without one of them has the rows of the others."""

from __future__ import annotations

import importlib
from typing import Any

_absent: set[str] = set()
_excluded = False


def exclude() -> None:
    """Treat every package as not installed, as ``--without-peers`` asks."""
    global _excluded
    _excluded = True


def peer(name: str) -> Any:
    """Import a package by the name of its module; return None if it is not installed.

    Raises: ImportError if the package is installed but broken
    """
    if not _excluded:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    _absent.add(name)
    return None


def absent() -> list[str]:
    """Return the modules asked for and not imported so far."""
    return sorted(_absent)
