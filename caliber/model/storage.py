"""Enums of durability, validation and consistency, and the row type of a stored configuration."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from caliber.model.lazy_dataclass import dataclass


class Durability(StrEnum):
    COMMIT = "commit"
    GROUP = "group"


class ValidationMode(StrEnum):
    ON_MUTATION = "on_mutation"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A configuration that was accepted, kept under its hash; secrets are references in it."""

    config_hash: bytes
    kind: str
    body: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class OperationStats:
    """Rate and latencies of one public call, or of one kind of job, over a while. Units: µs.

    ``recorded`` operations were drawn from those that ran; ``per_second`` counts the others too.
    """

    operation: str
    kind: str
    recorded: int
    per_second: float
    p50_us: int
    p95_us: int
    max_us: int
    errors: int


class ResultStatus(StrEnum):
    """The outcome of a window or a search; a degraded one has a reason."""

    OK = "ok"
    EMPTY = "empty"
    DEGRADED = "degraded"


class ReadConsistency(StrEnum):
    LOCAL = "local"
    LATEST = "latest"
