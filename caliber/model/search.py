"""Enums of reads: the consistency that a caller asks for, and whether a result is complete or degraded."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

LIMIT_MAX: Final = 999
"""Most hits that a caller may ask for. Source: K-204."""
DEFAULT_LIMIT: Final = 10
"""Hits of a search that names no limit."""


class ResultStatus(StrEnum):
    """The outcome of a window or a search; a degraded one has a reason."""

    OK = "ok"
    EMPTY = "empty"
    DEGRADED = "degraded"


class ReadConsistency(StrEnum):
    LOCAL = "local"
    LATEST = "latest"
