"""The kernel that fills a budget which sections share, in Python."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from caliber.kernels import fill as kernel

INCLUDED, CUT, COMPRESSED = 1, 6, 12


def holes_made(turns: list[int], number: int) -> int:
    """Return how many holes more, or fewer, a passage of lines in order has with another line."""
    at = bisect_left(turns, number)
    before, after = turns[at - 1] if at else None, turns[at] if at < len(turns) else None
    made = (before is not None and number - before != 1) + (after is not None and after - number != 1)
    return made - (before is not None and after is not None and after - before != 1)


class TwinFill:
    """One filling, by the rules of ``caliber.kernels.fill``."""

    def __init__(self, candidates: np.ndarray, sections: np.ndarray, measures: np.ndarray, codes: np.ndarray) -> None:
        self.section, self.cost, self.passage, self.number, self.lead, self.short = candidates[:6].tolist()
        self.used, self.opening, self.most, self.cap, self.floor = sections.tolist()
        self.separator, self.line, self.hole, self.least = measures.tolist()
        self.codes = codes.tolist()
        self.room = 0
        self.compressed: list[int] = []

    def price(self, place: int, cost: int, *, leaving: bool = False) -> int:
        """Return the length that a candidate takes if it enters next, or frees if it leaves."""
        section = self.section[place]
        if self.passage[place]:
            beside = sorted(
                self.number[other]
                for other, code in enumerate(self.codes)
                if code in (INCLUDED, CUT, COMPRESSED)
                and (self.section[other], self.passage[other]) == (section, self.passage[place])
                and not (leaving and other == place)
            )
            if beside:
                return cost + self.line + self.hole * holes_made(beside, self.number[place])
            cost += self.lead[place]
        if leaving:
            return cost + (
                self.opening[section] if self.used[section] == cost + self.opening[section] else self.separator
            )
        return cost + (self.separator if self.used[section] else self.opening[section])

    def enter(self, place: int, limit: int, *, whole: bool) -> bool:
        """Let a candidate enter if it fits."""
        section, cost = self.section[place], self.cost[place] if whole else self.short[place]
        if cost < 0 or (whole and cost > self.room + self.hole):
            return False
        price = self.price(place, cost)
        after = self.used[section] + price
        if price > self.room or (limit != kernel.NO_LIMIT and after > limit) or -1 < self.most[section] < after:
            return False
        self.codes[place] = INCLUDED if whole else COMPRESSED
        self.compressed += [] if whole else [place]
        self.room -= price
        self.used[section] = after
        return True

    def walk(self, places: list[int], room: int, limit: int, how: int) -> tuple[int, list[int]]:
        """Let undecided candidates enter in order."""
        self.room, self.compressed = room, []
        if how == kernel.SHARES:
            self._share(places)
        for place in places if how != kernel.SHARES else ():
            if self.codes[place]:
                continue
            if how == kernel.COMPRESSED or not self.enter(place, limit, whole=True):
                _ = how != kernel.WHOLE and self.enter(place, limit, whole=False)
        return self.room, self.compressed

    def _share(self, places: list[int]) -> None:
        for section, floor in enumerate(self.floor):
            for place in (place for place in places if floor > 0 and self.section[place] == section):
                left = floor - self.used[section]
                if left < self.least:
                    break
                if not self.codes[place] and self.cost[place] <= left + self.hole:
                    self.enter(place, floor, whole=True)
        capped = False
        for place in places:
            if self.room < self.least:
                return
            if self.codes[place]:
                continue
            cap = self.cap[self.section[place]]
            full = self.used[self.section[place]] + self.least > cap
            if full or not self.enter(place, cap, whole=True):
                capped = not self.enter(place, cap, whole=False) or capped
        for whole in (True, False):
            for place in places if not whole or (capped and self.room >= self.least) else ():
                _ = not self.codes[place] and self.enter(place, kernel.NO_LIMIT, whole=whole)
