"""Written scenarios: the answer is in the window, and what was replaced, somebody else's or asked by nobody is not.

They were written without sight of the implementation; ``SHA256SUMS`` is from before anything was tuned by them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from support.evidence import soaking

HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("scenarios_running", HERE / "running.py")
assert _SPEC is not None
assert _SPEC.loader is not None
running = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = running
_SPEC.loader.exec_module(running)

EVERY = {name: running.load(name) for name in ("open.json", "sealed.json")}
COMPANION = {"companion_open.json": 0.88, "companion_sealed.json": 0.95, "companion_chats.json": 0.95}
"""The share of each that must be right. Wrong are most questions about nothing that was talked of, if they name the
user: the window holds what the user told besides, which is nothing to the point."""
STEP = 1 if soaking() else 5


@pytest.mark.parametrize("name", [*EVERY, *COMPANION])
def test_scenarios_are_those_that_were_written(name: str) -> None:
    sums = dict(line.split()[::-1] for line in (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert hashlib.sha256((HERE / name).read_bytes()).hexdigest() == sums[name]


@pytest.mark.parametrize(
    "scenario", [one for scenarios in EVERY.values() for one in scenarios[::STEP]], ids=lambda one: str(one["id"])
)
def test_window_holds_the_answer_and_nothing_irrelevant(scenario: Any) -> None:
    for window in running.run(scenario):
        assert window.right, (window.budget, "lacks", window.missing, "holds", window.unwanted, window.text)


@pytest.mark.prove
@pytest.mark.parametrize("name", COMPANION)
def test_companion_over_five_weeks(name: str, record_property: Any) -> None:
    scenarios = running.load(name)
    wrong = [one["id"] for one in scenarios if not all(window.right for window in running.run(one))]
    right = len(scenarios) - len(wrong)
    record_property("right", f"{right} of {len(scenarios)}")
    assert right >= COMPANION[name] * len(scenarios), f"{right} of {len(scenarios)} right, not {', '.join(wrong)}"
