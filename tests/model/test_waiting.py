"""Waits of threads survive exceptions of signal handlers, however many come. Source: design section 10."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.evidence import seed
from support.inspection import replaced
from support.threads import begin

from caliber.engine.worker import Worker
from caliber.llm.local import static
from caliber.storage.waiting import Condition, Flag, apart

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals")
DEPTH = 4


class Late(Exception):
    """A time limit that passed."""


@pytest.fixture
def late() -> Iterator[threading.Event]:
    """An event that says that the time limit has passed."""
    passed = threading.Event()

    def handler(*_: Any) -> None:
        if not passed.is_set():
            passed.set()
            raise Late

    before = signal.signal(signal.SIGALRM, handler)
    yield passed
    signal.signal(signal.SIGALRM, before)


def interrupt(late: threading.Event) -> None:
    """Send the signal until it is handled: one that comes just before the main thread blocks does not wake it."""
    while not late.is_set():
        os.kill(os.getpid(), signal.SIGALRM)
        late.wait(0.1)


def test_a_wait_that_is_interrupted_again_and_again_leaves_its_lock_as_it_was() -> None:
    condition, chance = Condition(), random.Random(seed())
    left = 0

    def handler(*_: Any) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-5))  # the next one comes at once
            raise Late

    def layered(depth: int, work: Callable[[], Any]) -> None:
        nonlocal left
        try:
            if depth:
                layered(depth - 1, work)
            else:
                left = DEPTH
                work()
            left = 0
        except Late:
            pass

    def wait() -> None:
        signal.setitimer(signal.ITIMER_REAL, 2e-4)
        with condition:
            condition.wait(0.002)

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an interrupt in a callback of the collector, Hypothesis has one, is a warning that fails the test
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            layered(DEPTH, wait)
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    free: list[bool] = []
    other = begin(lambda: free.append(condition.acquire(timeout=30)))
    other.result()
    assert free == [True]


def test_work_apart_is_done_by_another_thread_than_the_main_one() -> None:
    assert apart(threading.get_ident) != threading.get_ident()
    found: list[bool] = []
    other = begin(lambda: found.append(apart(threading.get_ident) == threading.get_ident()))
    other.result()
    assert found == [True]
    with pytest.raises(KeyError, match="missing"):
        apart(lambda: {}["missing"])


def test_work_apart_goes_on_when_its_caller_is_interrupted(late: threading.Event) -> None:
    done = Flag()

    def work() -> None:
        interrupt(late)
        done.set()

    with pytest.raises(Late):
        apart(work)
    assert done.wait(30)


def test_a_handlers_exception_is_no_fault_of_the_model(late: threading.Event, tmp_path: Path) -> None:
    def interrupted(*_: Any) -> Any:
        interrupt(late)
        raise OSError

    with replaced(static, "map_tensor", interrupted), pytest.raises(Late):
        static.load_static_model(tmp_path)


def test_a_worker_that_runs_is_alive_although_waiting_for_it_was_interrupted(late: threading.Event) -> None:
    go_on = Flag()
    worker = Worker(go_on.wait, "caliber-tested")  # type: ignore[arg-type]
    worker.start()
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with pytest.raises(Late):
        worker.join(30)
    assert worker.alive
    go_on.set()
    worker.join(30)
    assert not worker.alive
