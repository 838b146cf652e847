"""Frame in which notebooks show the page of a window."""

from __future__ import annotations

import html
from typing import Final

_FRAME: Final = (
    '<iframe title="Context window" sandbox="allow-scripts" srcdoc="{page}"'
    ' style="width:100%;height:640px;border:1px solid #8886;border-radius:8px"></iframe>'
)


def framed(page: str) -> str:
    """Return a page in a frame of its own: neither its styles nor its script reach the page around it."""
    return _FRAME.format(page=html.escape(page))
