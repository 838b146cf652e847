"""No list of kinds, and no comparison with a relation's name, outside the rooms that a relation belongs to.

What a record means is declared (docs/decisions/0203): code that asks which relation it has before it knows what to do
would have to be found and changed for the next one. Read from the syntax tree: comparisons with names of relations,
with members of ``EntityType`` and ``SourceType`` and with relations themselves, and collections of two or more.

A relation is named in ``schema/relations``, in the room of its subsystem, and where a room is *about* one thing.
``planted`` breaches of each kind prove that the checker sees them.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from caliber.model.context import SourceType
from caliber.model.references import EntityType
from caliber.schema import relations
from caliber.schema.relation import Relation
from caliber.schema.relations import RELATIONS

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"

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


PLANTED = {
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


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED)
def test_planted_breach_is_seen(source: str) -> None:
    assert list(breaches(source, "search/planted.py")), source


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("if relation is NOTE: pass", "knowledge/notes.py"),
        ("KINDS = (TURN, SCOPE)", "trajectory/turns.py"),
        ('open(mode="note")', "search/planted.py"),
        ("uow.insert(NOTE, note)", "policies/planted.py"),
        ('body = {"trajectory": one, "reason": two}', "search/planted.py"),
        ('Reach = Literal["trajectory", "session"]', "config/planted.py"),
    ],
)
def test_sound_source_passes(source: str, path: str) -> None:
    assert not list(breaches(source, path))
