"""Audited corrections of records: checks permission, logs old and new values, and can undo from that log.

A correction and its audit event are one transaction. The event's payload holds ``action``, ``role`` and ``changes``:
for each changed column its value before and after, as stored (instants in microseconds, ids in hexadecimal). Derived
columns are not logged.

Source: M-110, M-129 to M-141, K-131, K-132.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from caliber.access.visibility import may_change, may_see
from caliber.engine.engine import Engine
from caliber.model.access import Principal
from caliber.model.errors import Conflict, NotFound, PermissionDenied
from caliber.model.events import CorrectionAction, Event, EventFamily
from caliber.model.time import from_us
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import EVENT
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.derived import completed
from caliber.storage.write import event_log
from caliber.storage.write.unit_of_work import UnitOfWork

_FOLLOWING = ("version", "updated_at")
"""Columns that every change writes, besides the derived ones."""


class Corrections:
    """The corrections that one principal makes."""

    def __init__(self, engine: Engine, principal: Principal) -> None:
        self._engine = engine
        self._principal = principal

    def read(self, uow: UnitOfWork, relation: Relation, key: uuid.UUID, action: str, version: int | None) -> Any:
        """Return a record to correct, locked against other writers.

        Raises: NotFound, also for a record that the principal may not see; PermissionDenied unless the principal wrote
            it or is an admin; Conflict when ``version`` is given and is no longer the record's.
        """
        uow.lock(relation, key.bytes)
        record = uow.find(relation, key.bytes)
        readers = relation.readers
        if record is None or (readers is not None and not may_see(getattr(record, readers), self._principal)):
            raise NotFound(entity_type=relation.name, id=key)
        ownership = self._engine.config.access.ownership
        if relation.author is not None and not may_change(
            getattr(record, relation.author), self._principal, ownership=ownership
        ):
            raise PermissionDenied(agent_id=self._principal.label, action=action, resource=f"{relation.name} {key}")
        if version is not None and record.version != version:
            raise Conflict(entity_type=relation.name, id=key, reason=f"its version is {record.version} by now")
        return record

    def write(
        self,
        uow: UnitOfWork,
        relation: Relation,
        before: Any,
        changed: Any,
        action: CorrectionAction,
        **payload: Any,
    ) -> Any:
        """Store a corrected record with its derived columns, and the audit event; return the record as stored.

        Raises: Conflict when another active record would be equal.
        """
        if changed == before and not payload:
            return before
        codec = codec_of(relation)
        old = uow.current(relation, codec.encode(before, 0 if relation.ordinal else None))
        ordinal = old[0] if relation.ordinal else None
        differing = {
            name
            for name, one, other in zip(codec.names, old, codec.encode(changed, ordinal), strict=True)
            if one != other
        }
        after = completed(relation, changed, self._engine.estimator, differing)
        after = dataclasses.replace(after, updated_at=from_us(uow.now_us))
        new = codec.encode(after, ordinal)
        if uow.has_twin(relation, old, new):
            reason = "another record in use says the same; delete one of them, or supersede it"
            raise Conflict(entity_type=relation.name, id=_key(relation, before), reason=reason)
        stored = uow.update(relation, after) if differing else before
        logged = differing - {*relation.rule_of, *_FOLLOWING}
        changes = {
            name: [_as_json(one), _as_json(other)]
            for name, one, other in zip(codec.names, old, new, strict=True)
            if name in logged
        }
        event_log.audit(uow, self._event(relation, before, action, {"changes": changes, **payload}))
        return stored

    def last(self, uow: UnitOfWork, relation: Relation, record: Any) -> Event | None:
        """Return the audit event of the newest correction of a record that is not undone; None without any."""
        standing: list[Event] = []
        for event in uow.select_path(EVENT, "list_by_subject", _key(relation, record).bytes):
            if event.family is not EventFamily.AUDIT or "changes" not in event.payload:
                continue
            if event.payload.get("action") == CorrectionAction.UNDO:
                del standing[-1:]  # retention may have taken the event it undid
            else:
                standing.append(event)
        return standing[-1] if standing else None

    def undo(self, uow: UnitOfWork, relation: Relation, record: Any, event: Event) -> Any:
        """Give a record the values it had before a correction; return it as stored.

        Raises: Conflict when a corrected value was changed again in another way.
        """
        codec = codec_of(relation)
        row = list(codec.encode(record, 0 if relation.ordinal else None))
        for name, (before, after) in event.payload["changes"].items():
            place, kind = codec.index(name), relation.column(name).type
            if _as_json(row[place]) != after:
                reason = f"{name} was changed again since that correction; correct it instead"
                raise Conflict(entity_type=relation.name, id=_key(relation, record), reason=reason)
            row[place] = _as_stored(before, kind)
        changed = codec.decode(tuple(row))
        return self.write(uow, relation, record, changed, CorrectionAction.UNDO, undone=str(event.event_id))

    def _event(self, relation: Relation, record: Any, action: str, payload: dict[str, Any]) -> Event:
        role = None if self._principal.role is None else self._principal.role.value
        return self._engine.event(
            f"{relation.name}_{action}",
            principal=self._principal.label,
            subject=(relation.name, _key(relation, record)),
            payload={"action": action, "role": role, **payload},
            family=EventFamily.AUDIT,
        )


def _key(relation: Relation, record: Any) -> uuid.UUID:
    key: uuid.UUID = getattr(record, relation.key[0])
    return key


def _as_json(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _as_stored(value: Any, kind: ColumnType) -> Any:
    binary = kind in (ColumnType.BYTES, ColumnType.UUID)
    return bytes.fromhex(value) if binary and isinstance(value, str) else value
