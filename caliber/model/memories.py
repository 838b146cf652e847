"""Enum of the categories of declared memories (episodic, semantic, …)."""

from __future__ import annotations

from enum import StrEnum


class MemoryCategory(StrEnum):
    EPHEMERAL = "ephemeral"
    WORKING = "working"
    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    META = "meta"
