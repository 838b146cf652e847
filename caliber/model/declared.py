"""Enums of declarations: the category of a memory (episodic, semantic, …), the trigger of a policy (turn, …)."""

from __future__ import annotations

from enum import StrEnum


class MemoryCategory(StrEnum):
    EPHEMERAL = "ephemeral"
    WORKING = "working"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    META = "meta"


class Trigger(StrEnum):
    """The event that a policy reacts to; ``schedule`` carries a cron text besides. Source: C-147."""

    TASK_START = "task_start"
    TASK_END = "task_end"
    SCOPE_CLOSE = "scope_close"
    TURN = "turn"
    SCHEDULE = "schedule"
