"""The chat example: 30 conversations of three users, with corrections and deletions, and the program itself."""

from __future__ import annotations

import calendar
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.databases import Backend, PostgresBackend
from support.drawn import needs
from support.llm.model_server import Handler, serving

from caliber.config import CaliberConfig, profiles
from caliber.model.learning import PersonAttribute

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "chat.py"
TALKS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("conversations.json").read_text(encoding="utf-8"))
_SPEC = importlib.util.spec_from_file_location("chat", EXAMPLE)
assert _SPEC is not None
assert _SPEC.loader is not None
chat = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = chat
_SPEC.loader.exec_module(chat)


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.casefold()))


def lives() -> list[str]:
    """Return for each conversation whose it is: a user who was forgotten and comes back is another one."""
    forgotten: dict[str, int] = {}
    found = []
    for talk in TALKS:
        found.append(f"{talk['user']} {forgotten.get(talk['user'], 0)}")
        forgotten[talk["user"]] = forgotten.get(talk["user"], 0) + any("forget" in step for step in talk["steps"])
    return found


def own_words() -> dict[str, set[str]]:
    """Return for each user the words that this user says and nobody else hears, says or asks."""
    spoken: dict[str, set[str]] = {}
    dates = {name.casefold() for name in (*calendar.month_name, *calendar.day_name)}
    neutral = words_of(EXAMPLE.read_text(encoding="utf-8")) | dates
    for life, talk in zip(lives(), TALKS, strict=True):
        neutral |= words_of(talk["user"])
        for step in talk["steps"]:
            said = " ".join(str(step.get(name, "")) for name in ("say", "ask", "to"))
            spoken.setdefault(life, set()).update(words_of(said))
            neutral |= words_of(str(step.get("unknown", "")))
    return {
        life: words - neutral - set().union(*(others for other, others in spoken.items() if other != life))
        for life, words in spoken.items()
    }


class Listener:
    """The scripted model, and all that it was sent for the last answer."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def __call__(self, messages: list[dict[str, Any]]) -> str:
        self.messages = messages
        return str(chat.scripted(messages))

    @property
    def text(self) -> str:
        return "\n".join(json.dumps(message, ensure_ascii=False) for message in self.messages)

    @property
    def notes(self) -> str:
        """The sections of what is known of the user, and of notes."""
        texts = "\n\n".join(message["content"] for message in self.messages)
        heads = ("# About the user\n", "# Notes\n")
        return "\n".join(texts.partition(head)[2].partition("\n\n")[0] for head in heads)

    @property
    def remembered(self) -> str:
        """Everything but the question."""
        return "\n".join(json.dumps(message, ensure_ascii=False) for message in self.messages[:-1])


def companion(backend: Backend) -> CaliberConfig:
    """Return the profile that the example opens, for a database under test."""
    knobs = {name.replace("__", "."): value for name, value in backend.knobs.items()}
    return profiles.chat_companion(backend.path, **knobs)


def stored_bytes(backend: Backend) -> bytes:
    """Return all that a database holds: the files of SQLite, or every row of every table of PostgreSQL."""
    if isinstance(backend, PostgresBackend):
        tables = backend.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{backend.schema}'")
        rows = [backend.ask(f"SELECT t::text FROM {backend.qualified(table)} t") for (table,) in tables]
        return "\n".join(text for each in rows for (text,) in each).encode()
    path = Path(backend.path)
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


def holds(raw: bytes, word: str) -> bool:
    """Return whether bytes hold a word, in small letters or capitalised, as text or as PostgreSQL prints bytes.

    A name such as ``trajectory_start`` is none, whatever byte comes after it.
    """
    texts = [each.encode() for each in (word, word.capitalize())]
    return any(re.search(b"(?<!_)" + re.escape(text), raw) or text.hex().encode() in raw for text in texts)


class World:
    """The store of the script, and the user who speaks."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.config = backend, companion(backend)
        self.model = Listener()
        self.own = own_words()
        self.faults: list[str] = []
        self.answered = 0
        self.open()
        empty = stored_bytes(backend) if backend.has("reopen") else b""
        self.built_in = {word for words in self.own.values() for word in words if holds(empty, word)}
        attributes = " ".join(PersonAttribute)  # facts of the other users name theirs
        self.built_in |= {word for words in self.own.values() for word in words if word in attributes}

    def open(self) -> None:
        self.memory = self.backend.open(self.config)
        self.chat = chat.Chat(self.memory, self.model)

    def run(self, number: int, life: str, talk: dict[str, Any]) -> None:
        user = talk["user"]
        for step in talk["steps"]:
            if said := step.get("say") or step.get("ask") or step.get("unknown"):
                self.chat.say(user, said)
                self.look(f"{number} {user} {said!r}", life, step)
            if "correct" in step:
                (note,) = self.notes(user, step["correct"])
                self.chat.acting_as(user).update_note(note.note_id, content=step["to"])
            if "delete" in step:
                assert self.notes(user, step["delete"])
                for note in self.notes(user, step["delete"]):
                    self.chat.acting_as(user).delete_note(note.note_id)
            if "gone" in step and self.notes(user, step["gone"]):
                self.faults.append(f"{number} {user}: still notes {step['gone']!r}")
            if "forget" in step:
                assert self.chat.forget(user)
                self.memory.flush()
                raw = stored_bytes(self.backend)
                left = [word for word in sorted(self.own[life] - self.built_in) if holds(raw, word)]
                self.faults += [f"{number} {user}: still stored: {left}"] * bool(left)
            if "restart" in step:
                self.memory.close()
                self.open()
        self.chat.end(user)

    def notes(self, user: str, word: str) -> list[Any]:
        return [note for note in self.chat.facts(user) if word in note.content]

    def look(self, where: str, life: str, step: dict[str, Any]) -> None:
        """Compare what the model was sent with what it had to be sent, and with other users' words."""
        for answer in step.get("answer", ()):
            self.answered += 1
            if answer not in self.model.remembered:
                self.faults.append(f"{where}: lacks {answer!r} in {self.model.text}")
        for stale in step.get("stale", ()):
            if stale in self.model.notes:
                self.faults.append(f"{where}: still notes {stale!r}: {self.model.notes}")
        self.find_others(where, life, self.model.text)

    def find_others(self, where: str, life: str, text: str) -> None:
        for other, words in self.own.items():
            if other != life and (leaked := words & words_of(text)):
                self.faults.append(f"{where}: words of {other}: {sorted(leaked)}")

    def search_for_others(self) -> None:
        """Search as each user for the words of all others."""
        for user, life in {talk["user"]: life for life, talk in zip(lives(), TALKS, strict=True)}.items():
            asked = sorted(set().union(*(words for other, words in self.own.items() if other != life)))
            mine = self.chat.acting_as(user)
            for word, result in zip(asked, mine.search_many(asked, limit=10), strict=True):
                self.find_others(f"search {word!r}", life, "\n".join(hit.snippet for hit in result.hits))


@pytest.mark.prove
@needs("reopen")
def test_thirty_conversations_of_three_users(backend: Backend) -> None:
    world = World(backend)
    for number, (life, talk) in enumerate(zip(lives(), TALKS, strict=True), 1):
        world.run(number, life, talk)
    world.search_for_others()
    assert world.faults == []
    assert world.answered >= 40


def test_the_script_is_of_three_users_with_words_of_their_own() -> None:
    assert (len(TALKS), len({talk["user"] for talk in TALKS})) == (30, 3)
    own = own_words()
    assert {"setúbal", "feedzai", "walnuts"} <= own["ana@example.com 0"]
    assert {"utrecht", "moesje"} <= own["bram 0"]
    assert {"deventer", "sjors"} == own["bram 1"] & {"deventer", "sjors", "moesje", "live"}
    assert all(len(words) >= 2 for words in own.values())


def test_faults_are_found(backend: Backend) -> None:
    """The checks of the script fail for a window without the answer, with an old note, with another user's word."""
    world = World(backend)
    life, user = "bram 0", "bram"
    world.chat.say(user, "I live in Groningen, not in Coimbra.")
    world.look("now", life, {"answer": ["Deventer"]})
    assert world.faults[0].startswith("now: lacks 'Deventer'")
    assert world.faults[1] == "now: words of ana@example.com 0: ['coimbra']"
    world.chat.say(user, "Where do I live?")
    world.look("then", life, {"stale": ["Groningen"]})
    assert any(fault.startswith("then: still notes 'Groningen'") for fault in world.faults[2:])


@pytest.mark.prove
def test_the_program_remembers_after_a_restart(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}

    def run(*lines: str) -> list[str]:
        command = [sys.executable, "-W", "error", str(EXAMPLE), "ana"]
        given = "".join(f"{line}\n" for line in (*lines, "/quit", "never read"))
        done = subprocess.run(
            command, input=given, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    run("Hi, I live in Coimbra.")
    (answer, *facts) = run("Where do I live?", "/facts")
    assert "Coimbra" in answer
    assert facts == ["lives in Coimbra"]
    assert run("I moved to Porto.", "/facts")[-1] == "lives in Porto"
    assert run("I moved to Faro.", "/undo", "/facts")[-1] == "lives in Porto"
    assert run("/forget", "/facts", "Where do I live?") == ["erased", "", "I see."]


def test_a_model_answers_where_its_key_is_set(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(handler: Handler, document: Any) -> bool:
        handler.send_document({"choices": [{"message": {"content": f"{document['model']} knows"}}]})
        return True

    with serving(always=reply) as service:
        for name, value in (("BASE_URL", service.endpoint), ("API_KEY", "some-key")):
            monkeypatch.setenv(f"OPENAI_{name}", value)
        monkeypatch.setenv("CHAT_MODEL", "small")
        agent = chat.Chat(backend.open(companion(backend)), chat.asked)
        assert agent.say("ana", "I live in Coimbra.") == "small knows"
        assert agent.say("ana", "Where do I live?") == "small knows"
    first, second = service.asked
    assert (first.path, first.headers["authorization"]) == ("/chat/completions", "Bearer some-key")
    assert [message["role"] for message in second.document["messages"]][0::4] == ["system", "user"]
    assert "small knows" in str(second.document)


@pytest.mark.prove
def test_the_example_is_typed(known_types: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(known_types), str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
