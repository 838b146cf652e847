"""Derived columns of a declared memory's records, for every writer of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations.memory import KEY as KEY
from caliber.storage.compile.codec import codec_of, dump_json


def derived_of(relation: Relation, record: Any, count_text: Callable[[str], int]) -> dict[str, Any]:
    """Return what follows from what a record says: how many tokens its texts have, and its digest."""
    tokens = sum(map(count_text, texts_of(relation, record)))
    return {"token_count": tokens, "content_hash": content_hash_of(relation, record)}


def content_hash_of(relation: Relation, record: Any) -> bytes:
    """Return the digest of everything that a record says: of its declared fields, as they are stored.

    A field without a value is left out, so that one that is added later changes no digest.
    """
    row, offset = codec_of(relation).encode(record), 1
    return digest_of({name: row[relation.index(name) + offset] for name in relation.content_columns})


def digest_of(said: Mapping[str, Any]) -> bytes:
    """Return the digest of what a record says, by field, as it is stored."""
    plain = {
        name: value.hex() if isinstance(value, bytes) else int(value) if isinstance(value, bool) else value
        for name, value in said.items()
        if value is not None
    }
    return hashlib.sha256(dump_json(plain).encode("utf-8", "surrogatepass")).digest()


def texts_of(relation: Relation, record: Any) -> list[str]:
    """Return the texts that a record says, whose tokens are those of the record."""
    columns = (column for column in relation.columns if column.declared and column.type is ColumnType.TEXT)
    values = (getattr(record, column.name) for column in columns)
    return [value for value in values if value is not None]
