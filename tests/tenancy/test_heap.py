"""Memory of closed tenants that lies between blocks of open ones is given back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest
from support.waits import until

from caliber.tenancy import pool as pools
from caliber.tenancy.pool import CLOSINGS_A_TRIM, HandlePool, give_back_freed

pytestmark = pytest.mark.prove

BLOCK = 2_000
"""Bytes of a block: Python takes what is smaller from arenas of its own."""


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def open_and_close(tenants: int, stays: list[bytes]) -> float:
    """Open as many tenants of 1 MB, close them, and return what the process had before. ``stays`` lies between them."""

    def opening(_: str) -> list[bytes]:
        made = []
        for number in range(500):
            made.append(bytes(BLOCK))
            if number % 100 == 0:
                stays.append(bytes(BLOCK))
        return made

    pool = HandlePool(tenants, opening=opening, closing=list[bytes].clear, usable=lambda _: True)
    give_back_freed()  # else blocks that earlier tests freed would be taken, and none from the system
    before = resident_mb()
    for number in range(tenants):
        pool.take(str(number), 1, 60)
        pool.give_back(str(number), 1)
    assert resident_mb() - before > 0.5 * tenants
    pool.close()
    assert pool.stats().closed == tenants
    return before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps it")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_closed_tenants_leave_their_memory_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants, stays = 2 * CLOSINGS_A_TRIM, list[bytes]()
    before = open_and_close(tenants, stays)
    until(lambda: resident_mb() - before < 0.25 * tenants)
    monkeypatch.setattr(pools, "give_back_freed", lambda: None)
    before = open_and_close(tenants, stays)
    assert resident_mb() - before > 0.5 * tenants, "else this test would see nothing"
