"""Summaries of blocks of turns: made behind the commit, of what turns say now, and gone with any of them.

Source: issue 12, Build 4; docs/decisions/0192.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.configs import policy
from support.drawn import needs
from support.evidence import scale
from support.inspection import held_back, inspect
from support.providers import CountingEmbeddings, ScriptedSummarizer, outage
from support.threads import at_once, begin
from support.waits import until

import caliber
from caliber.model import Clock, FixedClock, ToolCall, TrustLabel
from caliber.model.errors import CaliberError, Conflict, NotFound, SummarizationFailed
from caliber.model.events import EventType
from caliber.model.references import TurnSummaryId
from caliber.model.trajectory import TurnSummary
from caliber.schema.relations import TURN, TURN_SUMMARY
from caliber.search.opening import SearchEngine
from caliber.storage.write.unit_of_work import UnitOfWork
from caliber.trajectory.summarizer import TurnSummarizer

CHILD = Path(__file__).parent / "summarizing_process.py"
SIZE = 4
LIGHT: dict[str, Any] = {
    "embedding_provider": None,
    "search__keyword__similar_words": "none",
    "assembly__evict_block_turns": SIZE,
    "policies": [],
    "pcp.recovery_points.frequency": "manual",
    "jobs__poll_ms": "20ms",
    "jobs__backoff_ms": "1ms",
    "jobs__backoff_max_ms": "10ms",
    "llm_retry_config.max_retries": 0,
}


class Echo(ScriptedSummarizer):
    """Sums up by the whole text in one line, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def summarize(self, text: str, max_tokens: int) -> str:
        self.asked.append(text)
        self._called("summarize")
        return text.replace("\n\n", " | ")


class Talk:
    """A task under way, and what its turns are summarized by."""

    def __init__(self, backend: Any, start: Callable[..., Any], clock: Clock | None = None, **knobs: Any) -> None:
        self.provider = Echo()
        self.backend = backend
        self.clock = clock
        self.knobs = {**LIGHT, **knobs}
        self.agent = start(self.open())
        self.memory: caliber.Caliber = self.agent.memory
        self.scope_id = self.agent.scope_id

    def open(self, provider: Any = None, **knobs: Any) -> caliber.Caliber:
        settings = self.backend.config(**{**self.knobs, **knobs})
        opened: caliber.Caliber = self.backend.open(
            settings, summarization_provider=provider or self.provider, clock=self.clock
        )
        return opened

    def say(self, *texts: str, **options: Any) -> list[Any]:
        return [self.agent.say(text, **options) for text in texts]

    def count(self, turns: int) -> None:
        """Say the numbers of the next turns."""
        begin = self.memory.get(self.agent.trajectory_id).turn_count
        self.say(*(f"turn {number}" for number in range(begin, begin + turns)))

    def resting(self) -> Any:
        """Return a context in which the worker makes nothing."""
        worker: Any = inspect(self.memory).engine.find_part(TurnSummarizer)
        return held_back(worker)

    @property
    def turns(self) -> list[Any]:
        return self.memory.storage.turns.list_by_scope(self.scope_id)

    @property
    def summaries(self) -> list[TurnSummary]:
        found: list[TurnSummary] = self.memory.storage.turn_summaries.list_by_scope(self.scope_id)
        return found

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(summary.first_turn, summary.last_turn) for summary in self.summaries]

    @property
    def waiting(self) -> int:
        count: int = self.memory.admin.stats()["behind"]["turn_summaries_waiting"]
        return count

    def sound(self) -> None:
        """Check that every summary is of the turns that are there, that memory has it, and that the store is sound."""
        turns = {turn.turn_number: turn for turn in self.turns}
        for summary in self.summaries:
            inside = [turn for number, turn in turns.items() if summary.first_turn <= number <= summary.last_turn]
            assert summary.source_turns == tuple(turn.turn_id for turn in inside)
            assert (summary.first_turn, summary.last_turn) == (inside[0].turn_number, inside[-1].turn_number)
            assert summary.content == " | ".join(f"user: {turn.text}" for turn in inside)
        assert self.memory.admin.verify() == []
        assert self.memory.admin.check() == []


@pytest.fixture
def talk(backend: Any, start: Any) -> Talk:
    return Talk(backend, start)


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """An event that the provider waits for; set at the end."""
    event = threading.Event()
    yield event
    event.set()


# --- made behind -----------------------------------------------------------------------------------


def test_a_completed_block_is_summarized_after_the_commit(talk: Talk) -> None:
    talk.count(SIZE)
    talk.memory.flush()
    assert talk.ranges == [], "the next turn may be a result of its last"
    talk.count(1)
    talk.memory.flush()
    (summary,) = talk.summaries
    assert (summary.first_turn, summary.last_turn, summary.model_id) == (0, SIZE - 1, "scripted")
    assert summary.content == "user: turn 0 | user: turn 1 | user: turn 2 | user: turn 3"
    assert summary.token_count == inspect(talk.memory).engine.count_text(summary.content)
    assert summary.trajectory_id == talk.agent.trajectory_id
    talk.count(2 * SIZE)
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7), (8, 11)]
    talk.sound()
    snapshot = inspect(talk.memory).snapshot()["turn_summary"]
    assert len(snapshot.group("scope_id", talk.scope_id.bytes)) == 3, "windows read it from memory"
    assert talk.provider.calls == ["summarize"] * 3, "each block once"


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_summary_is_found_by_the_id_that_explain_gives(backend: Any, start: Any, mode: str) -> None:
    talk = Talk(backend, start, search__mode=mode)
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    window = talk.memory.assemble_context(talk.agent.trajectory_id, query="", max_tokens=60)
    explained = talk.memory.explain(window.window_id)
    ids = {item["id"] for item in explained["inclusions"] + explained["exclusions"] if item["type"] == "turn_summary"}
    assert ids == {str(summary.turn_summary_id) for summary in talk.summaries}
    for summary in talk.summaries:
        assert talk.memory.get(summary.turn_summary_id) == summary
        one = talk.memory.explain(window.window_id, exclusion=summary.turn_summary_id)
        assert (one["type"], one["trust"]) == ("turn_summary", str(summary.trust))


def test_nobody_waits_for_a_summary_and_what_waits_is_counted(talk: Talk, held: threading.Event) -> None:
    talk.provider.before = lambda _: held.wait(60) and None
    talk.count(2 * SIZE + 1)
    talk.memory.assemble_context(talk.agent.trajectory_id)
    assert talk.waiting == 2
    assert talk.ranges == []
    held.set()
    talk.memory.flush()
    assert talk.waiting == 0
    assert talk.ranges == [(0, 3), (4, 7)]


def test_appending_asks_of_the_database_one_job_for_each_block(backend: Any, start: Any) -> None:
    """Nor does looking for what lacks a summary ask anything of it, where turns are in memory."""
    costs = []
    for turns in ("off", "behind"):
        talk = Talk(backend, start, summaries__turns=turns, jobs__poll_ms=0)
        store = inspect(talk.memory).store
        talk.count(SIZE + 1)
        before = store.statement_count()
        for _ in range(10):
            talk.count(SIZE - 1)
            talk.count(1)
        costs.append(store.statement_count() - before)
    assert costs[1] - costs[0] == 10
    talk.memory.flush()
    worker: Any = inspect(talk.memory).engine.find_part(TurnSummarizer)
    talk.count(2 * SIZE)
    before = store.statement_count()
    tasks = worker.tasks_of(talk.agent.trajectory_id.bytes, 0)
    assert [task.block for task in tasks] == [(11 * SIZE, 12 * SIZE - 1), (12 * SIZE, 13 * SIZE - 1)]
    assert store.statement_count() == before


def jobs_of(memory: caliber.Caliber, state: str | None = None) -> list[Any]:
    return memory.jobs.list(kind="turn_summaries", state=state)


def test_only_the_turn_after_a_block_adds_a_job(backend: Any, start: Any) -> None:
    talk = Talk(backend, start, jobs__poll_ms=0)
    talk.count(SIZE)
    assert jobs_of(talk.memory) == []
    talk.count(1)
    (job,) = jobs_of(talk.memory)
    assert job.trajectory_id == talk.agent.trajectory_id
    talk.count(2 * SIZE - 1)
    assert jobs_of(talk.memory) == [job], "one job for all that waits of a task"
    assert talk.memory.jobs.run_due() == 2
    assert talk.ranges == [(0, 3), (4, 7)]
    assert [each.state.value for each in jobs_of(talk.memory)] == ["done"]
    talk.count(1)
    assert len(jobs_of(talk.memory)) == 2, "the next block is another job"


@pytest.mark.prove
@pytest.mark.parametrize("where", ["asked", "storing"])
@needs("reopen")
def test_a_process_that_is_killed_before_the_summary_leaves_a_missing_row(backend: Any, start: Any, where: str) -> None:
    talk = Talk(backend, start)
    talk.memory.close()
    order = json.dumps([backend.path, {**backend.knobs, **LIGHT}, str(talk.scope_id), 2 * SIZE + 1, where])
    ended = subprocess.run([sys.executable, str(CHILD), order], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    talk.memory = talk.open()
    until(lambda: talk.ranges == [(0, 3), (4, 7)])
    talk.sound()
    assert talk.provider.calls == ["summarize"] * 2


def test_thousands_of_turns_without_a_change_of_scope(backend: Any, start: Any) -> None:
    talk = Talk(backend, start, assembly__evict_block_turns=16)
    count = scale(1_500, 5_000, daily=300)
    blocks = count // 16
    for first in range(0, count, 500):
        new = [{"role": "user", "content": f"turn {number}"} for number in range(first, min(first + 500, count))]
        talk.memory.append_turns(talk.scope_id, new)
    talk.memory.flush()
    assert talk.ranges == [(16 * block, 16 * block + 15) for block in range(blocks)]
    assert talk.provider.calls == ["summarize"] * blocks
    talk.sound()


@needs("full text")
def test_turns_and_summaries_in_the_database_alone(backend: Any, start: Any) -> None:
    """``search.mode = "backend"``: the worker asks the store, and a window's snapshot has the summaries."""
    talk = Talk(backend, start, search__mode="backend")
    talk.count(3 * SIZE + 1)
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7), (8, 11)]
    assert talk.waiting == 0
    with talk.resting():
        talk.memory.storage.turns.delete(talk.turns[5].turn_id)
        assert talk.ranges == [(0, 3), (8, 11)]
    until(lambda: talk.ranges == [(0, 3), (4, 7), (8, 11)])
    talk.sound()
    engine = inspect(talk.memory).engine
    around = engine.part(SearchEngine).around(engine.snapshot(), talk.agent.trajectory_id, [talk.scope_id])
    assert len(around["turn_summary"].group("scope_id", talk.scope_id.bytes)) == 3


# --- which turns -----------------------------------------------------------------------------------


def test_a_block_ends_after_the_results_of_its_last_calls(talk: Talk) -> None:
    talk.count(SIZE - 1)
    talk.say("looking", role="assistant", tool_calls=[ToolCall("1", "look", "{}"), ToolCall("2", "look", "{}")])
    talk.memory.flush()
    talk.say("found one", role="tool", tool_call_id="1")
    talk.memory.flush()
    assert talk.ranges == [], "another result may come"
    talk.say("found two", role="tool", tool_call_id="2")
    talk.memory.flush()
    assert talk.ranges == []
    talk.count(1)
    until(lambda: talk.ranges == [(0, SIZE + 1)])
    (summary,) = talk.summaries
    assert summary.content.endswith("assistant: looking | tool: found one | tool: found two")
    talk.count(2)
    talk.memory.flush()
    assert talk.ranges == [(0, SIZE + 1), (SIZE + 2, 2 * SIZE - 1)], "blocks have absolute numbers"


def test_results_whose_call_is_gone_stand_where_their_number_is(talk: Talk) -> None:
    talk.count(SIZE - 1)
    (caller,) = talk.say("looking", role="assistant", tool_calls=[ToolCall("1", "look", "{}")])
    talk.say("found one", role="tool", tool_call_id="1")
    talk.count(SIZE)
    talk.memory.flush()
    assert talk.ranges == [(0, SIZE), (SIZE + 1, 2 * SIZE - 1)]
    talk.memory.storage.turns.delete(caller.turn_id)
    talk.memory.flush()
    assert talk.ranges == [(0, SIZE - 2), (SIZE, SIZE), (SIZE + 1, 2 * SIZE - 1)], "no summary of others is made anew"
    assert talk.memory.admin.check() == []


def test_turns_of_other_scopes_are_none_of_a_block(talk: Talk) -> None:
    other = talk.memory.open_scope(talk.agent.trajectory_id).scope_id
    for number in range(2 * SIZE + 1):
        scope = (talk.scope_id, other)[number % 2]
        talk.memory.append_turn(scope, role="user", content=f"turn {number}")
    talk.memory.flush()
    assert talk.ranges == [(0, 2), (4, 6)]
    others = talk.memory.storage.turn_summaries.list_by_scope(other)
    assert [(summary.first_turn, summary.last_turn) for summary in others] == [(1, 3), (5, 7)]
    talk.sound()


def test_a_closed_scope_keeps_what_it_has_and_gets_no_more(talk: Talk, held: threading.Event) -> None:
    talk.count(SIZE + 1)
    talk.memory.flush()
    talk.provider.before = lambda _: held.wait(60) and None
    talk.count(SIZE)
    until(lambda: len(talk.provider.calls) == 2)
    talk.memory.close_scope(talk.scope_id)
    held.set()
    talk.memory.flush()
    assert talk.ranges == [(0, 3)]
    assert talk.waiting == 0
    talk.memory.storage.turns.delete(talk.turns[0].turn_id)
    talk.memory.flush()
    assert talk.ranges == [], "the summary of the scope is there for it"


def test_nothing_is_said_about_blocks_of_nothing(talk: Talk) -> None:
    talk.say(*[" "] * SIZE, "turn 4")
    talk.memory.flush()
    assert talk.ranges == []
    assert talk.provider.asked == []
    talk.memory.storage.turns.update(talk.turns[1].turn_id, content=b"a word")
    talk.memory.flush()
    assert talk.ranges == [(0, 3)]


def test_a_summary_is_trusted_as_the_least_trusted_of_its_turns(talk: Talk) -> None:
    for label in (TrustLabel.SYSTEM, TrustLabel.WEB, TrustLabel.USER, TrustLabel.TOOL):
        talk.agent.say("said", trust=label)
    for _ in range(SIZE + 1):
        talk.agent.say("said", trust=TrustLabel.SYSTEM)
    talk.memory.flush()
    assert [summary.trust for summary in talk.summaries] == [TrustLabel.WEB, TrustLabel.SYSTEM]
    with talk.resting():
        talk.memory.storage.turns.update(talk.turns[5].turn_id, trust=TrustLabel.TOOL)
        assert talk.ranges == [(0, 3)], "it goes with the label of its turn"
    talk.memory.flush()
    assert [summary.trust for summary in talk.summaries] == [TrustLabel.WEB, TrustLabel.TOOL]
    assert talk.memory.admin.check() == []


# --- gone with a turn ------------------------------------------------------------------------------


def delete(talk: Talk) -> None:
    talk.memory.storage.turns.delete(talk.turns[5].turn_id)


def rewrite(talk: Talk) -> None:
    talk.memory.storage.turns.update(talk.turns[5].turn_id, content=b"[redacted]")


def forget(talk: Talk) -> None:
    report = talk.memory.forget(texts=("Zebulon",), even_if_shared=True)
    assert report.proven
    assert report.erased["turn_summary"] == 1


CHANGES = {"deleted": delete, "redacted": rewrite, "forgotten": forget}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_a_summary_goes_with_any_of_its_turns_and_is_made_anew(talk: Talk, held: threading.Event, change: str) -> None:
    talk.count(5)
    talk.say("Zebulon is here")
    talk.count(7)
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7), (8, 11)]
    assert "Zebulon" in talk.summaries[1].content
    talk.provider.before = lambda _: held.wait(60) and None
    CHANGES[change](talk)
    assert talk.ranges == [(0, 3), (8, 11)], "in the same transaction"
    assert talk.waiting == 1
    snapshot = inspect(talk.memory).snapshot()["turn_summary"]
    assert len(snapshot.group("scope_id", talk.scope_id.bytes)) == 2
    held.set()
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7), (8, 11)]
    talk.sound()
    assert not any("Zebulon" in summary.content for summary in talk.summaries)


def test_forgetting_finds_a_subject_in_the_text_of_a_summary_alone(talk: Talk) -> None:
    """A model may name what its turns only hint at: then the text is redacted, or it would be made anew for ever."""
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    one = talk.summaries[0]
    talk.memory.storage.turn_summaries.update(one.turn_summary_id, content="Zebulon counted")
    report = talk.memory.forget(texts=("Zebulon",))
    assert report.proven
    assert report.redacted["turn_summary"] == 1
    found = talk.memory.storage.turn_summaries.get(one.turn_summary_id)
    assert found.content == "[forgotten] counted"
    assert found.token_count == inspect(talk.memory).engine.count_text(found.content)


def test_what_was_summarized_is_kept_for_replay_and_not_when_it_is_forgotten(talk: Talk) -> None:
    talk.count(SIZE + 1)
    talk.memory.flush()
    (summary,) = talk.summaries
    rewrite_first = talk.turns[0].turn_id
    talk.memory.storage.turns.update(rewrite_first, content=b"Zebulon")
    (kept,) = talk.memory.storage.content_versions.list_by_owner(summary.turn_summary_id)
    assert (kept.owner_type, kept.owner_version) == ("turn_summary", 1)
    assert json.loads(kept.body) == {"content": summary.content}
    assert kept.trajectory_id == talk.agent.trajectory_id
    talk.memory.flush()
    (made_of_it,) = talk.summaries
    assert talk.memory.forget(texts=("Zebulon",)).proven
    assert talk.memory.storage.content_versions.list_by_owner(made_of_it.turn_summary_id) == []


def test_summaries_go_with_pruned_turns_and_with_their_task(backend: Any, start: Any) -> None:
    prune = {"action": "prune", "target": "turn_buffer", "older_than_ms": 1}
    clock = FixedClock()
    talk = Talk(backend, start, clock, policies=[policy("scope_close", prune)])
    other = start(talk.memory)
    for _ in range(SIZE + 1):
        other.say("of another task")
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    assert talk.memory.storage.turn_summaries.count() == 3
    clock.advance(ms=10)
    talk.memory.close_scope(talk.scope_id)
    assert talk.turns == []
    assert talk.ranges == []
    assert talk.memory.storage.turn_summaries.count() == 1
    talk.memory.admin.purge_trajectory(other.trajectory_id)
    assert talk.memory.storage.turn_summaries.count() == 0
    assert talk.memory.admin.check() == []


def test_retention_takes_summaries_along(backend: Any, start: Any) -> None:
    kept = {"name": "turn_buffer", "type": "ephemeral", "fields": [{"name": "content", "type": "text"}],
            "retention": {"kind": "duration", "duration_ms": "1h"}}  # fmt: skip
    from support.weeks import SetClock

    clock = SetClock()
    settings = backend.config(**{**LIGHT, "memories": [kept], "jobs__poll_ms": 0})
    agent = start(backend.open(settings, summarization_provider=Echo(), clock=clock))
    for number in range(2 * SIZE + 1):
        agent.say(f"turn {number}")
    agent.memory.flush()
    table = agent.memory.storage.turn_summaries
    assert table.count() == 2
    from datetime import timedelta

    clock.at += timedelta(hours=2)
    agent.memory.admin.maintain()
    assert agent.memory.storage.turns.count() == 0
    assert table.count() == 0


def test_a_turn_that_changes_while_it_is_summarized_is_summarized_again(talk: Talk, held: threading.Event) -> None:
    talk.provider.before = lambda _: held.wait(60) and None
    talk.count(SIZE + 1)
    until(lambda: bool(talk.provider.calls))
    rewritten = talk.turns[1]
    talk.memory.storage.turns.update(rewritten.turn_id, content=b"said otherwise")
    held.set()
    talk.memory.flush()
    (summary,) = talk.summaries
    assert "said otherwise" in summary.content
    talk.sound()


def test_what_is_forgotten_while_it_is_summarized_does_not_come_back(talk: Talk, held: threading.Event) -> None:
    talk.provider.before = lambda _: held.wait(60) and None
    talk.say("Zebulon is here")
    talk.count(SIZE)
    until(lambda: bool(talk.provider.calls))
    assert talk.memory.forget(texts=("Zebulon",), even_if_shared=True).proven
    held.set()
    talk.memory.flush()
    (summary,) = talk.summaries
    assert "Zebulon" not in summary.content
    talk.sound()


@pytest.mark.parametrize("change", ["deletes", "rewrites", "purges"])
@needs("sharing")
def test_who_changes_a_turn_while_its_summary_is_stored_comes_before_or_after(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    talk = Talk(backend, start)
    second = talk.open(summaries__turns="off")
    changers: list[threading.Thread] = []
    failures: list[BaseException] = []

    def changing() -> None:
        turn = talk.turns[1]
        try:
            if change == "deletes":
                second.storage.turns.delete(turn.turn_id)
            elif change == "rewrites":
                second.storage.turns.update(turn.turn_id, content=b"said otherwise")
            else:
                second.admin.purge_trajectory(talk.agent.trajectory_id)
        except BaseException as error:
            failures.append(error)

    insert_new = UnitOfWork.insert_new

    def inserting(self: UnitOfWork, relation: Any, entity: Any) -> bool:
        if relation is TURN_SUMMARY and not changers:
            changers.append(threading.Thread(target=changing))
            changers[0].start()
            changers[0].join(0.3)  # it waits for this transaction, or is done by now and was not seen
        return insert_new(self, relation, entity)

    monkeypatch.setattr(UnitOfWork, "insert_new", inserting)
    talk.count(SIZE + 1)
    talk.memory.flush()
    changers[0].join(30)
    assert failures == []
    inspect(talk.memory).snapshot("latest")
    talk.memory.flush()
    assert talk.ranges == ([] if change == "purges" else [(0, 3)])
    talk.sound()
    assert errors_of(talk.memory) == []


@needs("snapshots")
def test_two_who_delete_turns_of_one_block_both_succeed(backend: Any, start: Any) -> None:
    talk = Talk(backend, start)
    talk.count(SIZE + 1)
    talk.memory.flush()
    first, second, *_ = talk.turns
    inside, go = threading.Event(), threading.Event()

    def slowly(uow: UnitOfWork) -> None:
        uow.delete(TURN, uow.get(TURN, first.turn_id.bytes))
        inside.set()
        go.wait(30)

    slow = begin(lambda: inspect(talk.memory).store.write(slowly, exclusive=True))
    assert inside.wait(30)
    other = begin(lambda: talk.memory.storage.turns.delete(second.turn_id))
    until(lambda: backend.has_waiting(talk.memory))
    go.set()
    slow.result(30)
    other.result(30)
    talk.memory.flush()
    assert [turn.turn_number for turn in talk.turns] == [2, 3, 4]
    assert talk.ranges == [(2, 3)]
    talk.sound()


# --- others ----------------------------------------------------------------------------------------


@needs("sharing")
def test_two_handles_make_one_summary(backend: Any, start: Any) -> None:
    talk = Talk(backend, start)
    provider = Echo()
    second = talk.open(provider)
    both = threading.Barrier(2, timeout=30)

    def together(_: str) -> None:
        if not both.broken:
            both.wait()

    talk.provider.before = provider.before = together
    with talk.resting():
        talk.count(SIZE + 1)
        second.get(talk.agent.trajectory_id)
        inspect(second).snapshot("latest")
    at_once([handle.flush for handle in (talk.memory, second)])
    both.abort()
    assert talk.provider.asked == provider.asked == talk.provider.asked[:1], "both asked"
    assert talk.ranges == [(0, 3)]
    inspect(second).snapshot("latest")
    talk.sound()
    assert second.admin.verify() == []
    snapshot = inspect(second).snapshot()["turn_summary"]
    assert snapshot.count() == 1


@needs("sharing")
def test_what_another_program_leaves_is_summarized_here(
    backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caliber.engine.pacing.FOREIGN_S", 0.02)
    talk = Talk(backend, start, resident__feed_poll_ms=10)
    without = talk.open(summaries__turns="off")
    assert inspect(without).engine.find_part(TurnSummarizer) is None
    for number in range(SIZE + 1):
        without.append_turn(talk.scope_id, role="user", content=f"turn {number}")
    until(lambda: talk.ranges == [(0, 3)])
    talk.sound()


@needs("reopen")
def test_blocks_of_another_size_overlap_no_summary(backend: Any, start: Any) -> None:
    talk = Talk(backend, start)
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    before = talk.summaries
    talk.memory.close()
    talk.memory = talk.agent.memory = talk.open(assembly__evict_block_turns=6)
    talk.count(5)
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7), (8, 11)], "what has a summary keeps it"
    assert talk.summaries[:2] == before
    talk.sound()


# --- providers -------------------------------------------------------------------------------------


def errors_of(memory: caliber.Caliber) -> list[dict[str, Any]]:
    inspect(memory).behind.flush()
    kinds = (event for event in memory.storage.events.all() if event.event_type == EventType.ERROR)
    ours = ("summarizing turns", "job turn_summaries")
    return [event.payload for event in kinds if event.payload["where"] in ours]


def test_a_provider_that_fails_is_asked_again_and_stops_nothing_else(backend: Any, start: Any) -> None:
    embeddings = CountingEmbeddings()
    knobs = {name: value for name, value in LIGHT.items() if name != "embedding_provider"}
    settings = backend.config(**{**knobs, "embedding__embed__turn": "behind"})
    provider = Echo()
    provider.failing = {"summarize"}
    agent = start(backend.open(settings, summarization_provider=provider, embedding_provider=embeddings))
    for number in range(2 * SIZE + 1):
        agent.say(f"turn {number}")
    until(lambda: len(provider.calls) > 2)
    with pytest.raises(CaliberError) as caught:
        agent.memory.flush()
    assert caught.value.kind == outage().kind
    assert agent.memory.storage.embeddings.count() == 2 * SIZE + 1, "vectors are made all the same"
    assert len(errors_of(agent.memory)) == 1, "an outage is said once"
    assert agent.memory.admin.stats()["behind"]["turn_summaries_waiting"] == 2
    agent.say("goes on")
    provider.failing = set()
    until(lambda: agent.memory.storage.turn_summaries.count() == 2)
    agent.memory.flush()


def test_a_provider_that_raises_what_is_no_error_of_ours_is_asked_again(talk: Talk) -> None:
    def breaks(_: str) -> None:
        raise ZeroDivisionError

    talk.provider.before = breaks
    talk.count(SIZE + 1)
    with pytest.raises(SummarizationFailed):
        talk.memory.flush()
    talk.provider.before = lambda _: None
    until(lambda: talk.ranges == [(0, 3)])


def test_a_block_on_which_the_code_of_a_provider_fails_stops_no_other(talk: Talk) -> None:
    def breaks(_: str) -> None:
        if "turn 2" in talk.provider.asked[-1]:
            raise ZeroDivisionError

    talk.provider.before = breaks
    talk.count(3 * SIZE + 1)
    with pytest.raises(SummarizationFailed) as caught:
        talk.memory.flush()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert talk.ranges == [(4, 7), (8, 11)]
    until(lambda: talk.provider.asked.count(talk.provider.asked[0]) > 2, "the job asks again")
    talk.provider.before = lambda _: None
    until(lambda: talk.ranges == [(0, 3), (4, 7), (8, 11)])


def test_two_threads_that_note_waiting_tasks_lose_none(talk: Talk, start: Any) -> None:
    summarizer: Any = inspect(talk.memory).engine.part(TurnSummarizer)
    agents = [talk.agent, start(talk.memory)]
    for agent in agents:
        for number in range(SIZE - 1):
            agent.say(f"turn {number}")
        agent.say("looking", role="assistant", tool_calls=[ToolCall("1", "look", "{}")])
        agent.say("found one", role="tool", tool_call_id="1")
    tasks = {agent.trajectory_id.bytes for agent in agents}
    begun, go = threading.Event(), threading.Event()

    class Slow(frozenset[bytes]):
        def __or__(self, other: Any) -> Any:
            if not begun.is_set():
                begun.set()
                go.wait(0.5)
            return frozenset(self) | other

    def note(task: bytes) -> None:
        summarizer.tasks_of(task, 0)

    with talk.resting():
        for task in tasks:
            note(task)
        assert summarizer.waiting == tasks
        summarizer.waiting = Slow()
        threads = [threading.Thread(target=note, args=(task,)) for task in tasks]
        threads[0].start()
        assert begun.wait(30)
        threads[1].start()
        for thread in threads:
            thread.join(30)
    assert summarizer.waiting == tasks


def test_a_text_that_a_provider_refuses_waits_until_it_changes(talk: Talk) -> None:
    def refuses(_: str) -> None:
        if "turn 1" in talk.provider.asked[-1]:
            raise SummarizationFailed(reason="this text")

    talk.provider.before = refuses
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    talk.memory.flush()
    assert talk.ranges == [(4, 7)], "it stops no other"
    assert len(talk.provider.calls) == 2, "it is not asked again and again"
    assert [error["error"] for error in errors_of(talk.memory)] == ["summarization_failed"]
    assert talk.waiting == 1
    talk.memory.storage.turns.update(talk.turns[1].turn_id, content=b"said otherwise")
    talk.memory.flush()
    assert talk.ranges == [(0, 3), (4, 7)]


def test_without_a_provider_or_with_the_knob_off_nothing_is_summarized(backend: Any, start: Any) -> None:
    for knobs in ({"summaries__turns": "off"}, {"summarization_provider": None}):
        settings = backend.config(**{**LIGHT, **knobs})
        provider = None if "summarization_provider" in knobs else Echo()
        agent = start(backend.open(settings, summarization_provider=provider))
        for number in range(2 * SIZE + 1):
            agent.say(f"turn {number}")
        agent.memory.flush()
        assert agent.memory.storage.turn_summaries.list_by_trajectory(agent.trajectory_id) == []
        assert agent.memory.admin.stats()["behind"]["turn_summaries_waiting"] == 0
        assert not any(thread.name == "caliber-summarize" for thread in threading.enumerate())
        agent.memory.close()
        if not backend.has("reopen"):
            return


def test_the_extractive_provider_of_the_profiles(backend: Any, start: Any) -> None:
    settings = backend.config(**{**LIGHT, "summaries__max_tokens": 30})
    agent = start(backend.open(settings))
    for number in range(SIZE + 1):
        agent.say(f"In year {number} the harbour froze over. Ships waited outside. Nobody could leave the town.")
    agent.memory.flush()
    (summary,) = agent.memory.storage.turn_summaries.list_by_scope(agent.scope_id)
    assert summary.model_id.startswith("extractive")
    assert 0 < summary.token_count <= 30
    assert "harbour" in summary.content


# --- kept, moved, checked --------------------------------------------------------------------------


def test_a_turn_that_is_loaded_between_others_has_their_summary_made_anew(talk: Talk) -> None:
    talk.count(2 * SIZE + 1)
    loaded = talk.memory.storage.bulk_read("turn").read_all().slice(1, 1)
    talk.memory.storage.turns.delete(talk.turns[1].turn_id)
    talk.memory.flush()
    assert len(talk.summaries[0].source_turns) == SIZE - 1
    with talk.resting():
        talk.memory.storage.bulk_load(
            "turn", loaded.drop_columns(["ordinal"]) if "ordinal" in loaded.column_names else loaded
        )
        faults = talk.memory.admin.check()
        assert [(fault.relation, fault.what) for fault in faults] == [
            ("turn_summary", "lacks a turn between its first and its last")
        ]
    talk.memory.flush()
    assert len(talk.summaries[0].source_turns) == SIZE
    talk.sound()


def test_check_finds_summaries_that_are_not_of_their_turns(talk: Talk) -> None:
    talk.count(2 * SIZE + 1)
    talk.memory.flush()
    first, second = talk.summaries
    table = talk.memory.storage.turn_summaries

    def found() -> list[tuple[str, str]]:
        return [(fault.kind.value, fault.what) for fault in talk.memory.admin.check()]

    with talk.resting():
        table.update(first.turn_summary_id, source_turns=first.source_turns[1:])
        assert found() == [("reference", "lacks a turn between its first and its last")]
        table.update(first.turn_summary_id, source_turns=(*first.source_turns, second.source_turns[0]))
        assert found() == [("reference", "was made of turns that are gone")]
        table.update(first.turn_summary_id, source_turns=first.source_turns, trust=TrustLabel.SYSTEM)
        assert found() == [("label", "is trusted more than a turn of it")]
        table.update(first.turn_summary_id, trust=first.trust)
        assert found() == []
        twice = replace(first, turn_summary_id=TurnSummaryId(talk.turns[0].turn_id), first_turn=1, version=1)
        table.insert(replace(twice, source_turns=first.source_turns[1:]))
        assert found() == [("reference", "overlaps another of its scope")]


@pytest.mark.prove
@needs("sharing")
def test_summaries_are_right_whatever_is_written_beside_them(backend: Any, start: Any) -> None:
    """Turns are appended, changed and deleted and tasks purged while two workers summarize: no write fails."""
    talk = Talk(backend, start, resident__feed_poll_ms=5)
    second = talk.open(Echo())
    failures: list[BaseException] = []

    def repeatedly(work: Callable[[random.Random], None], rounds: int) -> threading.Thread:
        def run() -> None:
            chosen = random.Random(rounds)
            try:
                for _ in range(rounds):
                    work(chosen)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def append(_: random.Random) -> None:
        talk.count(3)

    def change(chosen: random.Random) -> None:
        turns = talk.turns
        if turns:
            turn = chosen.choice(turns)
            with contextlib.suppress(Conflict, NotFound):
                if chosen.random() < 0.5:
                    second.storage.turns.delete(turn.turn_id)
                else:
                    second.storage.turns.update(turn.turn_id, content=f"changed {chosen.random()}".encode())

    def purge(_: random.Random) -> None:
        other = start(second)
        for number in range(3 * SIZE):
            other.say(f"turn {number}")
        second.admin.purge_trajectory(other.trajectory_id)

    def flush(_: random.Random) -> None:
        talk.memory.flush()
        second.flush()

    rounds = {append: 25, change: 50, purge: 5, flush: 20}
    for thread in [repeatedly(work, each) for work, each in rounds.items()]:
        thread.join(60)
    assert failures == []
    for handle in (talk.memory, second):
        inspect(handle).snapshot("latest")
        handle.flush()
    talk.sound()
    assert talk.waiting == 0
    assert errors_of(talk.memory) == errors_of(second) == []
    assert len(talk.turns) > SIZE
