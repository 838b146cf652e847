"""Services of the interpreter: the pause of its garbage collector, locks after a fork, standard logging."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from caliber.model.process.interrupts import managed

P = ParamSpec("P")
T = TypeVar("T")


@managed
def collector_paused(*, lasting: bool = False) -> Iterator[None]:
    """Collect nothing inside, in any thread. A collector that is off stays off.

    Modules and mirrors make some hundred thousand objects and no garbage. The collector would look at them again and
    again: a tenth of the time from ``import caliber`` to the first window. ``lasting`` leaves them to full collections.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if lasting and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        gc.enable()


def without_collections(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function within ``collector_paused``."""

    @wraps(function)
    def paused(*arguments: P.args, **options: P.kwargs) -> T:
        with collector_paused():
            return function(*arguments, **options)

    return paused


def renew_in_child(namespace: MutableMapping[str, Any], name: str) -> None:
    """Give a module a new lock in every forked child: a thread of the parent may have held the old one.

    ``namespace`` is the module's ``globals()``; users of the lock look it up there by name.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: namespace.update({name: threading.Lock()}))


def log(room: str, level: Literal["debug", "info", "warning"], message: str, *values: object) -> None:
    """Log a message to ``caliber.<room>`` if the program has imported ``logging``; silent until it configures logging.

    Messages at INFO and above hold ids, kinds and counts, never content.
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return
    above = logging.getLogger("caliber")
    if not above.handlers:
        above.addHandler(logging.NullHandler())  # or Python would print warnings that no handler takes
    getattr(above.getChild(room), level)(message, *values)
