"""Searchable kinds and filters: checks of a caller's arguments, and masks over rows.

Filters are masks, so k hits come back whenever k records match and count as found.

Source: M §1.2, M-046, design sections 5 and 7.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed
from caliber.model.errors import DimensionMismatch, DTypeError, InvalidValue
from caliber.model.time import to_us
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.validity import rows_in_force
from caliber.schema.catalog import Catalog
from caliber.schema.in_force import asked_us
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.storage.compile.codec import dump_json
from caliber.storage.sql.full_text import filterable as stored_filterable
from caliber.storage.sql.full_text import texts_of

_FLOAT64 = np.dtype(np.float64)
_INT64 = np.dtype(np.int64)


class Seen(Protocol):
    """What may be seen; ``access.visibility.Readers`` is one."""

    def over(self, rows: RelationSnapshot) -> Allowed | None:
        """Return the mask, or None when everything may be seen."""
        ...


class Found(NamedTuple):
    """One hit before its text is read."""

    relation: RelationSnapshot
    row: int
    score: float
    breakdown: dict[str, float]
    found_by: tuple[str, ...]


def check_kinds(kinds: Sequence[str] | None, known: Mapping[str, str]) -> tuple[str, ...]:
    """Return the kinds to search, by what callers may call them. Raises: InvalidValue, DTypeError."""
    if kinds is None:
        return tuple(dict.fromkeys(known.values()))
    if isinstance(kinds, str):
        kinds = (kinds,)
    try:
        iter(kinds)
    except TypeError:
        raise DTypeError(field="kinds", expected="names of kinds", got=type(kinds).__name__) from None
    named: tuple[Any, ...] = tuple(kinds)
    for kind in named:
        if not isinstance(kind, str) or kind not in known:
            raise InvalidValue(field="kinds", reason=f"unknown kind; there are {', '.join(known)}")
    return tuple(dict.fromkeys(known[kind] for kind in named))


def kinds_of(catalog: Catalog) -> dict[str, str]:
    """Return what a store can be searched for: relations, by what callers call them.

    A declared memory can be searched if it has an embedding or a text that is indexed by words.
    """
    names = {memory.relation.name: name for name, memory in catalog.memories.items()}
    return {names.get(relation.name, relation.name): relation.name for relation in texts_of(catalog)}


def alive(
    snapshot: RelationSnapshot, as_of_us: int, now_us: int, allowed: Allowed | None = None, start: int = 0
) -> NDArray[np.bool_]:
    """Return the rows from ``start`` on that count: as they hold at ``as_of_us`` by valid time, else at ``now_us``.

    What may lack a text counts when it has one. ``allowed`` says which rows may be seen.
    """
    live = rows_in_force(snapshot, asked_us(snapshot.relation, as_of_us, now_us), allowed, start)
    text = snapshot.relation.text
    if text is not None and text.tokens is not None:
        live &= snapshot.column(text.tokens)[start:] > 0
    return live


def filter_mask(snapshot: RelationSnapshot, conditions: Mapping[str, Any]) -> NDArray[np.bool_] | None:
    """Return the rows that meet every condition ``column = value`` (or one of a list), or None if the kind lacks one.

    Raises: InvalidValue for a value that a column cannot have.
    """
    mask = np.ones(snapshot.length, np.bool_)
    return mask if _keep_matching(mask, snapshot, conditions) else None


def _keep_matching(mask: NDArray[np.bool_], snapshot: RelationSnapshot, conditions: Mapping[str, Any]) -> bool:
    """Unmark the rows that do not meet every condition; return False if the kind lacks a column."""
    if not filterable(snapshot).issuperset(conditions):
        return False
    for name, wanted in conditions.items():
        column = snapshot.column(name)
        codes = [_as_stored(column.dtype, _code(snapshot, name, value)) for value in _values(wanted)]
        values = np.array(sorted({code for code in codes if code is not None}), column.dtype)
        snapshot.evaluator.keep_members(mask, column, values)
    return True


def _as_stored(dtype: np.dtype[Any], value: float | None) -> float | None:
    """Return a number as a column of this type can hold it, or None where no row can have it."""
    if value is None:
        return None
    try:
        number = float(value) if dtype.kind == "f" else int(value)
    except (OverflowError, ValueError):  # an infinity, or not a number, among whole ones; too large for any
        return None
    if number != value or (dtype.kind != "f" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max):
        return None
    return number


def filterable(snapshot: RelationSnapshot) -> frozenset[str]:
    """Return the columns a search of this kind can be filtered by."""
    return snapshot.layout.filterable


def check_vector(value: Any, field: str, dimensions: int | None) -> NDArray[np.float32]:
    """Return a vector that a caller passed, as the kernels want it; ``dimensions`` None leaves its length open.

    Raises: DTypeError, InvalidValue, DimensionMismatch.
    """
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused below
            vector = np.ascontiguousarray(value, np.float32)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DTypeError(field=field, expected="numbers", got=type(value).__name__) from None
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise InvalidValue(field=field, reason="must be one finite vector")
    if dimensions is not None and len(vector) != dimensions:
        raise DimensionMismatch(expected=dimensions, got=len(vector))
    return vector


def check_filter(snapshots: Sequence[RelationSnapshot], conditions: Mapping[str, Any]) -> None:
    """Raise InvalidValue for a column that no searched kind has, or a value that it cannot have."""
    for name, wanted in conditions.items():
        having = [snapshot for snapshot in snapshots if name in filterable(snapshot)]
        if not having:
            known = sorted(frozenset().union(*map(filterable, snapshots)))
            raise InvalidValue(field=f"filter.{name}", reason=f"cannot be filtered by; there are {', '.join(known)}")
        for snapshot in having:
            for value in _values(wanted):
                _code(snapshot, name, value)


def _values(wanted: Any) -> Collection[Any]:
    return wanted if isinstance(wanted, list | tuple | set | frozenset) else (wanted,)


def _code(snapshot: RelationSnapshot, name: str, value: Any) -> Any:
    """Return what stands for ``value``, or for having none, in a resident column; -1 or None for what no row has."""
    column = snapshot.relation.column(name)
    if value is None and column.nullable and column.residence is Residence.COLUMN:
        return column.resident_null
    if isinstance(value, uuid.UUID):
        value = value.bytes
    elif isinstance(value, datetime):
        value = to_us(value, f"filter.{name}")
    elif isinstance(value, StrEnum):
        value = value.value
    if column.residence is Residence.INTERNED:
        if column.type == "uuid" and isinstance(value, str):
            try:
                value = uuid.UUID(value).bytes
            except ValueError:
                raise InvalidValue(field=f"filter.{name}", reason="is not an id") from None
        # What is stored is text or bytes; anything else, such as 2023 for an entity "2023", would find nothing.
        wanted = bytes if column.type == "uuid" else str
        if value is not None and not isinstance(value, wanted):
            reason = "must be an id" if column.type == "uuid" else "must be text"
            raise InvalidValue(field=f"filter.{name}", reason=reason)
        values = snapshot.interned(name)
        return values.index(value) if value in values else -1
    if column.enum is not None:
        if not isinstance(value, str) or value not in snapshot.layout.enum_codes[name]:
            names = ", ".join(member.value for member in column.enum)
            raise InvalidValue(field=f"filter.{name}", reason=f"must be one of {names}")
        return snapshot.enum_code(name, value)
    flag = column.type is ColumnType.BOOL
    if (isinstance(value, bool) and not flag) or not isinstance(value, int | float):
        reason = "must be true or false" if flag else "must be a number or a datetime"
        raise InvalidValue(field=f"filter.{name}", reason=reason)
    # What stands for no value in the array is no value that a record could have.
    return None if value == column.resident_null else value


def encoded_filter(
    relation: Relation, conditions: Mapping[str, Any], among: Sequence[int] | None = None
) -> tuple[str | None, ...] | None:
    """Return conditions as the parameters of a database: a JSON list of values for each column, None for no condition.

    None where the kind lacks a column. Values that no row can have are left out; null asks for rows without a value.
    ``among`` are ordinals, the last.
    """
    columns = stored_filterable(relation)
    if not set(conditions) <= set(columns):
        return None
    out: list[str | None] = []
    for name in columns:
        if name not in conditions:
            out.append(None)
            continue
        wanted = _values(conditions[name])
        values = [_stored(relation.column(name), value) for value in wanted]
        unset = [None] if None in wanted else []
        out.append(dump_json([*unset, *(value for value in values if value is not None)]))
    return (*out, None if among is None else dump_json(among))


def _stored(column: Column, value: Any) -> str | int | float | None:
    """Return a value as the database compares it; None for one that the column cannot hold."""
    if isinstance(value, datetime):
        value = to_us(value)
    if column.type is ColumnType.UUID:
        with contextlib.suppress(ValueError):
            return (value if isinstance(value, uuid.UUID) else uuid.UUID(str(value))).hex.upper()
        return None
    if column.type in (ColumnType.TEXT, ColumnType.ENUM):
        return str(value) if isinstance(value, str) else None
    if (isinstance(value, bool) and column.type is not ColumnType.BOOL) or not isinstance(value, int | float):
        return None
    number = _as_stored(_FLOAT64 if column.type is ColumnType.FLOAT else _INT64, value)
    return number if number is not None and math.isfinite(number) else None


def allowed_by(
    visible: NDArray[np.bool_], owners: RelationSnapshot, conditions: Mapping[str, Any]
) -> NDArray[np.bool_] | None:
    """Return which visible rows meet every condition, or None if the kind lacks a column."""
    wanted = visible.copy()
    return wanted if _keep_matching(wanted, owners, conditions) else None
