"""Pages of windows: the renderer that the program registers, and the frame in which notebooks show a page."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, Final

from caliber.model.errors import Unavailable

_FRAME: Final = (
    '<iframe title="Context window" sandbox="allow-scripts" srcdoc="{page}"'
    ' style="width:100%;height:640px;border:1px solid #8886;border-radius:8px"></iframe>'
)
_renderers: list[Callable[[Any], str]] = []


def render_pages_with(renderer: Callable[[Any], str]) -> None:
    """Register the renderer of ``ContextWindow.to_html``."""
    _renderers[:] = [renderer]


def page_of(window: Any) -> str:
    """Return a window as a page. Raises: Unavailable in a process that never opened a store."""
    if not _renderers:
        raise Unavailable("nothing renders windows in this process: import caliber.api.caliber first")
    return _renderers[0](window)


def framed(page: str) -> str:
    """Return a page in a frame of its own: neither its styles nor its script reach the page around it."""
    return _FRAME.format(page=html.escape(page))
