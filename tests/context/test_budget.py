"""Filling of a budget: shares and caps, cuts, tool calls, turns that leave in blocks, prefixes that stay."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import numpy as np
import pytest
from support.context import world as kit
from support.context.limits import set_limits
from support.evidence import share

import caliber
from caliber import EntityRef, EntityType
from caliber.context.filling.shown_turns import Run, block_start
from caliber.kernels import BytesEstimator, estimate_tokens
from caliber.model.context import AssemblyAction, SourceType
from caliber.model.errors import BudgetTooSmall, InvalidValue
from caliber.model.storage import ResultStatus
from caliber.model.trajectory import ToolCall, TurnRole

PLAIN: dict[str, Any] = {
    "tokens.bytes_per_token": 1.0,
    "assembly.message_overhead_tokens": 0,
    "assembly.section_headers": False,
    "assembly.separator": "|",
    "assembly.section_shares": {},
    "assembly.fill_ratio": 1.0,
    "assembly.overflow_policy": "exclude",
    "assembly.truncate_min_tokens": 4,
}
"""One byte a token, nothing but the texts: arithmetic that can be done in the head."""


@pytest.fixture(autouse=True)
def _all_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no budget be small, and leave no room to turns beyond their share."""
    set_limits(monkeypatch, recent_from_tokens=0, spare_share=0.0)


def strict(**overrides: Any) -> Any:
    """The budget is filled strictly by priority."""
    return kit.strict(**{**PLAIN, **overrides})


def shared(**overrides: Any) -> Any:
    """The budget is shared."""
    return kit.config_of(**{**PLAIN, **overrides})


WAYS = pytest.mark.parametrize("config_of", [strict, shared])


def contents(window: Any) -> list[str]:
    return [message.content for message in window.messages if message.role != "system"]


def rules(window: Any, kind: SourceType) -> list[str]:
    """The rule that decided about each record of a kind, oldest first."""
    return [d.rule_id for d in sorted(window.assembly_trace, key=lambda d: d.ordinal) if d.source_type is kind]


# --- the budget itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -5, 8_001, True, 1.5, None])
def test_a_budget_is_a_whole_number_within_the_token_budget(world: Any, wrong: Any) -> None:
    # K-073
    with pytest.raises(InvalidValue, match="max_tokens"):
        world.window(max_tokens=wrong)


@WAYS
def test_an_exact_fit_fits(world: Any, config_of: Any) -> None:
    # C-050, C-457
    for at in range(3):
        world.turn(f"turn {at}")
    config = config_of()
    need = len("user: turn 0|user: turn 1|user: turn 2")
    whole = world.window(config=config, max_tokens=need)
    assert whole.used_tokens == need
    assert len(whole.messages) == 3
    less = world.window(config=config, max_tokens=need - 1)
    assert contents(less) == ["turn 1", "turn 2"]
    (refused,) = [d for d in less.assembly_trace if d.action is AssemblyAction.EXCLUDE]
    assert refused.tokens == len("user: turn 0")
    assert refused.rule_id == "left_with_block"
    assert refused.reason == "turn 0 left with its block: the turns of this window begin at turn 1"


@WAYS
def test_later_smaller_candidates_may_still_fit(world: Any, config_of: Any) -> None:
    # C-457
    world.artifact("small")
    world.artifact("large " * 30)
    window = world.window(config=config_of(), max_tokens=60)
    assert rules(window, SourceType.ARTIFACT) == ["standard_inclusion", "budget_limit"]


@WAYS
def test_nothing_that_fits_is_an_error_that_says_what_would(world: Any, config_of: Any) -> None:
    world.artifact("some content")
    config = config_of()
    with pytest.raises(BudgetTooSmall) as caught:
        world.window(config=config, max_tokens=10)
    assert caught.value.max_tokens == 10
    needed = caught.value.needed
    assert world.window(config=config, max_tokens=needed).sections
    with pytest.raises(BudgetTooSmall):
        world.window(config=config, max_tokens=needed - 2)


def test_nothing_to_include_is_an_empty_window(world: Any) -> None:
    # C-463
    window = world.window(max_tokens=1)
    assert (window.status, window.text, window.used_tokens, window.to_messages()) == (ResultStatus.EMPTY, "", 0, [])
    world.open_space()
    world.artifact("irrelevant", [0, 1, 0, 0])
    window = world.window(max_tokens=1, query="q", query_embedding=[1, 0, 0, 0])
    assert window.text == ""
    assert len(window.assembly_trace) == 1


def test_instructions_are_cut_to_the_budget_and_never_dropped(world: Any) -> None:
    # K-076, C-463
    config = kit.strict(
        system_instructions="Answer in full sentences. " * 40,
        **{"section_priorities.system": 1, "assembly.overflow_policy": "exclude"},
    )
    world.turn("hello " * 30)
    window = world.window(config=config, max_tokens=60)
    assert [section.name for section in window.sections] == ["system"]
    assert window.text.endswith("...")
    assert window.used_tokens <= 60
    assert window.assembly_trace[0].action is AssemblyAction.TRUNCATE
    assert window.sections[0].priority == 1
    with pytest.raises(BudgetTooSmall):
        world.window(config=config, max_tokens=3)


def test_instructions_leave_room_for_what_is_asked(world: Any) -> None:
    # K-076, design section 5: neither pushes the other out
    config = kit.config_of(
        system_instructions="Answer in full sentences. " * 40, **{"assembly.overflow_policy": "exclude"}
    )
    world.turn("hello " * 30)
    window = world.window(config=config, max_tokens=140)
    assert [section.name for section in window.sections] == ["system", "current"]
    assert window.sections[0].content.endswith("...\n\n")
    assert contents(window) == ["hello " * 30]
    short = world.window(config=config, max_tokens=60)
    assert [section.name for section in short.sections] == ["system", "current"]
    assert {decision.action for decision in short.assembly_trace} == {AssemblyAction.TRUNCATE}
    assert short.used_tokens <= 60


@WAYS
def test_message_overhead_is_paid_for_each_message(world: Any, config_of: Any) -> None:
    # O-14
    for at in range(3):
        world.turn(f"turn {at}")
    world.note("n")
    config = config_of(system_instructions="Be brief.", **{"assembly.message_overhead_tokens": 7})
    window = world.window(config=config)
    messages = window.to_messages()
    assert len(messages) == (4 if config_of is strict else 5)
    assert window.used_tokens == len(window.text) + 7 * len(messages)
    spoken = sum(estimate_tokens(m["content"], estimator=BytesEstimator(1.0)) + 7 for m in messages)
    assert spoken <= window.used_tokens


# --- caps and cuts -----------------------------------------------------------------------------------


def test_strict_caps_hold(world: Any) -> None:
    # C-219
    for at in range(4):
        world.note(f"note {at}")
        world.artifact(f"artifact {at}")
    item = len("- build (fact): note 0")
    config = strict(**{"assembly.section_shares": {"notes": [0, (2 * item + 2) / 1_000], "artifacts": [0, 0]}})
    window = world.window(config=config, max_tokens=1_000)
    assert rules(window, SourceType.NOTE) == ["section_limit", "section_limit", *["standard_inclusion"] * 2]
    assert rules(window, SourceType.ARTIFACT) == ["section_limit"] * 4
    assert [section.name for section in window.sections] == ["notes"]
    (first, *_) = [d for d in window.assembly_trace if d.rule_id == "section_limit"]
    assert first.reason == "needs 21 tokens; section artifacts may hold 0 and is too full for it"


def test_a_strict_cap_follows_the_budget(world: Any) -> None:
    # issue item 2: shares scale with max_tokens
    for at in range(40):
        world.note(f"note {at}")
    config = strict(**MANY, **{"assembly.section_shares": {"notes": [0, 0.3]}})
    for budget in (200, 400, 900):
        window = world.window(config=config, max_tokens=budget)
        assert 0.3 * budget - 30 < window.used_tokens <= 0.3 * budget


def many(world: Any, count: int = 20) -> None:
    """Notes and artifacts whose texts are 24 bytes long each."""
    for at in range(count):
        world.note(f"note {at:03}")
        world.artifact(f"artifact {at:04}")
    assert len("- build (fact): note 000") == len("[fact]\n    artifact 0000") == 24


MANY = {"assembly.notes_without_query": 40, "pcp.dosage.max_notes_in_window": 40}


def counts(window: Any) -> dict[str, int]:
    return {section.name: len(section.sources) for section in window.sections}


def test_a_shared_cap_holds_while_another_section_has_something_that_fits(world: Any) -> None:
    # issue item 2
    many(world)
    config = shared(**MANY, **{"assembly.section_shares": {"notes": [0, 0.2]}})
    window = world.window(config=config, max_tokens=500)
    assert counts(window) == {"artifacts": 16, "notes": 4}
    assert set(rules(window, SourceType.NOTE)) == {"standard_inclusion", "budget_limit"}


def test_a_shared_cap_gives_way_where_nothing_else_fits(world: Any) -> None:
    # issue item 2
    many(world, 6)
    config = shared(**MANY, **{"assembly.section_shares": {"notes": [0, 0.1], "artifacts": [0, 0]}})
    window = world.window(config=config, max_tokens=300)
    assert counts(window) == {"artifacts": 6, "notes": 6}
    assert set(rules(window, SourceType.NOTE)) == {"standard_inclusion"}


def test_a_floor_is_kept_for_its_section(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue item 2: floors first, the rest by relevance
    world.open_space()
    for at in range(20):
        world.note(f"note {at:03}", [1, 0, 0, 0])
        world.artifact(f"artifact {at:04}", [1, 1, 0, 0])
    query = {"query": "q", "query_embedding": [1, 0, 0, 0], "max_tokens": 500}
    set_limits(monkeypatch, note_search_limit=40)
    wide = {"pcp.dosage.max_notes_in_window": 40}
    without = world.window(config=shared(**wide), **query)
    assert counts(without) == {"notes": 20}
    config = shared(**wide, **{"assembly.section_shares": {"artifacts": [0.2, 1], "notes": [0.1, 1]}})
    assert counts(world.window(config=config, **query)) == {"artifacts": 4, "notes": 16}


def test_what_a_floor_does_not_use_goes_to_the_others(world: Any) -> None:
    # issue item 2
    for at in range(20):
        world.note(f"note {at:03}")
    config = shared(**MANY, **{"assembly.section_shares": {"artifacts": [0.4, 1], "recall": [0.4, 1]}})
    assert counts(world.window(config=config, max_tokens=500)) == {"notes": 20}


@WAYS
def test_the_best_that_does_not_fit_is_cut_to_what_is_left(world: Any, config_of: Any) -> None:
    # C-223
    world.note("old")
    world.note("word " * 50)
    config = config_of(**{"assembly.overflow_policy": "truncate"})
    window = world.window(config=config, max_tokens=80)
    assert rules(window, SourceType.NOTE) == ["standard_inclusion", "overflow_truncate"]
    assert window.used_tokens <= 80
    assert window.text.startswith("- build (fact): word word")
    assert "...|" in window.text or "..." in window.text
    cut = next(d for d in window.assembly_trace if d.action is AssemblyAction.TRUNCATE)
    assert cut.reason == f"cut from {len('- build (fact): ' + 'word ' * 50)} to {cut.tokens} tokens, which were left"
    least = config_of(**{"assembly.overflow_policy": "truncate", "assembly.truncate_min_tokens": 70})
    assert rules(world.window(config=least, max_tokens=80), SourceType.NOTE)[1] == "budget_limit"


@WAYS
def test_artifacts_are_never_cut(world: Any, config_of: Any) -> None:
    # C-264, C-224
    world.turn("hello")
    world.artifact("word " * 50)
    config = config_of(**{"assembly.overflow_policy": "truncate"})
    window = world.window(config=config, max_tokens=80)
    assert rules(window, SourceType.ARTIFACT) == ["budget_limit"]


def test_a_strict_cap_cuts_too(world: Any) -> None:
    # issue item 2: overflow_policy acts on caps
    world.note("word " * 50)
    config = strict(**{"assembly.section_shares": {"notes": [0, 0.2]}, "assembly.overflow_policy": "truncate"})
    window = world.window(config=config, max_tokens=400)
    assert rules(window, SourceType.NOTE) == ["overflow_truncate"]
    assert 70 < window.used_tokens <= 80


def test_filling_ends_at_the_fill_ratio(world: Any) -> None:
    # C-218: no section is begun once the window is as good as full
    world.turn("x" * 80)
    world.note("n")
    open_end = world.window(config=strict(), max_tokens=120)
    assert [section.name for section in open_end.sections] == ["user", "notes"]
    config = strict(**{"assembly.fill_ratio": 0.7, "assembly.overflow_policy": "truncate"})
    closed = world.window(config=config, max_tokens=120)
    assert [section.name for section in closed.sections] == ["user"]
    (refused,) = [d for d in closed.assembly_trace if d.action is AssemblyAction.EXCLUDE]
    assert refused.rule_id == "budget_limit"
    assert refused.reason == "token_budget_exhausted: section notes came when 70% of 120 tokens were used"


# --- tool calls ----------------------------------------------------------------------------------------


@WAYS
def test_a_call_without_an_answer_is_never_cut(world: Any, config_of: Any) -> None:
    # O-8
    world.turn("thinking " * 20, TurnRole.ASSISTANT, calls=[ToolCall("c1", "run", "{}")])
    config = config_of(**{"assembly.overflow_policy": "truncate"})
    with pytest.raises(BudgetTooSmall) as caught:
        world.window(config=config, max_tokens=60)
    assert contents(world.window(config=config, max_tokens=caught.value.needed)) == ["thinking " * 20]


def test_calls_that_wait_for_an_answer_enter_with_the_question(world: Any) -> None:
    # issue item 2: the last user message and unanswered tool calls always enter
    world.turn("what does the log say?")
    calls = [ToolCall("c1", "read", '{"file": "a.log"}'), ToolCall("c2", "read", '{"file": "b.log"}')]
    world.turn("", TurnRole.ASSISTANT, calls=calls)
    world.turn("all is well " * 5, TurnRole.TOOL, call_id="c1", name="read")
    for at in range(30):
        world.note(f"note {at:03}")
    window = world.window(config=shared(**MANY), max_tokens=300)
    assert [message.role for message in window.messages[-3:]] == ["user", "assistant", "tool"]
    assert counts(window)["current"] == 3


def test_an_answer_to_a_call_before_the_question_enters_with_its_call(world: Any) -> None:
    # O-8
    world.turn("what do the logs say?")
    calls = [ToolCall("c1", "read", '{"file": "a.log"}'), ToolCall("c2", "read", '{"file": "b.log"}')]
    world.turn("x" * 60, TurnRole.ASSISTANT, calls=calls)
    world.turn("be quick")
    world.turn("ok", TurnRole.TOOL, call_id="c1", name="read")
    seen = set()
    for budget in range(20, 260):
        window = world.window(config=shared(), max_tokens=budget)
        seen.add(tuple(message.role for message in window.messages))
    assert seen == {("user",), ("assistant", "user", "tool"), ("user", "assistant", "user", "tool")}


@WAYS
def test_a_newest_turn_that_is_too_long_is_cut(world: Any, config_of: Any) -> None:
    # K-075: the newest turn matters most
    world.turn("short")
    world.turn("long " * 100)
    window = world.window(config=config_of(**{"assembly.overflow_policy": "truncate"}), max_tokens=100)
    assert contents(window)[-1].startswith("long long")
    assert contents(window)[-1].endswith("...")
    assert window.text.endswith(contents(window)[-1])
    # The last user message always enters, whatever the policy.
    assert contents(world.window(config=config_of(), max_tokens=100)) == contents(window)[-1:]


# --- the newest exchanges --------------------------------------------------------------------------------


def chat(world: Any, exchanges: int, length: int = 20) -> None:
    for at in range(exchanges):
        world.turn(f"question {at:02} ".ljust(length, "q"))
        world.turn(f"answer {at:02} ".ljust(length, "a"), TurnRole.ASSISTANT)


def test_the_newest_exchanges_enter_before_anything_is_recalled(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # issue item 2: the newest exchanges have a floor
    chat(world, 10, 50)
    world.turn("and now?")
    for at in range(20):
        world.note(f"note {at:03}")
    # Floors of others as large as this leave the conversation no share of its own.
    shares = {"assembly.section_shares": {"user": [0, 0.1], "notes": [0.9, 1]}}
    for exchanges in (0, 1, 2, 3):
        set_limits(monkeypatch, recent_exchanges=exchanges)
        window = world.window(config=shared(**MANY, **shares), max_tokens=500)
        shown = [text[:11] for text in contents(window) if text.startswith(("question", "answer"))]
        assert shown == [
            name for at in range(10 - exchanges, 10) for name in (f"question {at:02}", f"answer {at:02} a")
        ], exchanges
        assert "notes" in counts(window)


def test_below_a_budget_only_the_question_is_certain(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # design section 5: below about 500 tokens relevance wins over recency
    chat(world, 4, 50)
    world.turn("and now?")
    for at in range(20):
        world.note(f"note {at:03}")
    shares = {"assembly.section_shares": {"user": [0, 0.1], "notes": [0.9, 1]}}
    set_limits(monkeypatch, recent_from_tokens=301)
    small = world.window(config=shared(**MANY, **shares), max_tokens=300)
    assert contents(small)[-1] == "and now?"
    assert not any(text.startswith(("question", "answer")) for text in contents(small))
    set_limits(monkeypatch, recent_from_tokens=300)
    large = world.window(config=shared(**MANY, **shares), max_tokens=300)
    assert sum(text.startswith(("question", "answer")) for text in contents(large)) == 4


def test_what_was_said_before_a_pause_keeps_only_the_floor(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chat(world, 10, 50)
    world.clock.advance(us=3_600_000_000)
    world.turn("hello again")
    for at in range(20):
        world.note(f"note {at:03}")
    shares = {"assembly.section_shares": {"user": [0.2, 0.9]}, "assembly.evict_block_turns": 1}
    set_limits(monkeypatch, recent_exchanges=0, pause_ms=30 * 60_000)
    past = world.window(config=shared(**MANY, **shares), max_tokens=500)
    assert counts(past)["user"] == 1
    assert counts(past)["notes"] > 10
    set_limits(monkeypatch, pause_ms=120 * 60_000)
    same = world.window(config=shared(**MANY, **shares), max_tokens=500)
    assert counts(same)["user"] > 5


# --- blocks and prefixes ---------------------------------------------------------------------------------


def run(costs: list[int], start: int = 0, groups: list[int] | None = None) -> Run:
    return Run.of(np.arange(start, start + len(costs)), np.array(groups or [-1] * len(costs)), np.array(costs))


def begin(costs: list[int], capacity: int, block: int, start: int = 0, most: int = 1 << 30, **options: Any) -> int:
    made = run(costs, start, options.pop("groups", None))
    earliest = made.earliest(capacity)
    assert earliest is not None
    return block_start(made, earliest, options.pop("latest", None), block_turns=block, most=most)


def test_turns_leave_in_blocks_at_absolute_numbers() -> None:
    # design section 5
    assert begin([1] * 10, 10, 4) == 0
    assert begin([1] * 11, 10, 4) == 4
    assert begin([1] * 14, 10, 4) == 4
    assert begin([1] * 15, 10, 4) == 8
    assert begin([1] * 15, 10, 4, start=3) == 8
    assert begin([1] * 10, 2, 4) == 8
    # a block that would push out the newest turn is halved
    assert begin([1] * 5, 2, 16) == 4
    assert begin([1] * 4, 3, 16) == 2
    assert run([1, 1, 1, 9]).earliest(3) is None


def test_a_block_is_halved_while_it_takes_too_much() -> None:
    # issue item 2: eviction in blocks never takes more than a share of its section
    assert begin([10] * 20, 110, 16, most=160) == 16
    assert begin([10] * 20, 110, 16, most=159) == 16  # in blocks of eight turn 16 is next, too
    assert begin([10] * 20, 110, 16, most=79) == 12
    assert begin([10] * 20, 110, 16, most=39) == 10
    assert begin([10] * 20, 110, 16, most=19) == 9


def test_the_beginning_stays_until_it_must_go() -> None:
    # design section 5: whatever lengths turns have, the window begins at the same turn while the next block fits
    rng = np.random.default_rng(5)
    costs = rng.integers(1, 40, 400).tolist()
    for most in (50, 100, 200, 1 << 30):
        starts = [begin(costs[:count], 500, 16, most=most) for count in range(60, 400)]
        assert starts == sorted(starts)
        for before, after, count in zip(starts, starts[1:], range(61, 400), strict=False):
            assert after == before or sum(costs[before:count]) > 500


def test_a_block_pushes_out_nothing_that_must_stay() -> None:
    # the newest exchanges
    assert begin([1] * 20, 11, 16, latest=18) == 16
    assert begin([1] * 20, 11, 16, latest=15) == 12
    assert begin([1] * 20, 11, 16, latest=9) == 9


def test_a_group_begins_where_its_first_turn_does() -> None:
    # O-8
    made = run([1] * 6, groups=[-1, 1, -1, 1, -1, -1])
    assert made.begins.tolist() == [0, 1, 2, 1, 4, 5]
    assert made.starts.tolist() == [0, 1, 2, 4, 5]
    assert made.totals.tolist() == [6, 5, 3, 2, 1]
    assert [made.cost_from(start) for start in range(7)] == [6, 5, 3, 2, 2, 1, 0]
    assert made.earliest(4) == 2
    assert made.earliest(4, 3) == 4
    assert made.earliest(0) is None
    late = run([1] * 6, groups=[-1, 1, -1, -1, -1, 1])
    assert late.starts.tolist() == [0, 1, 2, 3, 4]
    assert late.earliest(4) == 2


def test_turns_of_a_group_that_began_before_the_window_are_left_out(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # O-8: an answer that came late goes with its call
    world.turn("look")
    world.turn("", TurnRole.ASSISTANT, calls=[ToolCall("c1", "read", "{}")])
    world.turn("meanwhile " * 4)
    world.turn("found", TurnRole.TOOL, call_id="c1", name="read")
    world.turn("thanks")
    set_limits(monkeypatch, recent_exchanges=0)
    config = shared()
    need = len("user: " + "meanwhile " * 4 + "|user: thanks|")
    window = world.window(config=config, max_tokens=need)
    assert contents(window) == ["meanwhile " * 4, "thanks"]
    assert rules(window, SourceType.TURN) == [
        "left_with_block", "left_with_block", "standard_inclusion", "group_limit", "standard_inclusion",
    ]  # fmt: skip


def common(first: str, second: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


WORDS = [f"{start}{middle}{end}" for start in "bdfgklmnprst" for middle in "aeiou" for end in ("r", "nd", "st", "lt")]
SEARCHED = {"assembly.relevance": "search", "min_relevance_threshold": 0.0}


class Talk:
    """A conversation whose turns hold words that nothing else holds, and one that was said before."""

    def __init__(self, budget: int, **overrides: Any) -> None:
        config = kit.config_of(system_instructions="Be brief. " * 20, token_budget=budget, **SEARCHED, **overrides)
        self.world = kit.World(config)
        self.rng = np.random.default_rng(3)
        self.names: list[str] = []
        for _ in range(30):
            self.world.note(self.words(8, 20))
        self.query = self.words(5, 20)
        for at in range(300):
            self.say(at)

    def words(self, least: int, most: int) -> str:
        rng = self.rng
        new = ["".join(rng.choice(list("bcdfgklmnprstvz"), 6)) for _ in range(int(rng.integers(least, most)))]
        self.names.append(new[0])
        return " ".join([*new, str(rng.choice(self.names))])

    def say(self, at: int, *, with_tools: bool = False) -> None:
        if with_tools and at % 7 == 0:
            self.world.tool_turns(self.words(5, 40))
            return
        text = self.words(5, 60)
        self.world.turn(text, TurnRole.USER if at % 2 else TurnRole.ASSISTANT)
        if at % 2:
            self.query = text

    def window(self) -> Any:
        return self.world.window(query=self.query)


@pytest.mark.parametrize(("budget", "with_tools"), share(itertools.product([4_000, 8_000], [False, True]), 1, daily=4))
def test_a_hundred_turns_keep_most_of_the_prefix(budget: int, with_tools: bool) -> None:
    # design section 5, issue item 5: each user turn is its own query, and the conversation fills its share
    talk = Talk(budget)
    before = talk.window()
    assert before.used_tokens > 0.7 * budget
    kept, total, following = 0, 0, 0
    for at in range(100):
        talk.say(at, with_tools=with_tools)
        after = talk.window()
        kept += common(before.text, after.text)
        total += len(after.text)
        following += sum(item.token_count for item in after.sections if item.name in FOLLOWING)
        before = after
    talk.world.close()
    assert following / 100 <= budget / 4
    assert kept / total >= 0.7


def test_what_is_said_to_stay_does_stay() -> None:
    # docs/decisions/0017: under otherwise equal inputs, and while no turn is longer than those that are shown
    talk = Talk(8_000)
    before = talk.window()
    promises = 0
    for at in range(100):
        promised = [item for item in before.sections if _within(before, item, before.stable_prefix_tokens)]
        longest = max(source.tokens for item in before.sections if item.name in TURNS for source in item.sources)
        query = talk.query
        talk.say(at)
        after = talk.window()
        (*_, appended) = after.sections[-1].sources
        if appended.tokens <= longest and "user" in {item.name for item in promised} and talk.query == query:
            promises += 1
            assert after.text.startswith("".join(item.content for item in promised))
        before = after
    talk.world.close()
    assert promises > 2


FOLLOWING = ("artifacts", "notes", "recall")
TURNS = ("user", "current")


@pytest.mark.parametrize("budget", share([4_000, 8_000], 1, daily=2))
def test_what_is_recalled_in_plenty_leaves_half_of_the_prefix(budget: int) -> None:
    # every query finds more than fits: what follows it fills what a block leaves
    rng = np.random.default_rng(3)
    world = kit.World(kit.config_of(token_budget=budget, **SEARCHED))
    texts = [" ".join(rng.choice(WORDS, int(rng.integers(5, 60)))) for _ in range(400)]
    for at, text in enumerate(texts[:300]):
        world.turn(text, TurnRole.USER if at % 2 else TurnRole.ASSISTANT)
    before = world.window(query=texts[299])
    kept = total = 0
    for at, text in enumerate(texts[300:]):
        world.turn(text, TurnRole.USER if at % 2 else TurnRole.ASSISTANT)
        after = world.window(query=text if at % 2 else texts[299 + at])
        kept += common(before.text, after.text)
        total += len(after.text)
        before = after
    assert before.used_tokens > 0.83 * budget
    assert kept / total >= 0.5
    world.close()


def _within(window: Any, wanted: Any, tokens: int) -> bool:
    """Return whether a section lies whole within the first ``tokens``."""
    used = 0
    for section in window.sections:
        used += section.token_count
        if section is wanted:
            return used <= tokens
    return False


def test_what_precedes_the_last_message_does_not_depend_on_the_query(world: Any) -> None:
    # design section 5: where the conversation begins depends on turns alone
    world.open_space()
    config = kit.config_of(token_budget=2_000, min_relevance_threshold=0.0)
    for at in range(40):
        world.note(f"note {at} " * 10, [1, at, 0, 0])
        world.artifact(f"artifact {at} " * 30, [at, 1, 0, 0])
    for at in range(120):
        world.turn(f"turn {at} " * 12, TurnRole.USER if at % 2 else TurnRole.ASSISTANT)
    before, after = set(), set()
    for at in range(20):
        window = world.window(config=config, query=f"query {at}", query_embedding=[1, at / 4, 0, 0])
        names = [section.name for section in window.sections]
        assert "user" in names
        first = names.index("user") + 1
        before.add("".join(section.content for section in window.sections[:first]))
        after.add("".join(section.content for section in window.sections[first:]))
    assert len(before) == 1
    assert len(after) > 5


def test_stable_prefix_of_a_short_conversation_is_all_that_does_not_follow_the_query(world: Any) -> None:
    config = kit.config_of(system_instructions="Be brief.")
    world.turn("hello")
    world.turn("hi", TurnRole.ASSISTANT)
    world.turn("look")
    world.note("n")
    window = world.window(config=config)
    assert [section.name for section in window.sections] == ["system", "user", "notes", "current"]
    assert window.stable_prefix_tokens == sum(section.token_count for section in window.sections[:2])
    before = "".join(section.content for section in window.sections[:2])
    world.turn("bye")
    assert world.window(config=config).text.startswith(before)


def test_stable_prefix_of_strict_priorities_is_everything_that_fits(world: Any) -> None:
    config = kit.strict(system_instructions="Be brief.")
    world.turn("hello")
    window = world.window(config=config)
    assert window.stable_prefix_tokens == sum(section.token_count for section in window.sections)
    before = window.text
    world.turn("bye")
    assert world.window(config=config).text.startswith(before)


# --- the budget that a refusal asks for is enough --------------------------------------------------


ME = EntityRef(EntityType.USER, uuid.UUID(int=7))


@pytest.mark.parametrize("profile", ["reference", "coding-agent", "chat-companion", "ops-agent"])
@pytest.mark.parametrize("headers", [True, False])
def test_what_is_asked_for_is_enough(profile: str, headers: bool) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "assembly.section_headers": headers}
    refused = 0
    with caliber.open(caliber.profiles.PROFILES[profile](":memory:", **knobs)) as memory:
        task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        scope = memory.open_scope(task).scope_id
        memory.add_note(
            entity="lantern", entity_type="thing", note_type="fact", content="The lantern is green.", confidence=0.9
        )
        memory.append_turn(scope, role="user", content="What colour is the lantern in the harbour?")
        memory.flush()
        for extra in ({}, {"persona": "You keep the harbour."}):
            for budget in range(1, 20):
                needed = 0
                try:
                    memory.assemble_context(task, max_tokens=budget, extra_sections=extra)
                except BudgetTooSmall as error:
                    needed = error.needed
                if needed:
                    refused += 1
                    assert needed > budget
                    assert memory.assemble_context(task, max_tokens=needed, extra_sections=extra).text
    assert refused
