"""Quoting of SQL identifiers and string literals, equal for both databases."""

from __future__ import annotations

from collections.abc import Iterable


def quote(name: str) -> str:
    """Return an identifier in double quotes; names come from declarations, never from callers."""
    return '"' + name.replace('"', '""') + '"'


def quote_all(names: Iterable[str]) -> str:
    """Return identifiers in double quotes, with a comma between two."""
    return ", ".join(map(quote, names))


def literal(text: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"
