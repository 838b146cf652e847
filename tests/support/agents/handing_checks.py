"""Random use of delegations, handoffs and to-dos, and its judges.

One agent accepts, states follow each other, each ends once; a to-do is claimed by one agent at a time, completed once.

Source: C-426 to C-431, C-439, C-440, P-044, P-063, P-064.
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

WORKERS = 3
ACCEPTS = ("accept", "take")
NEEDS = {"start": "accept", "complete": "start", "fail": "accept", "end task": "accept", "finish": "take"}
"""Calls, and the one that comes before."""
ENDS = {
    "complete": ("completed",), "fail": ("failed",), "end task": ("completed",), "cancel": ("failed", "rejected"),
    "finish": ("completed",),
}  # fmt: skip
"""Calls that end a record, and the states that they leave."""
LEAVES = {"accept": "pending", "start": "accepted", "take": "initiated"}
"""Calls, and the state that is over after them."""


class Given(NamedTuple):
    """A delegation or handoff at the end."""

    status: str
    agent: str | None
    child: str | None = None
    """The status of the task below; None where there is none."""


def handing_faults(ops: Sequence[Op], stored: Mapping[str, Given]) -> list[str]:
    """Return the violations of a history; ``stored`` is what the store holds in the end."""
    return [fault for key, given in stored.items() for fault in _Record(key, given, ops).faults()]


class _Record:
    """The history of one delegation or handoff."""

    def __init__(self, key: str, given: Given, ops: Sequence[Op]) -> None:
        self._key, self._given = key, given
        self._ops = [op for op in ops if op.given["id"] == key and op.outcome != REFUSED]
        self._done = [op for op in self._ops if op.outcome == OK]

    def faults(self) -> list[str]:
        return [*self._one_agent(), *self._steps(), *self._end(), *self._state()]

    def _one_agent(self) -> list[str]:
        """One agent accepts, and only that one works on it."""
        accepts = [op for op in self._done if op.name in ACCEPTS]
        faults = []
        for op in accepts[1:]:
            if op.given["agent"] != accepts[0].given["agent"]:
                faults.append(f"two agents accepted: {op} and {accepts[0]}")
            elif op.result["child"] != accepts[0].result["child"]:
                faults.append(f"two tasks began: {op} and {accepts[0]}")
        for op in self._done if accepts else ():
            if op.name in NEEDS and op.given["agent"] != accepts[0].given["agent"]:
                faults.append(f"{op.name} by an agent that did not accept: {op}")
        if accepts and self._given.agent != accepts[0].given["agent"]:
            faults.append(f"it is in the hands of {self._given.agent}: {accepts[0]}")
        return faults

    def _steps(self) -> list[str]:
        """No call comes before the one that it needs."""
        faults = []
        for op in self._done:
            need = NEEDS.get(op.name)
            ended = op.began if op.ended is None else op.ended
            if need and not any(each.name == need and each.began < ended for each in self._ops):
                faults.append(f"{op.name} without {need}: {op}")
        return faults

    def _end(self) -> list[str]:
        """It ends once, and is left alone after that."""
        ends = [op for op in self._done if op.name in ENDS]
        faults = [f"it ended {len(ends)} times: {ends[-1]}"] if len(ends) > 1 else []
        for end in ends:
            faults += [f"{op.name} after {end}: {op}" for op in self._done if end.before(op) and op.name not in ENDS]
        return faults

    def _state(self) -> list[str]:
        """The state in the store is the one that the calls left."""
        status, child = self._given.status, self._given.child
        faults = []
        for op in self._done:
            if op.name in ENDS and status not in ENDS[op.name]:
                faults.append(f"an acknowledged end is lost, it is {status}: {op}")
            if LEAVES.get(op.name) == status:
                faults.append(f"an acknowledged step is lost, it is {status}: {op}")
        causes = [name for name, states in ENDS.items() if status in states]
        if causes and not any(op.name in causes for op in self._ops):
            faults.append(f"it is {status}, and no call did that: {self._key}")
        if status in ("accepted", "in_progress") and not any(op.name in ACCEPTS for op in self._ops):
            faults.append(f"it is {status}, and no agent accepted it: {self._key}")
        below = {"completed": "completed", "failed": "failed", "accepted": "active", "in_progress": "active"}
        if child is not None and child != below.get(status):
            faults.append(f"it is {status}, and its task {child}: {self._key}")
        return faults


class Handing:
    """Agents of one type that race for delegations and handoffs, work on them and end them."""

    knobs: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *, delegations: int = 3, handoffs: int = 2) -> None:
        self._delegations, self._handoffs = delegations, handoffs

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        agents: Any = memory.agents
        boss, kind = f"{label} boss", f"{label} worker"
        workers = [f"{label} worker {at}" for at in range(WORKERS)]
        agents.register(boss, type="boss", can_delegate_to=[kind])
        for name in workers:
            agents.register(name, type=kind)
        tasks = []
        for at in range(1 + self._handoffs):
            task = memory.start_trajectory(f"{label} {at}", initiator=EntityRef.agent(boss))
            tasks.append(task.trajectory_id)
        given = [
            agents.delegations.delegate(f"part {at}", parent=tasks[0], to_type=kind, agent=boss)
            for at in range(self._delegations)
        ]
        offered = [
            agents.handoffs.initiate(task, reason="the shift ends", notes="half done", to_type=kind, agent=boss)
            for task in tasks[1:]
        ]
        return {
            "boss": boss,
            "parent": str(tasks[0]),
            "workers": workers,
            "delegations": [str(each.delegation_id) for each in given],
            "handoffs": [str(each.handoff_id) for each in offered],
        }

    def step(self, client: Client) -> None:
        rng, world = client.rng, client.world
        agents: Any = client.memory.agents
        held: list[tuple[str, str]] = client.state.setdefault("held", [])
        choice = rng.random()
        agent = rng.choice(world["workers"])
        if choice < 0.2:
            key = rng.choice(world["handoffs"])
            if choice < 0.13:
                _call(client, "take", key, agent, agents.handoffs.accept)
            else:
                _call(client, "finish", key, agent, agents.handoffs.complete)
            return
        delegations = agents.delegations
        if choice < 0.45 or not held:
            key = rng.choice(world["delegations"])
            if _call(client, "accept", key, agent, delegations.accept):
                held.append((key, agent))
            return
        # Mostly as the agent that accepted it; at times as another one.
        key, own = rng.choice(held)
        agent = own if rng.random() < 0.85 else agent
        if choice < 0.7:
            _call(client, "start", key, agent, delegations.start)
        elif choice < 0.75:
            _call(client, "end task", key, own, lambda found, *, agent: _end_task(client.memory, found))
        elif choice < 0.9:
            _call(client, "complete", key, agent, delegations.complete, summary="done")
        elif choice < 0.95:
            _call(client, "fail", key, agent, delegations.fail, reason="no time")
        else:
            _call(client, "cancel", key, world["boss"], delegations.cancel, reason="no need")

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        agents: Any = memory.agents
        names = {EntityRef.agent(name).id: name for name in world["workers"]}
        stored, below = {}, set()
        for key in world["delegations"]:
            found = agents.delegations.get(uuid.UUID(key))
            child = None
            if found.child_trajectory_id is not None:
                below.add(found.child_trajectory_id)
                child = str(memory.storage.trajectories.get(found.child_trajectory_id).status)
            stored[key] = Given(str(found.status), names.get(found.delegatee_agent_id), child)
        for key in world["handoffs"]:
            found = agents.handoffs.get(uuid.UUID(key))
            stored[key] = Given(str(found.status), names.get(found.to_agent_id))
        children = {
            each.trajectory_id
            for each in memory.storage.trajectories.all()
            if str(each.parent_trajectory_id) == world["parent"]
        }
        faults = [f"a task of no delegation: {each}" for each in children - below]
        return faults + handing_faults(ops, stored)


def _end_task(memory: caliber.Caliber, key: uuid.UUID) -> Any:
    """End the task of a delegation by hand, and return the delegation."""
    delegations: Any = memory.agents.delegations
    memory.complete_trajectory(delegations.get(key).child_trajectory_id, status="success", summary="done")
    return delegations.get(key)


def _call(client: Client, name: str, key: str, agent: str, call: Any, **options: Any) -> Any:
    def shown() -> dict[str, Any]:
        made = call(uuid.UUID(key), agent=agent, **options)
        return {"status": str(made.status), "child": str(getattr(made, "child_trajectory_id", None))}

    return client.do(name, shown, id=key, agent=agent)


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
