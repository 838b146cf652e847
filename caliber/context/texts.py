"""Texts of a window: templates that render turns and records, and types for fixed, rendered and cut texts.

Records come in the form in which drivers store them: from the mirror during assembly, from stored content during
replay; both give the same text. Bytes that are not UTF-8 become replacement characters (C-451).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.conversation import TURNS
from caliber.kernels.tokens.counting import ELLIPSIS, Cut
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import Message
from caliber.resident.conversation import day_text
from caliber.resident.documents import INDENT, flat, indented, shown
from caliber.schema.relation import Column, ColumnType, Relation, Residence
from caliber.storage.compile.codec import UNREADABLE, damaged, decoder_of

DISPUTED_LEAD: Final = "[another record contradicts this] "
"""The text before a record whose conflict with another one is open: no cut at the end removes it."""
OUTDATED_LEAD: Final = "[may no longer hold] "
"""The text before what a recalled turn says, if some of it is a fact no longer."""
_SYSTEM: Final = "system"
_UNNAMED: Final = re.compile(r"[\[\]\s]+")


@dataclass(frozen=True, slots=True)
class FixedText:
    """A text that belongs to no record: instructions, persona, a custom section."""

    source: int
    section: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnText:
    """A turn in parts. ``calls`` holds (id, name, arguments) of the calls it makes."""

    role: str
    content: str
    name: str | None
    calls: tuple[tuple[str, str, str], ...]
    call_id: str | None
    thinking: tuple[dict[str, Any], ...] = ()
    is_error: bool = False
    outdated: bool = False

    @property
    def label(self) -> str:
        """The text before the content."""
        label = self.role
        if self.name:
            label += f" {self.name}"
        if self.call_id:
            label += f" [{self.call_id}]"
        if self.is_error:
            label += " (error)"
        return flat(label) + ": "

    @property
    def text(self) -> str:
        """The turn as it reads in the window's text."""
        thoughts = [indented(f"[{each['type']}] {each.get('thinking', '')}") for each in self.thinking]
        return "\n".join([self.label + self._said, *thoughts])

    @property
    def has_parts(self) -> bool:
        """True for a turn that reads otherwise than as its role, name and content."""
        parts = self.calls or self.call_id is not None or self.thinking or self.is_error
        return bool(parts) or not self.content.isprintable()

    @property
    def _said(self) -> str:
        """The content and the calls, without the thoughts before them."""
        text = indented(self.content)
        for at, (call_id, name, arguments) in enumerate(self.calls):
            lead = "\n" if at or self.content else ""
            text += lead + indented(f"[call {call_id}] {name}({arguments})")
        return text

    @property
    def speaker(self) -> str:
        """The speaker shown in a passage: the name, if there is one."""
        # The header of a passage is one line between brackets, whatever characters a speaker's name has.
        name = _UNNAMED.sub(" ", self.name or "").strip()
        if self.role == "tool":
            return f"tool {name}" if name else "tool"
        return name or self.role

    @property
    def line(self) -> str:
        """The turn as a line of a passage, one that is not its first."""
        return f"{self.speaker}: {OUTDATED_LEAD * self.outdated}{self._said}"

    def cut(self, text: str) -> TurnText:
        """Return the turn of which only ``text`` is shown, a part of how it reads."""
        return replace(self, content=text[len(self.label) :].replace(INDENT, "\n"), thinking=())

    def message(self) -> Message:
        """Return the turn as a message; of role ``system`` as one of a user: its writer may be any user, or a file.

        The system message of a window is its context, which the program and its configuration state.
        """
        calls = tuple(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in self.calls
        )
        if self.role == _SYSTEM:
            return Message("user", self.content, self.name or _SYSTEM, self.call_id, calls)
        return Message(self.role, self.content, self.name, self.call_id, calls, self.thinking, self.is_error)


def turns_shown_as(message: Message) -> Iterator[TurnText]:
    """Yield the turns that ``TurnText.message`` shows as a message: one of a user, or of role ``system``."""
    calls = tuple((each["id"], each["function"]["name"], each["function"]["arguments"]) for each in message.tool_calls)
    shown_as = TurnText(
        message.role, message.content, message.name, calls, message.tool_call_id, message.thinking, message.is_error
    )
    yield shown_as
    if message.role == "user" and message.name:
        for name in (None, message.name) if message.name == _SYSTEM else (message.name,):
            yield replace(shown_as, role=_SYSTEM, name=name)


@dataclass(slots=True)
class RenderedTexts:
    """The texts of a window, by place in the canonical order.

    ``texts`` holds at least the included texts, as they enter; ``whole`` the cut ones before the cut; ``parts`` gives
    turns in parts, for messages; ``cut_turns`` the turns that were cut; ``cuts`` the position of each cut;
    ``shortened`` the texts that were abridged by their rule, or are excerpts of a recalled turn, before any cut.
    """

    texts: dict[int, str]
    parts: Callable[[Sequence[int]], list[TurnText]]
    whole: dict[int, str] = field(default_factory=dict)
    cut_turns: dict[int, TurnText] = field(default_factory=dict)
    cuts: dict[int, Cut] = field(default_factory=dict)
    shortened: dict[int, Cut] = field(default_factory=dict)
    speakers: dict[int, str] = field(default_factory=dict)
    """The speaker of each line of a passage."""
    passages: Callable[[NDArray[np.int64]], list[tuple[str, str]]] | None = None
    """Gives recalled turns by their rows as lines, each after how it begins: the speaker."""
    records: Callable[[int, list[int]], list[str]] | None = None
    """Gives records of a source by their rows, as they read."""
    query: str | None = None
    """The query that compressed texts are to answer."""

    def cut(self, place: int, cut: Cut) -> None:
        """Let a text enter cut."""
        self.whole[place] = whole = self.texts[place]
        self.texts[place] = cut.of(whole)
        self.cuts[place] = cut

    def uncut(self) -> None:
        """Take back all cuts."""
        self.texts.update(self.whole)
        self.whole.clear()
        self.cut_turns.clear()
        self.cuts.clear()

    def is_silent(self, place: int) -> bool:
        """Return whether a text is a turn that was cut, and nothing of its content is left."""
        turn = self.cut_turns.get(place)
        return turn is not None and not turn.content.removesuffix(ELLIPSIS).strip()

    def turns(self, places: Sequence[int]) -> list[TurnText]:
        """Return turns as they enter, in parts."""
        out = self.parts(places)
        return [self.cut_turns.get(place, turn) for place, turn in zip(places, out, strict=True)]


def turn_text(
    content: bytes,
    role: str,
    name: str | None,
    calls: str,
    call_id: str | None,
    thinking: str | None = None,
    is_error: int | None = None,
) -> TurnText:
    """Return a turn in parts; ``calls`` and ``thinking`` are JSON as stored."""
    try:
        parsed = tuple((call[0], call[1], call[2]) for call in json.loads(calls)) if calls != "[]" else ()
        thoughts = tuple({**each, "type": each["type"]} for each in json.loads(thinking)) if thinking else ()
    except UNREADABLE:
        raise damaged("the tool calls or thoughts of a stored turn are damaged", relation=TURNS) from None
    return TurnText(role, shown(content), name, parsed, call_id, thoughts, bool(is_error))


def render_columns(relation: Relation, columns: Sequence[Sequence[Any]]) -> list[str]:
    """Return the texts of some records, by the template of their relation; further lines are indented.

    ``columns`` has the values of each column that windows show, as drivers keep them.
    """
    window = relation.in_windows
    if window.template is None:
        return [_listed(relation, values) for values in zip(*columns, strict=True)]
    form = window.form.format
    kinds = map(relation.column, window.shown)
    texts = [_texts_of(kind, values) for kind, values in zip(kinds, columns, strict=True)]
    made = [form(*values) for values in zip(*texts, strict=True)]
    return [text if text.isprintable() else indented(text) for text in made]


def _listed(relation: Relation, values: Sequence[Any]) -> str:
    """Return a record as a list item: its fields with values."""
    rendered = [
        (column, indented(_plain(column, value)))
        for column, value in zip(map(relation.column, relation.in_windows.shown), values, strict=True)
        if value is not None
    ]
    if len(rendered) == 1 and rendered[0][0].residence is Residence.TEXT:
        return f"- {rendered[0][1]}"
    return "- " + "\n  ".join(f"{column.name}: {value}" for column, value in rendered)


def _texts_of(column: Column, values: Sequence[Any]) -> list[str]:
    """Return the values of one column as a template shows them."""
    if column.type is ColumnType.INT and None not in values:
        return list(map(str, values))
    is_bytes = column.type is ColumnType.BYTES
    return [
        value if type(value) is str else shown(value) if value is None or is_bytes else _plain(column, value)
        for value in values
    ]


def _plain(column: Column, stored: Any) -> str:
    decode = decoder_of(column)
    value = stored if decode is None else decode(stored)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bool) or column.type is ColumnType.BOOL:
        return "true" if value else "false"
    if column.type is ColumnType.JSON:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    return str(value)


def about_line(content: bytes | str | None) -> str:
    """Return a fact about the user as a line under the header that names the user."""
    return indented(f"- {shown(content)}")


def passage_lead(line: str, speaker: str, day: int) -> str:
    """Return the first line of a passage: its speaker and day."""
    return f"[{speaker}, {day_text(day)}] {line[len(speaker) + 2 :]}"


def text_of_content(relation: Relation, content: Mapping[str, Any]) -> str:
    """Return the text of a record from its content columns; a field that no longer exists is left out."""
    return render_columns(relation, [[content.get(name)] for name in relation.in_windows.shown])[0]


def turn_of_content(content: Mapping[str, Any]) -> TurnText:
    """Return a turn from its content columns."""
    fields = ("content", "role", "name", "tool_calls", "tool_call_id", "thinking", "is_error")
    return turn_text(*(content[name] for name in fields))
