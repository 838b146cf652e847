"""Benches that measure recall of evidence and windows: arithmetic by hand, and a run over a conversation of ours."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import locomo
import numpy as np
import pytest
import windows
from retrieval import ablation, tuning, variants
from retrieval.asking import Stores, ask_baseline
from retrieval.baseline import K1, LEND_FAR, LEND_NEAR, B, Baseline
from retrieval.conversations import load, load_all
from retrieval.measures import MEASURES, bootstrap, measure
from retrieval.windows import FILLED, NEW, NEWEST, SAME, SEARCH_AND_FILL, TASKS, WITH_DAYS, ask_windows

import caliber

TALK: dict[str, Any] = {
    "speaker_a": "Ines",
    "speaker_b": "Tomas",
    "session_1_date_time": "1:56 pm on 8 May, 2023",
    "session_1": [{"speaker": "Ines", "dia_id": "D1:1", "text": "I adopted a greyhound from the shelter last week."},
                  {"speaker": "Tomas", "dia_id": "D1:2", "text": "Lovely! What is its name?"},
                  {"speaker": "Ines", "dia_id": "D1:3", "text": "Biscuit.", "blip_caption": "a grey dog on a sofa"}],
    "session_10_date_time": "9:05 am on 1 January, 2024",
    "session_10": [{"speaker": "Tomas", "dia_id": "D10:1", "text": "My telescope arrived, Saturn looked wonderful."},
                   {"speaker": "Ines", "dia_id": "D10:2", "text": "Which telescope did you buy?"}],
    "session_2_date_time": "12:30 am on 3 June, 2023",
    "session_2": [{"speaker": "Tomas", "dia_id": "D2:1", "text": "The marathon in Lisbon was exhausting."}],
    "qa": [
        {"question": "Where did Tomas run a marathon?", "answer": "Lisbon", "evidence": ["D2:1"], "category": 4},
        {"question": "What did Ines adopt?", "answer": "a dog", "evidence": ["D1:1; D1:3", "D9:9"], "category": 1},
        {"question": "Who never ran?", "answer": "-", "evidence": ["D2:1"], "category": 5},
        {"question": "What lacks evidence?", "answer": "-", "evidence": [], "category": 4},
        {"question": "What has evidence elsewhere?", "answer": "-", "evidence": ["D7:1"], "category": 4},
    ],
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "talk.json").write_text(json.dumps(TALK))
    return folder


# --- arithmetic ---------------------------------------------------------------------------------


def test_measures_of_one_question_by_hand() -> None:
    retrieved = ["x", "a", *(f"y{number}" for number in range(9)), "b", "a2"]
    got = dict(zip(MEASURES, measure(retrieved, {"a", "b", "c"}), strict=True))
    assert got["recall@5"] == got["recall@10"] == pytest.approx(1 / 3)
    assert got["recall@20"] == pytest.approx(2 / 3)
    assert got["hit@5"] == got["hit@20"] == 1
    assert got["map@20"] == pytest.approx((1 / 2 + 2 / 12) / 3)
    assert measure([], {"a"}) == (0.0,) * len(MEASURES)
    assert measure(["z"] * 20 + ["a"], {"a"}) == (0.0,) * len(MEASURES), "beyond the depth nothing counts"


def test_the_interval_is_of_the_mean_repeatable_and_wider_for_fewer_questions() -> None:
    few, many = np.tile([0.0, 1.0], 10), np.tile([0.0, 1.0], 100)
    assert bootstrap(few) == bootstrap(few)
    assert bootstrap(few).mean == 0.5
    # The standard error of a mean of n coins is 0.5 / sqrt(n).
    for values in (few, many):
        interval = bootstrap(values)
        assert interval.high - interval.low == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(len(values)), rel=0.15)
    same = bootstrap(np.full(7, 0.25))
    assert (same.low, same.high) == (0.25, 0.25)


def test_the_baseline_scores_and_lends_as_written() -> None:
    documents = ["cats sleep", "dogs bark", "birds sing", "the rain", "cats and cats", "wind"]
    index = Baseline(documents, [1, 1, 1, 1, 2, 2])
    lengths = np.array([2, 2, 2, 2, 3, 1])
    rarity = math.log(1 + (6 - 2 + 0.5) / (2 + 0.5))

    def alone(frequency: int, length: int) -> float:
        return rarity * frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length / lengths.mean()))

    first, second = alone(1, 2), alone(2, 3)
    scores = index.lent(index.scores_of("Do the cat's dream?"))
    expected = [first, LEND_NEAR * first, LEND_FAR * first, 0, second, LEND_NEAR * second]
    assert scores == pytest.approx(expected), "neighbours lend inside a stretch, and none across"
    assert index.ranked("cat", 3) == [4, 0, 5]
    assert index.ranked("what is the", 3) == [0, 1, 2], "words that say nothing find nothing: ties in order"


# --- data ---------------------------------------------------------------------------------------


def test_a_conversation_is_read_in_the_order_it_was_held(data: Path) -> None:
    (talk,) = load(data / "talk.json")
    assert [turn.name for turn in talk.turns] == ["D1:1", "D1:2", "D1:3", "D2:1", "D10:1", "D10:2"]
    assert talk.turns[2].document == "Ines: Biscuit. a grey dog on a sofa"
    assert talk.turns[0].said_at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert talk.turns[3].said_at == datetime(2023, 6, 3, 0, 30, tzinfo=UTC)
    assert [(item.text, sorted(item.evidence)) for item in talk.questions] == [
        ("Where did Tomas run a marathon?", ["D2:1"]),
        ("What did Ines adopt?", ["D1:1", "D1:3"]),
    ]


# --- asking -------------------------------------------------------------------------------------


def test_stores_hold_a_scope_a_session_and_answer_questions(data: Path, tmp_path: Path) -> None:
    talks = load_all(data)
    stores = Stores(talks, tmp_path, "static")
    (kept,) = stores.kept
    assert sorted(kept.names.values()) == ["D10:1", "D10:2", "D1:1", "D1:2", "D1:3", "D2:1"]
    with stores.open(kept.path, {}) as memory:
        turns = [memory.get(name) for name in kept.names]
        assert [turn.name for turn in turns] == ["Ines", "Tomas", "Ines", "Tomas", "Tomas", "Ines"]
        assert [turn.role for turn in turns] == ["user", "assistant", "user", "assistant", "assistant", "user"]
        assert len({turn.scope_id for turn in turns}) == 3
        assert turns[3].occurred_at == datetime(2023, 6, 3, 0, 30, tzinfo=UTC)
    asked = stores.ask({})
    assert asked.scored.by_conversation["talk"].shape == (2, len(MEASURES))
    assert asked.scored.mean("recall@20") >= 0.75, "one turn shares nothing with its question"
    assert asked.scored.mean("recall@5") > 0
    assert len(asked.seconds) == 2
    assert asked.degraded == ()
    steps = [*itertools.islice(ablation.switched_on(), 1), *itertools.islice(ablation.taken_away(), 1)]
    rows = locomo.rows_of(steps, {}, stores)
    assert [row["label"] for row in rows] == [label for label, _ in steps]
    assert ask_baseline(talks).by_conversation["talk"].shape == (2, len(MEASURES))


def test_every_knob_that_the_bench_turns_exists(tmp_path: Path) -> None:
    for overrides in (dict(ablation.OFF), *tuning.draws(20)):
        caliber.profiles.reference(tmp_path / "a.db", **overrides)
    assert [dict(off) for _, off in ablation.switched_on()][-1] == {}, "the last step is the profile"
    assert set().union(*(names for _, names in ablation.STEPS)) == set(ablation.OFF)


def test_the_program_prints_tables_or_one_document(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert locomo.main(["--data", str(data), "--tune"]) == 2
    assert "leaving one out needs two" in capsys.readouterr().err
    assert locomo.main(["--data", str(data), "--json", "--set", "search.candidate_factor=7"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] == {"search.candidate_factor": 7}
    assert set(document["categories"]) == {"1", "4"}
    shutil.copy(data / "talk.json", data / "talk2.json")
    assert locomo.main(["--data", str(data), "--tune", "--draws", "2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("4 questions, 12 turns, space static")
    assert "| BM25 + neighbours" in text
    assert "leave-one-out" in text
    assert "recall@10 of talk2" in text
    assert locomo.main(["--data", str(data / "nowhere")]) == 2
    assert "holds no conversations" in capsys.readouterr().err


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


def test_the_program_of_windows_prints_tables_or_one_document(
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
