"""UUIDv7 against uuid_utils. Goals: design section 9."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from harness.contest import ASIDE, CPU, OURS, PEER, Contender, paths
from harness.peers import peer

from caliber import kernels

uuid_utils, compat = peer("uuid_utils"), peer("uuid_utils.compat")

BEST = kernels.available_paths()[-1]
COUNT = 10_000


def check(ids: list[uuid.UUID]) -> None:
    """RFC 9562: version 7, its variant, and each greater than the one before."""
    assert {(type(item), item.version, item.variant) for item in ids} == {(uuid.UUID, 7, uuid.RFC_4122)}
    assert all(first < second for first, second in pairwise(ids))


def test_uuid7(contest: Callable[..., None]) -> None:
    check([kernels.uuid7() for _ in range(1_000)])
    contenders = [Contender(OURS, BEST, kernels.uuid7, goal=2.0)]
    if compat is not None:
        check([compat.uuid7() for _ in range(1_000)])
        own = f"uuid_utils {uuid_utils.__version__}"
        contenders.append(Contender(PEER, f"uuid_utils.compat {uuid_utils.__version__}", compat.uuid7))
        contenders.append(Contender(ASIDE, own, uuid_utils.uuid7, note="a UUID class of its own"))
    if hasattr(uuid, "uuid7"):  # Python 3.14
        contenders.append(Contender(PEER, "uuid.uuid7", uuid.uuid7))
    contest("uuid7, one", contenders, clock=CPU)


def test_uuid7_batch(contest: Callable[..., None]) -> None:
    batch = kernels.uuid7_batch(COUNT)
    assert batch.shape == (COUNT, 16)
    assert batch.dtype == np.uint8
    check([uuid.UUID(bytes=row.tobytes()) for row in batch])
    contenders = paths(lambda: kernels.uuid7_batch(COUNT), (BEST,), goal=20.0)
    for contender in contenders:
        with contender.around():
            check([uuid.UUID(bytes=row.tobytes()) for row in kernels.uuid7_batch(COUNT)])
    if compat is not None:

        def with_uuid_utils() -> list[bytes]:
            make = compat.uuid7
            return [make().bytes for _ in range(COUNT)]

        check([uuid.UUID(bytes=row) for row in with_uuid_utils()])
        contenders.append(Contender(PEER, f"uuid_utils.compat {uuid_utils.__version__}", with_uuid_utils))
    contest("uuid7, 10k", contenders, clock=CPU)
