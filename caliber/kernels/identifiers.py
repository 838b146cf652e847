"""UUIDv7: time-ordered identifiers, strictly increasing within a process.

Source: RFC 9562, sections 5.7 and 6.2; C-304, C-305; design section 6.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from operator import add
from typing import Any
from uuid import UUID, SafeUUID

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch, reference
from caliber.model.errors import InternalError, InvalidValue

ENTROPY_PER_ID = 10
_TIMESTAMP_LIMIT = 1 << 48
_COUNTER_MAX = 0xFFF
_COUNTER_SEED = 0x7FF  # the top bit starts at 0, which leaves room to count
_MOST_AHEAD = 128  # of some 4,000 that one thread makes in a millisecond
_BUFFERED = 512
_TWO, _VARIANT = np.uint64(2), np.uint64(1 << 63)
_NEXT_COUNTER = 1 << 64
STATE = np.dtype([("unix_ms", np.uint64), ("counter", np.uint32)], align=True)  # cal_uuid7_state

# UUID refuses assignment; its slots are set as UUID's own constructor does, without parsing text or fields.
_new_uuid = UUID.__new__
_set_int = UUID.__dict__["int"].__set__
_set_is_safe = UUID.__dict__["is_safe"].__set__
_UNKNOWN = SafeUUID.unknown
_time_ns = time.time_ns


def fill(state: npt.NDArray[Any], unix_ms: int, entropy: bytes, count: int) -> bytes:
    """Return ``count`` ids of 16 bytes from a given clock and entropy, continuing ``state``.

    Shapes:  state: one ``STATE``
    Units:   entropy: 10 bytes an id
    Raises:  InvalidValue for a clock of 2^48 ms or more, or the wrong amount of entropy
    """
    native = dispatch.native()
    if native is None:
        checks.whole(unix_ms, field="unix_ms", high=2**48 - 1)
        checks.whole(len(entropy), field="entropy", low=10 * count, high=10 * count)
        try:
            return reference.uuid7_fill(state, unix_ms, entropy, count)
        except OverflowError as error:
            raise InternalError("the 48-bit timestamp of UUIDv7 is used up") from error
    out = bytearray(16 * count)
    ffi = native.ffi
    status = native.lib.cal_uuid7(
        ffi.cast("cal_uuid7_state *", ffi.from_buffer("uint8_t[]", state)),
        unix_ms,
        ffi.from_buffer("uint8_t[]", entropy),
        len(entropy),
        count,
        ffi.from_buffer("uint8_t[]", out),
    )
    dispatch.check(status, argument="unix_ms or entropy")
    return bytes(out)


class _Generator:
    """The state of this process: the last id, ids of the current millisecond made in advance, and entropy.

    One id costs one look at the clock and one ``list.pop``, which is atomic, and no lock. ``numbers`` holds ids of the
    millisecond that ends at ``end_ns``, the lowest last; a clock before that, even one set back, takes the next of
    them. What is left when the millisecond ends is thrown away. Only making more takes the lock; whoever else is
    within a call meanwhile may get an id of before or after, as calls at the same time have no order.
    """

    __slots__ = ("_ahead", "_counter", "_entropy", "_made", "_unix_ms", "end_ns", "lock", "numbers")

    def __init__(self) -> None:
        self._unix_ms = 0
        self._counter = 0
        self._made = 0
        self.numbers: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget ids and entropy made in advance, and the lock, but not the last id; a forked child starts here."""
        # Reentrant, so that a signal handler may make an id while the thread it interrupts is making one.
        self.lock = threading.RLock()
        self.numbers.clear()  # in place: a call that the fork interrupted may be about to take from it
        self._entropy: list[int] = []
        self._ahead = 1
        self._made += 1
        self.end_ns = 0

    def more(self) -> int:
        """Return the next id as a number, and leave some more of its millisecond in ``numbers``."""
        with self.lock:
            while True:
                made = self._made
                unix_ms = time.time_ns() // 1_000_000
                if unix_ms <= self._unix_ms and self.numbers:
                    try:
                        return self.numbers.pop()  # another thread was faster
                    except IndexError:
                        continue
                # One at first, as most milliseconds see one call or none.
                ahead = 1 if unix_ms > self._unix_ms else min(self._ahead * 4, _MOST_AHEAD)
                unix_ms, counter = self._following(unix_ms)
                ahead = min(ahead, _COUNTER_MAX + 1 - counter)
                number = (unix_ms << 80) + (0x7000 + counter << 64)
                numbers: list[int] = []
                if ahead > 1:
                    numbers += map(add, itertools.count(number, _NEXT_COUNTER), self._many_random(ahead))
                    number = numbers[0]
                    numbers.reverse()
                    numbers.pop()
                else:
                    number += self._random()
                # A signal handler may have made ids since; then these would be late. Handlers run at calls and
                # where loops return, of which there is none from here to the end.
                if made == self._made:
                    self._made = made + 1
                    self._unix_ms = unix_ms
                    self._counter = counter + ahead - 1
                    self._ahead = ahead
                    self.numbers[:] = numbers
                    self.end_ns = (unix_ms + 1) * 1_000_000
                    return number

    def batch(self, count: int) -> bytes:
        """Return the next ids, 16 bytes each."""
        entropy = os.urandom(ENTROPY_PER_ID * count)
        with self.lock:
            self.numbers.clear()
            while True:
                made = self._made
                state = np.array((self._unix_ms, self._counter), dtype=STATE)
                raw = fill(state, time.time_ns() // 1_000_000, entropy, count)
                unix_ms, counter = int(state["unix_ms"]), int(state["counter"])
                if made == self._made:  # as in ``more``
                    self._made = made + 1
                    self._unix_ms = unix_ms
                    self._counter = counter
                    self._ahead = 1  # what single calls make ahead now is lost to the next batch
                    self.numbers[:] = ()
                    self.end_ns = 0
                    return raw

    def _following(self, unix_ms: int) -> tuple[int, int]:
        """Return timestamp and counter of the next id, by the rules of caliber.h."""
        if unix_ms > self._unix_ms:
            if unix_ms >= _TIMESTAMP_LIMIT:
                raise InvalidValue(field="unix_ms", reason="the clock is beyond what a UUIDv7 can hold")
            return unix_ms, self._random() & _COUNTER_SEED
        if self._counter < _COUNTER_MAX:
            return self._unix_ms, self._counter + 1
        if self._unix_ms + 1 == _TIMESTAMP_LIMIT:
            raise InternalError("the 48-bit timestamp of UUIDv7 is used up")
        return self._unix_ms + 1, self._random() & _COUNTER_SEED

    def _random(self) -> int:
        """Return the low half of an id: the variant and 62 bits that were never used before."""
        try:
            return self._entropy.pop()
        except IndexError:
            return self._many_random(1)[0]

    def _many_random(self, count: int) -> list[int]:
        while True:
            taken = self._entropy[-count:]
            del self._entropy[-count:]
            if len(taken) == count:
                return taken
            raw = np.frombuffer(os.urandom(8 * _BUFFERED), dtype=np.uint64)
            self._entropy = (raw >> _TWO | _VARIANT).tolist()


_generator = _Generator()
os.register_at_fork(after_in_child=_generator.reset)


def uuid7() -> UUID:
    """Return a new UUIDv7, greater than every one that was returned in this process before the call.

    Raises:  InvalidValue for a clock beyond the year 10889
    """
    generator = _generator
    if _time_ns() < generator.end_ns:
        try:
            number = generator.numbers.pop()
        except IndexError:
            number = generator.more()
    else:
        number = generator.more()
    made = _new_uuid(UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


def uuid7_batch(n: int) -> npt.NDArray[np.uint8]:
    """Return n new UUIDv7, increasing, each greater than every one that was returned before the call.

    Shapes:  -> uint8[n, 16]
    Raises:  DTypeError, InvalidValue
    """
    count = checks.whole(n, field="n", high=2**32)
    return np.frombuffer(bytearray(_generator.batch(count)), dtype=np.uint8).reshape(count, 16)
