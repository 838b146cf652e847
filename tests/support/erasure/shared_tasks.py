"""A task of one user that another one, its guest, may write to."""

from __future__ import annotations

from typing import Any

import caliber
from caliber.model import Principal

ANA, BEN = "ana@example.com", "ben@example.com"
WORDS = b"ab negative"


def contents(memory: caliber.Caliber) -> list[str]:
    """Return the contents of all turns that are stored."""
    return [turn.text for turn in memory.acting_as(Principal.admin()).storage.turns.all()]


def shared_task(memory: caliber.Caliber, guest: str = BEN) -> tuple[caliber.Caliber, caliber.Caliber, Any]:
    """Return handles of a host and a guest, and the host's task that the guest may write to."""
    host, other = (memory.acting_as(Principal.user(name)) for name in (ANA, guest))
    task = host.start_trajectory("plan the trip")
    host.access.grant(to=guest, on=task.trajectory_id, right="write")
    return host, other, task
