"""Sleeping in tests: only ``support.waits`` does, the local server, and the programs that tests start."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = "_process.py"
"""What a program that a test starts, and mostly kills, is named like: its pace is that of a real process."""
SERVER = "support/localserver/"
"""What starts and guards a real server looks for it again and again."""
UNTIL_THE_QUEUE = ("embedding/test_reembedding.py", "embedding/test_embedding_behaviour.py")
"""Tests of the worker that embeds, which becomes a job with the clock that is handed in."""


def sleeps(root: Path) -> list[str]:
    """Return the modules below ``root`` that sleep, or wait for an event that nobody else has."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name == "support/waits.py" or name.startswith(SERVER) or name.endswith(PROGRAMS) or name in UNTIL_THE_QUEUE:
            continue
        text = path.read_bytes()
        if (b"sleep" in text or b"Event(" in text) and any(_is_sleep(node) for node in ast.walk(ast.parse(text))):
            found.append(name)
    return found


def _is_sleep(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "time" and any(name.name == "sleep" for name in node.names)
    if not isinstance(node, ast.Attribute):
        return False
    if node.attr == "wait" and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).endswith("Event")
    return node.attr == "sleep" and ast.unparse(node.value) == "time"


def test_no_test_sleeps() -> None:
    assert sleeps(TESTS) == []


def test_exceptions_still_sleep() -> None:
    """An exception that is no longer needed would let a new sleep through."""
    for name in ("support/waits.py", f"{SERVER}place.py", *UNTIL_THE_QUEUE):
        assert any(_is_sleep(node) for node in ast.walk(ast.parse((TESTS / name).read_bytes()))), name


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("import time\ntime.sleep(1)\n", True),
        ("from time import monotonic, sleep\n", True),
        ("import threading\nthreading.Event().wait(0.1)\n", True),
        ("pause = time.sleep\n", True),
        ("stop.wait(0.1)\nawait asyncio.sleep(0)\n", False),
        ("'time.sleep(1)'\n", False),
    ],
)
def test_a_planted_sleep_is_found(code: str, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "support").mkdir()
    for name in ("test_planted.py", "writing_process.py", "support/waits.py"):
        (tmp_path / name).write_text(code.replace("await ", ""))
    assert sleeps(tmp_path) == (["test_planted.py"] if is_found else [])
