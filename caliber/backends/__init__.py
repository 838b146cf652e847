"""Database backends, selected by adapter name: ``sqlite`` and ``postgres``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from caliber.model.errors import ProviderNotSupported

if TYPE_CHECKING:
    from caliber.backends.protocol import BackendModule

_MODULES = {"sqlite": "caliber.backends.sqlite", "postgres": "caliber.backends.postgres"}


def backend(adapter: str) -> BackendModule:
    """Return the module that serves ``adapter``; it is imported only now.

    Raises: ProviderNotSupported, naming the adapters there are.
    """
    name = _MODULES.get(adapter)
    if name is None:
        raise ProviderNotSupported(
            f"storage adapter {adapter!r} is not supported; this version has: {', '.join(sorted(_MODULES))}",
            provider=adapter,
        )
    module: Any = importlib.import_module(name)
    return cast("BackendModule", module)
