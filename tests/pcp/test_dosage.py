"""Dosage: limits of windows, compression of records that do not fit. Source: C-056, C-273 to C-277, K-083, K-084."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.context.limits import set_limits
from support.evidence import examples

from caliber.model.context import AssemblyAction
from caliber.text.key_sentences import key_sentences

LONG = (
    "The pump is a model A12 from 2019. Its seal is changed every spring. The cellar is dry. "
    "A spare seal lies in the red box. The red box stands in the cellar beside the pump. "
    "Nobody has painted the door. The supplier of the seal is Okonkwo and Sons."
)
COMPRESS: dict[str, Any] = {
    "assembly__overflow_policy": "compress",
    "assembly__truncate_min_tokens": 5,
    "assembly__order": "priority",
    "assembly__fill_ratio": 1.0,
    "assembly__section_shares": {},
    "assembly__relevance": "vector",
    "policies": [],
}


def noted(start: Any, memory: Any, *contents: str) -> Any:
    """Return an agent whose user has spoken, and that knows some notes."""
    agent = start(memory)
    agent.say("Where is the spare seal?")
    for content in contents:
        agent.note(content, confidence=0.9)
    memory.flush()
    return agent


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_a_record_that_does_not_fit_enters_as_its_key_sentences(backend: Any, start: Any, order: str) -> None:
    # C-056, C-274
    memory = backend.open(**COMPRESS | {"assembly__order": order})
    agent = noted(start, memory, LONG)
    window = memory.assemble_context(agent.trajectory_id, query="Where is the spare seal?", max_tokens=70)
    note = next(each for each in window.assembly_trace if each.source_type == "note")
    assert (note.action, note.rule_id) == (AssemblyAction.COMPRESS, "overflow_compress")
    assert note.reason.startswith("did not fit whole: compressed from ")
    assert "The pump is a model A12 from 2019." in window.text  # the first sentence stays
    assert "A spare seal lies in the red box." in window.text  # it answers the query
    assert "painted" not in window.text
    assert " … " in window.text
    assert window.used_tokens <= 70
    memory.flush()
    again = memory.replay(window.window_id)
    assert again == window
    told = memory.explain(window.window_id)["inclusions"]
    assert next(each["rule_id"] for each in told if each["type"] == "note") == "overflow_compress"


def test_a_record_that_fits_is_not_compressed(backend: Any, start: Any) -> None:
    memory = backend.open(**COMPRESS)
    agent = noted(start, memory, LONG)
    window = memory.assemble_context(agent.trajectory_id, max_tokens=400)
    assert LONG in window.text
    assert {each.action for each in window.assembly_trace} == {AssemblyAction.INCLUDE}


def test_critical_sections_are_cut_and_never_compressed(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-275
    set_limits(monkeypatch, critical_priority=0)
    memory = backend.open(**COMPRESS)
    agent = noted(start, memory, LONG)
    window = memory.assemble_context(agent.trajectory_id, max_tokens=70)
    assert AssemblyAction.COMPRESS not in {each.action for each in window.assembly_trace}
    assert AssemblyAction.TRUNCATE in {each.action for each in window.assembly_trace}


sentences = st.lists(
    st.lists(
        st.sampled_from(["seal", "pump", "box", "red", "cellar", "of", "the", "é", "漢"]), min_size=1, max_size=9
    ).map(lambda words: " ".join(words).capitalize() + "."),
    min_size=1,
    max_size=12,
).map(" ".join)


@given(sentences, st.integers(0, 60), st.sampled_from(["", "where is the red box?"]))
def test_key_sentences_keep_to_their_limit_and_order(text: str, limit: int, query: str) -> None:
    def length(spans: Any) -> int:
        return len(" … ".join(text[start:end] for start, end in spans))

    spans = key_sentences(text, query, lambda chosen: length(chosen) <= limit)
    assert spans == tuple(sorted(spans))
    assert not spans or spans[0][0] == 0
    assert not spans or length(spans) <= limit
    assert spans == key_sentences(text, query, lambda chosen: length(chosen) <= limit)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    notes=st.lists(sentences, max_size=8, unique=True),
    artifacts=st.lists(sentences, max_size=4, unique=True),
    most=st.integers(60, 400),
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    order=st.sampled_from(["priority", "stable_first"]),
    ratio=st.sampled_from([0.2, 0.5, 0.9]),
)
def test_no_window_exceeds_a_limit(
    backend: Any, start: Any, notes: Any, artifacts: Any, most: int, counts: Any, order: str, ratio: float
) -> None:
    # K-083, K-084
    knobs = {
        "assembly__order": order,
        "pcp__dosage__max_context_tokens": most,
        "pcp__dosage__max_notes_in_window": counts[0],
        "pcp__dosage__max_artifacts_in_window": counts[1],
    }
    with pytest.MonkeyPatch.context() as patch, backend.open(**COMPRESS | knobs) as memory:
        set_limits(patch, compress_ratio=ratio)
        agent = noted(start, memory, *notes)
        for content in artifacts:
            agent.keep(content)
        memory.flush()
        window = memory.assemble_context(agent.trajectory_id, query="where is the red box?")
        assert window.used_tokens <= most
        for each in window.assembly_trace:
            if each.rule_id == "dosage_limit":
                assert f"pcp.dosage.max_{each.source_type}s_in_window" in each.reason
            if each.rule_id == "budget_limit" and "were used" in each.reason:
                assert "pcp.dosage.max_context_tokens" in each.reason
        inside = [each.source_type for each in window.assembly_trace if each.action is not AssemblyAction.EXCLUDE]
        assert inside.count("note") <= counts[0]
        assert inside.count("artifact") <= counts[1]
        memory.flush()
        assert memory.replay(window.window_id) == window


def test_turns_that_messages_show_otherwise_are_known_again(backend: Any) -> None:
    memory = backend.open()
    history = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Is the pump on?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "pump", "arguments": {"at": 1}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "no power", "is_error": True},
        {"role": "user", "name": "system", "content": "What now?"},
        {"role": "user", "content": "And the valve? " * 20},
    ]
    task = memory.remember(history, user="ana").trajectory_id
    window = memory.assemble_context(task, max_tokens=2_000)
    assert all(str(said["content"]) in window.text for said in history)
    smaller = memory.pcp.apply_dosage(window, max_tokens=window.used_tokens - 1)
    assert smaller.used_tokens < window.used_tokens
