"""Redaction of a stored window's record: removes erased texts, vectors and hashes, and marks it unreplayable.

Columns stay as they are: they are numbers.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from caliber.context.columns import ORDINAL, SOURCE
from caliber.context.record.record import HASH_BYTES, MAGIC, Record, unpack_record

_LEVEL: Final = 2
_INPUTS: Final = ("query", "extra", "principal")


def without(
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
