"""A text as faults point into it: places, the line with a caret, never a secret. Source: C-172, design section 8."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from caliber.config.secret import REDACTED, has_credentials, is_plain_dsn, is_secret_name, scrub
from caliber.config.warnings import ConfigWarning
from caliber.model.errors import ProgramFault

_LINE_CHARS: Final = 120
_SUGGESTED_FROM: Final = 0.6  # difflib's own threshold of likeness
_LINE_END = re.compile("\n")
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"?')
_KEY = re.compile(r"([A-Za-z_]\w*)\"?\s*:\s*\Z")


class Span(NamedTuple):
    """From ``start`` to ``end`` (exclusive), counted in characters of the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is; lines and columns count from 1, columns in characters."""

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
        span: Span,
        reason: str,
        *,
        got: str = "",
        expected: Iterable[str] = (),
    ) -> ProgramFault:
        """Return what is wrong at a span; with ``expected``, the nearest of it to ``got`` is suggested."""
        place = self.place(span.start)
        wanted = tuple(dict.fromkeys(expected))
        return ProgramFault(
            file=place.file,
            line=place.line,
            column=place.column,
            reason=reason,
            expected=wanted,
            suggestion=nearest(got, wanted),
            excerpt=self._excerpt(place, span),
        )

    def warning(self, span: Span, reason: str) -> ConfigWarning:
        """Return what is doubtful at a span."""
        place = self.place(span.start)
        return ConfigWarning(
            reason, file=place.file, line=place.line, column=place.column, excerpt=self._excerpt(place, span)
        )

    def _excerpt(self, place: Place, span: Span) -> str:
        start = self._starts[place.line - 1]
        end = self.text.find("\n", start)
        line = self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")
        first = max(0, place.column - 1 - _LINE_CHARS // 2) if len(line) > _LINE_CHARS else 0
        part = line[first : first + _LINE_CHARS]
        shown = "".join(map(_printable, part))
        safe = without_secrets(shown)
        if safe != shown:
            return f"  {safe}"  # what was blanked moves the columns: a caret would point elsewhere
        carets = max(1, min(span.end - span.start, len(part) - (place.column - 1 - first)))
        return f"  {shown}\n  {' ' * (place.column - 1 - first)}{'^' * carets}"


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char == "\t" else "\N{REPLACEMENT CHARACTER}"


def without_secrets(line: str) -> str:
    """Return a line as it may be shown: addresses with credentials and values of secret keys are blanked."""

    def blank(match: re.Match[str]) -> str:
        key = _KEY.search(line[: match.start()])
        named = key is not None and is_secret_name(key[1])
        hidden = has_credentials(match[0]) or (named and '"env:' not in match[0] and not is_plain_dsn(match[0][1:-1]))
        return f'"{REDACTED}"' if hidden else match[0]

    quoted = _QUOTED.sub(blank, line)
    return scrub(quoted) if has_credentials(quoted) else quoted


def nearest(got: str, wanted: Iterable[str]) -> str:
    """Return the name that was probably meant, or nothing."""
    found = difflib.get_close_matches(got.lower(), list(wanted), n=1, cutoff=_SUGGESTED_FROM) if got else []
    return found[0] if found else ""
