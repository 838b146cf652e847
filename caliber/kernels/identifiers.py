"""UUIDv7: time-ordered identifiers, strictly increasing within a process.

Source: RFC 9562, sections 5.7 and 6.2; C-304, C-305; design section 6.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any
from uuid import UUID, SafeUUID

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch, reference
from caliber.model.errors import InternalError

ENTROPY_PER_ID = 10
_BUFFERED_IDS = 400
STATE = np.dtype([("unix_ms", np.uint64), ("counter", np.uint32)], align=True)  # cal_uuid7_state

# UUID refuses assignment; its slots are set as UUID's own constructor does, without parsing text or fields.
_new_uuid = UUID.__new__
_set_int = UUID.__dict__["int"].__set__
_set_is_safe = UUID.__dict__["is_safe"].__set__
_UNKNOWN = SafeUUID.unknown


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
    """The state of this process: last id, a buffer of entropy, and the lock around both."""

    def __init__(self) -> None:
        self.state = np.zeros((), dtype=STATE)
        self.reset()

    def reset(self) -> None:
        """Forget the entropy and the lock, but not the last id; a forked child starts here."""
        # Reentrant, so that a signal handler may make an id while the thread it interrupts is making one.
        self.lock = threading.RLock()
        self.entropy = b""
        self.position = 0
        self.native: dispatch.Native | None = None
        self.pointers: tuple[Any, Any] = (None, None)
        self.out = bytearray(16)

    def next(self) -> int:
        """Return the next id as a number; the caller holds the lock."""
        start = self.position
        if start >= len(self.entropy):
            self.entropy = os.urandom(ENTROPY_PER_ID * _BUFFERED_IDS)
            start = 0
        self.position = start + ENTROPY_PER_ID  # every byte of entropy is used at most once
        random = self.entropy[start : start + ENTROPY_PER_ID]
        now = time.time_ns() // 1_000_000
        native = dispatch.native()
        if native is None:
            return int.from_bytes(fill(self.state, now, random, 1), "big")
        if native is not self.native:
            ffi = native.ffi
            state = ffi.cast("cal_uuid7_state *", ffi.from_buffer("uint8_t[]", self.state))
            self.native, self.pointers = native, (state, ffi.from_buffer("uint8_t[]", self.out))
        state, out = self.pointers
        # cffi passes bytes as they are: the cheapest way to hand ten of them over.
        status = native.lib.cal_uuid7(state, now, random, ENTROPY_PER_ID, 1, out)
        if status:
            dispatch.check(status, argument="unix_ms")
        return int.from_bytes(self.out, "big")


_generator = _Generator()
os.register_at_fork(after_in_child=_generator.reset)


def uuid7() -> UUID:
    """Return a new UUIDv7, greater than every earlier one of this process.

    Raises:  nothing
    """
    with _generator.lock:
        number = _generator.next()
    made = _new_uuid(UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


def uuid7_batch(n: int) -> npt.NDArray[np.uint8]:
    """Return n new UUIDv7, increasing, each greater than every earlier one of this process.

    Shapes:  -> uint8[n, 16]
    Raises:  DTypeError, InvalidValue
    """
    count = checks.whole(n, field="n", high=2**32)
    entropy = os.urandom(ENTROPY_PER_ID * count)
    with _generator.lock:
        raw = fill(_generator.state, time.time_ns() // 1_000_000, entropy, count)
    return np.frombuffer(bytearray(raw), dtype=np.uint8).reshape(count, 16)
