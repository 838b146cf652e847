"""Row codecs: generated functions that convert entities to database rows (``Row``) and back; canonical JSON.

A row is a tuple of the values that the driver stores (int, float, str, bytes, None) in column order, with the ordinal
first where the relation has one. Generated code is several times faster than a loop over columns.

Errors of corrupt values name relation, key and column, not the value. Code that converts stored values runs within
``blaming``, or catches ``UNREADABLE`` itself: a raw Python error becomes one that names the damaged row and column. An
error in a row that is sound is a bug of ours, and is passed on unchanged.
"""

from __future__ import annotations

import functools
import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from caliber.model.errors import StorageError
from caliber.model.process.interrupts import managed
from caliber.model.references import uuid_from_bytes
from caliber.model.time import EPOCH, from_us
from caliber.schema.relation import Column, ColumnType, Relation

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


class Codec:
    """``encode(entity, ordinal)`` gives the row, ``decode(row)`` the entity, or StorageError for a damaged row.

    Each is compiled when it is first needed: a process needs them of few relations.
    """

    encode: Callable[..., Row]
    decode: Callable[[Row], Any]

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.names = ("ordinal",) * relation.ordinal + tuple(column.name for column in relation.columns)
        self._places = {name: place for place, name in enumerate(self.names)}
        self.key_places = tuple(map(self.names.index, relation.key))
        self.version_place = self.names.index("version") if relation.has("version") else -1
        """The place of a row's version, or -1."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name not in ("encode", "decode"):
                raise AttributeError(name)
            source, scope = (_encoder if name == "encode" else _decoder)(self.relation)
            exec(compile(source, f"<codec of {self.relation.name}>", "exec"), scope)  # noqa: S102
            return self.__dict__.setdefault(name, scope[name])

    def index(self, column: str) -> int:
        """Return the place of a column in a row."""
        return self._places[column]

    def key_of(self, row: Row) -> tuple[Any, ...]:
        """Return the key of a row as the driver takes it."""
        if len(self.key_places) == 1:
            return (row[self.key_places[0]],)
        return tuple([row[place] for place in self.key_places])


codec_of = functools.cache(Codec)
"""The codec of a relation, which all stores share."""


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


def _encoder(relation: Relation) -> tuple[str, dict[str, Any]]:
    scope = {"_us": _us, "_dump": dump_json, "_join": lambda values: b"".join([value.bytes for value in values])}
    source_of = {column.name: f"e.{column.name}" for column in relation.columns}
    source_of |= {name: f"e.{each.field}.{attribute}" for each in relation.composites for attribute, name in each.parts}
    parts = ["ordinal"] * relation.ordinal
    for column in relation.columns:
        value = source_of[column.name]
        expression = _encode_expression(column, value, scope)
        is_optional = column.nullable and expression != value
        parts.append(f"None if {value} is None else {expression}" if is_optional else expression)
    return f"def encode(e, ordinal=None):\n    return ({', '.join(parts)},)\n", scope


def _decoder(relation: Relation) -> tuple[str, dict[str, Any]]:
    scope: dict[str, Any] = {
        **DECODING,
        "_cls": relation.entity,
        "_new": uuid.UUID.__new__,
        "_UUID": uuid.UUID,
        "_set_int": vars(uuid.UUID)["int"].__set__,
        "_set_safe": vars(uuid.UUID)["is_safe"].__set__,
        "_int": int.from_bytes,
        "_SAFE": uuid.SafeUUID.unknown,
        "_UNREADABLE": UNREADABLE,
        "_damage": functools.partial(_damage, relation),
    }
    first, decoded, made = int(relation.ordinal), {}, []
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
    source = (
        f"def decode(r):\n    try:\n        if {_checks(relation, first)}:\n{''.join(made)}"
        "        failed = TypeError('a value of another type')\n"
        "    except _UNREADABLE as error:\n        failed = error\n    raise _damage(r, failed) from None\n"
    )
    return source, scope


UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    struct.error,
    zlib.error,
)
"""Errors of Python, NumPy and Arrow for values that are none of their type."""

DAMAGES: Final = frozenset(("damaged", "corrupt"))
"""The ``reason`` of an error about unreadable data: found by us, and found by the database."""

ADVICE: Final = (
    "the other records are not touched by that: `caliber db check` lists all that is damaged; restore a backup, or"
    " remove what is damaged"
)
NO_INSTANT: Final = "a stored instant is damaged: no calendar has it"
_INT64: Final = 2**63
_STORED: Final[dict[ColumnType, Any]] = {
    ColumnType.UUID: bytes,
    ColumnType.INSTANT: int,
    ColumnType.TEXT: str,
    ColumnType.INT: int,
    ColumnType.FLOAT: (float, int),
    ColumnType.BOOL: int,
    ColumnType.BYTES: bytes,
    ColumnType.JSON: str,
    ColumnType.TEXT_ARRAY: str,
    ColumnType.UUID_ARRAY: bytes,
    ColumnType.ENUM: str,
    ColumnType.VECTOR: bytes,
}
_MULTIPLES: Final = {ColumnType.UUID_ARRAY: 16, ColumnType.VECTOR: 4}


def key_text(key: tuple[Any, ...]) -> str:
    """Return a key for people: ids as they are written everywhere else."""
    return " ".join(
        str(uuid.UUID(bytes=part))
        if isinstance(part, bytes) and len(part) == 16
        else part.hex()[:16]
        if isinstance(part, bytes)
        else str(part)
        for part in key
    )


def damaged(what: str, **context: Any) -> StorageError:
    """Return the error of something in a store that cannot be read."""
    return StorageError(f"{what}; {ADVICE}", reason="damaged", **context)


def last_of(page: Sequence[Row], after: int) -> int:
    """Return the ordinal that the next page begins after.

    Raises: StorageError for rows that come again: reading a damaged table page by page would never end.
    """
    last: Any = page[-1][0]
    if not isinstance(last, int) or last <= after:
        raise damaged("the stored rows are damaged: they are not in the order of their ordinals")
    return last


def is_of_type(column: Column, value: Any) -> bool:
    """Return whether a value, as a driver takes and gives it, has the type of a column."""
    if value is None:
        return column.nullable or column.declared
    return isinstance(value, _STORED[column.type])


def is_sound(column: Column, value: Any) -> bool:
    """Return whether a value, as a driver gives it, can be one of a column's."""
    if value is None or not is_of_type(column, value):
        return value is None and is_of_type(column, value)
    if column.type is ColumnType.UUID and len(value) != 16:
        return False
    if column.length is not None and column.type is ColumnType.BYTES and len(value) != column.length:
        return False
    if column.type in _MULTIPLES and len(value) % _MULTIPLES[column.type]:
        return False
    if column.type is ColumnType.BOOL and value not in (0, 1):
        return False
    if column.type is ColumnType.INT and not -_INT64 <= value < _INT64:
        return False
    if column.check is not None and column.type in (ColumnType.INT, ColumnType.FLOAT):
        least, most = column.check
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            return False
    return _is_read(column, value)


def _is_read(column: Column, value: Any) -> bool:
    decode = raw_decoder_of(column)
    try:
        read = value if decode is None else decode(value)
    except UNREADABLE:
        return False
    return column.type is not ColumnType.TEXT_ARRAY or all(isinstance(item, str) for item in read)


def faults(relation: Relation, row: Row, names: Sequence[str]) -> list[str]:
    """Return the columns of a row whose values are none."""
    by_name = {column.name: column for column in relation.columns}
    return [
        name
        for name, value in zip(names, row, strict=False)
        if (not is_sound(by_name[name], value) if name in by_name else not isinstance(value, int))
    ]


def damaged_row(relation: Relation, row: Row) -> StorageError | None:
    """Return the error that names a damaged row; None for a sound one."""
    names = (("ordinal",) if relation.ordinal else ()) + tuple(column.name for column in relation.columns)
    wrong = faults(relation, row, names)
    if not wrong:
        return None
    return _named(relation, key_of(relation, row), wrong)


def undated(relation: Relation, rows: Iterable[Row]) -> StorageError:
    """Return the error that names the first of these rows with a time that no calendar has."""
    names = relation.times.happened
    places = [1 + [column.name for column in relation.columns].index(name) for name in names]
    for row in rows:
        wrong = faults(relation, tuple(row[place] for place in places), names)
        if wrong:
            return _named(relation, key_of(relation, row), wrong)
    return damaged(NO_INSTANT)


def key_of(relation: Relation, row: Row) -> str:
    """Return the name of a row in messages: its key, or its ordinal where the key is damaged."""
    start = 1 if relation.ordinal else 0
    places = {column.name: (place, column) for place, column in enumerate(relation.columns, start)}
    key = [places[name] for name in relation.key if name in places]
    if start and not all(is_sound(column, row[place]) for place, column in key):
        return f"ordinal {row[0]}"
    return key_text(tuple(row[place] for place, _ in key))


def _named(relation: Relation, key: str, wrong: Sequence[str]) -> StorageError:
    named = ", ".join(wrong)
    values = "is no value of its type" if len(wrong) == 1 else "are no values of their types"
    return damaged(
        f"a stored {relation.name} is damaged ({key}: {named} {values})",
        relation=relation.name,
        key=key,
        columns=tuple(wrong),
    )


def damaged_column(column: Column) -> StorageError:
    """Return the error of a value that is read alone."""
    return damaged(f"a stored {column.name} is damaged: it is no value of its type", columns=(column.name,))


def stored_instant(value: Any) -> datetime:
    """Return an instant that memory keeps as it is stored. Raises: StorageError for one that no calendar has."""
    try:
        return from_us(value)
    except UNREADABLE:
        raise damaged(NO_INSTANT) from None


@managed
def blaming(relation: Relation, rows: Iterable[Row] | Callable[[], Iterable[Row]]) -> Iterator[None]:
    """Raise StorageError for an error caused by damage in one of these rows; pass on all others."""
    try:
        yield
    except UNREADABLE:
        for row in rows() if callable(rows) else rows:
            found = damaged_row(relation, row)
            if found is not None:
                raise found from None
        raise


def decode_expression(column: Column, value: str, scope: dict[str, Any]) -> str:
    """Return the expression that decodes ``value``; names it needs beside DECODING are added to ``scope``."""
    kind = column.type
    if kind is ColumnType.UUID:
        return f"_uuid({value})"
    if kind is ColumnType.INSTANT:
        return f"_epoch + _microsecond * {value}"
    if kind is ColumnType.BOOL:
        return f"bool({value})"
    if kind is ColumnType.ENUM:
        assert column.enum is not None
        scope[f"_members_{column.name}"] = {member.value: member for member in column.enum}
        return f"_members_{column.name}.get({value}, {value})" if column.open else f"_members_{column.name}[{value}]"
    if kind is ColumnType.TEXT_ARRAY:
        return f"(() if {value} == '[]' else tuple(_load({value})))"
    if kind is ColumnType.UUID_ARRAY:
        return f"(() if {value} == b'' else _split({value}))"
    if kind is ColumnType.JSON:
        scope[f"_dec_{column.name}"] = column.json_decode
        return f"_dec_{column.name}(_load({value}))"
    return value


DECODING: dict[str, Any] = {
    "_epoch": EPOCH,
    "_microsecond": timedelta(microseconds=1),
    "_uuid": uuid_from_bytes,
    "_load": json.loads,
    "_split": lambda raw: tuple(uuid_from_bytes(raw[at : at + 16]) for at in range(0, len(raw), 16)),
}
"""The names of the expressions."""


@functools.cache
def raw_decoder_of(column: Column) -> Callable[[Any], Any] | None:
    """Return the function that decodes a stored value, or None where it is the entity's; damage raises anything."""
    scope = dict(DECODING)
    expression = decode_expression(column, "value", scope)
    if expression == "value":
        return None
    decode: Callable[[Any], Any] = eval(f"lambda value: {expression}", scope)  # noqa: S307
    return decode
