"""Random histories of messages: of every provider's form, whole or broken as real ones are."""

from __future__ import annotations

import json
from random import Random
from typing import Any

Messages = list[dict[str, Any]]
IDS = ("c1", "c2", "c3", "call.1", "call_1", "call 1", "toolu_" + "9" * 60, "toolu_" + "9" * 59 + "8", "ü")
TOOLS = ("weather", "send_mail", "my tool", "f" * 150)
ARGUMENTS = ('{"city": "Ghent"}', "{}", "", "[1]", "{broken", '{"a": NaN}', '"text"', '{"a": "\\ud800"}', "[" * 3_000)
SIGNED = (
    {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
    {"type": "thinking", "thinking": "", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    {"type": "thinking", "thinking": "unsigned"},
    {"type": "thinking", "thinking": "unsigned", "signature": ""},
    {"type": "reasoning", "text": "hm"},
)


class History:
    """One history; each step has the form of a provider drawn for it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.messages: Messages = []
        self.numbers = 0
        for _ in range(self.rng.randint(1, 14)):
            self.step()
        if self.rng.random() < 0.2:
            self.rng.shuffle(self.messages)
        if self.rng.random() < 0.2 and len(self.messages) > 1:
            del self.messages[self.rng.randrange(len(self.messages))]

    def words(self) -> str:
        self.numbers += 1
        return self.rng.choice([f"words {self.numbers}", f"words {self.numbers} \n", f"# {self.numbers}\nü", "", "  "])

    def step(self) -> None:
        rng = self.rng
        kind = rng.choice(["user", "user", "answer", "answer", "calls", "calls", "calls", "orphan", "system", "odd"])
        if kind == "user":
            name = rng.choice([{}, {}, {"name": "Zoë <b>"}, {"name": "system"}])
            self.messages.append({"role": "user", "content": rng.choice([self.words(), self.parts()]), **name})
        elif kind == "answer":
            thoughts = rng.sample(SIGNED, rng.choice([0, 0, 1, 2]))
            text = {"type": "text", "text": self.words()}
            self.messages.append({"role": "assistant", "content": rng.choice([[*thoughts, text], self.words()])})
        elif kind == "system":
            self.messages.append({"role": rng.choice(["system", "developer"]), "content": self.words()})
        elif kind == "orphan":
            self.results(rng.choice(["openai", "anthropic", "gemini", "old"]), [(rng.choice(IDS), "weather")])
        elif kind == "odd":
            odd = {"type": "hologram", "matter": 1}, {"novelty": {"a": 1}}, {"type": "text", "text": ""}
            self.messages.append({"role": rng.choice(["user", "model"]), "parts": [rng.choice(odd)]})
        else:
            self.calls()

    def parts(self) -> list[dict[str, Any]]:
        image = {"type": "image_url", "image_url": {"url": "data:x"}}
        return self.rng.sample([{"type": "text", "text": self.words()}, image, {"text": "of Gemini"}], 2)

    def calls(self) -> None:
        """Add calls, and their results: all or some, in order or not, at once or after words of the user."""
        rng = self.rng
        form = rng.choice(["openai", "openai", "anthropic", "anthropic", "gemini", "old", "responses"])
        calls = [(rng.choice(IDS), rng.choice(TOOLS)) for _ in range(rng.choice([1, 1, 2, 3]))]
        if form == "old":
            calls = calls[:1]
        given = [rng.choice(ARGUMENTS) for _ in calls]
        if form == "openai":
            items: list[dict[str, Any]] = [
                {"id": key, "type": "function", "function": {"name": name, "arguments": rng.choice([text, {"a": 1}])}}
                for (key, name), text in zip(calls, given, strict=True)
            ]
            said = rng.choice([None, self.words()])
            self.messages.append({"role": "assistant", "content": said, "tool_calls": items})
        elif form == "anthropic":
            uses = [{"type": "tool_use", "id": key, "name": name, "input": {"a": [1]}} for key, name in calls]
            before = rng.sample(SIGNED, rng.choice([0, 1, 2]))
            text = [{"type": "text", "text": self.words()}] if rng.random() < 0.5 else []
            self.messages.append({"role": "assistant", "content": [*before, *text, *uses]})
        elif form == "gemini":
            made = [{"functionCall": {"name": name, "args": {"a": 1}}} for _, name in calls]
            self.messages.append({"role": "model", "parts": [{"text": "hm", "thought": True}, *made]})
        elif form == "old":
            made_by = {"name": calls[0][1], "arguments": given[0]}
            self.messages.append({"role": "assistant", "content": None, "function_call": made_by})
        else:
            for (key, name), text in zip(calls, given, strict=True):
                self.messages.append({"type": "function_call", "call_id": key, "name": name, "arguments": text})
        answered = [call for call in calls if rng.random() < 0.75]
        if rng.random() < 0.3:
            rng.shuffle(answered)
        if rng.random() < 0.25:
            self.messages.append({"role": "user", "content": "Still there?"})
        if rng.random() < 0.1:
            answered += answered[:1]
        self.results(form, answered)

    def results(self, form: str, calls: list[tuple[str, str]]) -> None:
        failed = self.rng.random() < 0.2
        said = self.words()
        if form == "anthropic" and calls:
            blocks: list[dict[str, Any]] = [
                {"type": "tool_result", "tool_use_id": key, "content": said, "is_error": failed} for key, _ in calls
            ]
            after = [{"type": "text", "text": "And?"}] if self.rng.random() < 0.3 else []
            self.messages.append({"role": "user", "content": [*blocks, *after]})
            return
        for key, name in calls:
            if form == "gemini":
                response = {"name": name, "response": {"result": said}}
                self.messages.append({"role": "user", "parts": [{"functionResponse": response}]})
            elif form == "old":
                self.messages.append({"role": "function", "name": name, "content": said})
            elif form == "responses":
                self.messages.append({"type": "function_call_output", "call_id": key, "output": json.dumps(said)})
            else:
                self.messages.append({"role": "tool", "tool_call_id": key, "content": said, "is_error": failed})
