"""Result types of budget filling: a decision code per candidate, truncations, and reserved lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Truncation:
    """A candidate that enters cut, or compressed. Units: ``room`` is the length there is for its text."""

    place: int
    room: int
    compress: bool = False


@dataclass(frozen=True, slots=True)
class Reserve:
    """Lengths that a filling may not use: of the whole budget, and of sections with a limit, by index."""

    total: int = 0
    sections: tuple[tuple[int, int], ...] = ()

    def more(self, total: int, sections: dict[int, int]) -> Reserve:
        """Return a reserve that is larger by as much."""
        held = dict(self.sections)
        for section, length in sections.items():
            held[section] = held.get(section, 0) + length
        return Reserve(self.total + total, tuple(sorted(held.items())))


NO_RESERVE: Final = Reserve()


@dataclass(frozen=True, slots=True)
class Filled:
    """The outcome of the fill for each candidate, in canonical order.

    Shapes: codes ``uint8[n]`` of ``DecisionCode``. Units: ``room`` gives, for the candidate at a place, the length it
    asked for (its header or separator included) and the length that was left then.
    """

    codes: NDArray[np.uint8]
    truncations: tuple[Truncation, ...]
    first_turn: int | None
    stable_sections: frozenset[int]
    closed_sections: frozenset[int]
    room: Callable[[int], tuple[int, int]]
    spare: int = 0
    """The length reserved for the next turns."""
    earlier: frozenset[int] = frozenset()
    """The places of turns that are shown behind the conversation, as they left it."""
