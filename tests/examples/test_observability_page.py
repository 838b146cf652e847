"""The page on observability: its examples run as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SHOWN = (
    "caliber assemble_context",
    'caliber_operation_duration_seconds_count{caliber_operation_name="search"',
    "operation append_turn ",
    "caliber.api a store in sqlite",
)


@pytest.mark.parametrize("at", range(len(EXAMPLES)))
def test_an_example_runs_as_printed(at: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[at]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert SHOWN[at] in (done.stderr if "logging" in EXAMPLES[at] else done.stdout)
    assert not done.stderr or "logging" in EXAMPLES[at]


def test_the_page_is_linked() -> None:
    assert len(EXAMPLES) == len(SHOWN)
    assert "docs/observability.md" in (ROOT / "README.md").read_text(encoding="utf-8")
