"""Budget filling strictly by section priority: a section takes what it needs before the next one gets any.

It works on lengths alone; see ``fill`` for the arithmetic of headers, separators and rounding.

Source: C-218, C-223, C-457 to C-463, K-073 to K-079, O-8, design section 5 (Prompt caches).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    EXCLUDED_BUDGET,
    EXCLUDED_SECTION_BUDGET,
    GROUP,
    INCLUDED,
    INCLUDED_COMPRESSED,
    INCLUDED_TRUNCATED,
    LEAD,
    READING,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    Candidates,
    beyond_texts,
    clipped_i32,
    positions_as_tie,
)
from caliber.context.conversation import SPOKEN
from caliber.context.filling.filled import Filled, Reserve, Truncation
from caliber.context.plan import SYSTEM, UNCAPPED, AssemblyPlan
from caliber.kernels import RankColumns, rank_and_fill
from caliber.model.errors import BudgetTooSmall

Places = NDArray[np.int64]


@dataclass(slots=True)
class _Filling:
    """The state of one filling, over the considered candidates only.

    Shapes: all arrays ``[m]`` in canonical order, but ``budgets`` by section index. Units: lengths.
    """

    plan: AssemblyPlan
    section: NDArray[np.int32]
    group: NDArray[np.int64]
    turn_number: NDArray[np.int64]
    is_turn: NDArray[np.bool_]
    cost: NDArray[np.int64]
    lead: NDArray[np.int64]
    codes: NDArray[np.uint8]
    budgets: NDArray[np.int32]
    total: int
    used: int = 0
    used_in: list[int] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.total - self.used

    def cap(self, section: int) -> int | None:
        """Return the tokens that remain for a section, or None when it has no limit of its own."""
        budget = int(self.budgets[section])
        return None if budget == UNCAPPED else budget - self.used_in[section]

    def limit(self, section: int) -> int:
        """Return the part of the rest that a section may still take."""
        cap = self.cap(section)
        return self.room if cap is None else min(self.room, cap)

    def charge(self, section: int, amount: int) -> None:
        self.used += amount
        self.used_in[section] += amount

    def take(self, places: Places, limit: int) -> None:
        """Let the kernel decide about some candidates of sections that are still empty."""
        count = len(places)
        if not count:
            return
        plan = self.plan
        section, cost = self.section[places], self.cost[places]
        _, decision = rank_and_fill(
            RankColumns(
                priority=np.zeros(count, np.int32),
                relevance=np.zeros(count, np.float32),
                age_us=np.zeros(count, np.int64),
                tokens=clipped_i32(cost),
                tie=positions_as_tie(count),
                group=self.group[places].astype(np.int32),
                section=section,
            ),
            budget=max(0, limit),
            section_budget=self.budgets,
            section_overhead=plan.section_overhead,
            separator_tokens=plan.separator_length,
            min_relevance=-np.inf,
        )
        self.codes[places] = decision
        included = decision == INCLUDED
        sums = np.bincount(section, (cost + plan.separator_length) * included, len(plan.sections)).tolist()
        for number in set(section[included].tolist()):
            self.charge(number, int(sums[number]) - plan.separator_length + plan.overheads[number])


def fill_by_priority(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    reserve: Reserve,
) -> Filled:
    """Decide about every candidate that is still considered, strictly by the priority of sections (profile `sources`).

    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    considered = np.flatnonzero(codes == CONSIDERED)
    source, section, group, turn_number, unanswered = (
        ranked[name].take(considered) for name in (SOURCE, SECTION, GROUP, TURN_NUMBER, READING)
    )
    is_turn, lead = source == SPOKEN, ranked[LEAD].take(considered)
    full = plan.longest(plan.budget(max_tokens))
    # One section is the last: it has no separator after it, and rounds up at no cost.
    total = full + plan.separator_length + plan.slack - reserve.total
    if not is_turn.all():
        total -= plan.message_length
    budgets = plan.section_budget(max_tokens)
    if reserve.sections:
        budgets = budgets.copy()
        for number, held in reserve.sections:
            budgets[number] = max(0, int(budgets[number]) - held)
    state = _Filling(
        plan=plan,
        section=section.astype(np.int32),
        group=group,
        turn_number=turn_number,
        is_turn=is_turn,
        # A recalled turn includes the header of its passage: strictly by priority each is a passage by itself.
        cost=sizes[considered] + beyond_texts(plan, is_turn, unanswered) + lead * ~is_turn,
        lead=lead,
        codes=np.zeros(len(considered), np.uint8),
        budgets=budgets,
        total=total,
        used_in=[0] * len(plan.sections),
    )
    first = _system_first(state, bool(len(considered)) and int(source[0]) == SYSTEM)
    threshold = plan.config.assembly.fill_ratio * full
    if plan.compresses:
        closed = _take_compressing(state, first, threshold)
    else:
        state.take(np.arange(first, len(considered)), state.room)
        closed = _close_late_sections(state, threshold)
    if plan.config.assembly.overflow_policy != "exclude":
        _truncate_best(state, closed)
    if state.used == 0 and (state.codes == EXCLUDED_BUDGET).any():
        raise BudgetTooSmall(max_tokens=max_tokens, needed=_smallest(state) + plan.tokens(reserve.total))
    out = codes.copy()
    out[considered] = state.codes
    return Filled(
        codes=out,
        truncations=tuple(
            Truncation(int(considered[item.place]), item.room, item.compress) for item in state.truncations
        ),
        first_turn=None,
        stable_sections=_stable_sections(state),
        closed_sections=closed,
        room=_RoomBefore(state, considered),
    )


def _system_first(state: _Filling, present: bool) -> int:
    """Cut instructions that exceed the whole budget; return how many candidates are decided (K-076, C-463)."""
    if not present:
        return 0
    section = int(state.section[0])
    limit = state.limit(section)
    overhead = state.plan.overheads[section]
    if int(state.cost[0]) + overhead <= limit:
        return 0
    room = limit - overhead
    if state.plan.whole_tokens(room) >= 1:
        state.codes[0] = INCLUDED_TRUNCATED
        state.truncations.append(Truncation(0, room))
        state.charge(section, limit)
    elif limit < state.room:
        state.codes[0] = EXCLUDED_SECTION_BUDGET
    else:
        state.codes[0] = EXCLUDED_BUDGET
    return 1


def _take_compressing(state: _Filling, first: int, threshold: float) -> frozenset[int]:
    """Fill section by section; records that do not fit whole enter compressed. Return the sections that came late."""
    plan = state.plan
    late = set()
    for section in plan.by_rank:
        places = np.flatnonzero(state.section == section.index)
        places = places[places >= first]
        if state.used >= threshold and section.source not in (SYSTEM, SPOKEN):
            late.add(section.index)
            state.codes[places] = EXCLUDED_BUDGET
            continue
        state.take(places, state.room)
        if plan.may_compress(section):
            for place in places[state.codes[places] != INCLUDED].tolist():
                _compress(state, place, section.index)
    return frozenset(late)


def _compress(state: _Filling, place: int, section: int) -> None:
    """Let a candidate enter compressed, if that fits."""
    plan = state.plan
    if state.group[place] != ALONE or state.lead[place]:
        return
    target = plan.compressed(int(state.cost[place]))
    price = target + (plan.separator_length if state.used_in[section] else plan.overheads[section])
    if price <= state.limit(section) and plan.whole_tokens(target) >= plan.config.assembly.truncate_min_tokens:
        state.codes[place] = INCLUDED_COMPRESSED
        state.truncations.append(Truncation(place, target, compress=True))
        state.charge(section, price)


# --- the end of the budget -----------------------------------------------------------------------


def _taken(state: _Filling) -> NDArray[np.int64]:
    """Return the tokens taken by each decided candidate, with its share of the section."""
    plan = state.plan
    included = np.flatnonzero((state.codes == INCLUDED) | (state.codes == INCLUDED_COMPRESSED))
    out = np.zeros(len(state.codes), np.int64)
    out[included] = state.cost[included] + plan.separator_length
    for item in state.truncations:
        if item.compress:
            out[item.place] = item.room + plan.separator_length
    opened, first = np.unique(state.section[included], return_index=True)
    out[included[first]] += plan.section_overhead[opened] - plan.separator_length
    if len(out) and state.codes[0] == INCLUDED_TRUNCATED and not state.is_turn[0]:
        out[0] = state.used_in[int(state.section[0])]
    return out


class _RoomBefore:
    """The size of each candidate and the room left before its decision; computed on first use."""

    __slots__ = ("_considered", "_rooms", "_state")

    def __init__(self, state: _Filling, considered: Places) -> None:
        self._state = state
        self._considered = considered
        self._rooms: dict[int, tuple[int, int]] | None = None

    def __call__(self, place: int) -> tuple[int, int]:
        if self._rooms is None:
            self._rooms = dict(zip(self._considered.tolist(), self._all(), strict=True))
        return self._rooms.get(place, (0, 0))

    def _all(self) -> list[tuple[int, int]]:
        state = self._state
        used = _taken(state)
        remaining = np.maximum(0, state.total - (np.cumsum(used) - used)).tolist()
        opened: set[int] = set()
        asked = []
        codes = state.codes.tolist()
        for place, (section, cost) in enumerate(zip(state.section.tolist(), state.cost.tolist(), strict=True)):
            asked.append(cost + (state.plan.separator_length if section in opened else state.plan.overheads[section]))
            if codes[place] in (INCLUDED, INCLUDED_COMPRESSED):
                opened.add(section)
        return list(zip(asked, remaining, strict=True))


def _close_late_sections(state: _Filling, threshold: float) -> frozenset[int]:
    """Take back the sections whose turn came when the window was as good as full; return them (C-218).

    Instructions and the conversation are exempt: they are worth the last tokens.
    """
    if state.used < threshold:
        return frozenset()
    used = 0
    closed = set()
    for section in state.plan.by_rank:
        if used >= threshold and section.source not in (SYSTEM, SPOKEN):
            closed.add(section.index)
            if state.used_in[section.index]:
                in_section = state.section == section.index
                state.codes[in_section & (state.codes == INCLUDED)] = EXCLUDED_BUDGET
                state.used -= state.used_in[section.index]
                state.used_in[section.index] = 0
        used += state.used_in[section.index]
    return frozenset(closed)


def _truncate_best(state: _Filling, closed: frozenset[int]) -> None:
    """Cut the best-ranked candidate that did not fit to the remaining room, if that is enough (C-223)."""
    plan = state.plan
    least = plan.config.assembly.truncate_min_tokens
    if plan.whole_tokens(state.room) < least:
        return
    codes = state.codes
    refused = (codes == EXCLUDED_BUDGET) | (codes == EXCLUDED_SECTION_BUDGET)
    refused &= (state.group == ALONE) & (state.is_turn | (state.lead == 0))  # a recalled turn is never cut
    if not refused.any():
        return
    tried: set[int] = set()
    for place in np.flatnonzero(refused).tolist():
        section = int(state.section[place])
        if section in tried or section in closed:
            continue
        # All of a section's candidates have the same room: if it is too little for one, it is for all.
        tried.add(section)
        if not plan.sections[section].compressible or plan.sections[section].source == SYSTEM:
            continue
        room = state.limit(section) - (plan.separator_length if state.used_in[section] else plan.overheads[section])
        room -= plan.message_length if state.is_turn[place] else 0
        if plan.whole_tokens(room) >= least and room >= state.lead[place]:
            state.codes[place] = INCLUDED_TRUNCATED
            state.truncations.append(Truncation(place, room))
            state.charge(section, room)
            return


def _smallest(state: _Filling) -> int:
    """Return the tokens of the smallest window that could hold anything."""
    plan = state.plan
    assembly = plan.config.assembly
    least = []
    for place in np.flatnonzero(state.codes == EXCLUDED_BUDGET).tolist():
        section = plan.sections[int(state.section[place])]
        length = int(state.cost[place])
        if state.group[place] != ALONE:  # never cut: all of it, or nothing
            together = state.group == state.group[place]
            length = int((state.cost[together] + plan.separator_length).sum())
        tokens = plan.tokens(length - (plan.message_length if state.is_turn[place] else 0))
        if section.source == SYSTEM:
            tokens = 1
        elif state.group[place] == ALONE and assembly.overflow_policy != "exclude" and section.compressible:
            tokens = min(tokens, max(assembly.truncate_min_tokens, plan.tokens(int(state.lead[place]))))
        # One token more than the parts: each of them may round up.
        least.append(tokens + plan.tokens(section.header_length) + assembly.message_overhead_tokens + 1)
    return min(least)


# --- the effect of the next turn ------------------------------------------------------------------


def _stable_sections(state: _Filling) -> frozenset[int]:
    """Return the sections that stay unchanged when a turn like the largest here is appended.

    It follows from this filling alone: the growth of the section of turns must fit into unused room.
    """
    plan = state.plan
    user = plan.user
    costs = state.cost[state.is_turn & (state.codes == INCLUDED)]
    largest = int(costs.max()) if len(costs) else plan.message_length
    another = largest + (plan.separator_length if state.used_in[user.index] else plan.overheads[user.index])
    cut = {int(state.section[item.place]) for item in state.truncations}
    fits = not (state.codes[state.is_turn] != INCLUDED).any() and another <= state.limit(user.index)
    others = not cut and another <= state.room
    stable = set()
    for section in plan.sections:
        if section.source == SYSTEM:
            unchanged = True
        elif section.index == user.index:
            unchanged = fits and section.index not in cut
        else:
            unchanged = others or (section.priority > user.priority and section.index not in cut)
        if unchanged:
            stable.add(section.index)
    return frozenset(stable)
