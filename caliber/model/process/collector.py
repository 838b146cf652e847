"""Pause of the garbage collector while a process makes objects that stay.

Modules and mirrors make some hundred thousand objects and no garbage. The collector would look at them again and again:
a tenth of the time from ``import caliber`` to the first window.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing inside; afterwards what was made counts as old. A collector that is off stays off."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else objects that the program froze would thaw
            # Moves every object to the oldest generation without a look at it.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
