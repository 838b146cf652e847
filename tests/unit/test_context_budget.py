"""How a budget is filled: caps, cuts, tool calls, turns that leave in blocks, prefixes that stay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import context_world as kit

from caliber.context.blocks import evict_in_blocks
from caliber.kernels import BytesEstimator, estimate_tokens
from caliber.model.entities import ToolCall
from caliber.model.enums import AssemblyAction, SourceType, TurnRole
from caliber.model.errors import BudgetTooSmall, InvalidValue


@pytest.fixture
def world() -> Iterator[Any]:
    made = kit.World()
    yield made
    made.close()


def plain_config(**overrides: Any) -> Any:
    """One byte a token, nothing but the texts: arithmetic that can be done in the head."""
    base = {
        "tokens.bytes_per_token": 1.0,
        "assembly.message_overhead_tokens": 0,
        "assembly.section_headers": False,
        "assembly.separator": "|",
        "assembly.section_max_tokens": {},
        "assembly.fill_ratio": 1.0,
        "assembly.order": "priority",
        "assembly.overflow_policy": "exclude",
        "assembly.truncate_min_tokens": 4,
    }
    return kit.config_of(**{**base, **overrides})


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


def test_an_exact_fit_fits(world: Any) -> None:
    # C-050, C-457
    for at in range(3):
        world.turn(f"turn {at}")
    config = plain_config()
    need = len("user: turn 0|user: turn 1|user: turn 2")
    whole = world.window(config=config, max_tokens=need)
    assert whole.used_tokens == need
    assert len(whole.messages) == 3
    less = world.window(config=config, max_tokens=need - 1)
    assert contents(less) == ["turn 1", "turn 2"]
    (refused,) = [d for d in less.assembly_trace if d.action is AssemblyAction.EXCLUDE]
    assert refused.rule_id == "budget_limit"
    assert refused.tokens == len("user: turn 0")
    assert refused.reason == "needs 13 tokens, but 25/37 were used and 12 left"


def test_later_smaller_candidates_may_still_fit(world: Any) -> None:
    # C-457
    world.artifact("small")
    world.artifact("large " * 30)
    window = world.window(config=plain_config(), max_tokens=60)
    assert rules(window, SourceType.ARTIFACT) == ["standard_inclusion", "budget_limit"]


def test_nothing_that_fits_is_an_error_that_says_what_would(world: Any) -> None:
    world.artifact("some content")
    config = plain_config()
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
    assert (window.text, window.used_tokens, window.to_messages()) == ("", 0, [])
    world.open_space()
    world.artifact("irrelevant", [0, 1, 0, 0])
    window = world.window(max_tokens=1, query="q", query_embedding=[1, 0, 0, 0])
    assert window.text == ""
    assert len(window.assembly_trace) == 1


def test_instructions_are_cut_to_the_budget_and_never_dropped(world: Any) -> None:
    # K-076, C-463
    config = kit.config_of(
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


def test_the_dosage_bounds_tokens_too(world: Any) -> None:
    # C-254
    for at in range(50):
        world.turn(f"turn {at} " * 10)
    window = world.window(config=kit.config_of(**{"pcp.dosage.max_context_tokens": 300}))
    assert window.max_tokens == 8_000
    assert window.used_tokens <= 300


def test_message_overhead_is_paid_for_each_message(world: Any) -> None:
    # O-14
    for at in range(3):
        world.turn(f"turn {at}")
    world.note("n")
    config = plain_config(**{"assembly.message_overhead_tokens": 7})
    window = world.window(config=config)
    assert window.used_tokens == len(window.text) + 7 * 4
    spoken = sum(estimate_tokens(m["content"], estimator=BytesEstimator(1.0)) + 7 for m in window.to_messages())
    assert spoken <= window.used_tokens


# --- caps and cuts -----------------------------------------------------------------------------------


def test_section_caps_hold(world: Any) -> None:
    # C-219
    for at in range(4):
        world.note(f"note {at}")
        world.artifact(f"artifact {at}")
    item = len("- build (fact): note 0")
    config = plain_config(**{"assembly.section_max_tokens": {"notes": 2 * item + 2, "artifacts": 0}})
    window = world.window(config=config)
    assert rules(window, SourceType.NOTE) == ["section_limit", "section_limit", *["standard_inclusion"] * 2]
    assert rules(window, SourceType.ARTIFACT) == ["section_limit"] * 4
    assert [section.name for section in window.sections] == ["notes"]
    (first, *_) = [d for d in window.assembly_trace if d.rule_id == "section_limit"]
    assert first.reason == "needs 17 tokens; section artifacts may hold 0 and is too full for it"


def test_the_best_that_does_not_fit_is_cut_to_what_is_left(world: Any) -> None:
    # C-223
    world.note("old")
    world.note("word " * 50)
    config = plain_config(**{"assembly.overflow_policy": "truncate"})
    window = world.window(config=config, max_tokens=80)
    assert rules(window, SourceType.NOTE) == ["standard_inclusion", "overflow_truncate"]
    assert window.used_tokens <= 80
    assert window.text.startswith("- build (fact): word word")
    assert "...|" in window.text or "..." in window.text
    cut = next(d for d in window.assembly_trace if d.action is AssemblyAction.TRUNCATE)
    assert cut.reason == f"cut from {len('- build (fact): ' + 'word ' * 50)} to {cut.tokens} tokens, which were left"
    least = plain_config(**{"assembly.overflow_policy": "truncate", "assembly.truncate_min_tokens": 70})
    assert rules(world.window(config=least, max_tokens=80), SourceType.NOTE)[1] == "budget_limit"


def test_artifacts_are_never_cut(world: Any) -> None:
    # C-264, C-224
    world.turn("hello")
    world.artifact("word " * 50)
    config = plain_config(**{"assembly.overflow_policy": "truncate"})
    window = world.window(config=config, max_tokens=80)
    assert rules(window, SourceType.ARTIFACT) == ["budget_limit"]


def test_filling_ends_at_the_fill_ratio(world: Any) -> None:
    # C-218: no section is begun once the window is as good as full
    world.turn("x" * 80)
    world.note("n")
    open_end = world.window(config=plain_config(), max_tokens=120)
    assert [section.name for section in open_end.sections] == ["user", "notes"]
    config = plain_config(**{"assembly.fill_ratio": 0.7, "assembly.overflow_policy": "truncate"})
    closed = world.window(config=config, max_tokens=120)
    assert [section.name for section in closed.sections] == ["user"]
    (refused,) = [d for d in closed.assembly_trace if d.action is AssemblyAction.EXCLUDE]
    assert refused.rule_id == "budget_limit"
    assert refused.reason == "token_budget_exhausted: section notes came when 70% of 120 tokens were used"


# --- tool calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_a_call_and_its_results_enter_whole_or_not(world: Any, order: str) -> None:
    # O-8, K-075
    world.turn("question")
    world.tool_turns("r" * 60, "s" * 60)
    world.turn("thanks")
    config = plain_config(**{"assembly.order": order, "assembly.overflow_policy": "truncate"})
    small = world.window(config=config, max_tokens=120)
    assert [message.role for message in small.messages][-1] == "user"
    assert all(not message.tool_calls and message.tool_call_id is None for message in small.messages)
    groups = [d for d in small.assembly_trace if d.ordinal in (2, 3, 4)]
    assert all(decision.action is AssemblyAction.EXCLUDE for decision in groups)
    whole = world.window(config=config, max_tokens=400)
    assert [message.role for message in whole.messages] == ["user", "assistant", "tool", "tool", "user"]


def test_a_call_without_an_answer_is_never_cut(world: Any) -> None:
    # O-8
    world.turn("thinking " * 20, TurnRole.ASSISTANT, calls=[ToolCall("c1", "run", "{}")])
    config = plain_config(**{"assembly.overflow_policy": "truncate"})
    with pytest.raises(BudgetTooSmall):
        world.window(config=config, max_tokens=60)


def test_a_newest_turn_that_is_too_long_is_cut(world: Any) -> None:
    # K-075: the newest turn matters most
    world.turn("short")
    world.turn("long " * 100)
    for order in ("priority", "stable_first"):
        config = plain_config(**{"assembly.order": order, "assembly.overflow_policy": "truncate"})
        window = world.window(config=config, max_tokens=100)
        assert contents(window)[-1].startswith("long long")
        assert contents(window)[-1].endswith("...")
        assert window.text.endswith(contents(window)[-1])
    exclude = plain_config(**{"assembly.order": "stable_first"})
    assert contents(world.window(config=exclude, max_tokens=100)) == ["short"]


# --- blocks and prefixes ---------------------------------------------------------------------------------


def run(costs: list[int], capacity: int, block: int, start: int = 0, groups: list[int] | None = None) -> Any:
    return evict_in_blocks(
        np.arange(start, start + len(costs)),
        np.array(groups or [-1] * len(costs)),
        np.array(costs),
        capacity=capacity,
        separator=0,
        block_turns=block,
    )


def test_turns_leave_in_blocks_at_absolute_numbers() -> None:
    # design section 5
    assert run([1] * 10, 10, 4).included.all()
    assert run([1] * 11, 10, 4).first_turn == 4
    assert run([1] * 14, 10, 4).first_turn == 4
    assert run([1] * 15, 10, 4).first_turn == 8
    assert run([1] * 15, 10, 4, start=3).first_turn == 8
    assert run([1] * 10, 2, 4).first_turn == 8
    # a block that would push out the newest turn is halved
    assert run([1] * 5, 2, 16).first_turn == 4
    assert run([1] * 4, 3, 16).first_turn == 2
    assert run([1, 1, 1, 9], 3, 4) is None


def test_a_group_begins_where_its_first_turn_does() -> None:
    # O-8
    block = run([1] * 6, 4, 2, groups=[-1, 1, -1, 1, -1, -1])
    assert block.first_turn == 2
    assert block.included.tolist() == [False, False, True, False, True, True]
    assert block.split.tolist() == [False, False, False, True, False, False]
    assert block.cost == 3
    assert run([1] * 6, 4, 2, groups=[-1, 1, -1, -1, -1, 1]) is None


def common(first: str, second: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@pytest.mark.parametrize("with_tools", [False, True])
def test_a_hundred_turns_keep_most_of_the_prefix(world: Any, with_tools: bool) -> None:
    # design section 5: 100 appended turns at a full budget keep >= 0.7 of the tokens in the common prefix
    rng = np.random.default_rng(3)
    config = kit.config_of(system_instructions="Be brief. " * 20, token_budget=4_000)

    def say(at: int) -> None:
        if with_tools and at % 7 == 0:
            world.tool_turns("found " * int(rng.integers(5, 40)))
        else:
            world.turn("word " * int(rng.integers(5, 60)), TurnRole.USER if at % 2 else TurnRole.ASSISTANT)

    for at in range(30):
        world.note(f"note {at} " * 8)
        world.artifact(f"artifact {at} " * 20)
    for at in range(150):
        say(at)
    before = world.window(config=config)
    assert before.used_tokens > 0.85 * config.token_budget
    kept, total, promises = 0, 0, 0
    for at in range(100):
        promised = before.stable_prefix_tokens
        say(at)
        after = world.window(config=config)
        share = common(before.text, after.text)
        kept += share
        total += len(after.text)
        longest = max(source.tokens for source in before.sections[-1].sources)
        appended = [source.tokens for source in after.sections[-1].sources][-1]
        if appended <= longest and not with_tools:
            # what was promised to stay did stay
            promises += 1
            assert share >= sum(len(s.content) for s in before.sections if _within(before, s, promised))
        before = after
    assert kept / total >= 0.7
    assert with_tools or promises > 50


def _within(window: Any, wanted: Any, tokens: int) -> bool:
    """Whether a section lies whole within the first ``tokens``."""
    used = 0
    for section in window.sections:
        used += section.token_count
        if section is wanted:
            return used <= tokens
    return False


def test_other_sections_do_not_change_while_turns_come_and_go(world: Any) -> None:
    # docs/decisions/0017
    config = kit.config_of(token_budget=2_000)
    for at in range(40):
        world.note(f"note {at} " * 10)
        world.artifact(f"artifact {at} " * 30)
    for at in range(120):
        world.turn(f"turn {at} " * 12)
    seen = set()
    for at in range(40):
        world.turn(f"another {at} " * (5 + at % 9))
        window = world.window(config=config)
        seen.add("".join(section.content for section in window.sections[:-1]))
    assert len(seen) == 1


def test_stable_prefix_of_a_short_conversation_is_everything(world: Any) -> None:
    config = kit.config_of(system_instructions="Be brief.")
    world.turn("hello")
    window = world.window(config=config)
    assert window.stable_prefix_tokens == sum(section.token_count for section in window.sections)
    before = window.text
    world.turn("bye")
    assert world.window(config=config).text.startswith(before)
