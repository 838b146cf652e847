"""Disputed candidates: of two records with an open conflict a window holds one, and marks its text.

Only what the principal may see, and what holds at the instant of the window, counts: nobody learns from a text that a
hidden record exists.

Source: C-286; docs/pcp.md, Conflicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import DISPUTED, ERROR, MARK, OF_TASK, ROW, SOURCE, TWIN, UNFIT, Candidates, entered
from caliber.context.inputs import AssemblyInputs
from caliber.context.plan import AssemblyPlan
from caliber.model.pcp import ConflictResolution
from caliber.schema.relations import CONFLICT
from caliber.schema.traits import NEVER_US

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher

CONFLICTS: Final = CONFLICT.name
Side = tuple[str, int]
"""A record: the name of its relation, and its row."""


def disputes_of(
    inputs: AssemblyInputs, plan: AssemblyPlan, candidates: Candidates, searcher: Searcher
) -> Disputes | None:
    """Return the disputes among candidates, which are marked by now; None if there are none."""
    conflicts = inputs.snapshot[CONFLICTS]
    waiting = np.flatnonzero(conflicts.live_mask & (conflicts.column("resolved_at") == NEVER_US)).tolist()
    if not waiting:
        return None
    places = _places(plan, candidates)
    visible: dict[str, Any] = {}

    def side(kind: str, key: bytes) -> Side | None:
        owners = inputs.snapshot.relations.get(kind)
        number = -1 if owners is None else owners.find(key)
        if owners is None or number < 0:
            return None
        if kind not in visible:
            visible[kind] = searcher.visibility(owners, inputs.readers, inputs.as_of_us, inputs.now_us).visible
        return (kind, number) if visible[kind][number] else None

    others: dict[Side, dict[Side, int]] = {}
    ordinals = conflicts.column("ordinal")[waiting].tolist()
    ends = [conflicts.packed_values(name, waiting) for name in ("a_type", "a_id", "b_type", "b_id")]
    for ordinal, a_type, a_id, b_type, b_id in zip(ordinals, *ends, strict=True):
        one, other = side(a_type, a_id), side(b_type, b_id)
        if one is not None and other is not None and one != other and (one in places or other in places):
            others.setdefault(one, {})[other] = ordinal
            others.setdefault(other, {})[one] = ordinal
    sides = sorted((each for each in places if each in others), key=lambda each: _rank(inputs, each), reverse=True)
    return Disputes(candidates, {each: places[each] for each in sides}, others) if sides else None


class Disputes:
    """The candidates with an open conflict: those that another record contradicts, and those that give way to one.

    The better side of a conflict stays: by ``conflict_resolution`` the newer one, else the surer one, of equals the
    newer one. A side that did not fit the window comes after those that were not tried yet.
    """

    def __init__(
        self, candidates: Candidates, places: dict[Side, list[int]], others: dict[Side, dict[Side, int]]
    ) -> None:
        self._candidates = candidates
        self._places = places  # the best side first
        self._others = others
        self._unfit: set[Side] = set()
        self._mark()

    def _mark(self) -> None:
        candidates, places = self._candidates, self._places
        self._gone: set[Side] = set()
        self._preferred: set[Side] = set()
        for at in places.values():
            candidates[TWIN][at] = 0
            candidates[MARK][at] &= OF_TASK
        for best in sorted(places, key=self._unfit.__contains__):
            if best in self._gone:
                continue
            candidates[MARK][places[best]] |= DISPUTED
            for other, ordinal in self._others[best].items():
                if other in places and other not in self._gone:
                    self._preferred.add(best)
                    self._gone.add(other)
                    candidates[TWIN][places[other]] = -ordinal
                    candidates[MARK][places[other]] |= UNFIT if other in self._unfit else 0

    def give_way(self, ranked: Candidates, codes: NDArray[np.uint8] | None) -> bool:
        """Let the other side of a conflict go before one that did not enter; return whether any does, to fill again.

        Shapes: codes ``uint8[n]``, the decisions about ``ranked``; None if nothing fitted.
        """
        inside: Any = [] if codes is None else entered(codes)
        shown = set(zip(ranked[SOURCE][inside].tolist(), ranked[ROW][inside].tolist(), strict=True))
        keys = self._candidates[SOURCE], self._candidates[ROW]
        late = {
            each
            for each in self._preferred - self._unfit
            if not any((int(keys[0][at]), int(keys[1][at])) in shown for at in self._places[each])
        }
        self._unfit |= late
        if late:
            self._mark()
        return bool(late)


def _places(plan: AssemblyPlan, candidates: Candidates) -> dict[Side, list[int]]:
    """Return the places of the candidates that state something and may enter."""
    threshold = np.float32(plan.config.min_relevance_threshold)
    enters = (candidates[ERROR] == 0) & (candidates.relevance >= threshold) & (candidates[TWIN] == 0)
    source, rows = candidates[SOURCE], candidates[ROW]
    out: dict[Side, list[int]] = {}
    for number, relation in plan.records.items():
        if relation.grounded is None:
            continue
        chosen = np.flatnonzero((source == number) & enters)
        for place, row in zip(chosen.tolist(), rows[chosen].tolist(), strict=True):
            out.setdefault((relation.name, row), []).append(place)
    return out


def _rank(inputs: AssemblyInputs, side: Side) -> tuple[Any, ...]:
    name, number = side
    owners = inputs.snapshot[name]
    grounding, grounded = inputs.config.pcp.grounding, owners.relation.grounded
    assert grounded is not None  # only such records are sides
    made = int(owners.column(grounded.since)[number]), owners.entity_id(number).bytes
    if grounding is not None and grounding.conflict_resolution is ConflictResolution.NEWEST:
        return made
    sure = -1.0 if grounded.confidence is None else float(owners.column(grounded.confidence)[number])
    return sure, *made
