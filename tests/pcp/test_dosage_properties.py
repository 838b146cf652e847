"""Properties of a dosage over random windows: its limits by the tokenizer, its pairs, its order, its decisions.

Source: C-273 to C-277, K-083, K-084.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.context.limits import set_limits

from caliber.context.plan import plan_of
from caliber.context.texts import TurnText
from caliber.kernels.tokens.counting import estimate_tokens
from caliber.model import ToolCall
from caliber.model.context import AssemblyAction, SectionType, SourceType
from caliber.model.forms.messages import NO_RESULT
from caliber.model.windows import ContextWindow

WORDS = ["pump", "valve", "motor", "seal", "filter", "漢字", "price", "é", "bolt", "water"]
SPOKEN = (SectionType.USER, SectionType.CURRENT)
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(lambda words: " ".join(words).capitalize() + ".")
turns = st.one_of(
    st.tuples(st.just("user"), texts),
    st.tuples(st.just("assistant"), texts),
    st.tuples(st.just("call"), texts, st.integers(0, 3), st.integers(0, 2)),
)
worlds = st.fixed_dictionaries(
    {
        "earlier": st.lists(texts, max_size=5),
        "turns": st.lists(turns, min_size=1, max_size=9),
        "notes": st.lists(st.lists(texts, min_size=1, max_size=4).map(" ".join), max_size=4),
        "facts": st.lists(texts, max_size=3),
        "persona": st.one_of(st.none(), texts),
        "names": st.sampled_from([None, "ana", "a: b"]),
    }
)
CONFIGURATIONS: list[dict[str, Any]] = [
    {"assembly__order": "stable_first"},
    {"assembly__order": "priority", "assembly__truncate_min_tokens": 4},
    {"assembly__order": "stable_first", "tokens__estimator": "calibrated", "assembly__truncate_min_tokens": 4},
    # Older turns leave the conversation, and stand behind it as long as there is room.
    {"assembly__section_shares": {"user": [0.02, 0.1], "earlier": [0.0, 0.75]}},
    {"system_instructions": "Help with pumps. Be brief.", "assembly__truncate_min_tokens": 4},
]


def build(memory: Any, world: dict[str, Any], number: int) -> Any:
    """Return a task with the conversation, facts and notes of a world."""
    user = f"user-{number}@example.com"
    if world["earlier"]:
        before = memory.start_trajectory("Earlier", user=user)
        scope = memory.current_scope(before.trajectory_id).scope_id
        for at, text in enumerate(world["earlier"]):
            memory.append_turn(scope, role=("user", "assistant")[at % 2], content=text, name=world["names"])
        memory.close_scope(scope)
    task = memory.start_trajectory("Mend the pump", user=user)
    scope = memory.current_scope(task.trajectory_id).scope_id
    for text in world["facts"]:
        memory.create_artifact(
            scope, artifact_type="fact", content=text, extraction_method="user_provided", confidence=0.9
        )
    for at, text in enumerate(world["notes"]):
        memory.add_note(entity=f"pump {at}", entity_type="x", note_type="fact", content=text, confidence=0.5, user=user)
    for at, (role, text, *calls) in enumerate(world["turns"]):
        if role != "call":
            memory.append_turn(scope, role=role, content=text, name=world["names"] if role == "user" else None)
            continue
        long, answers = calls
        asked = [ToolCall(f"c{at}-{n}", "look", '{"q": "' + text * long + '"}') for n in range(2)]
        memory.append_turn(scope, role="assistant", content=text if long else "", tool_calls=asked)
        for call in asked[:answers]:
            memory.append_turn(scope, role="tool", content=text, tool_call_id=call.id)
    return task


def message_texts(window: ContextWindow) -> list[str]:
    """Return the messages as texts: contents, calls, arguments; check that each is the text of its sections."""
    spoken = [each for each in window.sections if each.section_type in SPOKEN]
    records = [each for each in window.sections if each.section_type not in SPOKEN]
    texts, turns = [], []
    for each in window.messages:
        calls = tuple((call["id"], *call["function"].values()) for call in each.tool_calls)
        turn = TurnText(each.role, each.content, each.name, calls, each.tool_call_id)
        # Of records the content stands as it is; further lines of turns are indented in the text alone.
        texts.append(each.content if is_of_records(turn) else turn.text[len(turn.label) :])
        turns.append(turn)
    said = [each.content[slice(*ref.span)] for each in spoken for ref in each.sources]
    answers = [each for each in turns if not is_of_records(each)]
    for turn, text in zip(answers, said, strict=True):
        # Where not even the label fits, the message has no content.
        assert turn.text == text or (turn.content == "" and turn.label.startswith(text.removesuffix("...")))
    shown = [each for each in turns if is_of_records(each)]
    assert len(shown) <= 2
    bodies = [each.content if each is window.sections[-1] else each.content.removesuffix("\n\n") for each in records]
    assert "\n\n".join(bodies) == "\n\n".join(each.content for each in shown)
    # A request has each message, with results behind their calls, and one for each call that has none.
    sent = [(each["role"], each["content"]) for each in window.to_messages() if each["content"] != NO_RESULT]
    assert sorted(sent) == sorted(
        (m.role, m.content) for m in turns if m.role == "tool" or m.content.strip() or m.calls
    )
    return texts


def is_of_records(turn: TurnText) -> bool:
    return turn.role == "system" or turn.name == "memory"


def sources(window: ContextWindow) -> list[tuple[Any, Any, str]]:
    return [(ref.source_type, ref.id, each.name) for each in window.sections for ref in each.sources]


def paired(window: ContextWindow) -> tuple[set[str], set[str]]:
    """Return the ids of the calls and of the results in a window's messages; a result follows its call."""
    called: set[str] = set()
    answered: set[str] = set()
    for each in window.to_messages():
        called |= {call["id"] for call in each.get("tool_calls", ())}
        if each["role"] == "tool":
            assert each["tool_call_id"] in called
            answered.add(each["tool_call_id"])
    return called, answered


def check(memory: Any, old: ContextWindow, new: ContextWindow, limit: int) -> None:
    config = memory.config
    estimator, overhead = plan_of(config).estimator, config.assembly.message_overhead_tokens
    # never over the limit, by the tokenizer
    assert new.used_tokens <= limit
    calls = [call["id"] for each in new.messages for call in each.tool_calls]
    fillers = len(calls) - len([each for each in new.messages if each.tool_call_id in calls])
    beside = overhead * len(new.messages) + (overhead + 4) * fillers  # "[no result]" for each call without one
    assert new.used_tokens == sum(each.token_count for each in new.sections) + beside
    assert new.text == "".join(each.content for each in new.sections)
    assert all(each.token_count == estimate_tokens(each.content, estimator=estimator) for each in new.sections)
    assert estimate_tokens(new.text, estimator=estimator) + overhead * len(new.messages) <= limit
    spoken = message_texts(new)
    if estimator.additive:
        assert estimate_tokens("".join(spoken), estimator=estimator) + overhead * len(new.messages) <= limit
    # each message says something
    assert all(each.get("tool_calls") or each["content"].removesuffix("...").strip() for each in new.to_messages())
    # calls and results together: what had both has both, or neither
    called, answered = paired(new)
    had_called, had_answered = paired(old)
    assert {each for each in called if each in had_answered} == answered
    assert called <= had_called
    # the last user message goes last of all that may go
    said = [m for m in old.to_messages() if m["role"] == "user" and m.get("name") != "memory"]
    if said:
        kept = [m for m in new.to_messages() if m["role"] == "user" and m.get("name") != "memory"]
        last = kept[-1]["content"].removesuffix("...") if kept else None
        is_kept = last is not None and said[-1]["content"].startswith(last)
        assert is_kept or {each.section_type for each in new.sections} <= {SectionType.SYSTEM}
    # each removed or changed source has one decision, and no other has one
    more = new.assembly_trace[len(old.assembly_trace) :]
    assert new.assembly_trace[: len(old.assembly_trace)] == tuple(old.assembly_trace)
    decided = {(each.source_type, each.target_id, each.section): each for each in more}
    assert len(decided) == len(more)
    gone = set(sources(old)) - set(sources(new))
    assert {key for key, each in decided.items() if each.action is AssemblyAction.EXCLUDE} == gone
    assert set(decided) <= set(sources(old))
    assert all(each.reason for each in more)
    # recalled turns and the conversation are never compressed
    compressed = [each for each in more if each.action is AssemblyAction.COMPRESS]
    assert not any(each.source_type in (SourceType.TURN, SourceType.ARTIFACT) for each in compressed)
    # sections keep their order
    names = [each.name for each in new.sections]
    assert names == [each.name for each in old.sections if each.name in names]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=["shared", "strict", "calibrated", "earlier", "compressing"])
def test_a_dosage_keeps_every_promise(backend: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Where older turns are to leave, no exchange is certain to enter.
    set_limits(monkeypatch, critical_priority=100, recent_exchanges=0 if "assembly__section_shares" in options else 2)
    memory = backend.open(policies=[], **options)
    numbers = iter(range(10_000))

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(worlds, st.data())
    def holds(world: dict[str, Any], data: st.DataObject) -> None:
        task = build(memory, world, next(numbers))
        memory.flush()
        extra = {"persona": world["persona"]} if world["persona"] else None
        window = memory.assemble_context(task.trajectory_id, query="pump valve price", extra_sections=extra)
        for limit in data.draw(st.lists(st.integers(1, max(1, window.used_tokens)), min_size=1, max_size=3)):
            smaller = memory.pcp.apply_dosage(window, max_tokens=limit)
            check(memory, window, smaller, limit)
            assert memory.pcp.apply_dosage(smaller) is smaller
            again = memory.pcp.apply_dosage(window, max_tokens=limit)
            assert (again.text, again.to_messages()) == (smaller.text, smaller.to_messages())
            memory.flush()
            stored = memory.pcp.apply_dosage(window.window_id, max_tokens=limit)
            assert (stored.text, stored.to_messages()) == (smaller.text, smaller.to_messages())
            least = memory.pcp.apply_dosage(smaller, max_tokens=max(1, limit // 2))
            check(memory, smaller, least, max(1, limit // 2))

    holds()
