"""What follows from the fields of a record of a declared memory, for whoever writes one or changes it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from caliber.schema.relation import ColumnType, Relation
from caliber.storage.codec import codec_of, dump_json
from caliber.storage.unit_of_work import pack_content


def content_hash_of(relation: Relation, record: Any) -> bytes:
    """Return the digest of everything that a record says: of its declared fields, as they are stored.

    A field without a value is left out, so that one that is added later changes no digest.
    """
    packed = json.loads(pack_content(relation, codec_of(relation).encode(record)))
    said = {name: value for name, value in packed.items() if value is not None}
    return hashlib.sha256(dump_json(said).encode()).digest()


def texts_of(relation: Relation, record: Any) -> list[str]:
    """Return the texts that a record says, whose tokens are those of the record."""
    columns = (column for column in relation.columns if column.declared and column.type is ColumnType.TEXT)
    values = (getattr(record, column.name) for column in columns)
    return [value for value in values if value is not None]
