"""Redaction of a subject in one record: rewrites each column as declared, and recomputes derived columns."""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from caliber.erasure import packed
from caliber.erasure.subject import MARK, Subject
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.schema.erase import OF_PRINCIPALS, Packed, Redaction
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.derived import completed

_ID_CHARS: Final = 36


class Redactor:
    """Makes records that no longer name a subject. ``gone`` are ids of records that were erased with it."""

    def __init__(self, subject: Subject, estimator: Estimator) -> None:
        self._subject = subject
        self._estimator = estimator
        self.gone: set[bytes] = set()
        self.lost = packed.Lost(subject, self.within)
        self.also: Callable[[str], str] | None = None
        """Takes further words out of JSON and packed content of the present record."""
        self.quotes: Callable[[str], str] | None = None
        """Takes further words out of what a program reported in the present record."""
        self.closed = 0
        """Packed records that can be replayed no longer."""

    def without(self, relation: Relation, entity: Any) -> Any:
        """Return an entity without the subject; the same one if it does not name it, None if the record is to go."""
        changes: dict[str, Any] = {}
        subject = self._subject
        for column in _redacted(relation):
            value = getattr(entity, column.name, None)
            if value is None:
                continue
            how = column.redaction
            if how is Redaction.ROW:
                if subject.mentioned(value):
                    return None
            elif isinstance(how, Packed):
                if how.row:
                    for each in packed.said(how.layout, value):
                        if subject.mentioned_in(each) if isinstance(each, bytes) else subject.mentioned(each):
                            return None
                    continue
                changed, closed = packed.without(how.layout, value, self.lost)
                if changed != value:
                    changes[column.name] = changed
                    self.closed += closed
                    if closed and how.digest is not None:  # a digest of a whole text confirms a guess of it
                        changes[how.digest] = bytes(relation.column(how.digest).length or 0)
            else:
                changed = self._value(column, value)
                if changed != value:
                    changes[column.name] = changed
        return self.changed(relation, entity, changes) if changes else entity

    def changed(self, relation: Relation, entity: Any, changes: dict[str, Any]) -> Any:
        """Return an entity with changed columns, and its derived columns."""
        for column in relation.columns:
            if column.redaction is Redaction.EMPTIED:
                changes[column.name] = None
            elif column.redaction is Redaction.NEW_KEY and getattr(entity, column.name) is not None:
                with_it = (unique.columns for unique in relation.uniques if column.name in unique.columns)
                if any(not changes.keys().isdisjoint(columns) for columns in with_it):
                    # Two authors may have used one key, and have one name from now on.
                    changes[column.name] = _new_key()
        # Hashes of erased content would confirm a guess of it.
        return completed(relation, dataclasses.replace(entity, **changes), self._estimator, changes.keys())

    def _value(self, column: Column, value: Any) -> Any:
        kind, how, subject = column.type, column.redaction, self._subject
        if how is Redaction.NEW_KEY:
            # No two of them may be equal: one that is taken out must not collide with another.
            return _new_key() if subject.mentioned(value) else value
        if how is Redaction.IDS:
            if kind is ColumnType.UUID:
                return None if value.bytes in subject.ids else value
            return tuple(item for item in value if item.bytes not in subject.ids and item.bytes not in self.gone)
        if how in OF_PRINCIPALS:
            # A list keeps an entry per reader: one that becomes empty would be another one.
            kept = [MARK if subject.is_principal(name) else name for name in principals_in(column, value)]
            return tuple(kept) if kind is ColumnType.TEXT_ARRAY else MARK if MARK in kept else value
        if kind is ColumnType.BYTES:
            return subject.without_in(value)
        if kind is ColumnType.TEXT_ARRAY:
            return tuple(subject.without(item) for item in value)
        if kind is ColumnType.JSON:
            assert column.json_encode is not None
            assert column.json_decode is not None
            encoded = column.json_encode(value)
            return column.json_decode(self.within(self._kept(encoded) if how is Redaction.ENTRIES else encoded))
        text = subject.without(value)
        return self.quotes(text) if how is Redaction.QUOTES and self.quotes is not None else text

    def _kept(self, value: Any) -> Any:
        """Return a JSON value whose lists have no object about the subject, or about a record that went."""
        if isinstance(value, list):
            return [self._kept(item) for item in value if not self._is_about(item)]
        if isinstance(value, dict):
            return {name: self._kept(item) for name, item in value.items()}
        return value

    def _is_about(self, value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        texts = [item for item in value.values() if isinstance(item, str)]
        return any(self._subject.named(text) or _id(text) in self.gone for text in texts)

    def within(self, value: Any) -> Any:
        """Return a JSON value without the subject, in keys too."""
        if isinstance(value, str):
            text = self._subject.without(value)
            return text if self.also is None or _id(text) else self.also(text)
        if isinstance(value, list | tuple):
            return [self.within(item) for item in value]
        if isinstance(value, dict):
            return {self._subject.without(name): self.within(item) for name, item in value.items()}
        return value


@functools.lru_cache(maxsize=512)
def _redacted(relation: Relation) -> tuple[Column, ...]:
    """Return the columns that may name a subject: derived columns follow from others, a key identifies the record."""
    passed = {*relation.key, *relation.rule_of}
    nothing = (Redaction.NOTHING, Redaction.DIGEST, Redaction.EMPTIED)
    return tuple(each for each in relation.columns if each.name not in passed and each.redaction not in nothing)


def principals_in(column: Column, value: Any) -> Sequence[str]:
    """Return the names and labels of users and agents that a value is or lists."""
    if column.type is ColumnType.TEXT_ARRAY:
        return value  # type: ignore[no-any-return]
    return [value.rpartition("@")[0] or value] if column.redaction is Redaction.AUTHOR else [value]


def _id(text: str) -> bytes:
    """Return the bytes of an id that a text is, or none."""
    try:
        return uuid.UUID(text).bytes if len(text) == _ID_CHARS else b""
    except ValueError:
        return b""


def _new_key() -> str:
    return f"forgotten:{uuid7()}"
