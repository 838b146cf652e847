"""Factory of events for provider threads that stay consistent when a signal handler raises during a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caliber.storage.waiting import Flag


def new_event() -> Flag:
    """Return an event that an interrupted thread leaves usable for the others."""
    from caliber.storage.waiting import Flag  # an open store has loaded it; a program that is only checked need not

    return Flag()
