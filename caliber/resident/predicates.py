"""Evaluation of predicates on resident columns with NumPy: the mask of rows that match.

``schema.predicate.holds`` defines the meaning, record by record; the results are equal. Cheap conditions come first,
and later ones are evaluated only for the remaining rows: columns; columns of codes, once per distinct value; packed
rows; texts, read in a few pieces.

Masks of injection rules are kept from window to window. The content of a row never changes: an update appends a new
row. So the result of a filter for a row stays valid for as long as the row exists, unless the filter depends on the
time or the task; that part is evaluated each time.

Source: C-161 to C-165, K-064, K-071; design, section 5; docs/decisions/0147.
"""

from __future__ import annotations

import json
import operator as operators
import threading
import uuid
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.patterns import matcher, matches
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interpreter import renew_in_child
from caliber.model.time import to_us
from caliber.resident.mirror import TEXTS_AT_ONCE, Generation, RelationSnapshot
from caliber.schema.json_patterns import fitting, needle_of
from caliber.schema.predicate import (
    RANGES,
    All,
    Comparison,
    OneOf,
    Operator,
    Predicate,
    Variable,
    after_all_with,
    all_of,
    holds,
    variables_in,
)
from caliber.schema.relation import Column, ColumnType, Residence
from caliber.storage.compile.codec import decoder_of

Bools: TypeAlias = NDArray[np.bool_]
Texts: TypeAlias = Callable[[RelationSnapshot, Sequence[int]], Sequence[Any]]
"""Reads the texts of rows, evicted ones included: ``ResidentMemory.texts``."""

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
_SCAN: Final[Callable[[str, int], tuple[Any, int]]] = vars(json.JSONDecoder())["scan_once"]
CODES_COMPARED: Final = 16
"""Of more values of a column of codes a table of verdicts is quicker than comparisons."""
_COSTS: Final = {
    Residence.COLUMN: 0,
    Residence.FLAG: 1,  # a comparison with an id reads packed rows, but few are set
    Residence.INTERNED: 2,
    Residence.PACKED: 4,
    Residence.TEXT: 6,
}


def held_texts(snapshot: RelationSnapshot, rows: Sequence[int]) -> list[Any]:
    """Return the texts of rows of a mirror that none has left."""
    return [snapshot.text(row) for row in rows]


def mask(
    predicate: Predicate,
    snapshot: RelationSnapshot,
    variables: Mapping[Variable, Any],
    texts: Texts,
    among: Bools | None = None,
) -> Bools:
    """Return the mask of live rows that meet a predicate, within ``among`` if given; no other row is read.

    Shapes:  ``bool[length]``
    Raises:  NotFound for a record whose text was evicted, that has been deleted since, and whose text was not kept
    """
    wanted = snapshot.live_mask if among is None else snapshot.live_mask & among
    return _Asking(snapshot, variables, texts).of(predicate, wanted)


class _Asking:
    """One predicate evaluated on one snapshot. Every method covers only the rows passed to it."""

    def __init__(self, snapshot: RelationSnapshot, variables: Mapping[Variable, Any], texts: Texts) -> None:
        self._snapshot = snapshot
        self._layout = snapshot.layout
        self._variables = variables
        self._texts = texts

    def of(self, predicate: Predicate, wanted: Bools) -> Bools:
        """Return the wanted rows that a predicate holds for."""
        if isinstance(predicate, Comparison):
            return self._compared(predicate, wanted)
        if isinstance(predicate, OneOf):
            return self._member(predicate, wanted)
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
        if isinstance(predicate, Comparison):
            each = predicate.operator is Operator.FITS and not needle_of(self._value(predicate))
            return _COSTS[self._layout.residences[predicate.column]] + (each or predicate.operator is Operator.MATCHES)
        if isinstance(predicate, OneOf):
            return _COSTS[self._layout.residences[predicate.column]]
        return max(map(self._cost, predicate.conditions))

    def _member(self, asked: OneOf, wanted: Bools) -> Bools:
        """Return the wanted rows that have one of some values."""
        snapshot, column, values = self._snapshot, self._layout.relation.column(asked.column), asked.values
        if column.residence is Residence.INTERNED:
            known = snapshot.interned_codes(column.name)
            codes = [code for code in map(known.get, map(_as_stored, values)) if code is not None]
            if len(codes) > CODES_COMPARED:
                verdicts = np.zeros(len(snapshot.interned(column.name)), np.bool_)
                verdicts[codes] = True
                either: Bools = verdicts[snapshot.column(column.name)]
                return _both(either, wanted)
            return self._among(column, codes, wanted)
        if column.residence is Residence.COLUMN:
            null = column.resident_null
            stored = [null if value is None else self._stored(column, value) for value in values]
            # The value that stands for NULL in the array is no record's.
            return self._among(column, [item for item in stored if item != null or None in values], wanted)
        packed = self._layout.residences[column.name] is Residence.PACKED  # a key is not, whatever its column states
        if packed and column.name not in snapshot.relation.resident.groups:
            rows, decode = np.flatnonzero(wanted), decoder_of(column)
            found = snapshot.packed_values(column.name, rows.tolist())
            decoded = found if decode is None else [None if item is None else decode(item) for item in found]
            return self._chosen(rows, [item in values for item in decoded])
        either = np.zeros(snapshot.length, np.bool_)
        for value in values:
            either |= self._compared(Comparison(column.name, Operator.EQUAL, value), wanted & ~either)
        return either

    def _among(self, column: Column, values: Sequence[Any], wanted: Bools) -> Bools:
        array, found = self._snapshot.column(column.name), wanted.copy()
        known = np.array(sorted(value for value in values if value is not None), array.dtype)
        self._snapshot.evaluator.keep_members(found, array, known)
        return found

    def _compared(self, comparison: Comparison, wanted: Bools) -> Bools:
        value = self._value(comparison)
        if isinstance(comparison.value, Variable) and value is None:
            return np.zeros(len(wanted), np.bool_)
        column = self._layout.relation.column(comparison.column)
        match self._layout.residences[comparison.column]:
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
            of_null = holds(comparison, {comparison.column: None}, self._variables, matches)
            # The code for NULL compares as a value; mostly that is the result already.
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
        # No column of flags is a bound of validity: NULL compares with nothing.
        return self._by_packed(comparison, column, value, wanted & is_set)

    # --- columns of codes ------------------------------------------------------------------------

    def _by_code(self, comparison: Comparison, column: Column, value: Any, wanted: Bools) -> Bools:
        codes: NDArray[np.int32] = self._snapshot.column(column.name)
        if comparison.operator in (Operator.EQUAL, Operator.UNEQUAL):
            known = self._snapshot.interned_codes(column.name)
            same = known.get(_as_stored(value), -1)
            if comparison.operator is Operator.EQUAL:
                return np.equal(codes, same)
            found: Bools = np.not_equal(codes, same)
            if value is not None and column.nullable:
                found &= codes != known.get(None, -1)
            return found
        if value is not None and comparison.operator in RANGES:
            return self._by_range(comparison.operator, column.name, value)
        # A writer may append while this reads: rows within the boundary keep their places.
        values = self._snapshot.interned(column.name)
        asked = np.zeros(len(values), np.bool_)
        asked[codes[wanted]] = True
        verdicts = np.zeros(len(asked), np.bool_)
        places = np.flatnonzero(asked)
        verdicts[places] = self._verdicts(comparison, column, [values[place] for place in places.tolist()])
        answers: Bools = verdicts[codes]
        return answers

    def _by_range(self, operator: Operator, name: str, value: Any) -> Bools:
        """Return the rows whose value lies in a range, by the values in order."""
        values, codes = self._snapshot.in_order(name)
        low, high = range_of(values, operator, value)
        verdicts = np.zeros(len(self._snapshot.interned(name)), np.bool_)
        verdicts[codes[low:high]] = True
        answers: Bools = verdicts[self._snapshot.column(name)]
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
        grouped = column.name in snapshot.relation.resident.groups
        if grouped and isinstance(value, uuid.UUID) and comparison.operator is Operator.EQUAL:
            return wanted & self._chosen(snapshot.group(column.name, value.bytes))
        rows = np.flatnonzero(wanted)
        needle = needle_of(value) if comparison.operator is Operator.FITS else b""
        stored = snapshot.packed_values(column.name, rows.tolist(), needle)
        return self._chosen(rows, self._verdicts(comparison, column, stored))

    def _verdicts(self, comparison: Comparison, column: Column, stored: Sequence[Any]) -> list[bool]:
        """Return the answer for each of some values as they are stored."""
        decode, value = decoder_of(column), self._value(comparison)
        if comparison.operator is Operator.FITS:
            fits = fitting(value)
            with suppress(StopIteration, ValueError):  # of damaged JSON, which is named below
                # A third of the time of ``json.loads``, which looks for white space.
                return [item is not None and fits(_SCAN(item, 0)[0]) for item in stored]
        if decode is not None:
            stored = [None if item is None else decode(item) for item in stored]
        if value is not None and comparison.operator is Operator.MATCHES:
            found = matcher(value)
            return [item is not None and found(item) for item in stored]
        if value is not None and comparison.operator is Operator.CONTAINS:
            return [item is not None and value in item for item in stored]
        if value is not None and comparison.operator is Operator.STARTS:
            return [item is not None and item.startswith(value) for item in stored]
        return [holds(comparison, {comparison.column: item}, self._variables, matches) for item in stored]


def _both(fresh: Bools, wanted: Bools) -> Bools:
    """Return the rows that are in both, in the array of the first, which no other code holds."""
    return np.logical_and(fresh, wanted, out=fresh)


def range_of(values: Sequence[Any], operator: Operator, value: Any) -> tuple[int, int]:
    """Return where those of some values in order begin and end that a comparison of order holds for."""
    match operator:
        case Operator.LESS:
            return 0, bisect_left(values, value)
        case Operator.AT_MOST:
            return 0, bisect_right(values, value)
        case Operator.GREATER:
            return bisect_right(values, value), len(values)
        case Operator.AT_LEAST:
            return bisect_left(values, value), len(values)
        case _:
            end = after_all_with(value)
            return bisect_left(values, value), len(values) if end is None else bisect_left(values, end)


def _as_stored(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value


_KEPT: Final = 64
"""Filters remembered of one relation: more than one configuration has for it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The verdicts of a filter on the rows of a boundary: for rows that were live; read-only."""

    live: Bools
    dead: int
    let_through: Bools


_lock = threading.Lock()
renew_in_child(globals(), "_lock")

_KNOWN: Final[weakref.WeakKeyDictionary[Generation, dict[Predicate, _Known]]] = weakref.WeakKeyDictionary()


def let_through(
    predicate: Predicate, owners: RelationSnapshot, variables: Mapping[Variable, Any], texts: Texts, among: Bools
) -> Bools:
    """Return the mask of the rows in ``among`` that match a filter. Shapes: ``bool[owners.length]``."""
    lasting, passing = _parts(predicate)
    if lasting is not None:
        among = among & _lasting(lasting, owners, texts)
    return among if passing is None else mask(passing, owners, variables, texts, among)


def _lasting(predicate: Predicate, owners: RelationSnapshot, texts: Texts) -> Bools:
    """Return a filter's verdict on all live rows, for a filter on nothing but the record."""
    if owners.partial:
        return mask(predicate, owners, {}, texts)
    with _lock:
        cached = _KNOWN.setdefault(owners.generation, {}).get(predicate)
    if cached is not None and cached.live is owners.live_mask and len(cached.let_through) == owners.length:
        return cached.let_through
    if cached is not None and len(cached.let_through) <= owners.length and cached.dead <= owners.dead:
        start = len(cached.let_through)
        fresh = np.ones(owners.length, np.bool_)
        fresh[:start] = False
        found = mask(predicate, owners, {}, texts, fresh)
        np.logical_and(cached.let_through, owners.live_mask[:start], out=found[:start])
    else:
        found = mask(predicate, owners, {}, texts)
    if found is owners.live_mask:
        found = found.copy()
    found.flags.writeable = False
    if cached is None or len(cached.let_through) <= owners.length:
        with _lock:
            kept = _KNOWN.setdefault(owners.generation, {})
            if len(kept) >= _KEPT:
                kept.clear()
            kept[predicate] = _Known(owners.live_mask, owners.dead, found)
    return found


@lru_cache(maxsize=256)
def _parts(predicate: Predicate) -> tuple[Predicate | None, Predicate | None]:
    """Return the part of a condition that is constant per row, and the part that depends on time and task."""
    parts = predicate.conditions if isinstance(predicate, All) else (predicate,)
    moving = [bool(variables_in(part)) for part in parts]
    return (
        all_of(*(part for part, moves in zip(parts, moving, strict=True) if not moves)),
        all_of(*(part for part, moves in zip(parts, moving, strict=True) if moves)),
    )
