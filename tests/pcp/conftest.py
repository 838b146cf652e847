"""A clock that stands still, and two notes that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from support.agents.conflicts import Pair
from support.databases import Backend
from support.weeks import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def pair(start: Any, backend: Backend, clock: SetClock) -> Pair:
    return Pair(start, backend, clock)
