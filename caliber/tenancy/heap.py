"""Memory that was freed and that the C library still keeps, given back to the system."""

from __future__ import annotations

import ctypes
from typing import Final

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's; other C libraries give memory back by themselves."""


def give_back_freed() -> None:
    """Give back every free page, also those between blocks in use, which glibc keeps for good otherwise.

    Other threads that allocate wait for some milliseconds at most: it goes from one arena to the next.
    Source: malloc_trim(3)
    """
    if _trim is not None:
        _trim(ctypes.c_size_t(0))
