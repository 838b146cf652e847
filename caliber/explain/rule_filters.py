"""Reasons in words why the filter of a rule of injection leaves a record out.

Source: C-460.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from caliber.schema.predicate import All, Comparison, Either, OneOf, Predicate, Variable, holds
from caliber.schema.relation import Relation


def values_of(relation: Relation, entity: Any) -> dict[str, Any]:
    """Return an entity's value in each column of its relation."""
    spread = {column: (item.field, name) for item in relation.composites for name, column in item.parts}
    out = {}
    for column in relation.columns:
        place, name = spread.get(column.name, (None, column.name))
        owner = entity if place is None else getattr(entity, place, None)
        out[column.name] = getattr(owner, name, None)
    return out


def failing(predicate: Predicate, record: Mapping[str, Any], variables: Mapping[Variable, Any]) -> str:
    """Return in words which comparisons keep one record out, or nothing if none does."""
    from caliber.kernels.patterns import matches

    if holds(predicate, record, variables, matches):
        return ""
    match predicate:
        case All(conditions):
            first = next(item for item in conditions if not holds(item, record, variables, matches))
            return failing(first, record, variables)
        case Either(conditions):
            return ", and ".join(failing(item, record, variables) for item in conditions)
        case OneOf(column, values):
            return f"{column} {_shown(record[column])} is not one of {_shown(values)}"
        case Comparison(column, operator, value):
            value_of_record = record[column]
            operand = variables[value] if isinstance(value, Variable) else value
            shown = _shown(operand)
            if isinstance(value, Variable):
                shown = f"{value.value} ({shown})"
            return f"{column} {_shown(value_of_record)} is not {operator.value} {shown}"


_SHOWN_CHARS: Final = 120


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS - 1] + "…"
        return f'"{text}"'
    if isinstance(value, bytes):
        return _shown(value.decode("utf-8", "replace"))
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value)
