"""Completion of bulk-loaded rows: makes omitted columns (ids, defaults, derived), and verifies given hashes.

Ids come from a kernel, derived columns from ``caliber.storage.compile.derived``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from caliber.kernels import uuid7_batch
from caliber.kernels.copy.columns import CopyColumn
from caliber.kernels.tokens.estimators import Estimator
from caliber.model.errors import InvalidRow, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trust import TrustLabel
from caliber.schema.derived import Derived, Sha256
from caliber.schema.relation import Column, ColumnType, Initial, Like, Relation
from caliber.storage.bulk.arrow import default_column, field_of
from caliber.storage.bulk.columns import (
    Columns,
    column_of_bytes,
    column_of_numbers,
    column_of_texts,
    edges,
    empty_lists,
    nothing,
    present,
    values_of,
)
from caliber.storage.compile.derived import HASH_BYTES, derive_column, reason_of

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
