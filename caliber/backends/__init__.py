"""Database backends, selected by adapter name (``sqlite``, ``postgres``), and a store without anything behind it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from caliber.model.errors import ProviderNotSupported
from caliber.model.process.interrupts import managed
from caliber.model.time import SystemClock

if TYPE_CHECKING:
    from caliber.backends.protocol import BackendModule
    from caliber.config import CaliberConfig
    from caliber.storage.protocol import Store

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


@managed
def bare_store(config: CaliberConfig, clock_us: Callable[[], int] | None = None) -> Iterator[Store]:
    """Open the configured store for as long as the block runs, without memory or anything behind.

    It need not be fit to be searched yet.

    Raises: Unavailable, SchemaMismatch
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=clock_us or SystemClock().now_us)
    try:
        yield store
    finally:
        store.close()
