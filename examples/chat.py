"""A chat agent that remembers each of its users, in one file to copy from.

    python examples/chat.py ana                         scripted answers, offline
    OPENAI_API_KEY=... python examples/chat.py ana      a model's: CHAT_MODEL names it, OPENAI_BASE_URL its service

/facts lists what is known, /undo takes back what the last message taught, /forget erases the user, /quit leaves.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import caliber

INSTRUCTIONS = "You are a companion. Answer from what you remember of the user; say so where you do not know."
Model = Callable[[list[dict[str, Any]]], str]


class Chat:
    """The conversations of all users. Each call is made as its user, who sees nothing of the others."""

    def __init__(self, memory: caliber.Caliber, model: Model) -> None:
        self.memory, self.model = memory, model
        self.tasks: dict[str, uuid.UUID] = {}  # the conversation of each user
        self.taught: dict[str, uuid.UUID] = {}  # the last message of each user that was learnt from

    def acting_as(self, user: str) -> caliber.Caliber:
        """Return the handle of a user, by the name that the application has for them."""
        return self.memory.as_user(user)

    def say(self, user: str, said: str) -> str:
        """Keep a message and what it teaches, and return the model's answer, which is kept too."""
        mine = self.acting_as(user)
        learned = mine.remember([{"role": "user", "content": said}])  # in the user's open task, or a new one
        self.tasks[user] = learned.trajectory_id
        if learned.learned_id is not None:
            self.taught[user] = learned.learned_id
        window = mine.assemble_context(learned.trajectory_id)
        answer = self.model([{"role": "system", "content": INSTRUCTIONS}, *window.to_messages()])
        mine.remember([{"role": "assistant", "content": answer}], task=learned.trajectory_id)
        return answer

    def facts(self, user: str) -> list[Any]:
        """Return the notes about a user that hold now, for ``update_note``, ``end_note`` and ``delete_note``."""
        return list(self.acting_as(user).records("note").find(limit=100))

    def undo(self, user: str) -> None:
        """Take back what the last message taught; the message stays."""
        if user in self.taught:
            self.acting_as(user).learning.undo(self.taught.pop(user))

    def end(self, user: str) -> None:
        """End the conversation; the next message begins another one, which recalls this one."""
        if user in self.tasks:
            self.acting_as(user).complete_trajectory(self.tasks.pop(user), status="success", summary="")

    def forget(self, user: str) -> bool:
        """Erase a user; return whether nothing of them was found afterwards."""
        self.tasks.pop(user, None)
        self.taught.pop(user, None)
        return self.memory.forget(user=user).proven


def scripted(messages: list[dict[str, Any]]) -> str:
    """Answer with the remembered line that shares most words with the question."""
    *before, question = [message["content"] for message in messages[1:]]
    lines = [line for text in reversed(before) for line in text.splitlines() if not line.startswith("#")]
    asked = _words(question)
    best = max(lines, key=lambda line: len(asked & _words(line)), default="")
    return f"I remember: {best}" if asked & _words(best) else "I see."


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall(r"\w{3,}", text.lower())}


def asked(messages: list[dict[str, Any]]) -> str:
    """Answer from a service that speaks OpenAI's protocol."""
    url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1") + "/chat/completions"
    body = {"model": os.environ.get("CHAT_MODEL", "gpt-4o-mini"), "messages": messages}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  (the caller's own URL)
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        return str(json.load(response)["choices"][0]["message"]["content"])


def main(user: str) -> None:
    config = caliber.profiles.chat_companion("chat.db")
    with caliber.open(config, create=True) as memory:
        chat = Chat(memory, asked if "OPENAI_API_KEY" in os.environ else scripted)
        for line in map(str.strip, sys.stdin):
            if line == "/quit":
                break
            if line == "/facts":
                print(*[fact.content for fact in chat.facts(user)], sep="\n")
            elif line == "/undo":
                chat.undo(user)
            elif line == "/forget":
                print("erased" if chat.forget(user) else "erased, but see the report of caliber forget")
            elif line:
                print(chat.say(user, line))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "me")
