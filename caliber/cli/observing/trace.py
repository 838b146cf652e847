"""Command ``trace``: prints the story of a task from its events, turns, windows and jobs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from caliber.cli.memory.query import LATEST, trajectory_id_of
from caliber.cli.output import jsonable, plural
from caliber.cli.settings import Settings, with_store
from caliber.cli.team.shared import agent_names
from caliber.model.errors import NotFound
from caliber.model.events import Event, EventType

if TYPE_CHECKING:
    from caliber.api.caliber import Caliber
    from caliber.cli.output import Output

_EVENTS: Final = 10_000
_LABELS: Final = {
    EventType.TRAJECTORY_START: "the task starts",
    EventType.TRAJECTORY_COMPLETE: "the task ends",
    EventType.TRAJECTORY_SUSPEND: "the task pauses",
    EventType.TRAJECTORY_RESUME: "the task goes on",
    EventType.SCOPE_OPEN: "a scope opens",
    EventType.SCOPE_CLOSE: "a scope closes",
    EventType.ARTIFACT_CREATE: "an artifact is kept",
    EventType.CONTEXT_INJECT: "a trigger's records enter a window",
    EventType.CONTEXT_ASSEMBLE: "a window is assembled",
    EventType.CHECKPOINT_CREATE: "a checkpoint is made",
    EventType.CHECKPOINT_RECOVER: "the task is recovered",
    EventType.POLICY_EXECUTE: "a policy runs",
    EventType.VALIDATION_RUN: "memory is checked",
    EventType.CONFLICT_DETECT: "a conflict is found",
    EventType.CONFLICT_RESOLVE: "a conflict is resolved",
    EventType.LEARN: "facts are learnt",
    EventType.NOTE_CREATE: "a note is kept",
    EventType.MESSAGE_SEND: "a message is sent",
    EventType.DELEGATION_CREATE: "work is delegated",
    EventType.DELEGATION_ACCEPT: "delegated work is accepted",
    EventType.DELEGATION_START: "delegated work begins",
    EventType.DELEGATION_COMPLETE: "delegated work is completed",
    EventType.DELEGATION_REJECT: "delegated work is rejected",
    EventType.DELEGATION_FAIL: "delegated work fails",
    EventType.HANDOFF_INITIATE: "the task is handed off",
    EventType.HANDOFF_ACCEPT: "a handoff is accepted",
    EventType.HANDOFF_COMPLETE: "a handoff is completed",
    EventType.HANDOFF_REJECT: "a handoff is rejected",
    EventType.ERROR: "an error",
}


@click.command()
@click.argument("task", default=LATEST)
@click.option("--limit", type=click.IntRange(1), default=_EVENTS, show_default=True, help="The most events to read.")
@with_store
def trace(settings: Settings, task: str, limit: int) -> None:
    """Tell the story of TASK (its id, or `latest`, the default): turns, windows, jobs, recoveries, durations.

    It shows ids, counts and durations, never content. Operations are there if write_behind.operation_share records
    them. The id of an artifact shows its task, scope and versions.
    """
    with settings.memory(note=False) as memory:
        key = trajectory_id_of(memory, task)
        try:
            state = memory.pcp.task_state(key)
        except NotFound:
            origin = _origin(memory, key)
            if origin is None:
                raise
            settings.out.result(origin, lambda: _print_origin(settings.out, origin))
            return
        summary = memory.pcp.trace_summary(key)
        steps = [_of_event(event) for event in memory.trace(key, limit=limit)]
        agents = {str(key): name for key, name in agent_names(memory).items()}
        steps += _turns(memory, [scope.scope_id for scope in state.scopes]) + _jobs(memory, key)
    steps.sort(key=lambda step: step["at"])  # stable: events of one instant stay in their order
    found = {
        "trajectory_id": state.trajectory.trajectory_id,
        "status": state.trajectory.status,
        "summary": {**jsonable(summary), "turns": state.trajectory.turn_count},
        "state": {
            "scopes": len(state.scopes),
            "active_scope": None if state.active_scope is None else state.active_scope.scope_id,
            "artifacts": state.artifact_count,
            "notes": state.note_count,
            "checkpoints": state.checkpoint_count,
        },
        "steps": steps,
    }
    settings.out.result(found, lambda: _print(settings.out, found, agents))


def _origin(memory: Caliber, key: uuid.UUID) -> dict[str, Any] | None:
    """Return the origin and the versions of an artifact, the oldest first; None for no artifact."""
    try:
        found = memory.pcp.provenance(key)
    except NotFound:
        return None
    older = found.older[::-1]
    return {
        "artifact_id": key,
        "trajectory_id": found.trajectory.trajectory_id,
        "scope_id": found.scope.scope_id,
        "versions": [
            {"artifact_id": each.artifact_id, "type": each.artifact_type, "at": each.created_at}
            for each in (*older, found.artifact, *found.newer)
        ],
    }


def _print_origin(out: Output, found: dict[str, Any]) -> None:
    out.print(f"artifact {found['artifact_id']}, {plural(len(found['versions']), 'version')}")
    out.print(f"  task {found['trajectory_id']}, scope {found['scope_id']}")
    for each in found["versions"]:
        mark = "  this one" if each["artifact_id"] == found["artifact_id"] else ""
        out.print(f"  {each['at'].astimezone(UTC):%Y-%m-%d %H:%M:%S}  {each['type'].value} {each['artifact_id']}{mark}")


def _of_event(event: Event) -> dict[str, Any]:
    payload = dict(event.payload)
    step = {
        "at": event.created_at,
        "what": event.event_type,
        "scope_id": event.scope_id,
        "subject_id": event.subject_id,
    }
    if event.event_type == EventType.OPERATION:
        step["duration_us"] = payload.get("duration_us")
    elif event.duration_ms is not None:
        step["duration_us"] = event.duration_ms * 1_000
    return {**step, "details": payload}


def _turns(memory: Caliber, scopes: list[Any]) -> list[dict[str, Any]]:
    """Return the turns of scopes, for an administrator, who alone may list them."""
    if not memory.principal.is_admin:
        return []
    return [
        {
            "at": turn.created_at,
            "what": "turn",
            "scope_id": scope,
            "subject_id": turn.turn_id,
            "details": {"number": turn.turn_number, "role": turn.role, "tokens": turn.token_count}
            | ({"rolled_back": True} if turn.rolled_back_at is not None else {}),
        }
        for scope in scopes
        for turn in memory.storage.turns.list_by_scope(scope)
    ]


def _jobs(memory: Caliber, task: uuid.UUID) -> list[dict[str, Any]]:
    """Return the jobs of a task, for an administrator."""
    if not memory.principal.is_admin:
        return []
    jobs = [job for job in memory.jobs.list(limit=_EVENTS) if job.trajectory_id == task]
    return [
        {
            "at": job.begun_at or job.created_at,
            "what": "job",
            "scope_id": job.scope_id,
            "subject_id": job.job_id,
            "details": {"kind": job.kind, "state": job.state, "attempts": job.attempts},
            "duration_us": None
            if job.ended_at is None or job.begun_at is None
            else round((job.ended_at - job.begun_at).total_seconds() * 1_000_000),
        }
        for job in jobs
    ]


def _print(out: Output, found: dict[str, Any], agents: Mapping[str, str]) -> None:
    summary, state = found["summary"], found["state"]
    out.print(f"task {found['trajectory_id']}, {found['status'].value}")
    out.print(
        f"  {plural(summary['turns'], 'turn')}, {plural(state['scopes'], 'scope')}, "
        f"{plural(summary['context_assemblies'], 'window')} of {summary['total_tokens_input']:,} tokens, "
        f"{plural(summary['recoveries_performed'], 'recovery', 'recoveries')}, {plural(summary['errors'], 'error')}"
    )
    out.print(
        f"  {plural(state['artifacts'], 'artifact')}, {plural(state['notes'], 'note')}, "
        f"{plural(state['checkpoints'], 'checkpoint')}; {took_text(summary['duration_ms'] * 1_000)} from first to last"
    )
    day = None
    for step in found["steps"]:
        at: datetime = step["at"].astimezone(UTC)
        if at.date() != day:
            day = at.date()
            out.print(f"{day}  UTC")
        took = step.get("duration_us")
        out.print(
            f"  {at:%H:%M:%S.%f}"[:-3] + f"  {'' if took is None else took_text(took):>9}  {step_text(step, agents)}"
        )


def step_text(step: dict[str, Any], agents: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a step of a trace for people, without its time; ``agents`` has the names of agents by their ids."""
    details = dict(step["details"])
    if "role" in details:  # a turn
        undone = ", rolled back" if details.get("rolled_back") else ""
        return f"turn {details['number']}, {details['role'].value}, {plural(details['tokens'], 'token')}{undone}"
    if "attempts" in details:  # a job
        return f"job {details['kind']}, {details['state'].value}, {plural(details['attempts'], 'attempt')}"
    if step["what"] == EventType.OPERATION:
        failed = f", failed: {details['error']}" if "error" in details else ""
        return f"call {details['operation']}{failed}"
    if step["what"] == EventType.CONTEXT_ASSEMBLE:
        known = "included" in details
        decisions = f": {details['included']} in, {details['excluded']} left out" if known else ""
        return f"a window of {details['used_tokens']:,} of {details['max_tokens']:,} tokens{decisions}"
    label = _LABELS.get(step["what"], str(step["what"]))
    shown = {name: value for name, value in details.items() if isinstance(value, str | int | float) and name != "id"}
    parts = ", ".join(f"{name} {agents.get(str(value), value)}" for name, value in shown.items())
    return f"{label} ({parts})" if parts else label


def took_text(us: int) -> str:
    """Return a duration for people: ``850 µs``, ``3.2 ms``, ``1.5 s``."""
    if us < 1_000:
        return f"{us} µs"
    return f"{us / 1_000:.1f} ms" if us < 1_000_000 else f"{us / 1_000_000:.1f} s"
