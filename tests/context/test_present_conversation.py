"""The conversation while there is room: random chats with pauses, closed scopes, other tasks and small budgets."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from support.evidence import share

import caliber
from caliber import EntityRef, EntityType
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
