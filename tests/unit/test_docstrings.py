"""Docstrings begin with a name or a verb, not with a question word, and name what they return."""

from __future__ import annotations

import ast
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
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def question_docstrings(root: Path) -> list[str]:
    """Return ``module:name`` of all docstrings below ``root`` that begin with a question word."""
    return [
        f"{path.relative_to(root)}:{getattr(node, 'name', 'module')}"
        for path in sorted(root.rglob("*.py"))
        if ASKING.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and QUESTION.match(ast.get_docstring(node) or "")
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    assert question_docstrings(REPOSITORY / folder) == []


@pytest.mark.parametrize(
    "word", ["What", "Who", "Whose", "Where", "Whether", "How", "Which", "When", "Why", "Whatever", "That which"]
)
def test_planted_question_word_is_caught(word: str, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(f'# A comment.\n"""{word} a module is."""\n')
    (tmp_path / "names.py").write_text(
        f'"""Whole name: {word.lower()} follows."""\n\n\nclass C:\n    """{word} it is."""\n\n'
        f'    def f(self):\n        """{word} it does."""\n\n'
        f'    async def g(self):\n        """Find {word.lower()} follows."""\n'
    )
    (tmp_path / "empty.py").write_text("")
    assert question_docstrings(tmp_path) == ["asks.py:module", "names.py:C", "names.py:f"]


@pytest.mark.parametrize(
    ("first", "is_caught"), [("what it is", True), ("whose it is", True), ("whether it is", False)]
)
def test_a_result_has_a_name(first: str, is_caught: bool, tmp_path: Path) -> None:
    (tmp_path / "results.py").write_text(f'def f():\n    """Return {first}."""\n')
    assert question_docstrings(tmp_path) == ["results.py:f"] * is_caught
