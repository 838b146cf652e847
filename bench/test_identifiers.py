"""UUIDv7 against uuid_utils. Goals: design section 9."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from harness.contest import ASIDE, CPU, OURS, PEER, Contender, paths

from caliber import kernels

uuid_utils = pytest.importorskip("uuid_utils", reason="not installed: make bench installs the peers")
compat = pytest.importorskip("uuid_utils.compat", reason="not installed: make bench installs the peers")

BEST = kernels.available_paths()[-1]
COMPAT = f"uuid_utils.compat {uuid_utils.__version__}"
COUNT = 10_000


def check(ids: list[uuid.UUID]) -> None:
    """RFC 9562: version 7, its variant, and each greater than the one before."""
    assert {(type(item), item.version, item.variant) for item in ids} == {(uuid.UUID, 7, uuid.RFC_4122)}
    assert all(first < second for first, second in pairwise(ids))


def test_uuid7(contest: Callable[..., None]) -> None:
    check([kernels.uuid7() for _ in range(1_000)])
    check([compat.uuid7() for _ in range(1_000)])
    contenders = [
        Contender(OURS, BEST, kernels.uuid7, goal=2.0),
        Contender(PEER, COMPAT, compat.uuid7),
        Contender(ASIDE, f"uuid_utils {uuid_utils.__version__}", uuid_utils.uuid7, note="a UUID class of its own"),
    ]
    if hasattr(uuid, "uuid7"):  # Python 3.14
        contenders.append(Contender(PEER, "uuid.uuid7", uuid.uuid7))
    contest("uuid7, one", contenders, clock=CPU)


def test_uuid7_batch(contest: Callable[..., None]) -> None:
    def with_uuid_utils() -> list[bytes]:
        make = compat.uuid7
        return [make().bytes for _ in range(COUNT)]

    batch = kernels.uuid7_batch(COUNT)
    assert batch.shape == (COUNT, 16)
    assert batch.dtype == np.uint8
    check([uuid.UUID(bytes=row.tobytes()) for row in batch])
    check([uuid.UUID(bytes=row) for row in with_uuid_utils()])
    contenders = [
        *paths(lambda: kernels.uuid7_batch(COUNT), ("off", BEST), goal=20.0),
        Contender(PEER, COMPAT, with_uuid_utils),
    ]
    contest("uuid7, 10k", contenders, clock=CPU)
