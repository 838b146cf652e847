"""SQL, and what asks which relation it has, are written in the rooms where they belong and nowhere else.

SQL is in ``storage/`` and ``backends/`` (design section 3). Text is looked at as the compiler sees it: constants, with
adjacent ones joined, f-strings with their holes, and sums of texts. Docstrings and comments may speak of SQL.

What a record means is declared (docs/decisions/0203): code that asks which relation it has before it knows what to do
would have to be found and changed for the next one. Read from the syntax tree: comparisons with names of relations,
with members of ``EntityType`` and ``SourceType`` and with relations themselves, and collections of two or more.
A relation is named in ``schema/relations``, in the room of its subsystem, and where a room is *about* one thing.
Planted breaches of each kind prove that the checkers see them.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from caliber.model.context import SourceType
from caliber.model.references import EntityType
from caliber.schema import relations
from caliber.schema.relation import Relation
from caliber.schema.relations import RELATIONS

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


NAMES = {relation.name for relation in RELATIONS}
CONSTANTS = {name: value.name for name, value in vars(relations).items() if isinstance(value, Relation)}
ENUMS = {"EntityType": EntityType, "SourceType": SourceType}
HOMES = {"memory": ("memories",), "storage": ("storage", "backends")}
"""The rooms of modules of ``schema/relations`` that are not called as their room."""
EXEMPT = (
    "schema/relations/",
    "context/conversation.py",  # the one module that knows turns
)


def homes() -> dict[str, set[str]]:
    """Return the rooms in which each relation may be named."""
    out: dict[str, set[str]] = {}
    for module in pkgutil.iter_modules(relations.__path__):
        declared = vars(importlib.import_module(f"{relations.__name__}.{module.name}")).items()
        for name, value in declared:
            if isinstance(value, Relation) and CONSTANTS.get(name) == value.name:
                out.setdefault(value.name, set()).update(HOMES.get(module.name, (module.name,)))
    return out


def named(node: ast.expr) -> str | None:
    """Return the relation that an expression names: a text, a member of an enum, the relation itself."""
    name: object = None
    if isinstance(node, ast.Constant):
        name = node.value
    elif isinstance(node, ast.Name):
        name = CONSTANTS.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ENUMS:
        name = str(getattr(ENUMS[node.value.id], node.attr, ""))
    elif isinstance(node, ast.Attribute) and node.attr in ("name", "value", "code"):
        return named(node.value)
    return name if isinstance(name, str) and name in NAMES else None


def _members(nodes: Iterable[ast.expr | None]) -> list[str]:
    return [name for node in nodes if node is not None and (name := named(node)) is not None]


def _found(node: ast.AST) -> list[str]:
    """Return the relations that a comparison or a collection names."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        listed = [each for side in sides if isinstance(side, ast.Tuple | ast.List | ast.Set) for each in side.elts]
        return _members([*sides, *listed])
    if isinstance(node, ast.MatchValue):
        return _members([node.value])
    found: list[str] = []
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        found = _members(node.elts)
    elif isinstance(node, ast.Dict):
        # Keys of documents and values of theirs may be words that relations are called by too.
        keys, values = _members(node.keys), [each for each in node.values if not isinstance(each, ast.Constant)]
        plain = all(isinstance(each, ast.Constant) for each in node.keys)
        found = (keys if not plain or len(keys) == len(node.keys) else []) + _members(values)
    return found if len(found) > 1 else []


def breaches(source: str, path: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the relations of each comparison and each collection that names kinds of other rooms."""
    room, at_home = path.split("/", maxsplit=1)[0], homes()
    tree = ast.parse(source)
    types = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
        for each in ast.walk(node.slice)
    }
    for node in ast.walk(tree):
        found = [] if id(node) in types else _found(node)  # the words of a knob are nobody's kinds
        if any(room not in at_home[name] for name in found):
            yield node.lineno, found  # type: ignore[attr-defined]


def test_no_kind_is_known_by_name() -> None:
    # design section 3: "no list of kinds and no comparison with a relation's name stands anywhere else"
    found = [
        f"{path}:{line} names {', '.join(names)}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if not (path := file.relative_to(PACKAGE).as_posix()).startswith(EXEMPT)
        for line, names in breaches(file.read_text(), path)
    ]
    assert not found, "\n".join(["ask a trait of the relation instead:", *found])


PLANTED_COMPARISONS = {
    "text": 'if kind == "note": pass',
    "text that is unlike": 'if "turn" != kind: pass',
    "one of texts": 'if kind in ("note", other): pass',
    "list": 'KINDS = ["note", "artifact"]',
    "tuple": 'KINDS = ("turn", *more, "note")',
    "set": 'KINDS = {"scope", "turn"}',
    "keys": 'TABLES = {"note": 1, "turn": 2}',
    "keys that are relations": "TABLES = {NOTE.name: 1, TURN.name: 2, other: 3}",
    "values": "TABLES = {1: NOTE, 2: TURN}",
    "relation": "if relation is NOTE: pass",
    "name of a relation": "if name == NOTE.name: pass",
    "code of a relation": "if code in (TURN.code, 3): pass",
    "relations": "for relation in (NOTE, ARTIFACT): pass",
    "member": "if event.subject_type is EntityType.NOTE: pass",
    "members": "KINDS = frozenset({SourceType.NOTE, SourceType.ARTIFACT})",
    "match": 'match kind:\n    case "note": pass',
    "match of members": "match kind:\n    case EntityType.TURN: pass",
}


@pytest.mark.parametrize("source", PLANTED_COMPARISONS.values(), ids=PLANTED_COMPARISONS)
def test_planted_breach_is_seen(source: str) -> None:
    assert list(breaches(source, "search/planted.py")), source


@pytest.mark.parametrize(("source", "path"), [
    ("if relation is NOTE: pass", "knowledge/notes.py"),
    ("KINDS = (TURN, SCOPE)", "trajectory/turns.py"),
    ('open(mode="note")', "search/planted.py"),
    ("uow.insert(NOTE, note)", "policies/planted.py"),
    ('body = {"trajectory": one, "reason": two}', "search/planted.py"),
    ('Reach = Literal["trajectory", "session"]', "config/planted.py"),
])  # fmt: skip
def test_sound_source_passes(source: str, path: str) -> None:
    assert not list(breaches(source, path))
