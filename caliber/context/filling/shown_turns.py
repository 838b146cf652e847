"""Conversation turns in a shared-budget window: the mandatory ones, the first optional one, and room for the next.

How much of the conversation enters depends on turns alone, not on the query, so that its beginning, and with it the
prefix that providers cache, stays from turn to turn: old turns leave in blocks, so that windows begin at one turn
for as long as they can.

Source: docs/windows.md; decisions 0017, 0195.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.columns import (
    ALONE,
    EXCLUDED_EVICTED,
    EXCLUDED_GROUP,
    EXCLUDED_SHOWN,
    INCLUDED,
    INCLUDED_TRUNCATED,
    MUST,
    PAST,
    RECENT,
    entered,
)
from caliber.context.conversation import BLOCK, PASSAGE, SPOKEN, SUMMARY
from caliber.context.filling.state import Filling
from caliber.context.plan import EXTRA, PERSONA, SYSTEM, UNCAPPED, is_any_of
from caliber.model.lazy_dataclass import dataclass

_PREFIX_FROM, _SMALL_REST = 2_000, 0.25
"""Tokens of windows that promise a stable prefix; the share that smaller ones keep for what follows the query."""
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


@dataclass(frozen=True, slots=True)
class TurnRepeats:
    """The recalled copies of turns of the conversation, and the records with all of their words in one turn."""

    ordinals: list[int]
    covered: list[int]
    """By place: the number of a turn; of a record one more than that of the turn with all its words, else 0."""
    copies: dict[int, list[int]]
    """The places of recalled turns by ordinal."""
    records: dict[int, list[int]]
    """The places of records by the number of their turn."""

    @classmethod
    def of(cls, state: Filling, ordinals: NDArray[np.int64], covered: NDArray[np.int64]) -> TurnRepeats:
        passages = np.flatnonzero(state.sources == PASSAGE)
        records = np.flatnonzero(~is_any_of(state.sources, (SPOKEN, PASSAGE, SUMMARY, BLOCK)) & (covered > 0))
        return cls(ordinals.tolist(), covered.tolist(), _by(ordinals, passages), _by(covered - 1, records))

    def passages_of(self, turns: list[int]) -> list[int]:
        """Return the places of the recalled copies of turns, each once."""
        copied = self.copies.keys() & set(map(self.ordinals.__getitem__, turns))
        return [copy for ordinal in copied for copy in self.copies[ordinal]] if copied else []

    def of_turns(self, turns: list[int]) -> list[int]:
        """Return the places of all that turns repeat, each once."""
        numbers = self.records.keys() & set(map(self.covered.__getitem__, turns))
        return self.passages_of(turns) + [place for number in numbers for place in self.records[number]]


def _by(keys: NDArray[np.int64], places: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return places by their keys."""
    out: dict[int, list[int]] = {}
    for key, place in zip(keys[places].tolist(), places.tolist(), strict=True):
        out.setdefault(key, []).append(place)
    return out


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive turns, and the length of the newest of them together.

    Shapes: ``int64[n]``. Units: ``begins`` is the number of the first turn of each turn's group; ``total[i]`` is the
    length of all turns whose group does not begin before that of turn ``i``.
    """

    numbers: NDArray[np.int64]
    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    totals: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64], groups: NDArray[np.int64], cost: NDArray[np.int64]) -> Run:
        """Return the run of some turns, of which those of one group stay together."""
        begins = numbers.copy()
        grouped = groups >= 0
        if grouped.any():
            _, first, of = np.unique(groups[grouped], return_index=True, return_inverse=True)
            begins[grouped] = numbers[grouped][first][of]
        order = np.argsort(begins, kind="stable")
        sums = np.cumsum(cost[order][::-1])[::-1]
        starts, first = np.unique(begins[order], return_index=True)
        return cls(numbers, begins, starts, sums[first])

    def cost_from(self, start: int) -> int:
        """Return the cost of the turns whose groups begin at ``start`` or later."""
        at = int(np.searchsorted(self.starts, start))
        return int(self.totals[at]) if at < len(self.starts) else 0

    def earliest(self, capacity: int, least: int | None = None) -> int | None:
        """Return the earliest number from which all turns fit a length, not before ``least``; None if none does."""
        first = 0 if least is None else int(np.searchsorted(self.starts, least))
        fitting = np.flatnonzero(self.totals[first:] <= capacity)
        return int(self.starts[first + fitting[0]]) if len(fitting) else None


def block_start(run: Run, earliest: int, latest: int | None, *, block_turns: int, most: int) -> int:
    """Return the number at which the window's turns begin: a multiple of a block at ``earliest`` or later.

    A block is halved while it would push out a turn from ``latest`` on, or is longer than ``most``. Both are the same
    for every ``earliest`` inside of it, so the beginning stays until it must go. Where all fits nothing has to leave.
    """
    if not len(run.starts) or earliest <= int(run.starts[0]):
        return earliest
    newest = int(run.starts[-1]) if latest is None else latest
    block = block_turns
    while block > 1:
        start = -(-earliest // block) * block
        if start <= newest and run.cost_from(start - block) - run.cost_from(start) <= most:
            return start
        block //= 2
    return earliest


class ShownTurns:
    """The turns of a window, and where they begin."""

    def __init__(self, state: Filling, turns: SpokenTurns, max_tokens: int) -> None:
        self._state = state
        self._turns = turns
        plan = state.plan
        self._own = plan.conversation
        self._small = plan.budget(max_tokens) < limits.RECENT_FROM_TOKENS
        self._block_turns = plan.config.assembly.evict_block_turns
        self._floor, self._cap = state.share(plan.user.floor), state.share(plan.user.cap)
        self._limit = self._cap
        """The maximum of its two sections together, with the floors of the others reserved."""
        shares = state.shares
        summed = [item.floor for item in shares.history if (state.sections == item.index).any()]
        floors = sum(summed, shares.following)
        small = plan.earlier is not None and plan.budget(max_tokens) < _PREFIX_FROM
        self._others = state.share(max(floors, _SMALL_REST) if small else floors)
        follows = (state.sections > plan.user.index) & (state.sources != SPOKEN)
        self._message = 0 if plan.earlier is None or follows.any() else plan.message_length
        """The length of the message of what follows the query, which a query without candidates does not reserve."""
        self._most = int(limits.EVICT_SHARE * self._cap)
        must = (turns.marks & MUST) != 0
        self._rest = np.flatnonzero(~must)
        separator = plan.separator_length
        self._run = Run.of(turns.numbers[self._rest], turns.groups[self._rest], turns.cost[self._rest] + separator)
        self.start: int | None = None
        """The number of the first optional turn that is shown; None: no optional turn is."""
        self.evicted = False
        self.earlier: list[int] = []
        """The places of turns that are shown behind the conversation."""
        self.full = False
        """Whether turns of the present conversation were left out, as it fills its share."""

    # --- the last user message, and calls without an answer --------------------------------------

    @cached_property
    def _musts(self) -> list[list[int]]:
        """The places of the mandatory turns; a call and its results count as one.

        The last user message comes first, then calls with the answers they have, newest first.
        """
        turns = self._turns
        must = np.flatnonzero((turns.marks & MUST) != 0)
        groups = turns.groups[must]
        out = [[int(turns.places[at])] for at in must[groups == ALONE]]
        for group in np.unique(groups[groups != ALONE])[::-1].tolist():
            out.append(turns.places[must[groups == group]].tolist())  # noqa: PERF401
        return out

    @property
    def _used(self) -> int:
        """The length that the conversation takes in both sections."""
        return sum([self._state.used_in[section.index] for section in self._own])

    def must_length(self) -> int:
        """Return the length of the turns that must enter."""
        state = self._state
        costs = state.costs[[place for together in self._musts for place in together]]
        opening = state.plan.overheads[state.plan.current.index] if len(costs) else 0
        return opening + int(costs.sum()) + len(costs) * state.plan.separator_length

    def enter_must(self) -> None:
        """Let the last user message enter, cut if it is longer than all there is, and the calls that fit whole."""
        state, plan = self._state, self._state.plan
        grouped = set(self._turns.places[self._turns.groups != ALONE].tolist())
        for together in self._musts:
            first, *others = together
            if state.fits(first, more=sum(state.cost[place] + plan.separator_length for place in others)):
                for place in together:
                    state.include(place)
            elif first in grouped and self._enter_cut(first, others):
                continue
            elif first in grouped:
                # As the kernel does: the best-ranked of a group, its newest, carries the reason.
                *older, newest = together
                length = sum(state.cost[place] + plan.separator_length for place in together)
                state.codes[newest] = state.refusal(newest, length)
                state.together[newest] = length
                for place in older:
                    state.codes[place] = EXCLUDED_GROUP
            else:
                overhead = state.price(first) - state.cost[first]
                overhead += state.beyond_cut(first)
                room = state.left(state.section[first]) - overhead
                if plan.whole_tokens(room) >= 1 and room >= state.lead[first]:
                    state.cut(first, room, room + overhead)

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
        room = state.left(state.section[call]) - others - separator - plan.message_length
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
        room = min(state.room - self._message, self._left_by_rule()) - self._opening()
        shown = self._used
        recent = None
        if not self._small and ((marks & RECENT) != 0).any():
            recent = run.earliest(room, int(run.begins[(marks & RECENT) != 0].min()))
        self._limit = min(self._cap, room - self._others + shown)
        allowed = self._limit - shown
        present = run.begins[(marks & PAST) == 0]
        present_from = int(present.min()) if len(present) else None
        if not self._small and run.cost_from(int(run.starts[0])) <= allowed:
            self.start = int(run.starts[0])
        else:
            earliest = None if present_from is None else run.earliest(allowed, present_from)
            if present_from is None or (earliest is not None and earliest <= present_from):
                past = run.earliest(min(self._floor - shown, allowed))
                earliest = past if earliest is None or (past is not None and past < earliest) else earliest
            if recent is not None and (earliest is None or recent <= earliest):
                self.start = recent
            elif earliest is not None:
                self.start = block_start(run, earliest, recent, block_turns=self._block_turns, most=self._most)
                if present_from is not None and earliest <= present_from:
                    self.start = min(self.start, present_from)  # all of the present conversation fits
        self._show()
        self.full = present_from is not None and (self.start is None or self.start > present_from)

    def opening_day(self) -> int:
        """Return by how much the first turn of the conversation that carries a day is longer for it."""
        return next(map(self._state.opens_day, self._dated()), 0)

    def _dated(self) -> list[int]:
        """Return the places of the turns in the window that can carry their day, in order."""
        state = self._state
        inside = (INCLUDED, INCLUDED_TRUNCATED)
        return [place for place in self._turns.places.tolist() if state.codes[place] in inside and state.day[place]]

    def enter_earlier(self, repeats: TurnRepeats) -> None:
        """Fill unused room with the turns before the first one, newest first; recalled copies of them leave.

        Those before the last user message stand behind the prefix, as the room depends on the query. A call and its
        results enter together.
        """
        state, plan, turns = self._state, self._state.plan, self._turns
        assert plan.earlier is not None
        outside = self._rest[state.decided[turns.places[self._rest]] != INCLUDED]
        left, groups = turns.places[outside], turns.groups[outside]
        first, opening_day, days = math.inf, 0, any(state.day_lines)
        older = [place for place in self._dated() if state.section[place] == plan.user.index] if days else ()
        day = state.day[older[-1]] if older else 0
        for at in range(len(left) - 1, -1, -1):
            unit = left[at : at + 1] if groups[at] == ALONE else left[groups == groups[at]]
            new = [place for place in unit.tolist() if state.codes[place] != INCLUDED]
            opening = 0 if state.used_in[plan.earlier.index] else plan.overheads[plan.earlier.index]
            old = [place for place in new if state.section[place] == plan.user.index]
            message = self._message if opening and old else 0
            length = sum([state.cost[place] + plan.separator_length for place in new]) - plan.message_length * len(old)
            carry = [place for place in old if state.day_lines[place] and state.number[place] < first] if days else ()
            dated = carry[0] if carry else None
            another_day = opening_day if dated is None else state.opens_day(dated, day)
            message += another_day - opening_day
            lacking = length + (opening if old else 0) + message - state.room
            if lacking > 0:  # unless recalled copies, which leave, free as much
                copies = [place for place in repeats.passages_of(new) if state.codes[place] == INCLUDED]
                if lacking > sum(max(state.cost[place] - state.hole, 0) for place in copies):
                    return
            state.total -= message
            opening_day = another_day
            first = first if dated is None else state.number[dated]
            for place in old:
                state.section[place] = plan.earlier.index
                state.cost[place] -= plan.message_length
            self.earlier += old
            for place in new:
                state.include(place)
            for place in repeats.of_turns(new):
                state.drop(place, EXCLUDED_SHOWN)

    def spare(self) -> int:
        """Return the tokens reserved for the next turns, once the conversation fills its share.

        What follows the query then holds what the conversation's cap leaves it, so that it does not change with each
        turn, and older turns that left with a block do not have to make room again.
        """
        state, plan = self._state, self._state.plan
        if not self.full:
            return 0
        room = state.room - state.share(1 - plan.user.cap)
        return max(0, min(room, state.share(_AIMED * limits.SPARE_SHARE)))

    def _left_by_rule(self) -> int:
        """Return the rest under the conversation's rule: its max_tokens holds for both sections together."""
        state, plan = self._state, self._state.plan
        hard = state.hard[plan.user.index]
        if hard == UNCAPPED:
            return state.room
        return hard - self._used

    def _opening(self) -> int:
        """Return the cost of opening the sections of the conversation, beyond separators."""
        plan, used = self._state.plan, self._state.used_in
        return sum([plan.overheads[item.index] - plan.separator_length for item in self._own if not used[item.index]])

    def _show(self) -> None:
        """Include the turns from the start on; mark the others as left out."""
        state, run = self._state, self._run
        places = self._turns.places[self._rest]
        shown = np.zeros(len(places), np.bool_) if self.start is None else run.begins >= self.start
        state.include_turns(places[shown & (state.decided[places] != INCLUDED)])
        state.decided[places[~shown]] = EXCLUDED_EVICTED
        if self.start is not None:
            state.decided[places[~shown & (run.numbers >= self.start)]] = EXCLUDED_GROUP
        self.evicted = not shown.all()

    def reach(self) -> float:
        """Return the number from which on every turn is shown, or may be in the room that the query leaves.

        It moves with the first turn shown, as the summaries of what is before it stand before the conversation.
        """
        first, run, plan = self.start, self._run, self._state.plan
        if plan.earlier is not None and len(run.starts):
            shown = 0 if first is None else run.cost_from(first)
            block = run.cost_from((int(run.starts[-1]) + 1 if first is None else first) - self._block_turns) - shown
            first = run.earliest(
                shown + min(block, self._most) + max(self._others, self._state.share(1 - plan.user.cap))
            )
        return math.inf if first is None else first

    def drop_repeated(self, repeats: TurnRepeats) -> None:
        """Drop the recalled turns, and the records, that the conversation repeats, whether they entered or not."""
        state = self._state
        inside = entered(state.decided)
        for place in repeats.of_turns(inside[state.sources[inside] == SPOKEN].tolist()):
            state.drop(place, EXCLUDED_SHOWN)

    def stable_sections(self) -> frozenset[int]:
        """Return the sections that stay unchanged when a turn like the largest here is appended.

        Sections before the conversation stay unchanged until a block of turns is dropped; sections that follow the
        query do not count.
        """
        state, plan, turns = self._state, self._state.plan, self._turns
        before = list(plan.sections[: plan.user.index])
        first = [section for section in before if section.source in (SYSTEM, PERSONA, EXTRA) or section is plan.about]
        if plan.by_rank:  # the sections after the conversation share what it leaves
            cut = {state.section[item.place] for item in state.truncations}
            ahead = plan.by_rank[: plan.by_rank.index(plan.user)]
            first = before = [section for section in ahead if section.index not in cut]
        stable = {section.index for section in first}
        shown = turns.cost[state.decided[turns.places] == INCLUDED]
        another = int(shown.max(initial=0) if len(shown) else plan.message_length) + plan.separator_length
        used = self._used
        if used + another <= self._limit:
            stable |= {section.index for section in (*before, plan.user)}
        return frozenset(stable)
