"""What is asked of a search, and what it answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import NoteMask
from caliber.resident.memory import ResidentSnapshot
from caliber.search.filters import Found
from caliber.search.query import Query


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for, and by whom. ``vector`` None: there is none, for the reason ``without_vector``."""

    snapshot: ResidentSnapshot
    text: str
    vector: NDArray[np.float32] | None
    without_vector: str | None
    space_id: uuid.UUID | None
    kinds: Sequence[str]
    limit: int
    conditions: Mapping[str, Any]
    notes: NoteMask
    as_of_us: int
    now_us: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The hits, how the query was understood, and what each leg counted for."""

    found: list[Found]
    query: Query | None
    weights: dict[str, float]
    degraded: str | None
    names: tuple[str, ...] = ()
    traversed: tuple[uuid.UUID, ...] = ()
    """Edges that brought hits."""
