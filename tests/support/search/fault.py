"""Runs comparisons of search and twin with a fault planted in search: ``fault.py MODULE OLD NEW EXAMPLES SEED``.

Exits with 3 when a comparison failed, which is what is hoped for, and with 0 when none did.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS), str(TESTS / "search")]

FOUND = 3


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module with a piece of its source exchanged."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new
        self._path = TESTS.parent / (module.replace(".", "/") + ".py")

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        source = self._path.read_text(encoding="utf-8")
        assert source.count(self._old) == 1, f"{self._old!r} stands {source.count(self._old)} times in {self._module}"
        exec(compile(source.replace(self._old, self._new), str(self._path), "exec"), module.__dict__)


def main() -> int:
    module, old, new, examples, seed = sys.argv[1:]
    sys.meta_path.insert(0, Planted(module, old, new))
    import hypothesis
    import test_twin
    from hypothesis import HealthCheck, Phase

    @hypothesis.seed(int(seed))
    @hypothesis.settings(
        max_examples=int(examples),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(**test_twin.CASES)
    def compare(**case: Any) -> None:
        test_twin.hold(**case)

    try:
        compare()
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:300]}")
        return FOUND
    return 0


if __name__ == "__main__":
    sys.exit(main())
