"""SHA-256 of many short items against a loop over hashlib. Goals: design section 9."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from harness.contest import ASIDE, CPU, PEER, Contender, paths
from harness.peers import peer

from caliber import kernels

blake3 = peer("blake3")

PATHS = kernels.available_paths()
COUNT, SIZE = 1_000, 512


def test_sha256_batch(contest: Callable[..., None]) -> None:
    items = [os.urandom(SIZE) for _ in range(COUNT)]
    expected = b"".join(hashlib.sha256(item).digest() for item in items)
    contenders = paths(lambda: kernels.sha256_batch(items), PATHS, goal=1.5)
    for contender in contenders:
        with contender.around():
            assert kernels.sha256_batch(items).tobytes() == expected
    contenders.append(Contender(PEER, "hashlib loop", lambda: [hashlib.sha256(item).digest() for item in items]))
    if blake3 is not None:
        contenders.append(
            Contender(
                ASIDE,
                f"blake3 {blake3.__version__} loop",
                lambda: [blake3.blake3(item).digest() for item in items],
                note="another function",
            )
        )
    contest(f"sha256, 1k x {SIZE} B", contenders, clock=CPU)


def test_sha256_spans(contest: Callable[..., None]) -> None:
    """A column as Arrow keeps it: one buffer, and where each value begins."""
    sizes = np.random.default_rng(1).integers(0, 2 * SIZE, COUNT)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    data = np.frombuffer(os.urandom(int(offsets[-1])), np.uint8)
    view, ends = memoryview(data), offsets.tolist()

    def with_hashlib() -> list[bytes]:
        return [hashlib.sha256(view[start:stop]).digest() for start, stop in pairwise(ends)]

    expected = b"".join(with_hashlib())
    contenders = paths(lambda: kernels.sha256_spans(data, offsets), PATHS)
    for contender in contenders:
        with contender.around():
            assert kernels.sha256_spans(data, offsets).tobytes() == expected
    contest(
        "sha256 of Arrow spans, 1k x 0-1 KiB", [*contenders, Contender(PEER, "hashlib loop", with_hashlib)], clock=CPU
    )
