"""Pages of the repository: links, numbers of decisions that files name, and the length of lines; docstrings.

Docstrings begin with a name or a verb, name what they return, and use no dialect; first lines are unique.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from support.cases import each

REPOSITORY = Path(__file__).resolve().parents[2]
DECISIONS = REPOSITORY / "docs" / "decisions"
NUMBER = re.compile(r"docs/decisions/(\d{4}(?:, \d{4})*)|\b[Dd]ecisions? (0\d{3}(?:(?:, | and | to )0\d{3})*)")
PAGES = sorted(REPOSITORY.glob("*.md")) + sorted((REPOSITORY / "docs").rglob("*.md"))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, target: str, part: str) -> bool:
    """Return whether a link of ``page`` leads to a file, and to a heading of it if it names one."""
    path = page.parent / target if target else page
    return path.exists() and (not part or part in anchors(path.read_text(encoding="utf-8")))


@each("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text)
    assert [(to, part) for to, part in links if "://" not in to and not is_there(page, to, part)] == []


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Part two\n[here](page.md#part-two) [down](#part-two)")
    test_links_of_a_page_lead_somewhere.__wrapped__(page)
    for broken in ("gone.md#part", "page.md#part-three", "#part-three"):
        page.write_text(f"# Part two\n[here](page.md) [there]({broken})")
        with pytest.raises(AssertionError, match=re.escape(broken.partition("#")[2])):
            test_links_of_a_page_lead_somewhere.__wrapped__(page)


def named_decisions(text: str) -> set[str]:
    """Return the numbers of decision pages that a text names."""
    return {number for match in NUMBER.findall(text) for number in re.findall(r"\d{4}", " ".join(match))}


def sources() -> list[Path]:
    """Return every text of the repository that may name a decision."""
    folders = ("bench", "caliber", "csrc", "docs", "tests", "tools", "wheels")
    kinds = ("*.py", "*.c", "*.h", "*.md", "*.sh", "*.lark", "*.caliber")
    found = [path for folder in folders for kind in kinds for path in (REPOSITORY / folder).rglob(kind)]
    return [*found, REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", REPOSITORY / "Makefile"]


def missing_decisions(paths: list[Path], folder: Path) -> list[str]:
    pages = {path.name[:4] for path in folder.glob("[0-9]*.md")}
    return [
        f"{path}: {number}"
        for path in paths
        for number in sorted(named_decisions(path.read_text(encoding="utf-8")) - pages)
    ]


def test_every_decision_that_is_named_has_a_page() -> None:
    assert len(sources()) > 500
    assert missing_decisions(sources(), DECISIONS) == []


def test_a_decision_without_a_page_would_be_seen(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    (tmp_path / "0002-two.md").write_text("# 0002: Two")
    source.write_text("Source: docs/decisions/" + "0002, 0003; decisions " + "0004 and 0005.")
    assert missing_decisions([source], tmp_path) == [f"{source}: {number}" for number in ("0003", "0004", "0005")]


def test_decision_pages_are_few_short_and_indexed_once() -> None:
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    index = re.findall(r"^- \[(\d{4})\]\((.+)\): (.+)$", (DECISIONS / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(pages) <= 60
    assert sorted(index) == [
        (
            page.name[:4],
            page.name,
            page.read_text(encoding="utf-8").splitlines()[0].removeprefix(f"# {page.name[:4]}: "),
        )
        for page in pages
    ]
    long = [page.name for page in pages if len(page.read_text(encoding="utf-8").splitlines()) > 40]
    assert long == []


DOCUMENTS = sorted(
    {*PAGES, *(path for folder in ("bench", "tests", "tools") for path in (REPOSITORY / folder).rglob("*.md"))}
)


def long_lines(path: Path) -> list[int]:
    """Return the numbers of a document's lines that are longer than 120 columns."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, start=1) if len(line) > 120]


@each("path", DOCUMENTS)
def test_lines_of_a_document_have_at_most_120_columns(path: Path) -> None:
    assert long_lines(path) == []


def test_a_long_line_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(["é" * 120, "| " + "a" * 117 + " |", "```", "    " + "b" * 120, "```"]), encoding="utf-8")
    assert long_lines(page) == [2, 4]
    with pytest.raises(AssertionError, match=re.escape("[2, 4]")):
        test_lines_of_a_document_have_at_most_120_columns.__wrapped__(page)


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
