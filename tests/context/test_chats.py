"""Windows of random chats under the shipped profiles: recent exchanges, room that is used, calls with their results."""

from __future__ import annotations

import os
import random
import uuid
from typing import Any

import pytest

import caliber
from caliber import EntityRef, EntityType, ToolCall

PROFILES = ("reference", "coding-agent", "chat-companion", "ops-agent")
CHATS = 960 if os.environ.get("CALIBER_SOAK") else 24
SEED = int(os.environ.get("CALIBER_SEED", "1"))
WORDS = """
garden river meeting invoice train bicycle kernel cache patient violin mountain recipe budget lantern harbour deploy
schema glacier teacher wedding tomato window orchard battery printer museum ticket bakery compass engine island market
letter kettle sweater painter temple saddle anchor pepper blanket camera doctor forest guitar hotel
""".split()  # noqa: SIM905


class Chat:
    """One random chat in a store of its own, and what a window of it must hold."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.profile = PROFILES[seed % len(PROFILES)]
        self.config = caliber.profiles.PROFILES[self.profile](
            ":memory:", **{"resident.feed_poll_ms": 0, "policies": []}
        )
        self.answer_words = rng.choice((20, 60, 150, 300, 500, 900))
        self.tools = rng.random() < 0.5
        self.closes = rng.choice((0, 0, 5, 20))
        self.exchanges: list[list[Any]] = []

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(WORDS, k=max(1, words))) + "."

    def exchange(self, memory: Any, task: uuid.UUID, number: int) -> None:
        rng = self.random
        scope = memory.current_scope(task) or memory.open_scope(task)
        turns: list[dict[str, Any]] = [{"role": "user", "content": self.text(rng.randint(3, 40))}]
        if self.tools and rng.random() < 0.4:
            calls = [ToolCall(f"call_{number}_{at}", "lookup", "{}") for at in range(rng.randint(1, 3))]
            turns.append({"role": "assistant", "content": "", "tool_calls": calls})
            turns += [
                {"role": "tool", "content": self.text(rng.randint(5, 400)), "tool_call_id": call.id} for call in calls
            ]
        length = rng.randint(max(1, self.answer_words // 2), self.answer_words)
        turns.append({"role": "assistant", "content": self.text(length)})
        self.exchanges.append(memory.append_turns(scope.scope_id, turns))
        if self.closes and rng.random() < 1 / self.closes:
            memory.close_scope(scope.scope_id)

    def run(self) -> None:
        with caliber.open(self.config, principal=caliber.Principal.admin()) as memory:
            me = EntityRef(EntityType.USER, uuid.UUID(int=7))
            for other in range(self.random.randint(0, 2)):
                earlier = memory.start_trajectory(f"earlier {other}", initiator=me).trajectory_id
                for number in range(self.random.randint(1, 8)):
                    self.exchange(memory, earlier, number)
            self.exchanges.clear()
            task = memory.start_trajectory("a chat", initiator=me).trajectory_id
            for number in range(self.random.randint(3, 60)):
                self.exchange(memory, task, number)
            scope = memory.current_scope(task) or memory.open_scope(task)
            asked = memory.append_turn(scope.scope_id, role="user", content=self.text(self.random.randint(3, 30)))
            if self.random.random() < 0.7:
                memory.flush()
            own = self.config.token_budget
            for budget in sorted({own, *(b for b in (700, 1_000, 2_000, 4_000) if b <= own)}):
                self.check(memory.assemble_context(task, max_tokens=budget), asked, budget)

    def check(self, window: Any, asked: Any, budget: int) -> None:
        assert window.used_tokens <= budget
        shown = {
            source.id
            for section in window.sections
            if section.name in ("user", "current")
            for source in section.sources
        }
        assert asked.turn_id in shown
        last_two = [turn for exchange in self.exchanges[-2:] for turn in exchange]
        header = 40
        needed = header + sum(turn.token_count + 12 for turn in (*last_two, asked))
        for turn in last_two:
            needed += sum(len(call.id) + len(call.name) + 10 for call in turn.tool_calls)
        if needed <= budget:
            assert {turn.turn_id for turn in last_two} <= shown, (self.profile, budget, needed)
        calls = {call["id"] for message in window.messages for call in message.tool_calls}
        answers = {message.tool_call_id for message in window.messages if message.tool_call_id is not None}
        assert calls == answers
        left = budget - window.used_tokens
        if left > 0.15 * budget:
            fitting = [
                item
                for item in window.assembly_trace
                if item.action.value == "exclude"
                and item.rule_id in ("budget_limit", "section_limit")
                and item.source_type.value in ("turn", "note", "artifact")
                and item.tokens + 12 <= left
            ]
            assert not fitting, (self.profile, budget, left, fitting[0])


@pytest.mark.parametrize("number", range(CHATS))
def test_windows_of_a_random_chat(number: int) -> None:
    Chat(SEED * 100_003 + number).run()
