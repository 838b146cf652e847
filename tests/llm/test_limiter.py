"""Pacing and waits: token buckets, Retry-After, deadlines; calls are repeated as configured while errors may pass.

Source: C-106 to C-111, C-215.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.configs import USER, config
from support.llm.services import retry, waits
from support.providers import CountingEmbeddings, outage
from support.threads import begin

import caliber
from caliber.llm.cache import EmbeddingCache, EmbeddingKey
from caliber.llm.remote.http import retry_after_s
from caliber.llm.remote.limiter import Bucket, RateLimiter
from caliber.llm.retry import backoff_ms
from caliber.model.deadline import remaining_s, within
from caliber.model.errors import EmbeddingFailed, LlmError, RateLimited, RequestFailed, Unavailable


class Moments:
    """A clock, and an event that never comes: waiting for it moves the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        return False


def limiter(
    requests: int = 0, tokens: int = 0, closed: Any = None, monotonic: Callable[[], float] = time.monotonic
) -> RateLimiter:
    return RateLimiter(
        "test",
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        closed=closed or threading.Event(),
        monotonic=monotonic,
    )


# --- buckets -----------------------------------------------------------------------------------------


@given(st.integers(1, 1_000), st.lists(st.tuples(st.floats(0, 30), st.integers(0, 2_000)), min_size=1, max_size=60))
def test_no_minute_begins_with_more_than_the_service_refills(per_minute: int, steps: list[tuple[float, int]]) -> None:
    # M-016: whoever waits as told has taken, at every moment, at most one minute's worth plus what was refilled
    bucket = Bucket(per_minute, 0.0)
    now = taken = 0.0
    for pause, amount in steps:
        now += pause
        now += bucket.take(amount, now)
        taken += amount
        assert taken <= per_minute + now * per_minute / 60 + max(amount - per_minute, 0) * 1e-6 + 1e-3


def test_a_limit_of_zero_is_none() -> None:
    free = limiter()
    for _ in range(10_000):
        free.take(10**9)


def test_the_turn_of_a_request_is_waited_for() -> None:
    moments = Moments()
    paced = limiter(requests=600, closed=moments, monotonic=lambda: moments.now)
    for _ in range(602):
        paced.take(0)
    assert moments.waits == pytest.approx([0.1, 0.1]), "one each 0.1 s once the first 600 are gone"


def test_a_turn_after_the_deadline_is_given_back() -> None:
    paced = limiter(requests=1, tokens=10)
    paced.take(10)
    for _ in range(5):
        with within(0.5), pytest.raises(RateLimited) as caught:
            paced.take(1)
        assert 30_000 < caught.value.retry_after_ms <= 60_001  # not one more minute for each that gave up


def test_a_request_larger_than_a_minute_waits_for_more_than_one() -> None:
    paced = limiter(tokens=100)
    with within(1), pytest.raises(RateLimited) as caught:
        paced.take(250)
    assert 65_000 < caught.value.retry_after_ms <= 90_001


def test_closing_ends_the_wait_for_a_turn() -> None:
    closed = threading.Event()
    paced = limiter(requests=1, closed=closed)
    paced.take(0)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            paced.take(0)
        except Unavailable as error:
            failed.append(error)

    thread = begin(work)
    closed.set()
    thread.result(timeout=5)
    assert [error.reason for error in failed] == ["closed"]  # type: ignore[attr-defined]


def test_a_service_whose_clock_is_wrong_is_asked_again() -> None:
    # one answer with a Retry-After in a thousand years once silenced a provider until the next start
    wait = retry_after_s(None, "Fri, 01 Jan 3999 00:00:00 GMT")
    assert wait is not None
    assert wait > 10**9
    paced = limiter()
    paced.hold(wait)
    with pytest.raises(RateLimited) as caught:
        paced.take(1)
    assert 3_500_000 < caught.value.retry_after_ms <= 3_600_001


def test_while_the_service_wants_quiet_nobody_asks() -> None:
    paced = limiter()
    paced.hold(30)
    paced.hold(10)  # a shorter wish does not shorten the longer one
    with pytest.raises(RateLimited) as caught:
        paced.take(1)
    assert 29_000 < caught.value.retry_after_ms <= 30_001


# --- Retry-After -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("milliseconds", "header", "seconds"), [
    (None, None, None), (None, "0", 0.0), (None, "120", 120.0), (None, " 7 ", 7.0), (None, "1.5", 1.5),
    ("250", "9", 0.25), ("soon", "9", 9.0), (None, "-1", None), (None, "soon", None), (None, "", None),
    (None, "9" * 40, None), (None, "Wed, 21 Oct 2015 07:28:00 GMT", 0.0), (None, "Wed, 99 Oct 2015 07:28:00 GMT", None),
])  # fmt: skip
def test_retry_after_in_seconds(milliseconds: str | None, header: str | None, seconds: float | None) -> None:
    # M-008, RFC 9110 section 10.2.3
    assert retry_after_s(milliseconds, header) == seconds


def test_retry_after_as_a_date() -> None:
    later = datetime.now(UTC) + timedelta(seconds=90)
    wait = retry_after_s(None, format_datetime(later, usegmt=True))
    assert wait is not None
    assert 85 < wait <= 90


@example("0\x1f")  # white space to str.strip, and none to float
@given(st.text(max_size=60))
def test_any_header_is_a_wait_or_nothing(header: str) -> None:
    for given_ms, given_s in ((header, None), (None, header)):
        wait = retry_after_s(given_ms, given_s)
        assert wait is None or wait >= 0


# --- deadlines -------------------------------------------------------------------------------------------


def test_the_earlier_deadline_counts() -> None:
    assert remaining_s() is None
    with within(10), within(20), within(None):
        left = remaining_s()
        assert left is not None
        assert 9 < left <= 10
        with within(0):
            assert remaining_s() == 0
    assert remaining_s() is None
    with within(2.0**80):
        assert (remaining_s() or 0) <= threading.TIMEOUT_MAX, "locks and events take it as a timeout"


def test_retries_end_with_the_deadline() -> None:
    # The gap this closes: retries of a query went on for as long as they were configured.
    calls: list[float] = []

    def down() -> str:
        calls.append(time.monotonic())
        raise RequestFailed(provider="p", status=503, message="down")

    started = time.monotonic()
    with within(0.1), pytest.raises(RequestFailed) as caught:
        retry(max_retries=50, initial_backoff=20, max_backoff=20)(down)
    assert time.monotonic() - started < 1
    assert 1 <= len(calls) <= 6
    assert any("the deadline" in note for note in caught.value.__notes__)


def test_each_item_is_asked_for_until_it_has_an_answer() -> None:
    # C-487
    asked: list[list[int]] = []

    def ask(places: object) -> list[str | LlmError]:
        wanted = list(places)  # type: ignore[call-overload]
        asked.append(wanted)
        down = RequestFailed(provider="p", status=503, message="down")
        bad = EmbeddingFailed(reason="never")
        return [bad if at == 0 else down if at > len(asked) else f"{at}" for at in wanted]

    results = retry(max_retries=50, initial_backoff=20, max_backoff=20).each(ask, 5)
    assert results[1:] == ["1", "2", "3", "4"]
    assert isinstance(results[0], EmbeddingFailed)
    assert asked == [[0, 1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]


def test_a_wait_for_another_thread_ends_with_the_deadline() -> None:
    cache = EmbeddingCache(max_entries=10)
    key = EmbeddingKey(b"h" * 32, "m", 4)
    computing, go_on = threading.Event(), threading.Event()

    def slowly(places: list[int]) -> list[np.ndarray]:
        computing.set()
        go_on.wait(20)
        return [np.ones(4, np.float32) for _ in places]

    thread = begin(lambda: cache.get_or_compute([key], slowly))
    assert computing.wait(5)
    with within(0.05), pytest.raises(Unavailable, match="deadline passed while another call computed"):
        cache.get_or_compute([key], slowly)
    go_on.set()
    thread.result(timeout=5)
    assert cache.get_or_compute([key], slowly)[0].sum() == 4


class Service:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int, error: LlmError) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "answer"


def _down() -> LlmError:
    return RequestFailed(provider="test", status=503, message="down")


def test_closing_ends_the_wait() -> None:
    stopped = threading.Event()
    stopped.set()
    service = Service(9, _down())
    with pytest.raises(RequestFailed):
        retry(stopped, initial_backoff=60_000, max_backoff=60_000)(service)
    assert service.calls == 1


@given(
    attempt=st.integers(0, 5_000),
    initial=st.integers(1, 10**6),
    more=st.integers(0, 10**6),
    multiplier=st.floats(1.001, 1e6),
    jitter=st.floats(0, 1),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_the_wait_is_bounded(
    attempt: int, initial: int, more: int, multiplier: float, jitter: float, chance: float
) -> None:
    # C-111
    settings = waits(initial_backoff=initial, max_backoff=initial + more, backoff_multiplier=multiplier, jitter=jitter)
    assert 0 <= backoff_ms(settings, attempt, _down(), chance) <= initial + more
    asked = RateLimited(provider="test", retry_after_ms=10**8)
    assert backoff_ms(settings, attempt, asked, chance) == 10**8


def test_the_wait_grows_by_the_multiplier() -> None:
    settings = waits(initial_backoff=10, max_backoff=50)
    assert [backoff_ms(settings, attempt, _down(), 0.5) for attempt in range(4)] == [10, 20, 40, 50]
    settings = waits(initial_backoff=10, max_backoff=500, backoff_multiplier=3.0)
    assert [backoff_ms(settings, attempt, _down(), 0.5) for attempt in range(4)] == [10, 30, 90, 270]


@pytest.mark.parametrize(("retries", "stored"), [(0, False), (1, True)])
def test_a_write_survives_an_outage_shorter_than_the_retries(retries: int, stored: bool) -> None:
    # C-215
    provider = CountingEmbeddings()
    settings = config(
        ":memory:",
        **{
            "embedding.embed.note": "commit",
            "llm_retry_config.max_retries": retries,
            "llm_retry_config.initial_backoff": 1,
            "llm_retry_config.max_backoff": 1,
        },
    )
    failures = [outage()]

    def fail() -> BaseException:
        error = failures.pop()
        provider.failure = None
        return error

    with caliber.open(settings, embedding_provider=provider) as memory:
        memory.start_trajectory("g", initiator=USER)
        provider.failure = fail

        def add() -> None:
            memory.add_note(entity="e", entity_type="t", note_type="fact", content="c", confidence=1.0)

        if stored:
            add()
        else:
            with pytest.raises(RequestFailed):
                add()
        assert memory.storage.notes.count() == int(stored)
