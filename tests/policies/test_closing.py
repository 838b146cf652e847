"""Policies at the start and end of tasks and scopes: policies as data, each action once, nothing half done.

Source: C-205, C-211 to C-216, C-226 to C-229, K-093 to K-095, K-099.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.configs import policy
from support.providers import CountingEmbeddings, ScriptedSummarizer, outage
from support.threads import at_once, begin

from caliber.model import ArtifactType, EventType, ExtractionMethod, FixedClock, TrajectoryStatus
from caliber.model.errors import CaliberError, Conflict
from caliber.pcp.checkpoints import read_state

SUMMARIZE = {"action": "summarize", "target": "turn_buffer"}
EXTRACT = {"action": "extract_artifacts", "target": "turn_buffer"}
CHECKPOINT = {"action": "checkpoint", "target": "scope"}
PRUNE = {"action": "prune", "target": "turn_buffer", "older_than_ms": 0}
NOTIFY = {"action": "notify", "channel": "closed"}
CONSOLIDATE = {"action": "consolidate_notes", "target": "trajectory"}
QUIET = {"pcp.recovery_points.frequency": "manual"}
"""No checkpoint but those that a policy asks for."""


@pytest.fixture
def summarizer() -> ScriptedSummarizer:
    return ScriptedSummarizer()


@pytest.fixture
def opened(backend: Any, start: Any, summarizer: ScriptedSummarizer) -> Any:
    """Return a function that opens a handle with policies and starts a trajectory with three turns."""

    def make(*policies: dict[str, Any], **options: Any) -> Any:
        options = {"embedding__embed__turn": "off", **QUIET, **options}
        memory = backend.open(summarization_provider=summarizer, policies=list(policies), **options)
        agent = start(memory)
        for text in ("first thing said", "KEEP this fact", "last thing said"):
            agent.say(text)
        return agent

    return make


def events(agent: Any, kind: str) -> list[Any]:
    return agent.memory.trace(agent.trajectory_id, event_type=kind, limit=100)


# --- each action ---------------------------------------------------------------------------------


def test_close_does_what_its_policies_say_and_each_once(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-212, C-213
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT, CHECKPOINT, NOTIFY))
    closed = agent.memory.close_scope(agent.scope_id)
    assert sorted(summarizer.calls) == ["extract_artifacts", "summarize"]
    assert closed.summary == "summary of user: first thing said"
    assert closed.summary_tokens > 0
    assert (closed.start_turn, closed.end_turn) == (0, 3)
    turns = agent.memory.storage.turns.list_by_scope(agent.scope_id)
    assert (closed.start_turn_id, closed.end_turn_id) == (turns[0].turn_id, turns[-1].turn_id)
    (artifact,) = agent.memory.storage.artifacts.all()
    assert closed.artifact_ids == (artifact.artifact_id,)
    assert artifact.text == "KEEP this fact"
    assert artifact.artifact_type is ArtifactType.FACT
    assert artifact.extraction_method is ExtractionMethod.INFERRED
    assert (artifact.confidence, artifact.source_turn) == (0.75, 1)
    (checkpoint,) = agent.memory.storage.checkpoints.list_by_trajectory(agent.trajectory_id)
    assert closed.checkpoint_id == checkpoint.checkpoint_id
    state = read_state(checkpoint)
    assert (state.turn_number, state.open_scopes) == (3, (0,))
    assert {str(turn.turn_id) for turn in turns} <= {
        source[1] for section in state.context_snapshot["sections"] for source in section["sources"]
    }
    assert b"KEEP this fact" not in checkpoint.state, "a state holds no texts"
    assert len(events(agent, "scope_close")) == 1
    assert len(events(agent, "caliber_closed")) == 1
    assert len(events(agent, "artifact_create")) == 1
    assert len(events(agent, "checkpoint_create")) == 1
    agent.memory.close_scope(agent.scope_id)
    assert len(summarizer.calls) == 2, "closing what is closed does nothing again"
    assert len(events(agent, "scope_close")) == 1
    assert agent.memory.admin.verify() == []


@pytest.mark.parametrize(
    ("action", "calls"), [(SUMMARIZE, ["summarize"]), (EXTRACT, ["extract_artifacts"]), (CHECKPOINT, []), (NOTIFY, [])]
)
def test_what_no_policy_asks_for_is_not_done(
    action: dict[str, Any], calls: list[str], opened: Any, summarizer: ScriptedSummarizer
) -> None:
    # C-213, K-066: the policies decide, nothing is done unconditionally
    agent = opened(policy("scope_close", action))
    closed = agent.memory.close_scope(agent.scope_id)
    assert summarizer.calls == calls
    assert (closed.summary is not None) == (action is SUMMARIZE)
    assert agent.memory.storage.artifacts.count() == int(action is EXTRACT)
    assert agent.memory.storage.checkpoints.count() == int(action is CHECKPOINT)
    assert agent.memory.storage.turns.count() == 3


def test_checkpoint_of_the_knob_and_of_a_policy_is_one(opened: Any) -> None:
    # C-253: frequency PerScope
    agent = opened(policy("scope_close", CHECKPOINT), **{"pcp.recovery_points.frequency": "per_scope"})
    agent.memory.close_scope(agent.scope_id)
    assert agent.memory.storage.checkpoints.count() == 1
    other = opened(**{"pcp.recovery_points.frequency": "per_scope"})
    assert other.memory.close_scope(other.scope_id).checkpoint_id is not None


def test_only_so_many_checkpoints_are_kept(opened: Any) -> None:
    # C-266, C-352, K-092
    agent = opened(policy("scope_close", CHECKPOINT), checkpoint_retention=2)
    for _ in range(4):
        scope = agent.memory.current_scope(agent.trajectory_id) or agent.memory.open_scope(agent.trajectory_id)
        newest = agent.memory.close_scope(scope.scope_id).checkpoint_id
    kept = agent.memory.storage.checkpoints.list_by_trajectory(agent.trajectory_id)
    assert len(kept) == 2
    assert kept[0].checkpoint_id == newest


def test_empty_scope_closes_without_summary_and_artifacts(backend: Any, start: Any) -> None:
    # C-216
    summarizer = ScriptedSummarizer()
    memory = backend.open(
        summarization_provider=summarizer, policies=[policy("scope_close", SUMMARIZE, EXTRACT, CHECKPOINT, NOTIFY)]
    )
    agent = start(memory)
    closed = memory.close_scope(agent.scope_id)
    assert summarizer.calls == []
    assert (closed.summary, closed.artifact_ids) == (None, ())
    assert closed.checkpoint_id is not None
    assert len(events(agent, "caliber_closed")) == 1


def test_prune_touches_the_closing_scope_only(backend: Any, start: Any) -> None:
    # C-227, C-228, K-063, K-095
    clock = FixedClock()
    rule = {"action": "prune", "target": "turn_buffer", "older_than_ms": 1_000}
    memory = backend.open(clock=clock, policies=[policy("scope_close", rule)], **QUIET)
    agent, bystander = start(memory), start(memory)
    bystander.say("of another trajectory")
    other = memory.open_scope(agent.trajectory_id)
    memory.append_turn(other.scope_id, role="user", content="of another scope")
    agent.say("old")
    clock.advance(ms=1_000)
    agent.say("young")
    memory.close_scope(agent.scope_id)
    assert [turn.text for turn in memory.storage.turns.list_by_scope(agent.scope_id)] == ["young"]
    assert len(memory.storage.turns.list_by_scope(other.scope_id)) == 1
    assert len(memory.storage.turns.list_by_scope(bystander.scope_id)) == 1
    assert memory.get(agent.scope_id).turn_count == 2, "counters keep what was there"
    assert memory.admin.verify() == []


def test_prune_of_artifacts_and_notes_takes_the_doubtful_of_the_trajectory(backend: Any, start: Any) -> None:
    # C-176 to C-178, C-228
    rules = [
        {"action": "prune", "target": "artifact", "below_confidence": 0.5},
        {"action": "prune", "target": "note", "below_confidence": 0.5},
    ]
    memory = backend.open(policies=[policy("task_end", *rules)])
    agent, bystander = start(memory), start(memory)
    kept = [agent.keep("sure", confidence=0.9), agent.keep("unsaid"), bystander.keep("elsewhere", confidence=0.1)]
    gone = agent.keep("doubtful", confidence=0.1)
    mine = agent.note("doubtful note", confidence=0.1, source_trajectory_ids=[agent.trajectory_id])
    sure = agent.note("sure note", confidence=0.8, source_trajectory_ids=[agent.trajectory_id])
    foreign = agent.note("foreign note", confidence=0.1)
    outcome = memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert memory.get(gone.artifact_id).retired_at is not None
    assert all(memory.get(item.artifact_id).retired_at is None for item in kept)
    assert memory.get(mine.note_id).archived_at is not None
    assert memory.get(sure.note_id).active
    assert memory.get(foreign.note_id).active
    assert gone.artifact_id in outcome.artifacts_produced, "it was produced, whatever became of it"


# --- when it goes wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["fail", "close_without_summary"])
@pytest.mark.parametrize("failing", ["summarize", "extract_artifacts"])
def test_provider_failure_never_leaves_a_scope_half_closed(
    rule: str, failing: str, opened: Any, summarizer: ScriptedSummarizer
) -> None:
    # C-215
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT, CHECKPOINT, NOTIFY), close__on_llm_failure=rule)
    summarizer.failing = {failing}
    if rule == "fail" and failing == "summarize":
        with pytest.raises(CaliberError, match="503"):
            agent.memory.close_scope(agent.scope_id)
        assert agent.memory.get(agent.scope_id).is_open
        for table in ("artifacts", "checkpoints", "embeddings"):
            assert getattr(agent.memory.storage, table).count() == 0
        assert events(agent, "scope_close") == []
        assert events(agent, "caliber_closed") == []
        agent.say("work goes on")
        summarizer.failing = set()
        assert agent.memory.close_scope(agent.scope_id).summary is not None
    else:
        closed = agent.memory.close_scope(agent.scope_id)
        assert not closed.is_open
        assert (closed.summary is None) == (failing == "summarize")
        assert agent.memory.storage.artifacts.count() == int(failing != "extract_artifacts")
        errors = [event for event in events(agent, "error") if event.payload.get("action") == failing]
        assert len(errors) == 1, "C-229: a failing action is traced"
        assert errors[0].payload["trigger"] == "scope_close"
        assert len(events(agent, "caliber_closed")) == 1, "the other actions are done"
    assert agent.memory.admin.verify() == []


def test_failing_action_can_abort(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-229: policy_engine.on_error = abort
    agent = opened(policy("scope_close", EXTRACT, NOTIFY), policy_engine__on_error="abort")
    summarizer.failing = {"extract_artifacts"}
    with pytest.raises(CaliberError, match="503"):
        agent.memory.close_scope(agent.scope_id)
    assert agent.memory.get(agent.scope_id).is_open
    assert events(agent, "caliber_closed") == []


@pytest.mark.parametrize("rule", ["fail", "close_without_summary"])
def test_failed_embedding_of_the_summary_follows_the_same_rule(
    rule: str, backend: Any, start: Any, summarizer: ScriptedSummarizer
) -> None:
    # C-215: "if summarisation or embedding fails"
    provider = CountingEmbeddings()
    memory = backend.open(
        embedding_provider=provider, summarization_provider=summarizer, close__on_llm_failure=rule,
        policies=[policy("scope_close", SUMMARIZE)], embedding__embed__turn="off", embedding__embed__scope="commit",
        **QUIET,
    )  # fmt: skip
    agent = start(memory)
    agent.say("something")
    provider.failure = outage
    if rule == "fail":
        with pytest.raises(CaliberError):
            memory.close_scope(agent.scope_id)
        assert memory.get(agent.scope_id).is_open
    else:
        assert not memory.close_scope(agent.scope_id).is_open
    assert memory.storage.embeddings.count() == 0


def test_providers_are_called_outside_any_transaction(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-214, K-099: while a provider thinks, others write
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT))
    written: list[str] = []

    def write_meanwhile(operation: str) -> None:
        thread = begin(lambda: agent.note(f"written during {operation}"))
        thread.result(10)
        written.append(operation if thread.done() else "blocked")

    summarizer.before = write_meanwhile
    agent.memory.close_scope(agent.scope_id)
    assert written == ["summarize", "extract_artifacts"]
    assert agent.memory.storage.notes.count() == 2


def test_turns_that_arrive_while_closing_are_in_the_summary(opened: Any, summarizer: ScriptedSummarizer) -> None:
    """The summary is prepared again; no turn is closed over unread."""
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT))
    late = iter(["KEEP this too"])

    def append(operation: str) -> None:
        for text in late:
            agent.say(text)

    summarizer.before = append
    closed = agent.memory.close_scope(agent.scope_id)
    assert closed.turn_count == 4
    assert closed.end_turn == 4
    assert summarizer.calls.count("summarize") == 2, "once for the three turns, once more for four"
    assert {artifact.text for artifact in agent.memory.storage.artifacts.all()} == {"KEEP this fact", "KEEP this too"}
    assert len(events(agent, "scope_close")) == 1
    assert len(events(agent, "artifact_create")) == 2


def test_close_that_is_always_overtaken_is_a_conflict(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-475: so many retries, then a retryable Conflict
    agent = opened(policy("scope_close", SUMMARIZE), storage__serialization_retries=2)
    summarizer.before = lambda operation: agent.say("never ending")
    with pytest.raises(Conflict) as caught:
        agent.memory.close_scope(agent.scope_id)
    assert caught.value.retryable
    assert summarizer.calls == ["summarize"] * 3
    assert agent.memory.get(agent.scope_id).is_open
    summarizer.before = lambda operation: None
    assert not agent.memory.close_scope(agent.scope_id).is_open


def test_two_that_close_one_scope_close_it_once(opened: Any, summarizer: ScriptedSummarizer) -> None:
    agent = opened(policy("scope_close", SUMMARIZE, EXTRACT, NOTIFY))
    barrier = threading.Barrier(2)
    results: list[Any] = []

    def wait(operation: str) -> None:
        if operation == "summarize":
            barrier.wait(20)

    summarizer.before = wait
    at_once([lambda: results.append(agent.memory.close_scope(agent.scope_id))] * 2)
    assert len(results) == 2
    assert results[0] == results[1]
    assert agent.memory.storage.artifacts.count() == 1
    assert len(events(agent, "scope_close")) == 1
    assert len(events(agent, "caliber_closed")) == 1


# --- ending a task -------------------------------------------------------------------------------


def test_outcome_survives_pruning(opened: Any) -> None:
    # K-093, K-094, C-208: scopes are closed and pruned first; figures and artifacts are those of the whole task
    agent = opened(
        policy("scope_close", EXTRACT, PRUNE, name="closing"), policy("task_end", CONSOLIDATE, NOTIFY, name="ending")
    )
    agent.say("answer", role="assistant", token_count=40)
    spent = agent.memory.get(agent.trajectory_id).tokens_input
    outcome = agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="done")
    assert agent.memory.storage.turns.count() == 0
    assert (outcome.tokens_input, outcome.tokens_output) == (spent, 40)
    assert spent > 0
    (artifact,) = agent.memory.storage.artifacts.all()
    assert outcome.artifacts_produced == (artifact.artifact_id,)
    (note,) = agent.memory.storage.notes.all()
    assert outcome.notes_generated == (note.note_id,)
    assert note.content == "learned: KEEP this fact"
    assert note.source_trajectory_ids == (agent.trajectory_id,)
    assert note.confidence == 0.6
    assert len(events(agent, "trajectory_complete")) == 1
    assert len(events(agent, "caliber_closed")) == 1
    assert agent.memory.admin.verify() == []


def test_every_open_scope_is_closed_first(opened: Any) -> None:
    # C-205
    agent = opened(policy("scope_close", SUMMARIZE))
    second = agent.memory.open_scope(agent.trajectory_id)
    agent.memory.append_turn(second.scope_id, role="user", content="second scope")
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    scopes = agent.memory.storage.scopes.list_by_trajectory(agent.trajectory_id)
    assert [scope.summary for scope in scopes] == ["summary of user: first thing said", "summary of user: second scope"]


def test_interrupted_completion_goes_on_from_where_it_was(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # K-093: the status flips last
    agent = opened(
        policy("scope_close", SUMMARIZE, name="closing"), policy("task_end", CONSOLIDATE, name="ending"),
        policy_engine__on_error="abort",
    )  # fmt: skip
    summarizer.failing = {"generate_notes"}
    with pytest.raises(CaliberError):
        agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    trajectory = agent.memory.get(agent.trajectory_id)
    assert (trajectory.status, trajectory.outcome) == (TrajectoryStatus.ACTIVE, None)
    assert not agent.memory.get(agent.scope_id).is_open
    summarizer.failing = set()
    agent.memory.complete_trajectory(agent.trajectory_id, status="success", summary="")
    assert summarizer.calls.count("summarize") == 1, "what was closed is not closed again"
    assert agent.memory.get(agent.trajectory_id).status is TrajectoryStatus.COMPLETED


# --- other triggers ------------------------------------------------------------------------------


def test_turn_policies_run_with_every_append_that_added_something(opened: Any) -> None:
    # C-235
    agent = opened(policy("turn", NOTIFY))
    assert len(events(agent, "caliber_closed")) == 3
    agent.say("keyed", idempotency_key="k")
    assert len(events(agent, "caliber_closed")) == 4
    agent.say("keyed", idempotency_key="k")
    assert len(events(agent, "caliber_closed")) == 4, "nothing was appended, nothing happens"


def test_checkpoint_with_every_turn(opened: Any) -> None:
    # C-253: frequency PerTurn
    agent = opened(**{"pcp.recovery_points.frequency": "per_turn", "checkpoint_retention": 5})
    assert agent.memory.storage.checkpoints.count() == 3
    states = [read_state(item) for item in agent.memory.storage.checkpoints.list_by_trajectory(agent.trajectory_id)]
    assert [state.turn_number for state in states] == [3, 2, 1]


# --- notes ---------------------------------------------------------------------------------------


def test_consolidated_notes_are_merged_into_what_is_known(opened: Any, summarizer: ScriptedSummarizer) -> None:
    # C-233, C-234, K-111
    agent = opened(policy("scope_close", EXTRACT))
    agent.memory.close_scope(agent.scope_id)
    (first,) = agent.memory.consolidate_notes(agent.trajectory_id)
    (again,) = agent.memory.consolidate_notes(agent.trajectory_id)
    assert again.note_id == first.note_id
    assert again.source_trajectory_ids == (agent.trajectory_id,), "appended once"
    other = agent.memory.start_trajectory("other", initiator=agent.trajectory.initiator)
    scope = agent.memory.current_scope(other.trajectory_id)
    agent.memory.append_turn(scope.scope_id, role="user", content="KEEP something else")
    agent.memory.close_scope(scope.scope_id)
    (merged,) = agent.memory.consolidate_notes(other.trajectory_id)
    assert merged.note_id == first.note_id
    assert merged.content == "learned: KEEP this fact; learned: KEEP something else"
    assert merged.source_trajectory_ids == (agent.trajectory_id, other.trajectory_id)
    assert "merge_notes" in summarizer.calls
    assert agent.memory.storage.notes.count() == 1
    agent.memory.flush()
    hit = agent.memory.search("something else", kinds=["note"]).hits[0]
    assert hit.id == first.note_id, "its vector says what it says now"
    assert agent.memory.admin.verify() == []


def test_note_changed_while_merging_is_merged_anew(opened: Any, summarizer: ScriptedSummarizer) -> None:
    agent = opened(policy("scope_close", EXTRACT))
    agent.memory.close_scope(agent.scope_id)
    (first,) = agent.memory.consolidate_notes(agent.trajectory_id)
    changes = iter(["changed by somebody else"])

    def change(operation: str) -> None:
        if operation == "merge_notes":
            for content in changes:
                agent.memory.storage.notes.update(first.note_id, content=content)

    summarizer.before = change
    (merged,) = agent.memory.consolidate_notes(agent.trajectory_id)
    assert merged.content == "changed by somebody else; learned: KEEP this fact", "nobody's words are overwritten"
    assert summarizer.calls.count("merge_notes") == 2


def test_summaries_appear_as_history(opened: Any) -> None:
    agent = opened(policy("scope_close", SUMMARIZE))
    agent.memory.close_scope(agent.scope_id)
    scope = agent.memory.open_scope(agent.trajectory_id)
    agent.memory.append_turn(scope.scope_id, role="user", content="what was said?")
    window = agent.memory.assemble_context(agent.trajectory_id)
    # The closed scope's turns are still in view, so their summary would say them twice.
    assert "user: first thing said" in window.text
    assert [item.rule_id for item in window.assembly_trace if item.source_type == "scope_summary"] == ["already_shown"]
    for at in range(40):
        agent.memory.append_turn(
            scope.scope_id, role="user", content=f"and then {at}: " + "more and more was said " * 8
        )
    window = agent.memory.assemble_context(agent.trajectory_id, max_tokens=700)
    assert "summary of user: first thing said" in window.text
    assert EventType(agent.memory.trace(agent.trajectory_id)[0].event_type)
