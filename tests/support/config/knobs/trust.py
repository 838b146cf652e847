"""Knobs of trust: the labels of what is written without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.config.knobs.case import NO_VECTORS, Agent, Case, Place

from caliber.config import CaliberConfig
from caliber.model.trust import TrustLabel


def label_of(write: Callable[[Agent], Any]) -> Callable[[CaliberConfig, Place], str]:
    """Return the observation of one record's label."""

    def see(config: CaliberConfig, place: Place) -> str:
        return str(write(Agent(place.open(config))).trust)

    return see


def _after_the_web(agent: Agent) -> Any:
    agent.say("read", "tool", name="browse")
    return agent.say("said", "assistant")


def case(knob: str, write: Callable[[Agent], Any]) -> Case:
    one, other, *more = ((label.value, label.value) for label in TrustLabel)
    return Case(f"trust.{knob}", label_of(write), one, other, NO_VECTORS, more=tuple(more))


CASES = (
    case("user_turns", lambda agent: agent.say("x")),
    case("assistant_turns", lambda agent: agent.say("x", "assistant")),
    case("tool_turns", lambda agent: agent.say("x", "tool")),
    Case("trust.web_tools", label_of(_after_the_web), ([], "tool"), (["browse"], "web"), NO_VECTORS),
    case("artifacts", lambda agent: agent.keep("x")),
    case("notes", lambda agent: agent.note("x")),
)
