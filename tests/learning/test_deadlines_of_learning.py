"""Deadlines of ``remember``: rules stop in time, the error names what is stored, and the same call goes on."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

import caliber
from caliber.learning import reading
from caliber.model import deadline
from caliber.model.deadline import within
from caliber.model.errors import Unavailable
from caliber.text.dates import Moment

MESSAGES = [{"role": "user", "content": "I live in Rome. I like jazz. I have a dog."}]


@pytest.fixture
def expiring(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The time of deadlines, which jumps by an hour while the rules read."""
    state: dict[str, Any] = {"ahead": 0.0, "jumps": True}
    monkeypatch.setattr(deadline.time, "monotonic", lambda now=time.monotonic: now() + state["ahead"])
    original = reading.iter_sentences

    def iter_sentences(text: str) -> Any:
        state["ahead"] += 3_600 * state["jumps"]
        yield from original(text)

    monkeypatch.setattr(reading, "iter_sentences", iter_sentences)
    yield state
    monkeypatch.undo()


@pytest.fixture
def memory(backend: Any) -> caliber.Caliber:
    """A store whose jobs only the test runs."""
    return backend.open(jobs__poll_ms=0)


def test_an_error_after_the_turns_are_stored_names_them_and_the_call_can_be_repeated(
    memory: caliber.Caliber, expiring: dict[str, Any]
) -> None:
    with pytest.raises(Unavailable) as caught, caliber.deadline(60_000):
        memory.remember(MESSAGES, user="maria")
    error = pickle.loads(pickle.dumps(caught.value))
    assert "are stored" in str(error)
    assert "nothing was written" not in str(error)
    assert error.retryable
    assert error.reason == deadline.TIMEOUT
    assert memory.learning.get(error.learned_id).state == "waiting"

    with pytest.raises(Unavailable, match="are stored"), caliber.deadline(60_000):  # no further turn, no other job
        memory.remember(MESSAGES, user="maria")
    expiring["jumps"] = False
    with caliber.deadline(60_000):
        learned = memory.remember(MESSAGES, user="maria")
    assert (learned.learned_id, learned.turns, learned.state) == (error.learned_id, error.turns, "done")
    assert [each.statement for each in learned.added] == ["lives in Rome", "likes jazz", "has a dog"]
    assert memory.remember(MESSAGES, user="maria").turns == error.turns


def test_a_job_whose_caller_ran_out_of_time_has_not_failed(memory: caliber.Caliber, expiring: dict[str, Any]) -> None:
    for _ in range(20):  # more often than a job may fail
        with pytest.raises(Unavailable), caliber.deadline(60_000):
            memory.remember(MESSAGES, user="maria")
    expiring["jumps"] = False
    assert memory.jobs.run_due() == 3
    assert len(memory.remember(MESSAGES, user="maria").added) == 3


def test_rules_look_at_the_time_at_each_sentence(expiring: dict[str, Any]) -> None:
    with within(60), pytest.raises(Unavailable):
        list(reading.MessageReader().read("I live in Rome.", Moment(0)))
