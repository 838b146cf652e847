"""Coroutines that share a handle get the answers that the same operations give one after the other, without asyncio.

At full scale 20 coroutines of 200 operations each; source: issue "The house II".
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from support.configs import USER, config
from support.evidence import scale

import caliber
from caliber.aio import AsyncCaliber
from caliber.api.aio_proxy import CallThreads
from caliber.model.errors import CaliberError
from caliber.model.time import FixedClock

pytestmark = pytest.mark.databases("one")

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
