"""Retirement of records as their relation declares it, and the log of modifications.

Source: C-157, C-228, K-063, K-095, K-190, M-133, M-134.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterable
from typing import Any, Final

from caliber.kernels import uuid7
from caliber.model.access import Principal
from caliber.model.errors import InternalError, NotFound
from caliber.model.events import CorrectionAction, Event, EventFamily
from caliber.model.references import EventId
from caliber.model.time import from_us
from caliber.schema.relation import ColumnType, Relation, Residence
from caliber.schema.relations import EVENT
from caliber.schema.traits import Pruned
from caliber.schema.validity import is_active
from caliber.storage.compile.codec import codec_of
from caliber.storage.write.unit_of_work import UnitOfWork

RETENTION: Final = "system:retention"
"""The principal of what a configuration has done to records."""
STRUCTURED: Final = (ColumnType.TEXT_ARRAY, ColumnType.JSON)
_FOLLOWING: Final = ("version", "updated_at")
"""Columns that every change writes, besides the derived ones."""


def archive(uow: UnitOfWork, relation: Relation, record: Any, by: Principal | str = RETENTION, **also: Any) -> Any:
    """Take a record out of use, changing ``also`` other columns; it stays in the store. Return it as it is stored."""
    if relation.ends is None or relation.ends.archive is None:
        raise InternalError(f"records of {relation.name} are not archived")
    column = relation.ends.archive
    if getattr(record, column) is not None:
        return record
    now = from_us(uow.now_us)
    stored = uow.update(relation, dataclasses.replace(record, **{column: now, "updated_at": now, **also}))
    log_change(uow, relation, record, stored, CorrectionAction.ARCHIVE, by)
    return stored


def log_change(
    uow: UnitOfWork, relation: Relation, before: Any, after: Any, action: str, by: Principal | str, **payload: Any
) -> None:
    """Write the audit event of a change, with the values before and after; nothing for a relation without history."""
    if not relation.history:
        return
    codec, kinds = codec_of(relation), logged_columns(relation)
    changes = {
        name: [as_logged(old, kinds[name]), as_logged(new, kinds[name])]
        for name, old, new in zip(codec.names, codec.encode(before), codec.encode(after), strict=True)
        if name in kinds and old != new
    }
    task, role = relation.rights.task, None if isinstance(by, str) or by.role is None else by.role.value
    event = Event(
        event_id=EventId(uuid7()),
        family=EventFamily.AUDIT,
        event_type=f"{relation.name}_{action}",
        created_at=from_us(uow.now_us),
        trajectory_id=None if task is None else getattr(after, task),
        subject_type=relation.name,
        subject_id=getattr(after, relation.key[0]),
        principal=by if isinstance(by, str) else by.label,
        payload={"action": action, "role": role, **payload, "changes": changes, "version": after.version},
    )
    uow.insert(EVENT, event)
    uow.events.append(event)


def logged_columns(relation: Relation) -> dict[str, ColumnType]:
    """Return the types of the columns that the log names: those that nothing else determines, and no bytes."""
    kept = (each for each in relation.columns if each.residence is not Residence.STORED)
    return {each.name: each.type for each in kept if each.name not in (*relation.rule_of, *_FOLLOWING)}


def as_logged(value: Any, kind: ColumnType) -> Any:
    """Return a stored value as JSON."""
    if kind in STRUCTURED and value is not None:
        return json.loads(value)  # so that words are forgotten in the log as in the record
    if kind in (ColumnType.UUID, ColumnType.UUID_ARRAY) and value is not None:
        ids = [str(uuid.UUID(bytes=value[at : at + 16])) for at in range(0, len(value), 16)]  # and ids
        return ids[0] if kind is ColumnType.UUID else ids
    return value.hex() if isinstance(value, bytes) else value


def prune(uow: UnitOfWork, relation: Relation, records: Iterable[Any]) -> int:
    """Archive or delete records of a relation, as its retention declares; return the number of them.

    Deleted records keep their content for replay; another process may have deleted some already.
    """
    if relation.ends is None:
        raise InternalError(f"retention does not reach records of {relation.name}")
    count = 0
    for record in records:
        if relation.ends.pruned is Pruned.DELETED:
            with contextlib.suppress(NotFound):
                uow.delete(relation, record)
                count += 1
        elif is_active(relation, record):
            archive(uow, relation, record)
            count += 1
    return count
