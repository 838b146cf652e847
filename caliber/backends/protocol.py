"""Protocols of a room under ``caliber.backends``: its module, and the open store that holds the tenant directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from caliber.model.progress import Progress
from caliber.storage.compile.plan import RelationPlans
from caliber.storage.protocol import ConnectionPool, Store
from caliber.storage.write.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from pathlib import Path

    from caliber.config import CaliberConfig
    from caliber.dump.archive import Archive
    from caliber.dump.moving import Replica
    from caliber.storage.migrate.memory_steps import MigrationPlan


class BackendModule(Protocol):
    """The interface of a room under ``caliber.backends``."""

    def restore(
        self,
        config: CaliberConfig,
        source: Archive | Path,
        *,
        replace: bool,
        clock_us: Callable[[], int],
        progress: Progress,
    ) -> str:
        """Replace the store with a backup, a file of the database's own or an archive; return its new epoch."""
        ...

    def create(self, config: CaliberConfig, *, exist_ok: bool, clock_us: Callable[[], int]) -> None: ...

    def migrate(self, config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()) -> list[int]: ...

    def plan_migration(
        self, config: CaliberConfig, *, clock_us: Callable[[], int], drop: Sequence[str] = ()
    ) -> MigrationPlan: ...

    def open_store(
        self, config: CaliberConfig, *, clock_us: Callable[[], int], connection_pool: ConnectionPool | None = None
    ) -> Store: ...

    def open_records(self, settings: Any, *, create: bool, clock_us: Callable[[], int]) -> DirectoryStore: ...

    def open_replica(self, settings: Any, *, clock_us: Callable[[], int]) -> Replica: ...

    def create_role(self, settings: Any) -> None:
        """Make the login role of a store and an empty schema that it owns; for settings with a ``login_role``."""
        ...

    def drop_role(self, settings: Any) -> None:
        """Remove the login role of a store whose schema has been dropped."""
        ...


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
