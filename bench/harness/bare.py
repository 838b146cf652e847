"""Statements of ours as the bare driver runs them."""

from __future__ import annotations

import re


def for_psycopg(sql: str) -> tuple[str, list[int]]:
    """Return a statement with psycopg's placeholders, and which parameter each of them takes."""
    order: list[int] = []

    def place(found: re.Match[str]) -> str:
        order.append(int(found[1]) - 1)
        return "%b"

    return re.sub(r"\$(\d+)", place, sql), order
