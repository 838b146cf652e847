"""Classes ``Relation`` and ``Column``: the declaration of a table with keys, access paths and resident columns.

The plan compiler (``caliber.storage``) turns a relation into DDL and statements, the mirrors (``caliber.resident``)
into columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from caliber.model.errors import InternalError
from caliber.model.lazy_dataclass import dataclass
from caliber.model.trajectory import OutcomeStatus
from caliber.schema.derived import Derived, Rule, Tokens
from caliber.schema.erase import Erase, Packed, Redaction
from caliber.schema.traits import (
    AS_SAID,
    EVERYBODYS,
    STORED,
    UNCOUNTED,
    Block,
    Ends,
    Exported,
    Finished,
    Grounded,
    Links,
    Memory,
    Mirror,
    Neighbours,
    Place,
    Pruned,
    Resident,
    Rights,
    Text,
    Times,
    Trust,
    Use,
    Window,
)

EnumClass = type[StrEnum]
INT_LEAST: Final = -(2**63) + 1
"""The least whole number of a field: the one below stands for no value."""


class ColumnType(StrEnum):
    """The type of a column; each backend maps it to its own type (design, section 3)."""

    UUID = "uuid"
    INSTANT = "instant"
    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    BYTES = "bytes"
    JSON = "json"
    TEXT_ARRAY = "text[]"
    UUID_ARRAY = "uuid[]"
    ENUM = "enum"
    VECTOR = "vector"


class Residence(StrEnum):
    """The place of a mirrored column in memory.

    PACKED in the row's record; COLUMN besides as an array; FLAG besides as an array that says whether it is
    set; INTERNED besides as an array of codes of its distinct values; TEXT apart, evicted first; STORED nowhere: it is
    read from the store with the record, and is no field of filters.
    """

    PACKED = "packed"
    COLUMN = "column"
    FLAG = "flag"
    INTERNED = "interned"
    TEXT = "text"
    STORED = "stored"


class Initial(StrEnum):
    """The value of a column in rows that are loaded without it: NOW is the instant of the load."""

    NOW = "now"


@dataclass(frozen=True, slots=True)
class Like:
    """A column that begins as another ``column``."""

    column: str


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``check`` is a closed numeric range; ``resident_null`` stands for NULL in the mirror's array.

    ``open``: other texts than the members of ``enum`` may stand there too, and read as texts. ``declared``: a user's,
    whose declaration may change, so that the database checks neither whether there is a value nor which member it is.
    ``default``: the value of rows that were written without the column; ``()`` is an empty list.
    """

    name: str
    type: ColumnType
    nullable: bool = False
    enum: EnumClass | None = None
    check: tuple[float | None, float | None] | None = None
    length: int | None = None
    json_encode: Callable[[Any], Any] | None = None
    json_decode: Callable[[Any], Any] | None = None
    residence: Residence = Residence.PACKED
    resident_null: int | float | None = None
    initial: Initial | Like | str | None = None
    """The value of loaded rows that come without the column: a text is JSON; None where they must have it."""
    content: bool = False
    open: bool = False
    declared: bool = False
    default: str | int | float | bool | tuple[()] | None = None
    identity: bool = False
    """Whether it holds the id of a user or agent: two that are merged have one id from then on."""
    per_record: bool = False
    """Whether a value belongs to one record alone: one that sums up others begins without."""
    derived_from: str | None = None
    """The relation whose records a value follows from: a reader who may not read those gets it as without any."""
    redact: Redaction | Packed | None = None
    """How the column is redacted; None: by its type. For bytes and JSON it must be stated."""
    comment: str = ""

    @property
    def has_members(self) -> bool:
        """True for JSON that an entity holds as it is stored: filters can name its members."""
        return self.type is ColumnType.JSON and self.json_decode in (_unchanged, as_object)

    @property
    def redaction(self) -> Redaction | Packed:
        """The way the column loses a subject."""
        if self.redact is not None:
            return self.redact
        if self.type is ColumnType.UUID and not self.nullable:
            return Redaction.NOTHING  # its record goes
        return _REDACTED.get(self.type, Redaction.NOTHING)


ORDINAL: Final = Column("ordinal", ColumnType.INT)
"""The column that numbers the rows of a relation with ``ordinal``."""
_REDACTED = {
    ColumnType.TEXT: Redaction.WORDS,
    ColumnType.TEXT_ARRAY: Redaction.WORDS,
    ColumnType.UUID: Redaction.IDS,
    ColumnType.UUID_ARRAY: Redaction.IDS,
}


@dataclass(frozen=True, slots=True)
class Composite:
    """An entity field that is spread over columns: ``parts`` maps the class's attributes to columns."""

    field: str
    cls: type[Any]
    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A reference. ``on_delete`` is ``cascade`` for owned rows, ``set null`` for mere mentions (K-038).

    ``alike`` is a column that a row and the one it refers to both have, with equal values.
    """

    column: str
    relation: str
    target: str
    on_delete: str
    alike: str | None = None
    locked_first: bool = False
    """Whether the referenced row is locked before the referring one, as a deletion does."""
    frees: tuple[str, StrEnum, StrEnum] | None = None
    """A column and two of its values: a row that loses the reference gets the second value in place of the first."""


@dataclass(frozen=True, slots=True)
class Unique:
    """A uniqueness rule, partial when ``where`` names columns and whether they must be null."""

    columns: tuple[str, ...]
    where: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class AccessPath:
    """A way callers list rows: equality on ``by``, in ``order``; an index serves it.

    ``where`` makes the index partial: pairs of a column and whether it must be null, or the value it must have.
    ``descending`` turns the order.
    """

    name: str
    by: tuple[str, ...]
    order: tuple[str, ...]
    where: tuple[tuple[str, bool | StrEnum], ...] = ()
    descending: bool = False
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """One durable kind of record.

    ``ordinal`` adds a never reused integer that names a row shortly (change records, window records).
    """

    name: str
    plural: str
    entity: type[Any]
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    code: int
    comment: str
    derived: tuple[Derived, ...] | None = field(kw_only=True)
    """The columns that follow from others, and by which rule; None where every value is a writer's own."""
    erase: Erase | None = field(kw_only=True)
    """How a subject is found in the records; None where they hold nothing of anybody, or go with others."""
    links: Links | None = field(kw_only=True)
    """The references that may end at a record without a foreign key; None where none does."""
    trust: Trust | None = field(kw_only=True)
    """The trust label of the content; None where the relation holds no content."""
    exported: Exported | None = field(kw_only=True)
    """Whether records are exported and loaded; None where the store writes them, or they mean nothing elsewhere."""
    rules: tuple[Rule, ...] = ()
    """Rules between columns of one record."""
    memory: Memory | None = None
    """The memory that the language exposes for it; None for a declared one, and where there is none."""
    resident: Resident = STORED
    """Its form in resident memory."""
    place: Place = Place.RECORDS
    """The part of a store that its rows are."""
    purges: bool = False
    """Whether a new row means that others were erased, so that memory must drop them."""
    neighbours: Neighbours | None = None
    """The records that follow each other; None where each stands alone."""
    block: Block | None = None
    """The records that one of these sums up."""
    ordinal: bool = False
    in_order: bool = False
    """Whether ordinals are taken one by one: of two rows the later one has the higher. Costs a statement an insert."""
    versioned: bool = False
    history: bool = True
    """Whether what a record was before a write stays for replay, and its writes are events."""
    composites: tuple[Composite, ...] = ()
    uniques: tuple[Unique, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    paths: tuple[AccessPath, ...] = ()
    auto_key: bool = False
    text: Text | None = None
    """The text of a record, by which searches find it; None if they do not."""
    times: Times = AS_SAID
    """The instant that a record tells of, and when it holds."""
    usage: Use = UNCOUNTED
    """How the use of a record counts."""
    active: tuple[str, ...] = ()
    """The columns that are empty in an active record; none if every record is active."""
    rights: Rights = EVERYBODYS
    """Who may see a record, and who may change it."""
    by_id: bool = False
    """Whether ``get`` finds a record by its id alone."""
    ends: Ends | None = None
    """How a record is taken out of use; None where neither retention nor a policy reaches it."""
    finished: Finished | None = None
    """When a record is over, and deleted after ``retention.windows_ms``; None where that limit reaches no record."""
    grounded: Grounded | None = None
    """What a record states, and what that rests on; None where records state nothing that could be wrong."""
    window: Window | None = None
    """How records appear in context windows; None if windows do not use them."""
    _by_name: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _hash: int = field(default=0, init=False, compare=False, repr=False)
    content_columns: tuple[str, ...] = field(default=(), init=False, compare=False, repr=False)
    """The columns that make up a window's text; a change of one keeps its old value for replay."""
    gone_at: str | None = field(default=None, init=False, compare=False, repr=False)
    """The column with the instant from which a record is gone: retention deletes it; None where none is."""

    def __post_init__(self) -> None:
        self._by_name.update({column.name: place for place, column in enumerate(self.columns)})
        object.__setattr__(self, "content_columns", tuple([column.name for column in self.columns if column.content]))
        if self.ends is not None and self.ends.pruned is Pruned.DELETED and not self.times.as_of:
            object.__setattr__(self, "gone_at", self.times.until)
        # Derived structures are cached per relation and looked up on every call. Of two declarations of one memory in a
        # process each has its own hash: else every look-up of one would compare it with the other, column by column.
        object.__setattr__(self, "_hash", hash((self.name, self.code, self.columns, self.history)))

    def __hash__(self) -> int:
        return self._hash

    def index(self, column: str) -> int:
        """Return the place of ``column`` in ``columns``."""
        return self._by_name[column]

    def column(self, name: str) -> Column:
        """Return the declaration of column ``name``."""
        return self.columns[self._by_name[name]]

    def has(self, name: str) -> bool:
        """Return whether the relation has a column ``name``."""
        return name in self._by_name

    @property
    def rule_of(self) -> dict[str, Derived]:
        """The rule of each derived column."""
        return {rule.column: rule for rule in self.derived or ()}

    @property
    def mirrored(self) -> bool:
        """True if resident memory holds it."""
        return self.resident.form is not Mirror.NONE

    @property
    def recovered(self) -> str | None:
        """The column that a recovery of the task marks; None where it reaches no record, or tells it by its number."""
        return None if self.ends is None else self.ends.recovered

    @property
    def archive(self) -> str | None:
        """The column with the instant from which a record is archived; None where none is."""
        return None if self.ends is None else self.ends.archive

    @property
    def author(self) -> str | None:
        """The column that names the author of a record; None where none does."""
        return next((each.name for each in self.columns if each.redaction is Redaction.AUTHOR), None)

    @property
    def embedded(self) -> str | None:
        """The column whose vectors are kept; None where no vectors are."""
        return None if self.text is None else self.text.embedded

    def task_of(self, record: Any) -> uuid.UUID | None:
        """Return the task of a record, or the last one that it was drawn from; None without."""
        if self.rights.task is not None:
            return getattr(record, self.rights.task)  # type: ignore[no-any-return]
        sources = () if self.erase is None or self.erase.sources is None else getattr(record, self.erase.sources)
        return sources[-1] if sources else None

    @property
    def follows(self) -> tuple[Column, ...]:
        """The columns whose values follow from records of other relations."""
        return tuple(column for column in self.columns if column.derived_from is not None)

    @property
    def linked(self) -> bool:
        """True if edges may end at a record."""
        return self.links is not None

    @property
    def in_windows(self) -> Window:
        """The form of records in context windows. Raises: InternalError for a relation that enters no window."""
        if self.window is None:
            raise InternalError(f"relation {self.name}: windows are not made of its records")
        return self.window

    @property
    def age(self) -> str:
        """The column that grows with time, by which windows take the newest."""
        return self.times.entered if self.window is None or self.window.age is None else self.window.age

    @property
    def tokens(self) -> str:
        """The column that counts the tokens of a record's text. Raises: InternalError where none does."""
        for rule in self.derived or ():
            if isinstance(rule, Tokens):
                return rule.column
        raise InternalError(f"relation {self.name}: no column counts tokens")


uuid_ = partial(Column, type=ColumnType.UUID)
instant = partial(Column, type=ColumnType.INSTANT)
stamped = partial(instant, initial=Initial.NOW)
"""An instant that is the present one in rows that are loaded without it."""
text = partial(Column, type=ColumnType.TEXT)
integer = partial(Column, type=ColumnType.INT)
real = partial(Column, type=ColumnType.FLOAT)
boolean = partial(Column, type=ColumnType.BOOL)
blob = partial(Column, type=ColumnType.BYTES)
text_array = partial(Column, type=ColumnType.TEXT_ARRAY)
uuid_array = partial(Column, type=ColumnType.UUID_ARRAY)
vector = partial(Column, type=ColumnType.VECTOR)


def enum(name: str, members: type[StrEnum], **options: Any) -> Column:
    return Column(name, ColumnType.ENUM, enum=members, **options)


def _unchanged(value: Any) -> Any:
    return value


def as_object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is. Raises: TypeError for other JSON."""
    if type(value) is not dict:
        raise TypeError("no JSON object")
    return value


def json_(
    name: str,
    encode: Callable[[Any], Any] = _unchanged,
    decode: Callable[[Any], Any] = _unchanged,
    **options: Any,
) -> Column:
    """A column of JSON; without ``encode`` and ``decode`` an entity holds the value as JSON has it."""
    return Column(name, ColumnType.JSON, json_encode=encode, json_decode=decode, **options)


def outcome_json(name: str, cls: type[Any], *ids: str) -> Column:
    """A column of JSON for a data class with a ``status`` and tuples of ``ids``; its other fields are plain."""
    names = list(cls.__annotations__)

    def encode(value: Any) -> dict[str, Any]:
        body = {each: getattr(value, each) for each in names}
        return body | {"status": value.status.value} | {each: list(map(str, body[each])) for each in ids}

    def decode(body: dict[str, Any]) -> Any:
        stored = {each: body[each] for each in names} | {"status": OutcomeStatus(body["status"])}
        return cls(**stored | {each: tuple(map(uuid.UUID, body[each])) for each in ids})

    return json_(name, encode, decode, nullable=True, redact=Redaction.WORDS)


def version() -> Column:
    """The optimistic lock of a mutable row."""
    return Column("version", ColumnType.INT, check=(1, None), residence=Residence.COLUMN)
