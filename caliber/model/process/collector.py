"""Pause of the garbage collector while a process makes objects that stay.

Modules and mirrors make some hundred thousand objects and no garbage. The collector would look at them again and again:
a tenth of the time from ``import caliber`` to the first window.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from caliber.model.process.interrupts import managed

P = ParamSpec("P")
T = TypeVar("T")


@managed
def collector_paused() -> Iterator[None]:
    """Collect nothing inside, in any thread. A collector that is off stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def without_collections(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function within ``collector_paused``."""

    @wraps(function)
    def paused(*arguments: P.args, **options: P.kwargs) -> T:
        with collector_paused():
            return function(*arguments, **options)

    return paused
