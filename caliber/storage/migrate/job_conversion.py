"""Migration of schema 3: converts waiting triggers and scheduled runs to jobs, in stores and in archives."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from caliber.model.access import AgentRole, PrincipalKind
from caliber.model.ids import ScopeId, TrajectoryId
from caliber.model.jobs import Job
from caliber.model.time import to_us
from caliber.schema.relation import Relation
from caliber.storage.compile.plan import Dialect
from caliber.storage.migrate.dropped_relations import PENDING_TRIGGER, POLICY_RUN

_COLUMNS: Final = (
    "job_id, kind, payload, principal_kind, principal_id, principal_role, principal_admin, created_at, due_at,"
    " available_at, scheduled_at, trajectory_id, scope_id, begun_at, attempts, done, version"
)
_SWEEP: Final = "56f64f4d78459aab9c70e7d1a3c6601f"
"""The key of a row of ``policy_run`` that is no rule: the retention sweep, which starts afresh."""


def convert_jobs(dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that fill ``job`` from the relations that it replaces, and drop those."""
    job, trigger, run = (dialect.table(name) for name in ("job", "pending_trigger", "policy_run"))
    if dialect.name == "sqlite":
        rule, no = "lower(hex(rule_id))", "0"
        covered, running, done = "covered_at", "due_at", "actions_done"
        state = (
            f"json_patch('{{}}', json_object('covered_us', {covered}, 'run_us', {running},"
            f" 'step', CASE WHEN {running} IS NULL THEN NULL ELSE {done} END))"
        )
    else:
        rule, no = "replace(rule_id::text, '-', '')", "FALSE"
        covered, running = (f"(extract(epoch FROM {name}) * 1000000)::bigint" for name in ("covered_at", "due_at"))
        state = (
            f"jsonb_strip_nulls(jsonb_build_object('covered_us', {covered}, 'run_us', {running},"
            " 'step', CASE WHEN due_at IS NULL THEN NULL ELSE actions_done END))"
        )
    begin = f"INSERT INTO {job} ({_COLUMNS}) SELECT "
    of_triggers = (
        "trigger_id, 'trigger:' || trigger, '{}', principal_kind, principal_id, principal_role, principal_admin,"
        " created_at, begun_at, begun_at, begun_at, trajectory_id, scope_id, begun_at, attempts, 0, 1"
    )
    of_runs = (
        f"rule_id, 'schedule:' || {rule}, {state}, 'system', 'jobs', NULL, {no}, covered_at, covered_at, covered_at,"
        " covered_at, NULL, NULL, NULL, 0, 0, 1"
    )
    erasure, name = (
        dialect.table("erasure"),
        "lower(hex(erasure_id))" if dialect.name == "sqlite" else ("replace(erasure_id::text, '-', '')"),
    )
    named = f"'{{\"erasure_id\":\"' || {name} || '\"}}'"
    payload = named if dialect.name == "sqlite" else f"({named})::jsonb"
    of_erasures = (
        f"erasure_id, 'erasure.finish', {payload}, 'system', 'jobs', NULL, {no}, begun_at, begun_at, begun_at,"
        " begun_at, NULL, NULL, NULL, 0, 0, 1"
    )
    return (
        f"{begin}{of_erasures} FROM {erasure} WHERE finished_at IS NULL",
        f"{begin}{of_triggers} FROM {trigger}",
        f"{begin}{of_runs} FROM {run} WHERE {rule} <> '{_SWEEP}'",
        f"DROP TABLE {trigger}",
        f"DROP TABLE {run}",
    )


def job_of_trigger(row: Mapping[str, Any]) -> Job:
    """Return the job of a row of ``pending_trigger`` in an archive."""
    role, scope, begun = row["principal_role"], row["scope_id"], row["begun_at"]
    return Job(
        job_id=uuid.UUID(bytes=row["trigger_id"]),
        kind=f"trigger:{row['trigger']}",
        key=None,
        payload={},
        principal_kind=PrincipalKind(row["principal_kind"]),
        principal_id=row["principal_id"],
        principal_role=None if role is None else AgentRole(role),
        principal_admin=bool(row["principal_admin"]),
        created_at=row["created_at"],
        due_at=begun,
        available_at=begun,
        scheduled_at=begun,
        trajectory_id=TrajectoryId(uuid.UUID(bytes=row["trajectory_id"])),
        scope_id=None if scope is None else ScopeId(uuid.UUID(bytes=scope)),
        begun_at=begun,
        attempts=row["attempts"],
    )


def job_of_run(row: Mapping[str, Any]) -> Job | None:
    """Return the job for a row of ``policy_run`` in an archive; None for the sweep, which starts afresh."""
    rule = uuid.UUID(bytes=row["rule_id"])
    if rule.hex == _SWEEP:
        return None
    running = {} if row["due_at"] is None else {"run_us": to_us(row["due_at"]), "step": row["actions_done"]}
    covered: datetime = row["covered_at"]
    return Job(
        job_id=rule,
        kind=f"schedule:{rule.hex}",
        key=None,
        payload={"covered_us": to_us(covered), **running},
        principal_kind=PrincipalKind.SYSTEM,
        principal_id="jobs",
        principal_role=None,
        principal_admin=False,
        created_at=covered,
        due_at=covered,
        available_at=covered,
        scheduled_at=covered,
    )


def converted_to(relation: Relation) -> dict[Relation, Callable[[Mapping[str, Any]], Any]]:
    """Return the relations of earlier archives that were converted, with the conversion of their rows."""
    return {PENDING_TRIGGER: job_of_trigger, POLICY_RUN: job_of_run} if relation.entity is Job else {}


DROPPED: Final = (PENDING_TRIGGER, POLICY_RUN)
"""Relations that only earlier archives hold."""
