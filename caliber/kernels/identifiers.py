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

    def take(self) -> bytes:
        """Return entropy for one id; every byte of the buffer is used at most once."""
        start = self.position
        if start >= len(self.entropy):
            self.entropy = os.urandom(ENTROPY_PER_ID * _BUFFERED_IDS)
            start = 0
        self.position = start + ENTROPY_PER_ID
        return self.entropy[start : start + ENTROPY_PER_ID]


_generator = _Generator()
os.register_at_fork(after_in_child=_generator.reset)


def uuid7() -> UUID:
    """Return a new UUIDv7, greater than every earlier one of this process.

    Raises:  nothing
    """
    with _generator.lock:
        raw = fill(_generator.state, time.time_ns() // 1_000_000, _generator.take(), 1)
    made = _new_uuid(UUID)
    _set_int(made, int.from_bytes(raw, "big"))
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
