"""Filter parameters of prepared search statements: one parameter per filterable column, NULL for no condition.

One statement text serves every filter that compares columns with values: a parameter is a JSON list of values, or NULL.
A filter that needs more is compiled to its own statement (``storage.compile.conditions``), whose ordinals are passed as
the last parameter.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from caliber.model.time import to_us
from caliber.schema.predicate import All, Comparison, OneOf, Operator, Predicate, Variable
from caliber.schema.relation import Relation, Residence
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import quote

_ORDINAL: Final = "ordinal"

Filters: TypeAlias = tuple[str | None, ...]
"""The parameters of one filter."""


@functools.lru_cache(maxsize=512)
def filterable(relation: Relation) -> tuple[str, ...]:
    """Return the columns that searches of a relation can be filtered by."""
    return tuple(
        column.name
        for column in relation.columns
        if column.residence in (Residence.COLUMN, Residence.INTERNED)
        and column.name not in ("version", relation.rights.readers)
    )


def filter_names(relation: Relation) -> tuple[str, ...]:
    """Return the names of the parameters: one per column, and the ordinals that match a filter."""
    return tuple(f"filter_{name}" for name in (*filterable(relation), _ORDINAL))


def filter_condition(relation: Relation, dialect: Dialect, first: int) -> str:
    """Return the condition that row ``o`` meets a filter whose parameters begin at ``first``."""
    parts = []
    for at, name in enumerate((*filterable(relation), _ORDINAL), start=first):
        column, mark = f"o.{quote(name)}", dialect.list_placeholder(at)
        if name == _ORDINAL:
            condition = f"{column} IN ({dialect.in_integers(at)})"
        else:
            condition = dialect.one_of(relation.column(name), column, mark)
        parts.append(f"({mark} IS NULL OR {condition})")
    return " AND ".join(parts)


def unfiltered(relation: Relation) -> Filters:
    """Return the parameters of no filter."""
    return (None,) * (len(filterable(relation)) + 1)


def parameters(relation: Relation, predicate: Predicate | None, among: Sequence[int] | None = None) -> Filters | None:
    """Return a filter as parameters, or None where it needs a statement of its own; ``among`` are ordinals."""
    listed: dict[str, tuple[Any, ...]] = {}
    for part in _parts(predicate):
        match part:
            case OneOf(column, values):
                pass
            case Comparison(column, Operator.EQUAL, value) if not isinstance(value, Variable):
                values = (value,)
            case _:
                return None
        if column in listed:
            values = tuple(value for value in listed[column] if value in values)
        listed[column] = values
    names = filterable(relation)
    if not listed.keys() <= set(names):
        return None
    known = (json_list(listed[name]) if name in listed else None for name in names)
    return (*known, None if among is None else dump_json(among))


def _parts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    if isinstance(predicate, All):
        return tuple(part for each in predicate.conditions for part in _parts(each))
    return () if predicate is None else (predicate,)


def json_list(values: Sequence[Any]) -> str:
    """Return values of a filter as ``Dialect.one_of`` reads them."""
    return dump_json([_plain(value) for value in values])


def _plain(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.hex
    if isinstance(value, datetime):
        return to_us(value)
    return int(value) if isinstance(value, bool) else value
