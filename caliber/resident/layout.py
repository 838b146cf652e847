"""Column layout of one relation's mirror: which columns are arrays and which are packed into rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from caliber.schema.relation import ColumnType, Relation, Residence
from caliber.storage.compile.codec import Row, codec_of

_DTYPES = {
    ColumnType.INT: np.int64,
    ColumnType.INSTANT: np.int64,
    ColumnType.FLOAT: np.float64,
    ColumnType.BOOL: np.uint8,
    ColumnType.ENUM: np.int8,
}


def _is_set(value: Any) -> bool:
    return value is not None


class Layout:
    """Places of columns in rows, and their types in memory."""

    __slots__ = (
        "codec",
        "columns",
        "converters",
        "dtypes",
        "enum_codes",
        "gaps",
        "groups",
        "has_tie",
        "held",
        "interned",
        "key_places",
        "ordinal_place",
        "relation",
        "residences",
        "row_bytes",
        "text_place",
        "version_place",
        "withdrawn",
    )

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.codec = codec_of(relation)
        self.key_places = tuple(self.codec.index(name) for name in relation.key)
        self.version_place = self.codec.index("version")
        texts = [column.name for column in relation.columns if column.residence is Residence.TEXT]
        self.text_place = self.codec.index(texts[0]) if texts else -1
        self.columns: list[tuple[str, int, Residence, ColumnType, Any]] = []
        self.enum_codes: dict[str, dict[str, int]] = {}
        for column in relation.columns:
            if column.residence in (Residence.COLUMN, Residence.FLAG, Residence.INTERNED):
                place = self.codec.index(column.name)
                self.columns.append((column.name, place, column.residence, column.type, column.resident_null))
                if column.enum is not None:
                    self.enum_codes[column.name] = {member.value: code for code, member in enumerate(column.enum)}
        self.dtypes = {name: np.dtype(self.dtype_of(residence, kind)) for name, _, residence, kind, _ in self.columns}
        self.row_bytes: int = sum(dtype.itemsize for dtype in self.dtypes.values())
        """Bytes of a row in its columns."""
        self.interned = tuple(name for name, _, residence, *_ in self.columns if residence is Residence.INTERNED)
        self.converters = {
            name: self._converter(name, residence, kind, null) for name, _, residence, kind, null in self.columns
        }
        """From a stored value to the array's; None where they are the same, or the mirror has one of its own."""
        self.groups = tuple((name, self.codec.index(name)) for name in relation.resident.groups)
        # Values that columns hold unchanged are left out of the packed row; an instant takes 13 bytes there.
        self.held = tuple(
            (name, place)
            for name, place, residence, kind, null in self.columns
            if residence is Residence.COLUMN and kind is ColumnType.INSTANT and null is None
        )
        self.has_tie = len(relation.key) == 1 and relation.column(relation.key[0]).type is ColumnType.UUID
        self.residences = {column.name: column.residence for column in relation.columns}
        """How a column is queried: a key of one id is looked up, wherever it is stored."""
        if self.has_tie:
            self.residences[relation.key[0]] = Residence.COLUMN
        # The flags of records that are no part of the sequence any more, where records follow each other.
        self.withdrawn = () if relation.neighbours is None else relation.active
        places = {0, self.text_place, *(place for _, place in self.held), *(self.key_places if self.has_tie else ())}
        self.gaps = tuple(places - {-1})
        """Places that a packed row leaves empty."""

    def _converter(self, name: str, residence: Residence, kind: ColumnType, null: Any) -> Callable[[Any], Any] | None:
        if residence is Residence.FLAG:
            return _is_set
        if residence is Residence.INTERNED:
            return None
        if kind is ColumnType.ENUM:
            codes: dict[Any, Any] = self.enum_codes[name] | ({} if null is None else {None: null})
            return codes.__getitem__
        if null is not None:
            return lambda value: null if value is None else value
        return None

    def key_of(self, row: Row) -> bytes:
        """Return the bytes a row is looked up by."""
        if len(self.key_places) == 1:
            key: bytes = row[self.key_places[0]]
            return key
        return b"\x00".join(
            part if isinstance(part, bytes) else str(part).encode() for part in (row[p] for p in self.key_places)
        )

    def dtype_of(self, residence: Residence, kind: ColumnType) -> Any:
        if residence is Residence.FLAG:
            return np.uint8
        if residence is Residence.INTERNED:
            return np.int32
        return _DTYPES[kind]


layout_of = functools.cache(Layout)
"""The layout of a relation, which all stores share."""
