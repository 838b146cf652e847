"""Docstrings begin with a name or a verb, name what they return, and use no dialect; first lines are unique."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "caliber", "tests", "tools")
QUESTION = re.compile(
    r"(?:(?:What|Who|Whom|Whose|Where|Whether|How|Which|When|Why)(?:ever)?|That which|Return (?:what|who(?:m|se)?))\b",
    re.IGNORECASE,
)
"""The beginnings that name nothing; ``Return what …`` has a clause in the place of a result's name."""
ASKING = re.compile(rf"[\"']\\?\s*{QUESTION.pattern}", re.IGNORECASE)
"""The text of a file in which such a docstring may be: others, nearly all, are not parsed."""
DIALECT = re.compile(r"\b(?:whoever|whom|nobody|somebody|anew|lest|says?|said|hears?|heard)\b", re.IGNORECASE)
"""Words that hide the actor, or let data speak: a row holds, a knob sets, a worker is notified."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def modules_below(root: Path) -> list[tuple[str, ast.Module]]:
    """Return the path and the syntax tree of every module below ``root``."""
    return [(str(path.relative_to(root)), ast.parse(path.read_bytes())) for path in sorted(root.rglob("*.py"))]


def question_docstrings(root: Path) -> list[str]:
    """Return ``module:name`` of all docstrings below ``root`` that begin with a question word."""
    return [
        f"{path.relative_to(root)}:{getattr(node, 'name', 'module')}"
        for path in sorted(root.rglob("*.py"))
        if ASKING.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and QUESTION.match(ast.get_docstring(node) or "")
    ]


def dialect_docstrings(root: Path) -> list[str]:
    """Return ``module:name: words`` of all docstrings below ``root`` whose first line has a word of the dialect."""
    return [
        f"{path}:{getattr(node, 'name', 'module')}: {' '.join(found)}"
        for path, module in modules_below(root)
        for node in ast.walk(module)
        if isinstance(node, DOCUMENTED)
        if (found := DIALECT.findall((ast.get_docstring(node) or "").partition("\n")[0]))
    ]


def alike_modules(root: Path) -> list[tuple[str, list[str]]]:
    """Return the first lines that several modules below ``root`` share: neither names the purpose of its module."""
    modules: dict[str, list[str]] = {}
    for path, module in modules_below(root):
        modules.setdefault((ast.get_docstring(module) or "").partition("\n")[0], []).append(path)
    return [(first, paths) for first, paths in modules.items() if len(paths) > 1]


def test_no_first_line_is_in_dialect() -> None:
    assert dialect_docstrings(REPOSITORY / "caliber") == []


def test_every_module_has_a_first_line_of_its_own() -> None:
    assert alike_modules(REPOSITORY / "caliber") == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    assert question_docstrings(REPOSITORY / folder) == []


def test_planted_docstrings_are_caught(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Rows that nobody reads."""\n\n\ndef f():\n    """Read what it said, anew."""\n')
    (tmp_path / "b.py").write_text('"""Rows.\n\nNobody reads them."""\n\n\ndef g():\n    """Return what it is."""\n')
    (tmp_path / "c.py").write_text('"""Rows."""\n\n\nclass C:\n    async def h(self):\n        """Whether it is."""\n')
    assert dialect_docstrings(tmp_path) == ["a.py:module: nobody", "a.py:f: said anew"]
    assert alike_modules(tmp_path) == [("Rows.", ["b.py", "c.py"])]
    assert question_docstrings(tmp_path) == ["b.py:g", "c.py:h"]
