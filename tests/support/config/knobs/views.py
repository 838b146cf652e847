"""Knobs of views of roles: the types they show, and the scores that order their hits; and of rights by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from support.config.knobs.case import NO_VECTORS, Agent, Case, Place, works

from caliber.config import CaliberConfig
from caliber.model.access import AgentRole, Principal
from caliber.model.time import FixedClock

VIEWS: Final = "access.views"
SCORING: Final = f"{VIEWS}.scoring"


def hits(config: CaliberConfig, place: Place, role: AgentRole, *, after_s: int = 0) -> Any:
    """Search notes about a lantern in a view: short ones, and one that is important and was used."""
    clock = FixedClock()
    memory = place.open(config, clock=clock)
    agent = Agent(memory)
    agent.note("lantern lantern", note_type="pattern", importance=1.0)
    agent.note("untyped lantern", note_type="untyped")
    used = agent.note("a lantern among many other words", note_type="bug", importance=10.0).note_id
    memory.get(used)
    memory.flush()
    clock.advance(us=after_s * 1_000_000)
    return memory.agents.view(role).search("lantern").hits


def shown(role: AgentRole) -> Callable[[CaliberConfig, Place], set[str]]:
    return lambda config, place: {hit.content.split()[0] for hit in hits(config, place, role)} - {"untyped"}


def first(config: CaliberConfig, place: Place) -> str:
    return str(hits(config, place, AgentRole.EXECUTOR)[0].content)


def part(
    name: str, role: AgentRole = AgentRole.EXECUTOR, *, of: str = "a lantern", after_s: int = 0
) -> Callable[[CaliberConfig, Place], float]:
    """Return the observation of one part of the score of a note."""

    def see(config: CaliberConfig, place: Place) -> float:
        found = hits(config, place, role, after_s=after_s)
        return round(next(hit.breakdown[name] for hit in found if hit.content.startswith(of)), 4)

    return see


def interests(role: AgentRole) -> Case:
    path = f"{VIEWS}.interests"
    named = f"{path}.{role.value}"
    return Case(path, shown(role), (["bug"], {"a"}), (["pattern"], {"lantern"}), NO_VECTORS, named=named)


ON: Final = {**NO_VECTORS, f"{SCORING}.enabled": True}
BOTH: Final = {f"{VIEWS}.interests.{role.value}": ["bug", "pattern"] for role in AgentRole}


def reads_note(config: CaliberConfig, place: Place) -> int:
    """Return how many notes of others an executor finds."""
    memory = place.open(config)
    Agent(memory).note("a lantern")
    worker = memory.acting_as(Principal.agent("worker", AgentRole.EXECUTOR))
    return len(worker.search("lantern").hits)


def says(config: CaliberConfig, place: Place) -> str:
    """Return whether an executor appends a turn to a task of another agent."""
    memory = place.open(config)
    scope = Agent(memory).scope_id
    worker = memory.acting_as(Principal.agent("worker", AgentRole.EXECUTOR))
    return works(lambda: worker.append_turn(scope, role="user", content="a lantern"))


def right(part: str, kind: str, see: Callable[[CaliberConfig, Place], Any], every: Any, own: Any) -> Case:
    """A rule of a role: what others wrote is read, or written to, by the right `all` alone."""
    rule = "access.rights.executor"
    also = {**NO_VECTORS, f"{rule}.write": {}, f"{rule}.read": {"trajectory": "all", "scope": "all"}}
    named = f"{rule}.{part}.{kind}"
    return Case(f"access.rights.NAME.{part}", see, ("all", every), ("own", own), also, named=named)


CASES: tuple[Case, ...] = (
    right("read", "note", reads_note, 1, 0),
    right("write", "turn", says, "done", "PermissionDenied"),
    *map(interests, AgentRole),
    Case(
        f"{SCORING}.enabled",
        first,
        (False, "lantern lantern"),
        (True, "a lantern among many other words"),
        {**NO_VECTORS, **BOTH},
    ),
)
