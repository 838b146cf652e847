"""The small world that windows are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.context import world as kit


@pytest.fixture
def world() -> Iterator[Any]:
    made = kit.World()
    yield made
    made.close()
