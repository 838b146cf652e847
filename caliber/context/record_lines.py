"""Reader of records that are no turns, from resident memory, and the table of how long turns and records read.

Source: C-451, O-8.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.inputs import TextSource
from caliber.context.plan import AssemblyPlan
from caliber.context.texts import render_columns
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relation import Residence

LENGTH_MASK: Final = (1 << 32) - 1
"""The bits of an entry that are a length; a reader of turns has flags above them, below ``1 << 34``."""
_VERSION_SHIFT: Final = 34
_FIRST_ENTRIES: Final = 1_024
Rows = NDArray[np.int64]


class RecordLines:
    """Records of one snapshot as text. How long one reads is worked out once per version."""

    __slots__ = ("_plan", "_snapshot", "_source")

    def __init__(self, snapshot: ResidentSnapshot, source: TextSource, plan: AssemblyPlan) -> None:
        self._snapshot = snapshot
        self._source = source
        self._plan = plan

    def lengths(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of each record of a source as it reads."""
        owners, plan = self._owners(source), self._plan

        def measured(those: list[int]) -> NDArray[np.int64]:
            return plan.measure(self.texts(source, those))

        if owners.partial:  # where values are hidden from an agent, a record reads otherwise than for others
            return measured(rows.tolist())
        table = length_table(self._source, self._snapshot.position.epoch, f"{owners.relation.name} {plan.ruler}")
        return table.entries_of(owners, rows, measured) & LENGTH_MASK

    def texts(self, source: int, rows: list[int]) -> list[str]:
        """Return records of a source as they read, from their columns as they are stored."""
        owners = self._owners(source)
        relation, layout = owners.relation, owners.layout
        columns: list[Sequence[Any]] = []
        packed: dict[str, int] = {}
        for name in relation.in_windows.shown:
            place, column = layout.codec.index(name), relation.column(name)
            values: list[Any] = []
            if column.residence is Residence.INTERNED:
                values = owners.interned(name)
            elif name in layout.enum_codes and not column.nullable:
                values = list(layout.enum_codes[name])
            if place == layout.text_place:
                columns.append(self._source.texts(owners, rows))
            elif values:
                columns.append([values[code] for code in owners.column(name)[rows].tolist()])
            else:
                packed[name] = len(columns)
                columns.append(())
        read: Iterable[Sequence[Any]] = (owners.packed_values(name, rows) for name in packed)
        if len(packed) > 1 and rows:
            read = zip(*owners.packed_rows(tuple(packed), rows), strict=True)
        for at, found in zip(packed.values(), read, strict=True):
            columns[at] = found
        return render_columns(relation, columns)

    def _owners(self, source: int) -> RelationSnapshot:
        return self._snapshot[self._plan.records[source].name]


class LengthTable:
    """Entries of records by ordinal: version, flags, length; 0 for an unknown record. Nothing of their content.

    Threads may look up and keep at once: an entry is one word, and an entry lost while the table grows is worked out
    again.
    """

    __slots__ = ("_entries", "epoch")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self._entries: Rows = np.zeros(_FIRST_ENTRIES, np.int64)

    def entries_of(self, owners: RelationSnapshot, rows: Rows, make: Callable[[list[int]], Rows]) -> Rows:
        """Return the entries of rows, without their versions; ``make`` gives those that are missing."""
        if not len(rows):
            return np.empty(0, np.int64)
        ordinals, versions = owners.column("ordinal")[rows], owners.column("version")[rows]
        entries, most = self._entries, int(ordinals.max())
        if most >= len(entries):
            self._entries = np.zeros(max(2 * len(entries), most + 1), np.int64)
            self._entries[: len(entries)] = entries
            entries = self._entries
        found: Rows = entries[ordinals]
        # Nothing reads as an empty text: 0 means unknown, also where a damaged store has version 0.
        unknown = np.flatnonzero(((found >> _VERSION_SHIFT) != versions) | (found == 0))
        if len(unknown):
            found[unknown] = make(rows[unknown].tolist()) | (versions[unknown] << _VERSION_SHIFT)
            entries[ordinals[unknown]] = found[unknown]
        entry: Rows = found & ((1 << _VERSION_SHIFT) - 1)
        return entry


_TABLES: Final[weakref.WeakKeyDictionary[TextSource, dict[str, LengthTable]]] = weakref.WeakKeyDictionary()


def length_table(source: TextSource, epoch: str, what: str) -> LengthTable:
    """Return the table of a source for ``what``: a relation, and the parameters that lengths depend on."""
    tables = _TABLES.setdefault(source, {})
    table = tables.get(what)
    if table is None or table.epoch != epoch:
        table = tables[what] = LengthTable(epoch)
    return table
