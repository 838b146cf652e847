"""A seed decides alone what random tests draw, whatever ran before them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

LITERAL = 987_654_321_012


def test_literals_of_what_a_test_imports_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text(f"x = {LITERAL}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import imported_late  # type: ignore[import-not-found]

    try:
        integers = providers.HypothesisProvider(None)._local_constants.integers  # noqa: SLF001
    finally:
        del sys.modules["imported_late"]
    assert imported_late.x not in integers
