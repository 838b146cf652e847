"""Events that a principal may hear of: of what it may not read, none.

Source: M-118 to M-141; docs/decisions/0186.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

from caliber.model.access import Principal
from caliber.model.events import Event, EventFamily
from caliber.model.references import EntityType


def hearing_of(principal: Principal, sees_note: Callable[[uuid.UUID], bool]) -> Callable[[Event], Event | None] | None:
    """Return what gives of an event what ``principal`` may hear, or None for an admin, who hears all.

    ``sees_note`` says of a note that it is there and may be read.
    """
    if principal.admin:
        return None
    label = principal.label

    def heard(event: Event) -> Event | None:
        if event.family is EventFamily.AUDIT:
            return None
        if event.subject_type == EntityType.NOTE:
            # Who could read a note that is gone is not known any more: nobody is told of it.
            if event.subject_id is None or not sees_note(event.subject_id):
                return None
        elif event.subject_type == EntityType.CONTEXT_WINDOW and event.principal != label:
            return None
        if "message" in event.payload:  # of an error, and an error names what it is about
            told = {name: value for name, value in event.payload.items() if name != "message"}
            return dataclasses.replace(event, payload=told)
        return event

    return heard
