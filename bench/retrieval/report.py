"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as their widest cell."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    body = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    rule = "|".join("-" * (width + 2) for width in widths)
    return [f"| {body[0]} |", f"|{rule}|", *(f"| {line} |" for line in body[1:])]
