"""Taking a subject out of one record: every column by its type, and what is derived from content made anew."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable
from typing import Any

from caliber.erasure.subject import Subject
from caliber.kernels import uuid7
from caliber.knowledge import notes
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.write.memory_records import derived_of
from caliber.trajectory import artifacts

_DERIVED = frozenset({"content_hash", "fingerprint", "goal_hash"})
_KEY = "idempotency_key"


class Redactor:
    """Makes records that no longer name a subject. ``gone`` are ids of records that were erased with it."""

    def __init__(self, subject: Subject, count_text: Callable[[str], int], count_bytes: Callable[[bytes], int]) -> None:
        self._subject = subject
        self._count_text = count_text
        self._count_bytes = count_bytes
        self.gone: set[bytes] = set()

    def without(self, relation: Relation, entity: Any) -> Any:
        """Return an entity without the subject; the same one if it does not name it."""
        changes: dict[str, Any] = {}
        for column in relation.columns:
            if column.name in _DERIVED or column.name in relation.key or not hasattr(entity, column.name):
                continue
            value = getattr(entity, column.name)
            if value is not None:
                changed = self._value(column, value)
                if changed != value:
                    changes[column.name] = changed
        if not changes:
            return entity
        if getattr(entity, _KEY, None) is not None and any(
            _KEY in unique.columns and not changes.keys().isdisjoint(unique.columns) for unique in relation.uniques
        ):
            changes[_KEY] = _new_key()  # two authors may have used one key, and have one name from now on
        return dataclasses.replace(entity, **changes, **self._derived(relation, entity, changes))

    def _value(self, column: Column, value: Any) -> Any:
        kind, subject = column.type, self._subject
        if column.name == _KEY:
            # No two of them may be equal: one that is taken out must not collide with another.
            return _new_key() if subject.mentioned(value) else value
        if kind is ColumnType.TEXT:
            return subject.without(value)
        if kind is ColumnType.BYTES:
            return subject.without_in(value)
        if kind is ColumnType.TEXT_ARRAY:
            return tuple(subject.without(item) for item in value)
        if kind is ColumnType.JSON:
            assert column.json_encode is not None
            assert column.json_decode is not None
            return column.json_decode(self.within(column.json_encode(value)))
        if kind is ColumnType.UUID_ARRAY:
            return tuple(item for item in value if item.bytes not in subject.ids and item.bytes not in self.gone)
        if kind is ColumnType.UUID and column.nullable and isinstance(value, uuid.UUID):
            return None if value.bytes in subject.ids else value
        return value

    def within(self, value: Any) -> Any:
        """Return a JSON value without the subject, in keys too."""
        if isinstance(value, str):
            return self._subject.without(value)
        if isinstance(value, list | tuple):
            return [self.within(item) for item in value]
        if isinstance(value, dict):
            return {self._subject.without(name): self.within(item) for name, item in value.items()}
        return value

    def _derived(self, relation: Relation, entity: Any, changes: dict[str, Any]) -> dict[str, Any]:
        """Return what follows from content: hashes of what was erased would tell whether it was a given text."""
        name = relation.name
        if relation.has("record_id"):
            changed = dataclasses.replace(entity, **changes)
            # Another record may say the same by now, and stays.
            return {**derived_of(relation, changed, self._count_text), "fingerprint": None}
        if name == "scope" and "summary" in changes:
            return {"summary_tokens": self._count_text(changes["summary"])}
        if name == "turn_summary" and "content" in changes:
            return {"token_count": self._count_text(changes["content"])}
        if name == "trajectory" and "goal" in changes:
            return {"goal_hash": hashlib.sha256(changes["goal"].encode()).digest()}
        if name == "turn" and "content" in changes:
            return {"token_count": self._count_bytes(changes["content"])}
        if name == "artifact" and "content" in changes:
            return artifacts.derived_of(changes["content"], self._count_bytes)
        if name == "note":
            return notes.derived_of(dataclasses.replace(entity, **changes), self._count_bytes)
        return {}


def _new_key() -> str:
    return f"forgotten:{uuid7()}"
