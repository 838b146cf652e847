"""SQL checks of loaded rows before the load commits: references, their owners, turn numbers against counters.

Each check is one statement that both databases understand. Its parameter is the last ordinal before the load; its
result is the first invalid loaded row, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from caliber.schema.relation import ForeignKey, Relation
from caliber.storage.compile.spelling import quote

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


def questions(relation: Relation, table: Callable[[str], str], mark: str, *, references: bool = True) -> list[RowCheck]:
    """Return the checks to run after loading a relation; ``mark`` is the placeholder of the only parameter.

    ``references``: also whether referenced rows exist, for a database that has not checked it already.
    """
    out = []
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
