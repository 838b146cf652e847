"""Access to the internals of open handles and stores for tests and debuggers, and planting of faults in them.

Nothing is copied: a change of a part changes the store. Tests reach parts without a public name through this module
only, so a part can be moved or renamed in one place. The parts themselves are not public: they change with any version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from caliber.api.caliber import Caliber
from caliber.api.tenants import Tenants
from caliber.engine.engine import Engine
from caliber.engine.write_behind import WriteBehind
from caliber.resident.memory import ResidentMemory

if TYPE_CHECKING:
    from caliber.api.asynchronous import AsyncCaliber
    from caliber.events.bus import EventFilter
    from caliber.model.storage import ReadConsistency
    from caliber.resident.mirror import Generation
    from caliber.resident.mirrors import Mirrors
    from caliber.resident.snapshot import ResidentSnapshot
    from caliber.resident.vectors import VectorIndex
    from caliber.storage.compile.session import StatementSession
    from caliber.storage.protocol import Store
    from caliber.storage.write.group import GroupWriter, Request
    from caliber.storage.write.unit_of_work import UnitOfWork
    from caliber.tenancy.directory import Directory

T = TypeVar("T")


class Inspector:
    """The parts of an opened object: a handle, its engine, its resident memory, a bare store, or a set of tenants.

    A part that it does not have raises AttributeError: a bare store has no engine.
    """

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    # --- a handle or its engine --------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The open tenant that handles share."""
        return self._opened if isinstance(self._opened, Engine) else self._opened._engine

    @property
    def event_filter(self) -> EventFilter | None:
        """The filter of events for the handle's principal; None for an admin."""
        return self._opened.events._event_filter  # type: ignore[no-any-return]

    @property
    def behind(self) -> WriteBehind:
        """The queue of writes that reads leave behind."""
        return self.engine.behind

    def part(self, kind: type[T]) -> T:
        """Return the one part of its type in a tenant: ``part(SearchEngine)``."""
        return self.engine.part(kind)

    def snapshot(self, consistency: ReadConsistency | str | None = None) -> ResidentSnapshot:
        """Return the snapshot that a read would use; ``latest`` first looks for other processes' commits."""
        return self.engine.snapshot(consistency)

    def write(self, work: Callable[[UnitOfWork], T]) -> T:
        """Run ``work`` in one transaction, as a service does."""
        return self.engine.write(work)

    # --- resident memory ---------------------------------------------------------------------------

    @property
    def resident(self) -> ResidentMemory:
        """The mirrors of the tenant's relations in native memory."""
        return self._opened if isinstance(self._opened, ResidentMemory) else self.engine.memory

    @property
    def mirrors(self) -> Mirrors:
        """The mirrors of all relations, with their layouts, the indexes of vectors and the spaces of those."""
        return self.resident.mirrors

    def mirror(self, relation: str) -> Generation:
        """Return the mirror of one relation."""
        return self.mirrors.generations[relation]

    def vectors(self, owner: str) -> VectorIndex:
        """Return the vectors of one kind of owner, in the first space that has any."""
        return next(index for (kind, _), index in self.mirrors.indexes.items() if kind == owner)

    # --- the store ---------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store of one database, over which everything else stands."""
        if isinstance(self._opened, ResidentMemory):
            return self._opened._store
        return self.engine.store if isinstance(self._opened, Engine | Caliber) else self._opened

    @property
    def connection(self) -> Any:
        """The connection that writes, of a store in SQLite."""
        return self.store._connection  # type: ignore[attr-defined]

    def lend_connection(self) -> AbstractContextManager[Any]:
        """Lend that connection outside transactions; threads behind the caller wait for it meanwhile."""
        lent: AbstractContextManager[Any] = self.store._outside()  # type: ignore[attr-defined]
        return lent

    @property
    def pool(self) -> Any:
        """The connections of a store in PostgreSQL."""
        return self.store._pool  # type: ignore[attr-defined]

    @property
    def schema(self) -> str:
        """The schema of a store in PostgreSQL."""
        return self.store._schema  # type: ignore[attr-defined,no-any-return]

    @property
    def writer(self) -> GroupWriter:
        """The writer, which runs transactions alone or for a group of threads."""
        return self.store._writer  # type: ignore[attr-defined,no-any-return]

    @property
    def waiting(self) -> int:
        """The number of writes in line behind the running one."""
        return len(self.writer._waiting)

    @property
    def leader(self) -> Request | None:
        """The request whose thread runs a transaction, or is about to; None while no thread writes."""
        return self.writer._leader

    @property
    def workers(self) -> Any:
        """The threads that run the calls of an asynchronous handle."""
        return self._opened._calls

    @property
    def released(self) -> bool:
        """True once a store in SQLite has given up its files."""
        return self.store._released  # type: ignore[attr-defined,no-any-return]

    @property
    def identity(self) -> bytes:
        """The name under which a handle on PostgreSQL notifies other processes of its commits."""
        return self.store._identity  # type: ignore[attr-defined,no-any-return]

    # --- tenants -----------------------------------------------------------------------------------

    @property
    def directory(self) -> Directory:
        """The directory of a set of tenants."""
        return self._opened._directory if isinstance(self._opened, Tenants) else self._opened.directory


def inspect(opened: AsyncCaliber | Caliber | Engine | ResidentMemory | Store | Tenants) -> Inspector:
    """Return the parts of an open handle, engine, resident memory, store or set of tenants."""
    return Inspector(opened)


def session_of(uow: UnitOfWork) -> StatementSession:
    """Return the session of a unit of work, for writes that no service makes, such as rows that break rules."""
    return uow._session


def held_back(worker: Any) -> AbstractContextManager[bool]:
    """Return the lock that keeps a worker of the background from beginning anything while a block holds it."""
    lock: AbstractContextManager[bool] = worker._condition if isinstance(worker, WriteBehind) else worker._draining
    return lock


@contextmanager
def replaced(part: Any, step: str, by: Any, *, once: bool = False) -> Iterator[Any]:
    """Run a block with another implementation of an internal step, to plant a fault; yield the real one.

    ``part`` is an object, a class or a module, ``step`` the name of what it has, without the underscore. With ``once``
    the real step is back as soon as the other one is called.
    Raises: AttributeError for a step that the part does not have.
    """
    name = f"_{step}"
    real = getattr(part, name)
    own = getattr(part, "__dict__", {name: real})
    before = own.get(name)
    of_its_class = name not in own

    def restore() -> None:
        if not of_its_class:
            setattr(part, name, before)
        elif name in own:
            delattr(part, name)

    def first(*arguments: Any, **options: Any) -> Any:
        restore()
        return by(*arguments, **options)

    setattr(part, name, first if once else by)
    try:
        yield real
    finally:
        restore()
