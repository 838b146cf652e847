"""Type of the progress callback that long operations call."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""A callback of long work: the stage, how much of it is done, and of how much; None where nobody knows."""


def unheard(stage: str, done: int, total: int | None) -> None:
    """Do nothing: the caller asked for no progress."""
