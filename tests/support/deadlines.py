"""A call under a deadline, where a block does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import caliber

T = TypeVar("T")


def bounded(ms: int, call: Callable[..., T], /, *args: object, **options: object) -> T:
    """Call ``call`` under ``caliber.deadline(ms)`` and return its result."""
    with caliber.deadline(ms):
        return call(*args, **options)
