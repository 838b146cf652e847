"""Faults planted in the product: one piece of a function's source exchanged for a block."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock


class Plant(NamedTuple):
    """A fault: the module or class with the function, its name, the piece and its replacement."""

    owner: Any
    name: str
    old: str
    new: str


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Run a block with a fault in the product. Raises: AssertionError when the piece is not in the function once."""
    function = plant.owner.__dict__[plant.name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(plant.old) == 1, f"{plant.old!r} stands {source.count(plant.old)} times in {plant.name}"
    made: dict[str, Any] = {}
    exec(
        compile(source.replace(plant.old, plant.new), function.__code__.co_filename, "exec"), function.__globals__, made
    )
    with mock.patch.object(plant.owner, plant.name, made[plant.name]):
        yield
