"""Class names: a class that a program can meet has its name for itself in the whole package."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import caliber

PACKAGE = Path(caliber.__file__).parent


def classes(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the name of each class that modules define, those of nested classes and stubs too."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name


def public() -> set[str]:
    """Return names of ``caliber``, of data types, of facets, and of what the calls of facets take and return."""
    stub = PACKAGE / "api" / "asynchronous.pyi"  # generated from the signatures of all that is public
    imports = (
        node for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    )
    names = {alias.name for node in imports for alias in node.names if (node.module or "").startswith("caliber.")}
    facets = {name.removeprefix("Async") for name in classes([stub])}
    return {*caliber.__all__, *names, *facets, *classes((PACKAGE / "model").rglob("*.py"))}


def test_a_public_class_shares_its_name_with_no_other() -> None:
    found = Counter(classes(PACKAGE.rglob("*.py")))
    names = public()
    assert {"Disagreement", "Todos", "ContextWindow", "Caliber"} <= names
    assert [name for name in sorted(names) if found[name] > 1] == []


def test_a_second_class_of_a_name_is_counted(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Todo:\n    class Part: ...\n\nclass _Todo: ...\n")
    assert Counter(classes(tmp_path.glob("*.py"))) == {"Todo": 2, "Part": 2}
