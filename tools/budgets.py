"""Check the lines of each room, folder and file of the package against their budgets.

Usage: python tools/budgets.py [PACKAGE TABLE]

``[lines]`` of ``tools/budgets.toml`` has a number for each room and for all; the tests have at most the lines of the
package. Lines are counted as ``wc -l`` counts them, docstrings and comments included, so that nothing is gained by
leaving them out.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "budgets.toml"
FOLDER_MOST = 3_500
"""A folder that outgrows it is two subjects."""
FILE_WARNING = 400
"""A file is read from top to bottom."""
HOW = "cut it, or raise its number in {table} in the same commit, with the reason in the message"


def lines_of(package: Path) -> dict[Path, int]:
    """Return the number of lines of each file, by its path below the package."""
    return {path.relative_to(package): path.read_bytes().count(b"\n") for path in sorted(package.rglob("*.py"))}


def exceeded(files: dict[Path, int], budgets: dict[str, int]) -> list[str]:
    """Return the rooms and folders that are too large, and rooms without a budget."""
    rooms: Counter[str] = Counter(all=sum(files.values()))
    folders: Counter[str] = Counter()
    for path, lines in files.items():
        rooms[path.parts[0].removesuffix(".py")] += lines
        folders[path.parent.as_posix()] += lines
    out = [
        f"{room}: {lines:,} lines, and its budget is {budgets.get(room, 0):,}"
        for room, lines in sorted(rooms.items())
        if lines > budgets.get(room, 0)
    ]
    out += [f"{room}: has a budget, and is no room" for room in sorted(budgets) if room not in rooms]
    return out + [
        f"{folder}/: {lines:,} lines, and a folder has at most {FOLDER_MOST:,}: make two of it"
        for folder, lines in sorted(folders.items())
        if lines > FOLDER_MOST
    ]


def main(arguments: list[str]) -> int:
    """Print warnings and each excess; return the exit code."""
    package, table = map(Path, arguments) if arguments else (ROOT / "caliber", TABLE)
    files, budgets = lines_of(package), tomllib.loads(table.read_text(encoding="utf-8"))["lines"]
    tests, most = (sum(some.values()) for some in (lines_of(package.parent / "tests"), files))
    found = exceeded(files, budgets)
    if tests > most:
        found.append(f"tests: {tests:,} lines, more than the {most:,} of the package")
    long = [f"{path.as_posix()} {lines}" for path, lines in files.items() if lines > FILE_WARNING]
    if long:
        print(f"warning: {len(long)} files of more than {FILE_WARNING} lines, the longest {max(files.values())}")
    for line in found:
        print(line, file=sys.stderr)
    if found:
        print(HOW.format(table=table.name), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
