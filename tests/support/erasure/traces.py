"""Traces of one person in a store: each kind planted through the public API, with an unguessable word of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from support.configs import DIMENSIONS, policy
from support.memories import FACT, STEP
from support.providers import ScriptedLearner
from support.waits import until

import caliber
from caliber.llm.local.hashed import HashEmbeddingProvider
from caliber.llm.protocols import ExtractedFact
from caliber.model import EntityRef, ToolCall
from caliber.model.learning import PersonAttribute
from caliber.model.providers import ExtractionTurn

_EDGE = 4
"""Characters at both ends of a word that are not looked for: an index may share a prefix, or cut an ending."""
UNSTORED = {"query of a search", "name in a search"}
"""Kinds that leave nothing in a store, planted all the same."""
FAILS = "FAIL"
"""A message with it makes learning fail, with the message in the error."""

KNOBS: dict[str, Any] = {
    "policies": [
        policy(
            "scope_close",
            {"action": "summarize", "target": "turn_buffer"},
            {"action": "extract_artifacts", "target": "turn_buffer"},
            {"action": "checkpoint", "target": "scope"},
            {"action": "notify", "channel": "closed"},
        )
    ],
    "memories": [FACT, STEP],
    "assembly__evict_block_turns": 4,
    "jobs__attempts_max": 1,
}


def forms(word: str) -> set[bytes]:
    """Return the bytes by which a word is found: in encodings, in hexadecimal digits, under JSON and in base64."""
    core = word[_EDGE:-_EDGE] if word.isascii() else word
    raw = core.encode()
    out = {raw, core.encode("utf-16-le"), core.encode("utf-16-be"), raw.hex().encode(), json.dumps(core)[1:-1].encode()}
    out.add(json.dumps(json.dumps(core)[1:-1])[1:-1].encode())
    for shift in range(3):  # the first and last characters depend on the bytes around
        coded = base64.b64encode(b"\0" * shift + raw)
        out.add(coded[(0, 2, 3)[shift] :].rstrip(b"=")[:-1])
    return {form.lower() for form in out}


@dataclass
class Person:
    """A person, and the words of every kind of trace that the person leaves."""

    words: dict[str, str] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    """Traces that are no words: ids, digests and vectors."""
    kept: set[str] = field(default_factory=set)
    """Kinds that also stand in words of others, which stay."""
    name: str = ""
    """The name by which ``identities`` knows the person, like others that are not given."""
    texts: list[str] = field(default_factory=list)
    """Names that are given when the person is forgotten."""

    def word(self, kind: str) -> str:
        """Return the word of a kind."""
        return self.words.setdefault(kind, "q" + secrets.token_hex(12))

    def alias(self, kind: str) -> str:
        """Return a name of this person that occurs in one kind of trace alone."""
        name = f"{self.word(kind)}@mail.example"
        self.texts.append(name)
        return name

    def needles(self) -> dict[bytes, str]:
        """Return the bytes to look for, with the kind of each."""
        out = {form: kind for kind, word in self.words.items() for form in forms(word)}
        for kind, raw in self.raw.items():
            out |= {raw.lower(): kind, raw.hex().encode(): kind}
        return out


class Model(ScriptedLearner):
    """Learns what follows ``LEARN`` in a message, about the user or the person named before it."""

    def __init__(self) -> None:
        super().__init__()
        self.facts = _facts

    def extract_facts(self, user: str, turns: Any) -> list[ExtractedFact]:
        for turn in turns:
            if FAILS in turn.content:
                raise ValueError(turn.content)  # as the client library of a service may
        return super().extract_facts(user, turns)


def _facts(turns: Any) -> list[ExtractedFact]:
    return [fact for turn in turns for fact in _facts_of(turn)]


def _facts_of(turn: ExtractionTurn) -> Iterator[ExtractedFact]:
    before, learns, value = turn.content.partition(" LEARN ")
    if learns:
        attribute = PersonAttribute.LIKES if value.startswith("likes") else PersonAttribute.OTHER
        person = "user" if before == "I" else before
        yield ExtractedFact(person, attribute, value, value, turn.turn_number)


class Planter:
    """Plants every kind of trace of one person."""

    def __init__(self, memory: caliber.Caliber, person: Person) -> None:
        self._memory = memory
        self._person = person
        self._word = person.word
        self._alias = person.alias

    def plant(self) -> None:
        """Write every kind of trace."""
        self._identities()
        self._task()
        self._conversation()
        self._notes()
        self._learning()
        self._of_others()
        self._records()
        self._memory.flush()
        self._memory.jobs.run_due()
        self._memory.flush()

    def _identities(self) -> None:
        memory = self._memory

        def name_of(kind: str) -> str:
            return f"{self._word(kind)}@mail.example"

        self.name = self._person.name = name_of("name")
        self.entity = memory.identities.resolve(self.name)
        memory.identities.add(name_of("e-mail address"), self.name)
        memory.identities.add(f"auth0|{self._word('name in a namespace')}", self.name, namespace="auth0")
        memory.identities.merge(name_of("name of a merged person"), into=self.name)
        memory.identities.add(name_of("name in a person's namespace"), self.name, namespace=self._word("namespace"))
        memory.identities.add(f"{self._word('name that is not ASCII')}ë@mail.example", self.name)
        self._person.raw["id"] = self.entity.id.bytes
        self.own = memory.acting_as(caliber.Principal.user(self.name))

    def _task(self) -> None:
        memory, word = self.own, self._word
        session = self._memory.start_session(user=self.name)
        task = memory.start_trajectory(f"plan {word('goal')}", tags=[word("tag of a task")], session=session.session_id)
        part = self._memory.start_trajectory(
            f"book {word('goal of a part')}", initiator=EntityRef.agent("agent"), parent=task.trajectory_id
        )
        self._memory.complete_trajectory(part.trajectory_id, status="success", summary=word("outcome of a part"))
        during = self._memory.start_trajectory(
            f"look {word('task during a session')}", initiator=EntityRef.agent("agent"), session=session.session_id
        )
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None

        def say(content: str | bytes, **options: Any) -> Any:
            return memory.append_turn(scope.scope_id, **{"role": "user", **options}, content=content)

        said = [
            say(f"my turn {word('turn')}", idempotency_key=word("idempotency key of a turn")),
            say(f"KEEP {word('extracted artifact')}", name=word("speaker of a turn")),
            say(f"utf-16 {word('turn of bytes')}".encode("utf-16")),
            say("looking", role="assistant", model_id=word("model of a turn"), tool_calls=[
                ToolCall(word("id of a tool call"), "find", json.dumps({"q": word("tool arguments")}))
            ]),
            say(word("tool result"), role="tool", tool_call_id=word("id of a tool call")),
        ]  # fmt: skip
        said += [say(f"more {number} {word('many turns')}") for number in range(9)]
        memory.create_artifact(
            scope.scope_id,
            artifact_type="fact",
            content=f"body {word('artifact')}",
            extraction_method="explicit",
            schema_version=word("version of an artifact's form"),
            idempotency_key=word("idempotency key of an artifact"),
        )
        old = memory.create_artifact(
            scope.scope_id,
            artifact_type="fact",
            content=f"once {word('superseded artifact')}",
            extraction_method="explicit",
        )
        new = memory.artifacts.supersede(
            old.artifact_id,
            content=f"now {word('superseding artifact')}",
            schema_version=word("version of a superseding artifact's form"),
        )
        memory.artifacts.update(new.artifact_id, confidence=0.5)
        window = memory.assemble_context(
            task.trajectory_id,
            query=f"where is {word('query of a window')}",
            extra_sections={"persona": word("section of a window")},
        )
        assert word("section of a window") in window.text
        memory.search(f"find {word('query of a search')}")
        memory.search(word("turn"))
        locks = self._memory.agents.locks
        locks.acquire(
            f"profile {secrets.token_hex(8)}", holder=f"human:{self._alias('holder of a lock')}", lease_ms=60_000
        )
        locks.acquire(f"inbox {self._alias('locked resource')}", holder="agent:a", lease_ms=60_000)
        memory.flush()
        memory.close_scope(scope.scope_id)
        scope = memory.open_scope(task.trajectory_id)
        say(f"again {word('turn of a second scope')}")
        memory.complete_trajectory(task.trajectory_id, status="success", summary=word("outcome"))
        vector = HashEmbeddingProvider(DIMENSIONS, "test").embed(said[0].text)
        self._person.raw["vector of a turn"] = vector.astype("<f4").tobytes()
        self._person.raw["digest of a turn"] = hashlib.sha256(said[4].content).digest()
        self._tasks = (task, part, during)

    def _conversation(self) -> None:
        memory, word = self._memory, self._word
        memory.remember(
            [{"role": "user", "content": f"hello {word('remembered message')}", "id": word("id of a message")}],
            user=self.name,
        )

    def _notes(self) -> None:
        memory, word = self.own, self._word

        def note(by: caliber.Caliber, content: str, **options: Any) -> Any:
            common = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 0.9}
            return by.add_note(content=content, **{**common, **options})

        note(memory, f"private {word('note')}", namespace=word("namespace of a note"), tags=[word("tag of a note")])
        note(memory, word("note with a key"), idempotency_key=word("idempotency key of a note"))
        note(memory, f"on {word('entity of a private note')}", entity=word("entity of a private note"))
        changed = note(memory, f"at first {word('note before an update')}")
        memory.update_note(changed.note_id, content=f"then {word('note after an update')}")
        old = note(memory, f"once {word('superseded note')}")
        memory.supersede_note(old.note_id, content=f"now {word('superseding note')}")
        memory.end_note(note(memory, f"until {word('ended note')}").note_id)
        memory.delete_note(note(memory, f"away {word('deleted note')}").note_id)
        undone = note(memory, f"kept {word('note before an undone update')}")
        memory.update_note(undone.note_id, content=f"undone {word('undone update')}")
        memory.undo_note(undone.note_id)
        agent = self._memory
        about = note(agent, f"about {word('note about the person')}", entity=self._alias("entity of a note"))
        agent.update_note(about.note_id, content=f"about, now {word('updated note about the person')}")
        note(agent, f"about an id {word('note about an id')}", entity=str(self.entity.id), entity_type="user")
        note(agent, f"given {word('note given to the person')}", user=self.name)
        by_alias = agent.acting_as(caliber.Principal.user(self._alias("author of a shared note")))
        shared = note(by_alias, f"shared {secrets.token_hex(8)}")
        agent.update_note(shared.note_id, visible_to=["executor"])
        note(
            agent,
            f"for two {secrets.token_hex(8)}",
            visible_to=[f"human:{self._alias('reader of a note')}", "human:somebody"],
        )
        named = note(agent, f"seen with {self._alias('name in a note')}", tags=[self._alias("name in a tag")])
        agent.update_note(named.note_id, content=f"seen without, by {self._alias('name in an updated note')}")
        once = note(agent, f"was {self._alias('name before a correction')}")
        agent.update_note(once.note_id, content=f"was nobody {secrets.token_hex(8)}")
        gone = note(agent, f"deleted with {self._alias('name in a deleted note')}")
        agent.delete_note(gone.note_id)
        memory.flush()

    def _learning(self) -> None:
        memory, word = self._memory, self._word

        def remember(text: str, user: str, **options: Any) -> Any:
            return memory.remember([{"role": "user", "content": text}], user=user, **options)

        assert remember(f"I LEARN has {word('learnt fact')}", self.name).added
        assert remember(f"I LEARN likes {word('preference')}", self.name).added
        undone = remember(f"I LEARN has no {word('undone fact')}", self.name)
        memory.learning.undo(undone.learned_id)
        remember(f"I LEARN has {word('fact learnt behind')}", self.name, wait=False)
        failed = remember(f"{FAILS} {word('error of a job')}", self.name, wait=False)
        assert failed.learned_id
        self._end_learning()
        host = f"{secrets.token_hex(8)}@host.example"
        other = remember(f"{self.name} LEARN has {word('fact from the chat of another')}", host)
        assert other.added
        # The turn is the words of another, in which the name alone is taken out.
        self._person.kept.add("fact from the chat of another")
        told = remember(f"{self._alias('person of a learnt fact')} LEARN likes tea", host)
        assert told.added

    def _end_learning(self) -> None:
        """Let all learning behind calls end: after an error it would be tried again for hours."""
        jobs = self._memory.jobs
        until(lambda: all(job.ended_at or job.error for job in jobs.list(kind="learning", limit=1_000)))
        for job in jobs.list(kind="learning", limit=1_000):
            if job.ended_at is None:
                jobs.cancel(job.job_id)

    def _of_others(self) -> None:
        memory, alias = self._memory, self._alias
        task = memory.start_trajectory(
            f"help {alias('name in a goal')}",
            initiator=EntityRef.user(secrets.token_hex(8)),
            tags=[alias("name in tags")],
        )
        scope = memory.current_scope(task.trajectory_id)
        assert scope is not None

        def say(content: str | bytes, **options: Any) -> None:
            memory.append_turn(scope.scope_id, **{"role": "user", **options}, content=content)

        say(f"I met {alias('name in a turn')}", idempotency_key=f"to {alias('name in a key')}")
        say("found", role="assistant", tool_calls=[
            ToolCall("1", "send", json.dumps({"to": [alias("name in tool arguments")]}))
        ])  # fmt: skip
        say(f"sent to {alias('name in bytes')}".encode("utf-16"), role="tool", tool_call_id="1")
        say("hello", name=alias("name of a speaker"))
        for number in range(6):
            say(f"{alias(f'name in a summary {number}')} called")
        memory.create_artifact(
            scope.scope_id,
            artifact_type="fact",
            content=f"made for {alias('name in an artifact')}",
            extraction_method="explicit",
        )
        memory.assemble_context(
            task.trajectory_id,
            query=f"who is {alias('name in a query')}",
            extra_sections={"persona": f"ask {alias('name in a section')}"},
        )
        memory.search(f"what said {alias('name in a search')}")
        memory.flush()
        memory.close_scope(scope.scope_id)
        memory.complete_trajectory(
            task.trajectory_id, status="success", summary=f"done for {alias('name in an outcome')}"
        )

    def _records(self) -> None:
        facts, steps = self._memory.records("fact"), self._memory.records("step")
        word, alias = self._word, self._alias
        about = facts.insert(
            subject=alias("subject of a record"), content=word("record about the person"), kind="claim",
            about={"key": word("json of a record")}, idempotency_key=word("idempotency key of a record"),
        )  # fmt: skip
        steps.insert(position=1, parent=about.record_id)
        facts.insert(subject="ship", content=f"stolen by {alias('name in a record')}", kind="rumour",
                     about={alias("name as a key of json"): [alias("name in json")]}, owner=self.entity.id)  # fmt: skip
        of_task = facts.insert(
            subject="towel", content=word("record of a task"), kind="claim", trajectory=self._tasks[0].trajectory_id
        )
        self._person.raw["id of a record of a task"] = of_task.record_id.bytes
        changed = facts.insert(subject="place", content=f"once {alias('name before an update')}", kind="claim")
        facts.update(changed.record_id, content=f"nobody {secrets.token_hex(8)}")
        gone = facts.insert(subject="place", content=f"gone {alias('name in a deleted record')}", kind="claim")
        facts.delete(gone.record_id)
        old = facts.insert(subject="place", content=f"old {alias('name in an archived record')}", kind="claim")
        facts.archive(old.record_id)
