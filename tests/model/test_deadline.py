"""Remaining time of a call's deadline, and the waits that it bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.configs import USER, config
from support.inspection import inspect
from support.threads import begin
from support.waits import until

import caliber
from caliber.backends.postgres.writing.order import CommitSequencer, Ticket
from caliber.model import deadline
from caliber.model.deadline import at_least, earliest, remaining_s, unbounded, within
from caliber.model.errors import Unavailable
from caliber.search.opening import SearchEngine


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
