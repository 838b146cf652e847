"""Each room has a budget of lines, and the check of ``make lint`` sees what exceeds it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "budgets.py"


def check(*arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_the_package_is_within_its_budgets() -> None:
    done = check()
    assert done.returncode == 0, done.stderr


PLANTED: dict[str, tuple[dict[str, int], str]] = {
    "nothing": ({"search/x.py": 100, "context/y.py": 100}, ""),
    "a room": ({"search/x.py": 51, "search/deep/y.py": 50, "context/z.py": 1}, "search: 101 lines, and its budget is"),
    "all": ({"search/x.py": 100, "context/y.py": 100, "api/z.py": 21}, "all: 221 lines"),
    "a room without a budget": ({"search/x.py": 1, "context/y.py": 1, "jobs.py": 1}, "jobs: 1 lines"),
    "a budget without a room": ({"search/x.py": 1}, "context: has a budget, and is no room"),
    "tests": ({"search/x.py": 30, "context/y.py": 30, "../tests/z.py": 61}, "tests: 61 lines, more than the 60 of"),
    "a folder": ({"search/x.py": 1, "context/y.py": 1, "big/deep/x.py": 3_501}, "big/deep/: 3,501 lines"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_excess_is_found(kind: str, tmp_path: Path) -> None:
    files, expected = PLANTED[kind]
    for place, lines in files.items():
        path = tmp_path / "package" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n" * lines)
    table = tmp_path / "table.toml"
    rooms = {"all": 5_000 if kind == "a folder" else 220, "search": 100, "context": 100}
    rooms |= {"big": 4_000} if kind == "a folder" else {"api": 30} if kind == "all" else {}
    table.write_text("[lines]\n" + "".join(f"{room} = {most}\n" for room, most in rooms.items()))
    done = check(tmp_path / "package", table)
    lines = done.stderr.splitlines()
    if not expected:
        assert (done.returncode, lines) == (0, [])
        return
    assert done.returncode == 1
    assert len(lines) == 2, lines
    assert lines[0].startswith(expected)
    assert "in the same commit" in lines[1]


def test_a_long_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "x.py").write_text("\n" * 401)
    table = tmp_path / "table.toml"
    table.write_text("[lines]\nall = 500\nsearch = 500\n")
    done = check(tmp_path, table)
    assert done.returncode == 0
    assert "1 files of more than 400 lines" in done.stdout
