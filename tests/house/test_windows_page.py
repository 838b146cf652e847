"""docs/windows.md: its window is a real one, and what it names exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from caliber.config.manual import explaining
from caliber.context import trace
from caliber.model.references import NAMESPACES, EntityType

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "windows.md"
TEXT = PAGE.read_text(encoding="utf-8")
PROSE = TEXT[: TEXT.index("<!-- begin")] + TEXT[TEXT.index("<!-- end") :]


def test_the_window_on_the_page_is_the_one_that_is_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gen_window

    try:
        made = gen_window.example()
    finally:
        del sys.modules["gen_window"]
    assert made in TEXT, "run make gen"


def test_the_answer_stands_in_it_and_what_must_not_does_not() -> None:
    (window,) = re.findall(r"^```text\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert "- Pixel (fact): The vet sees Pixel on Friday at ten." in window
    assert "[user, 20 May 2023] The vet can see Pixel on Thursday at nine." in window
    assert "Biscuit" not in window
    assert "The vet sees Pixel on Thursday" not in window
    assert window.rstrip().endswith("user: When is Pixel's appointment at the vet, and what should I tell them?")
    for heading in ("# History", "# Conversation", "# Notes", "# From earlier", "# Now"):
        assert heading in window.splitlines()


def test_every_knob_that_is_named_exists() -> None:
    known = set(explaining.declared())
    sections = {path.rpartition(".")[0] for path in known}
    roots = {path.split(".")[0] for path in known}
    named = {name for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)\b", PROSE) if name.split(".")[0] in roots}
    assert len(named) > 10
    assert named <= known | sections


def test_every_reason_is_in_the_table() -> None:
    table = PROSE[PROSE.index("| `rule_id` |") :].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) - {"rule_id", "min_relevance_threshold"} == set(trace.RULES.values())


def test_the_namespace_of_users_and_every_link_are_right() -> None:
    assert str(NAMESPACES[EntityType.USER]) in PROSE
    pages = [
        PAGE,
        *(ROOT / "docs" / "decisions").glob("019[3-8]-*.md"),
        ROOT / "docs" / "decisions" / "0017-turns-leave-in-blocks.md",
    ]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
