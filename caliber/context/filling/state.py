"""Mutable state while a shared budget is filled: included candidates and tokens used, per section and in all.

Source: docs/windows.md; O-8.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import (
    CONSIDERED,
    ENTERED,
    EXCLUDED_BUDGET,
    EXCLUDED_SECTION_BUDGET,
    INCLUDED,
    INCLUDED_COMPRESSED,
    INCLUDED_TRUNCATED,
)
from caliber.context.conversation import PASSAGE, SUMMARY
from caliber.context.filling.filled import Truncation
from caliber.context.plan import UNCAPPED, AssemblyPlan, SectionPlan


@dataclass(slots=True)
class Filling:
    """One filling, over the considered candidates in canonical order. Units: lengths.

    Shapes: ``sections``, ``sources``, ``costs`` ``int64[m]``. These columns are lists too: one value is read faster
    from a list, all from an array. ``decided`` is the array over the memory of ``codes``.
    """

    plan: AssemblyPlan
    full: int
    total: int
    sections: NDArray[np.int64]
    sources: NDArray[np.int64]
    costs: NDArray[np.int64]
    lead: list[int]
    number: list[int]
    passage: list[int]
    hard: list[int]
    day: list[int]
    day_lines: list[int]
    """The length of the line with the day of each turn that can have one."""
    new_day: list[bool]
    """Whether a turn surely has it: the length is then part of its cost."""
    section: list[int] = field(init=False)
    source: list[int] = field(init=False)
    cost: list[int] = field(init=False)
    codes: bytearray = field(init=False)
    decided: NDArray[np.uint8] = field(init=False)
    least: int = 0
    """The shortest candidate: where less is left, nothing fits."""
    messages: int = 0
    """The length reserved for messages that are no turns."""
    used: int = 0
    used_in: list[int] = field(default_factory=list)
    passages: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """The turns of each passage that has entered, by section and number: two sections may each have some of one."""
    truncations: list[Truncation] = field(default_factory=list)
    hole: int = field(init=False)
    """The length of the mark of turns left out of a passage."""
    together: dict[int, int] = field(default_factory=dict)
    """The length of a call and its results, by the place that reports why they did not enter."""

    def __post_init__(self) -> None:
        self.section, self.source, self.cost = self.sections.tolist(), self.sources.tolist(), self.costs.tolist()
        self.hole = self.plan.hole_length
        self.codes = bytearray([CONSIDERED]) * len(self.source)
        self.decided = np.frombuffer(self.codes, np.uint8)

    @property
    def room(self) -> int:
        return self.total - self.used

    def left(self, section: int) -> int:
        """Return the length that a section may still take."""
        hard = self.hard[section]
        return self.room if hard == UNCAPPED else min(self.room, hard - self.used_in[section])

    def refusal(self, place: int, price: int) -> int:
        """Return why a candidate of a price does not enter: its section is full, or the window is."""
        section = self.section[place]
        full = self.hard[section] != UNCAPPED and self.used_in[section] + price > self.hard[section]
        return EXCLUDED_SECTION_BUDGET if full else EXCLUDED_BUDGET

    def price(self, place: int) -> int:
        """Return the cost of adding a candidate to the window as it is."""
        plan, section = self.plan, self.section[place]
        cost = self.cost[place]
        if self.passage[place]:
            turns = self.passages.get((section, self.passage[place]))
            if turns:
                return cost + plan.line_length + self.hole * holes_made(turns, self.number[place])
            cost += self.lead[place]
        return cost + (plan.separator_length if self.used_in[section] else plan.overheads[section])

    def fits(self, place: int, more: int) -> bool:
        """Return whether a candidate fits, and with it ``more``."""
        return self.price(place) + more <= self.left(self.section[place])

    def include(self, place: int) -> None:
        """Let a candidate enter."""
        self.codes[place] = INCLUDED
        self._count(place, self.price(place))

    def include_turns(self, places: NDArray[np.int64]) -> None:
        """Let turns of the conversation enter, before any of them has moved to another section."""
        self.decided[places] = INCLUDED
        for section in np.unique(self.sections[places]).tolist():
            costs = self.costs[places[self.sections[places] == section]]
            price = int(costs.sum()) + len(costs) * self.plan.separator_length
            if not self.used_in[section]:
                price += self.plan.overheads[section] - self.plan.separator_length
            self.used += price
            self.used_in[section] += price

    def admit(self, place: int, limit: int | None = None) -> bool:
        """Let a candidate enter if it fits, and its section stays within ``limit``, if given; return whether it did."""
        # As ``fits`` with a limit, without its calls: a window asks this of every candidate.
        price, section = self.cost[place], self.section[place]
        remaining = self.total - self.used
        if price > remaining + self.hole:
            return False
        if self.passage[place] or not self.used_in[section]:
            price = self.price(place)
        else:
            price += self.plan.separator_length
        after, hard = self.used_in[section] + price, self.hard[section]
        if price > remaining or (limit is not None and after > limit) or (hard != UNCAPPED and after > hard):
            return False
        self.codes[place] = INCLUDED
        self.used += price
        self.used_in[section] = after
        if self.passage[place]:
            self._note_turn(place)
        return True

    def compress(self, place: int, limit: int | None = None) -> bool:
        """Let a candidate enter compressed, if that fits and its section may be; return whether it did."""
        plan, section = self.plan, self.section[place]
        if self.codes[place] != CONSIDERED or self.source[place] == PASSAGE:
            return False
        if not plan.may_compress(plan.sections[section]):
            return False
        target = plan.compressed(self.cost[place])
        price = self.price(place) - self.cost[place] + target
        if price > self.left(section) or (limit is not None and self.used_in[section] + price > limit):
            return False
        if plan.whole_tokens(target) < plan.config.assembly.truncate_min_tokens:
            return False
        self.codes[place] = INCLUDED_COMPRESSED
        self.truncations.append(Truncation(place, target, compress=True))
        self._count(place, price)
        return True

    def _count(self, place: int, price: int) -> None:
        """Charge an included candidate, and note its passage."""
        section = self.section[place]
        self.used += price
        self.used_in[section] += price
        if self.passage[place]:
            self._note_turn(place)

    def _note_turn(self, place: int) -> None:
        """Note the turn of a passage, so that the next one knows whether it leaves a hole."""
        insort(self.passages.setdefault((self.section[place], self.passage[place]), []), self.number[place])

    def cut(self, place: int, room: int, price: int) -> None:
        """Let a candidate enter cut to a length, which takes ``price`` in all."""
        self.codes[place] = INCLUDED_TRUNCATED
        self.truncations.append(Truncation(place, room))
        self._count(place, price)

    def beyond_cut(self, place: int) -> int:
        """Return the length that a turn takes besides its text, cut or not."""
        return self.plan.message_length + self.day_lines[place] * self.new_day[place]

    def opens_day(self, place: int, before: int = 0) -> int:
        """Return by how much a turn is longer as the first that shows its day, after text of the day ``before``."""
        return 0 if self.new_day[place] or self.day[place] == before else self.day_lines[place]

    def drop(self, place: int, code: int) -> None:
        """Exclude a candidate; one that entered, whole or cut, leaves."""
        if self.codes[place] in ENTERED:
            price = self._freed(place)
            self.used -= price
            self.used_in[self.section[place]] -= price
            self.truncations = [item for item in self.truncations if item.place != place]
        self.codes[place] = code

    def _freed(self, place: int) -> int:
        """Return the tokens of a candidate that leaves the window: the lines of a passage share their lead."""
        plan, section = self.plan, self.section[place]
        cost = next((item.room for item in self.truncations if item.place == place), self.cost[place])
        if self.passage[place]:
            turns = self.passages[section, self.passage[place]]
            turns.remove(self.number[place])
            if turns:
                return cost + plan.line_length + self.hole * holes_made(turns, self.number[place])
            cost += self.lead[place]
        alone = self.used_in[section] == cost + plan.overheads[section]
        return cost + (plan.overheads[section] if alone else plan.separator_length)

    def share(self, share: float) -> int:
        """Return a share of the budget as a length."""
        return int(share * self.full)

    def take(self, places: list[int], limit: int | None = None) -> None:
        """Let those enter that fit, in order."""
        if self.total - self.used < self.least or not places:
            return
        chosen = np.array(places)
        # No price is below a cost but for the mark of a hole that a turn fills.
        most = self.total - self.used + self.hole
        chosen = chosen[(self.decided[chosen] == CONSIDERED) & (self.costs[chosen] <= most)]
        for place in chosen.tolist():
            self.admit(place, limit)


def holes_made(turns: list[int], number: int) -> int:
    """Return how many holes more, or fewer, a passage of turns in order has with another turn."""
    at = bisect_left(turns, number)
    before, after = turns[at - 1] if at else None, turns[at] if at < len(turns) else None
    made = (before is not None and number - before != 1) + (after is not None and after - number != 1)
    return made - (before is not None and after is not None and after - before != 1)


def following_sections(plan: AssemblyPlan) -> list[SectionPlan]:
    """Return the sections that stand between the older turns and the last user message."""
    return [section for section in plan.sections if plan.user.index < section.index < plan.current.index]


def summary_sections(plan: AssemblyPlan) -> list[SectionPlan]:
    """Return the sections of summaries before the conversation."""
    return [section for section in plan.sections if section.source == SUMMARY and section.index < plan.user.index]
