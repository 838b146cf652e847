"""Conversation turns in a shared-budget window: the mandatory ones, the first optional one, and room for the next.

How much of the conversation enters depends on turns alone, not on the query, so that its beginning, and with it the
prefix that providers cache, stays from turn to turn.

Source: docs/windows.md; decisions 0017, 0195.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    ALONE,
    EXCLUDED_BUDGET,
    EXCLUDED_EVICTED,
    EXCLUDED_GROUP,
    EXCLUDED_SHOWN,
    INCLUDED,
    MUST,
    PAST,
    RECENT,
    entered,
)
from caliber.context.conversation import BLOCK, PASSAGE, SPOKEN, SUMMARY
from caliber.context.filling.blocks import Run, block_start
from caliber.context.filling.state import Filling, following_sections, summary_sections
from caliber.context.plan import EXTRA, PERSONA, SYSTEM, UNCAPPED
from caliber.model.lazy_dataclass import dataclass

_AIMED = 0.8
"""Part of the spare share that is aimed at: turns that do not fit exactly leave the rest."""


@dataclass(frozen=True, slots=True)
class SpokenTurns:
    """The turns of the conversation among the candidates, in chronological order. Shapes: ``int64[n]``."""

    places: NDArray[np.int64]
    numbers: NDArray[np.int64]
    groups: NDArray[np.int64]
    marks: NDArray[np.int64]
    cost: NDArray[np.int64]


class ShownTurns:
    """The turns of a window, and where they begin."""

    def __init__(self, state: Filling, turns: SpokenTurns, max_tokens: int) -> None:
        self._state = state
        self._turns = turns
        plan = state.plan
        assembly = plan.config.assembly
        self._small = plan.budget(max_tokens) < assembly.recent_from_tokens
        self._block_turns = assembly.evict_block_turns
        self._floor, self._cap = state.share(plan.user.floor), state.share(plan.user.cap)
        self._limit = self._cap
        """The maximum of its two sections together, with the floors of the others reserved."""
        self._others = state.share(sum(item.floor for item in (*following_sections(plan), *summary_sections(plan))))
        self._most = int(assembly.evict_share * self._cap)
        must = (turns.marks & MUST) != 0
        self._rest = np.flatnonzero(~must)
        separator = plan.separator_length
        self._run = Run.of(turns.numbers[self._rest], turns.groups[self._rest], turns.cost[self._rest] + separator)
        self.start: int | None = None
        """The number of the first optional turn that is shown; None: no optional turn is."""
        self.evicted = False
        self.full = False
        """Whether turns of the present conversation were left out, as it fills its share."""

    # --- the last user message, and calls without an answer --------------------------------------

    def _musts(self) -> list[list[int]]:
        """Return the places of the mandatory turns; a call and its results count as one.

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
        """Return the length of the turns that must enter."""
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
                if plan.whole_tokens(room) >= 1 and room >= state.lead[first]:
                    state.cut(first, room, room + overhead + plan.message_length)

    def _enter_cut(self, call: int, results: list[int]) -> bool:
        """Include a call with its results, the longest of them cut; return whether enough of it remains."""
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
        if plan.whole_tokens(room) < plan.config.assembly.truncate_min_tokens or room < state.lead[longest]:
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
        """Fill unused room with older turns; recalled copies and summaries of them are removed."""
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
        summed = ((state.sources == SUMMARY) | (state.sources == BLOCK)) & (state.sections < state.plan.user.index)
        for place in np.flatnonzero(summed).tolist():
            if self.shows_from(int(covered[place])):
                state.drop(place, EXCLUDED_SHOWN)
        state.recount()

    def spare(self) -> int:
        """Return the tokens reserved for the next turns, once the conversation fills its share.

        What follows the query then holds what the conversation's cap leaves it, so that it does not change with each
        turn, and older turns that left with a block do not have to make room again.
        """
        state, plan = self._state, self._state.plan
        if not self.full:
            return 0
        room = state.room - state.share(1 - plan.user.cap)
        return max(0, min(room, state.share(_AIMED * plan.config.assembly.spare_share)))

    def _left_by_rule(self) -> int:
        """Return the rest under the conversation's rule: its max_tokens holds for both sections together."""
        state, plan = self._state, self._state.plan
        hard = state.hard[plan.user.index]
        if hard == UNCAPPED:
            return state.room
        return hard - sum(state.used_in[index] for index in {plan.user.index, plan.current.index})

    def _opening(self) -> int:
        """Return the cost of opening the sections of the conversation, beyond separators."""
        plan = self._state.plan
        sections = {plan.user.index, plan.current.index}
        unopened = [index for index in sections if not self._state.used_in[index]]
        return sum(plan.overheads[index] - plan.separator_length for index in unopened)

    def _show(self) -> None:
        """Include the turns from the start on; mark the others as left out."""
        state, run = self._state, self._run
        places = self._turns.places[self._rest]
        shown = np.zeros(len(places), np.bool_) if self.start is None else run.begins >= self.start
        for place in places[shown].tolist():
            if state.codes[place] != INCLUDED:
                state.include(place)
        state.decided[places[~shown]] = EXCLUDED_EVICTED
        if self.start is not None:
            state.decided[places[~shown & (run.numbers >= self.start)]] = EXCLUDED_GROUP
        self.evicted = not shown.all()

    def shows_from(self, number: int) -> bool:
        """Return whether every turn from a number on is shown."""
        return self.start is not None and self.start <= number

    def repeated(self, ordinals: NDArray[np.int64]) -> list[int]:
        """Return the places of recalled turns that the conversation shows."""
        state = self._state
        inside, passages = entered(state.decided), np.flatnonzero(state.sources == PASSAGE)
        shown = set(ordinals[inside[state.sources[inside] == SPOKEN]].tolist())
        recalled = zip(passages.tolist(), ordinals[passages].tolist(), strict=True)
        return [place for place, ordinal in recalled if ordinal in shown]

    def stable_sections(self) -> frozenset[int]:
        """Return the sections that stay unchanged when a turn like the largest here is appended.

        Sections before the conversation stay unchanged until a block of turns is dropped; sections that follow the
        query do not count.
        """
        state, plan, turns = self._state, self._state.plan, self._turns
        stable = {section.index for section in plan.sections if section.source in (SYSTEM, PERSONA, EXTRA)}
        shown = turns.cost[state.decided[turns.places] == INCLUDED]
        another = int(shown.max(initial=0) if len(shown) else plan.message_length) + plan.separator_length
        used = sum(state.used_in[index] for index in {plan.user.index, plan.current.index})
        if used + another <= self._limit:
            stable |= {section.index for section in plan.sections if section.index <= plan.user.index}
        return frozenset(stable)
