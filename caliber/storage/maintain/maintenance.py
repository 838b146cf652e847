"""Protocol of a backend's maintenance: status, vacuum, views, snapshots and file copies, and SQL for checks.

Also the states of the fence of a tenant that moves (moving, moved), and the errors that its store gives then.

A backend reports ``None`` for a figure that its database does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from caliber.model.errors import Unavailable
from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress
from caliber.schema.catalog import Catalog
from caliber.schema.relation import Relation
from caliber.storage.compile.session import StatementSession


@dataclass(frozen=True, slots=True)
class RelationStatus:
    """One table. Units: bytes on disk; ``dead_rows`` wait for a vacuum."""

    name: str
    rows: int
    table_bytes: int
    index_bytes: int
    dead_rows: int | None = None


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """One index; ``scans`` since the database last reset its statistics."""

    name: str
    relation: str
    bytes: int
    valid: bool = True
    scans: int | None = None


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """A standby server that follows this one. Units: bytes of WAL it has yet to replay."""

    name: str
    state: str
    lag_bytes: int | None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of one store. Units: bytes on disk, seconds.

    ``free_bytes`` are unused bytes within the file; ``sequence`` is the last commit's number, and ``changes`` the
    number of change records kept for followers.
    """

    adapter: str
    store: str
    schema_version: int
    min_reader_version: int
    min_writer_version: int
    epoch: str
    sequence: int
    changes: int
    bytes: int
    free_bytes: int | None
    wal_bytes: int | None
    relations: tuple[RelationStatus, ...]
    indexes: tuple[IndexStatus, ...]
    connections: int | None = None
    connections_max: int | None = None
    followers: tuple[FollowerStatus, ...] = ()
    oldest_transaction_s: float | None = None


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The outcome of a vacuum, and the tables it had no right to. Units: bytes on disk, before and after."""

    bytes_before: int
    bytes_after: int
    wal_bytes_before: int | None
    wal_bytes_after: int | None
    skipped: tuple[str, ...] = ()


class StoreSnapshot(Protocol):
    """Everything in a store, at one commit boundary."""

    epoch: str
    sequence: int

    catalog: Catalog
    """The relations that the store has at that boundary."""

    def ordinals(self) -> dict[str, int]:
        """Return the last ordinal that the database gave out, by relation: it is never given out again."""
        ...

    def count(self, relation: Relation) -> int:
        """Return how many rows a relation has."""
        ...

    def read(self, relation: Relation) -> Iterator[Any]:
        """Yield the rows of a relation of a whole store as ``pyarrow.RecordBatch``es of bounded size."""
        ...


class Maintenance(Protocol):
    """Maintenance of one open store."""

    copies_files: bool
    """True where ``copy_to`` is supported."""

    def create_views(self) -> list[str]:
        """Recreate the views for people, all or none; return their names.

        Raises: Conflict
        """
        ...

    def drop_views(self) -> list[str]:
        """Remove the views that ``create_views`` made; return their names."""
        ...

    def status(self) -> StoreStatus:
        """Return the state of the store."""
        ...

    def vacuum(self, *, full: bool, progress: Progress) -> Vacuumed:
        """Give room back, and renew the statistics of the planner; ``full`` rewrites every table.

        Raises: Unavailable when others use the store and cannot be waited for, or the disk is full
        """
        ...

    def snapshot(self) -> AbstractContextManager[StoreSnapshot]:
        """Yield a snapshot of everything at one boundary; others may go on writing."""
        ...

    def copy_to(self, path: Path, progress: Progress) -> tuple[str, int]:
        """Copy the store at one boundary to a file that the database itself reads; return epoch and sequence.

        Raises: Unavailable; StorageError when the copy is not whole
        """
        ...

    def ordinals(self, session: StatementSession) -> dict[str, int]:
        """Return the last ordinal that the database gave out, by relation."""
        ...

    def missing(self, session: StatementSession) -> list[str]:
        """Return the tables, columns and indexes that are declared and not there."""
        ...


MOVING: Final = ("moving", True, "the tenant is just moving to another place: try again")
MOVED: Final = ("moved", False, "the tenant has moved to another place: open it again")


class FenceState(StrEnum):
    """State of a fenced store: moving (writers wait), or moved (open the tenant again)."""

    MOVING = "moving"
    MOVED = "moved"


def elsewhere(store: str, state: FenceState = FenceState.MOVED) -> Unavailable:
    """Return the error of a store with a fence, as that of a tenant which has moved away."""
    reason, retryable, advice = MOVED if state is FenceState.MOVED else MOVING
    return Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
