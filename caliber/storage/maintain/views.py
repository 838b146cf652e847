"""Statements of the SQL views for people, generated from ``caliber.schema.views`` for each database."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from caliber.model.errors import Conflict
from caliber.schema.relation import ORDINAL
from caliber.schema.relations import BY_NAME
from caliber.schema.views import VIEWS, Shown, View
from caliber.storage.compile.plan import Dialect
from caliber.storage.compile.spelling import quote

VIEW_LIMIT: Final = 100
"""Newest windows, and artifacts, that their views show."""
MARK: Final = "For people only: no code reads this view."
"""Prefix of the comment of every view that CALIBER creates; a view without it belongs to somebody else."""


def views_for(dialect: Dialect, existing: Container[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the comment and the SELECT of each view. Raises: Conflict for a name of ``existing`` objects."""
    for view in VIEWS:
        if view.name in existing:
            raise Conflict(entity_type="view", id=view.name, reason="another object has this name; rename it")
        yield view.name, f"{MARK} {view.comment} From {view.relation}.", _select_of(view, dialect)


def _select_of(view: View, dialect: Dialect) -> str:
    relation = BY_NAME[view.relation]
    parts = []
    for shown in view.columns:
        column = ORDINAL if shown.column == "ordinal" else relation.column(shown.column)
        expression = f"t.{quote(shown.column)}"
        spell = dialect.shown if shown.shown is Shown.VALUE else dialect.size
        parts.append(f"{spell(column, expression)} AS {quote(shown.name)}")
    for counted in view.counted:
        by = quote(counted.by)
        parts.append(
            f"(SELECT count(*) FROM {dialect.table(counted.relation)} AS o WHERE o.{by} = t.{by})"
            f" AS {quote(counted.name)}"
        )
    text = f"SELECT {', '.join(parts)} FROM {dialect.table(relation.name)} AS t{dialect.read_only}"
    if view.only:
        text += " WHERE " + " AND ".join(f"t.{quote(name)} = '{value}'" for name, value in view.only)
    if view.descending:
        text += f" ORDER BY t.{quote(view.descending)} DESC, t.{quote('ordinal')} DESC"
    if view.limited:
        text += f" LIMIT {VIEW_LIMIT}"
    return text
