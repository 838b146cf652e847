"""The page of error messages is the one that the code gives, and the collector finds each way to raise."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(name="gen_errors")
def _gen_errors(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    return importlib.import_module("gen_errors")


PLANTED = """
from caliber.model.errors import InvalidValue


class CaliberError(Exception):
    pass


class OutOfCheese(CaliberError):
    template = "{field} needs cheese"


def cut(name, count):
    if count < 0:
        raise InvalidValue(field=name, reason="must not be negative")
    reason = f"must be below {count.limit}"
    if count > 9:
        raise InvalidValue(field=name, reason=reason)
    if count == 5:
        raise refused(name, "five is " + ("bad" if name else "never good"))


def refused(name, why):
    return InvalidValue(field=name, reason=why)
"""


@pytest.mark.prove
def test_the_page_holds_every_message(gen_errors: Any) -> None:
    assert gen_errors.PAGE.read_text(encoding="utf-8") == gen_errors.page(REPOSITORY / "caliber"), "run `make gen`"


@pytest.mark.parametrize("line", [
    "- **OutOfCheese**: {field} needs cheese",
    "- **InvalidValue**: must not be negative",
    "- **InvalidValue**: must be below {limit}",
    "- **InvalidValue**: five is bad",
    "- **InvalidValue**: five is never good",
])  # fmt: skip
def test_every_way_to_raise_is_collected(gen_errors: Any, line: str, tmp_path: Path) -> None:
    (tmp_path / "dairy").mkdir()
    (tmp_path / "dairy" / "shop.py").write_text(PLANTED + "\n\nclass InvalidValue(CaliberError):\n    pass\n")
    text = gen_errors.page(tmp_path)
    assert line in text.splitlines()
    assert text.splitlines().count("## dairy") == 1
