"""The conversation while there is room: random chats with pauses, closed scopes, other tasks and small budgets.

A tool call and its results enter a window that is too small for them together or not at all.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.evidence import share

import caliber
from caliber import Caliber, ContextWindow, EntityRef, EntityType, ToolCall
from caliber.context.limits import MAX_TURNS
from caliber.model.time import from_us

WORDS = ("the", "club", "met", "in our hall", "and talked about", "boats, letters,", "a long walk", "next year's plans")


class Clock:
    """A clock that the chat moves."""

    def __init__(self) -> None:
        self.s = 1_790_000_000

    def now_us(self) -> int:
        return self.s * 1_000_000


def chat(memory: Any, clock: Clock, rnd: random.Random, user: str) -> tuple[Any, list[str]]:
    """Hold a random chat of a user in one task; return the task, and the texts of its turns."""
    task = memory.start_trajectory("a chat", user=user).trajectory_id
    longest = rnd.choice([3, 12, 60])
    texts: list[str] = []
    count = rnd.randrange(4, 70)
    while len(texts) < count:
        turns = []
        for at in range(len(texts), min(count, len(texts) + rnd.choice([2, 10, 40, 70]))):
            clock.s += rnd.choice([30, 30, 60, 60, 600, 90_000])
            texts.append(f"M{at}M " + " ".join(rnd.choices(WORDS, k=rnd.randrange(longest))))
            role, when = "assistant" if at % 2 else "user", from_us(clock.now_us())
            turns.append({"role": role, "content": texts[-1], "occurred_at": when})
        if rnd.random() < 0.2:
            memory.close_scope(memory.current_scope(task).scope_id)
            memory.open_scope(task)
        memory.append_turns(memory.current_scope(task).scope_id, turns)
    return task, texts


@pytest.mark.parametrize("part", share(range(240), 1, daily=240))
def test_no_window_leaves_out_turns_that_fit_beside_what_is_more_relevant(part: int) -> None:
    clock = Clock()
    config = caliber.profiles.chat_companion(
        ":memory:", embedding_provider=None, **{"resident.feed_poll_ms": 0, "policies": [], "summaries.turns": "off"}
    )
    with caliber.open(config, clock=clock) as memory:
        for seed in range(4 * part, 4 * part + 4):
            rnd = random.Random(seed)
            task, texts = chat(memory, clock, rnd, f"user {seed}")
            budget = rnd.choice([100, 300, 700, 1_000, 2_000, 4_000])
            first = set()
            for query in (None, "boats and letters", "something that nobody ever said"):
                window = memory.assemble_context(task, query=query, max_tokens=budget)
                shown = [at for at in range(len(texts)) if f"M{at}M" in window.text]
                assert window.used_tokens <= budget
                assert (len(texts) - 1) // 2 * 2 in shown, (seed, "the last message of the user")
                left = [at for at in range(len(texts)) if at not in shown]
                if left:  # a separator, the header of a section, the message, and what their counts round up by
                    needs = (len(texts[left[-1]]) + len("assistant: ")) / 3.5 + 22
                    assert window.used_tokens + needs > budget, (seed, query, left[-1])
                talk = next((part.content for part in window.sections if part.name == "user"), "")
                first.add(talk[:40])
            assert len(first) == 1, (seed, "the first turn of the conversation follows the query")


# --- reasons for unrecalled records of a declared memory -------------------------------------------


ME = EntityRef(EntityType.USER, uuid.UUID(int=7))


def fact(**more: Any) -> dict[str, Any]:
    fields = [{"name": "title", "type": "text"}]
    return {"name": "fact", "type": "semantic", "fields": fields, "retention": {"kind": "persistent"}, **more}


@pytest.mark.parametrize(
    ("declared", "query", "reason"),
    [
        (fact(), "What colour is the lantern?", "not_searched"),
        (fact(indexes=[{"field": "title", "type": "gin"}]), "", "no_recall"),
    ],
)
def test_a_record_that_no_search_could_bring_says_so(declared: dict[str, Any], query: str, reason: str) -> None:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "memories": [declared]}
    with caliber.open(
        caliber.profiles.PROFILES["reference"](":memory:", **knobs), principal=caliber.Principal.admin()
    ) as memory:
        task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        scope = memory.open_scope(task).scope_id
        records = [
            memory.records("fact").insert(title="The lantern is green."),
            memory.records("fact").insert(title="The lantern is old.", scope=scope),
        ]
        memory.append_turn(scope, role="user", content="Hello.")
        window = memory.assemble_context(task, query=query)
        for record in records:
            answer = memory.explain(window.window_id, exclusion=record.record_id)
            assert (answer["verdict"], answer["filter"]) == ("filtered", reason)


LONG = "a line of a log, one of many. " * 300


class Talk:
    """One task, whose windows are asked for without recall of anything else."""

    def __init__(self, memory: Caliber) -> None:
        self.memory = memory
        self.task = memory.start_trajectory("a task", initiator=ME).trajectory_id
        self.scope = memory.open_scope(self.task).scope_id

    def say(self, *turns: dict[str, Any]) -> None:
        self.memory.append_turns(self.scope, list(turns))

    def window(self, max_tokens: int) -> ContextWindow:
        return self.memory.assemble_context(self.task, max_tokens=max_tokens)


@pytest.fixture(params=["truncate", "exclude"])
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    knobs = {"resident.feed_poll_ms": 0, "policies": [], "assembly.overflow_policy": request.param}
    with caliber.open(
        caliber.profiles.PROFILES["reference"](":memory:", **knobs), principal=caliber.Principal.admin()
    ) as memory:
        yield Talk(memory)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calling(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    calls = [ToolCall(call, "look", arguments) for call in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(call: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call}


def pairs(window: ContextWindow) -> tuple[set[str], set[str]]:
    """Return the calls and the answered calls of a window."""
    calls = {call["id"] for message in window.messages for call in message.tool_calls}
    return calls, {message.tool_call_id for message in window.messages if message.tool_call_id is not None}


BUDGETS = (60, 80, 120, 200, 400, 1_000, 2_000)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_waiting_call_never_enters_without_a_result_that_it_has(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Look twice."), calling("one", "two"), result("one", LONG))
    window = talk.window(max_tokens)
    calls, answered = pairs(window)
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))
    assert window.used_tokens <= max_tokens
    again = talk.memory.replay(window.window_id)
    assert (again.text, again.messages) == (window.text, window.messages)


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_result_never_enters_without_its_waiting_call(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Look twice."), calling("one", "two", arguments=f'{{"text": "{LONG}"}}'), result("one", "Seen."))
    calls, answered = pairs(talk.window(max_tokens))
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))


@pytest.mark.parametrize("max_tokens", BUDGETS)
def test_a_call_from_before_the_last_message_leaves_with_its_results(talk: Talk, max_tokens: int) -> None:
    talk.say(calling("one", "two", arguments=f'{{"text": "{LONG}"}}'), user("Well?"), result("one", "Seen."))
    window = talk.window(max_tokens)
    assert any(message.content == "Well?" for message in window.messages)
    calls, answered = pairs(window)
    assert (calls, answered) in (({"one", "two"}, {"one"}), (set(), set()))


def test_a_waiting_call_that_does_not_fit_enters_with_its_result_cut(talk: Talk) -> None:
    talk.say(user("Look twice."), calling("one", "two"), result("one", LONG))
    window = talk.window(200)
    # The result enters cut: the newest results are never missing.
    assert [item.rule_id for item in window.assembly_trace if item.action.value != "include"] == ["overflow_truncate"]
    assert [message.role for message in window.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("max_tokens", [400, 4_000])
def test_the_last_user_message_enters_however_many_calls_have_followed(talk: Talk, max_tokens: int) -> None:
    talk.say(user("Do all of it."))
    for number in range(MAX_TURNS // 2 + 10):
        talk.say(calling(f"c{number}"), result(f"c{number}", "Done."))
    window = talk.window(max_tokens)
    assert window.messages[0].content == "Do all of it."
    calls, answered = pairs(window)
    assert calls == answered != set()
    left = next(turn for turn in talk.memory.storage.turns.all() if turn.tool_calls)
    assert talk.memory.explain(window.window_id, exclusion=left.turn_id)["filter"] == "newest"
    assert talk.memory.replay(window.window_id).text == window.text


def test_nothing_stands_between_a_call_and_its_result_where_no_user_speaks(talk: Talk) -> None:
    talk.memory.create_artifact(
        talk.scope, artifact_type="fact", content="The log is long.", extraction_method="explicit"
    )
    talk.say(calling("one"), result("one", "Seen."))
    roles = [message.role for message in talk.window(2_000).messages]
    assert roles == ["user", "assistant", "tool"]
