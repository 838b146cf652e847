"""Random changes of the states of agents, and their judge: only allowed steps, none lost. Source: C-420, C-441."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from support.agents.history import OK, REFUSED, Client, Op

import caliber
from caliber.model import states
from caliber.model.states import AgentStatus

AGENTS = 2


class AgentState(NamedTuple):
    """The state of an agent, with its version: each change has the next one."""

    version: int
    status: str


def state_faults(ops: Sequence[Op], first: Mapping[str, AgentState], last: Mapping[str, AgentState]) -> list[str]:
    """Return the violations of a history; ``first`` and ``last`` are what the store held before and after."""
    return [fault for name in first for fault in _of_agent(ops, name, first[name], last[name])]


def _of_agent(ops: Sequence[Op], name: str, first: AgentState, last: AgentState) -> list[str]:
    done = [op for op in ops if op.given["agent"] == name and op.outcome == OK]
    unsure = [op for op in ops if op.given["agent"] == name and op.outcome not in (OK, REFUSED)]
    faults = []
    known = {first.version: first.status}
    for op in done:
        version, status = op.result["version"], op.result["status"]
        if version in known:
            faults.append(f"two changes have one version: {op}")
        if op.name == "set_status" and status != op.given["status"]:
            faults.append(f"another state than asked: {op}")
        known[version] = status
    missing = last.version - first.version - len(done)
    if not 0 <= missing <= len(unsure):
        faults.append(f"{missing} changes of no call, from {first} to {last}: {name}")
    if known.get(last.version, last.status) != last.status:
        faults.append(f"an acknowledged change is lost: {name} is {last}")
    for version, status in known.items():
        before = known.get(version - 1)
        if before is None or version == first.version:
            continue
        if not states.AGENT.can_transition(AgentStatus(before), AgentStatus(status)):
            faults.append(f"a step from {before} to {status}: version {version} of {name}")
    newest, at = first.version, 0
    ended = sorted(done, key=lambda op: op.ended or 0)
    for op in done:
        while at < len(ended) and ended[at].before(op):
            newest = max(newest, ended[at].result["version"])
            at += 1
        if op.result["version"] <= newest:
            faults.append(f"a change before one that was over, version {newest}: {op}")
    return faults


class States:
    """Clients that change the states of agents, allowed steps and others, and give signs of life."""

    knobs: Mapping[str, Any] = MappingProxyType({})

    def prepare(self, memory: caliber.Caliber, label: str) -> dict[str, Any]:
        agents: Any = memory.agents
        names = [f"{label} agent {at}" for at in range(AGENTS)]
        return {"first": {name: _shown(agents.register(name, type="worker")) for name in names}}

    def step(self, client: Client) -> None:
        agents: Any = client.memory.agents
        name = client.rng.choice(list(client.world["first"]))
        if client.rng.random() < 0.15:
            client.do("heartbeat", lambda: _shown(agents.heartbeat(name)), agent=name)
            return
        status = client.rng.choice(list(AgentStatus)).value
        client.do("set_status", lambda: _shown(agents.set_status(status, agent=name)), agent=name, status=status)

    def judge(self, memory: caliber.Caliber, world: dict[str, Any], ops: list[Op]) -> list[str]:
        agents: Any = memory.agents
        first = {name: AgentState(**shown) for name, shown in world["first"].items()}
        return state_faults(ops, first, {name: AgentState(**_shown(agents.get(name))) for name in first})


def _shown(agent: Any) -> dict[str, Any]:
    return {"version": agent.version, "status": agent.status.value}
