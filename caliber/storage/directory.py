"""Protocol of the open store that holds the tenant directory: run a unit of work in a transaction, close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from caliber.storage.compile.plan import RelationPlans
from caliber.storage.write.unit_of_work import UnitOfWork

T = TypeVar("T")


class DirectoryStore(Protocol):
    """An open directory. Safe to share between threads."""

    plans: dict[str, RelationPlans]

    def read(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run ``work``, which reads by one statement, without keeping writers out."""
        ...

    def work(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run ``work`` in a transaction and return its result once it is durable. It is not tried again.

        Raises: Conflict when another process was first; Unavailable
        """
        ...

    def close(self) -> None:
        """Release everything."""
        ...
