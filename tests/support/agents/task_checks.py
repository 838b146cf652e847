"""Random use of the workspace's to-dos, and its judge: each is claimed by one agent at a time, and completed once.

Source: P-063, P-064.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from support.agents.history import OK, REFUSED, Client, Op

import caliber
from caliber.model import EntityRef, Principal


class TaskState(NamedTuple):
    """A task at the end."""

    status: str
    agent: str | None


def task_faults(ops: Sequence[Op], stored: Mapping[str, TaskState]) -> list[str]:
    """Return the violations of a history of tasks; ``stored`` is what the store holds in the end."""
    faults = []
    for task, state in stored.items():
        own = [op for op in ops if _task(op) == task]
        faults += _of_task(own, state, [op for op in ops if op.name == "claim" and _is_blind(op)])
    for op in ops:
        if op.name == "claim" and op.outcome == OK and op.result is not None and op.result["id"] not in stored:
            faults.append(f"a claim of a task that nobody added: {op}")
    return faults


def _task(op: Op) -> str | None:
    """Return the task of a call; None for a claim of whatever there is that got no answer."""
    if op.outcome == OK and op.name == "claim":
        return None if op.result is None else str(op.result["id"])
    task: str | None = op.given["task"]
    return task


def _is_blind(op: Op) -> bool:
    return op.given["task"] is None and op.outcome not in (OK, REFUSED)


def _of_task(ops: Sequence[Op], state: TaskState, blind: Sequence[Op]) -> list[str]:
    faults = []
    claims = [op for op in ops if op.name == "claim" and op.outcome == OK]
    perhaps = [op for op in ops if op.name == "claim" and op.outcome not in (OK, REFUSED)] + list(blind)
    returned = [op for op in ops if op.name == "give_back" and op.outcome != REFUSED]
    completed = [op for op in ops if op.name == "complete" and op.outcome == OK]
    if len(claims) > 1 + len(returned):
        faults.append(f"a task was claimed {len(claims)} times and given back {len(returned)} times: {claims[-1]}")
    for first, second in itertools.pairwise(claims):
        between = [op for op in returned if (op.ended is None or op.ended > first.began) and op.began < _end(second)]
        if first.before(second) and not between:
            faults.append(f"a task was claimed again: {second} after {first}")
    if len(completed) > 1:
        faults.append(f"a task was completed {len(completed)} times: {completed[-1]}")
    for op in [*completed, *(op for op in returned if op.outcome == OK)]:
        own = [each for each in [*claims, *perhaps] if each.client.partition("/")[0] == op.client.partition("/")[0]]
        if not any(each.began < op.began for each in own):
            faults.append(f"{op.name} by an agent that never claimed it: {op}")
    for done in completed:
        faults += [
            f"{op.name} after {done}: {op}" for op in [*claims, *returned] if op.outcome == OK and done.before(op)
        ]
    if completed and state.status != "completed":
        faults.append(f"an acknowledged completion is lost, the task is {state.status}: {completed[0]}")
    if state.status == "completed" and not any(op.name == "complete" and op.outcome != REFUSED for op in ops):
        faults.append(f"a task that nobody completed is completed: {ops[0] if ops else state}")
    if state.status == "pending" and claims and not returned:
        faults.append(f"an acknowledged claim is lost: {claims[-1]}")
    if state.status == "in_progress" and not claims and not perhaps:
        faults.append(f"a task that nobody claimed is in progress, for {state.agent}")
    if state.status == "in_progress" and len(claims) == 1 and not perhaps and state.agent != _agent(claims[0]):
        faults.append(f"a task is in the hands of {state.agent}: {claims[0]}")
    return faults


def _end(op: Op) -> int:
    return op.began if op.ended is None else op.ended


def _agent(op: Op) -> str:
    return str(op.given["agent"])


class Tasks:
    """Clients that claim tasks, by name or whichever is ready, complete them and give them back."""

    knobs: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *, tasks: int = 4) -> None:
        self._tasks = tasks

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        tasks: Any = memory.workspace.todos  # type: ignore[attr-defined, unused-ignore]
        made = [tasks.add(f"{label} task {at}", kind="coordination") for at in range(self._tasks)]
        return {"label": label, "tasks": [str(each.todo_id) for each in made]}

    def step(self, client: Client) -> None:
        rng = client.rng
        name = f"{client.world['label']} {client.agent}"
        memory: Any = client.state.setdefault("memory", client.memory.acting_as(Principal.agent(name)))
        tasks = memory.workspace.todos
        mine: list[str] = client.state.setdefault("mine", [])
        choice = rng.random()
        if choice < 0.5 or not mine:
            # Mostly one by its name, also one that another has; at times whichever is ready.
            task = None if rng.random() < 0.3 else rng.choice(client.world["tasks"])
            got = client.do("claim", lambda: _shown(tasks.claim(task)), task=task, agent=name)
            if got is not None:
                mine.append(got["id"])
            return
        # At times one that was given back, or another's.
        task = mine[-1] if rng.random() < 0.8 else rng.choice(client.world["tasks"])
        if choice < 0.7:
            client.do("complete", lambda: _shown(tasks.complete(task)), task=task, agent=name)
        else:
            client.do("give_back", lambda: _shown(tasks.assign(task, None)), task=task, agent=name)
        if task in mine:
            mine.remove(task)

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        tasks: Any = memory.workspace.todos  # type: ignore[attr-defined, unused-ignore]
        names = {EntityRef.agent(op.given["agent"]).id: op.given["agent"] for op in ops}
        stored = {}
        for task in world["tasks"]:
            found = tasks.get(uuid.UUID(task))
            stored[task] = TaskState(found.status.value, names.get(found.assigned_to))
            if found.is_open:
                tasks.cancel(uuid.UUID(task))  # the next history claims whichever is ready
        return task_faults(ops, stored)


def _shown(task: Any) -> dict[str, Any] | None:
    return None if task is None else {"id": str(task.todo_id), "status": task.status.value}
