"""Accumulator of the compiler: builds nested configuration data with value positions, and collects faults.

Source: C-122, C-172, C-173.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

from caliber.config.faults import ConfigWarning
from caliber.dsl import ast
from caliber.dsl.scan import FAULTS_MAX
from caliber.dsl.source import Source, SourceSpan
from caliber.model.errors import ProgramFault
from caliber.model.lazy_dataclass import dataclass

_CONSTANTS: Final = {"true": True, "false": False, "null": None}

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """The condition of a rule, where it stands."""

    rule: int
    source: Source
    condition: ast.Value


@dataclass(slots=True)
class Building:
    """The data so far, the position of each value, faults and warnings."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, tuple[Source, SourceSpan]] = field(default_factory=dict)
    faults: list[ProgramFault] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)
    filters: list[Filter] = field(default_factory=list)
    unsure: dict[int, set[str]] = field(default_factory=dict)
    """Fields of each memory whose type does not parse: they cause no further faults."""

    def wrong(self, source: Source, span: SourceSpan, reason: str, **more: Any) -> None:
        """Record a fault."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(source.fault(span, reason, **more))

    def doubt(self, source: Source, span: SourceSpan, reason: str) -> None:
        """Record a warning: valid, but probably a mistake."""
        if len(self.warnings) < FAULTS_MAX:
            self.warnings.append(source.warning(span, reason))

    def put(self, path: Path, value: Any, source: Source, span: SourceSpan) -> None:
        """Set a knob, and refuse to set it twice."""
        node = self.data
        for depth, part in enumerate(path[:-1]):
            inner = node.setdefault(str(part), {})
            if not isinstance(inner, dict):
                self.wrong(source, span, f"{dotted(path[: depth + 1])} is a knob, not a section")
                return
            node = inner
        last = str(path[-1])
        if last in node:
            earlier = self.places.get(path)
            where = f" in line {earlier[0].place(earlier[1].start).line} of {earlier[0].name}" if earlier else ""
            self.wrong(source, span, f"{dotted(path)} is set already{where}")
            return
        node[last] = value
        self.places[path] = (source, span)

    def value(self, source: Source, value: ast.Value, path: Path) -> None:
        """Set a knob to a value, the place of each part of it beside."""
        if isinstance(value, ast.NamedValues) and value.pairs:
            self.places.setdefault(path, (source, value.span))
            for pair in value.pairs:
                self.value(source, pair.value, (*path, key_of(pair)))
            return
        try:
            data = plain(value)
        except NoData as error:
            self.wrong(source, error.span, "a knob is set to a word, text, number, duration, list or table")
            return
        self.put(path, data, source, value.span)
        for place, span in _items(value, path):
            self.places[place] = (source, span)

    def add(self, name: str, data: dict[str, Any], source: Source, span: SourceSpan) -> Path:
        """Add a definition to a list of them, and return its path."""
        listed = self.data.setdefault(name, [])
        listed.append(data)
        path: Path = (name, len(listed) - 1)
        self.places[path] = (source, span)
        return path

    def settings(self, source: Source, definition: ast.Definition, allowed: tuple[str, ...]) -> dict[str, ast.Setting]:
        """Return the settings of a definition by name; others than the known ones, and second ones, are faults."""
        out: dict[str, ast.Setting] = {}
        for entry in definition.entries:
            if not isinstance(entry, ast.Setting):
                self.wrong(
                    source, entry.span, f"this is not allowed in {definition.kind} definitions", expected=allowed
                )
            elif entry.key.text not in allowed:
                reason = f"{definition.kind} definitions have no {entry.key.text}"
                self.wrong(source, entry.key.span, reason, got=entry.key.text, expected=allowed)
            elif entry.key.text in out:
                self.wrong(source, entry.key.span, f"{entry.key.text} is given twice")
            else:
                out[entry.key.text] = entry
        return out

    def needed(
        self,
        source: Source,
        definition: ast.Definition,
        settings: dict[str, ast.Setting],
        names: tuple[str, ...],
        what: str,
    ) -> None:
        """Record missing settings; one that did not parse may have been among them."""
        for name in names if definition.whole else ():
            if name not in settings:
                assert definition.name is not None
                self.wrong(source, definition.name.span, f"{what} needs {name}: …")


def key_of(pair: ast.Pair) -> str:
    """Return the name before a value in a table."""
    return pair.key.text if isinstance(pair.key, ast.Word) else pair.key.value


def word_of(value: ast.Value) -> str:
    """Return the word at a place where one is expected, for suggestions; a call's name too, or nothing."""
    if isinstance(value, ast.Text):
        return value.value
    if isinstance(value, ast.Call | ast.Followed):
        return value.name.text
    return value.text if isinstance(value, ast.Word) else ""


def dotted(path: Path) -> str:
    """Return a path as the configuration's faults write it: ``policies[0].rules``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else (f".{part}" if out else part)
    return out


def path_of(name: str) -> Path:
    """Return the path that ``dotted`` wrote."""
    out: list[str | int] = []
    for part in name.split("."):
        head, *indexes = part.split("[")
        out.append(head)
        out.extend(int(index[:-1]) if index[:-1].isdigit() else index[:-1] for index in indexes)
    return tuple(out)


def _items(value: ast.Value, path: Path) -> Iterator[tuple[Path, SourceSpan]]:
    if isinstance(value, ast.Items):
        for number, item in enumerate(value.items):
            yield (*path, number), item.span
            yield from _items(item, (*path, number))


class NoData(Exception):
    """A value that no TOML file could hold."""

    def __init__(self, span: SourceSpan) -> None:
        super().__init__()
        self.span = span


def plain(value: ast.Value) -> Any:
    """Return a value as a TOML file would hold it; a duration stays text, which every knob of time accepts."""
    match value:
        case ast.Word(text=text):
            return _CONSTANTS.get(text, text)
        case ast.Text(value=text):
            return text
        case ast.Number() if not value.is_whole or len(value.text) < 64:
            return value.value
        case ast.Duration(text=text):
            return text
        case ast.Items(items=items):
            return [plain(item) for item in items]
        case ast.NamedValues(pairs=pairs):
            return {key_of(pair): plain(pair.value) for pair in pairs}
        case _:
            raise NoData(value.span)
