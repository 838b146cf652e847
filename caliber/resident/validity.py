"""Mask of rows that are active, valid at an instant and visible to a principal, from resident columns.

``as_of`` is valid time: it moves the instant at which a record must be valid where its relation declares validity, and
does not restore a record that was archived, superseded, retired or rolled back since (design, section 7). Source:
K-080, C-452, C-453.

Source: K-080, C-452, C-453.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from caliber.kernels.evaluator import Allowed, Within
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.relation import Relation, Residence


def visible_rows(
    snapshot: RelationSnapshot, at_us: int, allowed: Allowed | None = None, start: int = 0
) -> NDArray[np.bool_]:
    """Return the mask of rows from row ``start`` on that are active, valid at an instant and visible.

    Shapes: ``bool[snapshot.length - start]``
    """
    flags, instants = _columns_of(snapshot.relation)
    live = snapshot.live_mask[start:]
    times = snapshot.relation.times
    ranges = [Within(snapshot.column(name)[start:], unset, unset) for name, unset in instants]
    if times.since is not None:
        ranges.append(Within(snapshot.column(times.since)[start:], most=at_us))
    if times.until is not None:
        ranges.append(Within(snapshot.column(times.until)[start:], least=at_us + 1))
    if allowed is not None and start:
        allowed = Allowed(allowed.codes[start:], allowed.verdicts)
    if len(flags) == 1 and len(ranges) == 3:
        one, two, three = ranges
        return snapshot.evaluator.valid_rows(live, snapshot.column(flags[0])[start:], (one, two, three), allowed)
    found = live.copy()
    for name in flags:
        found &= snapshot.column(name)[start:] == 0
    for bounds in ranges:
        found &= (bounds.column >= bounds.least) & (bounds.column <= bounds.most)
    if allowed is not None:
        found &= allowed.mask()
    return found


def active_rows(snapshot: RelationSnapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those of some rows that are active, valid or not. Shapes: ``int64[n]``"""
    flags, instants = _columns_of(snapshot.relation)
    found = np.ones(len(rows), np.bool_)
    for name in flags:
        found &= snapshot.column(name)[rows] == 0
    for name, unset in instants:
        found &= snapshot.column(name)[rows] == unset
    return rows[found]


@functools.lru_cache(maxsize=512)
def _columns_of(relation: Relation) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Return the columns that are empty in an active record: flags, and instants with their null."""
    flags = [name for name in relation.active if relation.column(name).residence is Residence.FLAG]
    instants = [(name, int(relation.column(name).resident_null or 0)) for name in relation.active if name not in flags]
    return tuple(flags), tuple(instants)
