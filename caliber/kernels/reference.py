"""Reference implementations in Python of three native kernels: UUIDv7, SHA-256, and budget filling.

Written to be read; the tests compare the C code with it, bit for bit, and it runs under ``CALIBER_NATIVE=off``.
Arguments must have been checked already. The folders of other kernels have their own ``reference`` modules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

I64s = npt.NDArray[np.int64]
U8s = npt.NDArray[np.uint8]


# --- identifiers -------------------------------------------------------------------------------


def uuid7_fill(state: npt.NDArray[Any], unix_ms: int, entropy: bytes, count: int) -> bytes:
    """``count`` UUIDv7 of 16 bytes; ``state`` holds the last timestamp and counter and is updated.

    Units:   entropy: 10 bytes an id
    Raises:  OverflowError when the 48-bit timestamp is used up
    """
    out = bytearray()
    for number in range(count):
        random = entropy[10 * number : 10 * number + 10]
        last_ms, counter = int(state["unix_ms"]), int(state["counter"])
        seed = int.from_bytes(random[8:10], "big") & 0x7FF
        if unix_ms > last_ms:
            last_ms, counter = unix_ms, seed
        elif counter < 0xFFF:
            counter += 1
        else:
            last_ms, counter = last_ms + 1, seed
            if last_ms >= 1 << 48:
                raise OverflowError("UUIDv7 timestamp")
        state["unix_ms"], state["counter"] = last_ms, counter
        out += last_ms.to_bytes(6, "big") + (0x7000 | counter).to_bytes(2, "big")
        out += bytes([0x80 | (random[0] & 0x3F)]) + random[1:8]
    return bytes(out)


# --- digests -----------------------------------------------------------------------------------


def sha256_batch(items: Sequence[bytes]) -> U8s:
    """SHA-256 of each item.

    Shapes:  -> uint8[n, 32]
    """
    joined = b"".join(hashlib.sha256(item).digest() for item in items)
    return np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(len(items), 32)


def sha256_spans(data: U8s, offsets: npt.NDArray[Any]) -> U8s:
    """SHA-256 of each span of ``data``.

    Shapes:  data uint8[s]; offsets int32 or int64[n + 1] -> uint8[n, 32]
    """
    edges = offsets.tolist()
    return sha256_batch([data[a:b].tobytes() for a, b in pairwise(edges)])


# --- ranking -----------------------------------------------------------------------------------

INCLUDED, EXCLUDED_RELEVANCE, EXCLUDED_SECTION_BUDGET, EXCLUDED_BUDGET, EXCLUDED_GROUP = 1, 2, 3, 4, 5


def rank_and_fill(
    columns: Any,
    *,
    budget: int,
    section_budget: npt.NDArray[np.int32],
    section_overhead: npt.NDArray[np.int32],
    separator_tokens: int,
    min_relevance: float,
) -> tuple[I64s, U8s]:
    """Rank all candidates and decide which fit; the rules are those of ``caliber.kernels.rank``.

    Shapes:  -> order int64[n], decision uint8[n]
    """
    count = columns.priority.shape[0]
    relevance = columns.relevance.astype(np.float64)
    ranking = np.lexsort(
        [columns.tie[:, 1], columns.tie[:, 0], columns.age_us, -relevance, -columns.priority.astype(np.int64)]
    ).tolist()
    group, section, tokens = columns.group.tolist(), columns.section.tolist(), columns.tokens.tolist()
    members: dict[int, list[int]] = {}
    for i in ranking:
        if group[i] >= 0:
            members.setdefault(group[i], []).append(i)

    floor = float(np.float32(min_relevance))
    order: list[int] = []
    decision = np.zeros(count, dtype=np.uint8)
    used = 0
    section_used: dict[int, int] = {}
    for first in ranking:
        unit = [first] if group[first] < 0 else members[group[first]]
        if unit[0] != first:
            continue
        order += unit
        s = section[first]
        cost = sum(tokens[i] for i in unit) + separator_tokens * (len(unit) - 1)
        cost += separator_tokens if s in section_used else int(section_overhead[s])
        in_section = section_used.get(s, 0)
        if max(relevance[i] for i in unit) < floor:
            code = others = EXCLUDED_RELEVANCE
        elif section_budget[s] >= 0 and in_section + cost > section_budget[s]:
            code, others = EXCLUDED_SECTION_BUDGET, EXCLUDED_GROUP
        elif used + cost > budget:
            code, others = EXCLUDED_BUDGET, EXCLUDED_GROUP
        else:
            code = others = INCLUDED
            used += cost
            section_used[s] = in_section + cost
        decision[unit] = others
        decision[first] = code
    return np.array(order, dtype=np.int64), decision
