"""Triggers of policies, and runs of their schedules."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from caliber.model.access import PrincipalKind
from caliber.model.agents import AgentRole
from caliber.model.ids import ScopeId, TrajectoryId


class Trigger(StrEnum):
    """The event that a policy reacts to; ``schedule`` carries a cron text besides. Source: C-147."""

    TASK_START = "task_start"
    TASK_END = "task_end"
    SCOPE_CLOSE = "scope_close"
    TURN = "turn"
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The progress of a rule on a schedule. It holds no words: ``rule_id`` is a digest of the rule. Source: C-238.

    All that came due up to ``covered_at`` is done; ``due_at`` is the run under way, with ``actions_done`` actions done
    and ``attempts`` failed ones of the next.
    """

    rule_id: uuid.UUID
    covered_at: datetime
    due_at: datetime | None = None
    actions_done: int = 0
    attempts: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class PendingTrigger:
    """A trigger of a started task or a turn, until its actions are done. Source: C-229, C-235.

    ``principal_…`` is who set it off. Who took it up last did so at ``begun_at`` and raised ``version``; only the
    holder of that version may do it. ``attempts`` counts those who took it up after the one that stored it.
    """

    trigger_id: uuid.UUID
    trajectory_id: TrajectoryId
    scope_id: ScopeId | None
    trigger: Trigger
    principal_kind: PrincipalKind
    principal_id: str
    principal_role: AgentRole | None
    principal_admin: bool
    created_at: datetime
    begun_at: datetime
    attempts: int = 0
    version: int = 1
