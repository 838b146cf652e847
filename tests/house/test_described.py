"""Pages that describe the code: the architecture, the Python API and windows are as the code has them."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
from support.cases import each

from caliber.admin.facet import Admin
from caliber.admin.inspection import Inspection
from caliber.agents.locks import LockService
from caliber.agents.mail.messages import Messages
from caliber.api.caliber import Caliber
from caliber.config.manual import explaining
from caliber.context import trace
from caliber.model.references import NAMESPACES, EntityType
from caliber.trajectory.events import Events

ROOT = Path(__file__).resolve().parents[2]
ROOMS = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms_of_the_page() -> list[str]:
    drawing = ROOMS.split("```")[1]
    rooms = []
    for line in drawing.splitlines():
        row = re.match(r"\s*\d+   ((?:[a-z]+ {1,10})*[a-z]+)(?:  |$)", line)
        if row:
            rooms += row.group(1).split()
    return rooms


def test_the_drawing_has_every_room_once() -> None:
    package = ROOT / "caliber"
    there = {path.name for path in package.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert sorted(rooms_of_the_page()) == sorted(there)


def test_rooms_of_the_drawing_stand_in_the_order_of_their_rows() -> None:
    from .test_layers import ROW_OF

    rows = [ROW_OF[room] for room in rooms_of_the_page()]
    assert rows == sorted(rows)


@each("path", sorted(set(re.findall(r"[\w/]+/\w+\.(?:py|h)\b", ROOMS))))
def test_files_of_the_page_exist(path: str) -> None:
    assert any((ROOT / folder / path).is_file() for folder in ("", "caliber"))


API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", API, re.DOTALL | re.MULTILINE))


def test_every_public_call_has_an_example() -> None:
    def public(kind: type) -> list[str]:
        return [name for name, _ in inspect.getmembers(kind) if not name.startswith("_")]

    for name in public(Caliber):
        assert re.search(rf"\b(memory|admin)\.{name}\b", CODE), name
    for facet, kind in (
        ("agents.locks", LockService),
        ("agents.messages", Messages),
        ("admin", Admin),
        ("admin.inspect", Inspection),
        ("events", Events),
    ):
        for name in public(kind):
            used = r"\." if isinstance(vars(kind).get(name), property) else r"\("
            assert re.search(rf"\.{facet}\.{name}{used}", CODE), f"{facet}.{name}"


def test_what_the_page_of_the_api_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", API):
        assert (ROOT / "docs" / target).exists(), target
    assert "docs/api.md" in (ROOT / "README.md").read_text(encoding="utf-8")


WINDOWS = ROOT / "docs" / "windows.md"
WINDOWS_TEXT = WINDOWS.read_text(encoding="utf-8")
PROSE = WINDOWS_TEXT[: WINDOWS_TEXT.index("<!-- begin")] + WINDOWS_TEXT[WINDOWS_TEXT.index("<!-- end") :]


def test_the_window_on_the_page_is_the_one_that_is_assembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gen_window

    try:
        made = gen_window.example()
    finally:
        del sys.modules["gen_window"]
    assert made in WINDOWS_TEXT, "run make gen"


def test_the_answer_stands_in_it_and_what_must_not_does_not() -> None:
    (window,) = re.findall(r"^```text\n(.*?)^```", WINDOWS_TEXT, re.DOTALL | re.MULTILINE)
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
        WINDOWS,
        *(ROOT / "docs" / "decisions").glob("019[3-8]-*.md"),
        ROOT / "docs" / "decisions" / "0017-turns-leave-in-blocks.md",
    ]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)
