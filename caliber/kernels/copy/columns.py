"""Columns of bulk loads: their kinds, Arrow's buffers of their values, and what may be wrong with a value."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.model.lazy_dataclass import dataclass

U8s = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class CopyKind(IntEnum):
    """The kind of a field in a COPY tuple, and its Arrow type."""

    BOOL = 0
    INT2 = 1
    INT4 = 2
    INT8 = 3
    FLOAT4 = 4
    FLOAT8 = 5
    UUID = 6
    INSTANT = 7
    BYTES = 8
    TEXT = 9
    JSONB = 10
    TEXT_ARRAY = 11
    UUID_ARRAY = 12
    VECTOR = 13
    HALFVEC = 14


WIDTHS = {
    CopyKind.INT2: 2,
    CopyKind.INT4: 4,
    CopyKind.INT8: 8,
    CopyKind.FLOAT4: 4,
    CopyKind.FLOAT8: 8,
    CopyKind.UUID: 16,
    CopyKind.INSTANT: 8,
}
"""Bytes of a value where they are fixed, in Arrow and in a field alike."""

ARRAYS = (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY)

REASONS = {
    1: "a value is required",
    2: "the text is not UTF-8",
    3: "the text contains NUL, which PostgreSQL cannot store",
    4: "outside what the type holds",
    5: "longer than a value can be (1 GiB)",
    6: "not the number of dimensions it must have",
    7: "contains NaN or infinity",
    8: "the offsets of the column decrease, are negative or pass its end",
    9: "an element of an array is missing",
    10: "another number of fields than there are columns",
    11: "the bytes are too few or too many for the type",
    12: "not a list of the type of the column",
    13: "a form of the value that is not known",
}
"""Reasons of faults, by the numbers of caliber.h."""


@dataclass(frozen=True, slots=True)
class CopyField:
    """A column: ``dimensions`` of its vectors, 0 for any."""

    name: str
    kind: CopyKind
    dimensions: int = 0
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class CopyColumn:
    """One column as Arrow's buffers, which are not copied.

    ``first`` is the bit of row 0 in ``validity``, and in ``values`` of a BOOL. Values are spans between ``offsets``,
    counted in elements (bytes, f32, uuids, items), or of ``width`` elements each. ``items`` are the spans of texts of a
    TEXT_ARRAY, ``item_first`` the bit of item 0.
    """

    field: CopyField
    values: U8s
    offsets: Offsets | None = None
    width: int = 0
    validity: U8s | None = None
    first: int = 0
    items: Offsets | None = None
    item_count: int = 0
    item_validity: U8s | None = None
    item_first: int = 0
    missing: int = 0
    keep: Any = dataclasses.field(default=None, repr=False, compare=False)
    """The owner of the buffers' memory."""
