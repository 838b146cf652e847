"""Background work beside the calls: reported once an outage, and never ended by a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.threads import no_new_threads
from support.waits import until

from caliber.engine import background
from caliber.engine.background import BackgroundTask, DelayedTask, PeriodicTask
from caliber.engine.worker import Worker
from caliber.model.errors import CaliberError, InternalError, Unavailable
from caliber.storage import waiting


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


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts the threads of background tasks: those of this test alone."""
    monkeypatch.setattr(background, "process_timers", [])
    before = set(threading.enumerate())
    return lambda: len(set(threading.enumerate()) - before)


def test_a_thousand_tasks_share_a_few_threads_which_end_with_them(threads: Callable[[], int]) -> None:
    calls = [0] * 1_000

    def called(number: int) -> PeriodicTask:
        def task() -> None:
            calls[number] += 1

        return PeriodicTask("look", task, every_ms=20, failed=lambda *_: None)

    tasks = [called(number) for number in range(len(calls))]
    for task in tasks:
        task.start()
    most = []
    until(lambda: most.append(threads()) or min(calls) > 3)
    assert max(most) <= background.THREADS + 1
    for task in tasks:
        task.stop()
    after = list(calls)
    until(lambda: threads() == 0)
    assert calls == after


def test_a_task_that_hangs_holds_up_no_other(threads: Callable[[], int]) -> None:
    hold, held, calls = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def hang() -> None:
        held.release()
        assert hold.wait(60)

    hanging = [PeriodicTask("held", hang, every_ms=1, failed=lambda *_: None) for _ in range(3)]
    for task in hanging:
        task.start()
    for _ in hanging:
        assert held.acquire(timeout=30)
    other = PeriodicTask("look", calls.release, every_ms=1, failed=lambda *_: None)
    other.start()
    for _ in range(20):
        assert calls.acquire(timeout=30)
    other.stop()
    hold.set()
    for task in hanging:
        task.stop()
    until(lambda: threads() == 0)


def test_a_task_that_was_stopped_is_not_called_again() -> None:
    calls: list[int] = []
    for number in range(200):
        task = PeriodicTask("look", lambda number=number: calls.append(number), every_ms=1, failed=lambda *_: None)  # type: ignore[misc]
        task.start()
        if number % 3:
            until(lambda number=number: number in calls)  # type: ignore[misc]
        task.stop()
        before = len(calls)
        assert task.turn() is False
        assert len(calls) == before


def test_a_task_that_no_thread_can_run_is_refused_and_another_begins_later(threads: Callable[[], int]) -> None:
    calls = threading.Semaphore(0)
    tasks = [PeriodicTask("look", calls.release, every_ms=1, failed=lambda *_: None) for _ in range(2)]
    with no_new_threads(), pytest.raises(Unavailable) as refused:
        tasks[0].start()
    assert refused.value.context["reason"] == "out of threads"
    assert refused.value.retryable
    assert threads() == 0
    tasks[1].start()
    assert calls.acquire(timeout=30)
    tasks[1].stop()
    until(lambda: threads() == 0)


def test_tasks_that_get_no_second_thread_wait_for_the_first(threads: Callable[[], int]) -> None:
    told: list[CaliberError] = []
    hold, held, calls = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def hang() -> None:
        held.release()
        assert hold.wait(60)

    def failed(name: str, fault: CaliberError) -> None:
        told.append(fault)

    hanging = PeriodicTask("held", hang, every_ms=50, failed=failed)
    other = PeriodicTask("look", calls.release, every_ms=200, failed=failed)
    hanging.start()
    other.start()
    with no_new_threads():
        assert held.acquire(timeout=30)
        until(lambda: told)
        assert threads() == 1
        assert not calls.acquire(blocking=False)
        hold.set()
        for _ in range(3):
            assert calls.acquire(timeout=30)
        assert len(told) == 1, "one report for each outage"
        assert isinstance(told[0], Unavailable)
        assert threads() == 1
    for _ in range(3):
        assert held.acquire(timeout=30)
        assert calls.acquire(timeout=30)
    hanging.stop()
    other.stop()
    until(lambda: threads() == 0)


def test_a_thread_that_is_refused_is_a_typed_error_and_begins_at_the_next_start() -> None:
    ran = threading.Event()
    worker = Worker(ran.set, "later")
    with no_new_threads():
        with pytest.raises(Unavailable, match="refuses another thread"):
            worker.start()
        with pytest.raises(Unavailable, match="refuses another thread"):
            waiting.apart(lambda: None)
        assert not worker.begun
    worker.start()
    assert ran.wait(30)


def test_a_task_that_was_refused_a_thread_is_run_by_the_next_one(threads: Callable[[], int]) -> None:
    # review: a thread that the system refuses ended the background work of the process
    calls = threading.Semaphore(0)

    class Woken(BackgroundTask):
        def next_s(self) -> float:
            return 0.0

        def _call(self) -> bool:
            calls.release()
            return False

    task = Woken("jobs", failed=lambda *_: None)
    with no_new_threads(), pytest.raises(Unavailable):
        task.wake()
    other = PeriodicTask("look", lambda: None, every_ms=50, failed=lambda *_: None)
    other.start()
    assert calls.acquire(timeout=30)
    task.stop()
    other.stop()
    until(lambda: threads() == 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("alone", [True, False])
def test_a_task_that_ends_its_thread_ends_no_other_task(alone: bool, threads: Callable[[], int]) -> None:
    exits, calls = threading.Semaphore(0), threading.Semaphore(0)

    def leave() -> None:
        exits.release()
        raise SystemExit

    leaving = PeriodicTask("leave", leave, every_ms=1, failed=lambda *_: None)
    other = PeriodicTask("look", calls.release, every_ms=1, failed=lambda *_: None)
    leaving.start()
    if not alone:
        other.start()
    for _ in range(background.THREADS + 2):
        assert exits.acquire(timeout=30)
        assert alone or calls.acquire(timeout=30)
    leaving.stop()
    other.stop()
    until(lambda: threads() == 0)
