"""Retention of the records of declared memories, of every kind, for every memory. Source: C-136 to C-138, K-063."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.configs import USER, policy
from support.inspection import inspect, replaced
from support.memories import record
from support.providers import CountingEmbeddings, ScriptedSummarizer
from support.waits import until
from support.weeks import MONDAY, SetClock

from caliber.jobs.queue import JobQueue
from caliber.model.errors import CaliberError
from caliber.retention.retaining import SWEEP
from caliber.trajectory.service import Tasks

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
QUIET = {"embedding_provider": None, "jobs__poll_ms": 0, "policies": []}
CATEGORIES = {"turn_buffer": "ephemeral", "artifact": "episodic", "note": "semantic", "rule": "procedural"}


EVERYWHERE = pytest.mark.parametrize("backend", ["sqlite-memory", "postgres"], indirect=True)
"""Nothing here depends on a file; what is statements of a database runs on both."""

HERE = pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)
"""What is decided above any database."""


def kept(name: str, kind: str, **how: Any) -> dict[str, Any]:
    return {
        "name": name, "type": CATEGORIES.get(name, "working"), "fields": [{"name": "content", "type": "text"}],
        "retention": {"kind": kind, **how},
    }  # fmt: skip


def write(memory: Any, name: str, content: str, agent: Any, **fields: Any) -> Any:
    """Keep a record of a memory of the store's own; it belongs where the agent is."""
    relation = inspect(memory).store.catalog.memories[name].relation
    now = datetime.fromtimestamp(inspect(memory).engine.clock.now_us() / 1e6, UTC)
    belongs = {
        "trajectory_id": agent.trajectory_id,
        "scope_id": agent.scope_id,
        "session_id": agent.trajectory.session_id,
    }
    made = record(inspect(memory).store.catalog, name, content=content, created_at=now, **{**belongs, **fields})
    inspect(memory).write(lambda uow: uow.insert(relation, made))
    return made


def records(memory: Any, name: str) -> list[Any]:
    """Return the records of a memory of the store's own."""
    snapshot = inspect(memory).resident.snapshot[inspect(memory).store.catalog.memories[name].relation.name]
    rows = [row for row in range(len(snapshot.live_mask)) if snapshot.live_mask[row]]
    return [inspect(memory).resident.entity(snapshot, row) for row in rows]


def left(memory: Any) -> dict[str, list[str]]:
    """Return the active records, by memory."""
    storage, store = memory.storage, inspect(memory).store
    out = {
        "turn_buffer": [turn.text for turn in storage.turns.all()],
        "artifact": [item.text for item in storage.artifacts.all() if item.retired_at is None],
        "note": [note.content for note in storage.notes.all() if note.archived_at is None],
    }
    for name in store.catalog.memories:
        out[name] = [item.content for item in records(memory, name) if item.archived_at is None]
    return {name: sorted(found) for name, found in out.items()}


def taken(memory: Any) -> list[tuple[str, str, int]]:
    """Return the logged removals of retention, in the order of the log."""
    memory.flush()
    found = [event for event in memory.storage.events.all() if event.event_type == "retention_apply"]
    return [(event.payload["memory"], event.payload["rule"], event.payload["taken"]) for event in found]


@pytest.fixture
def opened(backend: Any) -> Any:
    def make(*memories: dict[str, Any], **options: Any) -> Any:
        clock = SetClock()
        memory = backend.open(clock=clock, memories=list(memories), **{**QUIET, **options})
        return memory, clock

    return make


@EVERYWHERE
def test_what_stays_for_a_scope_goes_when_it_closes(opened: Any, start: Any) -> None:
    # C-136: in the transaction that closes it; replay has what the window was made of
    memory, _ = opened(kept("turn_buffer", "scope"), kept("artifact", "scope"), kept("scratch", "scope"))
    agent, other = start(memory), start(memory)
    for who in (agent, other):
        who.say("said by Trillian" if who is agent else "said by another")
        who.keep(f"kept by {who is agent}")
        write(memory, "scratch", f"noted by {who is agent}", who)
    agent.note("a note")
    window = memory.assemble_context(agent.trajectory_id)
    assert "said by Trillian" in window.text
    memory.close_scope(agent.scope_id)
    others = {"turn_buffer": ["said by another"], "artifact": ["kept by False"], "scratch": ["noted by False"]}
    assert left(memory) == {**others, "note": ["a note"]}
    assert taken(memory) == [("turn_buffer", "scope", 1), ("artifact", "scope", 1), ("scratch", "scope", 1)]
    assert memory.replay(window.window_id).text == window.text
    memory.storage.scopes.close(other.scope_id)
    assert left(memory)["scratch"] == left(memory)["turn_buffer"] == []
    assert memory.admin.verify() == []


@HERE
def test_what_stays_for_a_scope_goes_only_with_it(opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-215: the close that fails takes nothing
    memory, _ = opened(kept("turn_buffer", "scope"))
    agent = start(memory)
    agent.say("said by Trillian")
    window = memory.assemble_context(agent.trajectory_id)

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("planted")

    with replaced(Tasks, "emit", refuse), pytest.raises(RuntimeError):
        memory.close_scope(agent.scope_id)
    assert left(memory)["turn_buffer"] == ["said by Trillian"]
    assert taken(memory) == []
    memory.close_scope(agent.scope_id)
    assert memory.replay(window.window_id).text == window.text


@pytest.mark.parametrize("how", ["end_session", "last task"])
@EVERYWHERE
def test_what_stays_for_a_session_goes_when_it_ends(opened: Any, start: Any, how: str) -> None:
    # C-013, C-136: a session ends by a call, or with its last task
    memory, _ = opened(*(kept(name, "session") for name in ("turn_buffer", "artifact", "scratch")))
    session = memory.start_session(initiator=USER)
    agent, outside = start(memory), start(memory)
    agent.trajectory = memory.start_trajectory("in a session", initiator=USER, session=session.session_id)
    agent.scope = memory.current_scope(agent.trajectory_id)
    for who, name in ((agent, "in"), (outside, "out")):
        who.say(name)
        who.keep(name)
        write(memory, "scratch", name, who)
    agent.note("a note")
    if how == "end_session":
        memory.end_session(session.session_id)
    else:
        memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    memory.end_session(session.session_id)
    expected = {name: ["out"] for name in ("turn_buffer", "artifact", "scratch")}
    assert left(memory) == {**expected, "note": ["a note"]}
    assert taken(memory) == [(name, "session", 1) for name in ("turn_buffer", "artifact", "scratch")]
    assert memory.admin.verify() == []


@EVERYWHERE
def test_what_is_too_old_goes_in_batches_when_it_is_time(
    opened: Any, start: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-136: by created_at, inclusive as in K-063; once for all processes, and known after reopening
    declared = [kept(name, "duration", duration_ms="1d") for name in ("turn_buffer", "artifact", "note", "scratch")]
    monkeypatch.setattr("caliber.retention.retaining.SWEEP_ROWS", 2)
    memory, clock = opened(*declared, retention__sweep_every_ms="1h")
    agent = start(memory)
    memory.jobs.run_due()
    for at in range(6):
        clock.at = MONDAY + at * MINUTE
        agent.say(f"{at}")
        agent.keep(f"{at}", ttl="10s" if at == 5 else None)
        agent.note(f"{at}")
        write(memory, "scratch", f"{at}", agent)
    clock.at = MONDAY + DAY + 4 * MINUTE
    memory.jobs.run_due()
    assert left(memory) == {name: ["5"] for name in ("turn_buffer", "artifact", "note", "scratch")}
    assert taken(memory) == [
        (name, "1d", count) for name in ("turn_buffer", "artifact", "note", "scratch") for count in (2, 2, 1)
    ]
    clock.at = MONDAY + DAY + HOUR
    memory.jobs.run_due()
    assert left(memory)["note"] == ["5"], "not yet: it looks every hour"
    memory.admin.maintain()
    assert left(memory) == {"turn_buffer": [], "artifact": [], "note": [], "scratch": []}
    assert memory.admin.verify() == []


@HERE
def test_a_sweep_that_is_due_runs_once_whoever_is_open(opened: Any, start: Any) -> None:
    # C-136, C-238: one runner, and what it did is known to the next
    memory, clock = opened(kept("note", "duration", duration_ms="1h"), retention__sweep_every_ms="1h")
    start(memory).note("old")
    memory.jobs.run_due()
    clock.at = MONDAY + HOUR
    with inspect(memory).engine.part(JobQueue).holding(SWEEP) as claim:
        assert claim is not None
        memory.jobs.run_due()
        assert memory.admin.maintain()["memories"] == 0
        assert left(memory)["note"] == ["old"], "another process is at it"
    clock.at += HOUR
    memory.jobs.run_due()
    assert (left(memory)["note"], len(taken(memory))) == ([], 1)
    clock.at = MONDAY
    start(memory).note("of a clock that was put back")
    clock.at = MONDAY + HOUR - MINUTE
    memory.jobs.run_due()
    clock.at = MONDAY + HOUR
    memory.jobs.run_due()
    assert taken(memory)[1:] == [], "looked a minute ago"


@EVERYWHERE
def test_only_the_newest_stay(opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-137: of each trajectory; of notes and of own knowledge, of the tenant
    names = ("turn_buffer", "artifact", "note", "scratch", "rule")
    monkeypatch.setattr("caliber.retention.retaining.SWEEP_ROWS", 1)
    memory, clock = opened(*(kept(name, "max", count=2) for name in names))
    agents = [start(memory), start(memory)]
    for at in range(3):
        clock.at = MONDAY + at * MINUTE
        for number, agent in enumerate(agents):
            text = f"{number}{at}"
            agent.say(text)
            agent.keep(text)
            agent.note(text)
            write(memory, "scratch", text, agent)
            write(memory, "rule", text, agent)
    agents[0].keep("the newest")
    memory.jobs.run_due()
    both, newest = ["01", "02", "11", "12"], ["02", "12"]
    assert left(memory) == {
        "turn_buffer": both, "artifact": ["02", "11", "12", "the newest"], "note": newest, "scratch": both,
        "rule": newest,
    }  # fmt: skip
    memory.jobs.run_due()
    assert sum(count for _, _, count in taken(memory)) == 2 + 3 + 4 + 2 + 4
    assert {rule for _, rule, _ in taken(memory)} == {"max(2)"}
    assert memory.admin.verify() == []


@HERE
def test_an_open_store_looks_by_itself_also_without_a_schedule(opened: Any, start: Any) -> None:
    # C-136
    import threading

    memory, clock = opened(
        kept("turn_buffer", "duration", duration_ms="1h"), jobs__poll_ms=5,
        retention__sweep_every_ms="1m",
    )  # fmt: skip
    told = threading.Event()
    memory.events.subscribe(lambda _: told.set(), event_type="retention_apply")
    start(memory).say("old")
    clock.at = MONDAY + 2 * HOUR

    def swept() -> bool:
        clock.at += 2 * MINUTE  # the first sweep may have looked before the turn was too old
        return told.wait(0.05)

    until(swept)
    assert left(memory)["turn_buffer"] == []


# --- compress_on ---------------------------------------------------------------------------------


def compressed(name: str, on: str, **when: Any) -> dict[str, Any]:
    return kept(name, "compress_on", when={"on": on, **when})


@EVERYWHERE
def test_records_give_way_to_one_that_sums_them_up(opened: Any, start: Any) -> None:
    # C-138: in the range of the trigger, in its transaction; the originals are kept out of use
    summarizer = ScriptedSummarizer()
    memory, _ = opened(
        *(compressed(name, "task_end") for name in ("artifact", "note", "scratch")),
        compressed("turn_buffer", "scope_close"),
        summarization_provider=summarizer,
    )
    agent, other = start(memory), start(memory)
    for who in (agent, other):
        for number in range(3):
            who.say(f"said {number}", role="tool" if number == 1 else "user", trust="web" if number == 1 else "user")
            who.keep(f"kept {number}", confidence=0.5 + number / 10)
            write(memory, "scratch", f"noted {number}", who, trust="user")
            who.note(f"known {number} of {who is agent}", source_trajectory_ids=[who.trajectory_id])
    write(memory, "scratch", "read on a page", agent, trust="web")
    agent.note("of another thing", entity="other", source_trajectory_ids=[agent.trajectory_id])
    agent.note("hidden from some", visible_to=["agent:a"], source_trajectory_ids=[agent.trajectory_id])
    window = memory.assemble_context(agent.trajectory_id)
    scope = memory.close_scope(agent.scope_id)
    assert (scope.summary, scope.trust) == ("summary of user: said 0", "web")
    assert len(left(memory)["turn_buffer"]) == 3
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert summarizer.calls == ["summarize"] * 4
    mine = [item for item in memory.storage.artifacts.all() if item.trajectory_id == agent.trajectory_id]
    (summary,) = [item for item in mine if item.retired_at is None]
    assert (summary.text, summary.superseded_by) == ("summary of kept 0", None)
    assert {item.superseded_by for item in mine if item.retired_at is not None} == {summary.artifact_id}
    assert sorted(note for note in left(memory)["note"] if "of False" not in note) == [
        "hidden from some", "of another thing", "summary of known 0 of True",
    ]  # fmt: skip
    (note,) = [item for item in memory.storage.notes.all() if item.content.startswith("summary")]
    assert (note.confidence, note.source_trajectory_ids) == (0.9, (agent.trajectory_id,))
    own = [item for item in records(memory, "scratch") if item.trajectory_id == agent.trajectory_id]
    # What is trusted less is not summed up with the rest.
    assert [(item.content, item.trust) for item in own if item.archived_at is None] == [
        ("read on a page", "web"), ("summary of noted 0", "user"),
    ]  # fmt: skip
    assert len([item for item in own if item.archived_at is not None]) == 3
    assert taken(memory) == [
        ("turn_buffer", "compress_on: scope_close", 3), ("artifact", "compress_on: task_end", 3),
        ("note", "compress_on: task_end", 3), ("scratch", "compress_on: task_end", 3),
    ]  # fmt: skip
    memory.flush()
    runs = [event.payload for event in memory.storage.events.all() if event.event_type == "policy_execute"]
    assert [(run["policy"], run["action"], run["compressed"]) for run in runs] == [
        (f"memory {name}", f"compress {name}", 3) for name in ("turn_buffer", "artifact", "note", "scratch")
    ]
    assert memory.replay(window.window_id).text == window.text
    memory.complete_trajectory(other.trajectory_id, status="success", summary="")
    assert memory.admin.check() == []


@HERE
def test_what_stands_for_records_is_found_and_they_are_not(opened: Any, start: Any) -> None:
    # C-138: with the vector that its own text has
    own = compressed("scratch", "task_end")
    own["fields"].append({"name": "content_embedding", "type": "embedding"})
    memory, _ = opened(
        own, compressed("note", "task_end"), summarization_provider=ScriptedSummarizer(),
        embedding_provider=CountingEmbeddings(), embedding__embed__note="commit", embedding__embed__turn="off",
    )  # fmt: skip
    agent = start(memory)
    for text in ("ships sail", "boats float"):
        memory.records("scratch").insert(
            {"content": text}, trajectory=agent.trajectory_id, scope=agent.scope_id, idempotency_key=text
        )
        agent.note(text, source_trajectory_ids=[agent.trajectory_id])
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    memory.flush()
    assert [hit.content for hit in memory.search("ships boats", kinds=["note"]).hits] == ["summary of ships sail"]
    assert left(memory)["scratch"] == ["summary of ships sail"]
    (summary,) = [item for item in records(memory, "scratch") if item.archived_at is None]
    assert (summary.idempotency_key, summary.fingerprint) == (None, None), "keys are those of the records"
    assert memory.admin.check() == []


@HERE
def test_records_of_different_parents_are_not_summed_up_as_one(opened: Any, start: Any) -> None:
    # C-138, C-144
    memory, _ = opened(
        kept("scratch", "persistent"), {**compressed("part", "task_end"), "parent": "scratch"},
        summarization_provider=ScriptedSummarizer(),
    )  # fmt: skip
    agent = start(memory)
    wholes = [memory.records("scratch").insert({"content": text}, trajectory=agent.trajectory_id) for text in "ab"]
    for number in range(4):
        memory.records("part").insert({"content": f"part {number}"}, parent=wholes[number % 2].record_id)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert {(item.parent_id, item.content) for item in memory.records("part").find()} == {
        (wholes[0].record_id, "summary of part 0"),
        (wholes[1].record_id, "summary of part 1"),
    }


@HERE
def test_the_summary_of_a_policy_is_not_asked_for_again(opened: Any, start: Any) -> None:
    # C-138, C-213: exactly once
    summarizer = ScriptedSummarizer()
    summarize = {"action": "summarize", "target": "turn_buffer"}
    memory, _ = opened(
        compressed("turn_buffer", "scope_close"), summarization_provider=summarizer,
        policies=[policy("scope_close", summarize)],
    )  # fmt: skip
    agent = start(memory)
    agent.say("said")
    assert memory.close_scope(agent.scope_id).summary == "summary of user: said"
    assert (summarizer.calls, left(memory)["turn_buffer"]) == (["summarize"], [])
    empty = memory.open_scope(agent.trajectory_id)
    assert memory.close_scope(empty.scope_id).summary is None
    assert summarizer.calls == ["summarize"]


@pytest.mark.parametrize("rule", ["fail", "close_without_summary"])
@HERE
def test_what_cannot_be_summed_up_stays(opened: Any, start: Any, rule: str) -> None:
    # C-138, C-215, C-229: all or nothing
    summarizer = ScriptedSummarizer()
    summarizer.failing = {"summarize"}
    memory, _ = opened(
        compressed("turn_buffer", "scope_close"), summarization_provider=summarizer, close__on_llm_failure=rule
    )
    agent = start(memory)
    agent.say("said")
    if rule == "fail":
        with pytest.raises(CaliberError, match="503"):
            memory.close_scope(agent.scope_id)
        assert memory.get(agent.scope_id).is_open
    else:
        assert memory.close_scope(agent.scope_id).summary is None
    assert left(memory)["turn_buffer"] == ["said"]
    assert taken(memory) == []


@HERE
def test_what_ends_by_itself_is_not_kept_on_in_a_summary(opened: Any, start: Any) -> None:
    # C-012, C-138: a ttl goes on holding, and what has expired stays so
    summarizer = ScriptedSummarizer()
    memory, clock = opened(compressed("artifact", "task_end"), summarization_provider=summarizer)
    agent = start(memory)
    for name, ttl in (("scope", "scope"), ("hour", 3_600_000), ("stays", None)):
        for number in range(2):
            agent.keep(f"{name} {number}", ttl=ttl)
    clock.at = MONDAY + 3 * HOUR
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert summarizer.calls.count("summarize") == 1
    found = {item.text: item for item in memory.storage.artifacts.all()}
    assert {name for name in found if name.startswith("summary")} == {"summary of stays 0"}
    summary = found["summary of stays 0"].artifact_id
    assert {name for name, item in found.items() if item.superseded_by == summary} == {"stays 0", "stays 1"}


@HERE
def test_a_summary_stays_although_its_words_were_there_for_a_while(opened: Any, start: Any) -> None:
    # C-138: what stands for records that stay does not go with the ttl of an artifact that says the same
    memory, clock = opened(compressed("artifact", "task_end"), summarization_provider=ScriptedSummarizer())
    agent = start(memory)
    same = {"artifact_type": "intermediate_output", "extraction_method": "inferred"}
    agent.keep("summary of one", ttl=3_600_000, **same)
    for text in ("one", "two"):
        agent.keep(text)
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    clock.at = MONDAY + 3 * HOUR
    memory.admin.maintain()
    assert left(memory)["artifact"] == ["summary of one"]


@HERE
def test_what_is_forgotten_while_it_is_summed_up_does_not_come_back(opened: Any, start: Any) -> None:
    # docs/forgetting.md; C-138: the erasure takes the job back, and it runs again over what is left
    summarizer = ScriptedSummarizer()
    memory, clock = opened(compressed("note", "schedule", cron="0 3 * * *"), summarization_provider=summarizer)
    memory.jobs.run_due()
    agent = start(memory)
    for text in ("it is swordfish", "it is a trout"):
        agent.note(text)

    def forget(_: str) -> None:
        summarizer.before = lambda _: None
        memory.forget(texts=["swordfish"])

    summarizer.before = forget
    clock.at = MONDAY + 4 * HOUR
    memory.jobs.run_due()
    (note,) = left(memory)["note"]
    assert note.startswith("summary of it is")
    assert "swordfish" not in note


@EVERYWHERE
def test_what_is_compressed_on_a_schedule_is_compressed_in_the_whole_store(
    opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-138, C-148: by task, notes by what they are of; each group whole, tried again after an outage
    summarizer = ScriptedSummarizer()
    nightly = [
        compressed(name, "schedule", cron="0 3 * * *") for name in ("turn_buffer", "artifact", "note", "scratch")
    ]
    monkeypatch.setattr("caliber.retention.compressing._PAGE", 2)
    memory, clock = opened(*nightly, summarization_provider=summarizer, jobs__lease_ms="30s")
    memory.jobs.run_due()
    agents = [start(memory), start(memory)]
    for number, agent in enumerate(agents):
        for at in range(3):
            agent.say(f"{number}{at}")
            agent.keep(f"{number}{at}", trust="user")  # as the summary of what was said
            agent.note(f"{number}{at}", entity=f"thing {number}")
            write(memory, "scratch", f"{number}{at}", agent)
    memory.close_scope(agents[0].scope_id)
    calls = iter(range(2))

    def slowly(_: str) -> None:
        clock.at += 2 * MINUTE  # a lease lasts for half a minute

    def fail_late(_: str) -> None:
        slowly(_)
        summarizer.failing = set() if next(calls, None) is not None else {"summarize"}

    summarizer.before = fail_late

    clock.at = MONDAY + 4 * HOUR
    memory.jobs.run_due()
    summarizer.before, summarizer.failing = slowly, set()
    assert taken(memory) == [
        ("turn_buffer", 'compress_on: schedule("0 3 * * *")', 3),
        ("artifact", 'compress_on: schedule("0 3 * * *")', 4),
    ]
    for _ in range(2):
        clock.at += MINUTE  # it waits before it is tried again
        memory.jobs.run_due()
    both = ["summary of 00", "summary of 10"]
    assert left(memory) == {"turn_buffer": ["10", "11", "12"], "artifact": both, "note": both, "scratch": both}
    assert sum(count for _, _, count in taken(memory)) == 3 + 7 + 6 + 6
    asked = len(summarizer.calls)
    clock.at = MONDAY + DAY + 4 * HOUR
    memory.jobs.run_due()
    assert len(summarizer.calls) == asked, "what is one already is not summed up again"
    assert memory.admin.verify() == []
