"""The example of memory blocks: what two agents wrote stands in the last window."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "blocks.py"


def test_two_agents_share_a_plan(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("blocks", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    text = example.main(tmp_path)
    assert (
        "[plan, 65/500 characters] what we do next\n    1. Book the train to Lisbon.\n    2. Find a quiet room" in text
    )
    assert "Travels by train only." in text
