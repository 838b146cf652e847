"""Events that a principal may hear of: of what it may not read, none.

Source: M-118 to M-141; docs/decisions/0186.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable

from caliber.model.access import Principal
from caliber.model.events import Event, EventFamily
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME


def hearing_of(
    principal: Principal, sees: Callable[[Relation, uuid.UUID], bool]
) -> Callable[[Event], Event | None] | None:
    """Return what gives of an event what ``principal`` may hear, or None for an admin, who hears all.

    ``sees`` says of a record of a relation that it is there and may be read.
    """
    if principal.admin:
        return None
    label = principal.label

    def heard(event: Event) -> Event | None:
        if event.family is EventFamily.AUDIT:
            return None
        subject = None if event.subject_type is None else BY_NAME.get(event.subject_type)
        if subject is not None and subject.readers is not None:
            # Who could read a record that is gone is not known any more: nobody is told of it.
            if event.subject_id is None or not sees(subject, event.subject_id):
                return None
        elif subject is not None and subject.private and event.principal != label:
            return None
        if "message" in event.payload:  # of an error, and an error names what it is about
            told = {name: value for name, value in event.payload.items() if name != "message"}
            return dataclasses.replace(event, payload=told)
        return event

    return heard
