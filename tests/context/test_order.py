"""In what order candidates enter a window, what counts limit, what messages and the trace say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from support.context import world as kit
from support.context.world import content, section
from support.inspection import inspect

from caliber.model.context import AssemblyAction, DecisionCode, SourceType
from caliber.model.time import from_us
from caliber.model.trajectory import TurnRole

# --- order and limits ------------------------------------------------------------------------------


def test_order_is_priority_relevance_age_id(world: Any) -> None:
    # C-456, O-9
    world.open_space()
    at = world.now()
    late = world.note("low relevance", [1, 1, 0, 0])
    ids = [kit.numbered(5), kit.numbered(4), kit.numbered(6)]
    for key in ids:
        world.note(f"note {key.int}", [1, 0, 0, 0], note_id=key, created_at=at)
    newer = world.note("newer", [1, 0, 0, 0])
    window = world.window(query="q", query_embedding=[1, 0, 0, 0])
    wanted = [newer, kit.numbered(4), kit.numbered(5), kit.numbered(6), late]
    assert [source.id for source in section(window, "notes").sources] == wanted


def test_equal_priorities_keep_sections_whole(world: Any) -> None:
    # K-078, C-460
    world.open_space()
    config = kit.strict(**{"section_priorities.notes": 80, "section_priorities.history": 80})
    world.note("n1", [1, 0, 0, 0])
    world.artifact("a1", [3, 1, 0, 0])
    world.note("n2", [2, 1, 0, 0])
    world.artifact("a2", [1, 1, 0, 0])
    window = world.window(config=config, query="q", query_embedding=[1, 0, 0, 0])
    assert [item.name for item in window.sections] == ["artifacts", "notes"]
    kinds = [decision.source_type for decision in window.assembly_trace]
    assert kinds == [SourceType.NOTE, SourceType.ARTIFACT, SourceType.NOTE, SourceType.ARTIFACT]


def test_newest_turns_stay_when_the_clock_went_back(world: Any) -> None:
    # K-075
    early = from_us(world.clock.now_us() - 3_600_000_000)
    world.turn("first " * 20)
    world.turn("second " * 20, at=early)
    world.turn("third " * 20, at=early)
    for config, budget in ((kit.strict(**{"assembly.overflow_policy": "exclude"}), 110), (kit.config_of(), 130)):
        window = world.window(config=config, max_tokens=budget)
        assert [message.content[:5] for message in window.messages] == ["secon", "third"]


# --- messages ------------------------------------------------------------------------------------


def test_messages_are_in_openai_form(world: Any) -> None:
    # O-14, issue item 8; what follows the query is a message of its own, before the last user message
    config = kit.config_of(system_instructions="Be brief.")
    first = [world.turn("hello"), world.turn("hi", TurnRole.ASSISTANT)]
    second = [world.turn("look it up", name="ann")]
    second += world.tool_turns("found", call="one moment")
    world.note("n")
    window = world.window(config=config)
    messages = window.to_messages()
    call_id = messages[5]["tool_calls"][0]["id"]
    assert messages == [
        {"role": "system", "content": "# System\nBe brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "# Notes\n- build (fact): n", "name": "memory"},
        {"role": "user", "content": "look it up", "name": "ann"},
        {"role": "assistant", "content": "one moment",
         "tool_calls": [{"id": call_id, "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}]},
        {"role": "tool", "content": "found", "name": "search", "tool_call_id": call_id},
    ]  # fmt: skip
    assert content(window, "user") == "# Conversation\nuser: hello\n\nassistant: hi\n\n"
    assert content(window, "current") == (
        "# Now\nuser ann: look it up\n\n"
        f'assistant: one moment\n[call {call_id}] search({{"q": 1}})\n\n'
        f"tool search [{call_id}]: found"
    )
    assert [source.id for source in section(window, "user").sources] == first
    assert [source.id for source in section(window, "current").sources] == second


def test_messages_of_strict_priorities_have_one_of_all_texts(world: Any) -> None:
    # O-14, K-078: the profile `sources` knows no section after the conversation
    world.turn("look it up", name="ann")
    world.tool_turns("found", call="one moment")
    world.note("n")
    window = world.window(config=kit.strict(system_instructions="Be brief."))
    messages = window.to_messages()
    assert messages[0] == {"role": "system", "content": "# System\nBe brief.\n\n# Notes\n- build (fact): n"}
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool"]
    assert [item.name for item in window.sections] == ["system", "user", "notes"]


def test_trace_says_what_and_why(world: Any) -> None:
    # C-055, C-057, C-459
    turn = world.turn("hello there")
    window = world.window()
    (decision,) = window.assembly_trace
    assert decision.target_id == turn
    assert decision.action is AssemblyAction.INCLUDE
    assert decision.rule_id == "standard_inclusion"
    assert decision.reason == "included at rank 0 with relevance 1.0000, 5 tokens"
    assert (decision.tokens, decision.rank, decision.relevance) == (5, 0, 1.0)
    assert decision.timestamp == window.assembled_at
    (source,) = window.sections[0].sources
    assert (source.source_type, source.id, source.version, source.tokens) == (SourceType.TURN, turn, 1, 5)


def test_windows_expire_as_configured(world: Any) -> None:
    # C-464
    window = world.window()
    assert window.expires_at - window.assembled_at == timedelta(days=30)
    kept = kit.config_of(context_window_persistence={"kind": "permanent"}, **{"retention.windows_ms": "forever"})
    assert world.window(config=kept).expires_at is None


def test_an_assembly_runs_no_statement(world: Any) -> None:
    # design section 5: zero SQL
    world.open_space()
    world.config = kit.config_of(system_instructions="Be brief.")
    for at in range(5):
        world.turn(f"turn {at}")
        world.note(f"note {at}", [1, at, 0, 0])
        world.artifact(f"artifact {at}", [1, at, 0, 0])
    before = world.store.statement_count()
    assembled = world.assemble(query="q", query_embedding=[1, 0, 0, 0])
    assert assembled.record
    assert len(assembled.window.assembly_trace) == 16
    assert world.store.statement_count() == before


def test_evicted_texts_are_read_back_and_counted() -> None:
    # design section 5
    world = kit.World()
    for at in range(5):
        world.turn(f"turn {at}")
        world.artifact(f"artifact {at}")
    whole = world.window(now_us=2 * 10**15)
    for name in ("turn", "artifact"):
        inspect(world.memory).mirror(name).evict_texts(1 << 30)
    again = world.window(now_us=2 * 10**15)
    assert again.text == whole.text
    assert world.memory.stats.evicted_texts_read > 0
    world.close()


def test_decision_codes_all_have_a_rule() -> None:
    from caliber.context.trace import RULES

    assert set(RULES) == set(DecisionCode)


def test_turn_rewritten_later_keeps_its_place(world: Any) -> None:
    # O-8: chronological whatever the order of rows
    first = world.turn("first")
    world.turn("second")
    world.window()
    world.change(kit.TURN, first, content=b"first, corrected at length")
    window = world.window()
    assert [message.content for message in window.messages] == ["first, corrected at length", "second"]
    assert [item.name for item in window.sections] == ["user", "current"]
    assert window.used_tokens == sum(item.token_count for item in window.sections) + 4 * 2
    assert world.window().messages[0].role == TurnRole.USER
