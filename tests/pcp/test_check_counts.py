"""Work of checking 200 statements: limits that only fall, and verdicts that are kept as long as their texts.

No clock: functions of CALIBER. The issue "PCP" allows 5 ms for a window of 200 sources; bench/test_guards.py times it.
"""

from __future__ import annotations

import gc
import json
import random
import uuid
from itertools import combinations
from typing import Any

import pytest
from support.api.counted_calls import counted
from support.configs import USER
from support.databases import Backend
from support.inspection import inspect
from support.text.contradiction_score import OPEN

import caliber
from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.model import Principal
from caliber.model.guard.validation import IssueType
from caliber.pcp.readings import Readings
from caliber.search.opening import SearchEngine
from caliber.text.contradictions import contradicts

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
