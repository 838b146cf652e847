"""Evaluation questions with expected answers: read from JSON Lines, validated as a whole, asked of search.

A question is ``{"query": ..., "expected": [...]}``; an expected item is a record's id, or text that a record holds.
``kinds``, ``filter`` and ``as_of`` narrow the search, as in ``Caliber.search``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from caliber.admin.absence import Expected, Miss
from caliber.api.caliber import Caliber
from caliber.cli.failures import UsageError
from caliber.importing.chat import json_object
from caliber.model.errors import InputError
from caliber.model.hints import did_you_mean
from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.files import read_bytes
from caliber.model.windows import SearchResult

KEYS: Final = ("query", "expected", "kinds", "filter", "as_of")


class BadQuestion(ValueError):
    """The fault of a question."""


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """One question; ``place`` is its position in the file."""

    place: str
    query: str
    expected: tuple[Expected, ...]
    kinds: tuple[str, ...] | None
    filter: Mapping[str, Any]
    as_of: datetime | None


def ask(memory: Caliber, question: LabelledQuestion, kinds: Sequence[str] | None, limit: int) -> SearchResult:
    """Search with the question's kinds, which go before ``kinds``, its filter and its time.

    Raises: UsageError with the question's place, for kinds or a filter that cannot be.
    """
    try:
        return memory.search(
            question.query, kinds=question.kinds or kinds, limit=limit, filter=question.filter or None,
            as_of=question.as_of,
        )  # fmt: skip
    except InputError as error:
        details = {"code": error.code, "kind": error.kind, "place": question.place}
        raise UsageError(f"{question.place}: {error}", "nothing was measured: correct it", details=details) from error


def absence_of(memory: Caliber, question: LabelledQuestion, expected: Expected, kinds: Sequence[str] | None) -> Miss:
    """Return why the answer to a question was not found."""
    return memory.admin.inspect.absence(
        question.query, expected.id or expected.text, kinds=question.kinds or kinds, filter=question.filter,
        as_of=question.as_of,
    )  # fmt: skip


def read_questions(path: Path) -> list[LabelledQuestion]:
    """Return the questions of a file. Raises: UsageError, with the first bad line."""
    try:
        lines = read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "name a file of JSON Lines") from None
    questions = []
    for number, raw in enumerate(lines, 1):
        try:
            if raw.strip():
                questions.append(_question(f"line {number}", json_object(raw, BadQuestion)))
        except BadQuestion as error:
            raise UsageError(f"{path}, line {number}: {error}", "nothing was measured: correct it first") from None
    if not questions:
        raise UsageError(f"{path} holds no questions", 'a line is {"query": "...", "expected": ["..."]}')
    return questions


def _question(place: str, data: Mapping[str, Any]) -> LabelledQuestion:
    for key in data:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS, f"there are {', '.join(KEYS)}", mark="'")
            raise BadQuestion(f"unknown key {key!r}; {hint}")
    query, texts = data.get("query"), dict.fromkeys(_texts(data, "expected"))
    if not isinstance(query, str) or not query.strip():
        raise BadQuestion("query must be a text that is not empty")
    kinds = tuple(_texts(data, "kinds")) if "kinds" in data else None
    expected = tuple(map(_expected, texts))
    return LabelledQuestion(place, query, expected, kinds, data.get("filter", {}), _instant(data.get("as_of")))


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


def _instant(value: Any) -> datetime | None:
    try:
        instant = None if value is None else datetime.fromisoformat(value)
        if instant is None or instant.tzinfo is not None:
            return instant
    except (TypeError, ValueError):
        pass
    raise BadQuestion("as_of must be an instant with a time zone, such as 2024-03-01T00:00:00Z")
