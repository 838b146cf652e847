"""Validation of windows, scopes and tasks: what is found, for whom, and what a bad verifier may not break.

Source: C-258 to C-265, K-085, K-086.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.databases import note as add_note
from support.inspection import inspect
from support.providers import ScriptedSummarizer

from caliber.model import EntityRef, EntityType, FixedClock, Principal
from caliber.model.errors import ConstraintViolation, Contradiction, InvalidValue, StaleData, Unavailable
from caliber.model.guard.validation import IssueType, Severity, ValidationIssue, ValidationResult
from caliber.model.time import from_us
from caliber.pcp import verifying

DAY_MS = 86_400_000
GROUNDING = {
    "require_source_for_facts": False,
    "confidence_threshold": 0.4,
    "stale_data_max_age_ms": 40 * DAY_MS,
    "conflict_resolution": "manual",
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caliber.pcp.validation.VERIFIER_TIMEOUT_MS", 300)


class Judge(ScriptedSummarizer):
    """A model that judges contradictions as a test says."""

    def __init__(self, answer: Callable[[str, str], Any]) -> None:
        super().__init__()
        self.answer = answer
        self.judged: list[tuple[str, str]] = []

    def verify_contradiction(self, a: str, b: str) -> bool:
        self.judged.append((a, b))
        answer: bool = self.answer(a, b)
        return answer


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def agent(backend: Any, start: Any, clock: FixedClock) -> Any:
    return start(backend.open(clock=clock, pcp__grounding=GROUNDING))


def home(agent: Any, place: str, **options: Any) -> Any:
    return agent.note(f"Nadia lives in {place}.", entity="Nadia", entity_type="person", **options)


def of_kind(result: ValidationResult, kind: IssueType) -> list[tuple[Severity, frozenset[Any]]]:
    return [
        (each.severity, frozenset(ref.id for ref in each.entities)) for each in result.issues if each.issue_type is kind
    ]


def window(agent: Any, query: str = "Nadia") -> Any:
    agent.memory.flush()
    return agent.memory.assemble_context(agent.trajectory_id, query=query)


def test_contradicting_notes_of_one_subject_are_reported_once_with_both_ids(agent: Any) -> None:
    # C-260, C-262, C-283
    first, second = home(agent, "Berlin"), home(agent, "Lisbon")
    agent.note("Nadia speaks Polish.", entity="Nadia", entity_type="person")
    made = window(agent)
    for target in (made, made.window_id, str(made.window_id)):
        result = agent.memory.pcp.validate(target)
        assert of_kind(result, IssueType.CONTRADICTION) == [
            (Severity.WARNING, frozenset((first.note_id, second.note_id)))
        ]
        assert result.valid
        assert result.checked == 3
        (issue,) = result.issues
        assert {ref.entity_type for ref in issue.entities} == {EntityType.NOTE}
        assert issue.action


def test_statements_that_never_hold_at_once_do_not_contradict(agent: Any, clock: FixedClock) -> None:
    # C-047, C-260
    now = from_us(clock.now_us())
    home(agent, "Berlin", valid_from=now - timedelta(days=9), valid_until=now + timedelta(days=1))
    home(agent, "Lisbon", valid_from=now + timedelta(days=1))
    made = window(agent)
    assert of_kind(agent.memory.pcp.validate(made), IssueType.CONTRADICTION) == []


def test_similar_facts_without_a_subject_are_compared(agent: Any) -> None:
    # C-260: artifacts have no subject; their vectors are near each other
    first = agent.keep("The staging Redis instance listens on port 6379.")
    second = agent.keep("The staging Redis instance listens on port 6380.")
    agent.keep("The staging Redis instance listens on port 6381.", artifact_type="constraint")
    agent.memory.flush()
    found = frozenset((first.artifact_id, second.artifact_id))
    for target in (agent.trajectory_id, agent.scope_id):
        result = agent.memory.pcp.validate(target)
        assert of_kind(result, IssueType.CONTRADICTION) == [(Severity.WARNING, found)]


def test_facts_are_compared_from_the_configured_similarity_on(backend: Any, start: Any) -> None:
    # C-099
    for threshold, found in ((0.5, True), (1.0, False)):
        agent = start(backend.open(pcp__grounding=GROUNDING, contradiction_threshold=threshold))
        for port in (6379, 6380):
            agent.keep(f"The staging Redis instance listens on port {port}.")
        agent.memory.flush()
        assert bool(of_kind(agent.memory.pcp.validate(agent.trajectory_id), IssueType.CONTRADICTION)) is found


def test_facts_of_one_task_are_no_facts_of_another(agent: Any, start: Any) -> None:
    other = start(agent.memory)
    agent.keep("The staging Redis instance listens on port 6379.")
    other.keep("The staging Redis instance listens on port 6380.")
    drawn = home(agent, "Berlin", source_trajectory_ids=[agent.trajectory_id])
    home(agent, "Lisbon", source_trajectory_ids=[agent.trajectory_id])
    home(other, "Rome", source_trajectory_ids=[other.trajectory_id])
    agent.memory.flush()
    assert of_kind(agent.memory.pcp.validate(other.trajectory_id), IssueType.CONTRADICTION) == []
    ((_, ids),) = of_kind(agent.memory.pcp.validate(agent.trajectory_id), IssueType.CONTRADICTION)
    assert drawn.note_id in ids


def test_age_confidence_and_ended_validity(agent: Any, clock: FixedClock) -> None:
    # C-258, C-263, C-264
    old = agent.note("Nadia has a bike.", entity="Nadia", entity_type="person")
    clock.advance(ms=39 * DAY_MS)
    agent.note("Nadia has a boat.", entity="Nadia", entity_type="person", confidence=0.45)
    assert agent.memory.pcp.validate(window(agent)).issues == ()
    clock.advance(ms=2 * DAY_MS)
    ends = from_us(clock.now_us()) + timedelta(hours=1)
    ending = agent.note("Nadia has a guest.", entity="Nadia", entity_type="person", valid_until=ends)
    unsure = agent.note("Nadia may have a cat.", entity="Nadia", entity_type="person", confidence=0.3)
    made = window(agent)
    before = agent.memory.pcp.validate(made)
    assert of_kind(before, IssueType.STALE_DATA) == [(Severity.WARNING, frozenset((old.note_id,)))]
    assert of_kind(before, IssueType.LOW_CONFIDENCE) == [(Severity.INFO, frozenset((unsure.note_id,)))]
    assert before.valid
    clock.advance(ms=7_200_000)
    after = agent.memory.pcp.validate(made)
    assert (Severity.ERROR, frozenset((ending.note_id,))) in of_kind(after, IssueType.STALE_DATA)
    assert not after.valid
    assert after.issues[0].severity is Severity.ERROR


def test_notes_and_facts_without_a_source(backend: Any, start: Any) -> None:
    # C-265
    agent = start(backend.open(pcp__grounding={**GROUNDING, "require_source_for_facts": True}))
    bare = home(agent, "Berlin")
    agent.note("Nadia is tall.", entity="Nadia", entity_type="person", source_trajectory_ids=[agent.trajectory_id])
    turn = agent.say("The gym opens at 8.")
    agent.keep("The gym opens at 8 am.", source_turn=turn.turn_number)
    agent.keep("The pool opens at 9 am.", extraction_method="user_provided")
    lone = agent.keep("The sauna opens at 10 am.", extraction_method="inferred")
    result = agent.memory.pcp.validate(window(agent))
    assert {ids for _, ids in of_kind(result, IssueType.MISSING_SOURCE)} == {
        frozenset((bare.note_id,)),
        frozenset((lone.artifact_id,)),
    }
    assert not result.valid


def test_without_grounding_only_contradictions_and_ends_are_found(backend: Any, start: Any) -> None:
    agent = start(backend.open(pcp__grounding=None))
    home(agent, "Berlin", confidence=0.1)
    home(agent, "Lisbon", confidence=0.1)
    (issue,) = agent.memory.pcp.validate(window(agent)).issues
    assert issue.issue_type is IssueType.CONTRADICTION


def test_a_forgotten_or_deleted_source_is_missing(agent: Any) -> None:
    # issue 17, bad input
    kept, gone = home(agent, "Berlin"), home(agent, "Lisbon")
    made = window(agent)
    agent.memory.delete_note(gone.note_id)
    result = agent.memory.pcp.validate(made)
    assert of_kind(result, IssueType.STALE_DATA) == [(Severity.ERROR, frozenset((gone.note_id,)))]
    assert of_kind(result, IssueType.CONTRADICTION) == []
    agent.memory.forget(texts=["Nadia"])
    after = agent.memory.pcp.validate(made)
    assert {ids for _, ids in of_kind(after, IssueType.MISSING_SOURCE)} == {
        frozenset((kept.note_id,)),
        frozenset((gone.note_id,)),
    }


def test_unknown_and_expired_windows_are_refused(backend: Any, start: Any, clock: FixedClock) -> None:
    # C-259
    agent = start(backend.open(clock=clock, context_window_persistence={"kind": "ttl", "ttl_ms": 1_000}))
    made = window(agent, "")
    assert agent.memory.pcp.validate(made.window_id).valid
    clock.advance(ms=2_000)
    for target in (made.window_id, uuid.uuid4()):
        with pytest.raises(ConstraintViolation, match="context_window_exists"):
            agent.memory.pcp.validate(target)
    assert agent.memory.pcp.validate(made).valid  # an object needs no stored window


def test_hidden_records_look_like_missing_ones(agent: Any) -> None:
    # never leak: the window of one principal in the hands of another
    ana = EntityRef.user("ana")
    memory = agent.memory
    for place in ("Berlin", "Lisbon"):
        add_note(memory, f"Nadia lives in {place}.", entity="Nadia", entity_type="person", confidence=1.0, user=ana)
    memory.flush()
    task = memory.start_trajectory("plan", initiator=ana)
    made = memory.assemble_context(task.trajectory_id, query="Nadia")
    assert of_kind(memory.pcp.validate(made), IssueType.CONTRADICTION)
    seen = memory.acting_as(Principal.user("ben")).pcp.validate(made)
    assert {each.issue_type for each in seen.issues} == {IssueType.MISSING_SOURCE}
    application = memory.acting_as(Principal.application("crm"))
    assert application.pcp.validate(task.trajectory_id).valid  # it acts for the task's user
    with pytest.raises(ConstraintViolation):
        memory.acting_as(Principal.user("ben")).pcp.validate(task.trajectory_id)
    assert of_kind(memory.acting_as(Principal.user("ana")).pcp.validate(made), IssueType.CONTRADICTION)


# --- a language model as verifier ----------------------------------------------------------------


def similar(backend: Any, start: Any, judge: Judge) -> Any:
    agent = start(backend.open(summarization_provider=judge, pcp__grounding=GROUNDING))
    agent.keep("The staging Redis instance listens on port 6379.")
    agent.keep("The staging Redis instance listens on port 6380.")
    agent.keep("The staging Redis instance listens on port 6379, says Nadia.")
    agent.memory.flush()
    return agent.memory.pcp.validate(agent.trajectory_id)


def test_a_model_confirms_and_denies(backend: Any, start: Any) -> None:
    # C-260
    judge = Judge(lambda a, b: "says" in a + b)
    result = similar(backend, start, judge)
    assert judge.judged
    assert all(isinstance(answer, str) for pair in judge.judged for answer in pair)
    reasons = {each.severity for each in result.issues if "denies" in each.message}
    assert reasons <= {Severity.INFO}
    assert any("denies" in each.message for each in result.issues)


@pytest.mark.parametrize("answer", ["yes", None, 1])
def test_a_model_that_lies_leaves_the_rules_in_charge(backend: Any, start: Any, answer: Any) -> None:
    # C-261; issue 17, bad input
    result = similar(backend, start, Judge(lambda a, b: answer))
    assert Severity.WARNING in {each.severity for each in result.issues}


def test_a_model_that_fails_leaves_similar_pairs_unverified(backend: Any, start: Any) -> None:
    # C-261
    def fail(a: str, b: str) -> bool:
        raise RuntimeError("no answer today")

    result = similar(backend, start, Judge(fail))
    assert Severity.WARNING in {each.severity for each in result.issues}
    assert any("unverified contradiction" in each.message for each in result.issues)


def test_a_model_that_hangs_is_left_behind(backend: Any, start: Any) -> None:
    # issue 17, bad input
    released = threading.Event()

    def hang(a: str, b: str) -> bool:
        released.wait(60)
        return True

    try:
        begun = time.monotonic()
        result = similar(backend, start, Judge(hang))
        assert time.monotonic() - begun < 50
        assert Severity.WARNING in {each.severity for each in result.issues}
    finally:
        released.set()


def test_checks_of_a_model_that_hangs_are_limited(backend: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    released, asking = threading.Event(), threading.BoundedSemaphore(2)
    monkeypatch.setattr(verifying, "asking", asking)

    def hang(a: str, b: str) -> bool:
        released.wait(60)
        return True

    agent = start(backend.open(summarization_provider=Judge(hang), pcp__grounding=GROUNDING))
    for port in (6379, 6380):
        agent.keep(f"The staging Redis instance listens on port {port}.")
    agent.memory.flush()
    try:
        for _ in range(2):
            assert len(agent.memory.pcp.validate(agent.trajectory_id).issues) == 1
        with pytest.raises(Unavailable, match="does not answer"):
            agent.memory.pcp.validate(agent.trajectory_id)
    finally:
        released.set()
    for thread in threading.enumerate():
        if thread.name == "caliber-verifier":
            thread.join(30)
    assert asking.acquire(blocking=False), "a thread that ended makes room"
    assert asking.acquire(blocking=False)


def test_reasons_quote_words_of_the_text(agent: Any) -> None:
    for port in (6379, 6380):
        agent.keep(f"The staging Redis instance listens on port {port}.")
    agent.memory.flush()
    (issue,) = agent.memory.pcp.validate(agent.trajectory_id).issues
    assert "listens" in issue.reason
    assert issue.reason in issue.message


def test_a_result_raises_what_its_issues_state_not_what_their_messages_say() -> None:
    ref = EntityRef("note", uuid.uuid4())
    issue = ValidationIssue(
        Severity.ERROR, IssueType.STALE_DATA, "no colon here", (ref,), "add another", "412 days old"
    )
    with pytest.raises(StaleData, match="412 days old"):
        ValidationResult(False, (issue,)).raise_for()


def test_validation_runs_no_statement(agent: Any) -> None:
    # design, section 5
    home(agent, "Berlin")
    home(agent, "Lisbon")
    made = window(agent)
    memory, store = agent.memory, inspect(agent.memory).store
    before = store.statement_count()
    memory.pcp.validate(made)
    assert store.statement_count() == before
    for target in (agent.trajectory_id, agent.scope_id):
        before = store.statement_count()
        memory.pcp.validate(target)
        assert store.statement_count() - before <= 1, "whether another process committed"


def test_a_result_raises_the_first_issue_that_is_severe_enough(agent: Any, clock: FixedClock) -> None:
    # C-074, C-075
    sides = [home(agent, place, source_trajectory_ids=[agent.trajectory_id]) for place in ("Berlin", "Lisbon")]
    agent.memory.flush()
    result = agent.memory.pcp.validate(agent.trajectory_id)
    result.raise_for()
    with pytest.raises(Contradiction) as contradicted:
        result.raise_for("warning")
    named = {contradicted.value.context[name] for name in ("artifact_a", "artifact_b")}
    assert named == {each.note_id for each in sides}
    with pytest.raises(InvalidValue):
        result.raise_for("fatal")
    window = agent.memory.assemble_context(agent.trajectory_id, query="Where does Nadia live?")
    agent.memory.end_note(sides[0].note_id)
    agent.memory.flush()
    with pytest.raises(StaleData) as stale:
        agent.memory.pcp.validate(window).raise_for()
    assert stale.value.context["id"] == sides[0].note_id
    assert "ended" in str(stale.value)
    agent.memory.storage.notes.delete(sides[1].note_id)
    agent.memory.storage.notes.delete(sides[0].note_id)
    with pytest.raises(ConstraintViolation, match="missing_source"):
        agent.memory.pcp.validate(window).raise_for()
