"""Enums of reads: the consistency that a caller asks for, and whether a result is complete or degraded."""

from __future__ import annotations

from enum import StrEnum


class ResultStatus(StrEnum):
    """The outcome of a window or a search; a degraded one has a reason."""

    OK = "ok"
    EMPTY = "empty"
    DEGRADED = "degraded"


class ReadConsistency(StrEnum):
    LOCAL = "local"
    LATEST = "latest"
