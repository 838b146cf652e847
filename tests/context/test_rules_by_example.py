"""Rules of injection: what each takes, what competes, what is said of it; and that a window under them replays."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.context import world as kit
from support.context.limits import set_limits
from support.context.world import Contents, content, section

from caliber.config.injection import InjectionKind
from caliber.context.rules import OneShot
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.model.context import AssemblyAction, SectionType
from caliber.model.errors import MultipleErrors
from caliber.model.knowledge import NoteType
from caliber.model.references import EntityRef, EntityType
from caliber.model.time import from_us
from caliber.model.trajectory import TurnRole
from caliber.model.trust import TrustLabel
from caliber.schema.relations import NOTE


def rule(memory: str, mode: Any = "full", priority: int = 50, **more: Any) -> dict[str, Any]:
    """A rule as a file has it; a mode is its kind, or its kind and number."""
    kind, number = (mode, None) if isinstance(mode, str) else mode
    form: dict[str, Any] = {"kind": kind}
    if number is not None:
        form["count" if kind == "top_k" else "min_relevance"] = number
    return {"memory": memory, "mode": form, "priority": priority, **more}


def ruled(*rules: dict[str, Any], **overrides: Any) -> Any:
    """Records judged by vectors that a test writes down."""
    return kit.config_of(injection_rules=list(rules), **overrides)


def searched(*rules: dict[str, Any], **overrides: Any) -> Any:
    """Records judged by a search."""
    return kit.searching(injection_rules=list(rules), **overrides)


def taken(window: Any, name: str) -> list[Any]:
    """The ids in a section, in the order of reading."""
    found = section(window, name)
    return [] if found is None else [item.id for item in found.sources]


def same_again(world: Any, config: Any, assembled: Any) -> None:
    again = replay(assembled.record, config, Contents(world))
    window = assembled.window
    assert (again.text, again.sections, again.assembly_trace, again.cut_offs) == (
        window.text, window.sections, window.assembly_trace, window.cut_offs,
    )  # fmt: skip


# --- what enters ---------------------------------------------------------------------------------


def test_records_enter_by_rules_only_and_each_rule_has_its_section(world: Any) -> None:
    # C-160, C-222, C-465
    world.turn("hello")
    world.note("tests use make")
    world.artifact("x = 1")
    config = ruled(rule("note"))
    assembled = world.assemble(config=config)
    window = assembled.window
    assert [item.name for item in window.sections] == ["notes", "current"]
    assert window.text == "# Notes\n- build (fact): tests use make\n\n# Now\nuser: hello"
    (brought,) = [item for item in window.assembly_trace if item.rule is not None]
    assert (brought.rule, brought.rule_id, brought.relevance) == ("note", "standard_inclusion", 1.0)
    assert brought.reason.startswith("rule note: included at rank")  # C-225
    same_again(world, config, assembled)


def test_a_rule_has_its_own_name_priority_and_cap(world: Any) -> None:
    # C-160, C-219
    world.note("decided: make", note_type=NoteType.FACT)
    world.note("likes tea", note_type=NoteType.PREFERENCE)
    rules = (
        rule("note", priority=40, filter='note_type = "fact"'),
        rule("note", priority=95, name="wishes", max_tokens=12, filter='note_type = "preference"'),
    )
    window = world.window(config=kit.strict(injection_rules=list(rules)))
    assert [(item.name, item.section_type, item.priority) for item in window.sections] == [
        ("wishes", SectionType.NOTES, 95),
        ("notes", SectionType.NOTES, 40),
    ]
    assert window.text.startswith("# wishes\n- build (preference): likes tea")
    assert section(window, "wishes").token_count <= 12
    # Strictly by priority the smaller cap holds; a shared budget leaves rules theirs alone.
    shares = {"assembly.section_shares": {"notes": [0.0, 0.0003]}}
    capped = rule("note", max_tokens=30)
    assert section(world.window(config=kit.strict(injection_rules=[capped], **shares)), "notes") is None
    assert section(world.window(config=ruled(capped, **shares)), "notes").token_count <= 30


def test_rules_share_a_budget_strictly_by_priority(world: Any) -> None:
    # C-160: no floor of another section comes before a better rule, and no share holds it back
    for at in range(6):
        world.note(f"note {at} " + "and more " * 12)
        world.artifact(f"artifact {at} " + "and more " * 12)
    world.scope(summary="scope " + "and more " * 12)
    for first, second in (("note", "artifact"), ("artifact", "note"), ("note", "scope"), ("scope", "note")):
        config = ruled(rule(first, priority=90), rule(second, priority=10), **{"assembly.overflow_policy": "exclude"})
        window = world.window(config=config, max_tokens=130)
        left = {item.rule for item in window.assembly_trace if item.rule_id == "budget_limit"}
        entered = {item.rule for item in window.assembly_trace if item.action is not AssemblyAction.EXCLUDE}
        assert first in entered, (first, second)
        assert second not in entered or first not in left, (first, second)


@pytest.mark.parametrize("policy", ["truncate", "exclude"])
def test_the_cap_of_a_rule_is_hard_and_overflow_acts_on_it(world: Any, policy: str) -> None:
    # C-219, C-223
    world.note("tea " * 60)
    overflow = {"assembly.overflow_policy": policy, "assembly.truncate_min_tokens": 5}
    config = ruled(rule("note", max_tokens=30), **overflow)
    assembled = world.assemble(config=config)
    (brought,) = assembled.window.assembly_trace
    if policy == "exclude":
        assert (brought.rule_id, assembled.window.sections) == ("section_limit", ())
    else:
        assert brought.rule_id == "overflow_truncate"
        assert 20 < section(assembled.window, "notes").token_count <= 30
    same_again(world, config, assembled)


def test_a_filter_sees_the_window_it_is_asked_for(world: Any) -> None:
    # C-161, C-164, C-220, C-221: now() is valid time for notes
    now = from_us(world.clock.now_us())
    old = world.note("holds no longer", valid_until=now + timedelta(hours=1))
    kept = world.note("holds for good")
    config = ruled(rule("note", filter="valid_until > now()"))
    assert set(taken(world.window(config=config), "notes")) == {old, kept}
    later = world.clock.now_us() + 3_600_000_000
    assert taken(world.window(config=config, now_us=later, as_of_us=later), "notes") == [kept]
    mine = world.artifact("ours")
    parent = world.trajectory_id
    world.trajectory_id = world.trajectory(parent)
    world.scope_id = world.scope()
    its = world.artifact("its own")
    everything = world.window(config=ruled(rule("artifact")))
    assert set(taken(everything, "artifacts")) == {mine, its}
    own = ruled(rule("artifact", filter="trajectory_id = current_trajectory and scope_id = current_scope"))
    assert taken(world.window(config=own), "artifacts") == [its]


def test_full_takes_the_newest_under_its_limit(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-220, O-15
    notes = [world.note(f"number {at}") for at in range(5)]
    set_limits(monkeypatch, rule_limit=3)
    config = ruled(rule("note"))
    window = world.window(config=config, query="number 0")
    assert taken(window, "notes") == [*reversed(notes[2:])]
    (cut,) = window.cut_offs
    assert (cut.rule, cut.filter, cut.limit, cut.considered, cut.kept) == ("note", "newest", 3, 5, 3)


def test_top_k_takes_the_most_relevant_or_the_newest(world: Any) -> None:
    # C-156, C-220
    tea = world.note("tea is made with hot water")
    others = [world.note(f"nothing of that, {at}") for at in range(4)]
    config = searched(rule("note", ("top_k", 2)))
    found = world.window(config=config, query="hot tea")
    assert taken(found, "notes") == [tea]
    assert [(cut.filter, cut.kept) for cut in found.cut_offs] == [("not_found", 1)]
    assert taken(world.window(config=config), "notes") == [others[3], others[2]]


def test_relevant_takes_what_is_near_enough(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-156, C-196, C-220
    world.open_space(4)
    near = world.note("near", [1, 0, 0, 0])
    nearish = world.note("nearish", [0.8, 0.6, 0, 0])
    world.note("far", [0, 1, 0, 0])
    world.note("without a vector")
    options = {"assembly.relevance": "vector"}
    call = {"query": "x", "query_embedding": [1, 0, 0, 0]}
    assert taken(world.window(config=ruled(rule("note", ("relevant", 0.7)), **options), **call), "notes") == [
        near,
        nearish,
    ]
    strict = ruled(rule("note", ("relevant", 0.9)), **options)
    window = world.window(config=strict, **call)
    assert taken(window, "notes") == [near]
    assert [(cut.filter, cut.cutoff_score, cut.kept) for cut in window.cut_offs] == [("min_similarity", 0.9, 1)]
    assert len(taken(world.window(config=strict), "notes")) == 4  # nothing is asked: the newest
    set_limits(monkeypatch, relevant_limit=1, recency_fallback_limit=2)
    few = ruled(rule("note", ("relevant", 0.7)), **options)
    assert taken(world.window(config=few, **call), "notes") == [near]
    assert len(taken(world.window(config=strict), "notes")) == 2


def test_relevant_goes_by_the_search_score_where_a_search_judges(world: Any) -> None:
    # C-156, C-220
    tea = world.note("hot tea with hot water is tea")
    weak = world.note("water, and a great many other words about all kinds of things that nobody asked for")
    low = searched(rule("note", ("relevant", 0.0)))
    both = world.window(config=low, query="hot tea water")
    assert taken(both, "notes") == [tea, weak]
    between = section(both, "notes").sources[1].relevance + 0.01
    high = searched(rule("note", ("relevant", between)))
    window = world.window(config=high, query="hot tea water")
    assert taken(window, "notes") == [tea]
    assert [cut.filter for cut in window.cut_offs] == ["min_relevance"]


def test_summary_brings_the_first_sentences(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-220
    world.note("The tests use make. " + "More about it follows here. " * 30)
    world.note("Short.")
    world.artifact("word " * 400)
    world.scope(summary="We began. " + "And went on. " * 30, closed=True)
    rules = [rule("note", "summary"), rule("artifact", "summary"), rule("scope", "summary")]
    set_limits(monkeypatch, summary_mode_tokens=12)
    config = ruled(*rules)
    assembled = world.assemble(config=config)
    window = assembled.window
    assert content(window, "notes") == "# Notes\n- build (fact): Short.\n\n- build (fact): The tests use make."
    assert content(window, "artifacts").endswith("word...\n\n")
    assert len(content(window, "artifacts")) < 70
    assert content(window, "history").count("And went on.") == 30  # a summary is short already
    same_again(world, config, assembled)


# --- competing -----------------------------------------------------------------------------------


def test_a_record_enters_once_by_the_best_rule(world: Any) -> None:
    # C-217, O-15
    one, two = world.note("one", confidence=0.9), world.note("two", confidence=0.2)
    config = ruled(
        rule("note", priority=10, name="rest"),
        rule("note", priority=20, name="sure", filter="confidence > 0.5"),
        rule("note", priority=20, name="sure_too", filter="confidence > 0.5"),
    )
    assembled = world.assemble(config=config)
    window = assembled.window
    assert (taken(window, "sure"), taken(window, "sure_too"), taken(window, "rest")) == ([one], [], [two])
    assert [(cut.rule, cut.filter, cut.considered, cut.kept, cut.condition) for cut in window.cut_offs] == [
        ("sure", "filter", 2, 1, "confidence > 0.5"),
        ("sure_too", "filter", 2, 1, "confidence > 0.5"),
        ("sure_too", "taken_by:sure", 1, 0, None),
        ("rest", "taken_by:sure", 2, 1, None),
    ]
    same_again(world, config, assembled)


# --- the conversation ----------------------------------------------------------------------------


def test_a_rule_says_how_the_conversation_enters(world: Any) -> None:
    # C-465
    for at in range(6):
        world.turn(f"turn {at}", TurnRole.USER if at % 2 else TurnRole.ASSISTANT)
    config = ruled(rule("turn_buffer", priority=7, filter="turn_number > 2"))
    assembled = world.assemble(config=config)
    window = assembled.window
    assert window.text == "# Conversation\nuser: turn 3\n\nassistant: turn 4\n\n# Now\nuser: turn 5"
    assert section(window, "user").priority == 7
    assert [(cut.rule, cut.filter, cut.kept) for cut in window.cut_offs] == [("turn_buffer", "filter", 3)]
    assert {item.rule for item in window.assembly_trace} == {"turn_buffer", None}  # the last message always enters
    same_again(world, config, assembled)
    now, whole = section(window, "current").token_count, window.used_tokens
    for limit in range(now, whole + 40):
        capped = world.window(config=ruled(rule("turn_buffer", max_tokens=limit)))
        assert sum(item.token_count for item in capped.sections) <= limit
        assert section(capped, "current") is not None
        assert section(capped, "user") is not None or limit < now + 30


def talks(world: Any) -> dict[str, Any]:
    """Write turns in closed scopes of the task, in another task of its owner, and in a stranger's task."""
    first = world.scope_id
    out = {"tea": world.turn("I like tea with milk", name="Ada", scope=first)}
    for at in range(3):
        world.turn(f"small talk {at}", TurnRole.ASSISTANT, scope=first)
    other, stranger = world.trajectory(), world.trajectory(initiator=EntityRef(EntityType.USER, kit.numbered(7)))
    there, elsewhere = world.scope(trajectory=other), world.scope(trajectory=stranger)
    out["cup"] = world.turn("I like my blue tea cup", trajectory=other, scope=there, trust=TrustLabel.USER)
    out["page"] = world.turn("tea is poison, says a page", trajectory=other, scope=there, trust=TrustLabel.WEB)
    out["theirs"] = world.turn("SECRET tea", trajectory=stranger, scope=elsewhere)
    world.scope_id = world.scope()
    out["coffee"] = world.turn("coffee is fine, too")
    world.turn("yes, coffee it is", TurnRole.ASSISTANT)
    out["now"] = world.turn("which tea do I like?")
    return out


def test_rules_rank_turns_of_all_tasks_of_the_owner(world: Any) -> None:
    # C-156, C-220, design section 5 (What a window is for)
    turns = talks(world)
    config = searched(rule("turn_buffer", ("top_k", 2)))
    assembled = world.assemble(config=config, query="which tea do I like?")
    window = assembled.window
    assert [(item.name, item.section_type) for item in window.sections] == [
        ("recall", SectionType.RECALL),
        ("current", SectionType.CURRENT),
    ]
    assert set(taken(window, "recall")) == {turns["tea"], turns["cup"]}
    assert window.text.startswith("# From earlier\n[Ada, ")
    assert content(window, "recall").count("\n\n[user, ") == 1
    assert window.text.endswith("# Now\nuser: which tea do I like?")  # the conversation is ranked, too
    assert {item.rule for item in window.assembly_trace} == {"turn_buffer", None}
    same_again(world, config, assembled)
    world.config = config
    told = why(world, config, assembled, turns["theirs"])
    assert (told["verdict"], told["filter"]) == ("filtered", "out_of_reach")
    assert "recall.from = owner" in told["reason"]
    told = why(world, config, assembled, turns["page"])
    assert (told["verdict"], told["filter"]) == ("filtered", "out_of_reach")
    assert "its label is web" in told["reason"]
    told = why(world, config, assembled, turns["coffee"])
    assert (told["verdict"], told["rule"], told["filter"]) == ("cut_off", "turn_buffer", "relevance_limit")
    newest = world.window(config=config)  # nothing is asked: the two newest before the last message
    assert content(newest, "recall").endswith("[user, 14 November 2023] coffee is fine, too\n"
                                              "assistant: yes, coffee it is\n\n")  # fmt: skip


def test_relevant_ranks_turns_from_a_relevance_on(world: Any) -> None:
    # C-156, C-196
    turns = talks(world)
    low = searched(rule("turn_buffer", ("relevant", 0.0)))
    every = world.window(config=low, query="tea with milk")
    assert {turns["tea"], turns["cup"]} <= set(taken(every, "recall"))
    best = max(section(every, "recall").sources, key=lambda item: item.relevance)
    assert best.id == turns["tea"]
    high = searched(rule("turn_buffer", ("relevant", best.relevance - 0.01)))
    window = world.window(config=high, query="tea with milk")
    assert taken(window, "recall") == [turns["tea"]]
    assert [cut.filter for cut in window.cut_offs] == ["min_relevance"]


def test_a_conversation_keeps_its_place_beside_rules_that_rank(world: Any) -> None:
    # C-465: one rule about the conversation, any number that rank; a turn is shown once
    turns = talks(world)
    rules = [
        rule("turn_buffer", priority=20),
        rule("turn_buffer", ("top_k", 3), priority=90, name="tea", filter='role = "user"'),
        rule("turn_buffer", ("top_k", 9), priority=10),
    ]
    config = searched(*rules)
    assembled = world.assemble(config=config, query="tea or coffee?")
    window = assembled.window
    # The conversation does not look back as far as it could say everything again.
    assert [item.name for item in window.sections] == ["user", "tea", "current"]
    assert turns["cup"] in taken(window, "tea")
    shown = [item.id for part in window.sections for item in part.sources]
    assert len(set(shown)) == len(shown)
    assert "SECRET" not in window.text
    same_again(world, config, assembled)
    small = world.window(config=config, query="tea or coffee?", max_tokens=60)
    assert section(small, "current") is not None
    without = world.window(config=searched(rule("note")), query="tea or coffee?")
    assert "coffee is fine, too" in content(without, "user")  # a rule about notes says nothing of the conversation


def test_a_filter_keeps_untrusted_turns_out_also_when_recalled(world: Any) -> None:
    # design section 10
    turns = talks(world)
    trusting = {"recall.trust": "web"}
    every = searched(rule("turn_buffer", ("top_k", 9)), **trusting)
    assert turns["page"] in taken(world.window(config=every, query="tea"), "recall")
    config = searched(rule("turn_buffer", ("top_k", 9), filter='trust != "web"'), **trusting)
    window = world.window(config=config, query="tea")
    assert turns["page"] not in taken(window, "recall")
    assert turns["cup"] in taken(window, "recall")
    assert "poison" not in window.text


def test_strictly_by_priority_ranked_turns_are_passages_too(world: Any) -> None:
    turns = talks(world)
    config = kit.strict_searching(injection_rules=[rule("turn_buffer", ("top_k", 3), priority=90), rule("note")])
    assembled = world.assemble(config=config, query="which tea do I like?")
    window = assembled.window
    assert [item.name for item in window.sections] == ["user", "recall"]
    assert {turns["tea"], turns["cup"]} < set(taken(window, "recall"))
    assert content(window, "recall").count(", 14 November 2023] ") == 2
    assert window.text.startswith("# Conversation\nuser: which tea do I like?\n\n# From earlier\n[")
    same_again(world, config, assembled)
    beside = kit.strict_searching(injection_rules=[rule("turn_buffer"), rule("turn_buffer", ("top_k", 3))])
    window = world.window(config=beside, query="which tea do I like?")
    assert "coffee is fine, too" in content(window, "user")
    shown = [item.id for part in window.sections for item in part.sources]
    assert len(set(shown)) == len(shown)


@pytest.mark.parametrize("rules", [(), (rule("turn_buffer"),)], ids=["as it is", "by a rule"])
def test_explain_says_that_the_call_of_a_result_was_cut_off(
    world: Any, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # K-075, O-15: a result that comes late is newer than the limit, and its call is not
    world.turn("look it up", TurnRole.ASSISTANT, calls=[kit.ToolCall("late", "search", "{}")])
    world.turn("still there?")
    late = world.turn("42", TurnRole.TOOL, call_id="late", name="search")
    world.turn("thanks")
    set_limits(monkeypatch, max_turns=3)
    config = world.config = kit.config_of(injection_rules=list(rules))
    assembled = world.assemble(config=config)
    assert assembled.window.text == "# Conversation\nuser: still there?\n\n# Now\nuser: thanks"
    told = why(world, config, assembled, late)
    assert (told["verdict"], told["filter"]) == ("cut_off", "newest")
    assert "the call that this is a result of is older" in told["reason"]


def test_a_filter_keeps_calls_and_their_results_together(world: Any) -> None:
    # K-075, C-465
    world.turn("look it up")
    call, answer = world.tool_turns("42")
    world.turn("thanks")
    config = ruled(rule("turn_buffer", filter='role != "tool"'))
    assembled = world.assemble(config=config)
    assert assembled.window.text == "# Conversation\nuser: look it up\n\n# Now\nuser: thanks"
    (cut,) = assembled.window.cut_offs
    assert (cut.filter, cut.considered, cut.kept, cut.condition) == ("filter", 4, 2, 'role != "tool"')
    same_again(world, config, assembled)
    world.config = config
    assert why(world, config, assembled, answer)["reason"].endswith('role "tool" is not != "tool"')
    assert "it goes with a tool call" in why(world, config, assembled, call)["reason"]
    answers = [turn for turn in world.window(config=kit.config_of()).to_messages() if turn["role"] == TurnRole.TOOL]
    assert len(answers) == 1


def test_what_is_to_be_answered_enters_whatever_a_filter_says(world: Any) -> None:
    # issue, Build 2: the last user message and unanswered tool calls always enter
    world.turn("from a page", trust=TrustLabel.WEB)
    world.turn("noted", TurnRole.ASSISTANT, trust=TrustLabel.USER)
    world.turn("from a mail", trust=TrustLabel.WEB)
    done, result = world.tool_turns("a result")
    world.turn("", TurnRole.ASSISTANT, calls=[kit.ToolCall("open", "search", "{}")])
    config = ruled(rule("turn_buffer", filter='trust = "user"'))
    assembled = world.assemble(config=config)
    text = assembled.window.text
    assert text == "# Conversation\nassistant: noted\n\n# Now\nuser: from a mail\n\nassistant: [call open] search({})"
    same_again(world, config, assembled)
    world.config = config
    for turn in (done, result):
        assert why(world, config, assembled, turn)["filter"] == "rule"


# --- explaining ----------------------------------------------------------------------------------


def why(world: Any, config: Any, assembled: Any, record: Any) -> dict[str, Any]:
    return explain(
        assembled.record, config, Contents(world), exclusion=record, score_now=lambda *asked: world.score_now(*asked)
    )


def test_explain_names_the_comparison_that_failed(world: Any) -> None:
    # C-298, issue item 5
    doubtful = world.note("perhaps", confidence=0.3, entity="Ada")
    world.note("surely", confidence=0.9, entity="Ada")
    config = world.config = ruled(
        rule("note", filter="confidence > 0.5 and valid_until > now()"),
        rule("note", priority=10, filter='entity = "Bob" or entity = "Eve"', name="people"),
    )
    assembled = world.assemble()
    told = why(world, config, assembled, doubtful)
    assert told["verdict"] == "filtered"
    assert told["reason"] == (
        "the rule note filters it: confidence 0.3 is not > 0.5; "
        'the rule people filters it: entity "Ada" is not = "Bob", and entity "Ada" is not = "Eve"'
    )
    artifact = world.artifact("x")
    assembled = world.assemble()
    told = why(world, config, assembled, artifact)
    assert (told["verdict"], told["filter"]) == ("filtered", "no_rule")
    whole = explain(assembled.record, config, Contents(world))
    assert [(item["rule"], item["mode"], item["included"]) for item in whole["rules"]] == [
        ("note", "full", 1),
        ("people", "full", 0),
    ]
    assert whole["cut_offs"][0]["condition"] == "confidence > 0.5 and valid_until > now()"
    json.dumps(whole)


def test_explain_says_which_limit_of_which_rule_it_was(world: Any) -> None:
    # C-298
    notes = [world.note(f"tea {word} now") for word in ("alone", "first", "second", "third")]
    config = world.config = searched(rule("note", ("top_k", 2), filter="confidence > 0.5"))
    told = why(world, config, world.assemble(), notes[0])
    assert (told["verdict"], told["rule"], told["filter"]) == ("cut_off", "note", "newest")
    assert told["reason"].startswith("the rule note (top_k(2)) left it out: only the newest 2 of 4 were considered")
    told = why(world, config, world.assemble(query="tea second third"), notes[1])
    assert (told["verdict"], told["filter"]) == ("cut_off", "relevance_limit")
    assert 0 < told["score"] < told["cutoff_score"]
    near = searched(rule("note", ("relevant", 0.99)))
    world.config = near
    told = why(world, near, world.assemble(query="tea second third"), notes[1])
    assert (told["verdict"], told["filter"]) == ("cut_off", "min_relevance")
    assert "were near enough to the query; as everything is now, its relevance is" in told["reason"]


# --- rules for one window ------------------------------------------------------------------------


def test_a_rule_for_one_window_adds_to_what_is_there(world: Any) -> None:
    # K-065
    notes = [world.note(f"number {at}") for at in range(4)]
    shot = OneShot("note", InjectionKind.FULL, None, None, "policy greet at task_start")
    config = world.config = kit.config_of(**{"assembly.notes_without_query": 1})
    assembled = world.assemble(once=(shot,))
    window = assembled.window
    assert taken(window, "notes") == [notes[3]]
    assert taken(window, "once_note") == [notes[2], notes[1], notes[0]]
    assert [(cut.rule, cut.filter) for cut in window.cut_offs] == [(None, "newest"), ("once_note", "taken_by:note")]
    same_again(world, config, assembled)
    (told,) = explain(assembled.record, config, Contents(world))["rules"]
    assert (told["rule"], told["once"]) == ("once_note", "policy greet at task_start")
    governed = ruled(rule("note", ("top_k", 1), priority=33))
    both = world.assemble(config=governed, once=(shot, replace(shot, kind=InjectionKind.TOP_K, count=2)))
    assert taken(both.window, "notes") == [notes[3]]
    assert taken(both.window, "once_note") == [notes[2], notes[1], notes[0]]
    assert section(both.window, "once_note").priority == 33
    same_again(world, governed, both)


def test_a_rule_for_one_window_ranks_turns(world: Any) -> None:
    # K-065
    turns = talks(world)
    shot = OneShot("turn_buffer", InjectionKind.TOP_K, 4, None, "policy greet at task_start")
    config = world.config = searched(rule("note"))
    assembled = world.assemble(once=(shot,), query="which tea do I like?")
    assert taken(assembled.window, "once_turn_buffer") == [turns["cup"]]  # the conversation shows the other one
    assert "coffee is fine, too" in content(assembled.window, "user")
    same_again(world, config, assembled)


# --- what a configuration refuses ----------------------------------------------------------------


@pytest.mark.parametrize(("rules", "said"), [
    ([rule("nobody")], "there is no memory nobody"),
    ([rule("turn_buffer"), rule("turn_buffer", name="b")], "another rule injects the conversation"),
    ([rule("turn_buffer", ("top_k", 1)), rule("note", name="recall")], "is called recall"),
    ([rule("note", name="current")], "the section current is no rule's"),
    ([rule("turn_buffer", "summary")], "word for word"),
    ([rule("note", name="system")], "the section system is no rule's"),
    ([rule("note"), rule("artifact", name="notes")], "is called notes"),
    ([rule("note"), rule("note"), rule("artifact", name="note_2")], "is called note_2"),
])  # fmt: skip
def test_rules_that_cannot_be_are_refused(rules: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(MultipleErrors) as error:
        ruled(*rules)
    assert said in str(error.value)


def test_a_filter_that_does_not_compile_names_its_rule(world: Any) -> None:
    config = ruled(rule("note", filter="confidence > "))
    with pytest.raises(MultipleErrors) as error:
        world.window(config=config)
    assert "the filter of rule note" in str(error.value)


def test_what_a_rule_left_out_of_trajectories_above_is_told_as_its_doing(world: Any) -> None:
    # C-251, C-460: an artifact of a parent could have entered; that it is the parent's kept it out of nothing
    top = world.trajectory_id
    below = world.trajectory(parent=top)
    left = world.artifact("told above, before", trajectory_id=top)
    world.artifact("told above, after", trajectory_id=top)
    elsewhere = world.artifact("told elsewhere", trajectory_id=world.trajectory())
    world.trajectory_id = below
    config = ruled(rule("artifact", ("top_k", 1)))
    assembled = world.assemble(config=config)
    told = explain(assembled.record, config, Contents(world), exclusion=left)
    assert told["verdict"] == "cut_off"
    assert told["reason"].startswith("the rule artifact (top_k(1)) left it out: only the newest 1 of 2 were considered")
    assert explain(assembled.record, config, Contents(world), exclusion=elsewhere)["filter"] == "other_trajectory"


# --- what is asked once --------------------------------------------------------------------------


def test_a_filter_reads_each_text_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 5: work grows with what is new
    first, second = world.note("one of them"), world.note("other")
    config = ruled(rule("note", filter='content ~ "o[nf]" and valid_until > now()'))
    read: list[list[int]] = []
    texts = world.memory.texts

    def counting(snapshot: Any, rows: Any) -> Any:
        read.append(list(rows))
        return texts(snapshot, rows)

    before = world.memory.snapshot
    monkeypatch.setattr(world.memory, "texts", counting)
    assert taken(world.window(config=config), "notes") == [first]
    read.clear()
    assert taken(world.window(config=config), "notes") == [first]
    assert read == [[0]]  # the text of what enters, and no filter's
    third = world.note("one more")
    read.clear()
    assert taken(world.window(config=config), "notes") == [third, first]
    assert read[0] == [2]  # the filter asks about the row that is new
    world.change(NOTE, first, content="never")
    world.change(NOTE, second, content="one of us now")
    assert set(taken(world.window(config=config), "notes")) == {second, third}
    assert taken(world.window(config=config, snapshot=before), "notes") == [first]
    assert set(taken(world.window(config=config), "notes")) == {second, third}


def test_a_filter_answers_for_a_boundary_from_before_a_deletion(world: Any) -> None:
    gone, kept = world.note("gone"), world.note("kept")
    before = world.memory.snapshot
    world.delete(NOTE, gone)
    config = ruled(rule("note", filter='content contains "e"'))
    assert taken(world.window(config=config), "notes") == [kept]
    assert set(taken(world.window(config=config, snapshot=before), "notes")) == {gone, kept}
    assert taken(world.window(config=config), "notes") == [kept]
