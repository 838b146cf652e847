"""Parts of a bulk load common to all databases: checked batches, read-ahead, change records, row counts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.schema.traits import Mirror
from caliber.storage.bulk import arrow, checks
from caliber.storage.bulk.arrow import Source
from caliber.storage.bulk.checks import Maker, check_batch, check_dimensions, check_owners
from caliber.storage.bulk.columns import Columns, canonical_json
from caliber.storage.bulk.protocol import Batch, BulkReport
from caliber.storage.write.unit_of_work import RowChange

T = TypeVar("T")


KEYS_A_RECORD = 1_000
"""Keys in a change record of a load (design, section 4)."""


def batches_of(
    relation: Relation,
    source: Source,
    maker: Maker,
    spaces: Mapping[bytes, int],
    owners: Sequence[str],
    kinds: Sequence[str],
) -> Iterator[Batch]:
    """Yield the batches of a source, completed and checked; ``spaces`` are the dimensions of embedding spaces.

    ``owners`` are the relations whose records have vectors, ``kinds`` those that a reference may name.

    Raises: InvalidRow; DTypeError for a column of a type that cannot be converted; InvalidValue for columns that are
        unknown or lacking
    """
    checks.check_names(relation, source.names)

    def batches() -> Iterator[Batch]:
        first_row = 0
        for source_batch in source.batches:
            rows: int = source_batch.num_rows
            columns: Columns = {}
            for name in source.names:
                declared = relation.column(name)
                column = arrow.column_from(source_batch, declared, first_row=first_row)
                if declared.json_decode is not None:
                    column = canonical_json(column, declared, rows, first_row)
                columns[name] = column
            checks.add_plain(relation, columns, rows, maker)
            check_batch(relation, columns, rows, first_row, kinds)
            if relation.resident.form is Mirror.VECTORS and rows:
                check_owners(columns, rows, first_row, owners)
                check_dimensions(columns, rows, first_row, spaces)
            checks.verify(relation, columns, source.names, rows, first_row, maker)
            checks.add_derived(relation, columns, rows, first_row, maker)
            yield Batch(first_row, rows, {column.name: columns[column.name] for column in relation.columns})
            first_row += rows

    return batches()


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield items while another thread makes the next one, so that a server does not wait for it."""
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="caliber-bulk") as maker:
        coming = maker.submit(next, iterator, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, iterator, None)
            yield item


class ChangeRecords:
    """Collects written rows and passes on a change record each time one is full."""

    def __init__(self, write: Callable[[Sequence[RowChange]], object]) -> None:
        self._write = write
        self._changes: list[RowChange] = []
        self.count = 0

    def add(self, changes: Iterable[RowChange]) -> None:
        """Take note of rows written."""
        self._changes.extend(changes)
        while len(self._changes) >= KEYS_A_RECORD:
            self._hand_over(KEYS_A_RECORD)

    def finish(self) -> None:
        """Pass on the rest."""
        if self._changes:
            self._hand_over(len(self._changes))

    def _hand_over(self, count: int) -> None:
        self._write(self._changes[:count])
        del self._changes[:count]
        self.count += 1


class Tally:
    """Counts the rows of a load, batch by batch."""

    def __init__(self, relation: Relation, progress: Progress) -> None:
        self._name = relation.name
        self._progress = progress
        self._skipped: list[npt.NDArray[np.int64]] = []
        self.rows = 0
        self.loaded = 0

    def add(self, batch: Batch, written: Sequence[int]) -> None:
        """Count a batch and the places in it that were written; report progress."""
        skipped = np.setdiff1d(np.arange(batch.rows, dtype=np.int64), np.asarray(written, np.int64))
        if skipped.size:
            self._skipped.append(skipped + batch.first_row)
        self.loaded += len(written)
        self.rows += batch.rows
        self._progress(self._name, self.rows, None)

    @property
    def skipped_rows(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows that were there already."""
        return np.concatenate(self._skipped) if self._skipped else np.empty(0, np.int64)

    def report(self, relation: Relation, change_records: int) -> BulkReport:
        """Return the report of the load."""
        return BulkReport(relation.name, self.rows, self.loaded, change_records, self.skipped_rows)


def row_of_loaded(number: int, skipped: npt.NDArray[np.int64]) -> int:
    """Return the row number of the ``number``-th loaded row, counted from 0, skipped rows included."""
    before = skipped - np.arange(skipped.shape[0])
    return number + int(np.searchsorted(before, number, side="right"))
