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


def valid_notes(
    notes: RelationSnapshot, as_of_us: int, allowed: Allowed | None = None, start: int = 0
) -> NDArray[np.bool_]:
    """Return which notes from row ``start`` on are in use, hold at an instant and may be seen.

    Shapes: ``bool[notes.length - start]``
    """
    rule = (
        Within(notes.column("archived_at")[start:], NEVER_US, NEVER_US),
        Within(notes.column("valid_from")[start:], most=as_of_us),
        Within(notes.column("valid_until")[start:], least=as_of_us + 1),
    )
    if allowed is not None and start:
        allowed = Allowed(allowed.codes[start:], allowed.verdicts)
    return notes.evaluator.in_force(notes.live_mask[start:], notes.column("superseded_by")[start:], rule, allowed)


def valid_artifact_mask(artifacts: RelationSnapshot, now_us: int, start: int = 0) -> NDArray[np.bool_]:
    """Return which artifacts from row ``start`` on are in use at an instant. Shapes: ``bool[length - start]``."""
    rule = _artifact_rule(artifacts, now_us, start)
    ended = artifacts.column("superseded_by")[start:]
    return artifacts.evaluator.in_force(artifacts.live_mask[start:], ended, rule)


def _artifact_rule(artifacts: RelationSnapshot, now_us: int, start: int = 0) -> Rule:
    return (
        Within(artifacts.column("rolled_back_at")[start:], NEVER_US, NEVER_US),
        Within(artifacts.column("retired_at")[start:], NEVER_US, NEVER_US),
        Within(artifacts.column("expires_at")[start:], least=now_us + 1),
    )
