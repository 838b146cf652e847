"""Fork safety of module-level locks: replaces them with free locks in a child process."""

from __future__ import annotations

import os
import threading
from collections.abc import MutableMapping
from typing import Any


def renew_in_child(namespace: MutableMapping[str, Any], name: str) -> None:
    """Give a module a new lock in every forked child: a thread of the parent may have held the old one.

    ``namespace`` is the module's ``globals()``; users of the lock look it up there by name.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: namespace.update({name: threading.Lock()}))
