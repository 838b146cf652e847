"""Data types of memory blocks: the block as its callers see it, its kinds, and a line of its history. Source: P-016."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from caliber.model.lazy_dataclass import dataclass


class BlockKind(StrEnum):
    """The use of a block: ``core`` stands in windows, ``log`` only grows, the others are read by their label."""

    CORE = "core"
    WORKING = "working"
    ARCHIVAL = "archival"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A labelled text. ``owner`` is the id of its agent or user; None: it is everybody's.

    ``agents`` see it beside the owner, and ``writers`` among them change it. Units: ``max_chars`` characters.
    """

    label: str
    text: str
    description: str
    kind: BlockKind
    max_chars: int
    read_only: bool
    owner: UUID | None
    agents: tuple[UUID, ...]
    writers: tuple[UUID, ...]
    created_at: datetime
    updated_at: datetime
    version: int
    block_id: UUID = field(repr=False)


@dataclass(frozen=True, slots=True)
class BlockChange:
    """One change of the text of a block; ``version`` is that of the block after it, ``by`` its author."""

    version: int
    at: datetime
    by: str
    before: str
    after: str
