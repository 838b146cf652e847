"""Reader of records that are no turns, from resident memory: their texts in a window, and how long each is.

Source: C-451, O-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.context.inputs import TextSource
from caliber.context.plan import AssemblyPlan
from caliber.context.texts import render_columns
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relation import Residence


class RecordLines:
    """Records of one snapshot as text. How long one reads is worked out once per version, and leaves with its text."""

    __slots__ = ("_plan", "_snapshot", "_source")

    def __init__(self, snapshot: ResidentSnapshot, source: TextSource, plan: AssemblyPlan) -> None:
        self._snapshot = snapshot
        self._source = source
        self._plan = plan

    def lengths(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of each record of a source as it reads."""
        owners, plan = self._owners(source), self._plan
        # Where values are hidden from an agent, a record reads otherwise than for others.
        kept = np.zeros(owners.length, np.int64)
        if not owners.partial:
            kept = owners.generation.measures(plan.ruler, owners.length)
        out = kept[rows]
        unknown = np.flatnonzero(out == 0)
        if len(unknown):
            kept[rows[unknown]] = out[unknown] = plan.measure(self.texts(source, rows[unknown].tolist()))
        return out

    def texts(self, source: int, rows: list[int]) -> list[str]:
        """Return records of a source as they read, from their columns as they are stored."""
        owners = self._owners(source)
        relation, layout = owners.relation, owners.layout
        columns: list[Sequence[Any]] = []
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
                columns.append(owners.packed_values(name, rows))
        return render_columns(relation, columns)

    def _owners(self, source: int) -> RelationSnapshot:
        return self._snapshot[self._plan.records[source].name]
