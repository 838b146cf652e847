"""Public asynchronous API: ``async with await caliber.aio.open(config) as memory``; re-exports the async classes."""

from caliber.api._aio import AsyncCaliber, create, migrate, open, purge, restore  # noqa: A004  (the pinned name)

__all__ = ["AsyncCaliber", "create", "migrate", "open", "purge", "restore"]


def __dir__() -> list[str]:
    return __all__
