"""Conditions of statements under which a record counts (``schema.in_force``), in words of both databases."""

from __future__ import annotations

from caliber.schema.relation import Relation
from caliber.storage.compile.spelling import quote


def active_condition(relation: Relation, row: str = "") -> str:
    """Return the condition under which a record is in use, "TRUE" where each is; ``row`` is a table's alias."""
    return " AND ".join(f"{_column(row, name)} IS NULL" for name in relation.active) or "TRUE"


def in_force_condition(relation: Relation, row: str, at: str) -> str:
    """Return the condition under which a record is in use and holds at an instant; ``at`` stands for that."""
    parts = [f"{_column(row, name)} IS NULL" for name in relation.active]
    if relation.valid is not None:
        for name, sign in ((relation.valid.since, "<="), (relation.valid.until, ">")):
            if name is not None:
                column = _column(row, name)
                parts.append(f"({column} IS NULL OR {column} {sign} {at})")
    return " AND ".join(parts) or "TRUE"


def _column(row: str, name: str) -> str:
    return f"{row}.{quote(name)}" if row else quote(name)
