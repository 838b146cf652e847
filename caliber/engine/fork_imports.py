"""Guard against forking during imports: ``os.fork`` waits until other threads have finished importing modules.

A child that is forked while another thread imports a module inherits the lock of that module, whose holder does not
exist in the child: an import of the module there would wait for ever. CPython guards its table of modules only.
"""

from __future__ import annotations

import _imp
import os
import threading
import time
from importlib import _bootstrap
from typing import Final

_LONGEST_S: Final = 2.0
"""How long a fork waits: a program that never ends within an import must be able to fork."""


def _are_under_way() -> bool:
    thread_id = threading.get_ident()
    locks = [reference() for reference in list(getattr(_bootstrap, "_module_locks", {}).values())]
    return any(lock is not None and getattr(lock, "owner", thread_id) != thread_id for lock in locks)


def _before() -> None:
    """Wait for the imports of other threads, and let none begin until the fork is over."""
    until = time.monotonic() + _LONGEST_S
    while True:
        _imp.acquire_lock()
        if not _are_under_way() or time.monotonic() > until:
            return
        _imp.release_lock()
        time.sleep(0.001)


def _after() -> None:
    try:
        while True:  # as often as ``_before`` has taken it: it may have been interrupted
            _imp.release_lock()
    except RuntimeError:
        return


_registered: Final[list[int]] = []


def register() -> None:
    """Have forks wait for imports, from now on; again does no harm."""
    if not _registered and hasattr(os, "register_at_fork"):
        _registered.append(os.getpid())
        os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
