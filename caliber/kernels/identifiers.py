"""UUIDv7 generator: time-ordered identifiers, strictly increasing within a process.

Source: RFC 9562, sections 5.7 and 6.2; C-304, C-305; design section 6.
"""

from __future__ import annotations

import itertools
import os
import time
from operator import add
from typing import Any
from uuid import UUID, SafeUUID

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InternalError, InvalidValue

ENTROPY_PER_ID = 10
_TIMESTAMP_LIMIT = 1 << 48
_COUNTER_BITS = 12
_COUNTER_MAX = 0xFFF
_COUNTER_SEED = 0x7FF  # the top bit starts at 0, which leaves room to count
_NEXT_AHEAD = 4
_MOST_AHEAD = 256  # of some 3,000 that one thread makes in a millisecond
_RANDOM_BITS = 62
_LOW_VARIANT = 1 << 63
_TWO = np.uint64(64 - _RANDOM_BITS)
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
    """The state of this process: the last id, and ids of the current millisecond made in advance.

    One id costs one look at the clock and one ``list.pop``, which is atomic, and no lock. ``numbers`` holds ids of the
    millisecond that ends at ``end_ns``, the lowest last; a clock before that, even one set back, takes the next of
    them. What is left when the millisecond ends is thrown away.

    Nothing here waits or tries again, because a signal handler may make an id while the thread that it interrupts is
    making one, and a fast timer may interrupt the handler too. Handlers, and other threads, run at calls and where
    loops return. So a call first reserves its ids in a stretch of lines without a call or a loop, then makes them, and
    leaves ids in ``numbers`` only if nobody has reserved later ones meanwhile. A call within another one makes no id in
    advance. Calls at the same time have no order: each may get the lower id.
    """

    __slots__ = ("_ahead", "_busy", "_forks", "_last", "end_ns", "numbers")

    def __init__(self) -> None:
        self._last = 0
        """The last id that was reserved: its timestamp and, in the low 12 bits, its counter."""
        self._forks = 0
        self.numbers: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget ids made in advance, but not the last one reserved; a forked child starts here."""
        self.numbers.clear()  # in place: a call that the fork interrupted may be about to take from it
        self.end_ns = 0
        self._ahead = 1
        self._busy = False
        self._forks += 1

    def more(self) -> int:
        """Return the next id as a number, and leave some more of its millisecond in ``numbers``."""
        forks = self._forks
        if self._busy:
            number = self._reserve(1)[0]
        else:
            self._busy = True
            try:
                number = self._several()
            finally:
                self._busy = False
        # After a fork that interrupted this call, both processes hold ids that were made before it.
        return number if forks == self._forks else self.more()

    def _several(self) -> int:
        forks, ahead = self._forks, self._ahead
        number, first, last = self._reserve(ahead)
        # One at first, as most milliseconds see one call or none.
        self._ahead = min(ahead * 4, _MOST_AHEAD) if last - first == ahead - 1 else _NEXT_AHEAD
        if last > first:
            highest = (number >> _RANDOM_BITS << _RANDOM_BITS) + (last - first) * _NEXT_COUNTER
            raw = np.frombuffer(os.urandom(8 * (last - first)), dtype=np.uint64)
            numbers = list(map(add, itertools.count(highest, -_NEXT_COUNTER), (raw >> _TWO).tolist()))
            end_ns = ((first >> _COUNTER_BITS) + 1) * 1_000_000
            if self._last == last and self._forks == forks:  # no call from here to the end
                self.numbers[:] = numbers
                self.end_ns = end_ns
        return number

    def _reserve(self, count: int) -> tuple[int, int, int]:
        """Reserve up to ``count`` ids of one millisecond, and only one if it is a new millisecond.

        Return the first id as a number, and timestamp and counter of the first and of the last, by the rules of
        caliber.h.
        """
        entropy = int.from_bytes(os.urandom(ENTROPY_PER_ID), "little")
        unix_ms = time.time_ns() // 1_000_000
        if unix_ms >= _TIMESTAMP_LIMIT:
            raise InvalidValue(field="unix_ms", reason="the clock is beyond what a UUIDv7 can hold")
        # No call until it is reserved.
        seed = entropy & _COUNTER_SEED
        before = self._last
        if unix_ms > before >> _COUNTER_BITS:
            first = last = (unix_ms << _COUNTER_BITS) + seed
        else:
            first = before + 1 if before & _COUNTER_MAX < _COUNTER_MAX else before + 1 + seed
            last = first + count - 1 if first & _COUNTER_MAX <= _COUNTER_MAX + 1 - count else first | _COUNTER_MAX
        if first >> _COUNTER_BITS >= _TIMESTAMP_LIMIT:
            raise InternalError("the 48-bit timestamp of UUIDv7 is used up")
        self._last = last
        self.end_ns = 0  # numbers holds lower ones
        number = (first >> _COUNTER_BITS << 80) + ((0x7000 + (first & _COUNTER_MAX)) << 64)
        return number + _LOW_VARIANT + (entropy >> 80 - _RANDOM_BITS), first, last

    def batch(self, count: int) -> bytes:
        """Return the next ids, 16 bytes each."""
        while True:
            forks = self._forks
            entropy = os.urandom(ENTROPY_PER_ID * count)
            unix_ms = time.time_ns() // 1_000_000
            # More milliseconds than these ids can need are reserved at first. No call until then.
            before = self._last
            start_ms = unix_ms if unix_ms > before >> _COUNTER_BITS else before >> _COUNTER_BITS
            last = start_ms + 2 + count // (_COUNTER_MAX + 1 - _COUNTER_SEED) << _COUNTER_BITS
            self._last = last
            self.end_ns = 0
            used = before
            try:
                state = np.array((before >> _COUNTER_BITS, before & _COUNTER_MAX), dtype=STATE)
                raw = fill(state, unix_ms, entropy, count)
                used = (int(state["unix_ms"]) << _COUNTER_BITS) + int(state["counter"])
            finally:
                if self._last == last:
                    self._last = used
            if forks == self._forks:
                return raw


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
