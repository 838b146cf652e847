"""Enums of write durability and read validation, and the row type of a stored configuration."""

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
