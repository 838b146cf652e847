"""Abandoned tasks: active ones without activity for ``orphan_detection_threshold``, and open scopes of ended tasks.

A recurring job ends them in batches, one transaction a task; each transaction looks again at what it ends, so a task
that goes on meanwhile stays as it is. Source: C-476 to C-481, K-091.
"""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections import Counter
from datetime import datetime
from typing import Final

import numpy as np

from caliber.engine.engine import Engine
from caliber.jobs.claims import Claim
from caliber.jobs.handlers import IDLE, Handler, Recurrence
from caliber.jobs.queue import JobQueue
from caliber.model import states
from caliber.model.time import MS_US, from_us, to_us
from caliber.model.trajectory import OutcomeStatus, Scope, Trajectory, TrajectoryStatus
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.relations import SCOPE, TRAJECTORY
from caliber.schema.traits import NEVER_US
from caliber.storage.compile.codec import decoder_of
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory import lifecycle
from caliber.trajectory.triggers import Retention

SWEEP: Final = uuid.UUID(bytes=hashlib.sha256(b"caliber:orphans").digest()[:16])
"""The recurring job that looks for orphans."""
MOST: Final = 500
"""Most tasks, and most scopes, that one look ends."""
_PRINCIPAL: Final = "system:orphans"


class Orphans:
    """Ends what was abandoned. ``threshold_ms`` is the silence that makes an orphan."""

    def __init__(self, engine: Engine, threshold_ms: int, retention: Retention) -> None:
        self._engine = engine
        self._threshold_ms = threshold_ms
        self._retention = retention

    def register(self, jobs: JobQueue) -> None:
        """Have this process look every ``retention.sweep_every_ms``; 0 leaves that to ``maintain``."""
        every_us = self._engine.config.retention.sweep_every_ms * MS_US

        def run(claim: Claim) -> int:
            return sum(self.end(claim).values())

        recurrence = Recurrence(SWEEP, lambda now_us: now_us + every_us, at_once=True)
        idle = not every_us
        jobs.register(Handler("pcp.orphans", run, priority=IDLE, recurrence=recurrence, idle=lambda: idle))

    def end(self, claim: Claim) -> dict[str, int]:
        """End at most ``MOST`` tasks, and as many scopes; return how many of each.

        Raises: Superseded when another process claimed the sweep.
        """
        counts: Counter[str] = Counter({"trajectories_failed": 0, "scopes_closed": 0})
        snapshot = self._engine.snapshot()
        for key in self._silent_tasks(snapshot):
            counts.update(self._engine.write(functools.partial(self._end_task, claim, key)))
        for key in self._left_scopes(snapshot):
            counts.update(self._engine.write(functools.partial(self._close_left, claim, key)))
        return dict(counts)

    # --- finding them ----------------------------------------------------------------------------

    def _silent_tasks(self, snapshot: ResidentSnapshot) -> list[bytes]:
        """Return the keys of active tasks without activity, the longest silent first, subtasks before their parents."""
        tasks, cutoff = snapshot[TRAJECTORY.name], self._cutoff(self._engine.clock.now_us())
        rows = tasks.rows()
        rows = rows[tasks.column("status")[rows] == tasks.enum_code("status", TrajectoryStatus.ACTIVE.value)]
        decode = decoder_of(TRAJECTORY.column("last_activity_at"))
        found: list[tuple[datetime, int]] = []
        for row, stored in zip(rows.tolist(), tasks.packed_values("last_activity_at", rows.tolist()), strict=True):
            active = stored if decode is None else decode(stored)
            if active < cutoff:
                found.append((active, row))
        longest = [row for _, row in sorted(found)[:MOST]]
        made = tasks.column("created_at")
        return [tasks.entity_id(row).bytes for row in sorted(longest, key=lambda row: (-int(made[row]), -row))]

    def _left_scopes(self, snapshot: ResidentSnapshot) -> list[bytes]:
        """Return the keys of open scopes, opened before the cutoff, of tasks that have ended."""
        scopes, tasks = snapshot[SCOPE.name], snapshot[TRAJECTORY.name]
        cutoff = to_us(self._cutoff(self._engine.clock.now_us()))
        rows = scopes.rows()
        rows = rows[(scopes.column("closed_at")[rows] == NEVER_US) & (scopes.column("opened_at")[rows] < cutoff)]
        over = [
            tasks.enum_code("status", each.value) for each in TrajectoryStatus if states.TRAJECTORY.is_terminal(each)
        ]
        keys = scopes.interned("trajectory_id")
        found = []
        for row in rows[np.argsort(scopes.column("opened_at")[rows], kind="stable")].tolist():
            task = tasks.find(keys[int(scopes.column("trajectory_id")[row])])
            if task >= 0 and int(tasks.column("status")[task]) in over:
                found.append(scopes.entity_id(row).bytes)
                if len(found) == MOST:
                    break
        return found

    def _cutoff(self, now_us: int) -> datetime:
        return from_us(now_us - self._threshold_ms * MS_US)

    # --- ending them -----------------------------------------------------------------------------

    def _end_task(self, claim: Claim, key: bytes, uow: UnitOfWork) -> dict[str, int]:
        claim.hold(uow)
        uow.lock_row(TRAJECTORY, key)
        task: Trajectory | None = uow.find(TRAJECTORY, key)
        if task is None or task.status is not TrajectoryStatus.ACTIVE:
            return {}
        silent_since = task.last_activity_at
        if silent_since >= self._cutoff(uow.now_us):
            return {}
        # A task waits for its subtasks: those that are orphans end first, by themselves.
        below = uow.select_path(TRAJECTORY, "list_children", key)
        if any(not states.TRAJECTORY.is_terminal(child.status) for child in below):
            return {}
        since, limit = silent_since.isoformat(timespec="seconds"), self._threshold_ms
        summary = f"abandoned: no activity since {since}, longer than orphan_detection_threshold ({limit} ms)"
        owner, status = task.trajectory_id, OutcomeStatus.SYSTEM_ABORT
        self._retention.task_ends(uow, owner, status, summary, _PRINCIPAL)
        outcome, cancelled = (owner, status, summary, _PRINCIPAL), "the task was abandoned"
        closed = lifecycle.end_without_policies(
            self._engine, self._retention, uow, *outcome, cancelled=cancelled, abandoned=True, reason=summary
        )
        self._retention.task_ended(uow, owner, _PRINCIPAL, cascade=False)
        return {"trajectories_failed": 1, "scopes_closed": closed}

    def _close_left(self, claim: Claim, key: bytes, uow: UnitOfWork) -> dict[str, int]:
        claim.hold(uow)
        scope: Scope | None = uow.find(SCOPE, key)
        if scope is None or not scope.is_open:
            return {}
        task: Trajectory | None = uow.find(TRAJECTORY, scope.trajectory_id.bytes)
        if task is None or not states.TRAJECTORY.is_terminal(task.status):
            return {}
        reason = f"left open: its task had ended ({task.status})"
        lifecycle.close_left(self._engine, self._retention, uow, scope, _PRINCIPAL, abandoned=True, reason=reason)
        return {"scopes_closed": 1}
