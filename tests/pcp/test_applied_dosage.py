"""Dosage applied to a window that exists: a smaller one within every limit, with the decisions that made it so.

Source: C-273 to C-277, K-083, K-084.
"""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from caliber.model import Principal, ToolCall
from caliber.model.context import AssemblyAction
from caliber.model.errors import BudgetTooSmall, InvalidValue, NotFound
from caliber.model.windows import ContextWindow
from caliber.resident.documents import indented

NOTE = (
    "The pump is a model A12 from 2019. Its seal is changed every spring. The cellar is dry. Nobody painted the door."
)
KNOBS: dict[str, Any] = {"assembly__truncate_min_tokens": 5, "policies": []}


@pytest.fixture
def window_of(start: Any, backend: Any) -> Callable[..., Any]:
    def make(turns: int = 12, notes: int = 6, **options: Any) -> Any:
        memory = backend.open(**KNOBS | options)
        agent = start(memory)
        for number in range(turns):
            agent.say(
                f"Turn {number} is about the pump in the cellar.", role="user" if number % 2 == 0 else "assistant"
            )
        for number in range(notes):
            agent.note(f"{NOTE} Part {number}.", confidence=0.9)
        agent.keep("The pump has artifact number one.")
        memory.flush()
        return agent, memory.assemble_context(agent.trajectory_id, query="Which pump is in the cellar?")

    return make


def check(window: ContextWindow, limit: int, overhead: int) -> None:
    """Check that the figures, spans and messages of a window are those of its text."""
    assert window.used_tokens <= limit
    assert window.used_tokens == sum(each.token_count for each in window.sections) + overhead * len(window.messages)
    assert window.text == "".join(each.content for each in window.sections)
    spoken = {"user", "current"}
    for section in window.sections:
        assert section.sources
        texts = [section.content[start:end] for start, end in (ref.span for ref in section.sources)]
        assert all(texts)
        if section.section_type.value in spoken:
            contents = [each.content for each in window.messages]
            assert all(any(text.endswith(content) for content in contents) for text in texts)
    assert len(window.messages) >= sum(
        len(each.sources) for each in window.sections if each.section_type.value in spoken
    )


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_a_window_within_its_limits_stays_itself(window_of: Any, order: str) -> None:
    # C-273
    agent, window = window_of(assembly__order=order)
    assert agent.memory.pcp.apply_dosage(window) is window
    assert agent.memory.pcp.apply_dosage(window, max_tokens=window.used_tokens) is window
    agent.memory.flush()
    again = agent.memory.pcp.apply_dosage(window.window_id)
    assert (again.window_id, again.text) == (window.window_id, window.text)


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_sections_stay_by_priority_and_are_compressed_before_they_go(window_of: Any, order: str) -> None:
    # C-274, C-276, K-083
    agent, window = window_of(assembly__order=order)
    overhead = agent.memory.config.assembly.message_overhead_tokens
    notes = next(each for each in window.sections if each.section_type == "notes")
    lacking = notes.token_count // (3 if order == "stable_first" else 20)
    smaller = agent.memory.pcp.apply_dosage(window, max_tokens=window.used_tokens - lacking)
    check(smaller, smaller.max_tokens, overhead)
    assert smaller.window_id != window.window_id
    more = smaller.assembly_trace[len(window.assembly_trace) :]
    assert smaller.assembly_trace[: len(window.assembly_trace)] == tuple(window.assembly_trace)
    assert {each.action for each in more} >= {AssemblyAction.COMPRESS}
    within = [each for each in window.sections if each.section_type in ("notes", "artifacts")]
    records = [ref.id for each in within for ref in each.sources]
    assert {each.target_id for each in more} <= set(records)
    assert "The pump is a model A12 from 2019." in smaller.text
    least = agent.memory.pcp.apply_dosage(window, max_tokens=window.used_tokens - notes.token_count)
    check(least, least.max_tokens, overhead)
    gone = [each for each in least.assembly_trace[len(window.assembly_trace) :] if each.section == "notes"]
    assert (AssemblyAction.EXCLUDE, "budget_limit") in {(each.action, each.rule_id) for each in gone}
    kept = {each.name for each in least.sections}
    assert {each.name for each in window.sections if each.priority >= 90} <= kept


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_critical_sections_that_exceed_the_limit_are_cut_and_the_log_has_an_error(window_of: Any, order: str) -> None:
    # C-275
    agent, window = window_of(assembly__order=order, turns=30)
    memory = agent.memory
    smaller = memory.pcp.apply_dosage(window, max_tokens=90)
    check(smaller, 90, memory.config.assembly.message_overhead_tokens)
    assert "Turn 29 is" in smaller.text
    assert "Turn 0 is" not in smaller.text
    rules = {each.rule_id for each in smaller.assembly_trace[len(window.assembly_trace) :]}
    assert "left_with_block" in rules
    memory.flush()
    (error,) = memory.trace(agent.trajectory_id, event_type="error")
    assert error.payload["error"] == "critical_sections_cut"
    assert error.subject_id == window.window_id
    assert memory.pcp.trace_summary(agent.trajectory_id).errors == 1
    # A window holds what its principal could see: another one's trace of the task does not tell what was cut from it.
    other = memory.acting_as(Principal.agent("another"))
    assert other.trace(agent.trajectory_id)
    assert other.trace(agent.trajectory_id, event_type="error") == []
    assert other.pcp.trace_summary(agent.trajectory_id).errors == 0


def test_the_last_message_is_cut_from_its_end(window_of: Any) -> None:
    agent, _ = window_of(turns=1, notes=0)
    agent.say("The seal of the pump " * 100)
    agent.memory.flush()
    window = agent.memory.assemble_context(agent.trajectory_id)
    smaller = agent.memory.pcp.apply_dosage(window, max_tokens=80)
    check(smaller, 80, agent.memory.config.assembly.message_overhead_tokens)
    assert smaller.messages[-1].content.startswith("The seal of the pump")
    assert smaller.messages[-1].content.endswith("...")
    more = smaller.assembly_trace[len(window.assembly_trace) :]
    (cut,) = (each for each in more if each.action is AssemblyAction.TRUNCATE)
    assert (cut.source_type, cut.rule_id) == ("turn", "overflow_truncate")


def test_a_recalled_turn_stays_whole_or_goes(start: Any, backend: Any) -> None:
    memory = backend.open(**KNOBS)
    earlier = start(memory)
    for number in range(8):
        earlier.say(f"{NOTE} {number}", role=("user", "assistant")[number % 2])
    memory.close_scope(earlier.scope_id)
    agent = start(memory)
    agent.say("Which pump is in the cellar?")
    memory.flush()
    window = memory.assemble_context(agent.trajectory_id)
    recalled = next(each for each in window.sections if each.section_type == "recall")
    assert len(recalled.sources) > 3
    for limit in range(40, window.used_tokens, 31):
        smaller = memory.pcp.apply_dosage(window, max_tokens=limit)
        check(smaller, limit, memory.config.assembly.message_overhead_tokens)
        for each in smaller.sections:
            if each.section_type == "recall":
                assert all(NOTE in each.content[slice(*ref.span)] for ref in each.sources)
                assert each.content.count("[") == 1  # one day: one passage


def test_counts_of_an_earlier_configuration_are_applied(start: Any, backend: Any, another: Any) -> None:
    # C-277, K-084: an ephemeral window of a configuration without such limits
    memory = backend.open(**KNOBS)
    agent = start(memory)
    agent.say("Which pump is in the cellar?")
    for number in range(8):
        agent.note(f"Pump {number} is in the cellar {'x' * number}.", confidence=0.9)
    memory.flush()
    window = memory.assemble_context(agent.trajectory_id)
    had = [ref for each in window.sections for ref in each.sources if ref.source_type == "note"]
    assert len(had) > 3
    strict = another(backend.name).open(**KNOBS | {"pcp__dosage__max_notes_in_window": 3})
    strict.storage.trajectories.insert(memory.storage.trajectories.get(agent.trajectory_id))
    smaller = strict.pcp.apply_dosage(window)
    left = [ref for each in smaller.sections for ref in each.sources if ref.source_type == "note"]
    best = sorted(had, key=lambda ref: -ref.relevance)[:3]
    assert {ref.id for ref in left} == {ref.id for ref in best}
    gone = smaller.assembly_trace[len(window.assembly_trace) :]
    assert {(each.action, each.rule_id) for each in gone} == {(AssemblyAction.EXCLUDE, "dosage_limit")}
    check(smaller, smaller.max_tokens, memory.config.assembly.message_overhead_tokens)


LONG = "ana maria lopez de la vega y de los santos"


@pytest.mark.parametrize("order", ["priority", "stable_first"])
@pytest.mark.parametrize(
    "content", ["Filter the water please.", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo" * 4, "\n  水を濾して 👩‍🌾"]
)
@pytest.mark.parametrize("instructions", ["", "Help with pumps. Be brief."])
def test_no_budget_leaves_a_message_without_content(
    backend: Any, start: Any, order: str, content: str, instructions: str
) -> None:
    memory = backend.open(
        **KNOBS, assembly__order=order, assembly__overflow_policy="truncate", system_instructions=instructions or None
    )
    agent = start(memory)
    memory.append_turn(agent.scope_id, role="user", content=content, name=LONG)
    memory.flush()
    whole = memory.assemble_context(agent.trajectory_id)
    shortest = len(content)
    for limit in range(1, whole.used_tokens + 1):
        cut = memory.pcp.apply_dosage(whole, max_tokens=limit)
        assert cut.used_tokens <= limit
        assert memory.pcp.apply_dosage(cut) is cut
        enough = limit
        try:
            made = memory.assemble_context(agent.trajectory_id, max_tokens=limit)
        except BudgetTooSmall as error:
            enough = error.needed
            made = memory.assemble_context(agent.trajectory_id, max_tokens=enough)
        assert memory.replay(made.window_id).text == made.text
        assert made.used_tokens <= enough
        for window in (made, cut):
            for message in window.messages:
                said = message.content.removesuffix("...")
                assert said.strip()
                if message.role == "user":
                    assert content.startswith(said)
                    assert f"{LONG}: {indented(message.content)}" in window.text
                    shortest = min(shortest, len(said))
    assert shortest <= len(content) // 2


def test_a_result_of_a_tool_is_not_cut_in_its_label(backend: Any, start: Any) -> None:
    memory = backend.open(**KNOBS | {"assembly__truncate_min_tokens": 1, "assembly__overflow_policy": "truncate"})
    agent = start(memory)
    scope = agent.scope_id
    memory.append_turn(scope, role="user", content="Read.")
    memory.append_turn(scope, role="assistant", content="", tool_calls=[ToolCall("c" * 60, "read", "{}")])
    memory.append_turn(scope, role="tool", content="pressure is high " * 8, tool_call_id="c" * 60, name="r" * 60)
    memory.flush()
    whole = memory.assemble_context(agent.trajectory_id)
    cut = set()
    for limit in range(whole.used_tokens, 10, -1):
        for window in (
            memory.assemble_context(agent.trajectory_id, max_tokens=limit),
            memory.pcp.apply_dosage(whole, max_tokens=limit),
        ):
            assert window.used_tokens <= limit
            results = [each.content for each in window.messages if each.role == "tool"]
            assert all(each.removesuffix("...") for each in results)
            cut.update(results)
    assert len(cut) > 2


def test_bad_windows_are_refused(window_of: Any) -> None:
    agent, window = window_of()
    memory = agent.memory
    with pytest.raises(NotFound):
        memory.pcp.apply_dosage(uuid.uuid4())
    with pytest.raises(InvalidValue):
        memory.pcp.apply_dosage(window, max_tokens=0)
    with pytest.raises(InvalidValue):
        memory.pcp.apply_dosage(dataclasses.replace(window, messages=window.messages[:-1]), max_tokens=50)
    for sources in ((), window.sections[0].sources[:-1]):
        sections = tuple(dataclasses.replace(each, sources=sources) for each in window.sections)
        with pytest.raises(InvalidValue):
            memory.pcp.apply_dosage(dataclasses.replace(window, sections=sections), max_tokens=50)
    hidden = memory.start_trajectory("plan", user="ana").trajectory_id
    ben = memory.acting_as(Principal.user("ben"))
    with pytest.raises(NotFound):
        ben.pcp.apply_dosage(dataclasses.replace(window, trajectory_id=hidden), max_tokens=50)
    with pytest.raises(NotFound):
        ben.pcp.apply_dosage(window.window_id)


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 7, 10**30, 0.5, float("nan"), float("inf"), "", "user", "x", "\ud800", b"x", (), (3, 1), [[]],
    {}, (None,), ({"id": "x"},), ({"id": "x", "function": {"name": "f"}},), object(), uuid.UUID(int=1),
)  # fmt: skip


def damaged(window: ContextWindow) -> Iterator[tuple[str, ContextWindow]]:
    """Yield windows with one field of another value, by its name, and windows without parts or with parts twice."""
    fields = ("used_tokens", "max_tokens", "stable_prefix_tokens", "sections", "text", "messages", "assembly_trace")
    for name, odd in itertools.product((*fields, "assembled_at", "trajectory_id", "window_id"), ODD):
        yield f"{name} = {odd!r}", dataclasses.replace(window, **{name: odd})
    lists: dict[str, Any] = {"sections": window.sections, "messages": window.messages}
    lists["assembly_trace"] = window.assembly_trace
    for name, items in lists.items():
        for at, item in enumerate(items):
            others = {"no": (), "two": (item, item)}
            for field, odd in itertools.product(dataclasses.fields(item), ODD):
                others[f"{field.name} = {odd!r}"] = (dataclasses.replace(item, **{field.name: odd}),)
            for place, ref in enumerate(item.sources) if name == "sections" else ():
                for field, odd in itertools.product(dataclasses.fields(ref), ODD):
                    sources = list(item.sources)
                    sources[place] = dataclasses.replace(ref, **{field.name: odd})
                    others[f"source {place} {field.name} = {odd!r}"] = (dataclasses.replace(item, sources=sources),)
            for key, new in others.items():
                changed = (*items[:at], *new, *items[at + 1 :])
                parts: dict[str, Any] = {name: changed}
                if name == "sections" and all(isinstance(each.content, str) for each in changed):
                    parts["text"] = "".join(each.content for each in changed)
                yield f"{name} {at} {key}", dataclasses.replace(window, **parts)


@pytest.mark.prove
def test_a_damaged_window_is_refused_or_has_a_smaller_one(window_of: Any) -> None:
    agent, window = window_of(turns=4, notes=2)
    refused: list[tuple[str, str]] = []
    for name, each in damaged(window):
        try:
            smaller = agent.memory.pcp.apply_dosage(each, max_tokens=60)
        except InvalidValue as error:
            refused.append((name, error.reason))
        except NotFound:
            assert name == f"trajectory_id = {uuid.UUID(int=1)!r}"
        else:
            assert smaller.used_tokens <= 60, name
    assert len(refused) > 1_000
    assert [each for each in refused if not each[1].endswith("; assemble it again")] == []


def test_a_passage_line_without_a_speaker_is_refused(backend: Any, start: Any) -> None:
    memory = backend.open(**KNOBS)
    agent = start(memory)
    agent.say("The pump is in the cellar.")
    agent.say("Which pump?", role="assistant")
    memory.close_scope(agent.scope_id)
    task = start(memory)
    task.say("Where is the pump?")
    memory.flush()
    window = memory.assemble_context(task.trajectory_id, query="pump in the cellar")
    (recall,) = [each for each in window.sections if each.name == "recall"]
    assert len(recall.sources) == 2, "one passage of two lines"
    other = dataclasses.replace(recall, content=recall.content.replace("assistant: ", "assistant- "))
    sections = tuple(other if each is recall else each for each in window.sections)
    messages = tuple(
        dataclasses.replace(each, content=each.content.replace("assistant: ", "assistant- "))
        for each in window.messages
    )
    text = "".join(each.content for each in sections)
    broken = dataclasses.replace(window, sections=sections, messages=messages, text=text)
    with pytest.raises(InvalidValue, match="without its speaker"):
        memory.pcp.apply_dosage(broken, max_tokens=window.used_tokens - 1)
