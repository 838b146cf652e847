"""UUIDv7 against RFC 9562, appendix A.6. C-304."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from support.kernels.instruction_sets import PORTABLE, running_on

from caliber.kernels import identifiers

pytestmark = pytest.mark.prove

EXAMPLE = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
UNIX_MS = 0x017F22E279B0  # Tuesday, February 22, 2022 2:22:22.00 PM GMT-05:00
RAND_A = 0xCC3
RAND_B = 0x18C4DC0C0C07398F


@pytest.mark.parametrize("path", PORTABLE)
def test_the_published_example_comes_out_of_its_fields(path: str) -> None:
    # rand_a is our counter: it reaches the example's value by counting on from the one before.
    state = np.array((UNIX_MS, RAND_A - 1), dtype=identifiers.STATE)
    with running_on(path):
        raw = identifiers.fill(state, UNIX_MS, RAND_B.to_bytes(8, "big") + bytes(2), 1)
    assert UUID(bytes=raw) == EXAMPLE


@pytest.mark.parametrize("path", PORTABLE)
def test_fields_are_where_the_layout_puts_them(path: str) -> None:
    state = np.zeros((), dtype=identifiers.STATE)
    with running_on(path):
        ones = int.from_bytes(identifiers.fill(state, 2**48 - 1, b"\xff" * 10, 1), "big")
        state[...] = (0, 0)
        zeros = int.from_bytes(identifiers.fill(state, 1, bytes(10), 1), "big")
    assert f"{ones:0128b}" == "1" * 48 + "0111" + "0" + "1" * 11 + "10" + "1" * 62
    assert f"{zeros:0128b}" == "0" * 47 + "1" + "0111" + "0" * 12 + "10" + "0" * 62
