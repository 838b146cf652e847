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

from caliber.model.context import SourceType
from caliber.model.references import EntityType
from caliber.schema import relations
from caliber.schema.relation import Relation
from caliber.schema.relations import RELATIONS

PACKAGE = Path(__file__).resolve().parents[2] / "caliber"

NAMES = {relation.name for relation in RELATIONS}
CONSTANTS = {name: value.name for name, value in vars(relations).items() if isinstance(value, Relation)}
ENUMS = {"EntityType": EntityType, "SourceType": SourceType}
HOMES = {"memory": "memories"}
"""The rooms of modules of ``schema/relations`` that are not called as their room."""
ANYWHERE = ("schema/relations/", "context/conversation.py", "testing/")
"""Declarations, the one module that knows turns, and the suite that tests backends from outside."""
"""Lists and comparisons that are to go: how many are left, by file."""


def homes() -> dict[str, set[str]]:
    """Return the rooms in which each relation may be named."""
    out: dict[str, set[str]] = {}
    for module in pkgutil.iter_modules(relations.__path__):
        declared = vars(importlib.import_module(f"{relations.__name__}.{module.name}")).items()
        for name, value in declared:
            if isinstance(value, Relation) and CONSTANTS.get(name) == value.name:
                out.setdefault(value.name, set()).add(HOMES.get(module.name, module.name))
    return out


def named(node: ast.expr) -> str | None:
    """Return the relation that an expression names, or the member of an enum of kinds."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and node.value in NAMES else None
    if isinstance(node, ast.Name):
        return CONSTANTS.get(node.id)
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id in ENUMS:
            return str(getattr(ENUMS[node.value.id], node.attr, node.attr))
        return named(node.value) if node.attr in ("name", "value", "code") else None
    return None


def _members(nodes: Iterable[ast.expr | None]) -> list[str]:
    return [name for node in nodes if node is not None and (name := named(node)) is not None]


def breaches(source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the relations of each comparison and each collection that names kinds."""
    for node in ast.walk(ast.parse(source)):
        found: list[str] = []
        if isinstance(node, ast.Compare):
            found = _members([node.left, *node.comparators])
        elif isinstance(node, ast.MatchValue):
            found = _members([node.value])
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            found = _members(node.elts)
            found = found if len(found) > 1 else []
        elif isinstance(node, ast.Dict):
            for part in (node.keys, node.values):
                members = _members(part)
                # Keys of documents and keywords of calls may be called as relations are: not all of them are.
                plain = all(isinstance(each, ast.Constant) for each in part)
                if len(members) > 1 and (not plain or len(members) == len(part)):
                    found += members
        if found:
            yield node.lineno, found
