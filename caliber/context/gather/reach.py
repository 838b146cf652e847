"""Records that a window may recall: conditions, stated once for a database and for columns of memory.

Source: design section 5 (What a window is for).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.model.trust import TrustLabel
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.schema.relation import Relation

Bools = NDArray[np.bool_]
_TASK: Final = "trajectory_id"


def conditions_of(
    relation: Relation, tasks: Sequence[bytes] | None, own: bytes, least: TrustLabel
) -> list[dict[str, Sequence[object]]]:
    """Return conditions of which a record meets exactly one if a window may recall it, and none if not.

    A condition names columns with the values that each may have, as they are stored. ``tasks`` are those in reach, None
    for every task; ``own`` is the window's. What is not the task's own is trusted ``least`` or more.
    """
    if not relation.has(_TASK):  # knowledge belongs to no task
        return [{}]
    whose: dict[str, Sequence[object]] = {}
    if tasks is not None:
        # A record that may belong to no task, and does not, is everybody's.
        whose[_TASK] = [*tasks, None] if relation.column(_TASK).nullable else tasks
    labels = list(TrustLabel)
    trusted = labels[: labels.index(least) + 1]
    if relation.trust is None or trusted == labels:
        return [whose]
    column = relation.trust.column
    mine: dict[str, Sequence[object]] = {
        _TASK: [own],
        column: [label for label in labels if label not in trusted],
    }
    return [{**whose, column: trusted}, mine]


def meeting(owners: RelationSnapshot, conditions: Sequence[Mapping[str, Any]]) -> Bools:
    """Return which rows meet one of some conditions. Shapes: ``bool[owners.length]``"""
    out = np.zeros(owners.length, np.bool_)
    for condition in conditions:
        mask = np.ones(owners.length, np.bool_)
        for column, values in condition.items():
            mask &= having(owners, column, values)
        out |= mask
    return out


_CODES: Final[weakref.WeakKeyDictionary[Generation, dict[str, dict[Any, int]]]] = weakref.WeakKeyDictionary()


def having(owners: RelationSnapshot, column: str, values: Sequence[Any]) -> Bools:
    """Return which rows have one of some ids, as stored, or members of an enum. Shapes: ``bool[owners.length]``"""
    known: dict[Any, int] = owners.layout.enum_codes.get(column) or {}
    if not known:
        known = _CODES.setdefault(owners.generation, {}).setdefault(column, {})
        interned = owners.interned(column)
        for code in range(len(known), len(interned)):
            known[interned[code]] = code
    wanted = np.zeros(len(known) + 1, np.bool_)
    wanted[[code for code in map(known.get, values) if code is not None]] = True
    mask: Bools = wanted[owners.column(column)]
    return mask
