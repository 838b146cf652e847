"""Source text of a program for error messages: line and column, the line with a caret, secrets redacted.

Source: C-172, design 8.
"""

from __future__ import annotations

import difflib
import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from caliber.config.faults import ConfigWarning
from caliber.config.secret import REDACTED, is_plain_dsn, is_secret_name
from caliber.model.errors import ProgramFault
from caliber.model.lazy_dataclass import dataclass

_LINE_CHARS: Final = 120
_REASON_CHARS: Final = 400
_NAME_CHARS: Final = 64
_LINE_END = re.compile("\n")
_KEY = re.compile(r'\b([^\W\d]\w*+)"?\s*+[:=]\s*+')
_VALUE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{(]|[^\s,;})\]]+', re.DOTALL)
_INSIDE = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{(]|[\]})]', re.DOTALL)
_ADDRESS = re.compile(r'://(?:[^/\s?#"]*|[^\s"@]{0,256})@[^\s"]*')
_SCHEME = re.compile(r"[\w+.-]{0,32}\Z")
_REFERENCE = re.compile(r'("?)env:\w++\1(?=[\s,;)\]}]|\Z)')
_is_secret = functools.lru_cache(maxsize=4096)(is_secret_name)


class SourceSpan(NamedTuple):
    """From ``start`` to ``end`` (exclusive), counted in characters of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a source; lines and columns count from 1, columns in characters."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Source:
    """The text of one file, and its name for people."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def line_of(self, offset: int) -> int:
        """Return the number of the line that holds an offset, from 1."""
        return bisect_right(self._starts, min(offset, len(self.text)))

    def place(self, offset: int) -> Place:
        """Return line and column of an offset."""
        line = self.line_of(offset)
        return Place(self.name, line, min(offset, len(self.text)) - self._starts[line - 1] + 1)

    def fault(
        self,
        span: SourceSpan,
        reason: str,
        *,
        got: str = "",
        expected: Iterable[str] = (),
    ) -> ProgramFault:
        """Return a fault at a span; with ``expected``, the nearest of it to ``got`` is suggested."""
        place = self.place(span.start)
        unique = tuple(dict.fromkeys(expected))
        reason = "".join(map(_printable, reason[:_REASON_CHARS])) + ("..." if len(reason) > _REASON_CHARS else "")
        return ProgramFault(
            file=place.file,
            line=place.line,
            column=place.column,
            reason=reason,
            expected=unique,
            suggestion=nearest(got, unique),
            excerpt=self._excerpt(place, span),
        )

    def warning(self, span: SourceSpan, reason: str) -> ConfigWarning:
        """Return a warning at a span."""
        place = self.place(span.start)
        return ConfigWarning(
            reason, file=place.file, line=place.line, column=place.column, excerpt=self._excerpt(place, span)
        )

    def _excerpt(self, place: Place, span: SourceSpan) -> str:
        start, at = self._starts[place.line - 1], min(span.start, len(self.text))
        end = self.text.find("\n", start)
        end = len(self.text) if end < 0 else end
        end -= end > start and self.text[end - 1] == "\r"
        first = start
        if end - start > _LINE_CHARS:
            first = max(start, at - _LINE_CHARS // 2)
        last = min(end, first + _LINE_CHARS)
        hidden = [found for found in self._secrets if found.start < last and found.end > first]
        inside = next((found for found in hidden if found.start <= at < found.end), None)
        before = self._blanked(first, at if inside is None else max(first, inside.start), hidden)
        shown = self._blanked(first, last, hidden).rstrip()
        marked = min(span.end - at, len(shown) - len(before)) if inside is None else len(REDACTED)
        return f"  {shown}\n  {' ' * len(before)}{'^' * max(1, marked)}"

    def shown(self, span: SourceSpan) -> str:
        """Return a piece of the text as a fault may repeat it: short, and never a secret."""
        if any(found.start < span.end and found.end > span.start for found in self._secrets):
            return REDACTED
        text = self.text[span.start : min(span.end, span.start + _NAME_CHARS)]
        return text + "..." if span.end - span.start > _NAME_CHARS else text

    def _blanked(self, first: int, last: int, hidden: Iterable[SourceSpan]) -> str:
        out = ""
        for found in hidden:
            if found.start < last and found.end > first:
                out += self.text[first : max(first, found.start)] + REDACTED
                first = found.end
        return "".join(map(_printable, out + self.text[first : max(first, last)]))

    @functools.cached_property
    def _secrets(self) -> list[SourceSpan]:
        """Yield the spans of possible credentials, in order, over the whole text: one may contain a line break."""
        return sorted({*_assigned(self.text), *_addresses(self.text)})


def _assigned(text: str) -> Iterator[SourceSpan]:
    """Yield the values of keys whose names mark them as secrets."""
    at = 0
    while (match := _KEY.search(text, at)) is not None:
        at = match.end()
        if not _is_secret(match[1]) or _REFERENCE.match(text, at) is not None:
            continue
        value = _VALUE.match(text, at)
        if value is not None and not is_plain_dsn(value[0][1:-1]):
            at = _closing(text, value.end()) if value[0] in ("[", "{", "(") else value.end()
            yield SourceSpan(value.start(), at)


def _closing(text: str, start: int) -> int:
    depth = 1
    for match in _INSIDE.finditer(text, start):
        depth += {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return len(text)


def _addresses(text: str) -> Iterator[SourceSpan]:
    """Yield addresses with a user or a password in them."""
    for match in _ADDRESS.finditer(text):
        scheme = _SCHEME.search(text, max(0, match.start() - 32), match.start())
        yield SourceSpan(scheme.start() if scheme else match.start(), match.end())


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"


def nearest(got: str, candidates: Iterable[str]) -> str:
    """Return the name that was probably meant, or nothing."""
    short = got[:_NAME_CHARS].lower()
    found = difflib.get_close_matches(short, list(candidates), n=1) if short else []
    return found[0] if found else ""
