"""Sessions, trajectories and scopes: how they begin, pause, nest and end. Source: C-202 to C-212, C-236, C-237."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest
from support.configs import USER, policy
from support.providers import ScriptedSummarizer

from caliber.model import EntityType, FixedClock, OutcomeStatus, TrajectoryStatus
from caliber.model.errors import (
    CaliberError,
    Conflict,
    ConstraintViolation,
    InputError,
    InvalidStateTransition,
    NotFound,
)
from caliber.model.time import from_us

# --- starting ------------------------------------------------------------------------------------


def test_start_makes_a_trajectory_and_its_scope_0(backend: Any) -> None:
    # C-194, C-202, K-049
    clock = FixedClock(5_000_000)
    memory = backend.open(clock=clock)
    trajectory = memory.start_trajectory("find the bug", initiator=USER, tags=("a", "b"))
    assert trajectory.status is TrajectoryStatus.ACTIVE
    assert trajectory.initiator == USER
    assert trajectory.goal_hash == hashlib.sha256(b"find the bug").digest()
    assert trajectory.goal == "find the bug"
    assert trajectory.tags == ("a", "b")
    assert trajectory.created_at == trajectory.updated_at == from_us(5_000_000)
    assert trajectory.trajectory_id.version == 7
    scope = memory.current_scope(trajectory.trajectory_id)
    assert (scope.sequence_number, scope.start_turn, scope.is_open) == (0, 0, True)
    assert memory.get(trajectory.trajectory_id) == trajectory
    assert memory.storage.scopes.list_by_trajectory(trajectory.trajectory_id) == [scope]
    assert memory.storage.trajectories.list_by_status("active") == [trajectory]


def test_goal_text_is_kept_only_if_wanted(backend: Any) -> None:
    # K-027
    memory = backend.open(trajectory__store_goal_text=False)
    trajectory = memory.start_trajectory("secret goal", initiator=USER)
    assert trajectory.goal is None
    assert trajectory.goal_hash == hashlib.sha256(b"secret goal").digest()


def test_parent_must_be_known_and_alive(backend: Any) -> None:
    # C-203
    memory = backend.open()
    with pytest.raises(NotFound):
        memory.start_trajectory("child", initiator=USER, parent=uuid.uuid4())
    parent = memory.start_trajectory("parent", initiator=USER)
    child = memory.start_trajectory("child", initiator=USER, parent=parent.trajectory_id)
    assert child.parent_trajectory_id == parent.trajectory_id
    assert memory.storage.trajectories.list_children(parent.trajectory_id) == [child]
    memory.complete_trajectory(child.trajectory_id, status="success", summary="")
    with pytest.raises(ConstraintViolation):
        memory.start_trajectory("grandchild", initiator=USER, parent=child.trajectory_id)
    assert memory.storage.trajectories.count() == 2


def test_nesting_has_a_depth(backend: Any) -> None:
    # C-251
    memory = backend.open(**{"pcp.context_dag.max_depth": 2})
    top = memory.start_trajectory("0", initiator=USER)
    middle = memory.start_trajectory("1", initiator=USER, parent=top.trajectory_id)
    low = memory.start_trajectory("2", initiator=USER, parent=middle.trajectory_id)
    with pytest.raises(ConstraintViolation, match="max_depth"):
        memory.start_trajectory("3", initiator=USER, parent=low.trajectory_id)


def test_chain_of_parents_that_bites_its_tail_is_refused(backend: Any) -> None:
    # C-204
    memory = backend.open()
    first = memory.start_trajectory("1", initiator=USER)
    second = memory.start_trajectory("2", initiator=USER, parent=first.trajectory_id)
    memory.storage.trajectories.update(first.trajectory_id, parent_trajectory_id=second.trajectory_id)
    with pytest.raises(CaliberError) as caught:
        memory.start_trajectory("3", initiator=USER, parent=second.trajectory_id)
    assert type(caught.value).__name__ == "CircularReference"


# --- the state machine ---------------------------------------------------------------------------


def test_suspend_and_resume(backend: Any) -> None:
    # C-236, C-436
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    suspended = memory.suspend_trajectory(trajectory.trajectory_id)
    assert suspended.status is TrajectoryStatus.SUSPENDED
    assert memory.suspend_trajectory(trajectory.trajectory_id) == suspended, "allowed, and nothing new"
    with pytest.raises(ConstraintViolation):
        memory.append_turn(scope.scope_id, role="user", content="while paused")
    with pytest.raises(InvalidStateTransition):
        memory.open_scope(trajectory.trajectory_id)
    with pytest.raises(InvalidStateTransition):
        memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="")
    assert memory.get(scope.scope_id).is_open, "what was refused changed nothing"
    assert memory.resume_trajectory(trajectory.trajectory_id).status is TrajectoryStatus.ACTIVE
    memory.append_turn(scope.scope_id, role="user", content="again")


@pytest.mark.parametrize("status", list(OutcomeStatus))
def test_terminal_trajectory_accepts_nothing(status: OutcomeStatus, backend: Any) -> None:
    # C-206, C-210, C-236, C-437, K-047
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    memory.complete_trajectory(trajectory.trajectory_id, status=status, summary="s")
    ended = memory.get(trajectory.trajectory_id)
    good = status in (OutcomeStatus.SUCCESS, OutcomeStatus.PARTIAL)
    assert ended.status is (TrajectoryStatus.COMPLETED if good else TrajectoryStatus.FAILED)
    for attempt in (
        lambda: memory.complete_trajectory(trajectory.trajectory_id, status="success", summary=""),
        lambda: memory.complete_trajectory(trajectory.trajectory_id, status="failure", summary=""),
        lambda: memory.suspend_trajectory(trajectory.trajectory_id),
        lambda: memory.resume_trajectory(trajectory.trajectory_id),
        lambda: memory.open_scope(trajectory.trajectory_id),
    ):
        with pytest.raises(InvalidStateTransition):
            attempt()
    with pytest.raises(ConstraintViolation):
        memory.append_turn(scope.scope_id, role="user", content="late")
    assert memory.get(trajectory.trajectory_id) == ended
    assert memory.current_scope(trajectory.trajectory_id) is None


def test_status_in_storage_follows_the_state_machine_too(backend: Any) -> None:
    # C-320: storage is strict
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="")
    with pytest.raises(InvalidStateTransition):
        memory.storage.trajectories.update(trajectory.trajectory_id, status=TrajectoryStatus.ACTIVE)
    with pytest.raises(NotFound):
        memory.storage.trajectories.update(uuid.uuid4(), goal="x")


# --- scopes --------------------------------------------------------------------------------------


def test_scopes_are_numbered_on_and_several_may_be_open(backend: Any) -> None:
    # C-209, C-472, C-327, C-326
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    first = memory.current_scope(trajectory.trajectory_id)
    memory.append_turn(first.scope_id, role="user", content="one")
    memory.append_turn(first.scope_id, role="user", content="two")
    second = memory.open_scope(trajectory.trajectory_id)
    assert (second.sequence_number, second.start_turn) == (1, 2)
    assert memory.current_scope(trajectory.trajectory_id) == second
    memory.append_turn(first.scope_id, role="user", content="three")
    memory.append_turn(second.scope_id, role="user", content="four")
    memory.close_scope(second.scope_id)
    current = memory.current_scope(trajectory.trajectory_id)
    assert current.scope_id == first.scope_id
    third = memory.open_scope(trajectory.trajectory_id)
    assert third.sequence_number == 2, "a number is never used again"
    numbers = [scope.sequence_number for scope in memory.storage.scopes.list_by_trajectory(trajectory.trajectory_id)]
    assert numbers == [0, 1, 2]
    open_ones = memory.storage.scopes.list_open(trajectory.trajectory_id)
    assert [scope.sequence_number for scope in open_ones] == [0, 2]


def test_closed_scope_is_returned_as_it_is_and_strict_below(backend: Any) -> None:
    # C-211, C-325, C-438, K-048
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    closed = memory.close_scope(scope.scope_id)
    assert memory.close_scope(scope.scope_id) == closed
    with pytest.raises(InvalidStateTransition):
        memory.storage.scopes.update(scope.scope_id, closed_at=None)
    with pytest.raises(InvalidStateTransition):
        memory.storage.scopes.update(scope.scope_id, closed_at=from_us(9))


# --- sub-trajectories when the parent ends -------------------------------------------------------


@pytest.mark.parametrize("rule", ["reject", "cascade_fail", "detach"])
def test_children_when_their_parent_ends(rule: str, backend: Any) -> None:
    # C-237
    memory = backend.open(trajectory__children_on_complete=rule)
    parent = memory.start_trajectory("parent", initiator=USER)
    child = memory.start_trajectory("child", initiator=USER, parent=parent.trajectory_id)
    grandchild = memory.start_trajectory("grandchild", initiator=USER, parent=child.trajectory_id)
    ended = memory.start_trajectory("ended", initiator=USER, parent=parent.trajectory_id)
    memory.complete_trajectory(ended.trajectory_id, status="success", summary="")
    done_before = memory.get(ended.trajectory_id)

    def complete() -> Any:
        return memory.complete_trajectory(parent.trajectory_id, status="success", summary="all done")

    if rule == "reject":
        with pytest.raises(ConstraintViolation, match="still active"):
            complete()
        assert memory.get(parent.trajectory_id).status is TrajectoryStatus.ACTIVE
        assert memory.current_scope(parent.trajectory_id) is not None, "refused before anything was closed"
        memory.complete_trajectory(grandchild.trajectory_id, status="success", summary="")
        memory.complete_trajectory(child.trajectory_id, status="success", summary="")
        complete()
    elif rule == "cascade_fail":
        complete()
        for item in (child, grandchild):
            failed = memory.get(item.trajectory_id)
            assert failed.status is TrajectoryStatus.FAILED
            assert failed.outcome.status is OutcomeStatus.FAILURE
            assert memory.current_scope(item.trajectory_id) is None
    else:
        complete()
        alone = memory.get(child.trajectory_id)
        assert (alone.status, alone.parent_trajectory_id) == (TrajectoryStatus.ACTIVE, None)
        assert memory.get(grandchild.trajectory_id).parent_trajectory_id == child.trajectory_id
    assert memory.get(parent.trajectory_id).status is TrajectoryStatus.COMPLETED
    assert memory.get(ended.trajectory_id) == done_before


# --- outcome -------------------------------------------------------------------------------------


def test_outcome_counts_what_was_said_and_made(backend: Any) -> None:
    # C-205 (K-093), C-207, C-208
    clock = FixedClock()
    memory = backend.open(clock=clock, policies=[])
    trajectory = memory.start_trajectory("goal", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    for role, tokens in (("user", 10), ("system", 1), ("tool", 2), ("assistant", 7), ("assistant", 30)):
        called = {"tool_call_id": "1"} if role == "tool" else {}
        memory.append_turn(scope.scope_id, role=role, content="x", token_count=tokens, **called)
    artifact = memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="made", extraction_method="explicit"
    )
    clock.advance(ms=1_234)
    outcome = memory.complete_trajectory(trajectory.trajectory_id, status="partial", summary="half of it")
    assert (outcome.tokens_input, outcome.tokens_output) == (13, 37)
    assert outcome.duration_ms == 1_234
    assert outcome.artifacts_produced == (artifact.artifact_id,)
    assert (outcome.status, outcome.summary) == (OutcomeStatus.PARTIAL, "half of it")
    stored = memory.get(trajectory.trajectory_id)
    assert stored.outcome == outcome
    assert stored.turn_count == 5
    assert memory.get(scope.scope_id).tokens_output == 37


# --- sessions ------------------------------------------------------------------------------------


def test_session_ends_once_and_takes_no_more(backend: Any) -> None:
    # K-210
    memory, heard = backend.open(), []
    memory.events.subscribe(lambda event: heard.append(event.event_type), event_type="session_end")
    session = memory.start_session(initiator=USER)
    assert memory.get(session.session_id) == session
    trajectory = memory.start_trajectory("goal", initiator=USER, session=session.session_id)
    assert trajectory.session_id == session.session_id
    ended = memory.end_session(session.session_id)
    assert ended.ended_at is not None
    assert memory.end_session(session.session_id) == ended
    memory.flush()
    assert heard == ["session_end"]
    with pytest.raises(ConstraintViolation, match="ended"):
        memory.start_trajectory("late", initiator=USER, session=session.session_id)
    with pytest.raises(NotFound):
        memory.end_session(uuid.uuid4())
    with pytest.raises(NotFound):
        memory.start_trajectory("goal", initiator=USER, session=uuid.uuid4())


def test_child_works_in_its_parents_session(backend: Any) -> None:
    memory = backend.open()
    session = memory.start_session(initiator=USER)
    parent = memory.start_trajectory("parent", initiator=USER, session=session.session_id)
    child = memory.start_trajectory("child", initiator=USER, parent=parent.trajectory_id)
    assert child.session_id == session.session_id
    assert len(memory.storage.trajectories.list_by_session(session.session_id)) == 2


def test_session_ends_with_its_last_root_trajectory(backend: Any) -> None:
    # C-013
    memory = backend.open()
    session = memory.start_session(initiator=USER)
    first = memory.start_trajectory("1", initiator=USER, session=session.session_id)
    second = memory.start_trajectory("2", initiator=USER, session=session.session_id)
    memory.complete_trajectory(first.trajectory_id, status="success", summary="")
    assert memory.get(session.session_id).ended_at is None
    memory.complete_trajectory(second.trajectory_id, status="success", summary="")
    assert memory.get(session.session_id).ended_at is not None


# --- bad input -----------------------------------------------------------------------------------


def test_unknown_and_malformed_ids_are_told_apart(backend: Any) -> None:
    # issue, Bad input: unknown ids
    memory = backend.open()
    calls = [
        lambda i: memory.get(i),
        lambda i: memory.open_scope(i),
        lambda i: memory.close_scope(i),
        lambda i: memory.current_scope(i),
        lambda i: memory.suspend_trajectory(i),
        lambda i: memory.resume_trajectory(i),
        lambda i: memory.complete_trajectory(i, status="success", summary=""),
        lambda i: memory.consolidate_notes(i),
        lambda i: memory.assemble_context(i),
        lambda i: memory.append_turn(i, role="user", content="x"),
        lambda i: memory.append_turns(i, [{"role": "user", "content": "x"}]),
        lambda i: memory.create_artifact(i, artifact_type="fact", content="x", extraction_method="explicit"),
        lambda i: memory.end_session(i),
        lambda i: memory.explain(i),
        lambda i: memory.replay(i),
        lambda i: memory.trace(i),
    ]
    for call in calls:
        for unknown in (uuid.uuid4(), str(uuid.uuid4()), uuid.UUID(int=0)):
            with pytest.raises(NotFound) as caught:
                call(unknown)
            assert "not found" in str(caught.value)
        for malformed in ("not an id", "", 5, None, b"x" * 16):
            with pytest.raises(InputError):
                call(malformed)
    assert memory.admin.verify() == []


def test_start_refuses_wrong_arguments(backend: Any) -> None:
    memory = backend.open()
    for wrong in ({"goal": ""}, {"goal": "   "}, {"goal": "\ud800"}, {"tags": "one"}, {"tags": [""]}, {"parent": "x"}):
        with pytest.raises(InputError):
            memory.start_trajectory(**{"goal": "goal", "initiator": USER, **wrong})
    assert memory.storage.trajectories.count() == 0


def test_outcome_must_be_one_there_is(backend: Any) -> None:
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    for status in ("done", "", None, 3):
        with pytest.raises(InputError):
            memory.complete_trajectory(trajectory.trajectory_id, status=status, summary="")
    with pytest.raises(InputError):
        memory.complete_trajectory(trajectory.trajectory_id, status="success", summary=None)
    assert memory.get(trajectory.trajectory_id).status is TrajectoryStatus.ACTIVE


def test_storage_refuses_what_does_not_fit(backend: Any) -> None:
    memory = backend.open()
    trajectory = memory.start_trajectory("goal", initiator=USER)
    table = memory.storage.trajectories
    with pytest.raises(InputError):
        table.insert("not an entity")
    with pytest.raises(InputError):
        table.update(trajectory.trajectory_id, no_such_field=1)
    with pytest.raises(InputError):
        table.update(trajectory.trajectory_id, trajectory_id=uuid.uuid4())
    with pytest.raises(InputError):
        table.get()
    with pytest.raises(AttributeError, match="lists by"):
        table.list_by_nothing(1)
    with pytest.raises(AttributeError, match="there are"):
        memory.storage.no_such_relation  # noqa: B018
    with pytest.raises(Conflict):
        table.insert(trajectory)
    assert table.get(uuid.uuid4()) is None
    assert table.delete(uuid.uuid4()) is False
    assert {"turns", "notes", "events"} <= set(memory.storage)
    assert EntityType.TRAJECTORY == "trajectory"


def _completing(backend: Any, meanwhile: Any, **overrides: Any) -> tuple[Any, Any]:
    """Return a handle and a trajectory whose completing does ``meanwhile`` once, while notes are generated."""
    summarizer = ScriptedSummarizer()
    consolidate = policy("task_end", {"action": "consolidate_notes", "target": "trajectory"})
    memory = backend.open(summarization_provider=summarizer, policies=[consolidate], **overrides)
    trajectory = memory.start_trajectory("be overtaken", initiator=USER)
    todo = [meanwhile]

    def before(operation: str) -> None:
        if operation == "generate_notes" and todo:
            todo.pop()(memory, trajectory)

    summarizer.before = before
    return memory, trajectory


def test_a_scope_opened_while_completing_is_closed_too(backend: Any) -> None:  # K-093
    memory, trajectory = _completing(backend, lambda memory, it: memory.open_scope(it.trajectory_id))
    outcome = memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
    assert outcome.status is OutcomeStatus.SUCCESS
    scopes = memory.storage.scopes.list_by_trajectory(trajectory.trajectory_id)
    assert len(scopes) == 2
    assert not any(scope.is_open for scope in scopes)


@pytest.mark.parametrize("rule", ["reject", "cascade_fail", "detach"])
def test_a_child_started_while_completing_is_settled_too(backend: Any, rule: str) -> None:  # C-237
    children: list[Any] = []

    def begin(memory: Any, trajectory: Any) -> None:
        children.append(memory.start_trajectory("child", initiator=USER, parent=trajectory.trajectory_id))

    memory, trajectory = _completing(backend, begin, trajectory__children_on_complete=rule)
    if rule == "reject":
        with pytest.raises(ConstraintViolation):
            memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
        assert memory.get(trajectory.trajectory_id).status == "active"
        return
    memory.complete_trajectory(trajectory.trajectory_id, status="success", summary="done")
    child = memory.get(children[0].trajectory_id)
    assert (child.status, child.parent_trajectory_id is None) == (
        ("failed", False) if rule == "cascade_fail" else ("active", True)
    )
