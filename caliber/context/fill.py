"""Which of the ranked candidates enter the window.

Works on lengths alone, so that a replay decides from the recorded columns exactly as the assembly did. Every section
pays for its header, one separator and what its own token count may round up by, so that where lengths add up the sum of
the sections' tokens never exceeds the budget (docs/decisions/0016). Where they need not, the finished sections are
counted, and what they exceed the budget by is held back from it when it is filled again (docs/decisions/0036).

Source: C-218, C-223, C-457 to C-463, K-073 to K-079, O-8, design section 5 (Prompt caches).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.context.blocks import TurnBlock, evict_in_blocks
from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    EXCLUDED_BUDGET,
    EXCLUDED_GROUP,
    EXCLUDED_SECTION_BUDGET,
    GROUP,
    INCLUDED,
    INCLUDED_TRUNCATED,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    Candidates,
    clipped_i32,
    positions_as_tie,
)
from caliber.context.plan import SYSTEM, TURN, UNCAPPED, AssemblyPlan
from caliber.kernels import RankColumns, rank_and_fill
from caliber.model.errors import BudgetTooSmall

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Truncation:
    """A candidate that enters cut. Units: ``room`` is the length there is for its text."""

    place: int
    room: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Lengths that a filling may not use: of the whole budget, and of sections with a limit, by index."""

    total: int = 0
    sections: tuple[tuple[int, int], ...] = ()

    def more(self, total: int, sections: dict[int, int]) -> Reserve:
        """Return a reserve that is larger by as much."""
        held = dict(self.sections)
        for section, length in sections.items():
            held[section] = held.get(section, 0) + length
        return Reserve(self.total + total, tuple(sorted(held.items())))


NO_RESERVE: Final = Reserve()


@dataclass(frozen=True, slots=True)
class Filled:
    """What came of the candidates, in canonical order.

    Shapes: codes ``uint8[n]`` of ``DecisionCode``. Units: ``room`` gives, for the candidate at a place, the length it
    asked for (its header or separator included) and the length that was left then.
    """

    codes: NDArray[np.uint8]
    truncations: tuple[Truncation, ...]
    first_turn: int | None
    stable_sections: frozenset[int]
    closed_sections: frozenset[int]
    room: Callable[[int], tuple[int, int]]


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
    codes: NDArray[np.uint8]
    budgets: NDArray[np.int32]
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
        budget = int(self.budgets[section])
        return None if budget == UNCAPPED else budget - self.used_in[section]

    def limit(self, section: int) -> int:
        """Return what a section may still take of what is left."""
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


def fill(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    reserve: Reserve = NO_RESERVE,
) -> Filled:
    """Decide about every candidate that is still considered.

    Shapes: codes ``uint8[n]`` as ``rank`` gives them; sizes ``int64[n]`` lengths, of use where considered.
    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    considered = np.flatnonzero(codes == CONSIDERED)
    source, section, group, turn_number = (
        ranked[name].take(considered) for name in (SOURCE, SECTION, GROUP, TURN_NUMBER)
    )
    is_turn = source == TURN
    full = plan.longest(plan.budget(max_tokens))
    # One section is the last: it has no separator after it, and rounds up at no cost.
    total = full + plan.separator_length + plan.slack - reserve.total
    if not is_turn.all():
        total -= plan.message_length
    budgets = plan.section_budget
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
        cost=sizes[considered] + plan.message_length * is_turn,
        codes=np.zeros(len(considered), np.uint8),
        budgets=budgets,
        total=total,
        used_in=[0] * len(plan.sections),
    )
    first = _system_first(state, bool(len(considered)) and int(source[0]) == SYSTEM)
    if plan.stable_first:
        _fill_stable(state, first)
    else:
        state.take(np.arange(first, len(considered)), state.room)
        _measure_turns(state)
    closed = _close_late_sections(state, plan.config.assembly.fill_ratio * full)
    if plan.config.assembly.overflow_policy == "truncate":
        _truncate_best(state, closed)
    if state.used == 0 and (state.codes == EXCLUDED_BUDGET).any():
        raise BudgetTooSmall(max_tokens=max_tokens, needed=_smallest(state) + plan.tokens(reserve.total))
    out = codes.copy()
    out[considered] = state.codes
    return Filled(
        codes=out,
        truncations=tuple(Truncation(int(considered[item.place]), item.room) for item in state.truncations),
        first_turn=state.first_turn,
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


# --- turns that leave in blocks ------------------------------------------------------------------


def _fill_stable(state: _Filling, first: int) -> None:
    """Fill what outranks the turns, then the turns in blocks, then the rest.

    Once turns have left, the section of turns counts as full, however much the last block freed: what the
    other sections get then does not change from turn to turn (docs/decisions/0017).
    """
    plan = state.plan
    user = plan.user
    above = plan.rank_priority[state.section] > user.priority
    above[:first] = False
    turns = np.flatnonzero(state.is_turn)
    above[turns] = False
    rest = ~above
    rest[turns] = False
    rest[:first] = False
    cap = state.cap(user.index)
    most = int(state.cost[above].sum()) + int(np.count_nonzero(above)) * max(plan.overheads)
    if cap is not None and state.room - most >= cap:
        # Whatever enters above them, the turns get all that their section may hold: one call decides about the rest.
        rest |= above
    else:
        state.take(np.flatnonzero(above), state.room)
    state.allowance = state.limit(user.index)
    if len(turns):
        _take_turns(state, turns)
    state.take(np.flatnonzero(rest), state.room)


def _take_turns(state: _Filling, places: Places) -> None:
    plan = state.plan
    user = plan.user.index
    overhead, separator = plan.overheads[user], plan.separator_length
    capped = state.allowance < state.room or state.cap(user) == state.room
    refused = EXCLUDED_SECTION_BUDGET if capped else EXCLUDED_BUDGET
    chronological = places[np.argsort(state.turn_number[places], kind="stable")]
    block: TurnBlock | None = evict_in_blocks(
        state.turn_number[chronological],
        state.group[chronological],
        state.cost[chronological],
        capacity=state.allowance - overhead + separator,
        separator=separator,
        block_turns=plan.config.assembly.evict_block_turns,
    )
    if block is not None:
        codes = np.where(block.included, INCLUDED, refused)
        codes[block.split] = EXCLUDED_GROUP
        state.codes[chronological] = codes
        state.turns_evicted = not block.included.all()
        state.first_turn = block.first_turn if state.turns_evicted else None
        state.turn_usage = block.cost + overhead - separator
        state.charge(user, state.allowance if state.turns_evicted else state.turn_usage)
        return
    state.turns_evicted = True
    newest = int(chronological[-1])
    room = state.allowance - overhead - plan.message_length
    assembly = plan.config.assembly
    if (
        assembly.overflow_policy == "truncate"
        and state.group[newest] == ALONE
        and plan.whole_tokens(room) >= assembly.truncate_min_tokens
    ):
        state.codes[chronological] = refused
        state.codes[newest] = INCLUDED_TRUNCATED
        state.truncations.append(Truncation(newest, room))
        state.turn_usage = state.allowance
        state.charge(user, state.allowance)
        return
    # The newest turn does not fit and may not be cut: what fits of the older ones, newest first.
    state.take(places, state.allowance)
    state.turn_usage = state.used_in[user]


def _measure_turns(state: _Filling) -> None:
    """Note what the turns took and could still take, where they were filled together with everything else."""
    plan = state.plan
    user = plan.user
    above = sum(
        state.used_in[section.index]
        for section in plan.sections
        if section.source == SYSTEM or section.priority > user.priority
    )
    state.turn_usage = state.used_in[user.index]
    left = state.total - above - state.turn_usage
    cap = state.cap(user.index)
    state.allowance = state.turn_usage + (left if cap is None else min(left, cap))
    state.turns_evicted = bool((state.codes[state.is_turn] != INCLUDED).any())


# --- the end of the budget -----------------------------------------------------------------------


def _taken(state: _Filling) -> NDArray[np.int64]:
    """Return what each candidate took where it was decided, its share of the section included."""
    plan = state.plan
    included = np.flatnonzero(state.codes == INCLUDED)
    out = np.zeros(len(state.codes), np.int64)
    out[included] = state.cost[included] + plan.separator_length
    opened, first = np.unique(state.section[included], return_index=True)
    out[included[first]] += plan.section_overhead[opened] - plan.separator_length
    if plan.stable_first and state.used_in[plan.user.index]:
        # Turns are charged as a whole, when the first of them is decided.
        out[state.is_turn] = 0
        out[np.argmax(state.is_turn)] = state.used_in[plan.user.index]
    if len(out) and state.codes[0] == INCLUDED_TRUNCATED and not state.is_turn[0]:
        out[0] = state.used_in[int(state.section[0])]
    return out


class _RoomBefore:
    """What a candidate asked for and what was left when it was decided; worked out when first asked for."""

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
        taken = _taken(state)
        left = np.maximum(0, state.total - (np.cumsum(taken) - taken)).tolist()
        opened: set[int] = set()
        asked = []
        codes = state.codes.tolist()
        for place, (section, cost) in enumerate(zip(state.section.tolist(), state.cost.tolist(), strict=True)):
            asked.append(cost + (state.plan.separator_length if section in opened else state.plan.overheads[section]))
            if codes[place] == INCLUDED:
                opened.add(section)
        return list(zip(asked, left, strict=True))


def _close_late_sections(state: _Filling, threshold: float) -> frozenset[int]:
    """Take back the sections whose turn came when the window was as good as full; return them (C-218).

    Instructions and the conversation are exempt: they are worth the last tokens.
    """
    if state.used < threshold:
        return frozenset()
    used = 0
    closed = set()
    for section in state.plan.by_rank:
        if used >= threshold and section.source not in (SYSTEM, TURN):
            closed.add(section.index)
            if state.used_in[section.index]:
                mine = state.section == section.index
                state.codes[mine & (state.codes == INCLUDED)] = EXCLUDED_BUDGET
                state.used -= state.used_in[section.index]
                state.used_in[section.index] = 0
        used += state.used_in[section.index]
    return frozenset(closed)


def _truncate_best(state: _Filling, closed: frozenset[int]) -> None:
    """Cut the best-ranked candidate that did not fit to what is left, if that is enough (C-223)."""
    plan = state.plan
    least = plan.config.assembly.truncate_min_tokens
    if plan.whole_tokens(state.room) < least:
        return
    codes = state.codes
    refused = (codes == EXCLUDED_BUDGET) | (codes == EXCLUDED_SECTION_BUDGET)
    refused &= state.group == ALONE
    if plan.stable_first:
        refused &= ~state.is_turn  # an old turn cut at the front would change with every new one
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
        if plan.whole_tokens(room) >= least:
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
        tokens = plan.tokens(int(state.cost[place]) - (plan.message_length if state.is_turn[place] else 0))
        if section.source == SYSTEM:
            tokens = 1
        elif assembly.overflow_policy == "truncate" and section.compressible:
            tokens = min(tokens, assembly.truncate_min_tokens)
        # One token more than the parts: each of them may round up.
        least.append(tokens + plan.tokens(section.header_length) + assembly.message_overhead_tokens + 1)
    return min(least)


# --- what the next turn would change --------------------------------------------------------------


def _stable_sections(state: _Filling) -> frozenset[int]:
    """Return the sections that stay as they are when a turn like the largest here is appended.

    Derived from this filling alone: would the longer section of turns still fit, and would what it then takes from
    the others have been left over anyway?
    """
    plan = state.plan
    user = plan.user
    costs = state.cost[state.is_turn & (state.codes == INCLUDED)]
    largest = int(costs.max()) if len(costs) else plan.message_length
    another = largest + (plan.separator_length if state.used_in[user.index] else plan.overheads[user.index])
    fits = state.turn_usage + another <= state.allowance
    cut = {int(state.section[item.place]) for item in state.truncations}
    if plan.stable_first and state.turns_evicted:
        others = True
    elif plan.stable_first:
        others = not cut and (another if fits else state.allowance - state.turn_usage) <= state.room
    else:
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
