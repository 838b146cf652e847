"""Values of subclasses (NumPy's texts and numbers, an HTML library's strings) are kept as plain ones, or refused.

Coroutines that share a handle get the answers that the same operations give one after the other, without asyncio. At
full scale 20 coroutines of 200 operations each; source: issue "The house II".
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from support.configs import USER, config
from support.evidence import scale

import caliber
from caliber.aio import AsyncCaliber
from caliber.api.aio_proxy import CallThreads
from caliber.model import EntityRef, EntityType, Principal, PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import CaliberError, InputError
from caliber.model.time import FixedClock

pytestmark = pytest.mark.databases("one")


class Lying(str):
    """A text whose methods say something else than it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __len__(self) -> int:
        return 3

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"another"

    def strip(self, *_: Any) -> str:
        raise RuntimeError("not expected to be asked")


class Number(enum.IntEnum):
    FIVE = 5


class Later(datetime.datetime):
    def isoformat(self, *_: Any, **__: Any) -> str:
        return "never"


class Id(uuid.UUID):
    pass


WHEN = Later(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", [np.str_, Lying])
def test_texts_of_a_subclass_are_kept_as_they_read(text: Any, backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    me = EntityRef(EntityType.AGENT, Id(int=uuid.uuid4().int))
    task = memory.start_trajectory(text("the goal"), initiator=me, tags=[text("tag")])
    scope = memory.current_scope(task.trajectory_id).scope_id
    said = memory.append_turn(
        scope,
        role=text("user"),
        content=text("hello there"),
        name=text("bob"),
        idempotency_key=text("key"),
        model_id=text("model"),
        occurred_at=WHEN,
    )
    calls = [{"id": text("c1"), "function": {"name": text("look"), "arguments": text("{}")}}]
    asked = memory.append_turn(scope, role="assistant", content="looking", tool_calls=calls)
    answered = memory.append_turn(scope, role="tool", content="found", tool_call_id=text("c1"))
    note = memory.add_note(
        entity=text("Pixel"),
        entity_type=text("dog"),
        note_type=text("fact"),
        content=text("Pixel is a dog."),
        confidence=np.float64(0.5),
        importance=Number.FIVE,
        namespace=text("pets"),
        tags=[text("brown")],
    )
    kept = memory.create_artifact(
        scope,
        artifact_type="design_decision",
        content=text("decide"),
        extraction_method="explicit",
        schema_version=text("v1"),
        idempotency_key=text("k"),
        ttl=text("persistent"),
    )
    assert memory.append_turn(scope, role="user", content="hello there", name="bob", idempotency_key="key",
                              model_id="model", occurred_at=WHEN).turn_id == said.turn_id  # fmt: skip
    handles = [memory]
    if backend.has("reopen"):
        handles.append(backend.open(backend.config(embedding_provider=None)))
    for handle in handles:
        turn = handle.get(said.turn_id)
        assert (turn.content, turn.name, turn.model_id) == (b"hello there", "bob", "model")
        assert type(turn.name) is str
        assert [(call.id, call.name) for call in handle.get(asked.turn_id).tool_calls] == [("c1", "look")]
        assert handle.get(answered.turn_id).tool_call_id == "c1"
        got = handle.get(note.note_id)
        assert (got.entity, got.entity_type, got.namespace) == ("Pixel", "dog", "pets")
        assert (got.content, got.tags, got.importance) == ("Pixel is a dog.", ("brown",), 5.0)
        assert (handle.get(kept.artifact_id).content, handle.get(kept.artifact_id).schema_version) == (b"decide", "v1")
        assert handle.get(task.trajectory_id).goal == "the goal"
        assert handle.admin.verify() == []
        assert len(handle.records("note").find(entity=np.str_("Pixel"))) == 1
        window = handle.assemble_context(task.trajectory_id, query=text("Pixel dog"))
        assert "bob" in window.text
        assert "hello there" in window.text
        assert window.to_messages()
    memory.append_turn(scope, role="user", content=text("We decided on 3 May that the dog is called Pixel."))
    summary = memory.close_scope(scope).summary
    assert "3 May" in summary
    assert "b'" not in summary


@pytest.mark.parametrize("value", [np.str_("bob"), Lying("bob")])
def test_a_row_with_a_text_that_is_not_plain_is_refused(value: Any, backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    task = memory.start_trajectory("goal", initiator=EntityRef(EntityType.AGENT, uuid.uuid4()))
    turn = memory.append_turn(memory.current_scope(task.trajectory_id).scope_id, role="user", content="hello")
    odd = dataclasses.replace(turn, turn_id=uuid.uuid4(), sequence=7, name=value)
    with pytest.raises(InputError, match="plain"):
        memory.storage.turns.insert(odd)
    assert memory.storage.turns.count() == 1


def test_marks_that_pile_up_take_no_time(agent: Any) -> None:
    """Ordering the marks of one character takes time by their square: 200,000 of them took minutes."""
    agent.note("the lake is deep", entity="Lake")
    piled = "a" + "\u0301\u0323" * 100_000
    began = time.process_time()
    agent.say(f"the lake {piled} again")
    agent.note(f"the lake {piled} again", entity="Lake")
    agent.note(f"the lake {piled} again and again", entity="Lake")
    assert agent.memory.search(f"lake {piled}").hits
    assert agent.memory.assemble_context(agent.trajectory_id, query="lake").used_tokens
    assert agent.memory.forget(texts=("Ada Lovelace",)).proven
    assert time.process_time() - began < 20


def test_locks_of_subclass_texts_exclude(backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    holder = Principal(PrincipalKind.AGENT, np.str_("boss")).label
    lock = memory.agents.locks.acquire(np.str_("vault"), holder=np.str_(holder), lease_ms=Number.FIVE * 10_000)
    assert memory.agents.locks.held(np.str_("vault"))[0].holder == holder
    assert memory.agents.locks.release(LockToken(np.str_("vault"), lock.token), holder=np.str_(holder))


def test_who_has_locks_cannot_choose_who_they_are(backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    boss, spy = (memory.acting_as(Principal("agent", name)) for name in ("boss", "spy"))
    boss.agents.locks.acquire("vault", holder="agent:boss")
    public = [getattr(spy.agents.locks, name) for name in dir(spy.agents.locks) if not name.startswith("_")]
    names = ["acquire", "break_lock", "held", "hold", "list", "reap", "release", "renew", "waiting"]
    assert sorted(each.__name__ for each in public) == names
    assert spy.agents.locks.held("vault") == []


COROUTINES, OPERATIONS = 20, scale(30, 200, daily=10)
STEP: dict[str, Any] = {
    "name": "step",
    "type": "procedural",
    "fields": [{"name": "worker", "type": "int"}, {"name": "number", "type": "int"}],
    "retention": {"kind": "persistent"},
}
LIGHT = {"memories": [STEP], "write_behind__usage_enabled": False, "aio__workers": 4, "aio__queue": 16}
ARTIFACT = {"artifact_type": "fact", "extraction_method": "explicit"}
Operation = tuple[str, str, tuple[Any, ...], dict[str, Any]]
"""A facet, a method, and what it is given; ``$task`` and ``$scope`` stand for ids of the coroutine's own."""


def writes(worker: int) -> Iterator[Operation]:
    """Yield what a coroutine writes, and reads of its own; the same for each run."""
    drawn = random.Random(worker)
    about = {"entity": f"place {worker}", "entity_type": "place", "note_type": "fact", "confidence": 0.5}
    for number in range(OPERATIONS):
        text = f"worker {worker} saw {drawn.choice(('rain', 'snow', 'sun'))} over harbour {drawn.randrange(9)}"
        yield drawn.choice(
            (
                ("", "append_turn", ("$scope",), {"role": "user", "content": text}),
                ("", "append_turns", ("$scope", [{"role": "user", "content": text}]), {}),
                ("", "add_note", (), {**about, "content": text}),
                ("", "create_artifact", ("$scope",), {**ARTIFACT, "content": text}),
                ("", "current_scope", ("$task",), {}),
                ("", "get", ("$task",), {}),
                ("", "get", (uuid.UUID(int=number),), {}),
                ("", "append_turn", ("$scope",), {"role": "nobody", "content": text}),
                ("step", "insert", (), {"worker": worker, "number": number}),
                ("step", "find", (), {"worker": worker, "limit": 5}),
                ("step", "count", (f"worker = {worker}",), {}),
                ("note", "find", (), {"entity": f"place {worker}"}),
                ("agents.locks", "acquire", (f"door {worker}",), {"holder": f"agent:{worker}"}),
                ("agents.locks", "held", (f"door {worker}",), {}),
                ("storage.turns", "list_by_scope", ("$scope",), {}),
                ("storage.turns", "count_by_scope", ("$scope",), {}),
            )
        )


def reads(worker: int) -> Iterator[Operation]:
    """Yield what a coroutine reads once everything is written."""
    yield from (
        ("", "search", (f"snow over harbour {worker % 9}",), {"limit": 7}),
        ("", "search_many", (["rain", f"worker {worker}"],), {"kinds": ["turn", "note"], "limit": 3}),
        ("", "search", ("sun",), {"filter": f'entity = "place {worker}"', "kinds": ["note"]}),
        ("", "trace", ("$task",), {"limit": 20}),
        ("note", "search", (f"worker {worker}",), {"limit": 4}),
        ("step", "find", (), {"order_by": "number", "descending": True, "limit": 9}),
        ("storage.notes", "count", (), {}),
        ("storage.trajectories", "get", ("$task",), {}),
        ("storage.artifacts", "list_by_trajectory", ("$task",), {}),
        ("admin", "verify", (), {}),
        ("admin", "check", (), {}),
    )


def bound(handle: Any, operation: Operation, ids: dict[str, uuid.UUID]) -> Callable[[], Any]:
    """Return an operation on a handle, synchronous or not, ready to be called."""
    facet, name, given, options = operation
    part = handle
    if facet in ("step", "note"):
        part = handle.records(facet)
    elif facet:
        for each in facet.split("."):
            part = getattr(part, each)
    placed = [ids.get(value, value) if isinstance(value, str) else value for value in given]
    return lambda: getattr(part, name)(*placed, **options)


def plain(answer: Any, names: dict[uuid.UUID, int]) -> Any:
    """Return an answer with ids numbered as they first come: two stores number alike what they say alike."""
    if isinstance(answer, uuid.UUID):
        return names.setdefault(answer, len(names))
    if isinstance(answer, CaliberError):
        return type(answer), plain(dict(answer.context), names)
    if isinstance(answer, dict):
        return {plain(key, names): plain(value, names) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(each, names) for each in answer]
    fields = getattr(answer, "__dataclass_fields__", None)
    if fields is not None:
        return type(answer).__name__, {name: plain(getattr(answer, name), names) for name in fields}
    return answer


def began(tasks: Iterable[tuple[Any, Any]]) -> list[dict[str, uuid.UUID]]:
    return [{"$task": task.trajectory_id, "$scope": scope.scope_id} for task, scope in tasks]


def synchronously(memory: Any) -> list[list[Any]]:
    tasks = [memory.start_trajectory(f"task {worker}", initiator=USER) for worker in range(COROUTINES)]
    ids = began((task, memory.current_scope(task.trajectory_id)) for task in tasks)
    out = []
    for worker in range(COROUTINES):
        answers = []
        for operation in writes(worker):
            try:
                answers.append(bound(memory, operation, ids[worker])())
            except CaliberError as error:
                answers.append(error)
        out.append(answers)
    return out


async def by_coroutines(memory: Any) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]]]:
    tasks = [await memory.start_trajectory(f"task {worker}", initiator=USER) for worker in range(COROUTINES)]
    ids = began([(task, await memory.current_scope(task.trajectory_id)) for task in tasks])

    async def run(worker: int, operations: Iterable[Operation]) -> list[Any]:
        answers = []
        for operation in operations:
            try:
                answers.append(await bound(memory, operation, ids[worker])())
            except CaliberError as error:
                answers.append(error)
        return answers

    written = await asyncio.gather(*(run(worker, writes(worker)) for worker in range(COROUTINES)))
    await memory.flush()
    read = await asyncio.gather(*(run(worker, reads(worker)) for worker in range(COROUTINES)))
    alone = [
        [bound(memory.sync, operation, ids[worker])() for operation in reads(worker)] for worker in range(COROUTINES)
    ]
    return list(written), list(read), alone


def test_answers_of_coroutines_are_those_of_calls_one_after_the_other(backend: Any) -> None:
    settings = config(":memory:", **LIGHT)
    with caliber.open(settings, clock=FixedClock()) as memory:
        expected = synchronously(memory)
    shared = backend.open(**LIGHT, clock=FixedClock())
    written, read, alone = asyncio.run(by_coroutines(AsyncCaliber(shared, CallThreads(4, 16))))
    assert sum(isinstance(answer, CaliberError) for answers in expected for answer in answers) > COROUTINES
    for answers, others in zip(written, expected, strict=True):
        numbered: tuple[dict[uuid.UUID, int], dict[uuid.UUID, int]] = ({}, {})
        for answer, other in zip(answers, others, strict=True):
            assert plain(answer, numbered[0]) == plain(other, numbered[1])
    assert read == alone
    assert all(answer.hits for answers in read for answer in (answers[0], *answers[1]))
