"""Parser of evaluation questions with expected answers, from JSON Lines or TOML, validated as a whole.

A question is ``{"query": ..., "expected": [...]}``; an expected item is a record's id, or text that a record holds.
``kinds``, ``filter`` and ``as_of`` narrow the search, as in ``Caliber.search``. In TOML each is a ``[[question]]``.
"""

from __future__ import annotations

import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from caliber.cli.failures import UsageError
from caliber.importing.json_lines import json_object
from caliber.model.hints import did_you_mean
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import read_bytes

KEYS: Final = ("query", "expected", "kinds", "filter", "as_of")
MAX_BYTES: Final = 64 << 20
_BAD_SHOWN: Final = 20
_JSON_LINES: Final = (".jsonl", ".ndjson")


class BadQuestion(ValueError):
    """The fault of a question."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected answer: the record under an id, or any record that contains a text."""

    id: uuid.UUID | None
    text: str

    @property
    def folded(self) -> str:
        """The text as it is compared: case and white space aside."""
        return folded(self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``place`` is its position in the file."""

    place: str
    query: str
    expected: tuple[Expected, ...]
    kinds: tuple[str, ...] | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    as_of: datetime | None = None


def folded(text: str) -> str:
    """Return a text normalized for comparison: case and white space folded."""
    return " ".join(text.casefold().split())


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a file, by its suffix.

    Raises: UsageError for a file that cannot be read, or holds no question, or a bad one; it lists the bad lines.
    """
    if path.suffix.lower() == ".toml":
        items, bad = _each(_toml_questions(path))
    elif path.suffix.lower() in _JSON_LINES:
        items, bad = _each(_json_lines(path))
    else:
        raise UsageError(f"{path}: expected a .jsonl or .toml file", 'a line is {"query": "...", "expected": ["..."]}')
    if bad:
        listed = [f"{path}, {place}: {fault}" for place, fault in bad]
        more = f"; … and {len(bad) - _BAD_SHOWN} more" if len(bad) > _BAD_SHOWN else ""
        raise UsageError(
            "; ".join(listed[:_BAD_SHOWN]) + more,
            "nothing was measured: correct these first",
            details={
                "code": "CALIBER_CLI",
                "kind": "bad_questions",
                "bad": [{"place": place, "fault": fault} for place, fault in bad],
            },
        )
    if not items:
        raise UsageError(f"{path} holds no questions", 'a line is {"query": "...", "expected": ["..."]}')
    return items


def _each(
    found: Iterator[tuple[str, Callable[[], Mapping[str, Any]]]],
) -> tuple[list[Question], list[tuple[str, str]]]:
    questions, bad = [], []
    for place, parsed in found:
        try:
            questions.append(_question(place, parsed()))
        except BadQuestion as error:
            bad.append((place, str(error)))
    return questions, bad


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MB", "split it into several files")
        return read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file", "check the path") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", "name a .jsonl or .toml file") from None


def _json_lines(path: Path) -> Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]:
    for number, raw in enumerate(_read(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if raw.strip():
            yield f"line {number}", partial(json_object, raw, BadQuestion)


def _toml_questions(path: Path) -> Iterator[tuple[str, Callable[[], Mapping[str, Any]]]]:
    try:
        data = tomllib.loads(_read(path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start + 1})", "save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "a question is a table [[question]]") from None
    tables = data.pop("question", [])
    if data or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        other = ", ".join(sorted(data)) or "[question]"
        raise UsageError(f"{path}: {other} is not a list of questions", "each question is a table [[question]]")
    for number, table in enumerate(tables, 1):
        yield f"question {number}", partial(dict, table)


def _question(place: str, data: Mapping[str, Any]) -> Question:
    for key in data:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS, f"there are {', '.join(KEYS)}", mark="'")
            raise BadQuestion(f"unknown key {key!r}; {hint}")
    query = data.get("query")
    if not isinstance(query, str) or not query.strip():
        raise BadQuestion("query must be a text that is not empty")
    return Question(
        place,
        query,
        tuple(_expected(text) for text in dict.fromkeys(_texts(data, "expected"))),
        tuple(_texts(data, "kinds")) if "kinds" in data else None,
        _filter(data.get("filter", {})),
        _instant(data.get("as_of")),
    )


def _texts(data: Mapping[str, Any], key: str) -> list[str]:
    value = data.get(key)
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise BadQuestion(f"{key} must be a text, or a list of texts, none of them empty")
    return items


def _expected(text: str) -> Expected:
    try:
        return Expected(uuid.UUID(text.strip()), text.strip())
    except ValueError:
        return Expected(None, text)


def _filter(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadQuestion("filter must map columns to values")
    return value


def _instant(value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        instant = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise BadQuestion("as_of must be an instant such as 2024-03-01T00:00:00Z") from None
    if instant.tzinfo is None:
        raise BadQuestion("as_of lacks its time zone: write 2024-03-01T00:00:00Z")
    return instant
