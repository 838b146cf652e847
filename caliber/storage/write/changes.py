"""Binary encoding of change records: relation, operation, ordinals and versions that a transaction wrote.

A run begins with the low byte of the relation's code, a byte with the operation (2 bits) and the high bits of the code
(6 bits), and a count.

Source: design, section 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from caliber.model.errors import StorageError

UPSERT = 1
DELETE = 2
RELOAD = 3
"""The whole store was replaced by a restore: followers reload everything."""

_HEAD = struct.Struct("<BBI")
_OPERATION_BITS = 2
_ENTRY = struct.Struct("<qi")
_ENTRIES = np.dtype([("ordinal", "<i8"), ("version", "<i4")])

ChangeEntry = tuple[int, int, int, int]
"""(relation code, operation, ordinal, version)"""


def pack_changes(entries: Sequence[ChangeEntry]) -> bytes:
    """Return entries as bytes: runs of (relation, operation, count) followed by (ordinal, version) pairs."""
    out = bytearray()
    start = 0
    while start < len(entries):
        relation, operation = entries[start][:2]
        end = start
        while end < len(entries) and entries[end][0] == relation and entries[end][1] == operation:
            end += 1
        out += _HEAD.pack(relation & 0xFF, operation | relation >> 8 << _OPERATION_BITS, end - start)
        for entry in entries[start:end]:
            out += _ENTRY.pack(entry[2], entry[3])
        start = end
    return bytes(out)


def pack_upserts(relation: int, ordinals: Sequence[int], versions: Sequence[int]) -> bytes:
    """Return the record of rows of one relation that were written, as ``pack_changes`` would."""
    entries = np.empty(len(ordinals), _ENTRIES)
    entries["ordinal"] = ordinals
    entries["version"] = versions
    return _HEAD.pack(relation & 0xFF, UPSERT | relation >> 8 << _OPERATION_BITS, len(ordinals)) + entries.tobytes()


RELOAD_RECORD = _HEAD.pack(0, RELOAD, 0)


def unpack_changes(raw: bytes) -> Iterable[ChangeEntry]:
    """Yield the entries of a change record.

    Raises: StorageError when the record is damaged.
    """
    at = 0
    while at < len(raw):
        if at + _HEAD.size > len(raw):
            raise StorageError("a change record is damaged; run `caliber doctor`")
        low, second, count = _HEAD.unpack_from(raw, at)
        relation, operation = second >> _OPERATION_BITS << 8 | low, second & (1 << _OPERATION_BITS) - 1
        at += _HEAD.size
        if operation not in (UPSERT, DELETE) or at + count * _ENTRY.size > len(raw):
            raise StorageError("a change record is damaged; run `caliber doctor`")
        for _ in range(count):
            ordinal, version = _ENTRY.unpack_from(raw, at)
            at += _ENTRY.size
            yield relation, operation, ordinal, version
