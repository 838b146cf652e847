"""Providers are asked again as configured while what they raise may pass. Source: C-106 to C-111, C-215."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.configs import USER, config
from support.llm.retries import retry, waits
from support.providers import CountingEmbeddings, outage

import caliber
from caliber.llm.retry import backoff_ms
from caliber.model.errors import LlmError, RateLimited, RequestFailed


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
