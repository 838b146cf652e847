"""Escaping of bulk text columns that PostgreSQL would alter or refuse: NUL characters, and numbers in JSON."""

from __future__ import annotations

from typing import Final

from caliber.backends.postgres.connecting.wire import ESCAPE, from_jsonb, json_text
from caliber.kernels.copy.columns import CopyColumn, CopyKind
from caliber.schema.relation import Column
from caliber.storage.bulk.columns import rewritten

_ESCAPE: Final = ESCAPE.encode()


def for_server(column: CopyColumn, declared: Column, rows: int) -> CopyColumn:
    """Return a column as its rows are written one by one, too; see ``wire``."""
    kind = column.field.kind
    if kind in (CopyKind.TEXT, CopyKind.TEXT_ARRAY):
        raw = column.values.tobytes()
        return rewritten(column, declared, rows, _escaped) if b"\0" in raw or _ESCAPE in raw else column
    if kind is CopyKind.JSONB:
        raw = column.values.tobytes()
        if b"\\u0000" in raw or b"e+" in raw or _ESCAPE in raw:
            return rewritten(column, declared, rows, lambda text: json_text(text.decode()).encode())
    return column


def from_server(column: CopyColumn, declared: Column, rows: int) -> CopyColumn:
    """Return a column as it was before ``for_server``."""
    kind = column.field.kind
    if kind is CopyKind.JSONB:
        return rewritten(column, declared, rows, lambda text: from_jsonb(b"\1" + text).encode())
    if kind in (CopyKind.TEXT, CopyKind.TEXT_ARRAY) and _ESCAPE in column.values.tobytes():
        return rewritten(column, declared, rows, _unescaped)
    return column


def _escaped(text: bytes) -> bytes:
    return text.replace(_ESCAPE, _ESCAPE + b"1").replace(b"\0", _ESCAPE + b"0")


def _unescaped(text: bytes) -> bytes:
    return text.replace(_ESCAPE + b"0", b"\0").replace(_ESCAPE + b"1", _ESCAPE)
