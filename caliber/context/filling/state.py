"""Mutable state while a shared budget is filled: included candidates and tokens used, per section and in all.

Source: docs/windows.md; O-8.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.context import limits
from caliber.context.columns import (
    CONSIDERED,
    ENTERED,
    EXCLUDED_BUDGET,
    EXCLUDED_SECTION_BUDGET,
    INCLUDED,
    INCLUDED_TRUNCATED,
)
from caliber.context.conversation import PASSAGE, SPOKEN, SUMMARY
from caliber.context.filling.filled import Truncation
from caliber.context.plan import SYSTEM, UNCAPPED, AssemblyPlan, SectionPlan
from caliber.kernels import fill as kernel


class _Shares(NamedTuple):
    """The constants of a plan's sections. Shapes: all ``[sections]``."""

    caps: NDArray[np.float64]
    floors: NDArray[np.float64]
    """Of those that follow the query."""
    rest: NDArray[np.bool_]
    """Which share what the conversation leaves: those of rules, and those that follow the query."""
    compressible: NDArray[np.bool_]
    """Of which records may enter compressed (C-274)."""
    following: float
    """The floors of those that follow the query together."""
    history: tuple[SectionPlan, ...]
    """The sections of summaries before the conversation."""


@lru_cache(maxsize=64)
def shares_of(plan: AssemblyPlan) -> _Shares:
    sections, told = plan.sections, plan.told
    after = range(plan.user.index + 1, plan.current.index)
    # Text before the conversation must not change with the query; rules share strictly by priority.
    rest = [(item.rule is not None or item.index > plan.user.index) and item is not told for item in sections]
    compressible = [
        item.compressible and item.source not in (SYSTEM, SPOKEN) and item.priority < limits.CRITICAL_PRIORITY
        for item in sections
    ]
    floors = [item.floor if item.index in after else 0.0 for item in sections]
    caps = np.array([item.cap for item in sections])
    history = tuple([item for item in sections if item.source == SUMMARY and item.index < plan.user.index])
    return _Shares(caps, np.array(floors), np.array(rest), np.array(compressible), sum(floors), history)


class Filling:
    """One filling, over the considered candidates in canonical order. Units: lengths.

    Shapes: ``costs``, ``sources``, ``sections`` ``int64[m]``; ``candidates`` as ``kernels.fill`` has them, but their
    costs. Columns are views of memory too, from which one value is read faster: ``decided`` and ``codes`` are the same.
    """

    def __init__(
        self, plan: AssemblyPlan, candidates: NDArray[np.int64], sources: NDArray[np.int64], full: int, hard: list[int]
    ) -> None:
        count, self.plan, self.full = len(sources), plan, full
        self.sections, self.costs, self.sources = candidates[kernel.SECTION], candidates[kernel.COST], sources
        self.section: memoryview = self.sections.data
        self.cost: memoryview = self.costs.data
        self.source: memoryview = sources.data
        self.number: memoryview = candidates[kernel.NUMBER].data
        self.lead: memoryview = candidates[kernel.LEAD].data
        self.shares = shares = shares_of(plan)
        self.compressed = candidates[kernel.SHORT]
        self.compressed[:] = -1
        least = int(self.costs.min()) if count else 0
        if plan.compresses:
            self.compressed[:] = self._compressible()
            least = int(least * limits.COMPRESS_RATIO)
        self.least = least
        """The shortest candidate: where less is left, nothing fits."""
        self.codes = bytearray([CONSIDERED]) * count
        self.decided = np.frombuffer(self.codes, np.uint8)
        self.limits = np.zeros((kernel.FLOOR + 1, len(hard)), np.int64)
        self.limits[kernel.OPENING], self.limits[kernel.MOST] = plan.overheads, hard
        self.limits[kernel.CAP], self.limits[kernel.FLOOR] = shares.caps * full, shares.floors * full
        self.hard: memoryview = self.limits[kernel.MOST].data
        self.used_in: memoryview = self.limits[kernel.USED].data
        self.hole = plan.hole_length
        """The length of the mark of turns left out of a passage."""
        measures = np.array((plan.separator_length, plan.line_length, self.hole, least))
        self._kernel = kernel.BudgetFill(candidates, self.limits, measures, self.decided)
        self.total = self.used = 0
        self.messages = 0
        """The length reserved for messages that are no turns."""
        self.day: list[int] = []
        self.day_lines: list[int] = []
        """The length of the line with the day of each turn that can have one."""
        self.new_day: list[bool] = []
        """Whether a turn surely has it: the length is then part of its cost."""
        self.truncations: list[Truncation] = []
        self.together: dict[int, int] = {}
        """The length of a call and its results, by the place that reports why they did not enter."""

    def _compressible(self) -> NDArray[np.int64]:
        """Return the length of each candidate as it may enter compressed, -1 where it may not (C-274)."""
        plan = self.plan
        lengths = (self.costs * limits.COMPRESS_RATIO).astype(np.int64)
        tokens = np.maximum(0, lengths * plan.measures.denominator // plan.measures.numerator)
        may = self.shares.compressible[self.sections]
        may &= (self.sources != PASSAGE) & (tokens >= plan.config.assembly.truncate_min_tokens)
        return np.where(may, lengths, -1)

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
        return self._kernel.price(place, self.cost[place])

    def fits(self, place: int, more: int) -> bool:
        """Return whether a candidate fits, and with it ``more``."""
        return self.price(place) + more <= self.left(self.section[place])

    def include(self, place: int) -> None:
        """Let a candidate enter."""
        self._count(place, self.price(place))
        self.codes[place] = INCLUDED

    def include_turns(self, places: NDArray[np.int64]) -> None:
        """Let turns of the conversation enter, before any of them has moved to another section."""
        self.decided[places] = INCLUDED
        for section in [section.index for section in self.plan.conversation]:
            costs = self.costs[places[self.sections[places] == section]]
            price = int(costs.sum()) + len(costs) * self.plan.separator_length
            if len(costs) and not self.used_in[section]:
                price += self.plan.overheads[section] - self.plan.separator_length
            self.used += price
            self.used_in[section] += price

    def admit(self, places: NDArray[np.int64], limit: int = kernel.NO_LIMIT, how: int = kernel.WHOLE) -> None:
        """Let undecided candidates enter, in order, if they fit, and their section stays within ``limit``."""
        room = self.total - self.used
        left, compressed = self._kernel.walk(places, room, limit, how)
        self.used += room - left
        self.truncations += [Truncation(place, int(self.compressed[place]), compress=True) for place in compressed]

    def _count(self, place: int, price: int) -> None:
        """Charge an included candidate."""
        self.used += price
        self.used_in[self.section[place]] += price

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
            cost = next((item.room for item in self.truncations if item.place == place), self.cost[place])
            price = self._kernel.price(place, cost, leaving=True)
            self.used -= price
            self.used_in[self.section[place]] -= price
            self.truncations = [item for item in self.truncations if item.place != place]
        self.codes[place] = code

    def share(self, share: float) -> int:
        """Return a share of the budget as a length."""
        return int(share * self.full)

    def exclude(self, places: NDArray[np.int64], code: int) -> None:
        """Exclude those that are undecided."""
        self.decided[places[self.decided[places] == CONSIDERED]] = code

    def take(self, places: NDArray[np.int64], how: int = kernel.WHOLE) -> None:
        """Let those enter that fit, in order."""
        if len(places) and self.total - self.used >= self.least:
            self.admit(places, how=how)
