"""Views of roles over notes, and groups, on each database and in backend search.

Views have types, readers, order and scores; a group has the member that speaks next, by pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.databases import Backend
from support.threads import at_once
from support.weeks import SetClock

import caliber
from caliber.model import AgentRole, NoteType, Principal
from caliber.model.errors import InvalidValue, NotFound, NotRegistered, PermissionDenied, RequiredFieldMissing
from caliber.search.ranking import roles
from caliber.search.ranking.roles import WEIGHTS, weighted_parts

pytestmark = pytest.mark.databases("all")
MODES = pytest.mark.parametrize("mode", ["resident", "backend"])
EXECUTOR = Principal.agent("worker", AgentRole.EXECUTOR)
SCORING = "access__views__scoring__"


@pytest.fixture
def open_store(backend: Backend) -> Callable[..., caliber.Caliber]:
    def opened(**knobs: Any) -> caliber.Caliber:
        return backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, **knobs)

    return opened


def note(memory: caliber.Caliber, content: str, note_type: str | None = None, **options: Any) -> Any:
    typed = {} if note_type is None else {"note_type": note_type}
    return memory.add_note(entity="x", entity_type="t", confidence=1.0, content=content, **typed, **options)


def contents(found: Any) -> list[str]:
    return [each.content for each in getattr(found, "hits", found)]


@MODES
def test_a_view_shows_the_types_of_its_role_and_notes_without_a_type(
    open_store: Callable[..., caliber.Caliber], mode: str
) -> None:
    memory = open_store(search__mode=mode)
    for each in NoteType:
        note(memory, f"lantern {each.value}", each.value)
    memory.flush()
    expected = {
        "orchestrator": {"decision", "architecture", "coordination"},
        "optimizer": {"decision", "pattern", "skill"},
        "reviewer": {"bug", "test", "decision"},
        "executor": {"implementation", "pattern", "bug"},
    }
    for role, types in expected.items():
        view = memory.agents.view(role)
        shown = {f"lantern {name}" for name in (*types, "untyped")}
        assert set(contents(view.search("lantern", limit=50))) == shown
        assert set(contents(view.search("", limit=50))) == shown
        assert set(contents(view.list_recent(50))) == shown
        assert {each.value for each in view.types} == {*types, "untyped"}
        assert view.role == role
    assert len(memory.search("lantern", limit=50).hits) == len(NoteType)
    assert not memory.agents.view("executor").search("orchid").hits, "no match is an empty list"


def test_the_types_of_a_view_are_those_of_its_configured_interests(open_store: Callable[..., caliber.Caliber]) -> None:
    interests = {"orchestrator": "bug", "optimizer": "test", "reviewer": "skill", "executor": "decision"}
    memory = open_store(**{f"access__views__interests__{role}": [name] for role, name in interests.items()})
    for each in NoteType:
        note(memory, each.value, each.value)
    memory.flush()
    for role, name in interests.items():
        assert set(contents(memory.agents.view(role).list_recent(50))) == {name, "untyped"}


@MODES
def test_a_view_shows_only_what_its_principal_may_see(open_store: Callable[..., caliber.Caliber], mode: str) -> None:
    memory = open_store(search__mode=mode)
    note(memory, "lantern for all", "bug")
    note(memory, "lantern for executors", "bug", visible_to=["executor"])
    note(memory, "lantern for reviewers", "bug", visible_to=["reviewer"])
    note(memory, "lantern of nobody's type", visible_to=["optimizer"])
    note(memory, "lantern of ana", "bug", user="ana")
    memory.flush()
    worker = memory.acting_as(EXECUTOR)
    for found in (worker.agents.view().search("lantern"), worker.agents.view("executor").list_recent()):
        assert set(contents(found)) == {"lantern for all", "lantern for executors"}
    ana = memory.acting_as(Principal.user("ana")).agents.view("executor")
    assert set(contents(ana.search("lantern"))) == {"lantern for all", "lantern of ana"}
    application = memory.acting_as(Principal.application())
    assert "lantern of ana" not in contents(application.agents.view("executor").list_recent())
    for_ana = application.agents.view("executor", user="ana")
    assert "lantern of ana" in contents(for_ana.list_recent())
    assert "lantern of ana" in contents(for_ana.search("lantern"))


def test_a_view_is_of_a_known_role_and_of_no_other_agent(open_store: Callable[..., caliber.Caliber]) -> None:
    memory = open_store()
    for wrong in ("", "manager", "EXECUTOR", "executor "):
        with pytest.raises(InvalidValue):
            memory.agents.view(wrong)
    with pytest.raises(RequiredFieldMissing):
        memory.agents.view()
    worker = memory.acting_as(EXECUTOR)
    with pytest.raises(PermissionDenied):
        worker.agents.view("reviewer")
    view = worker.agents.view()
    for limit in (0, -1, 10**9, 1.5):
        for call in (view.list_recent, lambda limit: view.search("x", limit)):
            with pytest.raises(caliber.model.errors.InputError):
                call(limit)


@MODES
def test_the_latest_used_notes_come_first(backend: Backend, mode: str) -> None:
    clock = SetClock()
    memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, search__mode=mode, clock=clock)
    ids = {}
    for name in ("first", "second", "third"):
        clock.at += timedelta(hours=1)
        ids[name] = note(memory, name, "bug", importance=1.0 if name == "first" else 9.0).note_id
    note(memory, "hidden", "decision")
    memory.flush()
    view = memory.agents.view("executor")
    assert contents(view.list_recent()) == ["third", "second", "first"]
    clock.at += timedelta(hours=1)
    memory.get(ids["first"])
    memory.flush()
    assert contents(view.list_recent()) == ["first", "third", "second"]
    assert contents(view.list_recent(2)) == ["first", "third"]
    memory.delete_note(ids["third"])
    assert contents(view.list_recent()) == ["first", "second"]


@MODES
def test_hits_are_ordered_by_the_score_of_the_role(backend: Backend, mode: str) -> None:
    clock = SetClock()
    knobs = {f"{SCORING}enabled": True, "search__mode": mode}
    memory = backend.open(embedding_provider=None, policies=[], jobs__poll_ms=0, clock=clock, **knobs)
    used = note(memory, "lantern that is used", "bug", importance=2.0).note_id
    note(memory, "lantern lantern lantern", importance=8.0)
    important = note(memory, "a lantern among many other words of little note", "pattern", importance=10.0)
    memory.flush()
    clock.at += timedelta(days=30)
    for _ in range(5):
        memory.get(used)
    memory.flush()
    clock.at += timedelta(days=15)
    hits = memory.agents.view("executor").search("lantern").hits
    # Executors: 0.2 importance, 0.4 uses, 0.3 recency, 0.1 relevance.
    expected = {
        "lantern that is used": (0.2 * 0.2, 0.4 * 0.5, 0.3 / (1 + 15 / 30), 0.1 * 0.8),
        "a lantern among many other words of little note": (0.2, 0.0, 0.3 / (1 + 45 / 30), 0.1 * 0.8),
        "lantern lantern lantern": (0.2 * 0.8, 0.0, 0.3 / (1 + 45 / 30), 0.1 * 0.3),
    }
    assert contents(hits) == list(expected)
    for hit, parts in zip(hits, expected.values(), strict=True):
        assert list(hit.breakdown) == ["base", "access", "recency", "relevance"]
        assert tuple(hit.breakdown.values()) == pytest.approx(parts)
        assert hit.score == pytest.approx(sum(parts))
    again = memory.agents.view("executor").search("lantern").hits
    assert again == hits
    # The reference time is an argument: at the instant of the uses they are as recent as can be.
    then = memory.agents.view("executor").search("lantern", as_of=clock.at - timedelta(days=15)).hits
    assert then[0].breakdown["recency"] == pytest.approx(0.3)
    recent = memory.agents.view("executor").search("", limit=2).hits
    assert contents(recent) == list(expected)[:2]
    assert [hit.id for hit in recent] == [used, important.note_id]
    # Other searches keep their own order.
    assert memory.search("lantern", kinds=["note"]).hits[0].content == "lantern lantern lantern"


def test_only_the_best_hits_are_ordered_anew(
    open_store: Callable[..., caliber.Caliber], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roles, "CANDIDATES", 1)
    memory = open_store(**{f"{SCORING}enabled": True})
    note(memory, "lantern lantern", "bug", importance=1.0)
    note(memory, "lantern among words that count for little here", "bug", importance=10.0)
    memory.flush()
    view = memory.agents.view("executor")
    assert contents(view.search("lantern", limit=1)) == ["lantern lantern"]
    assert contents(view.search("lantern", limit=2))[0].startswith("lantern among")


@pytest.mark.parametrize("role", AgentRole)
def test_weights_of_a_role_add_up_to_one(role: AgentRole) -> None:
    assert sum(WEIGHTS[role]) == pytest.approx(1.0)


@given(
    importance=st.floats(0.1, 1),
    uses=st.integers(0, 10**6),
    days=st.floats(-1, 10_000),
    role=st.sampled_from(AgentRole),
    interesting=st.booleans(),
)
def test_scores_lie_in_the_unit_interval_and_rise_with_each_part(
    importance: float, uses: int, days: float, role: AgentRole, interesting: bool
) -> None:
    now = 1_700_000_000_000_000

    def score(uses: int, days: float, interesting: bool) -> float:
        last = np.array([now - int(days * 86_400_000_000)])
        parts = weighted_parts(role, np.array([importance]), np.array([uses]), last, np.array([interesting]), now)
        return float(sum(parts.values())[0])

    at = score(uses, days, interesting)
    assert 0 <= at <= 1 + 1e-9
    assert score(uses + 1, days, interesting) >= at
    assert score(uses, days + 1, interesting) <= at
    assert score(uses, days, True) >= at >= score(uses, days, False)
    assert score(101, days, interesting) == score(10, days, interesting)
    assert score(uses, -1, interesting) == score(uses, 0, interesting)


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
