"""Public asynchronous API: ``async with await caliber.aio.open(config) as memory``; re-exports the async classes."""

from caliber.api.asynchronous import AsyncCaliber, create, migrate, open, purge, restore  # noqa: A004  (the pinned name)
from caliber.api.several.aio_tenants import AsyncTenants as Tenants

__all__ = ["AsyncCaliber", "Tenants", "create", "migrate", "open", "purge", "restore"]


def __dir__() -> list[str]:
    return __all__
