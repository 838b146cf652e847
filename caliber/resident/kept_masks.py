"""Cache of injection rules' filter masks over resident rows, reused from window to window.

The content of a row never changes: an update appends a new row. So the result of a filter for a row stays valid for as
long as the row exists, unless the filter depends on the time or the task; that part is evaluated each time.

Source: design, section 5; docs/search.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass
from caliber.model.process.interpreter import renew_in_child
from caliber.resident.mirror import Generation, RelationSnapshot
from caliber.resident.predicates import Texts, mask
from caliber.schema.predicate import All, Predicate, Variable, all_of, variables_in

Bools = NDArray[np.bool_]

_KEPT: Final = 64
"""Filters remembered of one relation: more than one configuration has for it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The verdicts of a filter on the rows of a boundary: for rows that were live; read-only."""

    live: Bools
    dead: int
    let_through: Bools


_lock = threading.Lock()
renew_in_child(globals(), "_lock")

_KNOWN: Final[weakref.WeakKeyDictionary[Generation, dict[Predicate, _Known]]] = weakref.WeakKeyDictionary()


def let_through(
    predicate: Predicate, owners: RelationSnapshot, variables: Mapping[Variable, Any], texts: Texts, among: Bools
) -> Bools:
    """Return the mask of the rows in ``among`` that match a filter. Shapes: ``bool[owners.length]``."""
    lasting, passing = _parts(predicate)
    if lasting is not None:
        among = among & _lasting(lasting, owners, texts)
    return among if passing is None else mask(passing, owners, variables, texts, among)


def _lasting(predicate: Predicate, owners: RelationSnapshot, texts: Texts) -> Bools:
    """Return a filter's verdict on all live rows, for a filter on nothing but the record."""
    if owners.partial:
        return mask(predicate, owners, {}, texts)
    with _lock:
        cached = _KNOWN.setdefault(owners.generation, {}).get(predicate)
    if cached is not None and cached.live is owners.live_mask and len(cached.let_through) == owners.length:
        return cached.let_through
    if cached is not None and len(cached.let_through) <= owners.length and cached.dead <= owners.dead:
        start = len(cached.let_through)
        fresh = np.ones(owners.length, np.bool_)
        fresh[:start] = False
        found = mask(predicate, owners, {}, texts, fresh)
        np.logical_and(cached.let_through, owners.live_mask[:start], out=found[:start])
    else:
        found = mask(predicate, owners, {}, texts)
    if found is owners.live_mask:
        found = found.copy()
    found.flags.writeable = False
    if cached is None or len(cached.let_through) <= owners.length:
        with _lock:
            kept = _KNOWN.setdefault(owners.generation, {})
            if len(kept) >= _KEPT:
                kept.clear()
            kept[predicate] = _Known(owners.live_mask, owners.dead, found)
    return found


@lru_cache(maxsize=256)
def _parts(predicate: Predicate) -> tuple[Predicate | None, Predicate | None]:
    """Return the part of a condition that is constant per row, and the part that depends on time and task."""
    parts = predicate.conditions if isinstance(predicate, All) else (predicate,)
    moving = [bool(variables_in(part)) for part in parts]
    return (
        all_of(*(part for part, moves in zip(parts, moving, strict=True) if not moves)),
        all_of(*(part for part, moves in zip(parts, moving, strict=True) if moves)),
    )
