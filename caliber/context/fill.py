"""Which of the ranked candidates enter the window.

Works on lengths alone, so that a replay decides from the recorded columns exactly as the assembly did. Lengths are
bytes; every section pays for its header, one separator and what its own token count may round up by, so that the
sum of the sections' tokens never exceeds the budget (docs/decisions/0016).

Source: C-218, C-223, C-457 to C-463, K-073 to K-079, O-8, design section 5 (Prompt caches).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.context.blocks import TurnBlock, evict_in_blocks
from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    GROUP,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    Candidates,
    clipped_i32,
    positions_as_tie,
)
from caliber.context.plan import SYSTEM, TURN, UNCAPPED, AssemblyPlan
from caliber.kernels import RankColumns, rank_and_fill
from caliber.model.enums import DecisionCode
from caliber.model.errors import BudgetTooSmall

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Truncation:
    """A candidate that enters cut. Units: ``room`` bytes for its text."""

    place: int
    room: int


@dataclass(slots=True)
class Filled:
    """What came of the candidates, in canonical order.

    Shapes: codes ``uint8[n]`` of ``DecisionCode``; left ``int64[n]``, the bytes that were left when each was decided.
    """

    codes: NDArray[np.uint8]
    left: NDArray[np.int64]
    truncations: tuple[Truncation, ...]
    first_turn: int | None
    stable_sections: frozenset[int]


@dataclass(slots=True)
class _Filling:
    """The state of one filling. Units: bytes."""

    ranked: Candidates
    codes: NDArray[np.uint8]
    cost: NDArray[np.int64]
    plan: AssemblyPlan
    total: int
    used: int = 0
    used_in: list[int] = field(default_factory=list)
    turn_usage: int = 0
    allowance: int = 0
    turns_evicted: bool = False
    first_turn: int | None = None
    truncations: list[Truncation] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.total - self.used

    def cap(self, section: int) -> int | None:
        """Return what a section may still take, or None when it has no limit of its own."""
        budget = int(self.plan.section_budget[section])
        return None if budget == UNCAPPED else budget - self.used_in[section]

    def charge(self, section: int, amount: int) -> None:
        self.used += amount
        self.used_in[section] += amount

    def take(self, places: Places, limit: int) -> None:
        """Let the kernel decide about some candidates of sections that are still empty."""
        if not len(places):
            return
        plan = self.plan
        section = self.ranked[SECTION][places].astype(np.int32)
        count = len(places)
        nothing = np.zeros(count, np.int32)
        _, decision = rank_and_fill(
            RankColumns(
                priority=nothing,
                relevance=np.zeros(count, np.float32),
                age_us=np.zeros(count, np.int64),
                tokens=clipped_i32(self.cost[places]),
                tie=positions_as_tie(count),
                group=self.ranked[GROUP][places].astype(np.int32),
                section=section,
            ),
            budget=max(0, limit),
            section_budget=plan.section_budget,
            section_overhead=plan.section_overhead,
            separator_tokens=plan.separator_bytes,
            min_relevance=-np.inf,
        )
        self.codes[places] = decision
        included = decision == DecisionCode.INCLUDED
        counts = np.bincount(section[included], minlength=len(plan.sections)).tolist()
        sums = np.bincount(section[included], self.cost[places][included], len(plan.sections)).tolist()
        for number, many in enumerate(counts):
            if many:
                between = (many - 1) * plan.separator_bytes
                self.charge(number, int(sums[number]) + between + int(plan.section_overhead[number]))


def fill(
    ranked: Candidates, codes: NDArray[np.uint8], sizes: NDArray[np.int64], plan: AssemblyPlan, max_tokens: int
) -> Filled:
    """Decide about every candidate that is still considered.

    Shapes: codes ``uint8[n]`` as ``rank`` gives them; sizes ``int64[n]`` bytes, of use where considered.
    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    considered = np.flatnonzero(codes == CONSIDERED)
    source = ranked[SOURCE][considered]
    is_turn = source == TURN
    estimator = plan.estimator
    budget = min(max_tokens, plan.config.pcp.dosage.max_context_tokens)
    # One section is the last: it has no separator after it, and rounds up at no cost.
    total = estimator.longest(budget) + plan.separator_bytes + plan.slack_bytes
    if not is_turn.all():
        total -= plan.message_bytes
    cost = np.where(ranked[SOURCE] == TURN, sizes + plan.message_bytes, sizes)
    state = _Filling(ranked, codes.copy(), cost, plan, total, used_in=[0] * len(plan.sections))
    places = _system_first(state, considered)
    if plan.stable_first:
        _fill_stable(state, places)
    else:
        state.take(places, state.room)
        turn_costs = cost[considered[is_turn]]
        state.turn_usage = state.used_in[plan.user.index] if len(turn_costs) else 0
        _measure_turns(state, considered[is_turn])
    closed = _close_late_sections(state, considered, budget)
    if plan.config.assembly.overflow_policy == "truncate":
        _truncate_best(state, considered, closed)
    if state.used == 0 and (state.codes[considered] == DecisionCode.EXCLUDED_BUDGET).any():
        raise BudgetTooSmall(max_tokens=max_tokens, needed=_smallest(state, considered))
    return Filled(
        codes=state.codes,
        left=_left_before(state),
        truncations=tuple(state.truncations),
        first_turn=state.first_turn,
        stable_sections=_stable_sections(state, considered),
    )


def _system_first(state: _Filling, places: Places) -> Places:
    """Cut instructions that exceed the whole budget; return what is still to be decided (K-076, C-463)."""
    if not len(places) or state.ranked[SOURCE][places[0]] != SYSTEM:
        return places
    first = int(places[0])
    section = int(state.ranked[SECTION][first])
    cap = state.cap(section)
    limit = state.room if cap is None else min(state.room, cap)
    overhead = int(state.plan.section_overhead[section])
    if int(state.cost[first]) + overhead <= limit:
        return places
    room = limit - overhead
    if state.plan.whole_tokens(room) >= 1:
        state.codes[first] = DecisionCode.INCLUDED_TRUNCATED
        state.truncations.append(Truncation(first, room))
        state.charge(section, limit)
    elif cap is not None and cap <= state.room:
        state.codes[first] = DecisionCode.EXCLUDED_SECTION_BUDGET
    else:
        state.codes[first] = DecisionCode.EXCLUDED_BUDGET
    return places[1:]


# --- turns that leave in blocks ------------------------------------------------------------------


def _fill_stable(state: _Filling, places: Places) -> None:
    """Fill what outranks the turns, then the turns in blocks, then the rest.

    Once turns have left, the section of turns counts as full, however many bytes the last block freed: what the
    other sections get then does not change from turn to turn (docs/decisions/0017).
    """
    plan, ranked = state.plan, state.ranked
    user = plan.user
    section = ranked[SECTION][places]
    priority = plan.rank_priority[section]
    turns = section == user.index
    before = ~turns & (priority > user.priority)
    state.take(places[before], state.room)
    cap = state.cap(user.index)
    state.allowance = state.room if cap is None else min(state.room, cap)
    if turns.any():
        _take_turns(state, places[turns], capped=cap is not None and cap <= state.room)
    state.take(places[~turns & ~before], state.room)


def _take_turns(state: _Filling, places: Places, *, capped: bool) -> None:
    plan = state.plan
    user = plan.user.index
    chronological = places[np.argsort(state.ranked[TURN_NUMBER][places], kind="stable")]
    block: TurnBlock | None = evict_in_blocks(
        state.ranked[TURN_NUMBER][chronological],
        state.ranked[GROUP][chronological],
        state.cost[chronological],
        capacity=state.allowance - int(plan.section_overhead[user]) + plan.separator_bytes,
        separator=plan.separator_bytes,
        block_turns=plan.config.assembly.evict_block_turns,
    )
    refused = DecisionCode.EXCLUDED_SECTION_BUDGET if capped else DecisionCode.EXCLUDED_BUDGET
    newest = int(chronological[-1])
    if block is not None:
        codes = np.where(block.included, int(DecisionCode.INCLUDED), int(refused))
        codes[block.split] = DecisionCode.EXCLUDED_GROUP
        state.codes[chronological] = codes
        state.turns_evicted = not block.included.all()
        state.first_turn = block.first_turn if state.turns_evicted else None
        state.turn_usage = block.cost + int(plan.section_overhead[user]) - plan.separator_bytes
        state.charge(user, state.allowance if state.turns_evicted else state.turn_usage)
        return
    state.turns_evicted = True
    room = state.allowance - int(plan.section_overhead[user]) - plan.message_bytes
    assembly = plan.config.assembly
    if (
        assembly.overflow_policy == "truncate"
        and state.ranked[GROUP][newest] == ALONE
        and plan.whole_tokens(room) >= assembly.truncate_min_tokens
    ):
        state.codes[chronological] = refused
        state.codes[newest] = DecisionCode.INCLUDED_TRUNCATED
        state.truncations.append(Truncation(newest, room))
        state.turn_usage = state.allowance
        state.charge(user, state.allowance)
        return
    # The newest turn does not fit and may not be cut: what fits of the older ones, newest first.
    before = state.used
    state.take(places, min(state.room, state.allowance))
    state.turn_usage = state.used - before


def _measure_turns(state: _Filling, turns: Places) -> None:
    """Note what the turns took and could still take, where they were filled together with everything else."""
    user = state.plan.user
    above = sum(
        state.used_in[section.index]
        for section in state.plan.sections
        if section.source == SYSTEM or section.priority > user.priority
    )
    left = state.total - above - state.used_in[user.index]
    cap = state.cap(user.index)
    state.allowance = state.turn_usage + (left if cap is None else min(left, cap))
    state.turns_evicted = bool((state.codes[turns] != DecisionCode.INCLUDED).any())


# --- the end of the budget -----------------------------------------------------------------------


def _costs(state: _Filling) -> NDArray[np.int64]:
    """Return what each included candidate took where it was taken, its share of the section included."""
    plan = state.plan
    included = np.flatnonzero(state.codes == DecisionCode.INCLUDED)
    out = np.zeros(len(state.codes), np.int64)
    section = state.ranked[SECTION][included]
    out[included] = state.cost[included] + plan.separator_bytes
    opened, first = np.unique(section, return_index=True)
    out[included[first]] += plan.section_overhead[opened] - plan.separator_bytes
    if plan.stable_first and state.used_in[plan.user.index]:
        # Turns are charged as a whole, when the first of them is decided.
        turns = np.flatnonzero(state.ranked[SOURCE] == TURN)
        out[turns] = 0
        out[turns[0]] = state.used_in[plan.user.index]
    for cut in state.truncations:
        if state.ranked[SOURCE][cut.place] == SYSTEM:
            out[cut.place] = state.used_in[int(state.ranked[SECTION][cut.place])]
    return out


def _close_late_sections(state: _Filling, considered: Places, budget: int) -> frozenset[int]:
    """Take back sections that were opened when the window was as good as full; return them (C-218).

    Instructions and the conversation are exempt: they are worth the last tokens.
    """
    threshold = state.plan.config.assembly.fill_ratio * state.plan.estimator.longest(budget)
    if state.used < threshold:
        return frozenset()
    costs = _costs(state)
    used_before = np.cumsum(costs) - costs
    section = state.ranked[SECTION]
    closed = set()
    for plan in state.plan.sections:
        if plan.source in (SYSTEM, TURN):
            continue
        places = considered[section[considered] == plan.index]
        included = places[state.codes[places] == DecisionCode.INCLUDED]
        opened_at = int(included[0]) if len(included) else (int(places[0]) if len(places) else -1)
        if opened_at < 0 or used_before[opened_at] < threshold:
            continue
        closed.add(plan.index)
        state.codes[included] = DecisionCode.EXCLUDED_BUDGET
        state.used -= state.used_in[plan.index]
        state.used_in[plan.index] = 0
    return frozenset(closed)


def _truncate_best(state: _Filling, considered: Places, closed: frozenset[int]) -> None:
    """Cut the best-ranked candidate that did not fit to what is left, if that is enough (C-223)."""
    plan = state.plan
    codes = state.codes[considered]
    refused = (codes == DecisionCode.EXCLUDED_BUDGET) | (codes == DecisionCode.EXCLUDED_SECTION_BUDGET)
    refused &= state.ranked[GROUP][considered] == ALONE
    least = plan.config.assembly.truncate_min_tokens
    if plan.whole_tokens(state.room) < least:
        return
    for place in considered[refused].tolist():
        section = int(state.ranked[SECTION][place])
        source = int(state.ranked[SOURCE][place])
        if not plan.sections[section].compressible or section in closed or source == SYSTEM:
            continue
        if source == TURN and plan.stable_first:
            continue  # an old turn cut at the front would change with every new one
        cap = state.cap(section)
        room = state.room if cap is None else min(state.room, cap)
        room -= plan.separator_bytes if state.used_in[section] else int(plan.section_overhead[section])
        room -= plan.message_bytes if source == TURN else 0
        if plan.whole_tokens(room) >= least:
            state.codes[place] = DecisionCode.INCLUDED_TRUNCATED
            state.truncations.append(Truncation(place, room))
            state.charge(section, room)
            return


def _smallest(state: _Filling, considered: Places) -> int:
    """Return the tokens of the smallest window that could hold anything."""
    plan = state.plan
    least = []
    for place in considered[state.codes[considered] == DecisionCode.EXCLUDED_BUDGET].tolist():
        section = plan.sections[int(state.ranked[SECTION][place])]
        source = int(state.ranked[SOURCE][place])
        tokens = plan.tokens(int(state.cost[place]) - (plan.message_bytes if source == TURN else 0))
        if source == SYSTEM:
            tokens = 1
        elif plan.config.assembly.overflow_policy == "truncate" and section.compressible:
            tokens = min(tokens, plan.config.assembly.truncate_min_tokens)
        # One token more than the parts: each of them may round up.
        least.append(tokens + plan.tokens(section.header_bytes) + plan.config.assembly.message_overhead_tokens + 1)
    return min(least)


# --- what a reader of the window wants to know ----------------------------------------------------


def _left_before(state: _Filling) -> NDArray[np.int64]:
    costs = _costs(state)
    left: NDArray[np.int64] = np.maximum(0, state.total - (np.cumsum(costs) - costs))
    return left


def _stable_sections(state: _Filling, considered: Places) -> frozenset[int]:
    """Return the sections that stay as they are when a turn like the largest here is appended.

    Derived from this filling alone: would the longer section of turns still fit, and would what it then takes from
    the others have been left over anyway?
    """
    plan = state.plan
    user = plan.user
    turns = considered[state.ranked[SOURCE][considered] == TURN]
    included = turns[state.codes[turns] == DecisionCode.INCLUDED]
    largest = int(state.cost[included].max()) if len(included) else plan.message_bytes
    another = largest + (plan.separator_bytes if state.used_in[user.index] else int(plan.section_overhead[user.index]))
    fits = state.turn_usage + another <= state.allowance
    cut = {int(state.ranked[SECTION][item.place]) for item in state.truncations}
    if plan.stable_first and state.turns_evicted:
        others = True
    elif plan.stable_first:
        others = not cut and (state.turn_usage + another if fits else state.allowance) - state.turn_usage <= state.room
    else:
        others = not cut and another <= state.room
    stable = set()
    for section in plan.sections:
        if section.source == SYSTEM or (section.priority > user.priority and (section.index not in cut or others)):
            stable.add(section.index)
        elif section.index == user.index:
            if fits and section.index not in cut:
                stable.add(section.index)
        elif others:
            stable.add(section.index)
    return frozenset(stable)
