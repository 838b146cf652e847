"""Tests see the insides of the package through ``support.inspection.inspect``, and know no private name.

A private name is one with a leading underscore, read or replaced on anything but ``self``, ``cls`` and ``super()``,
imported from the package, or written as text (``monkeypatch.setattr(part, "_name", …)``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WHITE_BOX = {
    "tests/support/inspection.py": "the one door: what moves or is renamed is followed here",
    "tests/kernels/test_bytes.py": "the clock and the counters of new ids are the process's own",
    "tests/kernels/test_keyword.py": "the segments and rows of an index of words are compared with its twin's",
    "tests/llm/test_answers.py": "thousands of drawn answers are read without a service to send each",
    "tests/postgres/test_seen_commits.py": "stops a writer between its commit and the news of it",
    "tests/support/backends/faulty_backends.py": "plants another session under each unit of work while it lives",
}
"""The files that know private names, and why. One more needs a reason that no public name can meet."""

FOREIGN = frozenset(
    (
        "_benchmarksession",  # pytest-benchmark
        "_current_frames",  # sys
        "_exit",  # os
        "_fixtureinfo",  # pytest
        "_getframe",  # sys
        "_export_to_c",  # pyarrow
        "_import_from_c",  # pyarrow
        "_native",  # the extension module
        "_replace",  # named tuples
        "_run_exitfuncs",  # atexit
        "_work_queue",  # concurrent.futures
    )
)
"""Private names that are not of the package."""

_BY_NAME = frozenset(("delattr", "getattr", "hasattr", "setattr"))
_PRIVATE = re.compile(r"(^|\.)(_[A-Za-z]\w*)$")


def _is_own(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _texts(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _BY_NAME:
        for each in call.args[:2]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """Give the line and the name of each use of a private name of somebody else's."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not _is_own(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Call):
            names = [found[2] for text in _texts(node) if (found := _PRIVATE.search(text))]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "caliber":
            names = [each.name for each in node.names]
        for name in names:
            if _PRIVATE.fullmatch(name) and name not in FOREIGN:
                yield node.lineno, name


FILES = {
    str(path.relative_to(ROOT)): path for room in ("tests", "bench") for path in sorted((ROOT / room).rglob("*.py"))
}


def test_nobody_knows_a_private_name_of_others() -> None:
    found = [
        f"{name}:{line}: {private}"
        for name, path in FILES.items()
        if name not in WHITE_BOX
        for line, private in private_names(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "ask support.inspection.inspect, or let the name be public"


@pytest.mark.parametrize("name", WHITE_BOX)
def test_a_file_that_knows_private_names_still_does(name: str) -> None:
    assert list(private_names(FILES[name].read_text(encoding="utf-8"))), "it is to leave the list"


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ("memory._engine.write(work)", "_engine"),
        ("until(lambda: store._writer._waiting)", "_writer"),
        ("pool._idle += connections", "_idle"),
        ("del dsn._text", "_text"),
        ("f'{store._schema}.note'", "_schema"),
        ("monkeypatch.setattr(writer, '_commit', cut)", "_commit"),
        ("monkeypatch.setattr('caliber.resident.keywords._BATCH_ROWS', 7)", "_BATCH_ROWS"),
        ("getattr(memory, '_engine')", "_engine"),
        ("from caliber.erasure.proving import _heads", "_heads"),
        ("self.memory._engine", "_engine"),
    ],
)
def test_a_planted_touch_is_found(planted: str, name: str) -> None:
    assert name in [found for _, found in private_names(planted)]


@pytest.mark.parametrize(
    "planted",
    [
        "self._engine = inspect(memory).engine",
        "super()._reschedule(node)",
        "os._exit(0)",
        "memory.__exit__(None, None, None)",
        "_, kept = pair",
        "def _helper(): return _helper",
        "monkeypatch.setattr(store, 'write', broken)",
    ],
)
def test_what_is_nobody_elses_is_left_alone(planted: str) -> None:
    assert list(private_names(planted)) == []
