"""Background work beside the calls: reported once an outage, and never ended by a fault."""

from __future__ import annotations

import threading

import pytest

from caliber.engine.background import DelayedTask, PeriodicTask
from caliber.model.errors import CaliberError, InternalError, Unavailable


@pytest.mark.parametrize("error", [Unavailable("away", reason="timeout"), KeyError("ours")])
def test_a_task_that_fails_is_told_of_once_and_goes_on(error: Exception) -> None:
    told: list[CaliberError] = []
    calls = threading.Semaphore(0)
    fails = threading.Event()
    fails.set()

    def task() -> None:
        calls.release()
        if fails.is_set():
            raise error

    repeating = PeriodicTask("look", task, every_ms=1, failed=lambda name, fault: told.append(fault))
    repeating.start()
    for _ in range(3):
        assert calls.acquire(timeout=30)
    fails.clear()
    for _ in range(2):
        assert calls.acquire(timeout=30)
    repeating.stop()
    assert len(told) == 1
    assert isinstance(told[0], Unavailable if isinstance(error, Unavailable) else InternalError)
    assert told[0] is error or told[0].__cause__ is error


def test_what_is_done_once_tells_of_any_fault() -> None:
    told: list[CaliberError] = []
    heard = threading.Event()

    def task(stopped: object) -> None:
        raise KeyError("ours")

    def failed(name: str, fault: CaliberError) -> None:
        told.append(fault)
        heard.set()

    once = DelayedTask("warm", task, after_ms=1, failed=failed)
    once.start()
    assert heard.wait(30)
    once.stop()
    assert isinstance(told[0], InternalError)
