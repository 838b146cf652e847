"""Types of bulk load and read: the backend's protocol, batches, report, and the choice for rows that exist.

Stores and their callers import this module instead of the loader, which needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from caliber.model.lazy_dataclass import dataclass
from caliber.model.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from caliber.schema.relation import Relation
    from caliber.storage.bulk.columns import Columns

BATCH_ROWS = 4_096
"""Default number of rows of a record batch."""


class OnExisting(StrEnum):
    """The treatment of a row that exists already by some rule of uniqueness."""

    ERROR = "error"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class BulkReport:
    """The outcome of a load. ``skipped_rows`` are the numbers of rows that existed, counted from 0."""

    relation: str
    rows: int
    loaded: int
    change_records: int
    skipped_rows: npt.NDArray[np.int64] = field(compare=False)

    @property
    def skipped(self) -> int:
        """The number of rows that existed already."""
        return len(self.skipped_rows)


class Batch(NamedTuple):
    """Rows that may be written: every column of the relation, checked."""

    first_row: int
    rows: int
    columns: Columns


class BulkStore(Protocol):
    """A database that loads and reads in bulk, as storage uses it."""

    def bulk_load(
        self, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting, progress: Progress
    ) -> BulkReport:
        """Write all rows in one transaction, with change records, and let the follower see them.

        Raises: InvalidRow, Conflict, Unavailable, and whatever ``batches`` raises; then nothing was written
        """
        ...

    def bulk_read(self, relation: Relation, batch_rows: int) -> Iterator[Any]:
        """Yield every row of one commit boundary as ``pyarrow.RecordBatch``."""
        ...
