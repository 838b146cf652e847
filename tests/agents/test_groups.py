"""Groups of agents: the member that speaks next, by pattern, on each database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.databases import Backend
from support.threads import at_once

import caliber
from caliber.model import Principal
from caliber.model.errors import InvalidValue, NotFound, NotRegistered, PermissionDenied, RequiredFieldMissing

pytestmark = pytest.mark.databases("all")

Made = Callable[..., caliber.Caliber]


@pytest.fixture
def made(backend: Backend) -> Made:
    """Make a store with a group ``team`` of a pattern, whose members are a, b and c; b is its supervisor."""

    def make(pattern: str) -> caliber.Caliber:
        memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0)
        memory.agents.groups.create("team", pattern)
        for name in "abc":
            memory.agents.register(name)
            memory.agents.groups.add("team", name, role="supervisor" if name == "b" else None)
        return memory

    return make


def turns(memory: caliber.Caliber, count: int, **options: Any) -> list[str | None]:
    found = [memory.agents.groups.next_speaker("team", **options) for _ in range(count)]
    return [None if each is None else each.name for each in found]


def test_round_robin_passes_over_those_that_cannot_speak(made: Made) -> None:
    memory = made("round_robin")
    assert turns(memory, 4) == ["a", "b", "c", "a"]
    memory.agents.set_status("failed", "b")
    memory.agents.set_lifecycle("archived", "c")
    assert turns(memory, 2) == ["a", "a"]
    memory.agents.set_lifecycle("hibernated", "a")
    assert turns(memory, 1) == [None]


def test_callers_at_once_take_different_turns(made: Made) -> None:
    memory = made("round_robin")
    seen = list[str | None]()

    def take() -> None:
        seen.extend(turns(memory, 3))

    at_once([take] * 3)
    assert sorted(map(str, seen)) == sorted("abc" * 3)


def test_a_pipeline_runs_once(made: Made) -> None:
    memory = made("pipeline")
    assert turns(memory, 4) == ["a", "b", "c", None]
    assert memory.agents.groups.restart("team").spoken == 0
    assert turns(memory, 1) == ["a"]


def test_a_supervisor_speaks_first_and_hands_on(made: Made) -> None:
    memory = made("supervisor")
    assert turns(memory, 1, choice="c") == ["b"]
    assert turns(memory, 2, choice="c") == ["c", "b"]
    assert turns(memory, 1) == ["b"]
    memory.agents.groups.remove("team", "b")
    with pytest.raises(InvalidValue, match="supervisor"):
        turns(memory, 1)


def test_callers_and_voters_choose(made: Made) -> None:
    memory = made("dynamic")
    assert turns(memory, 1, choice="c") == ["c"]
    with pytest.raises(RequiredFieldMissing):
        turns(memory, 1)
    memory.agents.register("stranger")
    with pytest.raises(InvalidValue, match="no member"):
        turns(memory, 1, choice="stranger")
    memory.agents.set_status("failed", "c")
    with pytest.raises(InvalidValue, match="cannot speak"):
        turns(memory, 1, choice="c")


def test_votes_are_counted(made: Made) -> None:
    memory = made("voting")
    assert turns(memory, 1, votes={"a": "c", "b": "c", "c": "a"}) == ["c"]
    assert turns(memory, 1, votes={"a": "b", "b": "c"}) == ["b"], "of equals the one that joined first"
    with pytest.raises(RequiredFieldMissing):
        turns(memory, 1)
    with pytest.raises(InvalidValue, match="no member"):
        turns(memory, 1, votes={"a": "nowhere"})


def test_bad_input_is_refused(made: Made) -> None:
    memory = made("pipeline")
    groups = memory.agents.groups
    assert groups.create("team", "pipeline").name == "team"
    with pytest.raises(InvalidValue, match="pipeline"):
        groups.create("team", "voting")
    for name in ("", "\u200b", "x" * 10_240):
        with pytest.raises(InvalidValue):
            groups.create(name, "voting")
    with pytest.raises(InvalidValue):
        groups.create("other", "anarchy")
    with pytest.raises(NotFound):
        groups.next_speaker("other")
    with pytest.raises(NotRegistered):
        groups.add("team", "nowhere")
    assert groups.remove("team", "nowhere") is False
    assert [each.position for each in groups.members("team")] == [0, 1, 2]
    agent, user = (memory.acting_as(who).agents.groups for who in (Principal.agent("a"), Principal.user("maria")))
    for call in (lambda: agent.create("mine", "voting"), lambda: agent.add("team", "a"), lambda: user.members("team")):
        with pytest.raises(PermissionDenied):
            call()
    assert agent.next_speaker("team") is not None
