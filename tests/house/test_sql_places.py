"""SQL is written in ``storage/`` and ``backends/`` and nowhere else (design section 3).

Text is looked at as the compiler sees it: constants, with adjacent ones joined, f-strings with their holes, and sums
of texts. Docstrings and comments may speak of SQL.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"
ALLOWED = ("storage", "backends")

_NAME = r"[\w\"§.]+"
SQL = re.compile(
    r"\bSELECT\b.+\bFROM\b"
    rf"|\bINSERT\s+(OR\s+\w+\s+)?INTO\s+{_NAME}"
    rf"|\bUPDATE\s+{_NAME}\s+SET\b"
    rf"|\bDELETE\s+FROM\s+{_NAME}"
    r"|\b(CREATE|DROP|ALTER)\s+(UNIQUE\s+)?(TEMP\s+)?(TABLE|INDEX|VIEW|TRIGGER|SCHEMA|EXTENSION|ROLE|POLICY)\b"
    r"|\bPRAGMA\s+\w+"
    r"|\bBEGIN\s+(IMMEDIATE|EXCLUSIVE|DEFERRED|TRANSACTION|ISOLATION)\b"
    r"|\bROLLBACK\s+TO\b"
    r"|\bSAVEPOINT\s+\w+"
    r"|\bON\s+CONFLICT\b.*\bDO\b"
    r"|\bCOPY\s+\w+\s*(\(|FROM\b)"
    r"|\bTRUNCATE\s+TABLE\b"
    r"|\b(UN)?LISTEN\s+\w+"
    r"|\bORDER\s+BY\s+\w+"
    r"|\bWHERE\s+\w+\s*(=|<|>|IN\b|IS\b)"
    r"|\AVACUUM\b|\AANALYZE\b|\ACOMMIT\b|\AROLLBACK\b",
    re.DOTALL,
)
QUIET_SQL = re.compile(
    r"\A\s*(select\s[\w\"*,\s.()]+\sfrom\s+\w+\s*(where\s|order\s|limit\s|group\s|;|\Z)"
    r"|insert\s+into\s+\w+\s*(\(|values)|update\s+\w+\s+set\s|delete\s+from\s|create\s+(unique\s+)?(table|index)\s"
    r"|drop\s+table\s|alter\s+table\s|pragma\s+\w+\s*(=|\())",
    re.DOTALL | re.IGNORECASE,
)
"""Lower case, where only a whole statement is told from prose."""


def _docstrings(tree: ast.AST) -> set[int]:
    out = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            # Attribute docstrings too: a text that stands alone is a comment.
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                out.add(id(statement.value))
    return out


def _text(node: ast.AST) -> str | None:
    """Return the text a node amounts to, § where a value would stand, or None."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        return node.value.decode("latin-1")
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "§" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        if left is not None or right is not None:
            return (left or "§") + (right or "§")
    return None


def sql_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each piece of SQL in a module."""
    tree = ast.parse(source)
    skipped = _docstrings(tree)
    inside: set[int] = set()
    for node in ast.walk(tree):
        if id(node) in inside or id(node) in skipped:
            continue
        text = _text(node)
        if text is None:
            continue
        inside.update(id(part) for part in ast.walk(node) if part is not node)
        if SQL.search(text) or QUIET_SQL.search(text):
            yield getattr(node, "lineno", 0), text


def places(package: Path) -> list[str]:
    """Return every place under ``package`` where SQL stands that may not."""
    out = []
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).parts[0] in ALLOWED:
            continue
        out += [f"{path.relative_to(package)}:{line}: {text[:60]!r}" for line, text in sql_in(path.read_text("utf-8"))]
    return out


def test_sql_stands_in_its_rooms_only() -> None:
    # design section 3
    assert places(PACKAGE) == []


def test_detector_sees_the_statements_of_the_rooms_that_have_them() -> None:
    """A detector that sees nothing would be content everywhere."""
    for room in ("storage/compile/plan.py", "backends/sqlite/statements.py", "backends/sqlite/writer.py"):
        assert list(sql_in((PACKAGE / room).read_text("utf-8"))), room


PLANTED = {
    "select": 'X = "SELECT a FROM b"\n',
    "lower case": "X = 'select a from b where c = 1'\n",
    "over lines": 'X = """\n  SELECT a,\n    b\n  FROM c\n"""\n',
    "joined": 'X = ("SELECT a"\n     " FROM b")\n',
    "added": 'def f(t):\n    return "SELECT " + t + " FROM b"\n',
    "formatted": 'def f(t):\n    return f"DELETE FROM {t}"\n',
    "insert": 'X = "INSERT INTO t VALUES (1)"\n',
    "insert or ignore": 'X = "INSERT OR IGNORE INTO t VALUES (1)"\n',
    "update": 'X = "UPDATE t SET a = 1"\n',
    "ddl": 'X = "CREATE TABLE t (a)"\n',
    "index": 'X = "CREATE UNIQUE INDEX i ON t (a)"\n',
    "pragma": 'X = "PRAGMA journal_mode = WAL"\n',
    "transaction": 'X = "BEGIN IMMEDIATE"\n',
    "commit": 'X = "COMMIT"\n',
    "fragment": 'X = " ORDER BY created_at"\n',
    "condition": 'X = "WHERE a = ?"\n',
    "upsert": 'X = "ON CONFLICT (a) DO NOTHING"\n',
    "bytes": 'X = b"SELECT a FROM b"\n',
    "in a function": 'def f(c):\n    return c.execute("DELETE FROM turn WHERE 1")\n',
    "copy": 'X = "COPY t FROM STDIN"\n',
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_sql_is_caught(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runtime" / "x.py"
    path.parent.mkdir()
    path.write_text(PLANTED[kind])
    assert len(places(tmp_path)) == 1


def test_prose_is_not_sql(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "x.py").write_text(
        '"""SELECT a FROM b is what the store does."""\n'
        'ERROR = "select one of the members, or update the note: it was set from another place"\n'
        'HINT = "where it is, delete it from the folder; then create a table of contents"\n'
        "FIELD = 3\n"
        '"""How many rows an INSERT INTO t writes."""\n'
    )
    assert places(tmp_path) == []
