"""Helpers for nested configuration data: plain values, dotted paths, merging of overrides."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from caliber.config import faults
from caliber.config.knobs import FOREVER, FrozenMap
from caliber.config.secret import LiteralDsn, SecretRef, readable
from caliber.model.errors import ConfigError, MultipleErrors

_TAGS: Final = {"context_window_persistence": ("kind",)}
"""The knobs by which a section is of one kind or another, with other knobs."""


def plain(value: Any, *, opened: bool = False) -> Any:
    """Return a part of the configuration as plain data, without unset knobs.

    ``opened`` keeps connection strings, which are objects that do not show themselves.
    """
    if isinstance(value, BaseModel):
        out: dict[str, Any] = {}
        for name, field in type(value).model_fields.items():
            item = getattr(value, name)
            if item is not None:
                out[name] = plain(item, opened=opened)
            elif field.is_required():
                out[name] = FOREVER
        return out
    if isinstance(value, FrozenMap):
        return {key: plain(item, opened=opened) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item, opened=opened) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, LiteralDsn):
        return value if opened else str(value)
    return str(value) if isinstance(value, SecretRef) else value


def override(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested data with dotted paths set.

    Raises: MultipleErrors when a path leads through something that is not a section.
    """
    result = dict(data)
    found: list[ConfigError] = []
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = result
        for depth, part in enumerate(parents):
            inner = node.get(part)
            if isinstance(inner, BaseModel):
                inner = plain(inner)
            if inner is not None and not isinstance(inner, Mapping):
                through = ".".join(parents[: depth + 1])
                reason = f"{readable(through)} is a knob, not a section"
                found.append(faults.wrong(readable(path), value, reason))
                break
            node[part] = dict(inner or {})
            node = node[part]
        else:
            node[last] = value
    if found:
        raise MultipleErrors(errors=found)
    return result


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested data with ``over`` put over ``base``; lists and sections of another kind are replaced whole."""
    out = dict(base)
    for key, value in over.items():
        before = out.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping) and _same_kind(key, before, value):
            out[key] = merged(before, value)
        else:
            out[key] = value
    return out


def _same_kind(section: str, before: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    tags = _TAGS.get(section, ("adapter", "provider_type"))
    return all(tag not in value or before.get(tag) == value[tag] for tag in tags)


def value_at(data: Any, path: str) -> Any:
    """Return the value at a dotted path of nested data, or None."""
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data
