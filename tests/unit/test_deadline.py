"""What is left of a call's deadline, and what waits only as long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from caliber.backends.postgres.writer import Turn, Turns
from caliber.model import deadline
from caliber.model.deadline import at_least, earliest, remaining_s, unbounded, within


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
    turns = Turns()
    first, second, third = Turn(), Turn(), Turn()
    for each in (first, second, third):
        turns.take(each)
    assert turns.wait(first)
    assert not turns.wait(second, until=0.0), "the first has not ended"
    turns.leave(second)
    waiting = threading.Thread(target=turns.wait, args=(third,))
    waiting.start()
    turns.leave(first)
    waiting.join(30)
    assert not waiting.is_alive(), "who gave up held nobody back"
