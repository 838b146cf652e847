"""Which records count: one rule for searches and windows.

``as_of`` is valid time: it moves the instant at which notes must hold, and brings back nothing that was archived,
superseded, retired or rolled back since (design, section 7). Source: K-080, C-452, C-453.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations.trajectory import NEVER_US


def valid_notes(notes: RelationSnapshot, as_of_us: int) -> NDArray[np.bool_]:
    """Return which notes are in use and hold at an instant. Shapes: ``bool[notes.length]``."""
    valid: NDArray[np.bool_] = notes.live_mask & (notes.column("superseded_by") == 0)
    valid &= notes.column("archived_at") == NEVER_US
    valid &= notes.column("valid_from") <= as_of_us
    valid &= notes.column("valid_until") > as_of_us
    return valid


def valid_artifacts(artifacts: RelationSnapshot, rows: NDArray[np.int64], now_us: int) -> NDArray[np.int64]:
    """Leave out of live rows what was superseded, rolled back or retired, or has expired."""
    if not len(rows):
        return rows
    valid = artifacts.column("superseded_by")[rows] == 0
    valid &= artifacts.column("rolled_back_at")[rows] == NEVER_US
    valid &= artifacts.column("retired_at")[rows] == NEVER_US
    valid &= artifacts.column("expires_at")[rows] > now_us
    return rows if valid.all() else rows[valid]
