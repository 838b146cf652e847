"""Validation of declared memories, and builder of their relations: columns, indexes and record class.

Every such relation has the same system columns beside the declared fields; a declared field with the name of a column
that places a record (its task, scope or session) is that column. Properties that a declaration can change later
(required fields, the values of an enum) are no constraints of the table, so that a change rewrites none.

Source: C-130 to C-146, K-058, K-060; docs/decisions/0160.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import keyword
import math
import re
import string
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from caliber.model.declared import MemoryCategory
from caliber.model.errors import InternalError, InvalidValue
from caliber.model.hints import did_you_mean
from caliber.model.trust import TrustLabel
from caliber.schema.derived import RecordHash, Tokens
from caliber.schema.erase import Erase, Layout, Packed, Redaction
from caliber.schema.memories import BUILT_IN, MemoryBinding
from caliber.schema.memory_definitions import camel, definition_of, memory_from, values_of
from caliber.schema.memory_types import (
    KEYS,
    OWN_INDEXES,
    Field,
    FieldType,
    History,
    IndexType,
    MemoryType,
    Retention,
    RetentionKind,
    index_faults,
)
from caliber.schema.relation import (
    INT_LEAST,
    AccessPath,
    Column,
    ColumnType,
    ForeignKey,
    Relation,
    Residence,
    Unique,
    blob,
    enum,
    instant,
    integer,
    json_,
    stamped,
    text,
    text_array,
    uuid_,
    version,
)
from caliber.schema.relations import BY_NAME
from caliber.schema.relations.storage import KEY as KEY
from caliber.schema.relations.storage import TABLE_PREFIX
from caliber.schema.traits import (
    ALWAYS_US,
    NEVER_US,
    Ends,
    Enters,
    Exported,
    Links,
    Pruned,
    Resident,
    Rights,
    Text,
    Times,
    Trust,
    Window,
)

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
"""Definitions come out of archives too, and names become those of columns and attributes."""
FLOAT_MOST: Final = 1.7976931348623157e308
"""Numbers are finite; a value below the least stands for NULL."""
ENUM_MOST: Final = 100
TABLE_CHARS: Final = 44
"""A table's name: PostgreSQL names its sequence by it and an ending, and has 63 bytes for that."""
INDEXED_TEXT_BYTES: Final = 2_000
"""The longest text of an indexed field: PostgreSQL indexes none that is much longer."""

_COLUMN: Final = Residence.COLUMN
_NUMBERS: Final = (ColumnType.FLOAT, ColumnType.INT)
_BINDING: Final[Mapping[str, FieldType]] = {
    "trajectory_id": FieldType.UUID,
    "scope_id": FieldType.UUID,
    "session_id": FieldType.UUID,
    "created_at": FieldType.TIMESTAMP,
    "updated_at": FieldType.TIMESTAMP,
    "occurred_at": FieldType.TIMESTAMP,
    "trust": FieldType.ENUM,
    "token_count": FieldType.INT,
}
"""System columns that a declaration may name: they exist whether it does or not."""
_RESERVED: Final = frozenset(
    {
        KEY,
        "parent_id",
        "created_by",
        "visible_to",
        "content_hash",
        "fingerprint",
        "idempotency_key",
        "archived_at",
        "version",
        "ordinal",
    }
)
_OF_DATABASES: Final = frozenset({"xmin", "xmax", "cmin", "cmax", "ctid", "tableoid", "oid", "rowid"})
"""Column names that every table of PostgreSQL has, and SQLite's names of its row key."""
_LOOKED_UP: Final = frozenset({IndexType.BTREE, IndexType.HASH})


# --- faults of a declaration ----------------------------------------------------------------------


def is_own(memory: MemoryType) -> bool:
    """Return whether a declared memory becomes its own relation; others bind to a built-in one."""
    return memory.name not in BUILT_IN


def faults(memory: MemoryType) -> Iterator[tuple[str, str]]:
    """Yield the faults that keep a memory from being a relation: a field ("" for the memory itself) and the reason."""
    yield from field_faults(memory)
    for at, reason in index_faults(memory, OWN_INDEXES):
        yield memory.indexes[at].field, reason
    for at, reason in key_faults(memory):
        yield memory.key[at], reason


def field_faults(memory: MemoryType) -> Iterator[tuple[str, str]]:
    """Yield the same without faults of indexes, each reason as a continuation of the name."""
    if not _NAME.fullmatch(memory.name) or (memory.parent is not None and not _NAME.fullmatch(memory.parent)):
        yield "", "is no name: letters, digits and _, at most 48, not beginning with a digit"
    for item in memory.fields:
        reason = _fault_of_field(memory, item)
        if reason:
            yield item.name, reason
    if memory.shown is not None and (reason := _fault_of_shown(memory, memory.shown)):
        yield "shown", reason
    if (until := memory.retention.field) is not None and until not in _instants(memory):
        yield until, "is no timestamp of its own: retention is until the instant in such a field"
    try:
        embedded_field(memory)
    except InvalidValue as error:
        yield error.context["field"], error.context["reason"]


def key_faults(memory: MemoryType) -> Iterator[tuple[int, str]]:
    """Yield which fields of a declaration's key (the place among them) cannot be in one, and why."""
    own = {item.name: item for item in _own_fields(memory)}
    for at, name in enumerate(memory.key):
        item = own.get(name)
        if item is None:
            hint = did_you_mean(name, own, f"there are {', '.join(own) or 'none'}")
            yield at, f"{name} is no field of {memory.name} that a key could be made of; {hint}"
        elif name in memory.key[:at]:
            yield at, f"{name} is in the key twice"
        elif item.optional:
            yield at, f"{name} is optional, and a key has all of its fields"
        elif item.type not in KEYS:
            yield at, f"{name} is {item.type}; a key is made of {', '.join(KEYS)}"


def _fault_of_field(memory: MemoryType, item: Field) -> str:
    name = item.name
    if not _NAME.fullmatch(name):
        return "is no name: letters, digits and _, at most 48, not beginning with a digit"
    if _is_key(memory, item):
        if name != "id" and any(other.name == "id" for other in memory.fields):
            return "is the id of a record, as id is: leave out one of them"
        return "" if not item.optional else "is the id of a record: it is never without one"
    if name == "id":
        return "is the id of a record, which is a uuid; call yours otherwise"
    if name in _BINDING:
        expected = _BINDING[name]
        if item.type is not expected:
            return f"is kept of every record as {expected}; declare it as that, or call yours otherwise"
        if name == "trust" and set(item.values) - set(TrustLabel):
            return f"is kept of every record; its values are {', '.join(TrustLabel)}"
        return ""
    if name in _OF_DATABASES:
        return "is a name that databases keep for themselves; call it otherwise"
    if name in _RESERVED:
        return "is kept of every record by CALIBER itself; call yours otherwise"
    if keyword.iskeyword(name) or name.startswith("_"):
        return f"cannot be an attribute in Python; call it otherwise, such as {name.strip('_') or 'field'}_1"
    if len(item.values) > ENUM_MOST:
        return f"has more than {ENUM_MOST} values; make it a text"
    if any("\x00" in value for value in item.values):
        return "has a value with a NUL character"
    return ""


def _is_key(memory: MemoryType, item: Field) -> bool:
    return item.type is FieldType.UUID and item.name in ("id", f"{memory.name}_id")


def embedded_field(memory: MemoryType) -> str | None:
    """Return the text field whose vectors a memory declares, or None where it declares none.

    ``<text>_embedding`` is the vector of that text; ``embedding`` that of ``content``, or of the only text there is.

    Raises: InvalidValue (``field``, ``reason``) where it is not clear which text is meant.
    """
    vectors = [item for item in memory.fields if item.type is FieldType.EMBEDDING]
    if not vectors:
        return None
    if len(vectors) > 1:
        raise InvalidValue(
            field=vectors[1].name, reason=f"a memory has one embedding, and {vectors[0].name} is declared before"
        )
    texts = [item.name for item in memory.fields if item.type is FieldType.TEXT]
    name = vectors[0].name
    named = name.removesuffix("_embedding")
    for candidate in (named, "content"):
        if candidate in texts:
            return candidate
    if len(texts) == 1:
        return texts[0]
    if not texts:
        raise InvalidValue(field=name, reason="is the vector of a text, and there is no text field")
    choices = ", ".join(f"{item}_embedding" for item in texts)
    raise InvalidValue(field=name, reason=f"does not name its text; call it {choices}")


def searched_fields(memory: MemoryType) -> Iterator[str]:
    """Yield the fields whose words are searched: the embedded one, and texts with a word index."""
    embedded = embedded_field(memory)
    by_words = {index.field for index in memory.indexes if index.type is IndexType.GIN}
    for item in memory.fields:
        if item.name == embedded or item.name in by_words:
            yield item.name


def _content_field(memory: MemoryType) -> str | None:
    """Return the field that holds most of a record's text: the embedded one, ``content``, or the first that is free."""
    embedded = embedded_field(memory)
    if embedded is not None:
        return embedded
    indexed = {index.field for index in memory.indexes if index.type in _LOOKED_UP}
    texts = [item.name for item in memory.fields if item.type is FieldType.TEXT and item.name not in indexed]
    return "content" if "content" in texts else (texts[0] if texts else None)


# --- the relation ---------------------------------------------------------------------------------


def relation_name(name: str) -> str:
    """Return the name of a memory's relation and table; of one that is long, or taken, the end is a digest."""
    table = f"{TABLE_PREFIX}{name}"
    if len(table) <= TABLE_CHARS and table not in BY_NAME:
        return table
    return f"{table[: TABLE_CHARS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def bind_declared(memory: MemoryType, code: int, plural: str | None = None) -> MemoryBinding:
    """Return a declared memory bound to its own relation; the same object for the same declaration.

    Raises: InvalidValue for the faults of ``faults``.
    """
    return _bound(memory, code, plural or memory.name)


@functools.lru_cache(maxsize=512)
def _bound(memory: MemoryType, code: int, plural: str) -> MemoryBinding:
    for name, reason in faults(memory):
        raise InvalidValue(field=f"{memory.name}.{name}" if name else memory.name, reason=reason)
    names = {item.name: KEY for item in memory.fields if _is_key(memory, item)}
    names.setdefault("id", KEY)
    vectors = frozenset(item.name for item in memory.fields if item.type is FieldType.EMBEDDING)
    return MemoryBinding(
        _relation_of(memory, code, plural),
        memory,
        names,
        vectors,
        content=_content_field(memory),
        declared_columns=tuple(item.name for item in _own_fields(memory)),
    )


def _shown(memory: MemoryType) -> tuple[str, ...]:
    """Return the fields that windows show of a record: the main text last."""
    main = _content_field(memory)
    names = [each.name for each in _own_fields(memory) if each.name != main and each.type is not FieldType.BYTES]
    return (*names, *([] if main is None else [main]))


def _own_fields(memory: MemoryType) -> Iterator[Field]:
    """Yield the fields that become columns: not the key, the system columns and the vector."""
    for item in memory.fields:
        if not _is_key(memory, item) and item.name not in _BINDING and item.type is not FieldType.EMBEDDING:
            yield item


def _fault_of_shown(memory: MemoryType, template: str) -> str:
    fields = {item.name for item in _own_fields(memory) if item.type is not FieldType.BYTES}
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return f"is no text with fields in braces: {error}"
    named = [name for _, name, _, _ in parts if name is not None]
    wrong = next((name for name in named if name not in fields), None)
    if wrong is not None:
        return f"names {wrong or 'no field'}; it may name {', '.join(sorted(fields))}"
    if not named or any(spec or conversion for _, _, spec, conversion in parts):
        return "names fields in braces, without more in them: {subject}: {content}"
    return ""


def _instants(memory: MemoryType) -> list[str]:
    return [item.name for item in _own_fields(memory) if item.type is FieldType.TIMESTAMP]


def _columns_of(memory: MemoryType) -> tuple[Column, ...]:
    looked_up = {index.field for index in memory.indexes if index.type in _LOOKED_UP}
    content = _content_field(memory)
    declared = (_column_of(memory, item, looked_up, content) for item in _own_fields(memory))
    return (*_system_columns(memory), *declared)


def _relation_of(memory: MemoryType, code: int, plural: str) -> Relation:
    looked_up = {index.field for index in memory.indexes if index.type in _LOOKED_UP}
    columns = _columns_of(memory)
    keys = [
        ForeignKey("trajectory_id", "trajectory", "trajectory_id", "cascade"),
        ForeignKey("scope_id", "scope", "scope_id", "cascade", alike="trajectory_id"),
        ForeignKey("session_id", "session", "session_id", "set null"),
    ]
    groups = ["trajectory_id", "scope_id", "session_id"]
    if memory.parent is not None:
        known = BUILT_IN.get(memory.parent)
        target = (relation_name(memory.parent), KEY) if known is None else (known.relation.name, known.relation.key[0])
        keys.append(ForeignKey("parent_id", *target, "cascade"))
        groups.append("parent_id")
    by_name = {column.name: column for column in columns}
    until = memory.retention.field
    searched, embedded = tuple(searched_fields(memory)), embedded_field(memory)
    texts = [column for column in columns if column.declared and column.type is ColumnType.TEXT]
    return Relation(
        name=relation_name(memory.name),
        plural=plural,
        entity=_entity_of(_shape_of(memory)),
        code=code,
        comment=f"The declared memory {memory.name}.",
        derived=(
            Tokens("token_count", tuple(item.name for item in texts)),
            RecordHash("content_hash", tuple(item.name for item in columns if item.declared)),
        ),
        erase=Erase(names=tuple(item.name for item in texts if item.residence is Residence.INTERNED)),  # looked up by
        links=Links(),
        rights=Rights(task="trajectory_id", readers="visible_to"),
        trust=Trust("trust"),
        by_id=True,
        exported=Exported.RECORDS,
        ordinal=True,
        versioned=True,
        history=memory.history is History.VERSIONS,
        resident=Resident(groups=tuple(groups)),
        key=(KEY,),
        columns=columns,
        uniques=(
            Unique(("idempotency_key",), where=(("idempotency_key", False),)),
            Unique(("fingerprint",), where=(("archived_at", True), ("idempotency_key", True), ("fingerprint", False))),
        ),
        foreign_keys=tuple(keys),
        times=Times(until=until),
        paths=tuple(
            [] if until is None else [AccessPath("list_expiring", (), (until,), where=((until, False),), limited=True)]
        )
        + tuple(
            AccessPath(
                f"list_by_{name.removesuffix('_id')}" if name in groups else f"list_by_{name}",
                (name,),
                ("ordinal",),
                where=((name, False),) if by_name[name].nullable else (),
                limited=True,
            )
            for name in dict.fromkeys((*groups, *(item.field for item in memory.indexes if item.field in looked_up)))
            if name in by_name
        ),
        text=Text(searched, embedded) if searched else None,
        active=("archived_at",),
        ends=Ends(
            Pruned.DELETED,
            archive="archived_at",
            recovered="archived_at",
            doubted=next((item.name for item in columns if item.name == "confidence" and item.type in _NUMBERS), None),
            together=("trajectory_id",) if memory.parent is None else ("trajectory_id", "parent_id"),
        ),
        window=Window(Enters.FOUND, template=memory.shown, fields=_shown(memory)),
    )


def _system_columns(memory: MemoryType) -> Iterator[Column]:
    yield uuid_(KEY)
    yield uuid_("trajectory_id", nullable=True, residence=Residence.INTERNED)
    yield uuid_("scope_id", nullable=True, residence=Residence.INTERNED)
    yield uuid_("session_id", nullable=True)
    if memory.parent is not None:
        yield uuid_("parent_id", nullable=True)
    yield stamped("created_at", residence=_COLUMN)
    yield stamped("updated_at", residence=_COLUMN)
    yield instant("occurred_at", nullable=True, residence=_COLUMN, resident_null=ALWAYS_US)
    # Kept with earlier contents: a record that two wrote in may go with one of the two.
    yield text("created_by", nullable=True, content=True, redact=Redaction.AUTHOR)
    yield text_array("visible_to", nullable=True, residence=Residence.INTERNED, redact=Redaction.PRINCIPALS)
    yield enum("trust", TrustLabel, residence=_COLUMN)
    yield integer("token_count", check=(0, None), residence=_COLUMN)
    yield blob("content_hash", length=32)
    yield blob(
        "fingerprint",
        length=32,
        nullable=True,
        per_record=True,
        redact=Redaction.EMPTIED,
        comment="of what makes two records the same statement",
    )
    yield text("idempotency_key", nullable=True, per_record=True, redact=Redaction.NEW_KEY)
    yield instant("archived_at", nullable=True, residence=_COLUMN, resident_null=NEVER_US)
    yield version()


def _column_of(memory: MemoryType, item: Field, looked_up: set[str], content: str | None) -> Column:
    options: dict[str, Any] = {"nullable": item.optional, "declared": True, "content": True}
    in_array = {**options, "residence": _COLUMN}
    match item.type:
        case FieldType.UUID:
            kept = Residence.INTERNED if item.name in looked_up else Residence.PACKED
            return Column(item.name, ColumnType.UUID, residence=kept, **options)
        case FieldType.TEXT:
            kept = Residence.PACKED
            if item.name == content:
                kept = Residence.TEXT
            elif item.name in looked_up:
                kept = Residence.INTERNED
            return Column(item.name, ColumnType.TEXT, residence=kept, **options)
        case FieldType.INT:
            null = INT_LEAST - 1 if item.optional else None
            return Column(item.name, ColumnType.INT, check=(INT_LEAST, None), resident_null=null, **in_array)
        case FieldType.FLOAT:
            bounds = (-FLOAT_MOST, FLOAT_MOST)
            below = -math.inf if item.optional else None
            return Column(item.name, ColumnType.FLOAT, check=bounds, resident_null=below, **in_array)
        case FieldType.BOOL:
            return Column(item.name, ColumnType.BOOL, resident_null=2 if item.optional else None, **in_array)
        case FieldType.TIMESTAMP:
            ends = item.name == memory.retention.field
            options["content"] = not ends  # to live longer is no other content
            null = (NEVER_US if ends else ALWAYS_US) if item.optional else None
            return Column(item.name, ColumnType.INSTANT, residence=_COLUMN, resident_null=null, **options)
        case FieldType.ENUM:
            # By its values as they come: another process may know more of them.
            members = values_of(memory.name, item.name, item.values)
            return Column(item.name, ColumnType.ENUM, enum=members, open=True, residence=Residence.INTERNED, **options)
        case FieldType.JSON:
            return json_(item.name, redact=Redaction.WORDS, **options)
        case FieldType.TEXTS:
            return Column(item.name, ColumnType.TEXT_ARRAY, **options)
        case FieldType.UUIDS:
            return Column(item.name, ColumnType.UUID_ARRAY, **options)
        case FieldType.BYTES:
            options["content"] = False  # windows show none, so no replay needs earlier ones
            raw = Packed(Layout.RAW)
            return Column(item.name, ColumnType.BYTES, residence=Residence.STORED, redact=raw, **options)
        case FieldType.EMBEDDING:
            raise InternalError("an embedding is no column")


# --- entities: generated classes that cannot be imported, and are pickled by their definition -------------------------


_PYTHON: Final[Mapping[ColumnType, Any]] = {
    ColumnType.UUID: uuid.UUID,
    ColumnType.INSTANT: datetime,
    ColumnType.TEXT: str,
    ColumnType.TEXT_ARRAY: tuple[str, ...],
    ColumnType.UUID_ARRAY: tuple[uuid.UUID, ...],
    ColumnType.INT: int,
    ColumnType.FLOAT: float,
    ColumnType.BOOL: bool,
    ColumnType.BYTES: bytes,
    ColumnType.JSON: Any,
}


def _shape_of(memory: MemoryType) -> MemoryType:
    """Return a memory reduced to what determines its record class: memories that differ elsewhere share their class."""
    return MemoryType(
        memory.name,
        MemoryCategory.EPISODIC,
        memory.fields,
        Retention(RetentionKind.PERSISTENT),
        memory.indexes,
        parent=memory.parent and "scope",
    )


@functools.lru_cache(maxsize=512)
def _entity_of(shape: MemoryType) -> type[Any]:
    definition, columns = definition_of(shape), _columns_of(shape)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _entity_again, (definition, {column.name: getattr(self, column.name) for column in columns})

    fields: list[Any] = []
    for column in columns:
        kind = column.enum if column.enum is not None else _PYTHON[column.type]
        default: dict[str, Any] = (
            {"default": 1} if column.name == "version" else {"default": None} if column.nullable else {}
        )
        made = kind | None if column.nullable and kind is not Any else kind
        shown = column.type is not ColumnType.BYTES  # which mean nothing to people, and may be many
        fields.append((column.name, made, dataclasses.field(kw_only=True, repr=shown, **default)))
    keys = {item.name for item in shape.fields if _is_key(shape, item)}
    namespace = {
        **{name: property(_key_of) for name in keys},
        "__reduce__": reduce,
        "__doc__": f"A record of the declared memory {shape.name}.",
        "__module__": __name__,
    }
    return dataclasses.make_dataclass(camel(shape.name), fields, frozen=True, slots=True, namespace=namespace)


def _key_of(record: Any) -> uuid.UUID:
    """The id of a record, by the name its declaration gives it."""
    key: uuid.UUID = getattr(record, KEY)
    return key


def _entity_again(definition: str, values: dict[str, Any]) -> Any:
    return _entity_of(memory_from(definition))(**values)
