"""Data class that describes the Numba code in use (compiled or from cache), readable without Numba.

Source: decision 0042.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from caliber.model.lazy_dataclass import dataclass

KNOB: Final = "resident.evaluator"
"""The knob that asks for it."""


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The origin of compiled loops: how many were loaded or compiled, and any fault of the cache.

    Units: ``seconds`` to import Numba, load and compile; ``folder`` is the cache of the store that asked first.
    """

    folder: Path
    loaded: int
    compiled: int
    seconds: float
    problems: tuple[str, ...] = ()
