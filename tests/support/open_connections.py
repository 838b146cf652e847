"""Guard over every test: it leaves no connection to PostgreSQL to the garbage collector.

A connection that dies open says so in a warning, at whatever moment garbage is collected: as an error it would fail a
test that has nothing to do with it. Here it fails the test that made it.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections.abc import Generator
from typing import Any

import pytest

MADE: list[weakref.ref[Any]] = []


def _watch() -> None:
    """Note each connection from now on, once tests have imported the driver."""
    from psycopg import Connection

    init = Connection.__init__
    if init.__module__ == __name__:
        return

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        MADE.append(weakref.ref(self))

    Connection.__init__ = noted  # type: ignore[method-assign]


def _open() -> list[weakref.ref[Any]]:
    held = [(each, each()) for each in MADE]
    return [each for each, connection in held if connection is not None and not connection.closed]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    if "psycopg" in sys.modules:
        _watch()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    MADE[:] = before = _open()
    if before:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            gc.collect()
        MADE[:] = [each for each in before if each() is not None]
        lost = len(before) - len(MADE)
        assert not lost, f"{lost} connections to PostgreSQL were left open, to the garbage collector"
    return result
