"""Which records count: one rule for searches and windows.

``as_of`` is valid time: it moves the instant at which notes must hold, and brings back nothing that was archived,
superseded, retired or rolled back since (design, section 7). Source: K-080, C-452, C-453.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed, Rule, Within
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relations.trajectory import NEVER_US


def valid_notes(notes: RelationSnapshot, as_of_us: int, allowed: Allowed | None = None) -> NDArray[np.bool_]:
    """Return which notes are in use, hold at an instant and may be seen. Shapes: ``bool[notes.length]``."""
    rule = (
        Within(notes.column("archived_at"), NEVER_US, NEVER_US),
        Within(notes.column("valid_from"), most=as_of_us),
        Within(notes.column("valid_until"), least=as_of_us + 1),
    )
    return notes.evaluator.in_force(notes.live_mask, notes.column("superseded_by"), rule, allowed)


def valid_artifacts(artifacts: RelationSnapshot, rows: NDArray[np.int64], now_us: int) -> NDArray[np.int64]:
    """Leave out of live rows what was superseded, rolled back or retired, or has expired."""
    if not len(rows):
        return rows
    return artifacts.evaluator.in_force_rows(rows, artifacts.column("superseded_by"), _artifact_rule(artifacts, now_us))


def valid_artifact_mask(artifacts: RelationSnapshot, now_us: int) -> NDArray[np.bool_]:
    """Return which artifacts are in use at an instant. Shapes: ``bool[artifacts.length]``."""
    rule = _artifact_rule(artifacts, now_us)
    return artifacts.evaluator.in_force(artifacts.live_mask, artifacts.column("superseded_by"), rule)


def _artifact_rule(artifacts: RelationSnapshot, now_us: int) -> Rule:
    return (
        Within(artifacts.column("rolled_back_at"), NEVER_US, NEVER_US),
        Within(artifacts.column("retired_at"), NEVER_US, NEVER_US),
        Within(artifacts.column("expires_at"), least=now_us + 1),
    )
