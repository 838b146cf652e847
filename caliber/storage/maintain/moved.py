"""States of a tenant's write fence during a move (moving, moved), and the errors that its store gives then."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from caliber.model.errors import Unavailable

MOVING: Final = ("moving", True, "the tenant is just moving to another place: try again")
MOVED: Final = ("moved", False, "the tenant has moved to another place: open it again")


class FenceState(StrEnum):
    """State of a fenced store: moving (writers wait), or moved (open the tenant again)."""

    MOVING = "moving"
    MOVED = "moved"


def elsewhere(store: str, state: FenceState = FenceState.MOVED) -> Unavailable:
    """Return the error of a store with a fence, as that of a tenant which has moved away."""
    reason, retryable, advice = MOVED if state is FenceState.MOVED else MOVING
    return Unavailable(f"{store} is unavailable ({reason}): {advice}", reason=reason, retryable=retryable)
