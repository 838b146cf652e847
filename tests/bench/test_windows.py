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
    Asked,
    ask_windows,
    lines_that_fit,
)
from support.bench.talks import TALK

import caliber
from caliber.cli.evaluating.evidence import Held


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
    options = ["--data", str(data), "--budgets", "60,200", "--set", "search.default_limit=7"]
    assert windows.main([*options, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] == {"search.default_limit": 7}
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


def test_search_constants_may_be_those_chosen_on_other_conversations(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = tmp_path / "chosen.json"
    # One hit cannot hold the two turns that answer the second question.
    only_one = {"search.limit_max": 1, "search.default_limit": 1}
    chosen.write_text(json.dumps({"tuned": {"chosen_without": {"talk": only_one}}}))
    options = ["--data", str(data), "--budgets", "500", "--tasks", "new", "--json"]
    figures = []
    for more in ([], ["--held-out", str(chosen)]):
        assert windows.main([*options, *more]) == 0
        document = json.loads(capsys.readouterr().out)
        figures.append(document["rows"][0]["budgets"]["500"]["held"])
    assert figures[0] == 1
    assert figures[1] <= 0.75


# --- variants -----------------------------------------------------------------------------------


def test_parts_are_switched_on_one_by_one_until_the_profile(tmp_path: Path) -> None:
    config = caliber.profiles.reference(tmp_path / "a.db")
    steps = list(variants.switched_on())
    assert steps[-1].knobs == {}, "the last step is the profile"
    assert [len(step.knobs) for step in steps] == sorted((len(step.knobs) for step in steps), reverse=True)
    for step in steps:
        assert step.missing(config) == []
        caliber.profiles.reference(tmp_path / "a.db", **step.knobs)
    profile = config.to_mapping()
    assert all(variants.value_at(profile, knob) != off for knob, off in variants.OFF.items()), "a step changes nothing"


def asked(group: str, share: int, where: str = NEW) -> Asked:
    held = frozenset(str(number) for number in range(share))
    return Asked("question 1", "why?", where, (), Held(100, 10, held, 0, 0), group)


def test_leave_one_out_takes_the_variant_that_is_best_on_the_others() -> None:
    # The second is best on a and b, the third on c alone: c must be answered with the second.
    levels = {"one": (2, 2, 2), "two": (6, 6, 1), "three": (1, 1, 9)}
    tried = {
        name: [asked(group, share) for group, share in zip("abc", shares, strict=True)]
        for name, shares in levels.items()
    }
    # Search and fill is the same under all, and decides nothing.
    for name, items in tried.items():
        items.append(asked("c", 9 if name == "one" else 0, SEARCH_AND_FILL))
    chosen = variants.choose(tried)
    assert chosen is not None
    assert chosen.names == {"a": "three", "b": "three", "c": "two"}
    assert sorted((item.group, len(item.window.held)) for item in chosen.asked if item.where == NEW) == [
        ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip
    assert variants.choose({"one": [asked("a", 1)]}) is None


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


def test_lines_fit_until_the_first_that_does_not() -> None:
    lines = ["aaaa", "b", "cccccccc", "", "d"]

    def plainly(budget: int) -> int:
        used = 0
        for count, line in enumerate(lines):
            used += len(line) + 1
            if used > budget:
                return count
        return len(lines)

    for budget in range(25):
        assert lines_that_fit(lines, len, budget) == plainly(budget)
    assert lines_that_fit([], len, 5) == 0
