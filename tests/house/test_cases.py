"""A test of many cases names each one that failed, and runs the others."""

from __future__ import annotations

import inspect

import pytest
from support.cases import each


def test_every_case_runs_and_each_that_fails_is_named() -> None:
    ran: list[tuple[int, str]] = []

    def planted(number: int, text: str, length: int, fixture: int) -> None:
        ran.append((number, text))
        assert number % 2, "it is even"
        assert len(text) == length * fixture

    texts = each(("text", "length"), [("a", 1), ("bb", 2)])(planted)
    made = each("number", [1, 2, 3, 4])(texts)
    assert list(inspect.signature(made).parameters) == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        made(fixture=1)
    assert len(ran) == 8
    said = str(caught.value)
    assert said.startswith("2 of 4 cases failed\n2: AssertionError: 2 of 2 cases failed")
    assert "\n4: AssertionError" in said
    assert isinstance(caught.value.__cause__, AssertionError)
    each("number", [1, 3])(texts)(fixture=1)
