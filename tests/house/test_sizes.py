"""The sizes of rooms, folders and files: each small enough to be read as one thing.

A room that outgrows its limit is two subjects, a folder too; a file is read from top to bottom. Lines are counted as
``wc -l`` counts them, docstrings and comments included, so that nothing is gained by leaving them out. ``backends/`` is
two databases, each as large as a room.

Source: issue "The house I".
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"

ROOM_MOST = 8_500
FOLDER_MOST = 3_500
FILE_MOST = 500
NO_ROOM = "backends"


def oversized(package: Path = PACKAGE) -> list[str]:
    """Return the rooms, folders and files of ``package`` that hold too many lines, each with its number."""
    files = {path.relative_to(package): path.read_bytes().count(b"\n") for path in package.rglob("*.py")}
    rooms: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    for path, lines in files.items():
        rooms[path.parts[0]] += lines
        folders[path.parent.as_posix()] += lines
    out = [f"room {room}: {lines}" for room, lines in rooms.items() if lines > ROOM_MOST and room != NO_ROOM]
    out += [f"folder {folder}: {lines}" for folder, lines in folders.items() if lines > FOLDER_MOST]
    out += [f"file {path.as_posix()}: {lines}" for path, lines in files.items() if lines > FILE_MOST]
    return sorted(out)


def test_nothing_is_oversized() -> None:
    assert oversized() == []


def test_sizes_of_the_package_are_read() -> None:
    """A test of an empty folder would be content with it."""
    assert sum(1 for _ in PACKAGE.rglob("*.py")) > 400


PLANTED: dict[str, tuple[dict[str, int], list[str]]] = {
    "a file": ({"search/x.py": 501, "search/y.py": 500}, ["file search/x.py: 501"]),
    "a folder": (
        {f"search/ranking/x{at}.py": 500 for at in range(7)} | {"search/ranking/y.py": 1},
        ["folder search/ranking: 3501"],
    ),
    "a room": (
        {f"search/f{at // 7}/x{at}.py": 500 for at in range(17)} | {"search/y.py": 1, "context/y.py": 1},
        ["room search: 8501"],
    ),
    "two databases": ({f"backends/f{at // 7}/x{at}.py": 500 for at in range(18)}, []),
    "a folder of a database": (
        {f"backends/postgres/x{at}.py": 500 for at in range(8)},
        ["folder backends/postgres: 4000"],
    ),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_oversize_is_found(kind: str, tmp_path: Path) -> None:
    files, expected = PLANTED[kind]
    for place, lines in files.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n" * lines)
    assert oversized(tmp_path) == expected
