"""A predicate asked of every record of a boundary at once: in NumPy over columns, elsewhere with the least work.

What it means is said by ``schema.predicate.holds``, record by record; the answers are equal. Cheap conditions come
first and the others are asked only of the rows that these leave: columns; columns of codes, once a distinct value;
packed rows; texts, read in a few pieces.

Source: C-161 to C-165, K-064, K-071; design, section 5; docs/decisions/0147.
"""

from __future__ import annotations

import operator as operators
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.patterns import matcher, matches
from caliber.model.time import to_us
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.predicate import All, Comparison, Operator, Predicate, Variable, holds
from caliber.schema.relation import Column, ColumnType, Residence
from caliber.storage.compile.codec import decoder_of

Bools: TypeAlias = NDArray[np.bool_]
Texts: TypeAlias = Callable[[RelationSnapshot, Sequence[int]], Sequence[Any]]
"""Reads the texts of rows, of those that have left memory too: ``ResidentMemory.texts``."""

_UFUNCS: Final[dict[Operator, Callable[..., Any]]] = {
    Operator.EQUAL: np.equal,
    Operator.UNEQUAL: np.not_equal,
    Operator.LESS: np.less,
    Operator.GREATER: np.greater,
    Operator.AT_MOST: np.less_equal,
    Operator.AT_LEAST: np.greater_equal,
}
_SCALARS: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQUAL: operators.eq,
    Operator.UNEQUAL: operators.ne,
    Operator.LESS: operators.lt,
    Operator.GREATER: operators.gt,
    Operator.AT_MOST: operators.le,
    Operator.AT_LEAST: operators.ge,
}
TEXTS_AT_ONCE: Final = 4_096
"""Texts left memory because they are many: they do not come back all at once."""
_COSTS: Final = {
    Residence.COLUMN: 0,
    Residence.FLAG: 1,  # a comparison with an id goes on to packed rows, but few are set
    Residence.INTERNED: 2,
    Residence.PACKED: 4,
    Residence.TEXT: 6,
}


def mask(
    predicate: Predicate,
    snapshot: RelationSnapshot,
    variables: Mapping[Variable, Any],
    texts: Texts,
    among: Bools | None = None,
) -> Bools:
    """Return which live rows a predicate holds for, of those in ``among`` if given; no other row is read.

    Shapes:  ``bool[length]``
    Raises:  NotFound for a record whose text was evicted, that has been deleted since, and whose text was not kept
    """
    wanted = snapshot.live_mask if among is None else snapshot.live_mask & among
    return _Asking(snapshot, variables, texts).of(predicate, wanted)


class _Asking:
    """One predicate asked of one snapshot. Every method answers only for the rows it is asked about."""

    __slots__ = ("_snapshot", "_texts", "_variables")

    def __init__(self, snapshot: RelationSnapshot, variables: Mapping[Variable, Any], texts: Texts) -> None:
        self._snapshot = snapshot
        self._variables = variables
        self._texts = texts

    def of(self, predicate: Predicate, wanted: Bools) -> Bools:
        """Return the wanted rows that a predicate holds for."""
        if isinstance(predicate, Comparison):
            return self._compared(predicate, wanted)
        parts = sorted(predicate.conditions, key=self._cost)
        if isinstance(predicate, All):
            for part in parts:
                wanted = self.of(part, wanted)
            return wanted
        found = self.of(parts[0], wanted)
        for part in parts[1:]:
            found = found | self.of(part, wanted & ~found)
        return found

    def _cost(self, predicate: Predicate) -> int:
        if not isinstance(predicate, Comparison):
            return max(map(self._cost, predicate.conditions))
        return _COSTS[self._residence(predicate)] + (predicate.operator is Operator.MATCHES)

    def _residence(self, comparison: Comparison) -> Residence:
        layout = self._snapshot.layout
        if layout.has_tie and comparison.column == layout.relation.key[0]:
            return Residence.COLUMN
        return layout.relation.column(comparison.column).residence

    def _compared(self, comparison: Comparison, wanted: Bools) -> Bools:
        value = self._value(comparison)
        if isinstance(comparison.value, Variable) and value is None:
            return np.zeros(len(wanted), np.bool_)
        column = self._snapshot.relation.column(comparison.column)
        match self._residence(comparison):
            case Residence.COLUMN if column.type is ColumnType.UUID:
                return _both(self._by_key(comparison, value), wanted)
            case Residence.COLUMN:
                return _both(self._by_column(comparison, column, value), wanted)
            case Residence.INTERNED:
                return _both(self._by_code(comparison, column, value, wanted), wanted)
            case Residence.FLAG:
                return self._by_flag(comparison, column, value, wanted)
            case Residence.TEXT:
                return self._by_text(comparison, column, np.flatnonzero(wanted))
            case _:
                return self._by_packed(comparison, column, value, wanted)

    def _value(self, comparison: Comparison) -> Any:
        value = comparison.value
        return self._variables[value] if isinstance(value, Variable) else value

    def _of_null(self, comparison: Comparison) -> bool:
        return holds(comparison, {comparison.column: None}, self._variables, matches)

    def _chosen(self, rows: NDArray[np.int64], verdicts: Sequence[bool] | bool = True) -> Bools:
        found = np.zeros(self._snapshot.length, np.bool_)
        found[rows] = verdicts
        return found

    # --- columns ---------------------------------------------------------------------------------

    def _by_key(self, comparison: Comparison, value: Any) -> Bools:
        """A key is never NULL, so that of two answers each is the other's opposite."""
        row = -1 if value is None else self._snapshot.find(value.bytes)
        found = np.zeros(self._snapshot.length, np.bool_)
        if row >= 0:
            found[row] = True
        return found if comparison.operator is Operator.EQUAL else ~found

    def _by_column(self, comparison: Comparison, column: Column, value: Any) -> Bools:
        array = self._snapshot.column(column.name)
        null = column.resident_null if column.nullable else None
        if value is None:
            is_null = np.zeros(len(array), np.bool_) if null is None else np.equal(array, array.dtype.type(null))
            return is_null if comparison.operator is Operator.EQUAL else np.logical_not(is_null)
        stored = self._stored(column, value)
        found: Bools = _UFUNCS[comparison.operator](array, array.dtype.type(stored))
        if null is not None:
            of_null = self._of_null(comparison)
            # What stands for NULL compares as a value; mostly that is the answer already.
            if _SCALARS[comparison.operator](null, stored) is not of_null:
                found[array == array.dtype.type(null)] = of_null
        return found

    def _stored(self, column: Column, value: Any) -> Any:
        if isinstance(value, datetime):
            return to_us(value)
        if column.enum is not None:
            return self._snapshot.enum_code(column.name, value)
        return value

    def _by_flag(self, comparison: Comparison, column: Column, value: Any, wanted: Bools) -> Bools:
        is_set: Bools = self._snapshot.column(column.name) != 0
        if value is None:
            return wanted & (~is_set if comparison.operator is Operator.EQUAL else is_set)
        # No column of flags is a bound of validity: what is NULL compares with nothing.
        return self._by_packed(comparison, column, value, wanted & is_set)

    # --- columns of codes ------------------------------------------------------------------------

    def _by_code(self, comparison: Comparison, column: Column, value: Any, wanted: Bools) -> Bools:
        codes: NDArray[np.int32] = self._snapshot.column(column.name)
        # A writer may append while this reads: what was there when the boundary was made stays in its place.
        values = self._snapshot.interned(column.name)
        if comparison.operator in (Operator.EQUAL, Operator.UNEQUAL):
            stored = value.bytes if isinstance(value, uuid.UUID) else value
            same = _code_of(values, stored)
            if comparison.operator is Operator.EQUAL:
                return np.equal(codes, same)
            found: Bools = np.not_equal(codes, same)
            if value is not None and column.nullable:
                found &= codes != _code_of(values, None)
            return found
        asked = np.zeros(len(values), np.bool_)
        asked[codes[wanted]] = True
        verdicts = np.zeros(len(asked), np.bool_)
        places = np.flatnonzero(asked)
        verdicts[places] = self._verdicts(comparison, column, [values[place] for place in places.tolist()])
        answers: Bools = verdicts[codes]
        return answers

    # --- texts and rows --------------------------------------------------------------------------

    def _by_text(self, comparison: Comparison, column: Column, rows: NDArray[np.int64]) -> Bools:
        verdicts: list[bool] = []
        for start in range(0, len(rows), TEXTS_AT_ONCE):
            texts = self._texts(self._snapshot, rows[start : start + TEXTS_AT_ONCE].tolist())
            verdicts += self._verdicts(comparison, column, texts)
        return self._chosen(rows, verdicts)

    def _by_packed(self, comparison: Comparison, column: Column, value: Any, wanted: Bools) -> Bools:
        snapshot = self._snapshot
        grouped = column.name in snapshot.relation.groups
        if grouped and isinstance(value, uuid.UUID) and comparison.operator is Operator.EQUAL:
            return wanted & self._chosen(snapshot.group(column.name, value.bytes))
        rows = np.flatnonzero(wanted)
        stored = snapshot.packed_values(column.name, rows.tolist())
        return self._chosen(rows, self._verdicts(comparison, column, stored))

    def _verdicts(self, comparison: Comparison, column: Column, stored: Sequence[Any]) -> list[bool]:
        """Return the answer for each of some values as they are stored."""
        decode, value = decoder_of(column), self._value(comparison)
        if decode is not None:
            stored = [None if item is None else decode(item) for item in stored]
        if value is not None and comparison.operator is Operator.MATCHES:
            found = matcher(value)
            return [item is not None and found(item) for item in stored]
        if value is not None and comparison.operator is Operator.CONTAINS:
            return [item is not None and value in item for item in stored]
        return [holds(comparison, {comparison.column: item}, self._variables, matches) for item in stored]


def _both(fresh: Bools, wanted: Bools) -> Bools:
    """Return the rows that are in both, in the place of the first, which nobody else holds."""
    return np.logical_and(fresh, wanted, out=fresh)


def _code_of(values: list[Any], stored: Any) -> int:
    """Return the code of a value in a column of codes, or -1 where no row has it."""
    try:
        return values.index(stored)
    except ValueError:
        return -1
