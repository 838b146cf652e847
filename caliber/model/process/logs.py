"""Standard logging of CALIBER: loggers named ``caliber.<room>``, silent until the program configures logging.

Messages at INFO and above hold ids, kinds and counts, never content. A program that has not imported ``logging`` pays
nothing for it.
"""

from __future__ import annotations

import sys
from typing import Literal


def log(room: str, level: Literal["debug", "info", "warning"], message: str, *values: object) -> None:
    """Log a message of a room, if the program uses ``logging``."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    above = logging.getLogger("caliber")
    if not above.handlers:
        above.addHandler(logging.NullHandler())  # or Python would print warnings that no handler takes
    getattr(above.getChild(room), level)(message, *values)
