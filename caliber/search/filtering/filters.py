"""Validation of a search's arguments, turned into conditions on records; and the type of a hit.

A filter is a condition, so k hits come back whenever k records match and score above the floor.

Source: M §1.2, M-046, C-161 to C-165, design sections 5 and 7; docs/decisions/0147.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed
from caliber.model import arguments
from caliber.model.access import AgentRole, Principal
from caliber.model.errors import DimensionMismatch, DTypeError, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import from_us, to_us
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import visible_rows
from caliber.schema.catalog import Catalog
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, Variable, all_of, one_of, variables_in
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.storage.compile.conditions import filterable
from caliber.storage.sql.full_text import texts_of

_NOBODYS: Final = object()
"""Stands for a value of the right kind that no record can have."""


class Seen(Protocol):
    """The records that may be seen; ``access.visibility.Readers`` is one."""

    def over(self, rows: RelationSnapshot) -> Allowed | None:
        """Return the mask, or None when everything may be seen."""
        ...

    @property
    def used_by(self) -> Sequence[bytes]:
        """The ids whose uses of records may show in an answer."""
        ...


class Found(NamedTuple):
    """One hit before its text is read."""

    relation: RelationSnapshot
    row: int
    score: float
    breakdown: dict[str, float]
    found_by: tuple[str, ...]


def check_kinds(kinds: Sequence[str] | None, kinds_by_name: Mapping[str, str]) -> tuple[str, ...]:
    """Return the kinds to search, by their public names. Raises: InvalidValue, DTypeError."""
    if kinds is None:
        return tuple(dict.fromkeys(kinds_by_name.values()))
    if isinstance(kinds, str):
        kinds = (kinds,)
    try:
        iter(kinds)
    except TypeError:
        raise DTypeError(field="kinds", expected="names of kinds", got=type(kinds).__name__) from None
    named: tuple[Any, ...] = tuple(kinds)
    for kind in named:
        if not isinstance(kind, str) or kind not in kinds_by_name:
            raise InvalidValue(field="kinds", reason=f"unknown kind; there are {', '.join(kinds_by_name)}")
    return tuple(dict.fromkeys(map(kinds_by_name.__getitem__, named)))


def kinds_of(catalog: Catalog) -> dict[str, str]:
    """Return the relations that can be searched, by the names that callers use.

    A declared memory can be searched if it has an embedding or a text that is indexed by words.
    """
    names = {memory.relation.name: name for name, memory in catalog.memories.items()}
    return {names.get(relation.name, relation.name): relation.name for relation in texts_of(catalog)}


def alive(
    snapshot: RelationSnapshot, at_us: int, allowed: Allowed | None = None, start: int = 0, *, archived: bool = False
) -> NDArray[np.bool_]:
    """Return the rows from ``start`` on that count at an instant, ``archived`` ones too if that is True.

    What may lack a text counts when it has one. ``allowed`` says which rows may be seen.
    """
    live = visible_rows(snapshot, at_us, allowed, start, archived=archived)
    text = snapshot.relation.text
    if text is not None and text.tokens is not None:
        live &= snapshot.column(text.tokens)[start:] > 0
    return live


def check_vector(value: Any, field: str, dimensions: int | None) -> NDArray[np.float32]:
    """Return a vector that a caller passed, as the kernels want it; ``dimensions`` None leaves its length open.

    Raises: DTypeError, InvalidValue, DimensionMismatch.
    """
    try:
        with np.errstate(over="ignore"):  # values that become infinite are refused below
            vector = np.ascontiguousarray(value, np.float32)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise DTypeError(field=field, expected="numbers", got=type(value).__name__) from None
    if vector.ndim != 1 or not np.isfinite(vector).all() or not vector.any():
        raise InvalidValue(field=field, reason="must be one finite vector, not of zeros alone")
    if dimensions is not None and len(vector) != dimensions:
        raise DimensionMismatch(expected=dimensions, got=len(vector))
    return vector


def conditions_of(relations: Sequence[Relation], values: Mapping[str, Any]) -> dict[str, Predicate]:
    """Return the condition that columns have given values, or one of a list, for each relation that has the columns.

    Raises: InvalidValue for a column that no relation has, or a value that it cannot have.
    """
    parts: dict[str, list[Predicate]] = {relation.name: [] for relation in relations}
    for name, operand in values.items():
        is_field = False
        for relation in relations:
            if name in comparable(relation):
                is_field = True
                parts[relation.name].append(_condition(relation.column(name), operand))
        if not is_field:
            names = ", ".join(sorted(set().union(*map(comparable, relations))))
            raise InvalidValue(field=f"filter.{name}", reason=f"cannot be filtered by; there are {names}")
    out = {}
    for kind, found in parts.items():
        condition = all_of(*found)
        if condition is not None and len(found) == len(values):
            out[kind] = condition
    return out


def comparable(relation: Relation) -> tuple[str, ...]:
    """Return the columns that a mapping can name: those that searches are filtered by, and lists of texts, as tags."""
    lists = (each for each in relation.columns if each.type is ColumnType.TEXT_ARRAY)
    return (*filterable(relation), *(each.name for each in lists if each.name != relation.rights.readers))


def written_by(author: Principal | str, relations: Sequence[Relation]) -> dict[str, Predicate]:
    """Return the condition that a principal, or its label, wrote a record, for each relation that keeps authors.

    Raises: InvalidValue for relations that keep none; DTypeError.
    """
    if isinstance(author, Principal):
        author = arguments.as_principal(author).label
    label = arguments.as_text(author, "author")
    names = (label, *(f"{label}@{role}" for role in ("", *AgentRole)))
    found = {each.name: each.author for each in relations if each.author is not None}
    if not found:
        kinds = ", ".join(each.name for each in relations)
        raise InvalidValue(field="author", reason=f"is not kept for {kinds}; search notes or declared memories")
    return {name: one_of(column, names) for name, column in found.items()}


def _condition(column: Column, operand: Any) -> Predicate:
    several = operand if isinstance(operand, list | tuple | set | frozenset) else (operand,)
    values = dict.fromkeys([_value(column, value) for value in several])
    values.pop(_NOBODYS, None)
    if column.type is ColumnType.TEXT_ARRAY and values:
        members = tuple(Comparison(column.name, Operator.CONTAINS, value) for value in values)
        return Either(members) if len(members) > 1 else members[0]
    return one_of(column.name, tuple(values))


def _value(column: Column, value: Any) -> Any:
    """Return a value as a condition compares the column with it."""
    field, interned = f"filter.{column.name}", column.residence is Residence.INTERNED
    if isinstance(value, StrEnum):
        value = value.value
    if value is None and (column.nullable or interned):
        return None if column.nullable else _NOBODYS
    if column.type is ColumnType.UUID:
        return _id(value, field)
    if interned or column.type is ColumnType.TEXT_ARRAY:
        # A number, such as 2023 for an entity "2023", would find nothing.
        if not isinstance(value, str):
            raise InvalidValue(field=field, reason="must be text")
        return value
    if column.enum is not None:
        names = [member.value for member in column.enum]
        if value not in names:
            raise InvalidValue(field=field, reason=f"must be one of {', '.join(names)}")
        return value
    if isinstance(value, datetime) and column.type is ColumnType.INSTANT:
        to_us(value, field)
        return value
    return _number(column.type, value, field)


def _id(value: Any, field: str) -> uuid.UUID:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return uuid.UUID(value)
        raise InvalidValue(field=field, reason="is not an id")
    if not isinstance(value, uuid.UUID):
        raise InvalidValue(field=field, reason="must be an id")
    return value


def _number(kind: ColumnType, value: Any, field: str) -> Any:
    flag = kind is ColumnType.BOOL
    if (isinstance(value, bool) and not flag) or not isinstance(value, int | float):
        raise InvalidValue(field=field, reason="must be true or false" if flag else "must be a number or a datetime")
    if value != value:
        raise InvalidValue(field=field, reason="must be a number, not NaN")
    with contextlib.suppress(OverflowError, ValueError):  # an infinity, or no number; too large for any
        if kind is ColumnType.FLOAT:
            return float(value) if math.isfinite(value) and float(value) == value else _NOBODYS
        whole = int(value)
        if whole == value and (whole in (0, 1) if flag else -(2**63) <= whole < 2**63):
            return bool(whole) if flag else from_us(whole) if kind is ColumnType.INSTANT else whole
    return _NOBODYS


@dataclass(frozen=True, slots=True)
class Where:
    """A filter compiled for each searched kind, and the values of its variables."""

    predicates: Mapping[str, Predicate]
    variables: Mapping[Variable, Any]

    def key(self, kind: str) -> tuple[Predicate, tuple[Any, ...]] | None:
        """Return the cache key of a kind's verdicts; None where they change with the clock."""
        asked = variables_in(self.predicates[kind])
        if Variable.NOW in asked:
            return None
        return self.predicates[kind], tuple(self.variables[name] for name in sorted(asked))
