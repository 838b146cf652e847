"""Conversion of a record's replaced content to JSON and back, for ``content_version``, which replay reads."""

from __future__ import annotations

import base64
import json
from typing import Any

from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.damage import UNREADABLE, damaged


def pack_content(relation: Relation, row: Row) -> str:
    """Return the content columns of a row as JSON; bytes as base64."""
    body: dict[str, Any] = {}
    offset = 1 if relation.ordinal else 0
    for name in relation.content_columns:
        value = row[relation.index(name) + offset]
        body[name] = {"b64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value
    return dump_json(body)


def unpack_content(body: str) -> dict[str, Any]:
    """Return the content packed by ``pack_content``. Raises: StorageError for a damaged body."""
    try:
        loaded: dict[str, Any] = json.loads(body)
        return {
            name: base64.b64decode(value["b64"]) if isinstance(value, dict) and "b64" in value else value
            for name, value in loaded.items()
        }
    except UNREADABLE:
        raise damaged("a kept version of a record is damaged", relation="content_version") from None
