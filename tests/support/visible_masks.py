"""Rows that a principal may search, found anew: what searches keep from call to call must equal it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caliber.resident.mirror import RelationSnapshot
from caliber.search.filtering.filters import Seen, alive, allowed_by


def masks(
    owners: RelationSnapshot, conditions: Mapping[str, Any], readers: Seen, as_of_us: int, now_us: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """Return which rows in force a principal may see, and which of them meet the filters; None without a column."""
    visible = alive(owners, as_of_us, now_us, readers.over(owners))
    wanted = allowed_by(visible, owners, conditions)
    return None if wanted is None else (visible, wanted)
