"""Conversion of a declared memory's definition to canonical JSON and back, for stores and archives.

Also the enum classes, made at run time, of its enum fields; they can be pickled.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from caliber.model.declared import MemoryCategory, Trigger
from caliber.model.errors import StorageError
from caliber.model.trajectory import ArtifactType
from caliber.schema.memory_types import (
    Field,
    FieldType,
    History,
    Index,
    IndexType,
    Lifecycle,
    MemoryType,
    Retention,
    RetentionKind,
    When,
)


def definition_of(memory: MemoryType) -> str:
    """Return a memory as canonical JSON; omitted keys stand for the default."""
    kept = memory.retention
    body: dict[str, Any] = {
        "name": memory.name,
        "type": memory.category.value,
        "fields": [
            _given(name=item.name, type=item.type.value, values=list(item.values), optional=item.optional)
            for item in memory.fields
        ],
        "retention": _given(
            kind=kept.kind.value,
            duration_ms=kept.duration_ms,
            count=kept.count,
            when=_when_of(kept.when),
            field=kept.field,
        ),
    }
    body |= _given(
        indexes=[[item.field, item.type.value] for item in memory.indexes],
        lifecycle=None if memory.lifecycle is Lifecycle.EXPLICIT else memory.lifecycle.value,
        closes_on=_when_of(memory.closes_on),
        artifacts=[item.value for item in memory.artifacts],
        parent=memory.parent,
        inject_on=[_when_of(item) for item in memory.inject_on],
        key=list(memory.key),
        history=None if memory.history is History.VERSIONS else memory.history.value,
        shown=memory.shown,
    )
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def memory_from(definition: str) -> MemoryType:
    """Return the memory that a text defines.

    Raises: StorageError for a text that ``definition_of`` did not write.
    """
    try:
        body = json.loads(definition)
        kept = body["retention"]
        memory = MemoryType(
            name=body["name"],
            category=MemoryCategory(body["type"]),
            fields=tuple(
                Field(item["name"], FieldType(item["type"]), tuple(item.get("values", ())), item.get("optional", False))
                for item in body["fields"]
            ),
            retention=Retention(
                RetentionKind(kept["kind"]),
                kept.get("duration_ms"),
                kept.get("count"),
                _when_from(kept.get("when")),
                kept.get("field"),
            ),
            indexes=tuple(Index(field, IndexType(kind)) for field, kind in body.get("indexes", ())),
            lifecycle=Lifecycle(body.get("lifecycle", Lifecycle.EXPLICIT)),
            closes_on=_when_from(body.get("closes_on")),
            artifacts=tuple(ArtifactType(item) for item in body.get("artifacts", ())),
            parent=body.get("parent"),
            inject_on=tuple(When(Trigger(on), cron) for on, cron in body.get("inject_on", ())),
            key=tuple(body.get("key", ())),
            history=History(body.get("history", History.VERSIONS)),
            shown=body.get("shown"),
        )
        if not _is_plain(memory) or definition_of(memory) != definition:
            raise ValueError("not as it is written")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StorageError("the definition of a memory is damaged; run `caliber doctor`") from error
    return memory


def _is_plain(memory: MemoryType) -> bool:
    """Return whether texts are texts and numbers numbers: definitions come out of archives too."""
    kept = memory.retention
    fields = (*(item.name for item in memory.fields), *(index.field for index in memory.indexes), *memory.key)
    names = [memory.name, *fields]
    texts = [*names, *(value for item in memory.fields for value in item.values)]
    whens = (kept.when, memory.closes_on, *memory.inject_on)
    maybe = [memory.parent, memory.shown, kept.field, *(when.cron for when in whens if when is not None)]
    return (
        all(isinstance(item, str) for item in texts)
        and all(item is None or isinstance(item, str) for item in maybe)
        and all(isinstance(item.optional, bool) for item in memory.fields)
        and all(item is None or type(item) is int for item in (kept.duration_ms, kept.count))
        and len({item.name for item in memory.fields}) == len(memory.fields)
    )


def _given(**parts: Any) -> dict[str, Any]:
    return {name: value for name, value in parts.items() if value not in (None, False, [])}


def _when_of(when: When | None) -> list[str | None] | None:
    return None if when is None else [when.on.value, when.cron]


def _when_from(body: list[Any] | None) -> When | None:
    return None if body is None else When(Trigger(body[0]), body[1])


class _DeclaredValue(StrEnum):
    """A value of a declared enum."""

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        made = type(self)
        return _value_again, (made.__name__, tuple(item.value for item in made), self.value)


def camel(*names: str) -> str:
    """Return names as the name of a class."""
    return "".join(part.capitalize() for name in names for part in name.split("_")) or "Memory"


def _member_names(values: Iterable[str]) -> list[str]:
    """Return the names of an enum's members: equal to their values, as far as Python allows."""
    names: list[str] = []
    for value in values:
        name = re.sub(r"\W", "_", value.upper()).strip("_")
        if not name.isidentifier():
            name = f"VALUE_{name}".rstrip("_")
        others = (f"{name}_{number}" for number in itertools.count(2))
        names.append(name if name not in names else next(other for other in others if other not in names))
    return names


@functools.lru_cache(maxsize=1_024)
def _enum_of(name: str, values: tuple[str, ...]) -> type[StrEnum]:
    members = list(zip(_member_names(values), values, strict=True))
    make: Any = _DeclaredValue
    made: type[StrEnum] = make(name, members, module=__name__)
    return made


def values_of(memory: str, name: str, values: tuple[str, ...]) -> type[StrEnum]:
    """Return the enum of a field of a memory; the same one for the same values."""
    return _enum_of(camel(memory, name), values)


def _value_again(name: str, values: tuple[str, ...], value: str) -> StrEnum:
    return _enum_of(name, values)(value)
