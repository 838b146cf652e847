"""Several learn from one user's messages at once: no acknowledged message is lost, whoever comes second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.providers import CountingEmbeddings
from support.threads import at_once
from support.weeks import SetClock

import caliber
from caliber.learning.deciding import Decider
from caliber.llm.protocols import FloatMatrix
from caliber.model.errors import Conflict, InvalidValue, Unavailable
from caliber.model.jobs import JobState

BY_HAND = {"embedding_provider": None, "retention__apply_every_ms": 0, "jobs__poll_ms": 0, "jobs__attempts_max": 2}
pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def facts(memory: caliber.Caliber) -> set[str]:
    return {hit.content for hit in memory.search("", kinds=["note"], limit=100).hits}


def test_a_conflict_with_another_process_never_ends_learning(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock()
    memory, other = (backend.open(clock=clock, storage__serialization_retries=1, **BY_HAND) for _ in range(2))
    admin = memory.acting_as(caliber.Principal.admin())
    decide, here, rounds = Decider.decide, threading.get_ident(), iter(range(1_000))
    busy = True

    def overtaken(decider: Decider, statements: Any) -> Any:
        steps = decide(decider, statements)
        if busy and threading.get_ident() == here:
            text = f"I like thing{next(rounds)}."
            teacher = threading.Thread(target=other.remember, args=(said(text),), kwargs={"user": "maria"})
            teacher.start()
            teacher.join()
        return steps

    monkeypatch.setattr(Decider, "decide", overtaken)
    learned = memory.remember(said("I live in Porto."), user="maria")
    assert learned.learned_id is not None
    for _ in range(3):  # more often than jobs.attempts_max
        assert memory.learning.get(learned.learned_id).state is JobState.WAITING
        (job,) = admin.jobs.list(state="waiting")
        assert job.error.startswith("stale_inputs")
        clock.at = job.available_at
        memory.jobs.run_due()
    quiet = memory.remember(said("I live in Rome."), user="jonas", wait=False)
    busy = False
    memory.jobs.run_due()
    assert memory.learning.get(quiet.learned_id).state is JobState.DONE, "other users' messages do not wait"
    clock.at += timedelta(minutes=1)
    memory.jobs.run_due()
    assert memory.learning.get(learned.learned_id).state is JobState.DONE
    assert "lives in Porto" in facts(memory)


def test_threads_of_one_user_learn_one_after_the_other(backend: Any) -> None:
    memory = backend.open(**BY_HAND)
    states = []

    def talk(who: int) -> None:
        states.extend(memory.remember(said(f"I like tea{who}{at}."), user="maria").state for at in range(3))

    at_once([partial(talk, who) for who in range(4)])
    assert states == [JobState.DONE] * 12
    assert facts(memory) == {f"likes tea{who}{at}" for who in range(4) for at in range(3)}


@pytest.mark.parametrize("error", [Conflict("somebody else"), Unavailable("locked", reason="locked")])
def test_a_job_that_a_retry_may_help_does_not_end_at_its_first_attempt(
    backend: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    clock = SetClock()
    memory = backend.open(clock=clock, **BY_HAND)
    decide = Decider.decide
    monkeypatch.setattr(Decider, "decide", lambda *_: (_ for _ in ()).throw(error))
    learned = memory.remember(said("I live in Porto."), user="maria")
    assert learned.state is JobState.WAITING
    monkeypatch.setattr(Decider, "decide", decide)
    clock.at += timedelta(minutes=1)
    memory.jobs.run_due()
    assert facts(memory) == {"lives in Porto"}


def test_messages_that_failed_for_good_say_so_and_are_retried(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = backend.open(clock=SetClock(), **BY_HAND)
    admin = memory.acting_as(caliber.Principal.admin())
    decide = Decider.decide

    def broken(*_: object) -> None:
        raise InvalidValue(field="value", reason="cannot be learnt from")

    monkeypatch.setattr(Decider, "decide", broken)
    message = [{"role": "user", "content": "I live in Porto.", "id": "1"}]
    learned = memory.remember(message, user="maria")
    assert learned.state is JobState.FAILED
    assert memory.remember(message, user="maria") == learned, "the same messages again: still not learnt"
    assert memory.admin.stats()["behind"]["jobs_failed"] == 1
    monkeypatch.setattr(Decider, "decide", decide)
    assert learned.learned_id is not None
    admin.jobs.retry(learned.learned_id)
    memory.jobs.run_due()
    assert memory.learning.get(learned.learned_id).state is JobState.DONE
    assert facts(memory) == {"lives in Porto"}


class Meddling(CountingEmbeddings):
    """Embeddings, during which somebody else does something once."""

    meddle: Callable[[], object] | None = None

    def embed_batch(self, texts: Sequence[str]) -> FloatMatrix:
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
        return super().embed_batch(texts)


MEDDLING: dict[str, Callable[[caliber.Caliber, Any], object]] = {
    "recover": lambda memory, task: memory.pcp.recover(task),
    "complete": lambda memory, task: memory.complete_trajectory(task, status="success", summary="done"),
    "forget": lambda memory, _: memory.forget(user="maria"),
}


@pytest.mark.parametrize("what", MEDDLING)
def test_a_task_that_ends_under_remember_is_chosen_again(what: str, backend: Any) -> None:
    provider = Meddling()
    memory = backend.open(embedding_provider=provider, embedding__embed__turn="commit")
    first = memory.remember(said("I live in Berlin."), user="maria")
    memory.pcp.checkpoint(first.trajectory_id)
    memory.remember(said("I like tea."), user="maria")
    provider.meddle = lambda: MEDDLING[what](memory, first.trajectory_id)
    learned = memory.remember(said("I live in Rome."), user="maria")
    assert provider.meddle is None
    assert (learned.trajectory_id == first.trajectory_id) == (what == "recover")
    assert [memory.get(turn).text for turn in learned.turns] == ["I live in Rome."]
    assert [each.statement for each in learned.decisions] == ["lives in Rome"]
