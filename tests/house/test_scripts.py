"""The scripts of ``bench`` and ``tools`` find what they import: some are run by hand, once in a while."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("bench/*.py"), *ROOT.glob("bench/retrieval/*.py"), *ROOT.glob("tools/*.py")])
OURS = ("caliber", "retrieval", "support", "contract")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_is_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("bench", "tests"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.module.partition(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
