"""A system that refuses new threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_TOO_BIG = 1 << 47
"""A stack that fits into no process: the system refuses a thread with it, as it does without memory or processes."""


@contextlib.contextmanager
def no_new_threads() -> Iterator[None]:
    """Have the system refuse every new thread of this process for as long as the block takes."""
    before = threading.stack_size(_TOO_BIG)
    try:
        yield
    finally:
        threading.stack_size(before)
