"""Knobs of trust: the labels of what is written without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caliber.config import CaliberConfig
from support.knobs.case import NO_VECTORS, Agent, Case, Place


def label_of(write: Callable[[Agent], Any]) -> Callable[[CaliberConfig, Place], str]:
    """Return the observation of one record's label."""

    def see(config: CaliberConfig, place: Place) -> str:
        return str(write(Agent(place.open(config))).trust)

    return see


def _after_the_web(agent: Agent) -> Any:
    agent.say("read", "tool", name="browse")
    return agent.say("said", "assistant")


CASES = (
    Case(
        "trust.system_turns",
        label_of(lambda agent: agent.say("x", "system")),
        ("system", "system"),
        ("user", "user"),
        NO_VECTORS,
    ),
    Case("trust.user_turns", label_of(lambda agent: agent.say("x")), ("user", "user"), ("web", "web"), NO_VECTORS),
    Case(
        "trust.assistant_turns",
        label_of(lambda agent: agent.say("x", "assistant")),
        ("tool", "tool"),
        ("system", "system"),
        NO_VECTORS,
    ),
    Case(
        "trust.tool_turns",
        label_of(lambda agent: agent.say("x", "tool")),
        ("tool", "tool"),
        ("user", "user"),
        NO_VECTORS,
    ),
    Case("trust.web_tools", label_of(_after_the_web), ([], "tool"), (["browse"], "web"), NO_VECTORS),
    Case("trust.artifacts", label_of(lambda agent: agent.keep("x")), ("tool", "tool"), ("user", "user"), NO_VECTORS),
    Case("trust.notes", label_of(lambda agent: agent.note("x")), ("tool", "tool"), ("user", "user"), NO_VECTORS),
)
