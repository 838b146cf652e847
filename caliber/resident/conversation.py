"""Turns in memory: their times and days, and the previous and next turn of each turn in its scope.

The reader that first needs it builds it, and it grows with the mirror. A changed turn takes the place of its older
version; readers of an older boundary walk back to the row they know. A turn that was deleted or rolled back
leaves the chain: the turns before and after it become neighbours, before and after a compaction or a reopening alike.
"""

from __future__ import annotations

import threading
from datetime import date, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from caliber.model.process.interpreter import renew_in_child
from caliber.model.time import from_us
from caliber.model.trajectory import TurnRole
from caliber.resident.chain import NOBODY, Chain
from caliber.resident.mirror import RelationSnapshot
from caliber.schema.traits import ALWAYS_US, NO_OFFSET_S
from caliber.storage.compile.codec import NO_INSTANT, damaged, undated
from caliber.text.dates import DAY_US, Moment

LOCK = threading.Lock()  # held for microseconds, by the first reader of a new boundary
renew_in_child(globals(), "LOCK")
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH
_SECOND_US: Final = 1_000_000
_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


class Neighbours:
    """Before and after, as one boundary sees it."""

    def __init__(self, snapshot: RelationSnapshot, chain: Chain) -> None:
        self._snapshot = snapshot
        self._before, self._after = chain.before.array, chain.after.array
        self._moved = chain.moved

    def before(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row before each of ``rows``, -1 if there is none."""
        return self._walked(self._before, rows)

    def after(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row after each of ``rows``, -1 if there is none."""
        return self._walked(self._after, rows)

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return before and after of every row; rows beyond the snapshot's length count as none."""
        length = self._snapshot.length
        if not self._moved and self._snapshot.standing_mask.all():
            return self._before[:length], self._after[:length]
        rows = np.arange(length)
        return self._walked(self._before, rows), self._walked(self._after, rows)

    def _walked(self, column: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next row of each that lives at this boundary."""
        snapshot = self._snapshot
        found = np.where(rows >= 0, column[rows], NOBODY)
        while True:
            for at in np.flatnonzero(found >= snapshot.length).tolist():
                found[at] = self._known(column, int(found[at]))
            gone = np.flatnonzero(found >= 0)
            gone = gone[~snapshot.standing_mask[found[gone]]]
            if not len(gone):
                return found
            found[gone] = column[found[gone]]

    def _known(self, column: NDArray[np.int64], number: int) -> int:
        """Return the version of a later row that stood here at this boundary, or else of the next row on."""
        while number >= self._snapshot.length:
            earlier = self._snapshot.current(number)
            number = earlier if earlier >= 0 else int(column[number])
        return number


def neighbours(snapshot: RelationSnapshot, column: str) -> Neighbours:
    """Return the neighbours of each turn among those with equal ``column``, in the order of the conversation."""
    generation = snapshot.generation
    with LOCK:
        chain = generation.chain
        if chain is None:
            chain = generation.chain = Chain()
        start = chain.length
        if start < snapshot.length:
            codes, places = snapshot.column(column)[start:], snapshot.column("turn_number")[start:]
            try:
                chain.extend(codes, places, generation.previous.view(snapshot.length)[start:])
            except BaseException:
                generation.chain = None  # an interrupt, perhaps: half of the rows may be linked; the chain is rebuilt
                raise
        return Neighbours(snapshot, chain)


def times_of(turns: RelationSnapshot, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each turn occurred, or was written if unknown. Shapes: ``int64[n]`` microseconds."""
    occurred = turns.column("occurred_at")[rows]
    out: NDArray[np.int64] = np.where(occurred == ALWAYS_US, turns.column("created_at")[rows], occurred)
    return out


def zone_at(offset_s: int | None, unknown: tzinfo) -> tzinfo:
    """Return the zone of a writer's clock by its offset, or ``unknown`` where none was stored."""
    return unknown if offset_s is None or offset_s == NO_OFFSET_S else timezone(timedelta(seconds=offset_s))


def moments_of(turns: RelationSnapshot, rows: NDArray[np.int64], zone: tzinfo) -> list[Moment]:
    """Return the instant of each turn, with the zone of its writer, or ``zone`` where that is unknown."""
    offsets = turns.column("utc_offset_s")[rows].tolist()
    return [
        Moment(at_us, zone_at(offset, zone))
        for at_us, offset in zip(times_of(turns, rows).tolist(), offsets, strict=True)
    ]


def days_of(turns: RelationSnapshot, rows: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    """Return the day of each turn, counted from 1970, as ``moments_of`` has it. Raises: StorageError."""
    times, offsets = times_of(turns, rows), turns.column("utc_offset_s")[rows].astype(np.int64)
    unknown, fixed = np.flatnonzero(offsets == NO_OFFSET_S), zone.utcoffset(None)
    offsets[unknown] = 0 if fixed is None else fixed // timedelta(seconds=1)
    days: NDArray[np.int64] = (times + offsets * _SECOND_US) // DAY_US
    try:
        if len(days):
            first, last = (from_us(int(end)).toordinal() - _EPOCH for end in (times.min(), times.max()))
            days = np.where((days < _FIRST_DAY) | (days > _LAST_DAY), np.clip(days, first, last), days)
        if fixed is None:  # clocks of such a zone change
            moments = moments_of(turns, rows[unknown], zone)
            days[unknown] = [moment.day.toordinal() - _EPOCH for moment in moments]
    except OverflowError as error:
        raise undated(turns.relation, map(turns.packed, rows.tolist())) from error
    return days


def user_days(turns: RelationSnapshot, rows: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    """Return the days of turns of the user, 0 for others: an answer is of the day of its question."""
    days = np.zeros(len(rows), np.int64)
    users = np.flatnonzero(turns.column("role")[rows] == turns.enum_code("role", TurnRole.USER.value))
    days[users] = days_of(turns, rows[users], zone)
    return days


@lru_cache(maxsize=1_024)
def day_text(day: int) -> str:
    """Return a day, counted from 1970, as passages name it: 8 May 2023."""
    try:
        when = from_us(day * DAY_US)
    except OverflowError:
        raise damaged(NO_INSTANT) from None
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}"


def day_mark(day: int) -> str:
    """Return the line before the first turn of a day in a conversation: — Tuesday, 12 May 2026 —"""
    return f"— {_WEEKDAYS[(day + 3) % 7]}, {day_text(day)} —\n"
