"""Protocols of a database backend (module, ``Store``) and of its parts and objects passed to it.

Parts are the change feed, the eraser and the vector indexes; objects are pool, follower, listener.

``reading`` opens a session on one relation of a store.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from caliber.model.embedding import EmbeddingSpace
from caliber.model.events import Event
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interrupts import managed
from caliber.model.progress import Progress
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.schema.relations.storage import is_declared
from caliber.storage.bulk.protocol import BulkStore
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Dialect, Plan, RelationPlans
from caliber.storage.compile.session import StatementSession
from caliber.storage.maintain.maintenance import Maintenance
from caliber.storage.sql.full_text import FullText
from caliber.storage.stored_memories import check_present
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork


class Near(NamedTuple):
    """A question: the records of one kind that are nearest to a vector, as one principal sees them.

    Fields as in the statements of full text.
    """

    kind: str
    query: bytes
    seen: str
    at_us: int
    filters: Sequence[str | None]
    records: int


class SpaceIndex(NamedTuple):
    """The index of one space: its definition, whether it is usable, and the progress of its build."""

    method: str
    usable: bool
    doing: str = ""


class VectorIndexes(Protocol):
    """The vector indexes of one open store."""

    def open(self, space: EmbeddingSpace) -> bool:
        """Index a space that is about to be used, if it holds few vectors; return whether it has an index now."""
        ...

    def build(self, space: EmbeddingSpace, progress: Progress | None = None) -> bool:
        """Index a space that holds vectors, while others write; return whether it has an index now.

        An index as configured stays; one that differs, or was never finished, is rebuilt. None is built where the
        configuration or the dimensions require exact comparison, or there are too few vectors.
        """
        ...

    def drop(self, space_id: uuid.UUID) -> bool:
        """Remove the index of a space; return whether there was one."""
        ...

    def of(self, space_id: uuid.UUID) -> SpaceIndex | None:
        """Return the index of a space, or None."""
        ...

    def nearest(self, session: StatementSession, space: EmbeddingSpace, near: Near) -> list[Row] | None:
        """Return vectors near to a query, as ``search.vectors_K`` does: all there are, or of as many records as asked.

        None where every vector has to be read: there is no index, or it found too few of many.
        """
        ...


class Place(NamedTuple):
    """Something that is read byte by byte: ``kind`` is as in ``model.erasure.Searched``.

    ``parts`` are pieces that follow each other, or single values (``apart``), which nothing reaches across.
    """

    name: str
    kind: str
    parts: Iterator[bytes]
    apart: bool = False


class Eraser(Protocol):
    """The removal of bytes from one open store."""

    hold: Plan | None
    """Keeps every other writer out until the transaction ends; None where a transaction is alone anyway."""

    def scrub(self, wait_s: float) -> list[str]:
        """Rewrite everything that may hold deleted bytes, waiting ``wait_s`` for other users.

        Returns what could not be done, each in a sentence; empty when no deleted bytes remain in files of the store.
        """
        ...

    def scrub_log(self, wait_s: float) -> list[str]:
        """Remove earlier writes from the log of a server, which the store shares with others; call it after ``scrub``.

        Returns the obstacles, each in a sentence; when it is empty, ``places`` yields the log as files.
        """
        ...

    def places(self) -> Iterator[Place]:
        """Yield everything of the store that can be read: values of all tables, then files as they are on disk."""
        ...

    def destroy(self, wait_s: float) -> list[str]:
        """Remove the whole store, so that no file holds any of it; afterwards it can only be closed.

        Returns what could not be done; nothing was removed then.

        Raises: Unavailable when others use it.
        """
        ...

    def leftovers(self) -> Iterator[Place]:
        """Yield the remains of a destroyed store: one place per kind of object, empty when it is removed."""
        ...

    def out_of_reach(self) -> list[str]:
        """Return the places that this connection cannot read, and others that keep copies."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Change records that were not known yet, oldest first, and the position once they are applied."""

    sequence: int
    records: tuple[bytes, ...]


class Feed(Protocol):
    """The change records of one store, as its one follower reads them."""

    ordered: bool
    """Whether records are committed in the order of their numbers, so that all up to one stay what they are."""

    def bound(self, session: StatementSession) -> int:
        """Return the position of ``session``; changes after it are new."""
        ...

    def since(self, session: StatementSession, sequence: int) -> ChangeBatch | None:
        """Return the changes that ``session`` sees since the last boundary, or None when the feed lost them."""
        ...

    def covers(self, sequence: int) -> bool:
        """Return whether a commit of this process was already covered by the followed position."""
        ...


class SequenceFeed:
    """A feed whose records are numbered in the order of commits, without gaps."""

    ordered = True

    def __init__(self, statements: dict[str, Plan]) -> None:
        self._statements = statements
        self._followed = 0

    def bound(self, session: StatementSession) -> int:
        self._followed = session.run(self._statements["change.bounds"], ())[0][1]
        return self._followed

    def since(self, session: StatementSession, sequence: int) -> ChangeBatch | None:
        records: Sequence[tuple[int, bytes, bytes]] = session.run(self._statements["change.since"], (sequence,))
        if not records:
            return ChangeBatch(sequence, ())
        if records[0][0] != sequence + 1:
            return None
        self._followed = records[-1][0]
        return ChangeBatch(self._followed, tuple(entries for _, _, entries in records))

    def covers(self, sequence: int) -> bool:
        return sequence <= self._followed


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
