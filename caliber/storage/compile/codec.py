"""Row codecs: generated functions that convert entities to database rows (``Row``) and back; canonical JSON.

A row is a tuple of the values that the driver stores (int, float, str, bytes, None) in column order, with the ordinal
first where the relation has one. Generated code is several times faster than a loop over columns.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable
from typing import Any, Final

from caliber.model.errors import StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.time import EPOCH
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.compile.damage import (
    DECODING,
    UNREADABLE,
    damaged_column,
    damaged_row,
    decode_expression,
    raw_decoder_of,
)

Row = tuple[Any, ...]

_AS_STORED: Final = {
    ColumnType.TEXT: "is str",
    ColumnType.INT: "is int",
    ColumnType.FLOAT: "in (float, int)",
    ColumnType.BYTES: "is bytes",
}
"""What a value is that an entity has as the driver gives it; decoding finds any other type by itself."""

_ENCODED: Final = {
    ColumnType.UUID: "{}.bytes",
    ColumnType.INSTANT: "_us({})",
    ColumnType.BOOL: "int({})",
    ColumnType.ENUM: "{}.value",
    ColumnType.TEXT_ARRAY: "_dump(list({}))",
    ColumnType.UUID_ARRAY: "_join({})",
    ColumnType.FLOAT: "float({})",
}
"""The expression that encodes a value; the driver takes any other type as it is."""

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


_NEW_UUID: Final = "u{0} = _new(_UUID); _set_int(u{0}, _int(r[{0}], 'big')); _set_safe(u{0}, _SAFE)"
"""As ``uuid_from_bytes``, without a call: a row has several ids."""


def dump_json(value: Any) -> str:
    """Return compact JSON with sorted keys, so that equal values have equal text."""
    return _ENCODE(value)


def _us(value: Any) -> int:
    delta = value - EPOCH
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000) + delta.microseconds  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Codec:
    """``encode(entity, ordinal)`` gives the row, ``decode(row)`` the entity, or StorageError for a damaged row."""

    relation: Relation
    encode: Callable[..., Row]
    decode: Callable[[Row], Any]
    names: tuple[str, ...]
    key_places: tuple[int, ...]
    version_place: int
    """The place of a row's version, or -1."""

    def index(self, column: str) -> int:
        """Return the place of a column in a row."""
        return self.names.index(column)

    def key_of(self, row: Row) -> tuple[Any, ...]:
        """Return the key of a row as the driver takes it."""
        if len(self.key_places) == 1:
            return (row[self.key_places[0]],)
        return tuple([row[place] for place in self.key_places])


def _encode_expression(column: Column, value: str, scope: dict[str, Any]) -> str:
    if column.type is ColumnType.JSON:
        scope[f"_enc_{column.name}"] = column.json_encode
        return f"_dump(_enc_{column.name}({value}))"
    if column.type is ColumnType.ENUM and column.open:
        return f"str({value})"
    return _ENCODED.get(column.type, "{}").format(value)


@functools.cache
def decoder_of(column: Column) -> Callable[[Any], Any] | None:
    """Return the function from a column's stored value, not NULL, to the entity's; None where they are the same.

    It raises StorageError for a value outside the column's type.
    """
    decode = raw_decoder_of(column)
    if decode is None:
        return None

    def read(value: Any) -> Any:
        try:
            return decode(value)
        except UNREADABLE:
            raise damaged_column(column) from None

    return read


def _checks(relation: Relation, first: int) -> str:
    """Return the condition that values which are decoded as they are have the types of their columns."""
    checked = [(f"r[{at}]", each) for at, each in enumerate(relation.columns, start=first) if each.type in _AS_STORED]
    return (
        " and ".join(
            f"({value} is None or type({value}) {_AS_STORED[each.type]})"
            if each.nullable or each.declared
            else f"type({value}) {_AS_STORED[each.type]}"
            for value, each in checked
        )
        or "True"
    )


def _damage(relation: Relation, row: Row, failed: Exception) -> Exception:
    """Return an error that names the damaged column of a row; for a sound row the error unchanged, our bug."""
    found: StorageError | None = damaged_row(relation, row)
    return failed if found is None else found


@functools.cache
def codec_of(relation: Relation) -> Codec:
    """Return the codec of a relation, generated at the first call."""
    scope: dict[str, Any] = {
        **DECODING,
        "_us": _us,
        "_dump": dump_json,
        "_join": lambda values: b"".join([value.bytes for value in values]),
        "_cls": relation.entity,
        "_new": uuid.UUID.__new__,
        "_UUID": uuid.UUID,
        "_set_int": vars(uuid.UUID)["int"].__set__,
        "_set_safe": vars(uuid.UUID)["is_safe"].__set__,
        "_int": int.from_bytes,
        "_SAFE": uuid.SafeUUID.unknown,
    }
    first = 1 if relation.ordinal else 0
    source_of = {column.name: f"e.{column.name}" for column in relation.columns}
    source_of |= {name: f"e.{each.field}.{attribute}" for each in relation.composites for attribute, name in each.parts}
    parts = ["ordinal"] if first else []
    for column in relation.columns:
        value = source_of[column.name]
        expression = _encode_expression(column, value, scope)
        is_optional = column.nullable and expression != value
        parts.append(f"None if {value} is None else {expression}" if is_optional else expression)
    encode_source = f"def encode(e, ordinal=None):\n    return ({', '.join(parts)},)\n"

    decoded, made = {}, []
    for place, column in enumerate(relation.columns, start=first):
        if column.type is ColumnType.UUID:
            test = f"if r[{place}] is not None: " if column.nullable else ""
            made.append(f"            u{place} = None\n            {test}{_NEW_UUID.format(place)}\n")
            decoded[column.name] = f"u{place}"
            continue
        expression = decode_expression(column, f"r[{place}]", scope)
        if column.nullable and expression != f"r[{place}]":
            expression = f"None if r[{place}] is None else {expression}"
        decoded[column.name] = expression
    arguments = []
    for composite in relation.composites:
        scope[f"_composite_{composite.field}"] = composite.cls
        inner = ", ".join(f"{attribute}={decoded.pop(name)}" for attribute, name in composite.parts)
        arguments.append(f"{composite.field}=_composite_{composite.field}({inner})")
    arguments += [f"{name}={expression}" for name, expression in decoded.items()]
    slots = () if hasattr(relation.entity, "__post_init__") else vars(relation.entity).get("__slots__", ())
    if set(slots) == {each.partition("=")[0] for each in arguments}:
        # A frozen class sets each field by a call; one with the same slots sets them three times as fast.
        scope["_Open"] = type("Open", (), {"__slots__": slots})
        arguments = ["e = _new(_Open)", *(f"e.{each}" for each in arguments), "e.__class__ = _cls", "return e"]
    else:
        arguments = [f"return _cls({', '.join(arguments)})"]
    made += [f"            {each}\n" for each in arguments]
    # Entering a try costs nothing; only a row that fails is examined column by column.
    decode_source = (
        f"def decode(r):\n    try:\n        if {_checks(relation, first)}:\n{''.join(made)}"
        "        failed = TypeError('a value of another type')\n"
        "    except _UNREADABLE as error:\n        failed = error\n    raise _damage(r, failed) from None\n"
    )
    scope |= {"_UNREADABLE": UNREADABLE, "_damage": functools.partial(_damage, relation)}

    exec(compile(encode_source + decode_source, f"<codec of {relation.name}>", "exec"), scope)  # noqa: S102
    names = (("ordinal",) if first else ()) + tuple(column.name for column in relation.columns)
    return Codec(
        relation,
        scope["encode"],
        scope["decode"],
        names,
        key_places=tuple(names.index(name) for name in relation.key),
        version_place=names.index("version") if relation.has("version") else -1,
    )
