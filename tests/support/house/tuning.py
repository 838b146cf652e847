"""Finding numbers that tune behaviour outside the configuration: what the lint test of literals walks."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import caliber

PACKAGE = Path(caliber.__file__).parent
TRIVIAL = frozenset((-1, 0, 1, 2))
UNITS = frozenset((60, 100, 1_000, 3_600, 1_000_000))
"""Seconds of a minute and an hour, percents, milli and micro: to turn one unit into another is not to tune."""
SMALL = 255
"""Inside expressions, whole numbers up to here are indexes, field numbers and lengths of formats."""


def tuning_in(source: str, module: str) -> Iterator[str]:
    """Yield ``module:name`` for every number that may tune: ``name`` is the constant, or the function it stands in.

    That is a fraction anywhere; a constant of a module or class that is one number; a number as a default or keyword
    argument; and elsewhere a whole number that is neither small nor a unit. Powers of two, and one less, never do.
    """
    tree = ast.parse(source)
    yield from _walk(tree, module, "", alone=False)


def _walk(node: ast.AST, module: str, name: str, *, alone: bool) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inner = f"{name}.{node.name}" if name else node.name
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *(item for item in node.args.kw_defaults if item is not None)):
                yield from _walk(default, module, inner, alone=True)
            body: list[ast.AST] = [*node.decorator_list, *node.body]
        else:
            body = list(node.body)
        for child in body:
            yield from _walk(child, module, inner, alone=False)
        return
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and target.id.strip("_").isupper():
            name = target.id
        yield from _walk(node.value, module, name, alone=name == getattr(target, "id", ""))
        return
    if isinstance(node, ast.keyword):
        yield from _walk(node.value, module, name, alone=True)
        return
    if isinstance(node, ast.BinOp) and _is_number(node):
        value = eval(compile(ast.Expression(node), module, "eval"))
        if _tunes(value, alone=alone):
            yield f"{module}:{name}"
        return
    if isinstance(node, ast.Constant):
        if type(node.value) in (int, float) and _tunes(node.value, alone=alone):
            yield f"{module}:{name}"
        return
    whole = alone and isinstance(node, ast.UnaryOp)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, name, alone=whole)


def _is_number(node: ast.AST) -> bool:
    """Return whether an expression is one number, such as ``5``, ``-0.5``, ``1 << 20`` or ``60 * 1_000``."""
    inside = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    return all(
        isinstance(item, inside) and (not isinstance(item, ast.Constant) or type(item.value) in (int, float))
        for item in ast.walk(node)
    )


def _tunes(value: float, *, alone: bool) -> bool:
    if value in TRIVIAL:
        return False
    if isinstance(value, float) and not value.is_integer():
        return True
    whole = abs(int(value))
    if whole & (whole - 1) == 0 or whole & (whole + 1) == 0:
        return False  # sizes of buffers and pages, widths, and the bounds of whole numbers
    return alone or (whole > SMALL and whole not in UNITS)


def tuning(left_out: Collection[str]) -> set[str]:
    """Return every place in CALIBER with a number that may tune, rooms left out."""
    out: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if place.split("/")[0] not in left_out:
            out.update(tuning_in(path.read_text(encoding="utf-8"), place.removesuffix(".py").replace("/", ".")))
    return out
