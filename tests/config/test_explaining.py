"""Documentation of knobs: the pages state what the code determines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli_runs import caliber, caliber_json
from support.configs import config

from caliber.config.manual.explaining import declared, explain, shown
from caliber.model.errors import InvalidConfigValue

ROOT = Path(__file__).resolve().parent.parent.parent


def test_what_is_generated_of_knobs_and_grammar_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    # K-002; design section 8
    monkeypatch.syspath_prepend(ROOT / "tools")
    import gen_config

    try:
        stale = [path.name for path, text in gen_config.generated().items() if path.read_text("utf-8") != text]
    finally:
        del sys.modules["gen_config"]
    assert stale == [], "run make gen"


def test_an_explanation_says_where_the_value_comes_from() -> None:
    # C-121
    mine = config("a.db", assembly__fill_ratio=0.8, search__boosts__exact=1.0)
    ratio = explain("assembly.fill_ratio", mine)
    assert (ratio.value, ratio.value_from) == (0.8, ())
    names = ("reference", "coding-agent", "chat-companion", "ops-agent", "sources")
    assert ratio.profiles == dict.fromkeys(names, 0.95)
    exact = explain("search.boosts.exact", mine)
    assert exact.value_from == ("coding-agent", "ops-agent")
    assert exact.why is not None
    assert "identifier" in exact.why
    departed = explain("search.min_similarity", mine)
    assert departed.deviation is not None
    assert departed.value_from[0] == "reference"
    assert shown(explain("lock_timeout", mine).value, "ms") == "30s"


def test_an_entry_of_a_table_is_explained_as_knobs_are() -> None:
    mine = config("a.db", embedding__embed__turn="off", embedding__embed__artifact="behind")
    turn, every = explain("embedding.embed.turn", mine), explain("embedding.embed", mine)
    assert (turn.value, turn.value_from) == ("off", ("coding-agent", "ops-agent"))
    assert turn.why is not None
    assert "tool output" in turn.why
    assert turn.meaning == every.meaning
    assert turn.profiles["reference"] == "behind"
    assert every.value_from == ("coding-agent",)
    assert every.why.startswith("turn: Most turns are tool output")
    assert "artifact: A tool loop" in every.why


@pytest.mark.parametrize(("wrong", "meant"), [
    ("assembly.fill_ration", "assembly.fill_ratio"),
    ("fill_ratio", "assembly.fill_ratio"),
    ("search.wieghts.vector", "search.weights.vector"),
    ("token_bugdet", "token_budget"),
    ("embedding.embed.nte", "embedding.embed"),
    ("embedding.embed_turns", "embedding.embed"),
])  # fmt: skip
def test_a_near_miss_is_answered_with_what_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(InvalidConfigValue, match=f"did you mean {meant}"):
        explain(wrong)


@pytest.mark.parametrize("hopeless", ["", ".", "…", "a" * 5_000, "search..", "policies.0.name"])
def test_what_is_no_knob_at_all_is_an_error_too(hopeless: str) -> None:
    with pytest.raises(InvalidConfigValue, match="no such knob"):
        explain(hopeless)


def test_the_command_explains_knobs_and_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    without: Any = caliber_json("check", "--explain", "token_budget")
    assert (without["value"], without["value_unknown"]) == (None, "there is no configuration here")
    caliber("init", "--profile", "ops-agent", "--embedding", "none")
    document: Any = caliber_json("check", "--explain", "search.boosts.recency")
    assert (document["value"], document["value_from"]) == (0.3, ["ops-agent"])
    text = caliber("check", "--explain", "retention.windows_ms").stdout
    for said in ("Persisted windows", "365d", "(from the base ops-agent)", "Post-mortems"):
        assert said in text
    assert "search.boosts.exact = 1.0" in caliber("check", "--explain", "search.boosts").stdout
    assert "did you mean search.boosts.exact?" in caliber("check", "--explain", "search.boost.exact", code=2).stderr
    Path("caliber.toml").write_text("token_budget = 0\n")
    assert "has faults" in caliber("check", "--explain", "token_budget").stdout


@pytest.mark.parametrize(("key", "accepts"), [
    ("section_priorities.custom", "A list of [text, whole number]."),
    ("assembly.section_shares", "A table of name = [number, number]."),
    ("embedding.embed", "A table of name = one of behind, commit, off."),
    ("embedding.embed.turn", "One of behind, commit, off."),
    ("pcp.anti_sprawl.vocabulary", "A list of text."),
    ("embedding_provider.api_key", "env:NAME, the name of a variable."),
    ("access.default_visibility.executor", "A list of one of orchestrator, optimizer, reviewer, executor."),
    ("system_instructions", "text"),
])  # fmt: skip
def test_what_a_knob_accepts_has_the_shape_of_its_value(key: str, accepts: str) -> None:
    assert f"accepts      {accepts}" in caliber("check", "--explain", key).stdout


def test_no_knob_that_is_not_a_text_is_said_to_accept_one() -> None:
    for path in declared(repeated=True):
        one = explain(path.replace("NAME", "cold"))
        assert one.accepts or not isinstance(one.profiles.get("reference"), list | dict | bool | int | float), path
