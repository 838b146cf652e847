"""Typed access to a service's JSON answer; a wrong type is an error that names the path and quotes no value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, NoReturn, TypeVar

from caliber.model.errors import InvalidResponse

Member = TypeVar("Member", bound=StrEnum)

_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```\Z", re.DOTALL)
_NAMES: Final = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class Answer:
    """One value of a provider's document; ``at`` is its place. ``retryable`` goes into the errors.

    Raises, in every method: InvalidResponse.
    """

    __slots__ = ("_at", "_provider", "_retryable", "value")

    def __init__(self, value: Any, provider: str, at: str = "the answer", *, retryable: bool = False) -> None:
        self.value = value
        self._provider = provider
        self._at = at
        self._retryable = retryable

    def __repr__(self) -> str:
        return f"Answer({self._at})"

    def refuse(self, reason: str) -> NoReturn:
        """Raise an error: this value has the wrong type or form."""
        raise InvalidResponse(provider=self._provider, reason=f"{self._at} {reason}", retryable=self._retryable)

    def field(self, name: str) -> Answer:
        """Return a required field of an object."""
        found = self.optional(name)
        if found is None:
            self.refuse(f"has no field {name}")
        return found

    def optional(self, name: str) -> Answer | None:
        """Return a field of an object, or None when it is absent or null."""
        if not isinstance(self.value, dict):
            self._expected("an object")
        value = self.value.get(name)
        at = name if self._at == "the answer" else f"{self._at}.{name}"
        return None if value is None else Answer(value, self._provider, at, retryable=self._retryable)

    def only(self, names: Collection[str]) -> Answer:
        """Return this table, which may have no other fields than these."""
        if not isinstance(self.value, dict):
            self._expected("an object")
        if not self.value.keys() <= set(names):
            self.refuse(f"has other fields than {', '.join(sorted(names))}")
        return self

    def items(self, most: int) -> list[Answer]:
        """Return the items of a list of at most ``most``."""
        if not isinstance(self.value, list):
            self._expected("a list")
        if len(self.value) > most:
            self.refuse(f"has {len(self.value)} items, more than {most}")
        return [
            Answer(item, self._provider, f"{self._at}[{place}]", retryable=self._retryable)
            for place, item in enumerate(self.value)
        ]

    def text(self, most: int) -> str:
        """Return a text that is not blank and has at most ``most`` characters."""
        if not isinstance(self.value, str):
            self._expected("text")
        if len(self.value) > most:
            self.refuse(f"has {len(self.value)} characters, more than {most}")
        if not self.value.strip():
            self.refuse("is blank")
        return self.value

    def fraction(self) -> float:
        """Return a number from 0 to 1."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._expected("a number")
        if not 0 <= value <= 1 or not math.isfinite(value):
            self.refuse("is not from 0 to 1")
        return float(value)

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high``."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int):
            self._expected("a whole number")
        if not low <= value <= high:
            self.refuse(f"is not from {low} to {high}")
        return int(value)

    def counted(self, *names: str) -> int | None:
        """Return the sum of the whole numbers in fields of an object; None unless all are there. Nothing is refused."""
        counts: list[Any] = [self.value.get(name) for name in names] if isinstance(self.value, dict) else [None]
        return None if any(type(count) is not int or count < 0 for count in counts) else sum(counts)

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self._expected("true or false")
        return bool(self.value)

    def choice(self, kind: type[Member]) -> Member:
        """Return a member of an enum."""
        if not isinstance(self.value, str):
            self._expected("text")
        found = next((member for member in kind if member.value == self.value), None)
        if found is None:
            self.refuse(f"is none of {', '.join(member.value for member in kind)}")
        return found

    def _expected(self, what: str) -> NoReturn:
        self.refuse(f"should be {what} and is {_NAMES.get(type(self.value), 'something else')}")


def parse_json(text: str, provider: str, *, retryable: bool) -> Answer:
    """Return the JSON object that a language model wrote, alone or in one fenced block.

    Fields that come twice, numbers that JSON does not have, and depth beyond the parser's are refused.

    Raises: InvalidResponse.
    """
    fenced = _FENCED.match(text.strip())
    fault = ""
    try:
        value = json.loads(
            fenced[1] if fenced else text, object_pairs_hook=_without_repetition, parse_constant=_no_number
        )
    except (ValueError, RecursionError) as error:
        fault = type(error).__name__
    if fault:  # outside the handler: the parser's error holds the whole text
        raise InvalidResponse(
            provider=provider, reason=f"the model's answer is not valid JSON ({fault})", retryable=retryable
        )
    answer = Answer(value, provider, retryable=retryable)
    if not isinstance(value, dict):
        answer.refuse("should be an object")
    return answer


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a field comes twice")
    return table


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
