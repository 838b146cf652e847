"""What must hold of loaded rows and others, asked of the database once all are there: references, and places of turns.

Each question is one statement that both databases understand. It takes the last ordinal before the load and gives the
first loaded row that is wrong, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from caliber.schema.relation import Relation
from caliber.storage.compile.plan import quote

_COUNTERS = "load its {} with the counters it will have, or append turns one by one"


class Question(NamedTuple):
    """A statement, and what is wrong with the row it gives."""

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


def questions(relation: Relation, table: Callable[[str], str], mark: str, *, references: bool = True) -> list[Question]:
    """Return what to ask after loading a relation; ``mark`` is the placeholder of the only parameter.

    ``references``: also whether what a row refers to is there, for a database that has not said so already.
    """
    out = []
    for key in relation.foreign_keys if references else ():
        there = _exists(table(key.relation), key.target, key.column)
        condition = f"t.{quote(key.column)} IS NOT NULL AND NOT {there}"
        out.append(Question(_first(relation, table, mark, condition), key.column, f"refers to no {key.relation}"))
    if relation.name in ("turn", "artifact"):
        other = f" AND o.{quote('trajectory_id')} <> t.{quote('trajectory_id')}"
        condition = _exists(table("scope"), "scope_id", "scope_id", other)
        out.append(
            Question(_first(relation, table, mark, condition), "scope_id", "refers to a scope of another trajectory")
        )
    if relation.name == "turn":
        for column, owner, counter in (
            ("sequence", "scope", "next_sequence"),
            ("turn_number", "trajectory", "turn_count"),
        ):
            beyond = f" AND o.{quote(counter)} <= t.{quote(column)}"
            condition = _exists(table(owner), f"{owner}_id", f"{owner}_id", beyond)
            reason = f"is beyond what its {owner} counts: {_COUNTERS.format(owner)}"
            out.append(Question(_first(relation, table, mark, condition), column, reason))
    return out
