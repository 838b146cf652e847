"""Trace summary, state of a task, provenance of an artifact. Source: C-292 to C-302, C-505, K-108."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.configs import USER
from support.inspection import inspect

import caliber
from caliber.model import EntityRef, EntityType, Principal
from caliber.model.errors import ConstraintViolation, NotFound, PermissionDenied
from caliber.model.events import EventFamily, EventType
from caliber.model.pcp import TraceSummary
from caliber.model.time import FixedClock

KEEP = {"artifact_type": "fact", "extraction_method": "explicit", "confidence": 1.0}
OTHER = EntityRef(EntityType.USER, uuid.UUID(int=77))


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def memory(backend: Any, clock: FixedClock) -> caliber.Caliber:
    return backend.open(clock=clock, jobs__poll_ms=0, policies=[])


def task_of(memory: caliber.Caliber, who: EntityRef = USER) -> tuple[Any, Any]:
    task = memory.start_trajectory("find the harbour", initiator=who)
    return task, memory.current_scope(task.trajectory_id)


def keep(memory: caliber.Caliber, scope: Any, content: str) -> Any:
    return memory.create_artifact(scope.scope_id, content=content, **KEEP)


def test_summary_counts_what_happened(memory: caliber.Caliber, clock: FixedClock) -> None:
    # C-293
    task, scope = task_of(memory)
    memory.append_turn(scope.scope_id, role="user", content="where is the harbour?")
    said = memory.append_turn(scope.scope_id, role="assistant", content="north of the old town")
    keep(memory, scope, "the harbour is north")
    windows = [memory.assemble_context(task.trajectory_id) for _ in range(2)]
    checkpoint = memory.pcp.checkpoint(task.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="and the station?")
    clock.advance(ms=5_000)
    memory.pcp.recover(task.trajectory_id, checkpoint.checkpoint_id)
    assert memory.pcp.trace_summary(task.trajectory_id) == TraceSummary(
        trajectory_id=task.trajectory_id,
        duration_ms=5_000,
        scopes_created=2,
        artifacts_created=1,
        notes_created=0,
        context_assemblies=2,
        total_tokens_input=sum(window.used_tokens for window in windows),
        total_tokens_output=said.token_count,
        checkpoints_created=2,  # recovering makes one of the task as it was
        recoveries_performed=1,
        errors=0,
    )


def test_state_of_a_task(memory: caliber.Caliber) -> None:
    # C-296
    task, scope = task_of(memory)
    keep(memory, scope, "the harbour is north")
    memory.close_scope(scope.scope_id)
    opened = memory.open_scope(task.trajectory_id)
    memory.pcp.checkpoint(task.trajectory_id)
    state = memory.pcp.task_state(task.trajectory_id)
    assert state.trajectory.trajectory_id == task.trajectory_id
    assert [each.scope_id for each in state.scopes] == [scope.scope_id, opened.scope_id]
    assert state.active_scope == opened
    assert (state.artifact_count, state.note_count, state.checkpoint_count) == (1, 0, 2)  # a scope that ends has one
    memory.complete_trajectory(task.trajectory_id, status="success", summary="found")
    assert memory.pcp.task_state(task.trajectory_id).active_scope is None


def test_provenance_follows_versions_in_both_directions(memory: caliber.Caliber) -> None:
    # C-299
    task, scope = task_of(memory)
    first = keep(memory, scope, "port 6379")
    second = memory.artifacts.supersede(first.artifact_id, content="port 6380")
    third = memory.artifacts.supersede(second.artifact_id, content="port 6381")
    found = memory.pcp.provenance(second.artifact_id)
    assert found.artifact.artifact_id == second.artifact_id
    assert found.scope.scope_id == scope.scope_id
    assert found.trajectory.trajectory_id == task.trajectory_id
    assert [each.artifact_id for each in found.older] == [first.artifact_id]
    assert [each.artifact_id for each in found.newer] == [third.artifact_id]
    assert found.artifact.superseded_by == third.artifact_id


def test_versions_in_a_circle_are_listed_once(memory: caliber.Caliber) -> None:
    # K-108; the calls make none, an import may
    _, scope = task_of(memory)
    made = [keep(memory, scope, f"port {number}") for number in range(3)]
    for at, artifact in enumerate(made):
        table = memory.storage.artifacts
        table.update(artifact.artifact_id, superseded_by=made[(at + 1) % 3].artifact_id)
    found = memory.pcp.provenance(made[0].artifact_id)
    assert [each.artifact_id for each in found.newer] == [made[1].artifact_id, made[2].artifact_id]
    assert found.older == ()


def test_unknown_ids_are_not_found(memory: caliber.Caliber) -> None:
    # C-301
    for call in (memory.pcp.trace_summary, memory.pcp.task_state, memory.pcp.provenance):
        with pytest.raises(NotFound):
            call(uuid.uuid4())


def test_another_users_records_leave_no_trace(memory: caliber.Caliber) -> None:
    """Hidden tasks and artifacts are not found, and hidden notes are in no count."""
    task, scope = task_of(memory)
    artifact = keep(memory, scope, "the harbour is north")
    stranger = memory.acting_as(Principal.user(str(OTHER.id)))
    for call, key in (
        (stranger.pcp.trace_summary, task.trajectory_id),
        (stranger.pcp.task_state, task.trajectory_id),
        (stranger.pcp.provenance, artifact.artifact_id),
    ):
        with pytest.raises(NotFound):
            call(key)


def test_an_application_sees_what_the_user_of_the_task_does(backend: Any) -> None:
    admin = backend.open(jobs__poll_ms=0, policies=[])
    memory = admin.acting_as(Principal(kind="application", id="app"))
    task = memory.start_trajectory("find the harbour", user="anna@example.com")
    scope = admin.current_scope(task.trajectory_id)
    memory.create_artifact(scope.scope_id, content="the harbour is north", **KEEP)
    note = {"entity": "harbour", "entity_type": "place", "note_type": "fact", "confidence": 1.0}
    hidden = admin.add_note(
        content="only for bert", source_trajectory_ids=[task.trajectory_id], visible_to=["human:bert"], **note
    )
    shown = admin.add_note(content="for all", source_trajectory_ids=[task.trajectory_id], **note)
    assert hidden.note_id != shown.note_id
    assert admin.pcp.task_state(task.trajectory_id).note_count == 2
    assert memory.pcp.task_state(task.trajectory_id).note_count == 1
    assert memory.pcp.trace_summary(task.trajectory_id).artifacts_created == 1


def test_an_application_checks_and_cuts_windows_of_a_user(backend: Any) -> None:
    admin = backend.open(jobs__poll_ms=0, policies=[])
    memory = admin.acting_as(Principal.application("app"))
    task = memory.start_trajectory("find the harbour", user="anna@example.com").trajectory_id
    scope = admin.current_scope(task).scope_id
    memory.create_artifact(scope, content="the harbour is north", **KEEP)
    memory.append_turn(scope, role="user", content="Where is the harbour, and how far is it from the station?")
    window = memory.assemble_context(task)
    memory.flush()
    key = window.window_id
    with pytest.raises(ConstraintViolation, match="need user="):
        memory.pcp.validate(key)
    with pytest.raises(NotFound, match="pass user="):
        memory.pcp.apply_dosage(key, max_tokens=20)
    with pytest.raises(ConstraintViolation):
        memory.pcp.validate(key, user="bert@example.com")
    with pytest.raises(NotFound):
        memory.pcp.apply_dosage(key, user="bert@example.com")
    # a window holds the turn as well
    checked = [memory.pcp.validate(target, user="anna@example.com").checked for target in (key, window, task, scope)]
    assert checked == [2, 2, 1, 1]
    assert memory.pcp.apply_dosage(key, user="anna@example.com").text == window.text
    assert memory.pcp.apply_dosage(key, max_tokens=20, user="anna@example.com").used_tokens <= 20
    with pytest.raises(PermissionDenied):
        admin.acting_as(Principal.user("bert@example.com")).pcp.validate(window, user="anna@example.com")


# --- operations in the event log -------------------------------------------------------------------


def operations(memory: caliber.Caliber) -> list[Any]:
    memory.flush()
    return [event for event in memory.storage.events.all() if event.event_type == EventType.OPERATION]


def test_operations_are_events_with_durations(backend: Any) -> None:
    # issue 17, Build 10
    memory = backend.open(write_behind__operation_share=1.0, jobs__poll_ms=0)
    task, scope = task_of(memory)
    turn = memory.append_turn(scope.scope_id, role="user", content="where is the harbour?")
    window = memory.assemble_context(task.trajectory_id, query="harbour")
    with pytest.raises(NotFound):
        memory.get(uuid.uuid4())
    found = {event.payload["operation"]: event for event in operations(memory)}
    append = found["append_turn"]
    assert append.family is EventFamily.ACTIVITY
    assert append.trajectory_id == task.trajectory_id
    assert append.payload["record_id"] == str(turn.turn_id)
    assert append.payload["duration_us"] > 0
    assert append.duration_ms == append.payload["duration_us"] // 1_000
    assert found["assemble_context"].payload["window_id"] == str(window.window_id)
    assert found["get"].payload["error"] == "not_found"
    assert "harbour" not in "".join(str(event.payload) for event in found.values())
    assert memory.pcp.trace_summary(task.trajectory_id).context_assemblies == 1
    traced = memory.trace(task.trajectory_id, event_type="operation")
    assert {event.payload["operation"] for event in traced} >= {"append_turn", "assemble_context"}


def test_results_are_the_same_with_and_without_recorded_operations(backend: Any) -> None:
    # C-302
    texts = []
    for share in (0.0, 1.0):
        memory = backend.open(write_behind__operation_share=share, jobs__poll_ms=0)
        task, scope = task_of(memory)
        memory.append_turn(scope.scope_id, role="user", content="where is the harbour?")
        texts.append(memory.assemble_context(task.trajectory_id, query="harbour").text)
        assert bool(operations(memory)) is bool(share)
        memory.admin.purge_trajectory(task.trajectory_id)
        if backend.has("reopen"):
            memory.close()
    assert texts[0] == texts[1]


def test_a_part_of_the_operations_is_recorded(backend: Any) -> None:
    memory = backend.open(write_behind__operation_share=0.25, jobs__poll_ms=0)
    for _ in range(200):
        memory.search("")
    found = [event for event in operations(memory) if event.payload["operation"] == "search"]
    assert 10 <= len(found) <= 110
    assert {event.payload["share"] for event in found} == {0.25}


def test_purging_a_task_leaves_no_operation_of_it(backend: Any) -> None:
    memory = backend.open(write_behind__operation_share=1.0, jobs__poll_ms=0)
    task, scope = task_of(memory)
    memory.append_turn(scope.scope_id, role="user", content="where is the harbour?")
    memory.admin.purge_trajectory(task.trajectory_id)
    memory.flush()
    key = str(task.trajectory_id)
    left = [event for event in memory.storage.events.all() if event.family is not EventFamily.AUDIT]
    assert not [event for event in left if event.trajectory_id == task.trajectory_id or key in str(event.payload)]


def test_traced_handles_are_handles(backend: Any) -> None:
    memory = backend.open(write_behind__operation_share=1.0, jobs__poll_ms=0)
    assert isinstance(memory, caliber.Caliber)
    assert repr(memory).startswith("Caliber(")
    assert inspect(memory).engine is not None
    assert memory.storage.turns.count() == 0
