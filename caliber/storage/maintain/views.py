"""SELECT statements of the SQL views for people, generated from ``caliber.schema.views`` for each database."""

from __future__ import annotations

from typing import Final, Protocol

from caliber.schema.relation import ORDINAL, Column
from caliber.schema.relations import BY_NAME
from caliber.schema.views import Shown, View
from caliber.storage.compile.spelling import quote

VIEW_LIMIT: Final = 100
"""Newest windows, and artifacts, that their views show."""
MARK: Final = "For people only: no code reads this view."
"""Prefix of the comment of every view that CALIBER creates; a view without it belongs to somebody else."""


class ViewSpelling(Protocol):
    """The form in which a database shows values to people."""

    read_only: str
    """The text after the table in a view that keeps anybody from writing through it."""

    def table(self, name: str) -> str:
        """Return a relation's table as statements name it."""
        ...

    def value(self, column: Column, expression: str) -> str:
        """Return a column for people: ids and hashes as text, instants as dates."""
        ...

    def size(self, column: Column, expression: str) -> str:
        """Return the bytes, elements or dimensions of a column."""
        ...


def comment_of(view: View) -> str:
    """Return the comment of a view."""
    return f"{MARK} {view.comment} From {view.relation}."


def select_of(view: View, spelling: ViewSpelling) -> str:
    """Return the statement that a view stands for."""
    relation = BY_NAME[view.relation]
    parts = []
    for shown in view.columns:
        column = ORDINAL if shown.column == "ordinal" else relation.column(shown.column)
        expression = f"t.{quote(shown.column)}"
        spell = spelling.value if shown.shown is Shown.VALUE else spelling.size
        parts.append(f"{spell(column, expression)} AS {quote(shown.name)}")
    for counted in view.counted:
        by = quote(counted.by)
        parts.append(
            f"(SELECT count(*) FROM {spelling.table(counted.relation)} AS o WHERE o.{by} = t.{by})"
            f" AS {quote(counted.name)}"
        )
    text = f"SELECT {', '.join(parts)} FROM {spelling.table(relation.name)} AS t{spelling.read_only}"
    if view.only:
        text += " WHERE " + " AND ".join(f"t.{quote(name)} = '{value}'" for name, value in view.only)
    if view.descending:
        text += f" ORDER BY t.{quote(view.descending)} DESC, t.{quote('ordinal')} DESC"
    if view.limited:
        text += f" LIMIT {VIEW_LIMIT}"
    return text
