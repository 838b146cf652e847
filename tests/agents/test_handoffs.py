"""Handoffs: offered with a snapshot, accepted once, the task moves with what the receiver needs; on each database.

Source: C-375, C-383, C-402, C-414, C-430, C-431, C-440, C-445, K-039.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from support.agents.teams import NOTE, Team
from support.databases import Backend
from support.inspection import inspect

import caliber
from caliber.model import Principal
from caliber.model.errors import (
    HandoffFailed,
    InvalidStateTransition,
    InvalidValue,
    NotFound,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)

pytestmark = pytest.mark.databases("all")
STORY: dict[str, Any] = {
    "reason": "shift ends",
    "notes": "The lexer is done.",
    "next_steps": ["write the grammar", "measure it"],
    "blockers": ["no corpus yet"],
    "open_questions": ["which license?"],
}


@pytest.fixture
def team(backend: Backend) -> Team:
    return Team(backend)


def offer(team: Team, **options: Any) -> Any:
    to = {} if "to_type" in options or "to" in options else {"to": "ada"}
    return team.planner.agents.handoffs.initiate(team.task, **{**STORY, **to, **options})


def test_a_handoff_from_beginning_to_end(team: Team) -> None:
    team.planner.append_turn(team.scope, role="user", content="Please parse zebra files.")
    offered = offer(team)
    assert (offered.status, offered.accepted_at, offered.scope_id) == ("initiated", None, team.scope)
    assert team.ada.agents.handoffs.pending() == [offered]
    assert "zebra files" in team.ada.agents.handoffs.snapshot(offered.handoff_id).text
    with pytest.raises(NotFound):
        team.ada.get(team.task)
    accepted = team.ada.agents.handoffs.accept(offered.handoff_id)
    assert (accepted.status, accepted.to_agent_id) == ("accepted", team.memory.agents.get("ada").agent_id)
    assert accepted.accepted_at is not None
    assert team.ada.agents.handoffs.accept(offered.handoff_id) == accepted
    assert team.ada.get(team.task).agent_id == accepted.to_agent_id
    with pytest.raises(NotFound):
        team.planner.get(team.task)
    assert [each.trajectory_id for each in team.ada.agents.tasks()] == [team.task]
    assert team.planner.agents.tasks() == []
    window = team.ada.assemble_context(team.task, query="what next")
    for words in ("shift ends", "The lexer is done.", "write the grammar", "no corpus yet", "which license?"):
        assert words in window.text
    done = team.ada.agents.handoffs.complete(offered.handoff_id)
    assert done.status == "completed"
    assert done.completed_at is not None
    with pytest.raises(InvalidStateTransition):
        team.ada.agents.handoffs.complete(offered.handoff_id)
    story = [each.event_type for each in team.ada.trace(team.task) if each.event_type.startswith("handoff")]
    assert story == ["handoff_complete", "handoff_accept", "handoff_initiate"]
    assert len([turn for turn in team.memory.storage.turns.all() if "shift ends" in turn.text]) == 1


def test_the_giver_no_longer_works_on_it(team: Team) -> None:
    first = offer(team)
    team.ada.agents.handoffs.accept(first.handoff_id)
    back = team.ada.agents.handoffs.initiate(team.task, to="planner", **STORY)
    team.planner.agents.handoffs.accept(back.handoff_id)
    assert team.ada.agents.tasks() == []
    assert [each.trajectory_id for each in team.planner.agents.tasks()] == [team.task]


def test_a_snapshot_stays_where_windows_are_ephemeral(backend: Backend) -> None:
    team = Team(backend, context_window_persistence={"kind": "ephemeral"})
    turn = team.planner.append_turn(team.scope, role="user", content="Please parse zebra files.")
    offered = offer(team)
    before = team.ada.agents.handoffs.snapshot(offered.handoff_id)
    assert turn.text in before.text
    team.planner.close_scope(team.scope)
    team.clock.advance(ms=400 * 86_400_000)
    team.memory.acting_as(Principal.admin()).admin.maintain()
    assert team.ada.agents.handoffs.snapshot(offered.handoff_id) == before
    assert before.window_id == offered.context_snapshot_id


def test_rejecting_leaves_the_task(team: Team) -> None:
    offered = offer(team)
    with pytest.raises(RequiredFieldMissing):
        team.ada.agents.handoffs.reject(offered.handoff_id, reason=None)  # type: ignore[arg-type]
    rejected = team.ada.agents.handoffs.reject(offered.handoff_id, reason="no time")
    assert (rejected.status, rejected.rejection_reason) == ("rejected", "no time")
    assert rejected.completed_at is not None
    assert team.planner.get(team.task).agent_id == team.memory.agents.get("planner").agent_id
    with pytest.raises(HandoffFailed, match="rejected"):
        team.ada.agents.handoffs.accept(offered.handoff_id)
    taken_back = offer(team)
    assert team.planner.agents.handoffs.reject(taken_back.handoff_id, reason="no need").status == "rejected"
    assert team.ada.agents.handoffs.accept(offer(team).handoff_id).status == "accepted"


def test_a_task_that_ends_ends_its_handoffs(team: Team) -> None:
    taken = offer(team)
    team.ada.agents.handoffs.accept(taken.handoff_id)
    waiting = team.ada.agents.handoffs.initiate(team.task, to="bob", **STORY)
    team.ada.complete_trajectory(team.task, status="failure", summary="no corpus")
    ended = [team.memory.agents.handoffs.get(each.handoff_id) for each in (taken, waiting)]
    assert [(each.status, each.rejection_reason) for each in ended] == [
        ("completed", None),
        ("rejected", "the task ended"),
    ]
    assert all(each.completed_at is not None for each in ended)
    assert team.bob.agents.handoffs.pending() == []


def test_of_racing_agents_one_takes_the_task(team: Team) -> None:
    offered = offer(team, to_type="coder")
    winner = team.race(lambda handle: handle.agents.handoffs.accept(offered.handoff_id), HandoffFailed)
    task = team.memory.get(team.task, user="ana")
    assert task.agent_id == team.memory.agents.get(winner).agent_id
    assert task.turn_count == 1


def test_an_archived_agent_gets_no_task(team: Team) -> None:
    team.memory.agents.set_lifecycle("archived", "ada")
    with pytest.raises(PermissionDenied, match="archived"):
        offer(team, to="ada")
    assert team.memory.agents.handoffs.list() == []


def test_refusals(team: Team) -> None:
    with pytest.raises(HandoffFailed, match="itself"):
        offer(team, to="planner")
    with pytest.raises(NotRegistered):
        offer(team, to="nobody")
    with pytest.raises(InvalidValue):
        offer(team, to_type="coder", to="ada")
    for name, value in (("notes", " "), ("reason", ""), ("next_steps", ["", "x"]), ("scope", team.task)):
        with pytest.raises(InvalidValue):
            offer(team, **{name: value})
    with pytest.raises(NotFound):
        team.ada.agents.handoffs.initiate(team.task, to="bob", **STORY)
    with pytest.raises(HandoffFailed, match="another agent"):
        team.memory.agents.handoffs.initiate(team.task, to="bob", agent="ada", **STORY)
    offered = offer(team)
    with pytest.raises(HandoffFailed, match="already"):
        offer(team, to="bob")
    with pytest.raises(NotFound):
        team.bob.agents.handoffs.accept(offered.handoff_id)
    with pytest.raises(PermissionDenied):
        team.memory.agents.handoffs.accept(offered.handoff_id, agent="bob")
    with pytest.raises(PermissionDenied):
        team.planner.agents.handoffs.complete(offered.handoff_id)
    team.planner.complete_trajectory(team.task, status="success", summary="done")
    with pytest.raises(HandoffFailed, match="it is rejected"):
        team.ada.agents.handoffs.accept(offered.handoff_id)
    with pytest.raises(HandoffFailed, match="completed"):
        offer(team)


def test_who_sees_a_handoff(team: Team) -> None:
    offered = offer(team, to_type="coder")
    key = offered.handoff_id
    handles = {name: handle for name, handle in vars(team).items() if isinstance(handle, caliber.Caliber)}
    handles["eve"] = team.memory.acting_as(Principal.user("eve"))
    handles["app"] = team.memory.acting_as(Principal.application())

    def seeing() -> set[str]:
        out = set()
        for name, handle in handles.items():
            try:
                found = handle.agents.handoffs.get(key)
            except NotFound:
                assert handle.agents.handoffs.list() == []
            else:
                assert found.snapshot == b""
                assert handle.agents.handoffs.list(task=team.task) == [found]
                out.add(name)
        return out

    def reading() -> set[str]:
        out = set()
        for name, handle in handles.items():
            with contextlib.suppress(NotFound, PermissionDenied):
                handle.agents.handoffs.snapshot(key)
                out.add(name)
        return out

    assert seeing() == {"memory", "ana", "planner", "ada", "bob"}
    assert reading() == {"memory", "ana", "planner"}
    with pytest.raises(PermissionDenied):
        team.ada.agents.handoffs.snapshot(key)
    team.bob.agents.handoffs.accept(key)
    assert seeing() == reading() == {"memory", "ana", "planner", "bob"}


def test_a_snapshot_has_the_tokens_of_what_its_reader_may_read(another: Callable[[str], Backend]) -> None:
    seen = []
    for hidden in (False, True):
        team = Team(another("sqlite-memory"))
        team.planner.append_turn(team.scope, role="user", content="Please parse zebra files.")
        if hidden:
            team.planner.add_note(content="Quartz: the zebra parser is late.", visible_to=["agent:planner"], **NOTE)
        shown = team.ada.agents.handoffs.snapshot(offer(team).handoff_id)
        seen.append((shown.used_tokens, shown.sections))
    assert seen[0] == seen[1]


def test_a_snapshot_shows_each_reader_what_that_may_read(team: Team) -> None:
    """The window is the giver's, or an administrator's: it holds notes that its readers may not read."""
    team.planner.append_turn(team.scope, role="user", content="Please parse zebra files.")
    team.planner.add_note(content="Quartz: the zebra parser is late.", visible_to=["agent:planner"], **NOTE)
    team.planner.add_note(content="Opal: the zebra parser is fast.", visible_to=["agent:planner", "agent:ada"], **NOTE)
    team.planner.add_note(content="Jade: the zebra parser is known.", **NOTE)
    bert = team.memory.acting_as(Principal.user("bert"))
    bert.add_note(content="Ruby: the zebra parser of bert.", **NOTE)
    admin = team.memory.acting_as(Principal.admin())

    def reads(handle: caliber.Caliber, key: Any) -> set[str]:
        text = handle.agents.handoffs.snapshot(key).text
        return {word for word in ("zebra files", "Quartz", "Opal", "Jade", "Ruby") if word in text}

    key = offer(team).handoff_id
    assert reads(team.planner, key) == {"zebra files", "Quartz", "Opal", "Jade"}
    for _ in range(2):
        assert reads(team.ada, key) == {"zebra files", "Opal", "Jade"}
        assert reads(team.ana, key) == {"zebra files", "Jade"}
        with pytest.raises(NotFound):
            team.bob.agents.handoffs.snapshot(key)
        team.ada.agents.handoffs.accept(key)
    assert reads(team.planner, key) == {"Quartz", "Opal", "Jade"}
    admins = admin.agents.handoffs.initiate(team.task, to="bob", agent="ada", **STORY).handoff_id
    assert reads(admin, admins) == {"zebra files", "Quartz", "Opal", "Jade"}
    assert reads(team.bob, admins) == reads(team.ana, admins) == {"zebra files", "Jade"}
    shared = team.planner.start_trajectory("the zebra parser").trajectory_id
    every = admin.agents.handoffs.initiate(shared, to="ada", agent="planner", **STORY).handoff_id
    assert "Ruby" in reads(admin, every)
    assert not {"Ruby", "Quartz"} & reads(team.ada, every)


def test_agents_alone_are_parties_of_a_task_without_a_user(team: Team) -> None:
    """Such a task is seen by every user, who is no party to what its agents agree on."""
    task = team.planner.start_trajectory("internal plan").trajectory_id
    team.planner.agents.delegations.delegate("inside", parent=task, to="ada", context="between us")
    key = team.planner.agents.handoffs.initiate(task, to="ada", **STORY).handoff_id
    assert team.ana.get(task).trajectory_id == task
    for stranger in (team.ana, team.rev):
        assert stranger.agents.handoffs.list() == stranger.agents.delegations.list() == []
        with pytest.raises(NotFound):
            stranger.agents.handoffs.snapshot(key)
    app = team.memory.acting_as(Principal.application())
    for party in (team.planner, team.ada, team.memory, app):
        assert len(party.agents.handoffs.list()) == len(party.agents.delegations.list()) == 1
        assert party.agents.handoffs.snapshot(key).window_id


def test_a_list_comes_in_pages_and_reads_no_snapshot(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    for _ in range(3):
        given.append(offer(team).handoff_id)
        team.ada.agents.handoffs.reject(given[-1], reason="no time")
    typed = offer(team, to_type="coder")
    given.append(typed.handoff_id)
    planner, ada, read = team.planner.agents.handoffs, team.ada.agents.handoffs, list[bytes]()
    plans: Any = inspect(team.memory).store.plans
    known = plans["handoff"]

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(known.codec, name)

        def decode(self, row: Any) -> Any:
            read.append(row[known.codec.index("snapshot")])
            return known.codec.decode(row)

    with monkeypatch.context() as patched:
        patched.setitem(plans, "handoff", dataclasses.replace(known, codec=Watched()))
        assert [each.handoff_id for each in planner.list()] == given
        assert [each.handoff_id for each in planner.list(task=team.task, limit=2)] == given[:2]
        assert [each.handoff_id for each in planner.list(agent="planner", status="rejected")] == given[:3]
        assert ada.pending() == [typed]
    assert read
    assert set(read) == {b""}
    assert [each.handoff_id for each in planner.list(limit=2, after=given[1])] == given[2:]
    assert [each.handoff_id for each in ada.list(after=given[2])] == given[3:]
    assert team.rev.agents.handoffs.list(after=given[0]) == []
    assert planner.snapshot(given[0]).window_id


def test_delegations_go_with_the_task(team: Team) -> None:
    work = team.begun(artifacts=[team.artifact])
    passed = team.ada.agents.handoffs.initiate(work.child_trajectory_id, to="bob", **STORY)
    team.bob.agents.handoffs.accept(passed.handoff_id)
    assert team.sees(team.ada) == set()
    assert team.sees(team.bob) == {"artifact"}
    given = team.planner.agents.handoffs.initiate(team.task, to="rev", **STORY)
    team.rev.agents.handoffs.accept(given.handoff_id)
    done = team.bob.agents.delegations.complete(work.delegation_id, summary="tests are written")
    assert team.rev.agents.delegations.get(work.delegation_id) == done
    assert team.rev.get(work.child_trajectory_id).outcome.summary == "tests are written"


@pytest.mark.parametrize("to", [{"to": "planner"}, {"to_type": "planner"}])
def test_a_task_that_is_handed_back_ends_its_delegation_and_goes_on(team: Team, to: dict[str, str]) -> None:
    work = team.begun(artifacts=[team.artifact])
    passed = team.ada.agents.handoffs.initiate(work.child_trajectory_id, **to, **STORY)
    assert team.planner.agents.delegations.get(work.delegation_id).status == "in_progress"
    team.planner.agents.handoffs.accept(passed.handoff_id)
    ended = team.planner.agents.delegations.get(work.delegation_id)
    assert (ended.status, ended.result.status) == ("failed", "failure")
    assert ended.result.error == "the task was handed back to the agent that delegated it"
    assert team.sees(team.ada) == set()
    task = team.planner.get(work.child_trajectory_id)
    assert (task.status, task.agent_id) == ("active", team.memory.agents.get("planner").agent_id)
    assert task.turn_count == 1
    team.planner.complete_trajectory(task.trajectory_id, status="success", summary="tests are written")
    team.planner.complete_trajectory(team.task, status="success", summary="shipped")


def test_a_forgotten_person_leaves_the_handoffs(team: Team) -> None:
    team.planner.append_turn(team.scope, role="user", content="I am Ana Quast.")
    shared = team.memory.start_trajectory("shared work", initiator=team.memory.agents.get("planner").ref)
    scope = team.memory.current_scope(shared.trajectory_id)
    team.memory.append_turn(scope.scope_id, role="user", content="anaquast wants zebras")
    offered = team.memory.agents.handoffs.initiate(
        shared.trajectory_id,
        to="ada",
        agent="planner",
        reason="anaquast asks",
        notes="ask anaquast",
        next_steps=["anaquast"],
    )
    private = offer(team)
    given = team.memory.agents.delegations.delegate(
        "call anaquast", parent=shared.trajectory_id, to="ada", agent="planner", constraints=["anaquast first"]
    )
    admin = team.memory.acting_as(Principal.admin())
    admin.forget(user="ana", texts=["anaquast"])
    with pytest.raises(NotFound):
        admin.agents.handoffs.get(private.handoff_id)
    left = admin.agents.handoffs.get(offered.handoff_id)
    assert "anaquast" not in repr(left)
    assert "anaquast" not in admin.agents.handoffs.snapshot(offered.handoff_id).text
    assert "anaquast" not in repr(admin.agents.delegations.get(given.delegation_id))


def test_words_are_as_long_as_a_message_at_most(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """They become a turn, and so a part of windows."""
    for module in ("parties", "ending"):
        monkeypatch.setattr(f"caliber.agents.handing.{module}.PAYLOAD_MAX_BYTES", 100)
    team = Team(backend)
    for long in ({"notes": "\u00fc" * 51}, {"reason": "x" * 101}, {"next_steps": ["x" * 50] * 2}):
        with pytest.raises(InvalidValue, match="more than 100"):
            team.planner.agents.handoffs.initiate(team.task, to="ada", **{"reason": "r", "notes": "n", **long})
    for long in ({"context": "x" * 100}, {"constraints": ["x" * 50] * 2}):
        with pytest.raises(InvalidValue, match="more than 100"):
            team.delegate(**long)
    begun = team.begun(context="x" * 80)
    with pytest.raises(InvalidValue, match="more than 100"):
        team.ada.agents.delegations.complete(begun.delegation_id, summary="x" * 101)
    team.planner.agents.handoffs.initiate(team.task, to="ada", reason="r", notes="x" * 99)


def test_the_application_sees_the_records_of_a_user_that_it_names(team: Team) -> None:
    """As in ``search``: a forgotten ``user=`` shows no words of a user."""
    work = team.delegate(context="the zebra pin").delegation_id
    key = offer(team).handoff_id
    task = team.planner.start_trajectory("internal plan").trajectory_id
    shared = team.planner.agents.delegations.delegate("inside", parent=task, to="ada").delegation_id
    admin = team.memory.acting_as(Principal.admin())
    app = team.memory.acting_as(Principal.application())
    agents = app.agents
    for hidden in ({}, {"user": "eve"}):
        assert agents.handoffs.list(**hidden) == agents.handoffs.list(task=team.task, **hidden) == []
        assert agents.delegations.list(task=team.task, **hidden) == []
        for call in (agents.handoffs.get, agents.handoffs.snapshot):
            with pytest.raises(NotFound):
                call(key, **hidden)
        with pytest.raises(NotFound):
            agents.delegations.get(work, **hidden)
    with pytest.raises(NotFound, match="pass user="):
        agents.delegations.get(work)
    with pytest.raises(NotFound, match="pass user="):
        agents.handoffs.get(key)
    assert [each.delegation_id for each in agents.delegations.list()] == [shared]
    assert agents.delegations.get(shared).delegation_id == shared
    for handle in (app, admin, team.ana):
        assert [each.delegation_id for each in handle.agents.delegations.list(user="ana")] == [work]
        assert [each.handoff_id for each in handle.agents.handoffs.list(user="ana")] == [key]
        assert handle.agents.delegations.get(work, user="ana").additional_context == "the zebra pin"
        assert handle.agents.handoffs.get(key, user="ana").handoff_id == key
        assert handle.agents.handoffs.snapshot(key, user="ana").window_id
        assert handle.agents.delegations.list(user="ana", agent="bob") == []
    assert [each.delegation_id for each in admin.agents.delegations.list()] == [work, shared]
    assert admin.agents.handoffs.list(user="eve") == []
    for call in (team.ana.agents.delegations.list, team.ana.agents.handoffs.list):
        with pytest.raises(PermissionDenied):
            call(user="eve")
    assert agents.handoffs.accept(key, agent="ada").status == "accepted"
    assert agents.delegations.cancel(work, reason="no need").status == "rejected"


def test_a_snapshot_for_a_user_who_was_granted_the_task(team: Team) -> None:
    """It shows that user's records, and no others of the task's user."""
    team.ana.add_note(content="Ruby: the zebra parser of ana.", **NOTE)
    key = offer(team).handoff_id
    team.ana.access.grant(on=team.task, to="eve")
    for handle in (team.memory, team.memory.acting_as(Principal.application())):
        assert "Ruby" in handle.agents.handoffs.snapshot(key, user="ana").text
        assert "Ruby" not in handle.agents.handoffs.snapshot(key, user="eve").text
    assert "Ruby" not in team.memory.acting_as(Principal.user("eve")).agents.handoffs.snapshot(key).text
