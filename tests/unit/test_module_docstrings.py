"""Docstrings of modules begin with a name for the module, not with a question word."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "caliber", "tests", "tools")
QUESTION = re.compile(r"(?:What|Who|Whom|Whose|Where|Whether|How|Which|When|Why)(?:ever)?\b", re.IGNORECASE)


def question_docstrings(root: Path) -> list[str]:
    """Return the modules below ``root`` whose docstring begins with a question word."""
    return [
        str(path.relative_to(root))
        for path in sorted(root.rglob("*.py"))
        if QUESTION.match(ast.get_docstring(ast.parse(path.read_bytes())) or "")
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_docstring_begins_with_a_question_word(folder: str) -> None:
    assert question_docstrings(REPOSITORY / folder) == []


@pytest.mark.parametrize("word", ["What", "Who", "Where", "Whether", "How", "Which", "When", "Why", "Whatever"])
def test_planted_question_word_is_caught(word: str, tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(f'# A comment.\n"""{word} a module is."""\n')
    (tmp_path / "names.py").write_text(
        f'"""Whole name: {word.lower()} follows."""\n\n\ndef f():\n    """{word} it does."""\n'
    )
    (tmp_path / "empty.py").write_text("")
    assert question_docstrings(tmp_path) == ["asks.py"]
