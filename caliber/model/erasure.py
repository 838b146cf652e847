"""Data types of erasure (``forget``, ``purge``): the erasure row, and the report. Source: design section 10."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from caliber.model.lazy_dataclass import dataclass


class ErasureKind(StrEnum):
    """The target of an erasure: a subject, a task, or a whole store."""

    SUBJECT = "subject"
    TRAJECTORY = "trajectory"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure: its progress, counts, and the ids of records that people should read; no erased data."""

    erasure_id: uuid.UUID
    kind: ErasureKind
    counts: dict[str, int]
    begun_at: datetime
    finished_at: datetime | None = None
    unread: tuple[uuid.UUID, ...] | None = None
    version: int = 1


NOT_OURS: Final = ("shared", "log")
"""Kinds of places that findings are reported of, and not held against an erasure."""


@dataclass(frozen=True, slots=True)
class Searched:
    """One place that was searched byte by byte. ``kind`` is ``column``, ``file``, ``memory``, ``shared`` or ``log``.

    A shared place holds other tenants' data too, to whom a match may belong; a log belongs to the database server.
    """

    name: str
    kind: str
    searched_bytes: int
    findings: int


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """The outcome of an erasure: what was erased, proven, and left unproven.

    ``erased`` and ``redacted`` count records by relation, ``windows_closed`` those that cannot be replayed any more.
    ``searched`` are the places that were read for what was to go; ``inside_words`` counts names as parts of longer
    words, which are left alone. ``remaining`` says what is still to be done, ``out_of_reach`` what nobody here can
    erase or read.
    """

    kind: ErasureKind
    dry_run: bool
    erased: Mapping[str, int] = field(default_factory=dict)
    redacted: Mapping[str, int] = field(default_factory=dict)
    windows_closed: int = 0
    erasure_id: uuid.UUID | None = None
    searched: tuple[Searched, ...] = ()
    inside_words: int = 0
    remaining: tuple[str, ...] = ()
    out_of_reach: tuple[str, ...] = ()

    @property
    def findings(self) -> int:
        """The traces of the subject that were found afterwards, in storage that is this store's alone."""
        return sum(place.findings for place in self.searched if place.kind not in NOT_OURS)

    @property
    def proven(self) -> bool:
        """True if everything within reach was erased, read, and found empty."""
        return not self.dry_run and bool(self.searched) and not self.findings and not self.remaining

    @property
    def records(self) -> int:
        """The number of records erased or redacted."""
        return sum(self.erased.values()) + sum(self.redacted.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON takes it."""
        return {
            "kind": self.kind.value,
            "dry_run": self.dry_run,
            "erasure_id": None if self.erasure_id is None else str(self.erasure_id),
            "erased": dict(self.erased),
            "redacted": dict(self.redacted),
            "windows_closed": self.windows_closed,
            "proven": self.proven,
            "findings": self.findings,
            "searched": [dataclasses.asdict(place) for place in self.searched],
            "inside_words": self.inside_words,
            "remaining": list(self.remaining),
            "out_of_reach": list(self.out_of_reach),
        }
