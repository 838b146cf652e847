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
    """A window, and what is kept of it; the record is only packed when it is asked for."""

    window: ContextWindow
    pack: Callable[[], bytes] = field(repr=False)
    decided: Decided = field(repr=False)
    selections: Sequence[Selection] = field(default=(), repr=False)
    """What each rule of injection took."""

    @cached_property
    def record(self) -> bytes:
        """The window as bytes, enough to explain and replay it; the same bytes whenever they are asked for."""
        return self.pack()

    @cached_property
    def text_hash(self) -> bytes:
        """SHA-256 of the window's text."""
        return hashlib.sha256(self.window.text.encode("utf-8")).digest()
