"""Filling a budget that the sections share.

First what enters whatever else there is: instructions, texts of the caller, the last user message with the tool calls
that wait for an answer. Then the newest exchanges, the conversation up to its share, summaries of what left it. Then
the floor of each section that follows the query, and the rest by value, each section up to its cap; a cap gives way
when nothing else fits. How much of the conversation enters depends on turns alone, not on the query, so that its
beginning, and with it the prefix that providers cache, stays from turn to turn.

Source: design section 5 (What a window is for), O-8, O-16, docs/windows.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.context.blocks import Run, block_start
from caliber.context.columns import (
    ALONE,
    CONSIDERED,
    EXCLUDED_BUDGET,
    EXCLUDED_EVICTED,
    EXCLUDED_GROUP,
    EXCLUDED_SECTION_BUDGET,
    EXCLUDED_SHOWN,
    GROUP,
    INCLUDED,
    INCLUDED_TRUNCATED,
    LEAD,
    MARK,
    MUST,
    ORDINAL,
    PASSAGE_ID,
    PAST,
    RECENT,
    SECTION,
    SOURCE,
    TURN_NUMBER,
    Candidates,
)
from caliber.context.filled import Filled, Reserve, Truncation
from caliber.context.plan import (
    EXTRA,
    PASSAGE,
    PERSONA,
    SUMMARY,
    SYSTEM,
    TURN,
    TURN_SUMMARY,
    UNCAPPED,
    AssemblyPlan,
    SectionPlan,
)
from caliber.model.errors import BudgetTooSmall

_AIMED = 0.8
"""Part of the spare share that is aimed at: what does not fit exactly leaves the rest."""


@dataclass(slots=True)
class _State:
    """One filling, over the considered candidates in canonical order. Units: lengths."""

    plan: AssemblyPlan
    full: int
    total: int
    section: list[int]
    source: list[int]
    cost: list[int]
    lead: list[int]
    passage: list[int]
    codes: list[int]
    hard: list[int]
    least: int = 0
    """The shortest candidate: where less is left, nothing fits."""
    messages: int = 0
    """What is kept free for messages that are no turns."""
    used: int = 0
    used_in: list[int] = field(default_factory=list)
    passages: set[int] = field(default_factory=set)
    truncations: list[Truncation] = field(default_factory=list)
    together: dict[int, int] = field(default_factory=dict)
    """What a call and its answers take, by the place that says why they did not enter."""

    @property
    def room(self) -> int:
        return self.total - self.used

    def price(self, place: int) -> int:
        """Return what a candidate would add to the window as it is."""
        plan, section = self.plan, self.section[place]
        cost = self.cost[place]
        if self.source[place] == PASSAGE:
            if self.passage[place] in self.passages:
                return cost + plan.line_length
            cost += self.lead[place]
        return cost + (plan.separator_length if self.used_in[section] else plan.overheads[section])

    def fits(self, place: int, limit: int | None = None, more: int = 0) -> bool:
        """Return whether a candidate fits what is left, its rule's limit, and, if given, a length for its section.

        ``more`` is what else has to fit with it.
        """
        price, section = self.price(place) + more, self.section[place]
        after = self.used_in[section] + price
        if price > self.room or (limit is not None and after > limit):
            return False
        return self.hard[section] == UNCAPPED or after <= self.hard[section]

    def include(self, place: int) -> None:
        """Let a candidate enter."""
        price = self.price(place)
        self.codes[place] = INCLUDED
        self.charge(self.section[place], price)
        if self.source[place] == PASSAGE:
            self.passages.add(self.passage[place])

    def cut(self, place: int, room: int, price: int) -> None:
        """Let a candidate enter cut to a length, which takes ``price`` in all."""
        self.codes[place] = INCLUDED_TRUNCATED
        self.truncations.append(Truncation(place, room))
        self.charge(self.section[place], price)

    def drop(self, place: int, code: int) -> None:
        """Take a candidate out again, whole or cut; what the window takes is to be counted anew."""
        self.codes[place] = code
        self.truncations = [item for item in self.truncations if item.place != place]

    def charge(self, section: int, amount: int) -> None:
        self.used += amount
        self.used_in[section] += amount

    def recount(self) -> None:
        """Work out again what the window takes, after something has left it."""
        cuts = {item.place: item.room for item in self.truncations}
        entered = [place for place, code in enumerate(self.codes) if code in (INCLUDED, INCLUDED_TRUNCATED)]
        self.used, self.used_in, self.passages = 0, [0] * len(self.used_in), set()
        for place in entered:
            whole = self.cost[place]
            extra = self.plan.message_length if self.source[place] == TURN else 0
            self.cost[place] = cuts[place] + extra if place in cuts else whole
            self.charge(self.section[place], self.price(place))
            self.cost[place] = whole
            if self.source[place] == PASSAGE:
                self.passages.add(self.passage[place])

    def share(self, share: float) -> int:
        """Return a share of the budget as a length."""
        return int(share * self.full)

    def take(self, places: Iterable[int], limit: int | None = None) -> None:
        """Let those enter that fit, in order."""
        least = self.least
        codes = self.codes
        for place in places:
            if self.room < least:
                return
            if codes[place] == CONSIDERED and self.fits(place, limit):
                self.include(place)


@dataclass(frozen=True, slots=True)
class _Turns:
    """The turns of the conversation among the candidates, in chronological order. Shapes: ``int64[n]``."""

    places: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: NDArray[np.int64]
    marks: NDArray[np.int64]
    cost: NDArray[np.int64]


def fill_shared(
    ranked: Candidates,
    codes: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    plan: AssemblyPlan,
    max_tokens: int,
    reserve: Reserve,
) -> Filled:
    """Decide about every candidate that is still considered.

    Raises: BudgetTooSmall when there is something to include and nothing of it fits.
    """
    considered = np.flatnonzero(codes == CONSIDERED)
    source, section = ranked[SOURCE].take(considered), ranked[SECTION].take(considered)
    is_turn = source == TURN
    full = plan.longest(plan.budget(max_tokens))
    # One section is the last: it has no separator after it, and rounds up at no cost.
    total = full + plan.separator_length + plan.slack - reserve.total
    before = section < plan.user.index
    messages = plan.message_length * (bool((before & ~is_turn).any()) + bool((~before & ~is_turn).any()))
    total -= messages
    hard = plan.section_budget(max_tokens).tolist()
    for number, held in reserve.sections:
        hard[number] = max(0, hard[number] - held)
    cost = sizes[considered] + plan.message_length * is_turn
    state = _State(
        plan=plan,
        full=full,
        total=total,
        section=section.tolist(),
        source=source.tolist(),
        cost=cost.tolist(),
        lead=ranked[LEAD].take(considered).tolist(),
        passage=ranked[PASSAGE_ID].take(considered).tolist(),
        codes=[CONSIDERED] * len(considered),
        hard=hard,
        least=int(cost.min()) if len(cost) else 0,
        messages=messages,
        used_in=[0] * len(plan.sections),
    )
    spoken = np.flatnonzero(is_turn)
    spoken = spoken[np.argsort(ranked[TURN_NUMBER].take(considered[spoken]), kind="stable")]
    numbers, groups, marks = (ranked[name].take(considered[spoken]) for name in (TURN_NUMBER, GROUP, MARK))
    turns = _Turns(spoken, numbers, groups, marks, cost[spoken])
    conversation = _Conversation(state, turns, max_tokens)
    _fill_fixed(state, conversation)
    conversation.begin()
    covered = ranked[TURN_NUMBER].take(considered)
    _fill_history(state, conversation, covered)
    ordinals = ranked[ORDINAL].take(considered)
    _mark_shown(state, conversation, ordinals)
    waiting = [place for place in range(len(considered)) if state.codes[place] == CONSIDERED]
    # What stands before the conversation must not change with the query; rules share strictly by priority.
    ruled = [section.rule is not None or section.index > plan.user.index for section in plan.sections]
    following = [place for place in waiting if ruled[state.section[place]]]
    spare = conversation.spare()
    state.total -= spare
    _fill_following(state, following)
    _cut_best(state, following)
    state.total += spare
    if spare:
        _use_spare(state, following)
        spare = min(spare, max(0, state.room))
    if conversation.evicted and not conversation.full:
        conversation.extend(ordinals, covered)
    if not conversation.full:
        state.take(waiting)
    _close(state, conversation)
    if state.used == 0 and _lacking(state):
        needed = max(_smallest(state) + plan.tokens(reserve.total), max_tokens + 1)
        raise BudgetTooSmall(max_tokens=max_tokens, needed=needed)
    out = codes.copy()
    out[considered] = state.codes
    left = max(0, state.room - spare)

    def room(place: int) -> tuple[int, int]:
        at = int(np.searchsorted(considered, place))
        known = at < len(considered) and int(considered[at]) == place
        return state.price(at) if known else 0, left

    return Filled(
        codes=out,
        truncations=tuple(Truncation(int(considered[item.place]), item.room) for item in state.truncations),
        first_turn=conversation.start if conversation.evicted else None,
        stable_sections=conversation.stable_sections(),
        closed_sections=frozenset(),
        room=room,
        spare=spare,
    )


# --- what enters whatever else there is ----------------------------------------------------------


def _fill_fixed(state: _State, conversation: _Conversation) -> None:
    """Let instructions, persona, texts of the caller and what the conversation must show enter."""
    plan = state.plan
    kept = min(conversation.must_length(), state.total // 2)
    for place, source in enumerate(state.source):
        if source == SYSTEM:
            overhead = plan.overheads[state.section[place]]
            room = state.room - kept - overhead
            if state.cost[place] <= room:
                state.include(place)
            elif plan.whole_tokens(room) >= 1:
                state.cut(place, room, room + overhead)
    conversation.enter_must()
    state.take(place for place, source in enumerate(state.source) if source in (PERSONA, EXTRA))


class _Conversation:
    """The turns of a window, and where they begin."""

    def __init__(self, state: _State, turns: _Turns, max_tokens: int) -> None:
        self._state = state
        self._turns = turns
        plan = state.plan
        assembly = plan.config.assembly
        self._small = plan.budget(max_tokens) < assembly.recent_from_tokens
        self._block_turns = assembly.evict_block_turns
        self._floor, self._cap = state.share(plan.user.floor), state.share(plan.user.cap)
        self._limit = self._cap
        """What its two sections may take together, the floors of the others kept free."""
        self._others = state.share(sum(item.floor for item in (*_following(plan), *_summed(plan))))
        self._most = int(assembly.evict_share * self._cap)
        must = (turns.marks & MUST) != 0
        self._rest = np.flatnonzero(~must)
        separator = plan.separator_length
        self._run = Run.of(turns.numbers[self._rest], turns.groups[self._rest], turns.cost[self._rest] + separator)
        self.start: int | None = None
        """The number of the first turn shown besides those that must be; None: no other is."""
        self.evicted = False
        self.full = False
        """Whether turns of the conversation at hand left: it fills its share."""

    # --- the last user message, and calls without an answer --------------------------------------

    def _musts(self) -> list[list[int]]:
        """Return the places of the turns that must enter, what belongs together at once.

        The last user message comes first, then calls with the answers they have, newest first.
        """
        turns = self._turns
        must = np.flatnonzero((turns.marks & MUST) != 0)
        groups = turns.groups[must]
        out = [[int(turns.places[at])] for at in must[groups == ALONE]]
        for group in np.unique(groups[groups != ALONE])[::-1].tolist():
            out.append(turns.places[must[groups == group]].tolist())  # noqa: PERF401
        return out

    def must_length(self) -> int:
        """Return what the turns that must enter take."""
        state = self._state
        musts = [place for together in self._musts() for place in together]
        separator = state.plan.separator_length
        opening = state.plan.overheads[state.plan.current.index] if musts else 0
        return opening + sum(state.cost[place] + separator for place in musts)

    def enter_must(self) -> None:
        """Let the last user message enter, cut if it is longer than all there is, and the calls that fit whole."""
        state, plan = self._state, self._state.plan
        grouped = set(self._turns.places[self._turns.groups != ALONE].tolist())
        for together in self._musts():
            first, *others = together
            if state.fits(first, more=sum(state.cost[place] + plan.separator_length for place in others)):
                for place in together:
                    state.include(place)
            elif first in grouped and self._enter_cut(first, others):
                continue
            elif first in grouped:
                # As the kernel does: the best-ranked of a group, its newest, carries the reason.
                *older, newest = together
                state.codes[newest] = EXCLUDED_BUDGET
                state.together[newest] = sum(state.cost[place] + plan.separator_length for place in together)
                for place in older:
                    state.codes[place] = EXCLUDED_GROUP
            else:
                overhead = state.price(first) - state.cost[first]
                room = state.room - overhead - plan.message_length
                if plan.whole_tokens(room) >= 1:
                    state.cut(first, room, room + overhead + plan.message_length)

    def _enter_cut(self, call: int, results: list[int]) -> bool:
        """Let a call enter with its results, the longest of them cut; return whether what is left of it is enough."""
        state, plan = self._state, self._state.plan
        if not results:
            return False
        longest = max(results, key=lambda place: (state.cost[place], -place))
        whole = [call, *(place for place in results if place != longest)]
        separator = plan.separator_length
        others = (
            state.price(call) - state.cost[call] + sum(state.cost[place] + separator for place in whole) - separator
        )
        room = state.room - others - separator - plan.message_length
        if plan.whole_tokens(room) < plan.config.assembly.truncate_min_tokens:
            return False
        for place in whole:
            state.include(place)
        state.cut(longest, room, room + separator + plan.message_length)
        return True

    # --- the others ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Choose where the conversation begins, and let the turns from there on enter."""
        state, run, turns = self._state, self._run, self._turns
        if not len(run.starts):
            return
        marks = turns.marks[self._rest]
        room = min(state.room, self._left_by_rule()) - self._opening()
        shown = sum(state.used_in[index] for index in {state.plan.user.index, state.plan.current.index})
        recent = None
        if not self._small and ((marks & RECENT) != 0).any():
            recent = run.earliest(room, int(run.begins[(marks & RECENT) != 0].min()))
        self._limit = min(self._cap, room - self._others + shown)
        allowed = self._limit - shown
        present = run.begins[(marks & PAST) == 0]
        earliest = run.earliest(allowed, int(present.min())) if len(present) else None
        if not len(present) or (earliest is not None and earliest <= int(present.min())):
            past = run.earliest(min(self._floor - shown, allowed))
            earliest = past if earliest is None or (past is not None and past < earliest) else earliest
        if recent is not None and (earliest is None or recent <= earliest):
            self.start = recent
        elif earliest is not None:
            self.start = block_start(run, earliest, recent, block_turns=self._block_turns, most=self._most)
        self._show()
        present_from = None if not len(present) else int(present.min())
        self.full = present_from is not None and (self.start is None or self.start > present_from)

    def extend(self, ordinals: NDArray[np.int64], covered: NDArray[np.int64]) -> None:
        """Let older turns fill what nothing else does; what was recalled or summed up of them leaves."""
        state, run, before = self._state, self._run, self.start
        room = min(state.room, self._left_by_rule()) - self._opening()
        capacity = (0 if before is None else run.cost_from(before)) + room
        earliest = run.earliest(capacity)
        if earliest is None:
            return
        latest = int(run.starts[-1]) if before is None else before
        start = block_start(run, earliest, latest, block_turns=self._block_turns, most=self._most)
        if before is not None and start >= before:
            return
        self.start = start
        self._show()
        for place in self.repeated(ordinals):
            state.drop(place, EXCLUDED_SHOWN)
        for place, source in enumerate(state.source):
            summed = source in (SUMMARY, TURN_SUMMARY) and state.section[place] < state.plan.user.index
            if summed and self.shows_from(int(covered[place])):
                state.drop(place, EXCLUDED_SHOWN)
        state.recount()

    def spare(self) -> int:
        """Return what is kept free for the turns to come, once the conversation fills its share.

        What follows the query then holds what the conversation's cap leaves it, so that it does not change with each
        turn, and older turns that left with a block do not have to make room again.
        """
        state, plan = self._state, self._state.plan
        if not self.full:
            return 0
        room = state.room - state.share(1 - plan.user.cap)
        return max(0, min(room, state.share(_AIMED * plan.config.assembly.spare_share)))

    def _left_by_rule(self) -> int:
        """Return what the rule of the conversation leaves: its max_tokens holds for both sections together."""
        state, plan = self._state, self._state.plan
        hard = state.hard[plan.user.index]
        if hard == UNCAPPED:
            return state.room
        return hard - sum(state.used_in[index] for index in {plan.user.index, plan.current.index})

    def _opening(self) -> int:
        """Return what opening the sections of the conversation costs beyond separators."""
        plan = self._state.plan
        sections = {plan.user.index, plan.current.index}
        unopened = [index for index in sections if not self._state.used_in[index]]
        return sum(plan.overheads[index] - plan.separator_length for index in unopened)

    def _show(self) -> None:
        """Let the turns from the start on enter; say of the others that they left."""
        state, turns = self._state, self._turns
        self.evicted = False
        numbers, begins = self._run.numbers.tolist(), self._run.begins.tolist()
        for at, number, begin in zip(self._rest.tolist(), numbers, begins, strict=True):
            place = int(turns.places[at])
            if self.start is not None and begin >= self.start:
                if state.codes[place] != INCLUDED:
                    state.include(place)
                continue
            split = self.start is not None and number >= self.start
            state.codes[place] = EXCLUDED_GROUP if split else EXCLUDED_EVICTED
            self.evicted = True

    def shows_from(self, number: int) -> bool:
        """Return whether every turn from a number on is shown."""
        return self.start is not None and self.start <= number

    def repeated(self, ordinals: NDArray[np.int64]) -> list[int]:
        """Return the places of recalled turns that the conversation shows."""
        state = self._state
        shown = {
            int(ordinals[place])
            for place in self._turns.places.tolist()
            if state.codes[place] in (INCLUDED, INCLUDED_TRUNCATED)
        }
        return [
            place for place, source in enumerate(state.source) if source == PASSAGE and int(ordinals[place]) in shown
        ]

    def stable_sections(self) -> frozenset[int]:
        """Return the sections that stay as they are when a turn like the largest here is appended.

        Before the conversation all do while no block leaves; what follows the query never counts on.
        """
        state, plan, turns = self._state, self._state.plan, self._turns
        stable = {section.index for section in plan.sections if section.source in (SYSTEM, PERSONA, EXTRA)}
        shown = [state.cost[place] for place in turns.places.tolist() if state.codes[place] == INCLUDED]
        another = max(shown, default=plan.message_length) + plan.separator_length
        used = sum(state.used_in[index] for index in {plan.user.index, plan.current.index})
        if used + another <= self._limit:
            stable |= {section.index for section in plan.sections if section.index <= plan.user.index}
        return frozenset(stable)


def _following(plan: AssemblyPlan) -> list[SectionPlan]:
    """Return the sections that stand between the older turns and the last user message."""
    return [section for section in plan.sections if plan.user.index < section.index < plan.current.index]


def _summed(plan: AssemblyPlan) -> list[SectionPlan]:
    """Return the sections of summaries before the conversation."""
    return [section for section in plan.sections if section.source == SUMMARY and section.index < plan.user.index]


# --- what is not the conversation ----------------------------------------------------------------


def _fill_history(state: _State, conversation: _Conversation, covered: NDArray[np.int64]) -> None:
    """Let summaries enter of what the conversation does not show, newest first, up to the cap of their section."""
    plan = state.plan
    floors = state.share(sum(item.floor for item in _following(plan)))
    for section in _summed(plan):
        limit = min(state.share(section.cap), state.used_in[section.index] + max(0, state.room - floors))
        for place, own in enumerate(state.section):
            if own != section.index or state.codes[place] != CONSIDERED:
                continue
            if conversation.shows_from(int(covered[place])):
                state.codes[place] = EXCLUDED_SHOWN
            elif section.rule is None and state.fits(place, limit):
                state.include(place)


def _mark_shown(state: _State, conversation: _Conversation, ordinals: NDArray[np.int64]) -> None:
    for place in conversation.repeated(ordinals):
        state.codes[place] = EXCLUDED_SHOWN


def _fill_following(state: _State, places: list[int]) -> None:
    """Fill the floor of each section, then all up to their caps by value, then whatever fits."""
    plan = state.plan
    by_section: dict[int, list[int]] = {}
    for place in places:
        by_section.setdefault(state.section[place], []).append(place)
    for section in _following(plan):
        floor = state.share(section.floor)
        if floor:
            _take_floor(state, by_section.get(section.index, ()), floor)
    caps = [state.share(section.cap) for section in plan.sections]
    capped = False
    for place in places:
        if state.room < state.least:
            return
        if state.codes[place] != CONSIDERED:
            continue
        if state.fits(place, caps[state.section[place]]):
            state.include(place)
        else:
            capped = True
    if capped:
        state.take(places)


def _use_spare(state: _State, places: list[int]) -> None:
    """Let more enter where more than the spare share is empty: what is left over beside it is too little for most."""
    most = state.share(state.plan.config.assembly.spare_share)
    for place in places:
        if state.room <= most:
            return
        if state.codes[place] == CONSIDERED and state.fits(place):
            state.include(place)


def _take_floor(state: _State, places: Iterable[int], floor: int) -> None:
    """Fill the floor of one section, until hardly anything of it is left."""
    for place in places:
        if state.used_in[state.section[place]] + state.least > floor:
            return
        if state.fits(place, floor):
            state.include(place)


def _cut_best(state: _State, places: list[int]) -> None:
    """Cut the best candidate that did not fit to what is left, if the policy is to and that is enough (C-223)."""
    plan = state.plan
    assembly = plan.config.assembly
    least = assembly.truncate_min_tokens
    if assembly.overflow_policy != "truncate" or plan.whole_tokens(state.room) < least:
        return
    for place in places:
        section = state.section[place]
        # The beginning of a turn that was found somewhere is hardly what it was found for.
        if (
            state.codes[place] != CONSIDERED
            or state.source[place] == PASSAGE
            or not plan.sections[section].compressible
        ):
            continue
        price = state.price(place)
        room = state.room
        if state.hard[section] != UNCAPPED:
            room = min(room, state.hard[section] - state.used_in[section])
        kept = room - (price - state.cost[place])
        if plan.whole_tokens(kept) >= least and kept < state.cost[place]:
            state.cut(place, kept, room)
            return


def _close(state: _State, conversation: _Conversation) -> None:
    """Say of everything left why it is not there."""
    for place, code in enumerate(state.codes):
        if code != CONSIDERED:
            continue
        section = state.section[place]
        hard = state.hard[section]
        limited = hard != UNCAPPED and state.used_in[section] + state.price(place) > hard
        limited |= (
            conversation.full and section < state.plan.user.index and state.source[place] in (SUMMARY, TURN_SUMMARY)
        )
        state.codes[place] = EXCLUDED_SECTION_BUDGET if limited else EXCLUDED_BUDGET


def _lacking(state: _State) -> bool:
    """Return whether something is left out for the budget that would be in any larger window: no recalled turn is."""
    return any(
        code == EXCLUDED_BUDGET and source != PASSAGE for code, source in zip(state.codes, state.source, strict=True)
    )


def _smallest(state: _State) -> int:
    """Return the tokens of the smallest window that could hold anything."""
    plan = state.plan
    assembly = plan.config.assembly
    # What the messages beside the turns cost is kept free, whether or not anything of them enters.
    texts = plan.tokens(state.messages)
    least = []
    for place, code in enumerate(state.codes):
        if code != EXCLUDED_BUDGET or state.source[place] == PASSAGE:
            continue
        section = plan.sections[state.section[place]]
        is_turn = state.source[place] == TURN
        length = state.together.get(place, state.cost[place])
        tokens = plan.tokens(length - (plan.message_length if is_turn else 0))
        if place in state.together:
            pass  # never cut
        elif state.source[place] == SYSTEM or is_turn:
            tokens = min(tokens, 1)
        elif assembly.overflow_policy == "truncate" and section.compressible:
            tokens = min(tokens, assembly.truncate_min_tokens)
        # One token more than the parts: each of them may round up.
        opening = plan.tokens(section.header_length) + assembly.message_overhead_tokens * is_turn
        least.append(tokens + opening + texts + 1)
    return min(least)
