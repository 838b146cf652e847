"""Days of records: those on which they happened, and those that their texts mean by "yesterday" or "on Friday".

Source: docs/search.md (Days).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.resident.conversation import zone_at
from caliber.resident.mirror import Generation
from caliber.schema.traits import NO_OFFSET_S
from caliber.search.ranking.fusion import times_us
from caliber.search.ranking.legs import Bools, Floats, Ints, KindSearch
from caliber.storage.compile.codec import undated
from caliber.text.dates import DAY_US, Interval, Moment, all_days_said
from caliber.text.words import NAMES_A_TIME

SAID_WITHIN_US: Final = 31 * DAY_US
"""A text means a day that is at most this far from its own."""

_BEFORE = 3.0
"""A record from before the days that a query names counts off this many times as fast as one from after them."""
_ANY_OF = timedelta(7)
"""Texts that mean more days than these mean none of them in particular."""

_Days = tuple[tuple[date, date], ...]


class DaysMeant:
    """The days that texts mean, each read once."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Generation, dict[tuple[int, date, str], _Days]]
        self._known = weakref.WeakKeyDictionary()

    def of(self, item: KindSearch, when: Interval) -> Bools:
        """Return the records whose texts mean some days. Shapes: ``bool[owners.length]``"""
        times = times_us(item.owners)
        near = (times >= when.first_us - SAID_WITHIN_US) & (times <= when.last_us + SAID_WITHIN_US) & item.visible
        rows = np.flatnonzero(near & (item.words.flagged(NAMES_A_TIME)[: len(near)] > 0))
        found = np.zeros(len(near), np.bool_)
        offsets = None
        if item.owners.relation.has(item.owners.relation.times.offset):
            offsets = item.owners.column(item.owners.relation.times.offset)[rows].tolist()
        known = self._known.setdefault(item.owners.generation, {})
        unread: list[tuple[int, Moment, tuple[int, date, str]]] = []
        for at, (row, at_us) in enumerate(zip(rows.tolist(), times[rows].tolist(), strict=True)):
            moment = Moment(at_us, zone_at(None if offsets is None else offsets[at], when.zone))
            key = (row, moment.day, str(moment.zone))
            if key in known:
                found[row] = _means(known[key], when)
            else:
                unread.append((row, moment, key))
        texts = item.words.words([row for row, _, _ in unread]) if unread else []
        for (row, moment, key), words in zip(unread, texts, strict=True):
            known[key] = days = _days_of(" ".join(map(item.words.dictionary.word, words)), moment)
            found[row] = _means(days, when)
        return found


def _days_of(text: str, moment: Moment) -> _Days:
    """Return the days that a text means: "on Friday" is the last one or the next."""
    said = (*all_days_said(text, moment), *all_days_said(text, moment, ahead=True))
    return tuple(dict.fromkeys((days.first, days.last) for days in said))


def _means(days: _Days, when: Interval) -> bool:
    return any(
        (when.first <= first and last <= when.last)
        or (last - first < _ANY_OF and first <= when.last and when.first <= last)
        for first, last in days
    )


def add_those_of(searched: Sequence[KindSearch], when: Interval) -> None:
    """Make candidates of the records of some days, for a query that asks for nothing else."""
    for item in searched:
        item.add(np.flatnonzero(item.allowed & are_of(item, when)))


def are_of(item: KindSearch, when: Interval, rows: Ints | slice = slice(None)) -> Bools:
    """Return which records are of some days, by the clock of the writer where that is known, or mean them.

    Shapes: ``bool[n]``
    """
    owners = item.owners
    times = times_us(owners, rows)
    found: Bools = (times >= when.first_us) & (times <= when.last_us)
    if owners.relation.has(owners.relation.times.offset):
        offsets = owners.column(owners.relation.times.offset)[rows].astype(np.int64)
        first, last = when.clock_us
        shown = times + offsets * 1_000_000
        found = np.where(offsets == NO_OFFSET_S, found, (shown >= first) & (shown <= last))
    return found if item.meant is None else found | item.meant[rows]


def count_of_days(searched: Sequence[KindSearch], when: Interval) -> int:
    """Return how many visible records happened between the first and the last instant of some days."""
    return sum(
        int(np.count_nonzero((times >= when.first_us) & (times <= when.last_us) & item.visible))
        for item in searched
        for times in (times_us(item.owners),)
    )


def days_tell(searched: Sequence[KindSearch], when: Interval) -> bool:
    """Return whether some visible records are of some days, and others are not."""
    return 0 < count_of_days(searched, when) < sum(item.visibility.count for item in searched)


def newest_day(searched: Sequence[KindSearch], now: Moment) -> date:
    """Return the day of the newest visible record: "in May" is not after it."""
    newest = [(at, number) for number, at in enumerate(map(_newest_us, searched)) if at is not None]
    at, number = max(newest, default=(now.at_us, 0))
    try:
        return now._replace(at_us=min(now.at_us, at)).day
    except OverflowError:
        owners, visible = searched[number].owners, searched[number].visibility.visible
        raise undated(owners.relation, map(owners.packed, np.flatnonzero(visible).tolist())) from None


def _newest_us(item: KindSearch) -> int | None:
    visibility = item.visibility
    if visibility.newest_us is None and visibility.count:
        visibility.newest_us = int(times_us(item.owners)[visibility.visible].max())
    return visibility.newest_us


def date_scores(item: KindSearch, times: NDArray[np.int64], when: Interval, slack_ms: int) -> Floats:
    """Return 1 for candidates of the days, falling to 0 ``slack_ms`` after them, and three times as fast before."""
    first, last, slack = when.first_us, when.last_us, slack_ms * 1_000
    early, late = (first - times).astype(np.float64) * _BEFORE, (times - last).astype(np.float64)
    gap = np.where(times < first, early, np.maximum(late, 0.0))
    scores: Floats = np.clip(1.0 - gap / slack, 0.0, 1.0)
    return scores if item.meant is None else np.where(item.meant[item.rows], 1.0, scores)
