"""Windows of what nobody wishes for: tiny budgets, huge messages, gone and hidden records, equal texts.

A tool's result stands behind the call that it answers, also where a scope was closed between the two.

The knob of the estimator: everything the engine counts follows it, and what was counted before stays.

Source: issue "Windows that hold the answer", Bad input; C-027, C-121, C-308; docs/tokens.md, docs/decisions/0016.
"""

from __future__ import annotations

import sys
import uuid
from importlib.util import find_spec
from typing import Any

import pytest
from support.configs import ADMIN, USER, policy
from support.context.limits import set_limits
from support.drawn import needs
from support.evidence import scale
from support.providers import ScriptedSummarizer

import caliber
from caliber import EntityRef, Principal, ToolCall
from caliber.config import profiles
from caliber.kernels import estimate_tokens, open_estimator
from caliber.kernels.tokens import estimators, tokenizer
from caliber.model import FixedClock
from caliber.model.access import PrincipalKind
from caliber.model.errors import BudgetTooSmall, ExtraNotInstalled, InputError, MultipleErrors
from caliber.model.time import from_us
from caliber.model.trajectory import TTL, TTLKind

pytestmark = pytest.mark.databases("one")

ME = EntityRef.user("me")
SMALLEST = 12
"""Tokens of the smallest window: a header, the cost of a message, its speaker, and one token of it."""
KNOBS: dict[str, Any] = {"embedding__embed__turn": "commit", "policies": []}


class Talk:
    """One user's tasks in a store."""

    def __init__(self, memory: caliber.Caliber) -> None:
        self.memory = memory

    def task(self, *said: str, goal: str = "a talk") -> uuid.UUID:
        task = self.memory.start_trajectory(goal, initiator=ME).trajectory_id
        for at, text in enumerate(said):
            self.say(task, text, role="assistant" if at % 2 else "user")
        return task

    def say(self, task: uuid.UUID, text: str, *, role: str = "user") -> Any:
        scope = self.memory.current_scope(task) or self.memory.open_scope(task)
        return self.memory.append_turn(scope.scope_id, role=role, content=text)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def talk(backend: Any, clock: FixedClock) -> Any:
    memory = backend.open(clock=clock, **KNOBS)
    yield Talk(memory)
    memory.close()


def test_every_tiny_budget_gives_a_window_or_says_what_it_needs(talk: Talk) -> None:
    talk.task("My tortoise is called Humboldt.", "A fine name.")
    task = talk.task("What is my tortoise called?")
    for budget in range(1, 101):
        if budget < SMALLEST:
            with pytest.raises(BudgetTooSmall) as refused:
                talk.memory.assemble_context(task, max_tokens=budget)
            assert refused.value.context["needed"] > budget
            continue
        window = talk.memory.assemble_context(task, max_tokens=budget)
        assert window.used_tokens <= budget
        assert window.messages[-1].role == "user"
        said = window.messages[-1].content.removesuffix("...")
        assert said
        assert "What is my tortoise called?".startswith(said)
        assert talk.memory.replay(window.window_id).text == window.text
    assert "Humboldt" in window.text


def test_thousands_of_turns_without_a_change_of_scope(talk: Talk) -> None:
    task = talk.memory.start_trajectory("long", initiator=ME).trajectory_id
    scope = talk.memory.current_scope(task)
    talk.memory.append_turn(scope.scope_id, role="user", content="My cello teacher is Madame Okonkwo-Reyes.")
    turns = [
        {
            "role": "assistant" if at % 2 else "user",
            "content": f"Line {at} of a very long talk about weather and bread.",
        }
        for at in range(scale(1_498, 4_998))
    ]
    for start in range(0, len(turns), 500):
        talk.memory.append_turns(scope.scope_id, turns[start : start + 500])
    talk.say(task, "Who is my cello teacher?")
    talk.memory.flush()
    for budget in (300, 1_000, 4_000):
        window = talk.memory.assemble_context(task, max_tokens=budget)
        assert "Okonkwo-Reyes" in window.text
        assert window.used_tokens <= budget


def test_a_query_of_a_megabyte(talk: Talk) -> None:
    talk.task("The spare key is under the blue flowerpot.", "Noted.")
    task = talk.task("hello")
    query = "where is the spare key " * 45_000
    assert len(query) > 1_000_000
    window = talk.memory.assemble_context(task, query=query, max_tokens=1_000)
    assert "flowerpot" in window.text
    assert talk.memory.replay(window.window_id).text == window.text
    talk.say(task, query)
    window = talk.memory.assemble_context(task, max_tokens=1_000)
    assert window.used_tokens <= 1_000
    with pytest.raises(InputError):
        talk.memory.assemble_context(task, query=b"bytes", max_tokens=1_000)  # type: ignore[arg-type]


def test_what_is_gone_hidden_or_over_is_not_recalled(talk: Talk, clock: FixedClock) -> None:
    memory = talk.memory
    earlier = talk.task("My blood group is zero negative, says the clinic.", "I will keep the blood group in mind.")
    scope = memory.current_scope(earlier)
    assert scope is not None
    gone = talk.say(earlier, "Blood group card number is QUARTZ-771.")
    artifact = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="blood group test ROLLEDBACK", extraction_method="explicit"
    )
    memory.create_artifact(
        scope.scope_id,
        artifact_type="fact",
        content="blood group test EXPIRED",
        extraction_method="explicit",
        ttl=TTL(TTLKind.DURATION, 1_000),
    )
    memory.add_note(
        entity="me",
        entity_type="user",
        note_type="fact",
        content="blood group HIDDEN",
        confidence=1.0,
        visible_to=["agent:somebody"],
    )
    over = memory.add_note(
        entity="me", entity_type="user", note_type="fact", content="blood group OUTDATED", confidence=1.0
    )
    memory.storage.notes.update(over.note_id, valid_until=from_us(clock.now_us()))
    memory.storage.turns.delete(gone.turn_id)
    memory.storage.artifacts.update(artifact.artifact_id, rolled_back_at=from_us(clock.now_us()))
    clock.advance(ms=5_000)
    task = talk.task("What is my blood group?")
    memory.flush()
    me = memory.acting_as(Principal(PrincipalKind.HUMAN, "me"))
    window = me.assemble_context(task, max_tokens=2_000)
    assert "zero negative" in window.text
    for word in ("QUARTZ-771", "ROLLEDBACK", "EXPIRED", "HIDDEN", "OUTDATED"):
        assert word not in window.text
    memory.storage.turns.delete(next(turn.turn_id for turn in memory.storage.turns.list_by_scope(scope.scope_id)))
    assert "zero negative" not in me.assemble_context(task, max_tokens=2_000).text
    assert "zero negative" in me.replay(window.window_id).text


def test_a_text_that_two_tasks_have_stands_in_a_window_once(talk: Talk) -> None:
    fact = "The meeting room with the good projector is Nightingale."
    talk.task(fact, "Thanks, noted.")
    talk.task(fact, "Thanks, noted.")
    task = talk.task("Which meeting room has the good projector?")
    talk.memory.flush()
    window = talk.memory.assemble_context(task, max_tokens=2_000)
    assert window.text.count("Nightingale") == 1
    duplicates = [item for item in window.assembly_trace if item.rule_id == "duplicate"]
    assert duplicates
    assert "says the same" in duplicates[0].reason


def test_a_store_of_one_turn(talk: Talk) -> None:
    task = talk.task("hello")
    window = talk.memory.assemble_context(task)
    assert [section.name for section in window.sections] == ["current"]
    assert [message.content for message in window.messages] == ["hello"]
    empty = talk.memory.start_trajectory("nothing said", initiator=ME).trajectory_id
    assert talk.memory.assemble_context(empty, query="").text == ""


def test_junk_finds_nothing(backend: Any, clock: FixedClock) -> None:
    knobs = {name.replace("__", "."): value for name, value in backend.knobs.items()}
    config = caliber.profiles.reference(backend.path, principal=ADMIN, **{**knobs, "resident.feed_poll_ms": 0})
    with backend.open(config, clock=clock) as memory:
        _junk(Talk(memory))


def _junk(talk: Talk) -> None:
    talk.task("We planted two apple trees behind the barn.", "Apples need company.")
    task = talk.task("zzzzqqq")
    talk.memory.flush()
    window = talk.memory.assemble_context(task, max_tokens=2_000)
    assert [section.name for section in window.sections] == ["current"]


def test_what_is_found_and_does_not_fit_leaves_an_empty_window(backend: Any) -> None:
    """A small budget of a new task is no error only because another task kept something long."""
    memory = backend.open(policies=[])
    earlier = memory.start_trajectory("write the report", initiator=ME).trajectory_id
    scope = memory.current_scope(earlier)
    memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="zeppelin " * 2_000, extraction_method="explicit"
    )
    later = memory.start_trajectory("what of the zeppelin?", initiator=ME).trajectory_id
    window = memory.assemble_context(later, max_tokens=300)
    assert (window.text, window.used_tokens) == ("", 0)
    (left,) = [decision for decision in window.assembly_trace if decision.tokens > 300]
    assert left.rule_id in ("budget_limit", "section_budget")


NAMES = ["bytes", "calibrated"] + (["exact"] if find_spec("quicktok") else [])
TEXT = "Der schnelle Fuchs springt; 敏捷的狐狸 jumps over {'a': [1, 2, 3]} 🦊"
QUIET = {"embedding__embed__turn": "off", "embedding__embed__note": "off", "embedding__embed__artifact": "off"}


def knobs(estimator: str, vocabulary: str = "o200k_base") -> dict[str, Any]:
    return {"tokens__estimator": estimator, "tokens__vocabulary": vocabulary, **QUIET}


def count(estimator: str, text: str, vocabulary: str = "o200k_base") -> int:
    chosen = open_estimator(estimator, bytes_per_token=3.5, vocabulary=vocabulary)  # type: ignore[arg-type]
    return estimate_tokens(text, estimator=chosen)


def test_the_estimators_differ_on_this_text() -> None:
    assert len({count(name, TEXT) for name in NAMES}) == len(NAMES)
    assert count("exact", TEXT) != count("exact", TEXT, "cl100k_base")


@pytest.mark.parametrize("estimator", NAMES)
def test_everything_counted_follows_the_knob(backend: Any, start: Any, estimator: str) -> None:
    # C-027, C-121, C-308
    summarize = policy("scope_close", {"action": "summarize", "target": "turn_buffer"})
    summarizer = ScriptedSummarizer()
    memory = backend.open(
        summarization_provider=summarizer, policies=[summarize], embedding__embed__scope="off", **knobs(estimator)
    )
    expected = count(estimator, TEXT)
    agent = start(memory)
    turn, artifact, note = agent.say(TEXT), agent.keep(TEXT), agent.note(TEXT)
    assert (turn.token_count, artifact.token_count, note.token_count) == (expected,) * 3
    assert agent.memory.current_scope(agent.trajectory_id).tokens_input == expected

    window = memory.assemble_context(agent.trajectory_id)
    overhead = memory.config.assembly.message_overhead_tokens * len(window.messages)
    assert window.used_tokens == sum(count(estimator, s.content) for s in window.sections) + overhead
    assert window.estimator.split("/")[0] == estimator
    assert memory.explain(window.window_id)["inputs"]["estimator"] == window.estimator
    assert memory.admin.stats()["estimator"] == window.estimator
    assert memory.replay(window.window_id).used_tokens == window.used_tokens

    # Changed, closed, and written past the services.
    longer = f"{TEXT} {TEXT}"
    changed = memory.storage.artifacts.update(artifact.artifact_id, content=longer.encode())
    assert changed.token_count == count(estimator, longer)
    assert memory.storage.notes.update(note.note_id, content=longer).token_count == count(estimator, longer)
    closed = memory.close_scope(agent.scope_id)
    assert closed.summary
    assert closed.summary_tokens == count(estimator, closed.summary)


@pytest.mark.parametrize("estimator", NAMES[1:])
@needs("reopen")
def test_counts_of_another_estimator_stay_and_decide_nothing(backend: Any, start: Any, estimator: str) -> None:
    """docs/tokens.md: a stored count is what was counted when it was stored."""
    memory = backend.open(**knobs("bytes"))
    agent = start(memory)
    turns = [agent.say(f"{TEXT} {at}") for at in range(30)]
    before = memory.assemble_context(agent.trajectory_id)
    memory.close()

    memory = backend.open(**knobs(estimator))
    stored = memory.storage.turns.list_by_scope(agent.scope_id)
    assert [turn.token_count for turn in stored] == [turn.token_count for turn in turns]
    assert stored[0].version == turns[0].version
    new = memory.append_turn(agent.scope_id, role="user", content=TEXT)
    assert new.token_count == count(estimator, TEXT)
    # A window counts anew what it holds, whoever stored it.
    window = memory.assemble_context(agent.trajectory_id)
    overhead = memory.config.assembly.message_overhead_tokens * len(window.messages)
    assert window.used_tokens == sum(count(estimator, s.content) for s in window.sections) + overhead
    older, now = window.sections[-2:]
    assert now.sources[-1].tokens in (count(estimator, f"user: {TEXT}\n"), count(estimator, f"user: {TEXT}"))
    source = older.sources[0]
    assert source.tokens in (count(estimator, f"user: {TEXT} 0\n\n"), count(estimator, f"user: {TEXT} 0"))
    # A window that was made under the old one is replayed under the old one.
    again = memory.replay(before.window_id)
    assert (again.text, again.used_tokens, again.estimator) == (before.text, before.used_tokens, "bytes/3.5")


@needs("reopen")
def test_a_missing_package_is_said_at_open(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    start(backend.open(**knobs("bytes"))).memory.close()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "quicktok", None)
    tokenizer.open_token_vocabulary.cache_clear()
    estimators.open_estimator.cache_clear()
    try:
        with pytest.raises(ExtraNotInstalled, match=r"pip install 'caliber-memory\[tokens\]'"):
            backend.open(**knobs("exact"))
    finally:
        tokenizer.open_token_vocabulary.cache_clear()
        estimators.open_estimator.cache_clear()
    backend.open(**knobs("calibrated"))  # nothing was left locked


def test_an_estimator_that_reads_text_needs_a_vocabulary(backend: Any) -> None:
    with pytest.raises(MultipleErrors, match=r"tokens\.vocabulary"):
        backend.config(tokens__estimator="exact", tokens__vocabulary=None)


PROFILES = ("reference", "coding-agent", "chat-companion", "ops-agent", "sources")


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("between", ["call and results", "results"])
@needs("reopen")
def test_a_call_from_a_closed_scope_comes_with_its_results(backend: Any, profile: str, between: str) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], **{k.replace("__", "."): v for k, v in backend.knobs.items()}}
    memory = backend.open(profiles.PROFILES[profile](backend.path, **knobs))
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    before = memory.current_scope(task)
    memory.append_turn(before.scope_id, role="user", content="What is the weather in Oslo and in Rome?")
    calls = [ToolCall("oslo", "weather", '{"city": "Oslo"}'), ToolCall("rome", "weather", '{"city": "Rome"}')]
    memory.append_turn(before.scope_id, role="assistant", content="", tool_calls=calls)
    results = [{"role": "tool", "content": "snow", "tool_call_id": "oslo"}]
    last = {"role": "tool", "content": "sun", "tool_call_id": "rome"}
    if between == "results":
        memory.append_turns(before.scope_id, results)
        results = []
    memory.close_scope(before.scope_id)
    after = memory.open_scope(task)
    memory.append_turns(after.scope_id, [*results, last])
    messages = memory.assemble_context(task, max_tokens=2_000).to_messages()
    asked = next(at for at, message in enumerate(messages) if message.get("tool_calls"))
    assert [message.get("tool_call_id") for message in messages[asked + 1 :]] == ["oslo", "rome"]
    assert [message["content"] for message in messages[asked + 1 :]] == ["snow", "sun"]


def test_a_result_whose_call_was_never_stored_is_shown(backend: Any) -> None:
    memory = backend.open()
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    memory.append_turn(scope.scope_id, role="tool", content="snow", tool_call_id="unknown")
    assert "snow" in memory.assemble_context(task).text


def test_ids_that_are_used_again_bring_the_newest_call_alone(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, max_turns=2)
    memory = backend.open(policies=[])
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    for at in range(6):
        memory.append_turn(scope.scope_id, role="user", content=f"question {at}")
        memory.append_turn(
            scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("call_0", "look", f'{{"at": {at}}}')]
        )
        if at < 5:
            memory.append_turn(scope.scope_id, role="tool", content=f"result {at}", tool_call_id="call_0")
        memory.close_scope(scope.scope_id)
        scope = memory.open_scope(task)
    memory.append_turn(scope.scope_id, role="tool", content="result 5", tool_call_id="call_0")
    said = [m for m in memory.assemble_context(task, query="", max_tokens=2_000).to_messages() if "name" not in m]
    asked = [call["function"]["arguments"] for m in said for call in m.get("tool_calls") or ()]
    assert asked == ['{"at": 5}']
    assert [m["content"] for m in said if m["role"] == "tool"] == ["result 5"]


@pytest.mark.parametrize("profile", ["reference", "coding-agent"])
@needs("reopen")
def test_a_result_whose_call_the_limit_cut_off_stays_out(
    backend: Any, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], **{k.replace("__", "."): v for k, v in backend.knobs.items()}}
    set_limits(monkeypatch, max_turns=3)
    memory = backend.open(profiles.PROFILES[profile](backend.path, **knobs))
    task = memory.start_trajectory("look things up", initiator=USER).trajectory_id
    scope = memory.current_scope(task)
    memory.append_turn(scope.scope_id, role="user", content="go")
    memory.append_turn(scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("old", "look", "{}")])
    memory.close_scope(scope.scope_id)
    scope = memory.open_scope(task)
    memory.append_turn(scope.scope_id, role="assistant", content="", tool_calls=[ToolCall("here", "look", "{}")])
    memory.append_turn(scope.scope_id, role="tool", content="of here", tool_call_id="here")
    memory.append_turn(scope.scope_id, role="tool", content="of old", tool_call_id="old")
    memory.append_turn(scope.scope_id, role="assistant", content="ok")
    said = memory.assemble_context(task, query="", max_tokens=2_000).to_messages()
    asked = {call["id"] for m in said for call in m.get("tool_calls") or ()}
    assert {m["tool_call_id"] for m in said if m.get("tool_call_id")} <= asked
