"""Redaction of a subject in one record: rewrites each column as declared, and recomputes derived columns.

Texts inside packed columns (JSON, window records) are extracted, and packed again without the subject. Columns of a
window's record stay as they are: they are numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import struct
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np

from caliber.context.columns import ORDINAL, SOURCE
from caliber.context.record.record import HASH_BYTES, MAGIC, Record, unpack_record
from caliber.embedding.embedding_target import embedded_text
from caliber.erasure.subject import MARK, Subject
from caliber.kernels import uuid7
from caliber.kernels.tokens.estimators import Estimator
from caliber.model.errors import StorageError
from caliber.schema.derived import Tokens
from caliber.schema.erase import CHECKPOINT_HEAD, OF_PRINCIPALS, Layout, Packed, Redaction
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.codec import dump_json
from caliber.storage.compile.derived import completed, unpack_content

_ID_CHARS: Final = 36


class Redactor:
    """Makes records that no longer name a subject. ``gone`` are ids of records that were erased with it."""

    def __init__(self, subject: Subject, estimator: Estimator) -> None:
        self._subject = subject
        self._estimator = estimator
        self.gone: set[bytes] = set()
        self.lost = Lost(subject, self.within)
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
                if subject.mentioned(value) and not isinstance(value, StrEnum):  # a word of the program
                    return None
            elif isinstance(how, Packed):
                if how.row:
                    for each in said(how.layout, value):
                        if subject.mentioned_in(each) if isinstance(each, bytes) else subject.mentioned(each):
                            return None
                    continue
                changed, closed = without(how.layout, value, self.lost)
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
            if column.redaction in _EMPTIED:
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


_UNPACKED_MAX: Final = 1 << 26
_ZLIB: Final = b"\x78"
_WINDOW: Final = (b"CWR", 4)
"""The beginning of a window's record, and how long it is with its version."""
_STATE: Final = len(CHECKPOINT_HEAD) + hashlib.sha256().digest_size
"""The length of what stands before a checkpoint's JSON."""


@dataclass
class Lost:
    """The losses of packed content: a subject, records that went or lost words, and their ids as text."""

    subject: Subject
    words: Callable[[Any], Any]
    touched: set[tuple[str, int]] = field(default_factory=set)
    """Relation and ordinal of each record whose content went or changed."""
    records: frozenset[str] = frozenset()


def said(layout: Layout, value: Any) -> Iterable[str | bytes]:
    """Return the texts in packed content. Raises: StorageError when it is damaged."""
    if layout is Layout.VERSION:
        values = unpack_content(value).values()
        return [each if isinstance(each, bytes) else dump_json(each) for each in values if each is not None]
    return [value if layout is Layout.RAW else _unpacked(value)]


def without(layout: Layout, value: Any, lost: Lost) -> tuple[Any, bool]:
    """Return packed content without the lost data, unchanged if there is none; and whether it can still be replayed.

    Raises: StorageError when it is damaged.
    """
    return _WITHOUT[layout](value, lost)


def _window(raw: bytes, lost: Lost) -> tuple[bytes, bool]:
    return _window_without(raw, lost.touched, lost.words, lost.subject.ids) or (raw, False)


def _checkpoint(raw: bytes, lost: Lost) -> tuple[bytes, bool]:
    state = _json_of(raw)
    for section in (state.get("context_snapshot") or {}).get("sections", ()):
        gone = any(source[1] in lost.records for source in section["sources"])
        if gone and "content" in section:  # of a handoff; checkpoints hold no texts
            section["content"], section["token_count"] = MARK, 0
            section["sources"] = [source[:3] for source in section["sources"]]  # without the task of the record
    return _json_again(raw, lost.words(state)), False


def _json(raw: bytes, lost: Lost) -> tuple[bytes, bool]:
    return _json_again(raw, lost.words(_json_of(raw))), False


def _raw_form(raw: bytes, lost: Lost) -> tuple[bytes | None, bool]:
    return None if lost.subject.mentioned_in(raw) else raw, False


_EMPTIED: Final = (Redaction.EMPTIED, Packed(Layout.RAW))
_WITHOUT: Final[Mapping[Layout, Callable[[Any, Lost], tuple[Any, bool]]]] = {
    Layout.JSON: _json,
    Layout.RAW: _raw_form,
    Layout.CHECKPOINT: _checkpoint,
    Layout.WINDOW: _window,
}


def _json_of(raw: bytes) -> Any:
    try:
        return json.loads(_unpacked(raw))
    except ValueError as error:
        raise _damaged() from error


def _json_again(raw: bytes, value: Any) -> bytes:
    """Return a JSON value packed like ``raw``; ``raw`` itself if the value is equal."""
    if value == _json_of(raw):
        return raw
    text, start = dump_json(value).encode(), _start(raw)
    body = zlib.compress(text) if raw[start : start + 1] == _ZLIB else text
    return CHECKPOINT_HEAD + hashlib.sha256(body).digest() + body if start else body


def _start(raw: bytes) -> int:
    """Return where packed JSON or a window's columns begin."""
    if raw[: len(CHECKPOINT_HEAD)] == CHECKPOINT_HEAD:
        return _STATE
    return _WINDOW[1] if raw[: len(_WINDOW[0])] == _WINDOW[0] else 0


def _unpacked(raw: bytes) -> bytes:
    start = _start(raw)
    if raw[start : start + 1] != _ZLIB and raw[:3] != _WINDOW[0]:
        return raw[start:]
    try:
        return zlib.decompressobj().decompress(raw[start:], _UNPACKED_MAX)
    except zlib.error as error:
        raise _damaged() from error


def _damaged() -> StorageError:
    return StorageError("packed content cannot be read; run `caliber doctor`")


def digests_of(relation: Relation, entity: Any) -> set[bytes]:
    """Return the digests by which content of a record can be known again: its own, and that of its vector."""
    kept, contents = _columns(relation)
    out = {digest for digest in (getattr(entity, name) for name in kept) if digest is not None}
    out |= {_sha(_raw(content)) for content in (getattr(entity, name) for name in contents) if content is not None}
    text = relation.text
    if text is not None and text.embedded is not None and (body := getattr(entity, text.embedded)) is not None:
        head = None if text.head is None else getattr(entity, text.head)
        shown = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        out.add(_sha(_raw(embedded_text(head, shown))))
    return out


@functools.lru_cache(maxsize=512)
def _columns(relation: Relation) -> tuple[list[str], list[str]]:
    """Return the columns of a relation that hold digests, and those of its contents."""
    rules = relation.derived or ()
    kept = [each.name for each in relation.columns if each.redaction is Redaction.DIGEST]
    kept += [rule.column for rule in rules if relation.column(rule.column).type is ColumnType.BYTES]
    return kept, [name for rule in rules if isinstance(rule, Tokens) for name in rule.of]


def _raw(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def _sha(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def digests_of_body(body: str) -> set[bytes]:
    """Return the digest of each content in a kept version."""
    return {_sha(_raw(value)) for value in unpack_content(body).values() if isinstance(value, str | bytes)}


_LEVEL: Final = 2
_INPUTS: Final = ("query", "extra", "principal")


def _window_without(
    raw: bytes, touched: Collection[tuple[str, int]], words: Callable[[Any], Any], lost: frozenset[bytes]
) -> tuple[bytes, bool] | None:
    """Return a window's record without erased data, and whether it can still be replayed; None if nothing changes.

    It loses the content of records that were ``touched``, by relation and ordinal, and the ids that are ``lost``;
    ``words`` returns a text without those that go. Raises: StorageError for a record that cannot be read.
    """
    record = unpack_record(raw)
    body = zlib.decompress(raw[4:])
    (length,) = struct.unpack_from("<I", body)
    meta = json.loads(body[4 : 4 + length])
    (vector_length,) = struct.unpack_from("<I", body, 4 + length)
    vector = body[8 + length : 8 + length + vector_length]
    rest = body[8 + length + vector_length :]
    changed = {name: words(meta[name]) for name in _INPUTS if meta[name] is not None}
    changed = {name: value for name, value in changed.items() if value != meta[name]}
    places = _places(record, touched) | set(record.erased)
    ids = any(record_id.bytes in lost for record_id in record.ids.values())
    if not changed and places == set(record.erased) and not ids:
        return None
    if "query" in changed:
        vector = b""
    closed = bool(places) or "extra" in changed or record.erased_sections
    meta.update(changed)
    if closed:
        meta["erased"] = [sorted(places), "extra" in changed or record.erased_sections]
    packed = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode()
    parts = [struct.pack("<I", len(packed)), packed, struct.pack("<I", len(vector)), vector]
    parts.append(_rest(rest, record, places, lost))
    return MAGIC + raw[3:4] + zlib.compress(b"".join(parts), _LEVEL), closed


def _places(record: Record, touched: Collection[tuple[str, int]]) -> set[int]:
    """Return the included records that have lost their content."""
    ranked = record.ranked
    return {
        place
        for place in record.ids
        if (record.facts.relation_of(int(ranked[SOURCE][place])) or "", int(ranked[ORDINAL][place])) in touched
    }


def _rest(rest: bytes, record: Record, places: set[int], ids: frozenset[bytes]) -> bytes:
    """Return the columns and the data after them: ids by planes, then digests, both of included records."""
    kept = list(record.ids)
    size = len(kept)
    columns = rest[: len(rest) - size * (16 + HASH_BYTES)]
    planes = np.zeros((size, 16), np.uint8)
    for at, place in enumerate(kept):
        record_id = record.ids[place].bytes
        planes[at] = np.frombuffer(bytes(16) if record_id in ids else record_id, np.uint8)
    digests = b"".join(bytes(HASH_BYTES) if place in places else record.hashes[place] for place in kept)
    return columns + planes.T.tobytes() + digests
