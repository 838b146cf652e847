"""The bench that measures windows, over a conversation of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import windows
from retrieval import variants
from retrieval.asking import Stores
from retrieval.conversations import load_all
from retrieval.windows import (
    FILLED,
    NEW,
    NEWEST,
    SAME,
    SEARCH_AND_FILL,
    TASKS,
    WITH_DAYS,
    ask_windows,
)
from support.bench.talks import TALK


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "talk.json").write_text(json.dumps(TALK))
    return folder


def test_each_question_is_asked_in_each_place_at_each_budget_and_leaves_no_turn(data: Path, tmp_path: Path) -> None:
    stores = Stores(load_all(data), tmp_path, "static", leave_open=True)
    budgets = (60, 500)
    asked = ask_windows(stores, {}, budgets)
    places = [(item.place, item.where, item.window.budget) for item in asked]
    numbers = ("question 1", "question 2")
    assert places == [(at, where, budget) for at in numbers for where in (*FILLED, *TASKS) for budget in budgets]
    for item in asked:
        window = item.window
        assert window.used_tokens <= window.budget
        assert window.wanted == len(item.wanted)
        assert window.held <= {wanted.label for wanted in item.wanted}
        if item.where in TASKS:
            assert window.held | set(window.lost) == {wanted.label for wanted in item.wanted}
            assert window.seconds > 0
    by_place = {(item.place, item.where, item.window.budget): item.window.held for item in asked}
    # All six turns fit into 500 tokens; the newest alone do not answer at 60.
    assert by_place["question 1", NEWEST, 500] == {"D2:1"}
    assert by_place["question 2", NEWEST, 500] == {"D1:1", "D1:3"}
    assert by_place["question 2", NEWEST, 60] == frozenset()
    assert by_place["question 1", SEARCH_AND_FILL, 60] == by_place["question 1", WITH_DAYS, 60] == {"D2:1"}
    (kept,) = stores.kept
    with stores.open(kept.path, {}) as memory:
        assert memory.storage.turns.count() == 6, "the questions are gone"
        assert memory.current_scope(kept.remembered.task) is not None, "the last session is open"


def test_the_program_prints_tables_or_one_document(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    options = ["--data", str(data), "--budgets", "60,200", "--set", "search.candidate_factor=7"]
    assert windows.main([*options, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] == {"search.candidate_factor": 7}
    assert document["budgets"] == [60, 200]
    assert [row["where"] for row in document["rows"]] == [*FILLED, *TASKS]
    filled = document["rows"][0]["budgets"]["200"]
    assert filled["over search and fill"] == [0, 0, 0]
    assert filled["by conversation"] == {"talk": filled["held"]}
    whole = json.loads(out.read_text())
    assert len(whole["asked"]) == 2 * len((*FILLED, *TASKS)) * 2
    held = [item for item in whole["asked"] if item["where"] == SEARCH_AND_FILL and item["budget"] == 200]
    shares = [len(item["held"]) / len(item["evidence"]) for item in held]
    assert filled["held"] == pytest.approx(sum(shares) / len(shares))
    assert windows.main([*options, "--tasks", "same", "--as-query"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 questions, space static, profile reference, changed")
    assert f"| {SAME} " in text
    assert f"| {NEW} " not in text
    assert windows.main(["--data", str(data / "nowhere")]) == 2
    assert "holds no conversations" in capsys.readouterr().err


# --- variants -----------------------------------------------------------------------------------


def test_variants_are_measured_beside_the_profile(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "second.json").write_text(json.dumps(TALK))
    file = tmp_path / "variants.json"
    file.write_text(json.dumps({"no recall": dict(variants.RECALL_OFF), "of tomorrow": {"recall.telepathy": True}}))
    options = ["--data", str(data), "--budgets", "100", "--no-why", "--variants", str(file)]
    assert windows.main([*options, "--parts", "--tasks", "new", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["variants"]) == [*(name for name, _ in variants.STEPS), "no recall"]
    assert document["left_out"] == {"of tomorrow": ["recall.telepathy"]}
    held = {
        name: {row["where"]: row["budgets"]["100"]["held"] for row in rows}
        for name, rows in document["variants"].items()
    }
    assert all(set(places) == {NEW} for places in held.values())
    assert held["no recall"][NEW] == held["recall off"][NEW] == 0
    (profile,) = [row for row in document["rows"] if row["where"] == NEW]
    assert held["+ shares: the profile"][NEW] == profile["budgets"]["100"]["held"] > 0
    assert set(document["chosen"]["without"]) == {"talk", "second"}
    assert windows.main([*options, "--tasks", "new"]) == 0
    text = capsys.readouterr().out
    assert "left out, for want of recall.telepathy: of tomorrow" in text
    assert "the one chosen on the others" in text
