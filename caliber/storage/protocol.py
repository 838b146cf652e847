"""Protocols of a database backend (module, ``Store``) and of objects passed to it: pool, follower, listener.

``reading`` opens a session on one relation of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from caliber.model.events import Event
from caliber.model.process.interrupts import managed
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations.memory import is_declared
from caliber.storage.bulk.protocol import BulkStore
from caliber.storage.compile.plan import Dialect, Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.maintain.erasing import Eraser
from caliber.storage.maintain.maintenance import Maintenance
from caliber.storage.sql.full_text import FullText
from caliber.storage.sql.vector_index import VectorIndexes
from caliber.storage.write.catalog_guard import check_present
from caliber.storage.write.feed import Feed
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork

T = TypeVar("T")


class ConnectionPool(Protocol):
    """A pool of database connections that the caller made and owns; ``psycopg_pool.ConnectionPool`` is one."""

    def getconn(self, timeout: float | None = None) -> Any:
        """Return a connection in no transaction, waiting at most ``timeout`` seconds for it."""
        ...

    def putconn(self, conn: Any) -> None:
        """Take a connection back; one that is closed is to be replaced."""
        ...


class Follower(Protocol):
    """A follower of the store's commits: the resident mirrors."""

    @property
    def sequence(self) -> int:
        """The last commit that the follower has applied."""
        ...

    def follow(self, session: StatementSession) -> None:
        """Apply the commits of other processes up to the session's boundary."""
        ...

    def lost(self, error: BaseException) -> None:
        """Called when following failed although there was something to follow."""
        ...

    def missed(self, error: BaseException) -> None:
        """Called when ``committed`` was interrupted, or not reached, for a commit of ours that stands or may stand."""
        ...

    def committed(self, sequence: int, changes: Sequence[RowChange]) -> None:
        """Called after each commit of this process, in commit order, before the writer is released.

        Earlier commits of other processes have been applied by then.
        """
        ...


class RemoteEventListener(Protocol):
    """Callbacks for the commits of other processes; a thread of the store calls them."""

    def on_change(self) -> None:
        """Called soon after another process committed; its changes are in the feed."""
        ...

    def on_event(self, event: Event) -> None:
        """Called once for each event of other processes, in the order of commits, after ``on_change``."""
        ...

    def on_gap(self, reason: str, last: Event | None) -> None:
        """Called when events after ``last`` may be missing, before the first event after the gap."""
        ...

    def on_failure(self, where: str, error: BaseException) -> None:
        """Called once an outage, when listening failed."""
        ...


class CommitSignal(Protocol):
    """Reports of writes to a store, before their commits can be seen; one thread waits for them."""

    def wait(self, timeout_s: float) -> bool | None:
        """Wait until something is written; return False when the time is over first, None when ``wake`` is called."""
        ...

    def wake(self) -> None:
        """End a wait, or the next one, from any thread."""
        ...

    def close(self) -> None:
        """Release the watch, after the last wait."""
        ...


class Store(BulkStore, Protocol):
    """One open tenant of one database."""

    adapter: str
    epoch: str
    catalog: Catalog
    """The relations that it has, its own memories among them."""
    dialect: Dialect
    """How the database spells statements."""
    plans: dict[str, RelationPlans]
    statements: dict[str, Plan]
    feed: Feed
    sees_every_commit: bool
    """True if ``changed_elsewhere`` notices every commit, False if only those that change what memory holds."""
    capabilities: frozenset[str]
    """The capabilities that a store may lack, and has: by their names in ``tests/contract/target.py``."""
    full_text: FullText | None
    """None for a database without full text of its own; it is searched in memory only."""
    vector_index: VectorIndexes | None
    """None for a database that compares every vector."""
    eraser: Eraser

    @property
    def maintenance(self) -> Maintenance:
        """The maintenance of the store."""
        ...

    def write(self, work: Callable[[UnitOfWork], T], *, exclusive: bool = False) -> T:
        """Run ``work`` in a write transaction and return its result once it is durable.

        It waits for other writers no longer than ``model.deadline`` allows the call.

        ``exclusive``: share the transaction with no other request where row locks last until the commit. A request
        that waits for the row would else also wait for everything that the batch waits for.
        """
        ...

    def read(self) -> AbstractContextManager[StatementSession]:
        """Return a session that sees one commit boundary."""
        ...

    def first_read(self) -> AbstractContextManager[StatementSession]:
        """As ``read``, while the store is being opened: writers may wait for its end, and no connection is added.

        Raises: Unavailable when the store takes no writes, because it is read-only, or its tenant moves or has moved.
        """
        ...

    def follow(self, follower: Follower | None) -> None:
        """Set the follower that is notified of commits."""
        ...

    def changed_elsewhere(self) -> bool:
        """Return whether another process committed since the last question; cheap."""
        ...

    def commit_signal(self) -> CommitSignal | None:
        """Return reports of other processes' writes, for a process that waits; None where there are none."""
        ...

    def catch_up(self) -> None:
        """Let the follower apply the commits of other processes, now."""
        ...

    def require_remote_events(self) -> None:
        """Raise MissingRequired or IncompatibleOptions where events of other processes do not arrive."""
        ...

    def listen(self, handler: RemoteEventListener) -> None:
        """Call ``handler`` soon after another process commits. Do nothing on a database without notifications.

        Raises: InvalidConfigValue.
        """
        ...

    def statement_count(self) -> int:
        """Return how many statements the calling thread has run."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the facts of the database for ``doctor`` and ``stats``."""
        ...

    def integrity(self) -> list[str]:
        """Return the faults the database finds in itself; empty when sound."""
        ...

    def close(self) -> None:
        """Release everything; further calls raise Unavailable."""
        ...


@managed
def reading(store: Store, relation: Relation) -> Iterator[StatementSession]:
    """Open a read session on one relation of the store. Raises: SchemaMismatch for a dropped memory."""
    with store.read() as session:
        if is_declared(relation):
            check_present(session, relation, store.plans, store.statements, store.catalog)
        yield session
