"""Columnar table of a window's candidates (NumPy), and their ranking: order, and exclusions before the budget.

Source: C-456, C-458, C-466, K-079, O-9, O-15.
"""

from __future__ import annotations

import uuid
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.plan import OWN, RECORDS, AssemblyPlan
from caliber.kernels import RankColumns, rank_and_fill
from caliber.model.context import DecisionCode
from caliber.model.lazy_dataclass import dataclass

SOURCE, SECTION, ORDINAL, VERSION, AGE_US, STORED_TOKENS, ROW, TURN_NUMBER, GROUP, ERROR, LENGTH = range(11)
MARK, VALUE, TWIN, PASSAGE_ID, READING, DAY, LEAD = range(11, 18)
FIELDS: Final = 18
DECIDED: Final = (MARK, VALUE, TWIN, PASSAGE_ID, READING, DAY, LEAD)
"""Values that are decided before the budget is filled, and recorded; see ``Candidates``."""

MUST, RECENT, PAST = 1, 2, 4
"""Marks of turns: always included; of the newest exchanges; before a pause or in a closed scope."""
DISPUTED, UNFIT, OUTDATED = 8, 16, 32
"""Marks of records with an open conflict: another one contradicts it; it did not fit, so another one was tried."""
OF_TASK = 64
"""The mark of records of the task, and of those above it, that a search found: they enter found or not."""
VALUES_IN_ONE: Final = 1_000_000
"""Values are stored in millionths, exactly as the kernel ranks them."""
# Plain numbers: NumPy takes five times as long to compare with a member of an enum.
INCLUDED: Final = int(DecisionCode.INCLUDED)
INCLUDED_TRUNCATED: Final = int(DecisionCode.INCLUDED_TRUNCATED)
INCLUDED_COMPRESSED: Final = int(DecisionCode.INCLUDED_COMPRESSED)
ENTERED: Final = (INCLUDED, INCLUDED_TRUNCATED, INCLUDED_COMPRESSED)
EXCLUDED_SECTION_BUDGET: Final = int(DecisionCode.EXCLUDED_SECTION_BUDGET)
EXCLUDED_BUDGET: Final = int(DecisionCode.EXCLUDED_BUDGET)
EXCLUDED_GROUP: Final = int(DecisionCode.EXCLUDED_GROUP)
EXCLUDED_EVICTED: Final = int(DecisionCode.EXCLUDED_EVICTED)
EXCLUDED_SHOWN: Final = int(DecisionCode.EXCLUDED_SHOWN)
CONSIDERED: Final = 0
"""No decision yet: ranking lets the candidate through to the filling of the budget."""
ALONE: Final = -1
TAIL_SHARE: Final = 0.32
"""Share of the best relevance below which nothing is recalled: LoCoMo's windows lose no evidence, and a fifth of their
tokens (bench/windows.py)."""
_ENOUGH: Final = {"vector": 0.8, "date": 0.0}
"""Share of the best of a part of relevance from which on that part alone is enough."""
_NO_TIES: Final = np.zeros((0, 2), np.uint64)
PARTS_IN_ONE: Final = 10_000
"""Parts of a relevance are kept in ten-thousandths: as exactly as they are shown."""
_UNLIMITED: Final = 2**62


@dataclass(frozen=True, slots=True)
class Candidates:
    """The eligible candidates, as columns.

    Shapes: numbers ``int64[FIELDS, n]``, relevance ``f32[n]``, tie and ids ``u64[n, 2]``, parts ``int32[p, n]``. Units:
    ``parts`` are what each part of a search, by name, adds to a relevance, in ten-thousandths; ``ids`` are UUIDs as two
    halves, zero for a text without one; ``ROW`` is the number in the mirror, -1 for a text without one; ``GROUP`` is -1
    for a candidate alone; ``LENGTH`` is that of its text (docs/decisions/0016), -1 if not yet known. ``MARK`` are the
    marks of a turn or a conflict; ``VALUE`` is what the order of a shared budget goes by, in millionths: relevance,
    with length counted against it; ``TWIN`` the ordinal of the better candidate that says the same, 0 for none, or the
    negative one of the open conflict with a better candidate; ``PASSAGE_ID`` the lines of one passage have in common,
    one task on one day; ``READING`` their order in time, and of a turn how many of its calls lack a result; ``DAY``
    days since 1970, 0 for none; ``LEAD`` the length by which the first line of a passage is longer than the others, and
    of a turn, once known, the shortest cut that shows some of its content. ``TURN_NUMBER`` of a summary is that of the
    first turn that it covers; of another record one more than that of the turn with all of its words, 0 for none.
    """

    numbers: NDArray[np.int64]
    relevance: NDArray[np.float32]
    tie: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    part_names: tuple[str, ...]
    parts: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.relevance.shape[0])

    def __getitem__(self, name: int) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self.numbers[name]
        return row

    def id_of(self, place: int) -> uuid.UUID | None:
        """Return the id of one candidate, or None for a text without one."""
        source = int(self.numbers[SOURCE, place])
        if source not in RECORDS and source < OWN:
            return None
        high, low = self.ids[place].tolist()
        return uuid.UUID(int=(high << 64) | low)

    def taken(self, order: NDArray[np.int64]) -> Candidates:
        """Return the candidates in canonical order, which makes ties explicit."""
        numbers = np.empty_like(self.numbers)
        for column, ranked in zip(self.numbers, numbers, strict=True):  # a third of the time of take(axis=1)
            column.take(order, out=ranked, mode="clip")
        return Candidates(
            numbers,
            self.relevance.take(order),
            _NO_TIES,
            self.ids.take(order, axis=0),
            self.part_names,
            self.parts.take(order, axis=1),
        )

    def breakdown(self, place: int) -> dict[str, float]:
        """Return the parts of a search's relevance that are not zero everywhere."""
        parts = zip(self.part_names, self.parts[:, place].tolist(), strict=True)
        return {name: value / PARTS_IN_ONE for name, value in parts if value}


def beyond_texts(plan: AssemblyPlan, is_turn: NDArray[np.bool_], unanswered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lengths of messages beyond their texts, with the results that stand for those that calls lack."""
    return is_turn * (plan.message_length + plan.length_of(plan.no_result_tokens) * unanswered)


def entered(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the places of the candidates in the window."""
    return np.flatnonzero((codes == INCLUDED) | (codes == INCLUDED_TRUNCATED) | (codes == INCLUDED_COMPRESSED))


def positions_as_tie(count: int) -> NDArray[np.uint64]:
    """Return ties that keep the order rows already have."""
    tie = np.zeros((count, 2), np.uint64)
    tie[:, 1] = np.arange(count, dtype=np.uint64)
    return tie


def rank(candidates: Candidates, plan: AssemblyPlan) -> tuple[Candidates, NDArray[np.uint8]]:
    """Return the candidates in canonical order, with the decisions made before any budget: relevance, errors, dosage.

    Shapes: -> codes ``uint8[n]``, ``CONSIDERED`` or a ``DecisionCode``
    """
    count = len(candidates)
    sections = len(plan.sections)
    nothing = np.zeros(count, np.int32)
    numbers = candidates.numbers
    section = numbers[SECTION]
    threshold = plan.config.min_relevance_threshold
    order, decision = rank_and_fill(
        RankColumns(
            priority=plan.rank_priority[section],
            relevance=numbers[VALUE].astype(np.float32),
            age_us=numbers[AGE_US],
            tokens=nothing,
            tie=candidates.tie,
            group=np.full(count, ALONE, np.int32),
            section=section.astype(np.int32),
        ),
        budget=_UNLIMITED,
        section_budget=np.full(sections, -1, np.int32),
        section_overhead=np.zeros(sections, np.int32),
        separator_tokens=0,
        min_relevance=-np.inf,
    )
    ranked = candidates.taken(order)
    codes = decision[order]
    codes[codes == INCLUDED] = CONSIDERED
    codes[ranked.relevance < np.float32(threshold)] = DecisionCode.EXCLUDED_RELEVANCE
    codes[ranked.relevance < _tail(ranked, plan)] = DecisionCode.EXCLUDED_RELEVANCE
    twin = ranked.numbers[TWIN]
    codes[twin > 0] = DecisionCode.EXCLUDED_DUPLICATE
    codes[twin < 0] = DecisionCode.EXCLUDED_CONFLICT
    codes[ranked.numbers[ERROR] != 0] = DecisionCode.EXCLUDED_ERROR
    limit_kinds(ranked, codes, plan)
    return ranked, codes


def _tail(ranked: Candidates, plan: AssemblyPlan) -> NDArray[np.float32]:
    """Return the relevance below which each candidate is noise: a share of the best, of those that one search found.

    What is nearest by vector alone, or of the days of the query, is none, however many words others share with it.
    """
    found = ranked.parts.any(axis=0) & ~plan.by_rule[ranked.numbers[SECTION]]
    # An earlier question that only repeats this one is no measure of what answers it.
    best = ranked.relevance[found & (ranked.numbers[TWIN] == 0)].max(initial=np.float32(0))
    for name, part in zip(ranked.part_names, ranked.parts, strict=True):
        if name in _ENOUGH:
            found &= (part == 0) | (part < _ENOUGH[name] * part.max(initial=0))
    return np.where(found & ((ranked.numbers[MARK] & OF_TASK) == 0), np.float32(TAIL_SHARE) * best, np.float32(0))


def limit_kinds(ranked: Candidates, codes: NDArray[np.uint8], plan: AssemblyPlan) -> None:
    """Exclude the last candidates of each kind beyond the number of records that ``pcp.dosage`` allows."""
    source = ranked.numbers[SOURCE]
    for sources, limit in plan.most:
        places = np.flatnonzero(np.logical_or.reduce([source == one for one in sources]) & (codes == CONSIDERED))
        if len(places) > limit:
            codes[places[limit:]] = DecisionCode.EXCLUDED_DOSAGE
