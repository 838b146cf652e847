"""Sizes of a run: the usual ones fit eight minutes, ``--full`` takes the large ones too."""

from __future__ import annotations

from typing import TypeVar

Size = TypeVar("Size")

_FULL = False


def use_full() -> None:
    """Take the large sizes. Called before a benchmark is imported, whose constants are sizes."""
    global _FULL
    _FULL = True


def usual(size: Size, *, full: Size) -> Size:
    """Return ``size``, or ``full`` in a run of ``--full``."""
    return full if _FULL else size
