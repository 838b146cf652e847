"""The kernel of UUIDv7 in Python."""

from __future__ import annotations

import numpy as np


def fill(state: np.ndarray, unix_ms: int, entropy: bytes, count: int) -> bytes:
    """Return ``count`` ids of 16 bytes, of 10 bytes of entropy each; ``state`` is the last timestamp and counter."""
    out = b""
    for at in range(0, 10 * count, 10):
        random = entropy[at : at + 10]
        last_ms, counter = int(state["unix_ms"]), int(state["counter"])
        seed = int.from_bytes(random[8:], "big") & 0x7FF
        if unix_ms > last_ms:
            last_ms, counter = unix_ms, seed
        elif counter < 0xFFF:
            counter += 1
        else:
            last_ms, counter = last_ms + 1, seed
        state["unix_ms"], state["counter"] = last_ms, counter
        out += last_ms.to_bytes(6, "big") + (0x7000 | counter).to_bytes(2, "big")
        out += bytes([0x80 | (random[0] & 0x3F)]) + random[1:8]
    return out
