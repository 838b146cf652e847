"""The job that makes the full text of a store anew: seen, taken over, cancelled, retried. Source: docs/jobs.md."""

from __future__ import annotations

from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.waits import until

import caliber
from caliber.admin.full_text import KIND, REBUILD, check_full_text, rebuild_full_text
from caliber.jobs.claims import Claim
from caliber.jobs.queue import JobQueue
from caliber.model.errors import Unavailable
from caliber.model.jobs import Job

TEXTS = 30
KNOBS: dict[str, Any] = {"embedding_provider": None, "jobs__poll_ms": 0}


@pytest.fixture
@needs("full text", "sharing")
def memory(backend: Any) -> caliber.Caliber:
    """A store of some notes, open, whose records are searched in memory."""
    opened: caliber.Caliber = backend.open(**KNOBS)
    for at in range(TEXTS):
        opened.add_note(entity="e", entity_type="t", note_type="fact", content=f"note {at}", confidence=0.5)
    return opened


def job_of(memory: caliber.Caliber) -> Job:
    (job,) = memory.jobs.list(kind=KIND)
    return job


def state(memory: caliber.Caliber) -> Any:
    full_text = inspect(memory).store.full_text
    assert full_text is not None
    return full_text.state()


def cut_short(backend: Any) -> None:
    """Begin a rebuild that fails after its first batch."""

    def fails(*_: Any) -> None:
        raise Unavailable("planted", reason="busy")

    with pytest.raises(Unavailable):
        rebuild_full_text(backend.config(**KNOBS), fails)


def test_a_rebuild_is_a_job_that_shows_how_far_it_is(
    backend: Any, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    seen = []

    def look(_: str, done: int, total: int | None) -> None:
        job = job_of(memory)
        assert (job.done, job.total) == (done, total)
        seen.append(job.state.value)

    for _ in range(2):
        assert rebuild_full_text(backend.config(**KNOBS), look) == TEXTS
        assert (job_of(memory).state.value, job_of(memory).total) == ("done", TEXTS)
    assert set(seen) == {"running"}
    assert memory.jobs.run_due() == 0
    assert memory.admin.rebuild_search().full_text == TEXTS
    assert job_of(memory).state == "done"


def test_a_rebuild_that_fails_is_completed_by_who_has_the_store_open(backend: Any, memory: caliber.Caliber) -> None:
    cut_short(backend)
    assert (job_of(memory).state.value, state(memory).complete) == ("waiting", False)
    assert "planted" in (job_of(memory).error or "")
    assert memory.jobs.run_due() == 1
    assert (job_of(memory).state.value, state(memory).complete) == ("done", True)
    assert check_full_text(inspect(memory).store, backend.config(**KNOBS)) == []


def test_a_rebuild_that_is_cancelled_stops_until_it_is_retried(
    backend: Any, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    cut_short(backend)
    queue = inspect(memory).part(JobQueue)
    (claim,) = queue.claim_due()
    memory.jobs.cancel(claim.job.job_id)
    queue.run([claim])
    assert (job_of(memory).state.value, state(memory).complete) == ("cancelled", False)
    memory.jobs.retry(claim.job.job_id)
    assert memory.jobs.run_due() == 1
    assert (job_of(memory).state.value, state(memory).complete) == ("done", True)


def test_a_caller_takes_the_job_from_a_process_that_has_it(
    backend: Any, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    cut_short(backend)
    queue, claims = inspect(memory).part(JobQueue), []
    real = Claim.report

    def report(self: Claim, done: int, total: int | None) -> None:
        if not claims:  # the process is in the middle of it
            claims.append(self)
            assert rebuild_full_text(backend.config(**KNOBS)) == TEXTS
        real(self, done, total)

    monkeypatch.setattr(Claim, "report", report)
    assert queue.run_due() == 0
    assert len(claims) == 1
    assert (job_of(memory).state.value, state(memory).complete) == ("done", True)
    assert check_full_text(inspect(memory).store, backend.config(**KNOBS)) == []


def test_a_rebuild_that_is_left_alone_goes_on_behind(backend: Any, memory: caliber.Caliber) -> None:
    cut_short(backend)
    other = backend.open(**{**KNOBS, "jobs__poll_ms": "20ms"})
    until(lambda: state(other).complete and job_of(memory).state == "done")


def test_a_rebuild_lets_other_jobs_go_first_and_goes_on_where_it_was(
    backend: Any, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.SLICE_S", 0.0)
    monkeypatch.setattr(f"caliber.backends.{backend.adapter}.searching.full_text._BATCH_ROWS", TEXTS // 3)
    cut_short(backend)
    queue, kept = inspect(memory).part(JobQueue), []
    while claims := queue.claim_due():
        queue.run(claims)
        kept.append(queue.find(REBUILD))
    positions = [job.payload for job in kept]
    assert len({position["build"] for position in positions}) == 1, "begun anew once, as the caller's was overtaken"
    assert [position["held"] for position in positions[:-1]] == sorted(position["held"] for position in positions[:-1])
    assert positions[-1]["held"] == TEXTS
    assert len(positions) > 5
    assert (job_of(memory).state.value, state(memory).complete) == ("done", True)
    assert check_full_text(inspect(memory).store, backend.config(**KNOBS)) == []


def test_closing_ends_a_rebuild_at_its_next_page(
    backend: Any, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.REPORT_S", 0.0)
    cut_short(backend)
    queue = inspect(memory).part(JobQueue)
    (claim,) = queue.claim_due()
    queue.stopping = True
    queue.run([claim])
    job = job_of(memory)
    assert (job.state.value, job.attempts, state(memory).complete) == ("waiting", 1, False)  # of the caller
    queue.stopping = False
    assert memory.jobs.run_due() == 1
    assert (job_of(memory).state.value, state(memory).complete) == ("done", True)
