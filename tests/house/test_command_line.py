"""The command line uses what every program can: no private part of a handle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CLI = Path(__file__).parents[2] / "caliber" / "cli"
OF_TUPLES = frozenset({"_replace", "_asdict", "_fields", "_make"})
"""Names that the standard library gives named tuples."""


def private(source: str) -> Iterator[str]:
    """Yield the private attributes of other objects that a module reads, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and node.attr not in OF_TUPLES:
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", sorted(CLI.rglob("*.py")), ids=lambda path: str(path.relative_to(CLI)))
def test_no_module_reads_a_private_attribute(path: Path) -> None:
    assert list(private(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "breach",
    [
        "def show(memory):\n    return memory._engine.clock\n",
        "class Watch:\n    def peek(self):\n        return self._memory._searching.locate(1)\n",
        "with opened as memory:\n    memory._reader = None\n",
    ],
)
def test_a_planted_breach_is_seen(breach: str) -> None:
    assert len(list(private(breach))) == 1


def test_own_attributes_and_those_of_tuples_are_no_breach() -> None:
    assert (
        list(private("class A:\n    def f(self, row):\n        return self._x, row._replace(a=1), row.__class__\n"))
        == []
    )
