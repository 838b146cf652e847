"""Faults planted in search: the comparison with the twin must find each.

Source: design section 10, a checker is itself tested.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.evidence import soaking
from support.search.fault import FOUND

pytestmark = pytest.mark.prove

CHILD = Path(__file__).resolve().parents[1] / "support" / "search" / "fault.py"
PACKAGE = Path(__file__).resolve().parents[2] / "caliber"
EXAMPLES = 800
SEED = "1"
"""Fixed: whether a fault is found must not depend on the run."""
FAULTS = {
    "words are rarer than they are": (
        "search.ranking.legs", "(total - count + 0.5) / (count + 0.5)", "(total + 0.5) / (count + 0.5)",
    ),
    "turns borrow nothing from answers": ("search.ranking.legs", "FAR_SHARE * near, near)", "FAR_SHARE * near, 0.0)"),
    "one similar word less": (
        "search.ranking.legs", "if count and len(terms) < most:", "if count and len(terms) <= most:",
    ),
    "what was before days is as near as after": ("search.ranking.days", "_BEFORE = 3.0", "_BEFORE = 1.0"),
    "recency falls twice as fast": (
        "search.ranking.fusion", "age / (half_life_ms * 1_000)", "age / (half_life_ms * 500)",
    ),
    "importance is of 9": ("search.ranking.fusion", "_TOP_IMPORTANCE = 10.0", "_TOP_IMPORTANCE = 9.0"),
    "ranks count from 0": (
        "search.ranking.fusion", "(constant + 1) / (constant + rank)", "(constant + 1) / (constant + rank + 1)",
    ),
    "likeness counts for a hit": (
        "search.ranking.floor", "- share * most_like[remaining]", "+ share * most_like[remaining]",
    ),
    "a third of the neighbours' share is kept": (
        "search.ranking.graph", "step(rows), scores * DECAY", "step(rows), scores",
    ),
    "one hop less": ("search.ranking.graph", "max_hops=DEPTH", "max_hops=DEPTH - 1"),
    "links without limit": (
        "search.ranking.graph", "best_hits(searched, base, SEEDS)", "best_hits(searched, base, 999)",
    ),
    "last week is this week": ("text.dates", "monday - timedelta(7 * back), ", "monday, "),
    "what names no year is read from the clock": (
        "search.ranking.days", "now._replace(at_us=min(now.at_us, at)).day", "now.day",
    ),
    "texts mean no days": ("search.ranking.days", "found | item.meant[rows]", "found"),
    "no older value is lowered": ("search.ranking.floor", "lowered or below < scores[old]", "lowered"),
    "days bound nothing": ("search.query", "    return sentence.endswith", "    return False and sentence.endswith"),
    "what is not found has no score": ("search.ranking.fusion", "LEAST = 1e-6", "LEAST = 1e-7"),
    "a note holds on the instant it ends": ("resident.snapshot", "least=at_us + 1)", "least=at_us)"),
    "use makes nothing recent": (
        "search.ranking.fusion",
        "np.maximum(times[rows], uses.of(item.owners, rows)[1])",
        "times[rows]",
    ),
    "parts of one letter are found": ("text.words", "if len(part) > 1 or", "if len(part) > 0 or"),
    "stop words are looked for": ("search.query", "kept if enough else tuple(terms)", "tuple(terms)"),
    "phrases are of their first parts": ("search.query", "analysis.parts[:PHRASE_MAX]", "analysis.parts[:2]"),
    "changed turns go to the end": (
        "resident.chain",
        "earlier, later = int(before[old]), int(after[old])",
        "earlier, later = self.last[code], NOBODY",
    ),
}  # fmt: skip


SURE = ("words are rarer than they are",)
"""What a few comparisons find: the fault of ``make prove``."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_one_place_in_its_module(name: str) -> None:
    module, old, _ = FAULTS[name]
    assert (PACKAGE / f"{module.replace('.', '/')}.py").read_text("utf-8").count(old) == 1


@pytest.mark.parametrize("name", sorted(FAULTS) if soaking() else SURE)
def test_a_fault_in_search_is_found(name: str) -> None:
    module, old, new = FAULTS[name]
    command = [sys.executable, str(CHILD), f"caliber.{module}", old, new, str(EXAMPLES), SEED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == FOUND, done.stdout + done.stderr
