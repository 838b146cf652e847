"""Public asynchronous API: ``async with await caliber.aio.open(config) as memory``; re-exports the async classes."""

from caliber.api.aio_base import aio_of
from caliber.api.asynchronous import AsyncCaliber, create, migrate, open, purge, restore  # noqa: A004  (the pinned name)
from caliber.api.caliber import Caliber
from caliber.api.several.aio_tenants import AsyncTenants as Tenants

__all__ = ["AsyncCaliber", "Tenants", "create", "migrate", "of", "open", "purge", "restore"]


def of(memory: Caliber) -> AsyncCaliber:
    """Return an open handle with ``async`` methods, for any event loop; closing either closes both."""
    face: AsyncCaliber = aio_of(memory)
    return face


def __dir__() -> list[str]:
    return __all__
