"""Wrapping of generated Markdown: no line is longer than 120 columns, as in the pages that are written by hand."""

from __future__ import annotations

import re
import textwrap
from typing import Final

COLUMNS: Final = 120
_MARK: Final = re.compile(r"\s*(?:[-+*#>|]|\d+[.)])(?: |$)")


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """Return a paragraph or list item as lines; no continuation begins like a list, a heading, a quote or a table."""
    for width in range(COLUMNS, COLUMNS // 2, -1):
        lines = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
        if not any(_MARK.match(line) for line in lines[1:]):
            return lines
    raise ValueError(f"cannot be wrapped: {text[:60]}")


def item(text: str) -> list[str]:
    """Return a list item as lines."""
    return wrapped(text, "- ", "  ")
