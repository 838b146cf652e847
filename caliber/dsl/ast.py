"""Syntax tree nodes of a ``.caliber`` file, with their positions.

Two trees are equal when they have the same content; positions do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TypeAlias

from caliber.dsl.source import SourceSpan
from caliber.model.lazy_dataclass import dataclass

_NOWHERE = SourceSpan(0, 0)


@dataclass(frozen=True, slots=True)
class Word:
    """A name or a dotted path of names: ``persistent``, ``storage.path``."""

    text: str
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A text in quotes, without them and with its escapes resolved."""

    value: str
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written, so that it is printed as it was written."""

    text: str
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)

    @property
    def value(self) -> int | float:
        """The number it counts to."""
        return int(self.text) if self.is_whole else float(self.text)

    @property
    def is_whole(self) -> bool:
        """True if it was written without a fraction or an exponent."""
        return self.text.lstrip("+-").isdigit()


@dataclass(frozen=True, slots=True)
class Duration:
    """A time, such as ``30m``, and its milliseconds."""

    text: str
    ms: int = field(compare=False)
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A word with arguments: ``top_k(10)``."""

    name: Word
    arguments: tuple[Value, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Followed:
    """A word with a colon and its argument: ``compress_on: task_end``."""

    name: Word
    value: Value
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple[Value, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """A name in a table and its value."""

    key: Word | Text
    value: Value
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class NamedValues:
    """Names and values between braces, with commas."""

    pairs: tuple[Pair, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison, such as ``confidence > 0.5``."""

    left: Value
    operator: str
    right: Value
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Joined:
    """Conditions that all hold (``and``) or of which one holds (``or``); at least two."""

    operator: str
    conditions: tuple[Value, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


Value: TypeAlias = Word | Text | Number | Duration | Call | Followed | Items | NamedValues | Compared | Joined


@dataclass(frozen=True, slots=True)
class Setting:
    """``key: value``."""

    key: Word
    value: Value
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Section:
    """``key { … }`` inside a definition."""

    key: Word
    entries: tuple[Entry, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rule:
    """``on trigger: [actions]``."""

    trigger: Word | Call
    actions: Items
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


Entry: TypeAlias = Setting | Section | Rule


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition such as ``memory NAME { … }``; ``into`` is an injection's target, ``name`` is empty for ``config``.

    ``whole`` is false when some of its entries did not parse: a missing entry may have been among them.
    """

    kind: str
    name: Word | None
    entries: tuple[Entry, ...]
    into: Word | None = None
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)
    whole: bool = field(default=True, compare=False, repr=False)

    def settings(self, key: str) -> Iterator[Setting]:
        """Yield the settings of a key, of which all but the first are one too many."""
        return (entry for entry in self.entries if isinstance(entry, Setting) and entry.key.text == key)


@dataclass(frozen=True, slots=True)
class Include:
    """``include "other.caliber"``."""

    path: Text
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)


Item: TypeAlias = Definition | Include


@dataclass(frozen=True, slots=True)
class Program:
    """One file."""

    version: Text
    items: tuple[Item, ...]
    span: SourceSpan = field(default=_NOWHERE, compare=False, repr=False)

    def definitions(self, kind: str) -> Iterator[Definition]:
        """Yield the definitions of a kind, in their order."""
        return (item for item in self.items if isinstance(item, Definition) and item.kind == kind)
