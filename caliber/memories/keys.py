"""Ids of records that are told apart by the values of some fields: the same values give the same id, everywhere.

Source: docs/memories.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from caliber.memories import checks as record_checks
from caliber.model.errors import InvalidValue, RequiredFieldMissing
from caliber.model.references import id_of_key
from caliber.model.time import to_us
from caliber.schema.memories import MemoryBinding
from caliber.storage.compile.codec import dump_json


def key_of(memory: MemoryBinding, values: Mapping[str, Any], within: str = "") -> uuid.UUID:
    """Return the id of the record that has values in the fields of its memory's key.

    Raises: InvalidValue for a memory without a key.
    """
    names = key_fields(memory)
    parts = [memory.type.name, *(_plain(values[name], f"{within}{name}") for name in names)]
    return id_of_key(dump_json(parts))


def key_fields(memory: MemoryBinding) -> tuple[str, ...]:
    """Return the fields of a memory's key. Raises: InvalidValue for a memory without one."""
    if not memory.type.key:
        name = memory.type.name
        raise InvalidValue(field="memory", reason=f"{name} has no key: declare it with `key: [field]`, or use ids")
    return memory.type.key


def id_at(memory: MemoryBinding, stated: Mapping[str, Any]) -> uuid.UUID:
    """Return the id of the record at a key that a caller states. Raises: InputError kinds."""
    names = key_fields(memory)
    missing = next((name for name in names if name not in stated), None)
    if missing is not None:
        raise RequiredFieldMissing(field=missing)
    unknown = next((name for name in stated if name not in names), None)
    if unknown is not None:
        raise InvalidValue(field=unknown, reason=f"is no part of the key; it is ({', '.join(names)})")
    return key_of(memory, record_checks.checked(memory, stated, whole=False))


def _plain(value: Any, field: str) -> Any:
    """Return a value of a key as JSON tells values apart."""
    if isinstance(value, datetime):
        return to_us(value, field)
    return str(value) if isinstance(value, uuid.UUID | str) else value
