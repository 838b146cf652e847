"""Type of the progress callback that long operations call."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Callback of a long operation: stage, amount done, and total; None if the total is unknown."""


def unheard(stage: str, done: int, total: int | None) -> None:
    """Do nothing: the caller wants no progress."""
