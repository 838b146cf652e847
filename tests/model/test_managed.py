"""Context managers that give back what they hold when their first step of leaving is interrupted. Source: design 10."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.configs import config
from support.inspection import inspect
from support.interrupted import Interrupt
from support.threads import begin

import caliber
from caliber.model.deadline import remaining_s, within
from caliber.model.process.interrupts import managed


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
