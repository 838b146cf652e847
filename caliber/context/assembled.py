"""Result object of an assembly: the context window, and its packed record built on first access.

Source: design, section 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caliber.context.gather.rule_selection import Selection
from caliber.context.trace import Decided
from caliber.model.windows import ContextWindow


@dataclass(frozen=True)
class Assembled:
    """A window and its record; the record is packed when it is first read."""

    window: ContextWindow
    pack: Callable[[], bytes] = field(repr=False)
    decided: Decided = field(repr=False)
    selections: Sequence[Selection] = field(default=(), repr=False)
    """The selection of each injection rule."""

    @cached_property
    def record(self) -> bytes:
        """The packed window, enough to explain and replay it; always the same bytes."""
        return self.pack()

    @cached_property
    def text_hash(self) -> bytes:
        """SHA-256 of the window's text."""
        return hashlib.sha256(self.window.text.encode("utf-8")).digest()
