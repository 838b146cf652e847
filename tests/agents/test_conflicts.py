"""Conflicts between agents: found where they come up, one open conflict a pair, escalated, resolved; on each database.

Source: C-376, C-384, C-401, C-417, C-432 to C-435, C-441, K-045.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from support.agents.teams import Team
from support.databases import Backend
from support.threads import at_once

import caliber
from caliber.model import ConflictStatus, ConflictType, ConflictWinner, EntityRef, EntityType, Principal
from caliber.model.errors import (
    Conflict,
    InvalidStateTransition,
    InvalidValue,
    LockAcquisitionFailed,
    NotFound,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)
from caliber.model.events import EventFamily

pytestmark = pytest.mark.databases("all")
DECIDED = {"entity": "api", "entity_type": "service", "note_type": "decision", "confidence": 0.8}
EVERYBODY = ["planner", "ada", "bob", "rev"]


@pytest.fixture
def team(backend: Backend) -> Team:
    return Team(backend, agents__contention_ms=0)


def reporting(team: Team) -> Team:
    """Let ada and bob report to the planner, and the planner to a chief."""
    team.memory.agents.register("chief")
    team.memory.agents.register("planner", reports_to="chief")
    for name in ("ada", "bob"):
        team.memory.agents.register(name, reports_to="planner")
    return team


def id_of(team: Team, name: str) -> Any:
    return team.memory.agents.get(name).agent_id


def contended(team: Team, resource: str = "itinerary") -> Any:
    """Return the conflict of ada, who holds a resource, and bob, who is refused it."""
    locks = team.ada.agents.locks
    if not locks.held(resource):
        locks.acquire(resource, lease_ms=600_000)
    with pytest.raises(LockAcquisitionFailed):
        team.bob.agents.locks.acquire(resource)
    (found,) = [each for each in team.memory.conflicts.list() if each.resource == resource]
    return found


def decide(handle: caliber.Caliber, content: str, **options: Any) -> Any:
    return handle.add_note(content=content, visible_to=[f"agent:{each}" for each in EVERYBODY], **DECIDED, **options)


def decided(team: Team) -> Any:
    """Return the conflict of two decisions, and the notes."""
    first = decide(team.ada, "The api listens on port 6379.")
    second = decide(team.bob, "The api listens on port 6380.")
    (found,) = team.ada.conflicts.list(conflict_type="incompatible_decision")
    return found, first, second


def goals(team: Team, **options: Any) -> Any:
    other = team.ada.start_trajectory("ship it today")
    one = team.planner.start_trajectory("ship it never")
    refs = [EntityRef(EntityType.TRAJECTORY, each.trajectory_id) for each in (one, other)]
    return team.memory.conflicts.report(*refs, conflict_type="goal_conflict", reason="both at once", **options)


# --- found where they come up ----------------------------------------------------------------------


def test_a_refused_lock_is_contention(team: Team) -> None:
    # C-434
    found = contended(team)
    assert (found.conflict_type, found.status) == (ConflictType.RESOURCE_CONTENTION, ConflictStatus.DETECTED)
    assert {found.agent_a_id, found.agent_b_id} == {id_of(team, "ada"), id_of(team, "bob")}
    assert found.detected_by == "agent:bob"
    assert found.item_a.id.bytes < found.item_b.id.bytes
    assert contended(team) == found  # K-045
    assert contended(team, "other").conflict_id != found.conflict_id


def test_a_lock_that_is_waited_for_long_enough_is_contention(backend: Backend) -> None:
    team = Team(backend, agents__contention_ms=1)
    team.ada.agents.locks.acquire("r", lease_ms=100)
    done = threading.Event()
    with pytest.raises(LockAcquisitionFailed):
        team.bob.agents.locks.acquire("r", wait_ms=200)  # the team's clock stands still
    done.set()
    assert [each.resource for each in team.memory.conflicts.list()] == ["r"]


def test_holders_that_are_no_agents_do_not_contend(team: Team) -> None:
    locks = team.memory.agents.locks
    locks.acquire("r", holder="job")
    with pytest.raises(LockAcquisitionFailed):
        locks.acquire("r", holder="agent:bob")
    assert team.memory.conflicts.list() == []


def test_a_compare_and_set_that_loses_to_another_agent_is_a_conflict(team: Team) -> None:
    # C-432
    first = team.ada.workspace.values.set("plan", "a")
    team.bob.workspace.values.set("plan", "b", version=first.version)
    assert team.memory.conflicts.list() == []
    with pytest.raises(Conflict):
        team.ada.workspace.values.set("plan", "c", version=first.version)
    (found,) = team.memory.conflicts.list()
    assert found.conflict_type is ConflictType.CONCURRENT_WRITE
    assert found.item_a == found.item_b == EntityRef("workspace_value", first.value_id)
    assert {found.agent_a_id, found.agent_b_id} == {id_of(team, "ada"), id_of(team, "bob")}
    with pytest.raises(Conflict):
        team.ada.workspace.values.delete("plan", version=first.version)
    assert team.memory.conflicts.list() == [found]
    assert team.ada.conflicts.list() == [found]
    assert team.rev.conflicts.list() == []
    assert team.ana.conflicts.list() == []
    kept = team.bob.conflicts.resolve(found.conflict_id, keep=id_of(team, "bob"))
    assert kept.winner is (ConflictWinner.A if found.agent_a_id == id_of(team, "bob") else ConflictWinner.B)


def test_values_that_were_settled_once_may_be_in_conflict_again(team: Team) -> None:
    values = team.ada.workspace.values
    for _ in range(2):
        first = values.set("plan", "a")
        team.bob.workspace.values.set("plan", "b", version=first.version)
        with pytest.raises(Conflict):
            values.set("plan", "c", version=first.version)
        (found,) = team.memory.conflicts.list()
        team.memory.conflicts.resolve(found.conflict_id, keep="both")
    assert len(team.memory.conflicts.history(found.conflict_id)) == 2


def test_an_agent_that_loses_to_itself_has_no_conflict(team: Team) -> None:
    first = team.ada.workspace.values.set("plan", "a")
    team.ada.workspace.values.set("plan", "b")
    with pytest.raises(Conflict):
        team.ada.workspace.values.set("plan", "c", version=first.version)
    assert team.memory.conflicts.list() == []


def test_two_decisions_about_one_subject_that_contradict_each_other(team: Team) -> None:
    # C-432
    found, first, second = decided(team)
    assert {found.item_a.id, found.item_b.id} == {first.note_id, second.note_id}
    assert found.status is ConflictStatus.ESCALATED  # manual
    assert found.escalated_to is None  # nobody is above both
    assert "6379" in found.reason
    assert [each.conflict_id for each in team.ada.conflicts.list()] == [found.conflict_id]
    assert team.ana.conflicts.list() == []


@pytest.mark.parametrize(
    "options", [{"note_type": "fact"}, {"entity": "web"}, {"content": "The api is written in Go."}]
)
def test_other_notes_are_no_incompatible_decisions(team: Team, options: dict[str, Any]) -> None:
    decide(team.ada, "The api listens on port 6379.")
    note = {**DECIDED, "content": "The api listens on port 6380.", **options}
    team.bob.add_note(**note)
    assert team.memory.conflicts.list() == []


def test_a_decision_of_the_same_agent_or_one_that_ended_is_none(team: Team) -> None:
    first = decide(team.ada, "The api listens on port 6379.")
    decide(team.ada, "The api listens on port 6380.")
    team.ada.end_note(first.note_id)
    assert team.ada.conflicts.list() == []
    decide(team.bob, "The api listens on port 6380 for all.", valid_from=None)
    assert team.ada.conflicts.list() == []


def test_a_decision_that_is_changed_or_superseded_is_compared_too(team: Team) -> None:
    decide(team.ada, "The api listens on port 6379.")
    second = decide(team.bob, "The api is written in Go.")
    changed = team.bob.update_note(second.note_id, content="The api listens on port 6380.")
    (found,) = team.ada.conflicts.list()
    team.bob.update_note(second.note_id, content="The api is written in Go.")
    assert team.ada.conflicts.list() == []
    assert team.ada.conflicts.get(found.conflict_id).resolution.winner is ConflictWinner.NONE
    team.bob.supersede_note(changed.note_id, content="The api listens on port 6381.")
    assert len(team.ada.conflicts.list()) == 1


def test_without_the_knob_no_contention_is_recorded(backend: Backend) -> None:
    team = Team(backend)
    team.ada.agents.locks.acquire("r")
    with pytest.raises(LockAcquisitionFailed):
        team.bob.agents.locks.acquire("r")
    assert team.memory.conflicts.list() == []


def test_two_decisions_at_once_have_one_conflict(team: Team) -> None:
    for port in range(4):
        barrier = threading.Barrier(2)

        def write(handle: caliber.Caliber, number: int, barrier: Any = barrier, port: int = port) -> None:
            barrier.wait()
            decide(handle, f"The api {port} listens on port {number}.")

        at_once([partial(write, handle, 7000 + 10 * port + at) for at, handle in enumerate((team.ada, team.bob))])
    pairs = [frozenset((each.item_a.id, each.item_b.id)) for each in team.ada.conflicts.list()]
    assert len(pairs) == len(set(pairs))
    assert len(pairs) >= 4


# --- reported --------------------------------------------------------------------------------------


def test_goals_that_are_at_odds_are_reported(team: Team) -> None:
    found = goals(team)
    assert found.conflict_type is ConflictType.GOAL_CONFLICT
    assert {found.agent_a_id, found.agent_b_id} == {id_of(team, "ada"), id_of(team, "planner")}
    again = team.memory.conflicts.report(found.item_b, found.item_a, conflict_type="goal_conflict", reason="once more")
    assert again == found
    kept = team.memory.conflicts.resolve(found.conflict_id, keep=found.item_a.id)
    assert (kept.kept, team.memory.conflicts.list()) == (found.item_a, [])


def test_bad_reports(team: Team) -> None:
    report = team.bob.conflicts.report
    task, secret = EntityRef(EntityType.TRAJECTORY, team.task), EntityRef(EntityType.NOTE, team.note.note_id)
    own = EntityRef(EntityType.NOTE, decide(team.bob, "mine").note_id)
    for other in (task, secret, EntityRef(EntityType.NOTE, team.task)):
        with pytest.raises(NotFound):
            report(own, other, conflict_type="goal_conflict", reason="x")
    with pytest.raises(InvalidValue):
        report(own, own, conflict_type="goal_conflict", reason="x")
    with pytest.raises(InvalidValue):
        report(own, task, conflict_type="quarrel", reason="x")
    other = EntityRef(EntityType.NOTE, decide(team.ada, "hers").note_id)
    with pytest.raises(NotRegistered):
        report(own, other, conflict_type="goal_conflict", reason="x", agent_a="nobody")
    assert team.memory.conflicts.list() == []


def test_two_reports_at_once_record_one_conflict(team: Team) -> None:
    one, other = (
        EntityRef(EntityType.TRAJECTORY, team.rev.start_trajectory(goal).trajectory_id) for goal in ("left", "right")
    )
    found = []

    def report(pair: tuple[EntityRef, EntityRef]) -> None:
        found.append(team.memory.conflicts.report(*pair, conflict_type="goal_conflict", reason="opposed").conflict_id)

    at_once([partial(report, pair) for pair in [(one, other), (other, one)] * 2])
    assert len(found) == 4
    assert len(set(found)) == 1


# --- escalated -------------------------------------------------------------------------------------


def test_a_conflict_goes_to_the_agent_above_both_then_higher_then_to_a_person(team: Team) -> None:
    reporting(team)
    found = contended(team)
    up = team.ada.conflicts.escalate(found.conflict_id)
    assert (up.status, up.escalated_to) == (ConflictStatus.ESCALATED, id_of(team, "planner"))
    (message,) = team.planner.agents.messages.claim(10)
    assert message.payload == {"conflict": str(found.conflict_id), "conflict_type": "resource_contention"}
    assert team.planner.conflicts.list() == [up]
    for handle in (team.ada, team.bob):
        with pytest.raises(PermissionDenied):
            handle.conflicts.resolve(found.conflict_id, keep="both")
    higher = team.planner.conflicts.escalate(found.conflict_id)
    assert higher.escalated_to == id_of(team, "chief")
    assert len(team.act_as("chief").agents.messages.claim(10)) == 1
    with pytest.raises(NotFound):
        team.planner.conflicts.get(found.conflict_id)
    person = team.act_as("chief").conflicts.escalate(found.conflict_id)
    assert (person.status, person.escalated_to) == (ConflictStatus.ESCALATED, None)
    assert team.memory.conflicts.escalate(found.conflict_id) == person
    done = team.memory.conflicts.resolve(found.conflict_id, keep=id_of(team, "ada"), reason="she was first")
    assert done.resolution.reason == "she was first"


def test_decisions_are_escalated_at_once_where_a_person_decides(team: Team) -> None:
    found, *_ = decided(reporting(team))
    assert found.escalated_to == id_of(team, "planner")
    assert [each.message_type for each in team.planner.agents.messages.claim(10)] == ["question"]
    assert team.planner.conflicts.list() == [found]


def test_a_full_mailbox_does_not_keep_a_conflict_from_being_escalated(backend: Backend) -> None:
    team = reporting(Team(backend, agents__contention_ms=0, agents__messages__pending_max=1))
    team.bob.agents.messages.send(1, to="planner")
    up = team.ada.conflicts.escalate(contended(team).conflict_id)
    assert up.escalated_to == id_of(team, "planner")
    assert [each.payload for each in team.planner.agents.messages.claim(10)] == [1]


@pytest.mark.parametrize("ended", ["archived", "failed"])
def test_an_agent_that_is_no_longer_active_is_passed_over(team: Team, ended: str) -> None:
    agents = reporting(team).memory.agents
    agents.set_lifecycle(ended, "planner") if ended == "archived" else agents.set_status(ended, "planner")
    assert team.memory.conflicts.escalate(contended(team).conflict_id).escalated_to == id_of(team, "chief")


# --- resolved --------------------------------------------------------------------------------------


def test_the_side_of_a_decision_that_loses_ends(team: Team) -> None:
    found, first, second = decided(team)
    with pytest.raises(RequiredFieldMissing):
        team.ada.conflicts.resolve(found.conflict_id)
    with pytest.raises(PermissionDenied):
        team.ada.conflicts.resolve(found.conflict_id, keep=id_of(team, "ada"))
    done = team.bob.conflicts.resolve(found.conflict_id, keep=id_of(team, "ada"), reason="hers is older")
    assert done.kept == EntityRef(EntityType.NOTE, first.note_id)
    assert team.bob.get(second.note_id).valid_until is not None
    assert team.ada.get(first.note_id).valid_until is None
    assert team.bob.conflicts.resolve(found.conflict_id, keep=first.note_id) == done
    with pytest.raises(InvalidStateTransition):
        team.bob.conflicts.resolve(found.conflict_id, keep=second.note_id)
    assert done.resolution.resolved_by == "agent:bob"


def test_the_configured_strategy_decides_between_decisions(backend: Backend) -> None:
    # C-433
    from support.agents.conflicts import grounding

    team = Team(backend, pcp__grounding=grounding("newest"))
    found, first, second = decided(team)
    assert found.status is ConflictStatus.DETECTED
    with pytest.raises(PermissionDenied):
        team.bob.conflicts.resolve(found.conflict_id)
    done = team.ada.conflicts.resolve(found.conflict_id)
    assert done.kept == EntityRef(EntityType.NOTE, second.note_id)
    assert team.ada.get(first.note_id).valid_until is not None


def test_a_merged_record_ends_both_sides(team: Team) -> None:
    # C-417
    admin = team.memory.acting_as(Principal.admin())
    found, first, second = decided(team)
    both = decide(team.rev, "The api listens on both ports.")
    merged = EntityRef(EntityType.NOTE, both.note_id)
    done = admin.conflicts.resolve(found.conflict_id, merged=merged)
    assert (done.resolution.winner, done.resolution.merged_item) == (ConflictWinner.MERGED, merged)
    for each in (first, second):
        assert admin.get(each.note_id).valid_until is not None
    assert admin.get(both.note_id).valid_until is None
    assert admin.conflicts.resolve(found.conflict_id, merged=merged) == done


def test_steps_and_what_they_refuse(team: Team) -> None:
    # C-441
    found = contended(team)
    conflicts = team.ada.conflicts
    assert conflicts.start(found.conflict_id).status is ConflictStatus.RESOLVING
    assert conflicts.start(found.conflict_id).status is ConflictStatus.RESOLVING
    with pytest.raises(InvalidValue):
        conflicts.resolve(found.conflict_id, keep=team.task)
    with pytest.raises(InvalidValue):
        conflicts.resolve(found.conflict_id, keep="both", strategy="newest")
    with pytest.raises(RequiredFieldMissing):
        conflicts.resolve(found.conflict_id, strategy="newest")
    for other in (team.rev, team.ana):
        with pytest.raises(NotFound):
            other.conflicts.resolve(found.conflict_id, keep="both")
    done = conflicts.resolve(found.conflict_id, keep="both")
    assert conflicts.resolve(found.conflict_id, keep="both") == done
    for refused in (conflicts.start, conflicts.escalate):
        with pytest.raises(InvalidStateTransition):
            refused(found.conflict_id)
    with pytest.raises(InvalidStateTransition):
        conflicts.resolve(found.conflict_id, keep=id_of(team, "ada"))
    with pytest.raises(LockAcquisitionFailed):
        team.bob.agents.locks.acquire("itinerary")
    assert team.memory.conflicts.list() == []  # that pair was found to be no conflict


def test_a_strategy_manual_escalates(team: Team) -> None:
    # C-433
    up = reporting(team).ada.conflicts.resolve(contended(team).conflict_id, strategy="manual")
    assert up.escalated_to == id_of(team, "planner")


def test_a_pair_has_a_history(team: Team) -> None:
    first = contended(team)
    conflicts = team.memory.conflicts
    conflicts.resolve(first.conflict_id, keep=id_of(team, "ada"), reason="once")
    second = contended(team)
    conflicts.resolve(second.conflict_id, keep=id_of(team, "bob"), reason="twice")
    assert [each.resolution.reason for each in conflicts.history(second.conflict_id)] == ["once", "twice"]
    assert conflicts.history(first.conflict_id) == conflicts.history(second.conflict_id)
    assert [each.conflict_id for each in conflicts.list(status="resolved")] == [first.conflict_id, second.conflict_id]


def test_lists(team: Team) -> None:
    # C-376
    found = [contended(team, f"r{at}") for at in range(5)]
    conflicts, ids = team.memory.conflicts, [each.conflict_id for each in found]
    assert [each.conflict_id for each in conflicts.list()] == ids
    assert [each.conflict_id for each in conflicts.list(limit=2)] == ids[:2]
    assert [each.conflict_id for each in conflicts.list(limit=2, after=ids[1])] == ids[2:4]
    assert conflicts.list(after=ids[4]) == []
    assert [each.conflict_id for each in conflicts.list(between=["bob"])] == ids
    for nothing in ({"between": ["rev"]}, {"between": ["bob", "nobody"]}, {"task": team.task}):
        assert conflicts.list(**nothing) == []
    below = goals(team, task=team.task)
    assert conflicts.list(task=team.task) == [below]
    assert conflicts.list(conflict_type="goal_conflict", between=["planner", "ada"]) == [below]
    assert team.rev.conflicts.list() == [below], "not what others contend for"
    with pytest.raises(NotFound):
        team.rev.conflicts.list(after=ids[0])


def test_one_list_has_conflicts_of_records_and_of_agents(team: Team) -> None:
    refs = [
        EntityRef(EntityType.NOTE, team.memory.add_note(content=f"The port is {at}.", **DECIDED).note_id)
        for at in (6379, 6380)
    ]
    conflicts = team.memory.conflicts
    of_records = conflicts.report(*refs, conflict_type="contradicting_fact", reason="two ports")
    of_agents = contended(team)
    assert conflicts.list() == [of_records, of_agents]
    assert conflicts.list(between=["ada", "bob"]) == [of_agents]
    assert conflicts.resolve(of_records.conflict_id, strategy="newest").kept == of_records.item_b
    assert conflicts.list() == [of_agents]


# --- what goes -------------------------------------------------------------------------------------


def test_a_conflict_outlives_its_task_and_its_agents(team: Team) -> None:
    # C-435
    task = team.rev.start_trajectory("plan").trajectory_id
    one, other = (
        EntityRef(EntityType.TRAJECTORY, team.rev.start_trajectory(goal).trajectory_id) for goal in ("left", "right")
    )
    conflicts = team.memory.conflicts
    made = conflicts.report(
        one, other, conflict_type="goal_conflict", reason="x", task=task, agent_a="ada", agent_b="bob"
    )
    admin = team.memory.acting_as(Principal.admin())
    admin.storage.trajectories.delete(task)
    assert conflicts.get(made.conflict_id).trajectory_id is None
    admin.storage.agents.delete(made.agent_a_id)
    kept = conflicts.get(made.conflict_id)
    assert (kept.agent_a_id, kept.agent_b_id) == (None, made.agent_b_id)


def test_a_detected_conflict_is_an_audit_event(team: Team) -> None:
    found = contended(team)
    team.memory.conflicts.resolve(found.conflict_id, keep="both")
    admin = team.memory.acting_as(Principal.admin())
    kinds = [
        each.event_type
        for each in admin.storage.events.all()
        if each.family is EventFamily.AUDIT and each.subject_id == found.conflict_id
    ]
    assert kinds == ["conflict_detect", "conflict_resolve"]
