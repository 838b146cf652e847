"""Log of policies at every trigger: an event an action, in order, whole or not at all.

Source: C-213, C-226 to C-229, K-063; issue: ordered, each run recorded, never half applied.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.configs import policy
from support.inspection import inspect, replaced
from support.memories import record
from support.providers import ScriptedSummarizer

from caliber.model import FixedClock, NoteType
from caliber.model.errors import CaliberError, InvalidValue, Unavailable
from caliber.policies import policy_engine as policies_module
from caliber.policies.policy_engine import PolicyEngine
from caliber.trajectory.service import Tasks

SUMMARIZE = {"action": "summarize", "target": "turn_buffer"}
EXTRACT = {"action": "extract_artifacts", "target": "turn_buffer"}
CHECKPOINT = {"action": "checkpoint", "target": "scope"}
CONSOLIDATE = {"action": "consolidate_notes", "target": "trajectory"}
QUIET = {
    "embedding_provider": None, "pcp.recovery_points.frequency": "manual", "jobs__poll_ms": 0,
}  # fmt: skip


EVERYWHERE = pytest.mark.parametrize("backend", ["sqlite-memory", "postgres"], indirect=True)
"""Nothing here depends on a file; what is statements of a database runs on both."""

HERE = pytest.mark.parametrize("backend", ["sqlite-memory"], indirect=True)
"""What is decided above any database."""


def notify(channel: str) -> dict[str, Any]:
    return {"action": "notify", "channel": channel}


def prune(target: str, **how: Any) -> dict[str, Any]:
    return {"action": "prune", "target": target, **(how or {"older_than_ms": 0})}


@pytest.fixture
def summarizer() -> ScriptedSummarizer:
    return ScriptedSummarizer()


@pytest.fixture
def opened(backend: Any, start: Any, summarizer: ScriptedSummarizer) -> Any:
    """Return a function that opens a handle with policies and starts a trajectory."""

    def make(*policies: dict[str, Any], **options: Any) -> Any:
        return start(backend.open(summarization_provider=summarizer, policies=list(policies), **{**QUIET, **options}))

    return make


def runs(agent: Any, trigger: str) -> list[dict[str, Any]]:
    """Return the logged actions of a trigger, in the order of the log."""
    agent.memory.flush()
    found = [event for event in agent.memory.storage.events.all() if event.event_type == "policy_execute"]
    found = [event for event in found if event.payload["trigger"] == trigger]
    assert all(event.duration_ms is not None and event.trajectory_id is not None for event in found)
    return [event.payload for event in found]


def told(agent: Any, kind: str) -> list[Any]:
    agent.memory.flush()
    return [event for event in agent.memory.storage.events.all() if event.event_type == kind]


@EVERYWHERE
def test_every_action_of_every_trigger_leaves_one_event_in_declared_order(opened: Any) -> None:
    # C-226, C-227: policies in order, rules in order, actions in order
    first = {"name": "first", "rules": [
        {"on": "turn", "actions": [notify("said")]},
        {"on": "scope_close", "actions": [SUMMARIZE, EXTRACT, CHECKPOINT, prune("turn_buffer")]},
        {"on": "task_start", "actions": [notify("begun"), CHECKPOINT]},
        {"on": "scope_close", "actions": [notify("closed")]},
    ]}  # fmt: skip
    second = policy("scope_close", prune("artifact"), name="second")
    ending = policy("task_end", {"action": "summarize", "target": "scope"}, CONSOLIDATE, notify("ended"), name="ending")
    agent = opened(first, second, ending)
    agent.say("KEEP this")
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="")

    def shown(trigger: str) -> list[tuple[Any, ...]]:
        return [(run["policy"], run["rule"], run["step"], run["action"]) for run in runs(agent, trigger)]

    assert shown("task_start") == [("first", 2, 0, "notify begun"), ("first", 2, 1, "checkpoint scope")]
    assert shown("turn") == [("first", 0, 0, "notify said")]
    assert shown("scope_close") == [
        ("first", 1, 0, "summarize turn_buffer"), ("first", 1, 1, "extract_artifacts turn_buffer"),
        ("first", 1, 2, "checkpoint scope"), ("first", 1, 3, "prune turn_buffer"),
        ("first", 3, 0, "notify closed"), ("second", 0, 0, "prune artifact"),
    ]  # fmt: skip
    assert shown("task_end") == [
        ("ending", 0, 0, "summarize scope"), ("ending", 0, 1, "consolidate_notes trajectory"),
        ("ending", 0, 2, "notify ended"),
    ]  # fmt: skip
    closing = runs(agent, "scope_close")
    numbers = [run.get("summaries", run.get("artifacts", run.get("pruned"))) for run in closing]
    assert numbers == [1, 1, None, 1, None, 1]
    assert {run["outcome"] for trigger in ("task_start", "turn", "scope_close", "task_end")
            for run in runs(agent, trigger)} == {"done"}  # fmt: skip
    assert agent.memory.admin.verify() == []


@pytest.mark.parametrize("first", ["prune", "extract"])
@HERE
def test_what_is_written_is_written_in_declared_order(opened: Any, first: str) -> None:
    # C-226: what was extracted before a prune is in its range, what is extracted after it is not
    actions = [prune("artifact"), EXTRACT] if first == "prune" else [EXTRACT, prune("artifact")]
    agent = opened(policy("scope_close", *actions))
    agent.keep("of before")
    agent.say("KEEP this")
    agent.memory.close_scope(agent.scope_id)
    kept = [item.text for item in agent.memory.storage.artifacts.all() if item.retired_at is None]
    assert kept == (["KEEP this"] if first == "prune" else [])


@HERE
def test_a_summary_is_trusted_as_the_turns_it_was_made_of_that_are_gone(opened: Any) -> None:
    # C-176; design, section 10: pruning what somebody said does not make it trusted
    agent = opened(policy("scope_close", SUMMARIZE, prune("turn_buffer")))
    first = agent.say("said by a page", role="tool", trust="web")
    closed = agent.memory.close_scope(agent.scope_id)
    assert (closed.summary, closed.trust) == ("summary of tool: said by a page", "web")
    assert (closed.start_turn_id, closed.end_turn_id) == (first.turn_id, first.turn_id)
    assert agent.memory.storage.turns.count() == 0


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_of_two_that_close_a_scope_at_once_each_has_it_closed_and_one_has_acted(
    backend: Any, opened: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-213, K-048: where writers do not wait for each other, the other one closes it in the middle of this
    agent = opened(policy("scope_close", SUMMARIZE, notify("closed")))
    other = backend.open(agent.memory.config, summarization_provider=ScriptedSummarizer())
    agent.say("said")
    apply = PolicyEngine.apply

    def overtaken(engine: PolicyEngine, *about: Any) -> Any:
        monkeypatch.setattr(PolicyEngine, "apply", apply)
        other.close_scope(agent.scope_id)
        return apply(engine, *about)

    monkeypatch.setattr(PolicyEngine, "apply", overtaken)
    assert agent.memory.close_scope(agent.scope_id).summary == "summary of user: said"
    other.flush()
    assert [run["action"] for run in runs(agent, "scope_close")] == ["summarize turn_buffer", "notify closed"]


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_what_is_said_in_the_middle_of_closing_is_in_the_summary(
    backend: Any, opened: Any, summarizer: ScriptedSummarizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # C-213, C-215: never half closed, also where writers do not wait for each other
    agent = opened(policy("scope_close", SUMMARIZE, prune("turn_buffer")))
    other = backend.open(agent.memory.config)
    agent.say("said")
    apply = PolicyEngine.apply

    def overtaken(engine: PolicyEngine, *about: Any) -> Any:
        monkeypatch.setattr(PolicyEngine, "apply", apply)
        other.append_turn(agent.scope_id, role="user", content="late")
        return apply(engine, *about)

    monkeypatch.setattr(PolicyEngine, "apply", overtaken)
    assert agent.memory.close_scope(agent.scope_id).turn_count == 2
    assert summarizer.calls == ["summarize", "summarize"]
    assert [run.get("pruned") for run in runs(agent, "scope_close")] == [None, 2]
    assert agent.memory.storage.turns.count() == 0


@pytest.mark.parametrize("operation", ["summarize", "extract_artifacts", "generate_notes"])
@HERE
def test_what_is_forgotten_while_a_provider_is_asked_does_not_come_back(
    opened: Any, summarizer: ScriptedSummarizer, operation: str
) -> None:
    # docs/forgetting.md: what was prepared from it is prepared again from what is left
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT), policy("task_end", CONSOLIDATE, name="ending"))
    memory = agent.memory
    agent.say("KEEP in mind that it is swordfish")

    def forget(called: str) -> None:
        if called == operation:
            summarizer.before = lambda _: None
            memory.forget(texts=["swordfish"])

    summarizer.before = forget
    memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert summarizer.calls.count(operation) == 2
    (scope,), (artifact,), (note,) = (getattr(memory.storage, name).all() for name in ("scopes", "artifacts", "notes"))
    said = [scope.summary, artifact.text, note.content]
    assert all("in mind" in text and "swordfish" not in text for text in said), said


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)
def test_what_another_process_forgets_between_the_check_and_the_write_does_not_stay(
    opened: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # docs/forgetting.md: an erasure waits for who was writing, and finds what was written
    agent = opened(policy("turn", SUMMARIZE))
    other = backend.open(agent.memory.config)
    check = policies_module.check_erasures
    forgetting = threading.Thread(target=other.forget, kwargs={"texts": ["swordfish"]})

    def checked(*about: Any) -> None:
        check(*about)
        if forgetting.ident is None:
            forgetting.start()
            forgetting.join(0.5)  # the rest waits for this transaction to end

    monkeypatch.setattr(policies_module, "check_erasures", checked)
    agent.say("KEEP in mind that it is swordfish")
    forgetting.join()
    agent.memory.jobs.run_due()  # an erasure takes running jobs back: they run again, over what is left
    agent.memory.flush()
    assert [item.text for item in other.storage.artifacts.all() if "swordfish" in item.text] == []
    assert other.storage.artifacts.count() == 1


@pytest.mark.parametrize("trigger", ["scope_close", "turn"])
@EVERYWHERE
def test_prune_touches_only_the_scope_that_set_it_off(opened: Any, trigger: str) -> None:
    # C-228, K-063
    agent = opened(policy(trigger, prune("artifact", below_confidence=0.5), prune("scope")))
    memory = agent.memory
    other = memory.open_scope(agent.trajectory_id)
    elsewhere = memory.create_artifact(
        other.scope_id, artifact_type="fact", content="of another scope", extraction_method="explicit", confidence=0.1
    )
    memory.close_scope(other.scope_id)
    third = memory.open_scope(agent.trajectory_id)
    again = memory.create_artifact(
        third.scope_id, artifact_type="fact", content="of a third", extraction_method="explicit", confidence=0.1
    )
    mine = agent.keep("of this", confidence=0.1)
    agent.say("said here")
    if trigger == "scope_close":
        assert memory.get(elsewhere.artifact_id).retired_at is not None, "that scope has closed too"
        memory.close_scope(agent.scope_id)
        assert memory.storage.turns.count() == 0
    else:
        assert memory.get(elsewhere.artifact_id).retired_at is None
        assert memory.storage.turns.count() == 1, "the scope is open"
    assert memory.get(mine.artifact_id).retired_at is not None
    assert memory.get(again.artifact_id).retired_at is None


@HERE
def test_two_that_change_the_same_note_change_it_one_after_the_other(opened: Any, summarizer: Any) -> None:
    # C-233, K-067: both consolidate what is known; neither waits for the other for ever, nor overwrites it
    agent = opened(
        policy("task_end", CONSOLIDATE, name="one"),
        policy("task_end", {"action": "extract_artifacts", "target": "trajectory"}, name="two"),
    )
    known = agent.note("known", entity="project", entity_type="topic", note_type=NoteType.FACT)
    agent.keep("one fact")
    made = iter(["first", "second"])
    generate = summarizer.generate_notes

    def numbered(*arguments: Any) -> Any:
        from caliber.model.providers import GeneratedNote

        generate(*arguments)
        return [GeneratedNote("project", "topic", NoteType.FACT, next(made), 0.6)]

    summarizer.generate_notes = numbered
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert agent.memory.get(known.note_id).content == "known; first; second"
    assert summarizer.calls.count("generate_notes") == 2
    assert [run["notes"] for run in runs(agent, "task_end")] == [1, 1]


@EVERYWHERE
def test_a_memory_of_ones_own_is_pruned_and_summarized_as_the_others(opened: Any) -> None:
    # C-150, C-153, C-228: in the range of the trigger, and no turn instead of it
    fields = [{"name": "content", "type": "text"}, {"name": "confidence", "type": "float", "optional": True}]
    own = {"name": "finding", "type": "working", "fields": fields, "retention": {"kind": "persistent"}}
    doubtful = prune("finding", below_confidence=0.5)
    scheduled = policy("schedule", doubtful, name="nightly")
    scheduled["rules"][0]["cron"] = "0 3 * * *"
    clock = FixedClock()
    agent = opened(
        policy("scope_close", {"action": "summarize", "target": "finding"}, doubtful), scheduled,
        memories=[own], clock=clock,
    )  # fmt: skip
    memory, catalog = agent.memory, inspect(agent.memory).store.catalog
    relation = catalog.memories["finding"].relation
    other = memory.open_scope(agent.trajectory_id)
    for scope, content, confidence in (
        (agent.scope, "seen here", 0.9), (agent.scope, "doubtful here", 0.1), (agent.scope, "unsaid", None),
        (other, "doubtful elsewhere", 0.1),
    ):  # fmt: skip
        made = record(
            catalog, "finding", content=content, confidence=confidence, trajectory_id=agent.trajectory_id,
            scope_id=scope.scope_id, trust="web",
        )  # fmt: skip
        inspect(memory).write(lambda uow, made=made: uow.insert(relation, made))
    agent.say("said")
    memory.jobs.run_due()
    memory.close_scope(agent.scope_id)
    assert [run.get("artifacts", run.get("pruned")) for run in runs(agent, "scope_close")] == [1, 1]
    (artifact,) = memory.storage.artifacts.all()
    assert (artifact.text, artifact.trust) == ("summary of seen here", "web")
    assert inspect(memory).resident.snapshot[relation.name].count() == 3
    clock.advance(ms=86_400_000)
    assert memory.jobs.run_due() == 1
    memory.flush()
    (run,) = [event.payload for event in told(agent, "policy_execute") if event.payload["trigger"] == "schedule"]
    assert (run["action"], run["pruned"]) == ("prune finding", 1)
    assert memory.storage.turns.count() == 1
    assert memory.admin.verify() == []


# --- what fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["abort", "continue"])
@HERE
def test_a_turn_that_is_stored_stays_whatever_becomes_of_its_policies(
    opened: Any, summarizer: ScriptedSummarizer, on_error: str
) -> None:
    # C-229, C-235: a call that raises has changed nothing, so one that has written does not raise
    agent = opened(policy("turn", notify("before"), EXTRACT, notify("after")), policy_engine__on_error=on_error)
    summarizer.failing = {"extract_artifacts"}
    turn = agent.say("KEEP this")
    assert agent.memory.get(turn.turn_id).text == "KEEP this"
    stops = on_error == "abort"
    assert [len(told(agent, f"caliber_{name}")) for name in ("before", "after")] == ([0, 0] if stops else [1, 1])
    failed = [run for run in runs(agent, "turn") if run["outcome"] == "failed"]
    assert [(run["action"], run["error"], run.get("skipped")) for run in failed] == [
        ("extract_artifacts turn_buffer", "request_failed", 2 if stops else None)
    ]
    assert len(runs(agent, "turn")) == (1 if stops else 3)
    assert [event.payload["action"] for event in told(agent, "error") if "trigger" in event.payload] == [
        "extract_artifacts"
    ]
    summarizer.failing = set()
    agent.say("more")
    assert len(told(agent, "caliber_after")) == (1 if stops else 2)


@HERE
def test_a_task_whose_first_policies_fail_has_begun_all_the_same(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-202, C-229
    summarizer.failing = {"generate_notes"}
    agent = opened(policy("task_start", notify("begun"), CONSOLIDATE), policy_engine__on_error="abort")
    assert agent.memory.current_scope(agent.trajectory_id) is not None
    assert told(agent, "caliber_begun") == []
    assert [(run["outcome"], run["skipped"]) for run in runs(agent, "task_start")] == [("failed", 1)]


@HERE
def test_a_checkpoint_that_fails_does_not_deny_the_turn_it_is_of(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-253
    agent = opened(**{"pcp.recovery_points.frequency": "per_turn"})

    def refuse(*_: Any) -> Any:
        raise InvalidValue(field="planted", reason="no")

    monkeypatch.setattr(PolicyEngine, "prepare_checkpoint", refuse)
    assert agent.memory.get(agent.say("said").turn_id).text == "said"
    assert [event.payload["where"] for event in told(agent, "error")] == ["the checkpoint of a turn"]


@pytest.mark.parametrize("times", [1, 9])
@HERE
def test_what_stops_the_store_for_a_moment_does_not_stop_a_policy(
    opened: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    # C-229; issue, item 6: retried
    agent = opened(policy("turn", notify("said")))
    whole, left = PolicyEngine.apply, [times]

    def cut(*arguments: Any) -> Any:
        made = whole(*arguments)
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("planted", reason="connection lost", retryable=True)
        return made

    monkeypatch.setattr(PolicyEngine, "apply", cut)
    agent.say("said")
    assert len(told(agent, "caliber_said")) == len(runs(agent, "turn")) == (1 if times == 1 else 0)
    wheres = [event.payload["where"] for event in told(agent, "error")]
    assert wheres == ([] if times == 1 else ["policies on turn"])


@pytest.mark.parametrize("on_error", ["abort", "continue"])
@EVERYWHERE
def test_an_action_that_cannot_be_written_leaves_nothing_of_itself(
    opened: Any, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    # C-229; issue, item 6: never half applied
    agent = opened(
        policy("scope_close", EXTRACT, prune("turn_buffer"), CHECKPOINT, notify("closed")),
        policy_engine__on_error=on_error,
    )
    agent.say("KEEP this")
    agent.say("and that")
    whole = policies_module.prune_in_range

    def half(*arguments: Any) -> int:
        whole(*arguments)
        raise InvalidValue(field="planted", reason="after it was written")

    monkeypatch.setattr(policies_module, "prune_in_range", half)
    if on_error == "abort":
        with pytest.raises(CaliberError, match="after it was written"):
            agent.memory.close_scope(agent.scope_id)
        assert agent.memory.get(agent.scope_id).is_open
        assert agent.memory.storage.artifacts.count() == 0
        assert agent.memory.storage.checkpoints.count() == 0
        assert told(agent, "caliber_closed") == []
        assert [(run["action"], run["skipped"]) for run in runs(agent, "scope_close")] == [("prune turn_buffer", 3)]
    else:
        assert agent.memory.close_scope(agent.scope_id).checkpoint_id is not None
        assert agent.memory.storage.artifacts.count() == 1
        assert len(told(agent, "caliber_closed")) == 1
        assert [run["outcome"] for run in runs(agent, "scope_close")] == ["done", "failed", "done", "done"]
    assert len(agent.memory.storage.turns.list_by_scope(agent.scope_id)) == 2
    assert agent.memory.admin.verify() == []


@HERE
def test_turns_cost_nothing_more_where_no_policy_is_about_turns(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # C-235: nothing is read, prepared or written for a trigger that nobody uses
    agent = opened(policy("scope_close", notify("closed")))

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("looked at for a turn")

    for name in ("prepare", "write", "apply"):
        monkeypatch.setattr(PolicyEngine, name, never)
    before = len(told(agent, "policy_execute"))
    with replaced(Tasks, "snapshot", never):
        agent.say("said")
    assert len(told(agent, "policy_execute")) == before


@EVERYWHERE
def test_turn_policies_work_on_the_scope_of_the_turn(backend: Any, start: Any) -> None:  # C-228
    """With two scopes open, pruning at a turn touches the scope that it was appended to."""
    memory = backend.open(policies=[policy("turn", prune("turn_buffer"))], **QUIET)
    agent = start(memory)
    newer = memory.open_scope(agent.trajectory_id)
    agent.say("to the older scope")
    assert memory.storage.turns.list_by_scope(agent.scope_id) == []
    assert memory.storage.turns.list_by_scope(newer.scope_id) == []
