"""Rows that a principal may search, found anew: what searches keep from call to call must equal it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.resident.mirror import RelationSnapshot
from caliber.resident.predicates import held_texts, mask
from caliber.schema.predicate import Predicate
from caliber.schema.validity import asked_us
from caliber.search.filtering.filters import Seen, alive


def masks(
    owners: RelationSnapshot, condition: Predicate | None, readers: Seen, as_of_us: int, now_us: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows in force a principal may see, and which of them meet a condition."""
    visible = alive(owners, asked_us(owners.relation, as_of_us, now_us), readers.over(owners))
    return visible, visible if condition is None else mask(condition, owners, {}, held_texts, visible)
