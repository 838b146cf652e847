"""Traits of a relation (text, validity, retention, trust, window, export): properties that generic code acts on.

Each is plain data that names columns. Generic code derives the rest (a mask over resident columns, an SQL condition, a
predicate, the effect of a policy), so that no rule is written twice. Source: design, section 3.
"""

from __future__ import annotations

import string
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from caliber.model.context import SectionType, SourceType
from caliber.model.declared import MemoryCategory
from caliber.model.events import EventType
from caliber.model.lazy_dataclass import dataclass

NEVER_US = 2**63 - 1
"""Stands for a missing end of validity in resident columns: later than any instant."""
NO_OFFSET_S = 100_000
"""The offset from UTC of records whose writer gave none, in memory: no clock is a day ahead."""
ALWAYS_US = -(2**63)
"""Stands for a missing start of validity in resident columns: earlier than any instant."""


@dataclass(frozen=True, slots=True)
class Text:
    """The texts of a record: the columns whose words are searched, and the one whose vectors are kept.

    ``head`` is prefixed to both: the subject or the speaker; records are found by that name. ``tokens`` counts a text
    that may be missing: only a record that has one can be found.
    """

    searched: tuple[str, ...]
    embedded: str | None = None
    head: str | None = None
    tokens: str | None = None

    @property
    def embedded_columns(self) -> tuple[str, ...]:
        """The columns that are embedded; none where no vectors are kept."""
        return () if self.embedded is None else tuple(name for name in (self.head, self.embedded) if name is not None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is named."""
        named = (*self.searched, self.embedded, self.head, self.tokens)
        return tuple(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Times:
    """The instant that a record tells of, and the time in which it holds.

    It tells of the first of ``happened`` that has a value. ``entered`` is the instant since when it can be found. It
    holds from ``since`` on, until before ``until``; no value is no bound. ``as_of``: that is valid time, so that a read
    may ask about another instant than now.
    """

    happened: tuple[str, ...] = ("occurred_at", "created_at")
    entered: str = "created_at"
    offset: str = "utc_offset_s"
    """The column, if there is one, of the offset from UTC that makes its day, in seconds; 0 in memory: unknown."""
    since: str | None = None
    until: str | None = None
    as_of: bool = False

    @property
    def bounds(self) -> tuple[str, ...]:
        """The columns of instants at which a record begins or ceases to hold."""
        return tuple(name for name in (self.since, self.until) if name is not None)


AS_SAID: Final = Times()
"""A record tells of what its writer states; if unknown, of when it was written. It always holds."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A ``column`` that numbers the records of an ``owner``, found by ``key``.

    The owner's ``counter`` has the next number, its ``total`` how many records there are.
    """

    column: str
    owner: str
    key: str
    counter: str
    total: str


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Records that follow each other, a conversation: those ``by`` one owner, in the ``order`` of a column.

    ``speaker`` is the column that says who speaks where a text has no head. ``counted`` are the columns that number
    them within records that other columns refer to.
    """

    by: str
    order: str
    speaker: str
    counted: tuple[Counted, ...] = ()


class Mirror(StrEnum):
    """The form in which memory holds a relation: not at all, rows, the vectors of other records, or their spaces."""

    NONE = "none"
    ROWS = "rows"
    VECTORS = "vectors"
    SPACES = "spaces"


@dataclass(frozen=True, slots=True)
class Resident:
    """The residence of a relation in memory.

    ``groups`` are the columns that a mirror looks rows up by. ``framed``: it is in memory even where most records do
    not fit. ``evicted`` is the order in which its texts are evicted when memory is full: 1 is first.
    """

    form: Mirror = Mirror.ROWS
    groups: tuple[str, ...] = ()
    framed: bool = False
    evicted: int = 3


STORED: Final = Resident(Mirror.NONE)
"""Records are read from the database."""


class Place(StrEnum):
    """The part of a store that rows are: what it keeps, what is there once it is open, or how a database keeps it.

    DECLARATIONS say which relations there are. A copy has no rows of the DATABASE.
    """

    RECORDS = "records"
    OPENED = "opened"
    DECLARATIONS = "declarations"
    DATABASE = "database"


class Pruned(StrEnum):
    """The end that retention and policies make of a record whose time is over."""

    DELETED = "deleted"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Ends:
    """The ways in which a record is taken out of use.

    ``archive`` is the column that says since when it is not in use, ``supersede`` that of the id of what replaced it;
    ``pruned`` is what retention does: what it archives it takes once, what it deletes it takes in use or not.

    ``recovered`` is the column, empty in active records, that gets the instant of a recovery of the task to a
    checkpoint before the record. A record belongs to the task of its rights; without one, to the tasks that it was
    drawn from, and it leaves if it was drawn from no other. None where a recovery does not reach it.

    ``doubted`` is the column of a record's confidence. Records that are alike in the columns ``together`` may be summed
    up as one; of those with ``lasting``, a column and a value, others go by themselves. The sum is a record of
    ``summed``, or of their own relation.
    """

    pruned: Pruned
    archive: str | None = None
    supersede: str | None = None
    recovered: str | None = None
    doubted: str | None = None
    together: tuple[str, ...] = ()
    lasting: tuple[str, str] | None = None
    summed: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a record that retention deletes once it has been over for long enough.

    ``status`` is the column of its state, ``open`` are the states in which it is not over, ``since`` is the column with
    the instant of its end, empty until then. Such a relation is not mirrored, and no foreign key refers to it.
    """

    status: str
    open: tuple[StrEnum, ...]
    since: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that every store has in a relation, as the language calls it.

    ``names`` are pairs of a field and the column that it is called otherwise than. ``vectors`` are fields that stand
    for the record's vector. Records belong to a record of one of the memories ``parents``. ``stays`` says why
    no retention takes them.
    """

    name: str
    category: MemoryCategory = MemoryCategory.EPISODIC
    names: tuple[tuple[str, str], ...] = ()
    vectors: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    stays: str | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The references to a record that no foreign key declares: edges that end at it, and counted ``uses`` of it."""

    uses: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    """The records of ``relation`` that a record sums up: it is deleted when one of them is deleted or changed.

    They are of one owner, ``by``, and have a ``number`` from ``first`` to ``last``.
    """

    relation: str
    by: str
    number: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Trust:
    """The ``column`` of the trust label of a record's content.

    ``least_of`` is a relation whose records refer to these: no record is trusted more than one that refers to it.
    """

    column: str
    least_of: str | None = None


@dataclass(frozen=True, slots=True)
class Owned:
    """The owner of a record. ``by`` is the field with the entity that started it: a user's records are its own.

    ``user`` is the column with the id of the user that a record is for, where another started it; ``agent`` the one
    with that of the agent that works on it, which sees it too.
    """

    by: str
    user: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights to a record: to see it, and to change it.

    ``task`` is the column with the task of a record, whose owner alone may see it; None if it belongs to none.
    ``readers`` lists the readers of a record; None if every principal who may see its task may see it. ``owner`` is
    the owner of a record that is neither its task's nor everybody's. ``ends`` are references to the records that it
    links: it is seen where they are. ``kind`` is the relation whose rights an agent needs to read a record; None for
    its own, or none at all. ``author`` is the column with the author of a record, who alone may correct it; None if
    every writer may. ``grantable``: one record of a hidden task may be granted to a reader by itself. ``private``: only
    the creator of a record gets its events.
    """

    task: str | None = None
    readers: str | None = None
    owner: Owned | None = None
    ends: tuple[str, ...] = ()
    kind: str | None = None
    author: str | None = None
    grantable: bool = False
    private: bool = False
    listed: bool = field(init=False)
    """True if the readers of a record alone, and no task, decide who may see it."""
    hides: bool = field(init=False)
    """True if a record may be hidden from some principal."""

    def __post_init__(self) -> None:
        hides = not (self.readers is None and self.task is None and self.owner is None and not self.ends)
        object.__setattr__(self, "hides", hides)
        object.__setattr__(self, "listed", self.readers is not None and self.task is None)


EVERYBODYS: Final = Rights()
"""Records that no right hides."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a record: ``retrieved`` is the event of one that ``get`` returned, if its use counts.

    ``importance`` is the column with its importance, 1 to 10; None if all are equal.
    """

    retrieved: EventType | None = None
    importance: str | None = None


UNCOUNTED: Final = Use()
"""Records whose use is not counted, all equally important."""


@dataclass(frozen=True, slots=True)
class Grounded:
    """The statement that a record makes, and what it rests on.

    ``kinds`` are a column and the values of it that make a record a statement; None: every record is one. ``subject``
    are the columns of the thing that it is about, ``confidence`` is the column of its confidence, ``since`` that of the
    instant since when it has been known. It rests on its sources if one of the columns ``sources`` has a value;
    ``given`` is a column, and a value with which it needs none. ``decides`` is a column, and the value of it that makes
    a statement a decision: those of two agents about one subject are compared as they are written.
    """

    since: str
    sources: tuple[str, ...]
    subject: tuple[str, ...] = ()
    confidence: str | None = None
    kinds: tuple[str, tuple[str, ...]] | None = None
    given: tuple[str, str] | None = None
    decides: tuple[str, str] | None = None

    def is_decision(self, record: Any) -> bool:
        """Return whether a record is a decision."""
        return self.decides is not None and bool(getattr(record, self.decides[0]) == self.decides[1])


FACTS: Final = Grounded(
    since="created_at",
    sources=("source_turn",),
    confidence="confidence",
    kinds=("artifact_type", ("fact",)),
    given=("extraction_method", "user_provided"),
)
"""Artifacts that are facts rest on the turn that they were extracted from, unless a user stated them."""

NOTES: Final = Grounded(
    since="created_at",
    sources=("source_trajectory_ids",),
    subject=("entity", "entity_type"),
    confidence="confidence",
    decides=("note_type", "decision"),
)
"""Notes rest on the tasks that they were drawn from."""


class Exported(StrEnum):
    """The default of ``caliber export``: write the records always, or on request; both can be loaded."""

    RECORDS = "records"
    ON_REQUEST = "on request"


class Enters(StrEnum):
    """The reason why a record enters a window that no rule governs.

    It is a part of the CONVERSATION; or it belongs to the window's TASK, or to an ancestor; or it is KNOWLEDGE, which
    belongs to no task: without a query the newest of it enters. FOUND records enter if a search finds them. Any record
    that a search finds can enter besides.
    """

    CONVERSATION = "conversation"
    TASK = "task"
    KNOWLEDGE = "knowledge"
    FOUND = "found"


@dataclass(frozen=True)
class Window:
    """The form of a relation's records in context windows.

    ``source`` is the number by which stored windows name them: 1 to 15, of its own and never changed; None of declared
    memories, which are numbered by their configuration. ``section`` is where they stand without rules, and the kind
    of section that a rule makes of them; RECALL: with what is recalled, and a rule's section is a custom one.
    """

    enters: Enters
    source: int | None = None
    section: SectionType = SectionType.RECALL
    source_type: SourceType = SourceType.MEMORY
    template: str | None = None
    """The text of a record, with columns in braces; None: each of ``fields`` that has a value, as a list."""
    fields: tuple[str, ...] = ()
    age: str | None = None
    """The column that grows with time; None: the instant since when a record can be found."""
    most: str | None = None
    """The knob of ``pcp.dosage`` that limits their number in one window; None if there is none."""
    whole: bool = False
    """Whether it enters whole or not at all."""
    brief: bool = False
    """Whether its text is a summary already, which no rule makes shorter."""

    @property
    def number(self) -> int:
        """The number by which stored windows name records of a built-in relation."""
        assert self.source is not None
        return self.source

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """The columns that make up the text, in order."""
        if self.template is None:
            return self.fields
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None)

    @cached_property
    def form(self) -> str:
        """The template with places by number, for ``str.format``."""
        return "".join(
            text.replace("{", "{{").replace("}", "}}") + ("" if name is None else "{}")
            for text, name, _, _ in string.Formatter().parse(self.template or "")
        )
