"""Enum of the triggers of policies (task start, turn, scope close, …)."""

from __future__ import annotations

from enum import StrEnum


class Trigger(StrEnum):
    """The event that a policy reacts to; ``schedule`` carries a cron text besides. Source: C-147."""

    TASK_START = "task_start"
    TASK_END = "task_end"
    SCOPE_CLOSE = "scope_close"
    TURN = "turn"
    SCHEDULE = "schedule"
