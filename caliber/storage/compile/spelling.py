"""Names and texts as both databases spell them."""

from __future__ import annotations


def quote(name: str) -> str:
    """Return an identifier in double quotes; names come from declarations, never from callers."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"
