"""Count of the functions of CALIBER that a call runs on the calling thread."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import caliber

PACKAGE = str(Path(caliber.__file__).parent)


def counted(call: Callable[[], Any]) -> tuple[int, Counter[str]]:
    """Return how many functions of CALIBER a call runs, and how many of them in each module.

    Those of other packages, NumPy's above all, are more or less with each of their versions.
    """
    modules: Counter[str] = Counter()

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            modules[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(before)
    return modules.total(), modules
