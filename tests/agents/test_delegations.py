"""Delegations: given, accepted once, done in a task below, and their result comes back; on each database.

Source: C-374, C-382, C-400, C-413, C-426 to C-429, C-439, C-445, C-446, K-046.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.agents.teams import NOTE, Team
from support.databases import Backend

import caliber
from caliber.model import Principal
from caliber.model.errors import (
    CaliberError,
    ConstraintViolation,
    DelegationFailed,
    InvalidStateTransition,
    InvalidValue,
    NotFound,
    NotRegistered,
    PermissionDenied,
    RequiredFieldMissing,
)

pytestmark = pytest.mark.databases("all")


@pytest.fixture
def team(backend: Backend) -> Team:
    return Team(backend)


def test_a_delegation_from_beginning_to_end(team: Team) -> None:
    given = team.delegate(constraints=["no network"], context="see the patch")
    assert (given.status, given.accepted_at, given.child_trajectory_id) == ("pending", None, None)
    assert team.ada.agents.delegations.pending() == [given]
    assert team.planner.agents.delegations.get(given.delegation_id) == given
    accepted = team.ada.agents.delegations.accept(given.delegation_id)
    assert accepted.status == "accepted"
    assert accepted.accepted_at is not None
    assert team.ada.agents.delegations.pending() == []
    assert team.ada.agents.delegations.accept(given.delegation_id) == accepted
    below = team.ada.get(accepted.child_trajectory_id)
    ana = team.memory.get(team.task, user="ana").initiator
    assert (below.parent_trajectory_id, below.user_id) == (team.task, ana.id)
    assert below.agent_id == accepted.delegatee_agent_id
    assert below.goal == "write tests"
    with pytest.raises(InvalidStateTransition):
        team.ada.agents.delegations.complete(given.delegation_id, summary="too early")
    team.ada.agents.delegations.start(given.delegation_id)
    scope = team.ada.current_scope(below.trajectory_id)
    made = team.ada.create_artifact(
        scope.scope_id, artifact_type="code_patch", content="tests", extraction_method="explicit"
    )
    found = team.ada.add_note(content="The tests are slow.", visible_to=["agent:ada"], **NOTE)
    with pytest.raises(NotFound):
        team.planner.get(found.note_id)
    done = team.ada.agents.delegations.complete(
        given.delegation_id, summary="12 tests", artifacts=[made.artifact_id], notes=[found.note_id]
    )
    assert done.status == "completed"
    assert done.completed_at is not None
    assert done.result.summary == "12 tests"
    assert team.planner.agents.delegations.get(given.delegation_id) == done
    assert team.planner.get(made.artifact_id).content == b"tests"
    assert team.planner.get(found.note_id).content == found.content
    assert team.memory.get(below.trajectory_id, user="ana").status == "completed"
    assert team.planner.get(below.trajectory_id).outcome.summary == "12 tests"
    with pytest.raises(InvalidStateTransition):
        team.ada.agents.delegations.fail(given.delegation_id, reason="late")


def test_shared_records_are_for_the_agent_that_accepted_until_the_end(team: Team) -> None:
    given = team.delegate(artifacts=[team.artifact], notes=[team.note.note_id])
    assert team.sees(team.ada) == team.sees(team.bob) == set()
    team.ada.agents.delegations.accept(given.delegation_id)
    assert team.sees(team.ada) == {"artifact", "note"}
    assert team.sees(team.bob) == team.sees(team.rev) == set()
    assert team.sees(team.memory.acting_as(Principal.user("eve"))) == set()
    team.ada.agents.delegations.fail(given.delegation_id, reason="no time")
    assert team.sees(team.ada) == set()
    assert team.sees(team.planner) == {"artifact", "note"}


def test_an_agent_shares_only_what_it_may_read(team: Team) -> None:
    hidden = team.rev.add_note(content="secret", visible_to=["agent:rev"], **NOTE)
    other = team.memory.start_trajectory("another", user="eve")
    scope = team.memory.current_scope(other.trajectory_id)
    strange = team.memory.create_artifact(
        scope.scope_id, artifact_type="code_patch", content="x", extraction_method="explicit"
    )
    for shared in ({"notes": [hidden.note_id]}, {"artifacts": [strange.artifact_id]}):
        with pytest.raises(NotFound):
            team.delegate(**shared)
    with pytest.raises(NotFound):
        team.delegate(parent=other.trajectory_id)
    assert team.memory.agents.delegations.list() == []


def test_of_racing_agents_one_accepts(team: Team) -> None:
    given = team.delegate(to_type="coder")
    assert [each.delegation_id for each in team.bob.agents.delegations.pending()] == [given.delegation_id]
    team.race(lambda handle: handle.agents.delegations.accept(given.delegation_id), DelegationFailed)
    below = [each for each in team.memory.storage.trajectories.all() if each.parent_trajectory_id == team.task]
    assert len(below) == 1


def test_an_archived_agent_gets_no_task(team: Team) -> None:
    team.memory.agents.set_lifecycle("archived", "ada")
    with pytest.raises(PermissionDenied, match="archived"):
        team.delegate(to="ada")
    assert team.memory.agents.delegations.list() == []


def test_refusals(team: Team) -> None:
    give = team.planner.agents.delegations.delegate
    with pytest.raises(DelegationFailed, match="itself"):
        team.delegate(to="planner")
    with pytest.raises(DelegationFailed, match="can_delegate_to"):
        team.delegate(to="rev")
    with pytest.raises(DelegationFailed, match="can_delegate_to"):
        team.delegate(to_type="reviewer")
    with pytest.raises(NotRegistered):
        team.delegate(to="nobody")
    for bad in ({"to": "ada", "to_type": "coder"}, {"to": None}):
        with pytest.raises(InvalidValue):
            give("x", parent=team.task, **bad)
    with pytest.raises(InvalidValue):
        team.delegate(deadline=team.now)
    with pytest.raises(InvalidValue):
        give(" ", parent=team.task, to="ada")
    with pytest.raises(RequiredFieldMissing):
        team.memory.agents.delegations.delegate("x", parent=team.task, to="ada")
    with pytest.raises(PermissionDenied):
        team.planner.agents.delegations.delegate("x", parent=team.task, to="bob", agent="ada")
    with pytest.raises(PermissionDenied):
        team.ana.agents.delegations.delegate("x", parent=team.task, to="ada")
    given = team.delegate()
    with pytest.raises(NotFound):
        team.bob.agents.delegations.accept(given.delegation_id)
    with pytest.raises(PermissionDenied):
        team.memory.agents.delegations.accept(given.delegation_id, agent="bob")
    with pytest.raises(PermissionDenied):
        team.planner.agents.delegations.reject(given.delegation_id, reason="x")
    with pytest.raises(RequiredFieldMissing):
        team.ada.agents.delegations.reject(given.delegation_id, reason=None)  # type: ignore[arg-type]
    team.planner.complete_trajectory(team.task, status="success", summary="done")
    with pytest.raises(DelegationFailed, match="it is rejected"):
        team.ada.agents.delegations.accept(given.delegation_id)
    with pytest.raises(DelegationFailed, match="completed"):
        team.delegate()


def test_delegations_form_no_cycle(team: Team) -> None:
    first = team.begun()
    with pytest.raises(DelegationFailed, match="part of"):
        team.ada.agents.delegations.delegate("x", parent=first.child_trajectory_id, to="planner")
    second = team.ada.agents.delegations.delegate("x", parent=first.child_trajectory_id, to_type="coder")
    with pytest.raises(DelegationFailed):
        team.ada.agents.delegations.accept(second.delegation_id)
    third = team.ada.agents.delegations.delegate("x", parent=first.child_trajectory_id, to_type="planner")
    with pytest.raises(DelegationFailed, match="part of"):
        team.planner.agents.delegations.accept(third.delegation_id)
    assert team.bob.agents.delegations.accept(second.delegation_id).status == "accepted"


def test_cancelling_reaches_everything_below(team: Team) -> None:
    first = team.begun(artifacts=[team.artifact])
    second = team.ada.agents.delegations.delegate("x", parent=first.child_trajectory_id, to="bob")
    team.bob.agents.delegations.accept(second.delegation_id)
    waiting = team.ada.agents.delegations.delegate("y", parent=first.child_trajectory_id, to="bob")
    with pytest.raises(PermissionDenied):
        team.ada.agents.delegations.cancel(first.delegation_id, reason="x")
    ended = team.planner.agents.delegations.cancel(first.delegation_id, reason="not needed")
    assert (ended.status, ended.result.error) == ("failed", "not needed")
    states = {each.delegation_id: each.status for each in team.memory.agents.delegations.list()}
    assert states == {first.delegation_id: "failed", second.delegation_id: "failed", waiting.delegation_id: "rejected"}
    for each in (first, team.bob.agents.delegations.get(second.delegation_id)):
        below = team.memory.get(each.child_trajectory_id, user="ana")
        assert (below.status, below.outcome.summary) == ("failed", "not needed")
        assert team.memory.current_scope(each.child_trajectory_id) is None
    assert team.memory.get(team.task, user="ana").status == "active"
    assert team.sees(team.ada) == set()
    with pytest.raises(InvalidStateTransition):
        team.planner.agents.delegations.cancel(first.delegation_id, reason="again")


def test_a_completion_and_a_cancellation_exclude_each_other(team: Team) -> None:
    begun = team.begun()
    refused: list[CaliberError] = []

    def cancel(_: object) -> None:
        """Cancel the delegation right after the commit that ends its task."""
        try:
            team.planner.agents.delegations.cancel(begun.delegation_id, reason="not needed")
        except CaliberError as error:
            refused.append(error)

    end = team.memory.events.subscribe(cancel, event_type="trajectory_complete")
    done = team.ada.agents.delegations.complete(begun.delegation_id, summary="12 tests")
    team.memory.flush()
    end()
    assert [type(error) for error in refused] == [InvalidStateTransition]
    assert done.status == "completed"
    assert team.memory.agents.delegations.get(begun.delegation_id) == done
    assert team.memory.get(begun.child_trajectory_id, user="ana").status == "completed"


def test_a_completion_that_is_refused_has_no_effect(team: Team) -> None:
    begun = team.begun()
    team.planner.agents.delegations.cancel(begun.delegation_id, reason="not needed")
    ended = team.memory.agents.delegations.get(begun.delegation_id)
    with pytest.raises(InvalidStateTransition):
        team.ada.agents.delegations.complete(begun.delegation_id, summary="12 tests")
    assert team.memory.agents.delegations.get(begun.delegation_id) == ended
    assert team.memory.get(begun.child_trajectory_id, user="ana").outcome.summary == "not needed"


def test_a_task_that_is_ended_by_hand_ends_its_delegation(team: Team) -> None:
    failed, done, late = (
        team.begun(artifacts=[team.artifact]),
        team.begun(),
        team.begun(deadline=team.now + timedelta(hours=1)),
    )
    accepted = team.ada.agents.delegations.accept(team.delegate().delegation_id)
    team.ada.complete_trajectory(failed.child_trajectory_id, status="failure", summary="no parser")
    assert team.sees(team.ada) == set()
    team.ada.complete_trajectory(done.child_trajectory_id, status="success", summary="tests written")
    team.ada.complete_trajectory(accepted.child_trajectory_id, status="partial", summary="half of them")
    team.clock.advance(ms=3_600_000)
    team.ada.complete_trajectory(late.child_trajectory_id, status="success", summary="late")
    ended = {}
    for each in team.planner.agents.delegations.list():
        assert each.completed_at is not None
        ended[each.delegation_id] = (each.status, each.result.status, each.result.summary, each.result.error)
    assert ended == {
        failed.delegation_id: ("failed", "failure", "", "no parser"),
        done.delegation_id: ("completed", "success", "tests written", None),
        accepted.delegation_id: ("completed", "partial", "half of them", None),
        late.delegation_id: ("failed", "system_abort", "", "timeout"),
    }
    with pytest.raises(InvalidStateTransition, match="instead of its task"):
        team.ada.agents.delegations.complete(done.delegation_id, summary="all well")
    long = team.begun()
    team.ada.complete_trajectory(long.child_trajectory_id, status="success", summary="x" * 300_000)
    assert team.planner.agents.delegations.get(long.delegation_id).result.summary == "see the summary of its task"
    with pytest.raises(InvalidStateTransition):
        team.planner.agents.delegations.cancel(done.delegation_id, reason="no need")


def test_a_task_that_is_ended_by_hand_ends_what_hangs_on_it(team: Team) -> None:
    waiting, begun = team.delegate(), team.begun()
    with pytest.raises(ConstraintViolation, match="still active"):
        team.planner.complete_trajectory(team.task, status="success", summary="done")
    assert team.ada.agents.delegations.get(waiting.delegation_id) == waiting
    below = team.ada.agents.delegations.delegate("x", parent=begun.child_trajectory_id, to="bob")
    team.ada.complete_trajectory(begun.child_trajectory_id, status="success", summary="written")
    team.planner.complete_trajectory(team.task, status="failure", summary="no budget")
    ended = {each.delegation_id: each for each in team.memory.agents.delegations.list()}
    for each in (ended[waiting.delegation_id], ended[below.delegation_id]):
        assert (each.status, each.result.error) == ("rejected", "the task ended")
        assert each.completed_at is not None
    assert ended[begun.delegation_id].status == "completed"
    assert team.ada.agents.delegations.pending() == team.bob.agents.delegations.pending() == []


@pytest.mark.parametrize(("rule", "below"), [("cascade_fail", "failed"), ("detach", "active")])
def test_the_tasks_of_delegations_end_with_their_parent_or_go_on_alone(backend: Backend, rule: str, below: str) -> None:
    team = Team(backend, trajectory__children_on_complete=rule)
    first = team.begun(artifacts=[team.artifact])
    second = team.ada.agents.delegations.delegate("x", parent=first.child_trajectory_id, to="bob")
    second = team.bob.agents.delegations.accept(second.delegation_id)
    team.planner.complete_trajectory(team.task, status="success", summary="done")
    assert team.planner.agents.delegations.get(first.delegation_id).status == "failed"
    assert team.memory.get(first.child_trajectory_id, user="ana").status == below
    assert team.sees(team.ada) == set()
    status = {"active": "accepted"}.get(below, below)
    assert team.bob.agents.delegations.get(second.delegation_id).status == status
    assert team.memory.get(second.child_trajectory_id, user="ana").status == below


def test_an_abandoned_task_ends_its_delegations(backend: Backend) -> None:
    team = Team(backend, orphan_detection_threshold="1h", delegation_timeout="10d")
    begun, waiting = team.begun(), team.delegate()
    below = team.ada.agents.delegations.delegate("x", parent=begun.child_trajectory_id, to="bob")
    offered = team.planner.agents.handoffs.initiate(team.task, to="rev", reason="shift ends", notes="half done")
    team.clock.advance(ms=2 * 3_600_000)
    team.memory.acting_as(Principal.admin()).admin.maintain()
    for each, status in ((begun, "failed"), (waiting, "rejected"), (below, "rejected")):
        assert team.memory.agents.delegations.get(each.delegation_id).status == status
    assert team.memory.agents.delegations.get(begun.delegation_id).result.status == "system_abort"
    assert team.memory.agents.handoffs.get(offered.handoff_id).status == "rejected"


def test_what_nobody_answers_times_out(team: Team) -> None:
    waiting, dated = team.delegate(), team.delegate(deadline=team.now + timedelta(minutes=30))
    begun = team.begun(deadline=team.now + timedelta(hours=3), artifacts=[team.artifact])
    team.clock.advance(ms=31 * 60_000)
    with pytest.raises(DelegationFailed, match="time"):
        team.ada.agents.delegations.accept(dated.delegation_id)

    def states() -> list[tuple[str, str | None]]:
        team.memory.jobs.run_due()
        found = [team.planner.agents.delegations.get(each.delegation_id) for each in (waiting, dated, begun)]
        return [(each.status.value, None if each.result is None else each.result.error) for each in found]

    assert states() == [("pending", None), ("rejected", "timeout"), ("in_progress", None)]
    team.clock.advance(ms=30 * 60_000)
    assert states() == [("rejected", "timeout"), ("rejected", "timeout"), ("in_progress", None)]
    team.clock.advance(ms=3 * 3_600_000)
    with pytest.raises(DelegationFailed, match="time"):
        team.ada.agents.delegations.complete(begun.delegation_id, summary="late")
    assert states()[2] == ("failed", "timeout")
    below = team.memory.get(begun.child_trajectory_id, user="ana")
    assert (below.status, below.outcome.summary) == ("failed", "timeout")


def test_who_sees_a_delegation(team: Team) -> None:
    given = team.delegate(to_type="coder")
    key = given.delegation_id
    may = {name: handle for name, handle in vars(team).items() if isinstance(handle, caliber.Caliber)}
    may["eve"] = team.memory.acting_as(Principal.user("eve"))
    may["app"] = team.memory.acting_as(Principal.application())
    may["admin"] = team.memory.acting_as(Principal.admin())

    def seeing() -> set[str]:
        out = set()
        for name, handle in may.items():
            try:
                assert handle.agents.delegations.get(key).delegation_id == key
            except NotFound:
                assert handle.agents.delegations.list() == []
            else:
                assert [each.delegation_id for each in handle.agents.delegations.list(task=team.task)] == [key]
                out.add(name)
        return out

    assert seeing() == {"memory", "admin", "ana", "planner", "ada", "bob"}
    team.ada.agents.delegations.accept(key)
    assert seeing() == {"memory", "admin", "ana", "planner", "ada"}
    for handle in (team.bob, team.rev, may["eve"]):
        for call in (
            lambda handle=handle: handle.agents.delegations.start(key),
            lambda handle=handle: handle.agents.delegations.complete(key, summary="x"),
            lambda handle=handle: handle.agents.delegations.cancel(key, reason="x"),
        ):
            with pytest.raises(CaliberError):
                call()
    story = [each.event_type for each in team.planner.trace(team.task) if each.event_type.startswith("delegation")]
    assert story == ["delegation_accept", "delegation_create"]


def test_a_list_comes_in_pages(team: Team) -> None:
    given = [team.delegate(to=("ada", "bob")[at % 2]).delegation_id for at in range(5)]
    delegations, ada = team.planner.agents.delegations, team.ada.agents.delegations
    pages = [delegations.list(limit=2)]
    while pages[-1]:
        pages.append(delegations.list(limit=2, after=pages[-1][-1].delegation_id))
    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert [each.delegation_id for page in pages for each in page] == given
    assert [each.delegation_id for each in delegations.list(agent="bob", after=given[1])] == [given[3]]
    assert [each.delegation_id for each in ada.list(task=team.task, after=given[0], limit=1)] == [given[2]]
    assert [each.delegation_id for each in ada.list(after=given[1])] == [given[2], given[4]]


def test_a_page_goes_on_behind_what_another_took_meanwhile(team: Team) -> None:
    given = [team.delegate(to_type="coder").delegation_id for _ in range(3)]
    (first,) = team.bob.agents.delegations.list(limit=1)
    team.ada.agents.delegations.accept(first.delegation_id)
    behind = team.bob.agents.delegations.list(after=first.delegation_id)
    assert [each.delegation_id for each in behind] == given[1:]


def test_the_story_goes_with_its_task(team: Team) -> None:
    given = team.begun()
    team.memory.acting_as(Principal.admin()).admin.purge_trajectory(given.child_trajectory_id)
    assert team.planner.agents.delegations.get(given.delegation_id).child_trajectory_id is None
    team.memory.acting_as(Principal.admin()).admin.purge_trajectory(team.task)
    assert team.memory.agents.delegations.list() == []


def test_a_result_grants_only_what_the_agent_may_grant(team: Team) -> None:
    """As ``memory.access.grant``: its own notes, and not those of others that it may only read."""
    begun = team.begun(notes=[team.note.note_id])
    others = team.bob.add_note(content="Bob keeps zebras.", visible_to=["agent:bob", "agent:ada"], **NOTE)
    own = team.ada.add_note(content="Ada keeps zebras.", visible_to=["agent:ada"], **NOTE)
    known = team.bob.add_note(content="All keep zebras.", **NOTE)
    with pytest.raises(PermissionDenied):
        team.ada.access.grant(on=others.note_id, to=Principal.agent("planner"))
    with pytest.raises(PermissionDenied):
        team.ada.agents.delegations.complete(begun.delegation_id, summary="x", notes=[own.note_id, others.note_id])
    assert team.ada.agents.delegations.get(begun.delegation_id).status == "in_progress"
    for hidden in (others, own):
        with pytest.raises(NotFound):
            team.planner.get(hidden.note_id)
    given = [own.note_id, known.note_id, team.note.note_id]
    done = team.ada.agents.delegations.complete(begun.delegation_id, summary="x", notes=given)
    assert done.result.produced_notes == tuple(given)
    assert team.planner.get(own.note_id).content == "Ada keeps zebras."
    grants = team.memory.access.grants(to=Principal.agent("planner"))
    assert [each.on.id for each in grants if each.on.id in given] == [own.note_id]
