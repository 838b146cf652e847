"""Validation and completion of record batches in a bulk load, for every row before any is written.

The database checks most of a relation's rules too, but names a constraint, not a row; and resident memory could not
read some of the values that a database accepts. Omitted columns (ids, defaults, derived) are completed, and given
hashes verified. Ids come from a kernel, derived columns from ``caliber.storage.compile.derived``.

Source: design section 3; C-041, C-195.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from caliber.kernels import uuid7_batch
from caliber.kernels.copy.columns import CopyColumn, CopyKind
from caliber.kernels.tokens.estimators import Estimator
from caliber.model.errors import InvalidRow, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.references import EntityType
from caliber.model.trust import TrustLabel
from caliber.schema.derived import Derived, NotBefore, Sha256
from caliber.schema.relation import Column, ColumnType, ForeignKey, Initial, Like, Relation
from caliber.schema.traits import Mirror
from caliber.storage.bulk.arrow import default_column, field_of
from caliber.storage.bulk.columns import (
    Columns,
    column_of_bytes,
    column_of_numbers,
    column_of_texts,
    edges,
    empty_lists,
    is_one_of,
    nothing,
    numbers,
    present,
    uuids_of,
    values_of,
)
from caliber.storage.compile.derived import HASH_BYTES, derive_column, reason_of
from caliber.storage.compile.spelling import quote

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: the range of Python's dates."""


def _fail(row: int, first_row: int, name: str, reason: str) -> NoReturn:
    raise InvalidRow(row=first_row + row, field=name, reason=reason)


def _refuse(
    bad: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_] | None, first_row: int, name: str, reason: str
) -> None:
    """Raise InvalidRow for the first bad row among those that have a value."""
    if there is not None:
        bad = bad & there
    if bad.any():
        _fail(int(bad.argmax()), first_row, name, reason)


def check_batch(relation: Relation, columns: Columns, rows: int, first_row: int, kinds: Sequence[str]) -> None:
    """Raise InvalidRow for the first value that breaks a rule of its column. Derived columns are checked later."""
    if rows == 0:
        return
    for declared in relation.columns:
        if declared.name not in columns:
            continue
        column = columns[declared.name]
        there = present(column, rows)
        if not declared.nullable and there is not None and not there.all():
            _fail(int((~there).argmax()), first_row, declared.name, "a value is required")
        _check_column(declared, column, there, rows, first_row, kinds)
    _check_across(relation, columns, rows, first_row)


def _check_column(
    declared: Column,
    column: CopyColumn,
    there: npt.NDArray[np.bool_] | None,
    rows: int,
    first_row: int,
    kinds: Sequence[str],
) -> None:
    name, kind = declared.name, column.field.kind
    if kind in (CopyKind.INT8, CopyKind.FLOAT8, CopyKind.INSTANT):
        _check_numbers(declared, numbers(column)[:rows], there, first_row)
    elif declared.enum is not None and (declared.enum is EntityType or declared.declared or not declared.open):
        # That of a declared memory was open before it was an enum.
        names = kinds if declared.enum is EntityType else [member.value for member in declared.enum]
        is_valid = is_one_of(column, rows, [each.encode() for each in names])
        _refuse(~is_valid, there, first_row, name, f"must be one of {', '.join(sorted(names))}")
    elif kind is CopyKind.BYTES and declared.length is not None:
        bad = np.diff(edges(column, rows)) != declared.length
        _refuse(bad, there, first_row, name, f"must have {declared.length} bytes")
    elif kind is CopyKind.VECTOR:
        _check_vectors(column, there, rows, first_row)
    elif kind in (CopyKind.TEXT_ARRAY, CopyKind.UUID_ARRAY):
        _check_items(column, rows, first_row)


def _check_numbers(
    declared: Column, values: npt.NDArray[Any], there: npt.NDArray[np.bool_] | None, first_row: int
) -> None:
    low, high = declared.check or (None, None)
    if declared.type is ColumnType.INSTANT:
        low, high = _FIRST_US, _LAST_US
    if declared.type is ColumnType.FLOAT:
        _refuse(~np.isfinite(values), there, first_row, declared.name, "is NaN or infinite")
    bounds = "an instant of the years 1 to 9999" if declared.type is ColumnType.INSTANT else _between(low, high)
    if low is not None:
        _refuse(values < low, there, first_row, declared.name, f"must be {bounds}")
    if high is not None:
        _refuse(values > high, there, first_row, declared.name, f"must be {bounds}")


def _between(low: float | None, high: float | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"between {low} and {high}" if low is not None else f"{high} or less"


def _row_of(element: int, offsets: npt.NDArray[Any]) -> int:
    """Return the row that an element belongs to."""
    return int(np.searchsorted(offsets, element, side="right")) - 1


def _check_items(column: CopyColumn, rows: int, first_row: int) -> None:
    if column.item_validity is None:
        return
    bits = np.unpackbits(column.item_validity, bitorder="little", count=column.item_first + column.item_count)
    offsets = edges(column, rows)
    start, end = int(offsets[0]), int(offsets[-1])
    used = bits[column.item_first :].view(np.bool_)[start:end]
    if not used.all():
        _fail(_row_of(start + int((~used).argmax()), offsets), first_row, column.field.name, "an element is missing")


def _check_vectors(column: CopyColumn, there: npt.NDArray[np.bool_] | None, rows: int, first_row: int) -> None:
    name, offsets = column.field.name, edges(column, rows)
    _check_items(column, rows, first_row)
    _refuse(np.diff(offsets) < 1, there, first_row, name, "has no dimensions")
    start, end = int(offsets[0]), int(offsets[-1])
    finite = np.isfinite(column.values.view(np.float32)[start:end])
    if not finite.all():
        _fail(_row_of(start + int((~finite).argmax()), offsets), first_row, name, "contains NaN or infinity")


def _check_across(relation: Relation, columns: Columns, rows: int, first_row: int) -> None:
    """Raise InvalidRow for the first row that breaks a rule between columns (C-047, C-012)."""
    for rule in relation.rules:
        column = columns[rule.column]
        there = present(column, rows)
        if isinstance(rule, NotBefore):
            earlier = columns[rule.earlier]
            both = _both(present(earlier, rows), there)
            bad = numbers(column)[:rows] < numbers(earlier)[:rows]
            _refuse(bad, both, first_row, rule.column, rule.reason)
        else:
            applies = is_one_of(columns[rule.kind], rows, [rule.value.encode()])
            has_value = np.ones(rows, np.bool_) if there is None else there
            _refuse(applies != has_value, None, first_row, rule.column, rule.reason)


def check_owners(columns: Columns, rows: int, first_row: int, owners: Sequence[str]) -> None:
    """Raise InvalidRow for a vector of a kind that is not embedded."""
    is_valid = is_one_of(columns["owner_type"], rows, [name.encode() for name in owners])
    _refuse(~is_valid, None, first_row, "owner_type", "has no vectors")


def check_dimensions(columns: Columns, rows: int, first_row: int, spaces: Mapping[bytes, int]) -> None:
    """Raise InvalidRow for a vector whose space does not exist, or has another number of dimensions."""
    expected = np.array([spaces.get(space, 0) for space in uuids_of(columns["space_id"], rows)], np.int64)
    _refuse(expected == 0, None, first_row, "space_id", "refers to no embedding_space: load or make that first")
    offsets = edges(columns["vector"], rows)
    _refuse(np.diff(offsets) != expected, None, first_row, "vector", "has other dimensions than its space")
    values = columns["vector"].values.view(np.float32)[int(offsets[0]) : int(offsets[-1])]
    nothing_set = ~np.logical_or.reduceat(values != 0, offsets[:-1] - offsets[0])
    _refuse(nothing_set, None, first_row, "vector", "consists of zeros, which are near to nothing")


def _both(left: npt.NDArray[np.bool_] | None, right: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.bool_] | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


_COUNTERS = "load its {} with the counters it will have, or append turns one by one"


class RowCheck(NamedTuple):
    """A statement, and the fault of the row that it returns."""

    sql: str
    field: str
    reason: str


def _first(relation: Relation, table: Callable[[str], str], mark: str, condition: str) -> str:
    return (
        f"SELECT min(t.{quote('ordinal')}) FROM {table(relation.name)} t"
        f" WHERE t.{quote('ordinal')} > {mark} AND {condition}"
    )


def _exists(target: str, key: str, column: str, also: str = "") -> str:
    return f"EXISTS (SELECT 1 FROM {target} o WHERE o.{quote(key)} = t.{quote(column)}{also})"


def other_owner(key: ForeignKey) -> str:
    """Return the condition that ``o``, which ``t`` refers to, has another owner than ``t``; empty where it may."""
    return "" if key.alike is None else f" AND o.{quote(key.alike)} <> t.{quote(key.alike)}"


def questions(
    relation: Relation, table: Callable[[str], str], mark: str, owners: Sequence[Relation], *, references: bool = True
) -> list[RowCheck]:
    """Return the checks to run after loading a relation; ``mark`` is the placeholder of the only parameter.

    ``owners`` are the relations whose records have vectors. ``references``: also whether referenced rows exist, for a
    database that has not checked it already.
    """
    out = []
    for owner in owners if relation.resident.form is Mirror.VECTORS else ():
        condition = f"t.{quote('owner_type')} = '{owner.name}'"
        condition += f" AND NOT {_exists(table(owner.name), owner.key[0], 'owner_id')}"
        reason = f"refers to no {owner.name}: load that first"
        out.append(RowCheck(_first(relation, table, mark, condition), "owner_id", reason))
    for key in relation.foreign_keys if references else ():
        there = _exists(table(key.relation), key.target, key.column)
        condition = f"t.{quote(key.column)} IS NOT NULL AND NOT {there}"
        out.append(RowCheck(_first(relation, table, mark, condition), key.column, f"refers to no {key.relation}"))
    for key in relation.foreign_keys:
        if key.alike is not None:
            condition = _exists(table(key.relation), key.target, key.column, other_owner(key))
            reason = f"refers to a {key.relation} of another {key.alike.removesuffix('_id')}"
            out.append(RowCheck(_first(relation, table, mark, condition), key.column, reason))
    for each in () if relation.neighbours is None else relation.neighbours.counted:
        beyond = f" AND o.{quote(each.counter)} <= t.{quote(each.column)}"
        condition = _exists(table(each.owner), each.key, each.key, beyond)
        reason = f"is beyond what its {each.owner} counts: {_COUNTERS.format(each.owner)}"
        out.append(RowCheck(_first(relation, table, mark, condition), each.column, reason))
    return out


_TRUSTED_LEAST = list(TrustLabel)[-1].value.encode()
"""The label of rows without one: their origin is unknown."""


@dataclass(frozen=True, slots=True)
class Maker:
    """The clock and the estimator that columns are made with."""

    now_us: int
    estimator: Estimator


def check_names(relation: Relation, names: Sequence[str]) -> None:
    """Raise InvalidValue for columns that the relation does not have, or lacks and cannot be made."""
    unknown = sorted(set(names) - {column.name for column in relation.columns})
    if unknown:
        raise InvalidValue(field="columns", reason=f"{relation.name} has no {', '.join(unknown)}")
    if len(set(names)) != len(names):
        raise InvalidValue(field="columns", reason="a column comes twice")
    lacking = [
        column.name
        for column in relation.columns
        if column.name not in names and not column.nullable and not _can_be_made(relation, column, names)
    ]
    if lacking:
        raise InvalidValue(field="columns", reason=f"{relation.name} also needs {', '.join(lacking)}")


def _can_be_made(relation: Relation, column: Column, names: Sequence[str]) -> bool:
    name = column.name
    rule = relation.rule_of.get(name)
    if rule is not None:
        # Only of a hash a missing source is missed: it is that of a value that is not kept.
        return not isinstance(rule, Sha256) or rule.of[0] in names or not relation.column(rule.of[0]).nullable
    return (
        column.default is not None
        or name == "version"
        or (relation.key == (name,) and column.type is ColumnType.UUID)
        or column.initial is not None
        or _is_label(relation, name)
        or column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY)
    )


def _is_label(relation: Relation, name: str) -> bool:
    return relation.trust is not None and relation.trust.column == name


def add_plain(relation: Relation, columns: Columns, rows: int, maker: Maker) -> None:
    """Add the omitted plain columns; derived ones follow later."""
    for declared in relation.columns:
        later = declared.name in relation.rule_of or isinstance(declared.initial, Like)
        if declared.name not in columns and not later:
            columns[declared.name] = _made(relation, declared, columns, rows, maker)


def add_derived(relation: Relation, columns: Columns, rows: int, first_row: int, maker: Maker) -> None:
    """Add the columns that are made from others, which have been checked.

    Raises: InvalidRow for a hash that is neither stated nor to be made, as its source is missing.
    """
    for declared in relation.columns:
        if declared.name in columns:
            continue
        rule = relation.rule_of.get(declared.name)
        if rule is None:
            columns[declared.name] = _made(relation, declared, columns, rows, maker)
            continue
        there = _has_source(rule, columns, rows)
        if there is not None and not there.all():
            reason = f"must be given where {rule.of[0]} is missing"
            raise InvalidRow(row=first_row + int((~there).argmax()), field=declared.name, reason=reason)
        made = _derived(relation, rule, columns, rows, maker)
        columns[declared.name] = (column_of_bytes if made.ndim == 2 else column_of_numbers)(declared, made)


def _derived(relation: Relation, rule: Derived, columns: Columns, rows: int, maker: Maker) -> np.ndarray:
    return derive_column(
        rule,
        rows,
        lambda name: (columns[name].values, edges(columns[name], rows)),
        lambda name: values_of(relation.column(name), columns[name], rows),
        maker.estimator,
    )


def _has_source(rule: Derived, columns: Columns, rows: int) -> np.ndarray | None:
    """Return the mask of rows that have the inputs of a hash, or None where all have them."""
    return present(columns[rule.of[0]], rows) if isinstance(rule, Sha256) else None


def _made(relation: Relation, declared: Column, columns: Columns, rows: int, maker: Maker) -> CopyColumn:
    name = declared.name
    if name == "version":
        return column_of_numbers(declared, np.ones(rows, np.int64))
    if isinstance(declared.initial, Like):
        return dataclasses.replace(columns[declared.initial.column], field=field_of(declared))
    if declared.default is not None:
        return default_column(declared, rows)
    if declared.nullable:
        return nothing(declared, rows)
    if relation.key == (name,):
        return column_of_bytes(declared, uuid7_batch(rows))
    if declared.initial is Initial.NOW:
        return column_of_numbers(declared, np.full(rows, maker.now_us, np.int64))
    if declared.initial is not None:
        return column_of_texts(declared, [declared.initial.encode()] * rows)
    if _is_label(relation, name):
        return column_of_texts(declared, [_TRUSTED_LEAST] * rows)
    return empty_lists(declared, rows)


def verify(relation: Relation, columns: Columns, given: Sequence[str], rows: int, first_row: int, maker: Maker) -> None:
    """Raise InvalidRow if a given hash does not match its content: a lookup by the content would miss the record."""
    for rule in relation.derived or ():
        if not rule.exact or rule.column not in given:
            continue
        # Checked before: each value has as many bytes as a hash has.
        column, right = columns[rule.column], _derived(relation, rule, columns, rows, maker)
        start = int(edges(column, rows)[0])
        stated = column.values[start : start + HASH_BYTES * rows].reshape(rows, HASH_BYTES)
        different = (stated != right).any(axis=1)
        there = _has_source(rule, columns, rows)
        if there is not None:
            different &= there
        if different.any():
            raise InvalidRow(
                row=first_row + int(different.argmax()), field=rule.column, reason=reason_of(relation, rule)
            )
