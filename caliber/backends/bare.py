"""A store without memory or anything behind, for looking after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.model.process.interrupts import managed
from caliber.model.time import SystemClock
from caliber.storage.protocol import Store


@managed
def bare_store(config: CaliberConfig, clock_us: Callable[[], int] | None = None) -> Iterator[Store]:
    """Open the configured store for as long as the block runs; it need not be fit to be searched yet.

    Raises: Unavailable, SchemaMismatch
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=clock_us or SystemClock().now_us)
    try:
        yield store
    finally:
        store.close()
