"""The page of rooms and journeys says what is there."""

from __future__ import annotations

import re
from pathlib import Path

from support.cases import each

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


def rooms_of_the_page() -> list[str]:
    drawing = PAGE.split("```")[1]
    rooms = []
    for line in drawing.splitlines():
        row = re.match(r"\s*\d+   ((?:[a-z]+ {1,10})*[a-z]+)(?:  |$)", line)
        if row:
            rooms += row.group(1).split()
    return rooms


def test_the_drawing_has_every_room_once() -> None:
    package = REPOSITORY / "caliber"
    there = {path.name for path in package.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert sorted(rooms_of_the_page()) == sorted(there)


def test_rooms_of_the_drawing_stand_in_the_order_of_their_rows() -> None:
    from .test_layers import ROW_OF

    rows = [ROW_OF[room] for room in rooms_of_the_page()]
    assert rows == sorted(rows)


@each("path", sorted(set(re.findall(r"[\w/]+/\w+\.(?:py|h)\b", PAGE))))
def test_files_of_the_page_exist(path: str) -> None:
    assert any((REPOSITORY / folder / path).is_file() for folder in ("", "caliber"))
