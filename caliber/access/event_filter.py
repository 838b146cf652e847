"""Filter of events for one principal: hides events about records that the principal may not read.

Source: M-118 to M-141; docs/decisions/0186.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Final

from caliber.access.visibility import Readers
from caliber.model.access import Principal
from caliber.model.events import Event, EventFamily, EventType
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.traits import EVERYBODYS

RETRIEVED: Final = frozenset(each.usage.retrieved for each in BY_NAME.values()) - {None}


def event_filter(
    principal: Principal, sees: Callable[[Relation, uuid.UUID], bool], readers: Readers
) -> Callable[[Event], Event | None] | None:
    """Return a filter that redacts events for ``principal``; None for an admin, who sees everything.

    ``sees`` returns whether a record of a relation exists and the principal may read it.
    """
    if principal.is_admin:
        return None
    label = principal.label

    def filtered(event: Event) -> Event | None:
        if event.family is EventFamily.AUDIT:
            return None
        if event.event_type in RETRIEVED and event.principal != label:
            return None
        if event.trajectory_id is not None and not readers.sees_task(event.trajectory_id.bytes):
            return None
        if event.subject_type is not None and not readers.reads_subject(event.subject_type, event.subject_id):
            return None
        subject = None if event.subject_type is None else BY_NAME.get(event.subject_type)
        rights = EVERYBODYS if subject is None else subject.rights
        if subject is not None and rights.hides and (rights.task is None or event.trajectory_id is None):
            # The readers of a deleted record are unknown: no principal gets the event.
            if event.subject_id is None or not sees(subject, event.subject_id):
                return None
        elif rights.private and event.principal != label:
            return None
        is_check = event.event_type == EventType.VALIDATION_RUN and event.subject_id is None
        if is_check and event.principal != label:  # numbers count the records that its principal saw
            return dataclasses.replace(event, payload={})
        if readers.limited and readers.hides_kinds():  # numbers may count records of every kind
            known = {name: value for name, value in event.payload.items() if name == "id"}
            return dataclasses.replace(event, payload=known)
        if "message" in event.payload:  # the message of an error may name a record
            payload = {name: value for name, value in event.payload.items() if name != "message"}
            return dataclasses.replace(event, payload=payload)
        return event

    return filtered
