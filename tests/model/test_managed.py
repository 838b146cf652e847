"""Context managers that give back what they hold when their first step of leaving is interrupted; deadlines of calls.

Source: design 10.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.configs import USER, config
from support.inspection import inspect
from support.interrupted import Interrupt
from support.threads import begin
from support.waits import until

import caliber
from caliber.backends.postgres.writing.order import CommitSequencer, Ticket
from caliber.model import deadline
from caliber.model.deadline import at_least, earliest, remaining_s, unbounded, within
from caliber.model.errors import Unavailable
from caliber.model.process.interrupts import managed
from caliber.search.opening import SearchEngine


class FirstStep:
    """Interrupts the calling thread at the first step of the first function that runs once it is armed."""

    def __init__(self) -> None:
        self.armed = False

    def _call(self, frame: Any, event: str, _: Any) -> Any:
        if self.armed and event == "call":
            self.armed = False
            raise Interrupt

    def kept(self, work: Callable[[], Any]) -> Interrupt:
        """Return the interrupt that ended the work, with the frames that it refers to."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            work()
        except Interrupt as error:
            return error
        finally:
            sys.settrace(before)
        raise AssertionError("nothing was interrupted")


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_held_is_given_back_by_the_thread_that_was_interrupted(fails: bool) -> None:
    step, by = FirstStep(), []

    @managed
    def holding() -> Iterator[int]:
        try:
            yield 1
        finally:
            by.append(threading.get_ident())

    def work() -> None:
        with holding() as value:
            assert value == 1
            step.armed = True
            if fails:
                raise OSError("planted")

    error = step.kept(work)
    assert by == [threading.get_ident()], "it waits for whoever drops the error"
    del error
    assert len(by) == 1


def test_a_deadline_ends_with_its_block_although_that_was_interrupted() -> None:
    step = FirstStep()

    def work() -> None:
        with within(60):
            step.armed = True

    error = step.kept(work)
    assert remaining_s() is None
    del error


@pytest.mark.parametrize("part", ["read", "first_read", "_exclusive", "_transaction"])
def test_a_store_is_free_after_an_interrupted_block(part: str) -> None:
    step = FirstStep()
    with caliber.open(config(":memory:", embedding_provider=None)) as memory:
        store = inspect(memory).store

        def work() -> None:
            with getattr(store, part)():
                step.armed = True

        errors = [step.kept(work) for _ in range(20)]
        other = begin(lambda: memory.start_trajectory("goal", user="ann"))
        other.result(60)
        assert len(errors) == 20


def test_errors_of_the_block_pass_as_through_the_standard_library() -> None:
    @contextlib.contextmanager
    def standard() -> Iterator[None]:
        with contextlib.suppress(KeyError):
            yield

    for make in (standard, managed(standard.__wrapped__)):  # type: ignore[attr-defined]
        with make():
            raise KeyError
        for error in (OSError("planted"), StopIteration("planted"), RuntimeError("planted"), Interrupt("planted")):
            with pytest.raises(type(error), match="planted") as caught, make():
                raise error
            assert caught.value is error
        with contextlib.ExitStack() as stack:
            stack.enter_context(make())
            raise KeyError


def test_a_generator_that_yields_twice_is_a_mistake() -> None:
    @managed
    def twice() -> Iterator[None]:
        with contextlib.suppress(KeyError):
            yield
        yield

    with pytest.raises(RuntimeError, match="stop"), twice():
        pass
    with pytest.raises(RuntimeError, match="stop"), twice():
        raise KeyError


def test_a_generator_that_never_yields_is_a_mistake() -> None:
    @managed
    def never(*errors: Exception) -> Iterator[None]:
        for error in errors:
            raise error
        if errors:
            yield

    for _ in range(2):
        with pytest.raises(RuntimeError, match="didn't yield"), never():
            raise AssertionError("the block ran")
        with pytest.raises(OSError, match="planted"), never(OSError("planted")):
            raise AssertionError("the block ran")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    made = Clock()
    monkeypatch.setattr(deadline, "time", made)
    return made


def test_earlier_bounds_stay_and_what_follows_may_have_more(clock: Any) -> None:
    assert earliest(None) is None
    assert earliest(7.0) == 7.0
    with within(10):
        assert earliest(None) == 110.0
        assert earliest(105.0) == 105.0
        assert earliest(120.0) == 110.0
        with within(20):
            assert remaining_s() == 10.0
        clock.now = 115.0
        assert remaining_s() == 0.0
        with at_least(0.5):
            assert remaining_s() == 0.5
        with unbounded():
            assert remaining_s() is None
            with at_least(0.5):
                assert remaining_s() is None, "nothing bounds what nothing bounded"
        assert remaining_s() == 0.0
    assert remaining_s() is None


def test_more_than_the_least_is_kept(clock: Any) -> None:
    with within(10), at_least(0.5):
        assert remaining_s() == 10.0


def test_turn_is_waited_for_until_the_deadline_and_then_given_up() -> None:
    order = CommitSequencer()
    first, second, third = Ticket(), Ticket(), Ticket()
    for each in (first, second, third):
        order.take(each)
    assert order.wait(first)
    assert not order.wait(second, until=0.0), "the first has not ended"
    order.leave(second)
    waiting = begin(order.wait, third)
    order.leave(first)
    waiting.result(30)


def test_words_of_a_long_text_are_learned_no_longer_than_a_call_may_take() -> None:
    """Words learned before the deadline are kept: the next calls go on from there, and one has the answer."""
    with caliber.open(config(":memory:", embedding_provider=None)) as memory:
        scope = memory.current_scope(memory.start_trajectory("goal", initiator=USER).trajectory_id)
        memory.append_turn(scope.scope_id, role="user", content=" ".join(f"w{number}" for number in range(100_000)))
        keywords = inspect(memory).part(SearchEngine).searcher.keywords
        with pytest.raises(Unavailable, match="the deadline passed while words were learned"), caliber.deadline(50):
            memory.search("w99999")
        assert 0 < keywords.dictionary.word_flags.length < 100_000
        other = begin(memory.search, "w99999")
        until(lambda: not keywords.place.free or other.done())
        with pytest.raises(Unavailable, match="the deadline passed while words were indexed"), caliber.deadline(10):
            memory.search("w99999")
        other.result(60)
        assert len(memory.search("w99999", kinds=["turn"]).hits) == 1
        assert memory.admin.verify() == []


def test_generators_that_end_in_any_order_leave_no_deadline(clock: Any) -> None:
    def stream(ms: int) -> Iterator[None]:
        with caliber.deadline(ms):
            yield

    one, two = stream(50), stream(5_000)
    next(one)
    next(two)
    one.close()
    assert remaining_s() == pytest.approx(0.05), "the second began within the first"
    two.close()
    assert remaining_s() is None
