"""``validation_mode``: with ``always``, searches and windows carry what rules find about their records.

Source: C-101; docs/pcp.md, Checks of every read.
"""

from __future__ import annotations

import gc
import json
import random
import uuid
from itertools import combinations
from typing import Any

import pytest
from support.agents.conflicts import Pair
from support.api.counted_calls import counted
from support.configs import USER
from support.databases import Backend
from support.drawn import needs
from support.inspection import inspect
from support.text.contradiction_score import OPEN
from support.weeks import SetClock

import caliber
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.model import Principal
from caliber.model.errors import ConstraintViolation
from caliber.model.guard.validation import IssueType, Severity
from caliber.pcp.readings import Readings
from caliber.search.opening import SearchEngine
from caliber.text.contradictions import contradicts


@pytest.fixture
def pair(start: Any, backend: Backend, clock: SetClock) -> Pair:
    return Pair(start, backend, clock, validation_mode="always")


def ids(found: Any) -> set[Any]:
    return {frozenset(ref.id for ref in each.entities) for each in found.issues}


def search(memory: Any) -> Any:
    return memory.search("Where does Nadia live?", kinds=["note"], limit=5)


def test_reads_carry_contradictions_and_change_nothing(pair: Pair) -> None:
    both = {frozenset((pair.surer.note_id, pair.newer.note_id))}
    found = search(pair.memory)
    assert ids(found) == both
    assert {(each.issue_type, each.severity) for each in found.issues} == {(IssueType.CONTRADICTION, Severity.WARNING)}
    window = pair.memory.assemble_context(pair.agent.trajectory_id, query="Where does Nadia live?")
    assert ids(window) == both
    assert pair.memory.conflicts.list() == []
    pair.memory.flush()
    assert pair.memory.replay(window.window_id) == window
    many = pair.memory.search_many(["Nadia lives", "Where does Nadia live?"], kinds=["note"], limit=5)
    assert all(ids(each) == both for each in many)


def test_a_window_of_one_side_has_no_contradiction(pair: Pair) -> None:
    assert len(pair.record()) == 1
    window = pair.memory.assemble_context(pair.agent.trajectory_id, query="Where does Nadia live?")
    assert window.issues == ()


def test_reads_carry_only_what_the_principal_may_see(pair: Pair) -> None:
    pair.memory.update_note(pair.surer.note_id, visible_to=["human:ana"])
    pair.memory.flush()
    ana, ben = (search(pair.memory.acting_as(Principal.user(name))) for name in ("ana", "ben"))
    assert len(ana.issues) == 1
    assert ben.issues == ()
    assert {hit.id for hit in ben.hits} == {pair.newer.note_id}


def test_checking_runs_no_statement(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    search(pair.memory)
    checks = inspect(pair.memory).engine
    check = checks.part(SearchEngine).read_check
    assert check is not None
    readers = Readers(checks.part(TaskOwners), Principal.admin())
    pair.memory.flush()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a statement ran")

    monkeypatch.setattr(checks.store, "read", refuse)
    monkeypatch.setattr(checks.store, "write", refuse)
    assert len(check.issues(readers, [pair.surer.note_id, pair.newer.note_id])) == 1


@pytest.mark.parametrize("mode", ["always", "on_mutation"])
def test_reads_carry_damage(start: Any, backend: Backend, mode: str) -> None:
    # C-041, C-240
    agent = start(backend.open(validation_mode=mode))
    memory = agent.memory
    kept = agent.keep("the lighthouse of Oslo")
    note = agent.note("a lighthouse burns")
    turn = agent.say("which lighthouse?")
    memory.flush()
    backend.damage(memory, "UPDATE {note} SET content = 'the lighthouse burned'")
    inspect(memory).resident.reload()
    found = memory.search("lighthouse")
    assert {hit.id for hit in found.hits} >= {kept.artifact_id, note.note_id, turn.turn_id}
    window = memory.assemble_context(agent.trajectory_id, query="lighthouse")
    wanted = [(IssueType.DAMAGE, Severity.ERROR, note.note_id)] if mode == "always" else []
    for result in (found, window):
        assert [(each.issue_type, each.severity, each.entities[0].id) for each in result.issues] == wanted
    with pytest.raises(ConstraintViolation, match="damage"):
        memory.pcp.validate(window).raise_for()


def test_on_mutation_reads_carry_nothing(start: Any, backend: Backend, clock: SetClock) -> None:
    pair = Pair(start, backend, clock, validation_mode="on_mutation")
    assert search(pair.memory).issues == ()
    assert pair.memory.assemble_context(pair.agent.trajectory_id, query="Where does Nadia live?").issues == ()


# --- other processes -------------------------------------------------------------------------------


FACTS = ("The staging Redis instance listens on port 6379.", "The staging Redis instance listens on port 6380.")


@needs("sharing")
def test_checks_see_what_another_process_committed(backend: Any) -> None:
    options = {"policies": [], "jobs__poll_ms": 0, "resident__read_consistency": "local"}
    writer, reader = backend.open(**options), backend.open(**options)
    task = writer.start_trajectory("note ports", user="ana").trajectory_id
    scope = writer.current_scope(task).scope_id
    assert reader.pcp.validate(task).valid
    made = [
        writer.create_artifact(scope, artifact_type="fact", content=text, extraction_method="explicit")
        for text in FACTS
    ]
    writer.flush()
    for target in (task, scope):
        found = [issue.issue_type for issue in reader.pcp.validate(target).issues]
        assert found.count(IssueType.CONTRADICTION) == 1
    newest = writer.create_artifact(scope, artifact_type="code_patch", content="x = 1", extraction_method="explicit")
    assert reader.pcp.lint(newest.artifact_id).issues is not None
    writer.artifacts.end(made[0].artifact_id)
    assert not [issue for issue in reader.pcp.validate(task).issues if issue.issue_type is IssueType.CONTRADICTION]


PAIRS = 100
LIMITS = {"read": (680, 2_500), "validate": (5_800, 23_500)}
"""Functions of CALIBER, at most: again, and the first time that the statements are read."""


@pytest.fixture
def pairs() -> list[tuple[str, str, str]]:
    labelled = json.loads(OPEN.read_text(encoding="utf-8"))
    chosen = random.Random(7).sample(labelled, PAIRS)
    return [(each["first"], each["second"], each["subject"] or each["pair"]) for each in chosen]


@pytest.fixture
def memory(file_backend: Backend) -> caliber.Caliber:
    opened: caliber.Caliber = file_backend.open(validation_mode="always", contradiction_threshold=1.0)
    return opened


@pytest.fixture
def task(memory: caliber.Caliber, pairs: list[tuple[str, str, str]]) -> uuid.UUID:
    key = memory.start_trajectory("check what is known", initiator=USER).trajectory_id
    for first, second, subject in pairs:
        for content in (first, second):
            memory.add_note(
                entity=subject,
                entity_type="thing",
                note_type="fact",
                content=content,
                confidence=0.9,
                source_trajectory_ids=[key],
            )
    memory.flush()
    return key


def test_checks_run_no_more_functions_than_before(memory: caliber.Caliber, task: uuid.UUID) -> None:
    engine = inspect(memory).engine
    check, readers = engine.part(SearchEngine).read_check, Readers(engine.part(TaskOwners), Principal.admin())
    assert check is not None
    notes = memory.storage.notes.list_by_type("fact")
    calls: dict[str, Any] = {
        "read": lambda: check.issues(readers, [each.note_id for each in notes]),
        "validate": lambda: memory.pcp.validate(task),
    }
    calls["validate"]()
    for name, (most_again, most_first) in LIMITS.items():
        engine.part(Readings).kept.clear()
        first, _ = counted(calls[name])
        again = min(counted(calls[name])[0] for _ in range(5))
        assert (again <= most_again, first <= most_first) == (True, True), (name, again, first)


def test_kept_verdicts_are_those_of_the_texts(
    memory: caliber.Caliber, task: uuid.UUID, pairs: list[tuple[str, str, str]]
) -> None:
    # C-260
    stated = [(content, subject) for first, second, subject in pairs for content in (first, second)]
    expected = {
        frozenset((one, other)): verdict.reason
        for (one, subject), (other, same) in combinations(stated, 2)
        if subject.casefold() == same.casefold()
        and (verdict := contradicts(one, other, subject.casefold())) is not None
    }
    assert len(expected) > PAIRS // 6
    for _ in range(2):
        found = memory.pcp.validate(task).issues
        contents = [frozenset(memory.get(ref.id).content for ref in each.entities) for each in found]
        assert sorted(map(sorted, contents)) == sorted(map(sorted, expected))
        assert all(expected[each] in issue.message for each, issue in zip(contents, found, strict=True))
        assert {each.issue_type for each in found} == {IssueType.CONTRADICTION}


def test_a_corrected_statement_is_read_anew(memory: caliber.Caliber, task: uuid.UUID) -> None:
    before = memory.pcp.validate(task).issues
    memory.update_note(before[0].entities[0].id, content="Nobody knows anything about this.")
    after = memory.pcp.validate(task).issues
    assert len(after) < len(before)


def test_an_erasure_leaves_nothing_that_was_read(memory: caliber.Caliber, task: uuid.UUID) -> None:
    (issue, *_) = memory.pcp.validate(task).issues
    kept = inspect(memory).engine.part(Readings).kept
    assert sum(len(each.readings) for each in kept.values()) > PAIRS
    memory.forget(entity=issue.entities[0])
    memory.flush()
    gc.collect()
    assert [each.readings for each in kept.values()] == []
