"""Filters: what they mean, and what is refused in them."""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.cases import each

from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model.errors import InvalidValue, MultipleErrors
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import All, Comparison, Either, Operator, Variable, holds

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HERE, ELSEWHERE = uuid.uuid4(), uuid.uuid4()
VARIABLES: dict[Variable, Any] = {
    Variable.NOW: NOW, Variable.TRAJECTORY: HERE, Variable.SCOPE: None, Variable.AGENT: None,
}  # fmt: skip
NOTE: dict[str, Any] = {
    "confidence": 0.7,
    "valid_from": None,
    "valid_until": None,
    "importance": None,
    "created_at": NOW - timedelta(days=3),
    "entity": "Backups in Lisbon",
    "note_type": "fact",
    "tags": ("ops", "lisbon"),
    "source_trajectory_ids": (HERE,),
    "superseded_by": None,
    "token_count": 12,
}


def asked(text: str, record: dict[str, Any] = NOTE, memory: str = "note") -> bool:
    predicate = compile_filter(text, BUILT_IN[memory])
    return holds(predicate, record, VARIABLES, matches)


@pytest.mark.parametrize(("text", "expected"), [
    ("confidence > 0.5", True),
    ("confidence >= 1", False),
    ("confidence <= 0.7 and confidence >= 0.7", True),
    ("confidence = 0.2 or token_count = 12", True),
    ('confidence = 0.2 or token_count = 12 and entity = "x"', False),
    ('(confidence = 0.7 or token_count = 1) and entity != "x"', True),
    # C-165, K-064: the bounds of validity are open, all else that is NULL compares with nothing
    ("valid_until > now()", True),
    ("valid_until >= now()", True),
    ("valid_until < now()", False),
    ("valid_until = now()", False),
    ("valid_until != now()", True),
    ("valid_from < now()", True),
    ("valid_from > now()", False),
    ("importance > 1", False),
    ("importance <= 1", False),
    ("importance != 5", False),
    ("importance = null", True),
    ("importance != null", False),
    ("superseded_by = null", True),
    ('created_at < "2026-02-27T00:00:00+01:00"', True),
    ('created_at < "2026-02-20T00:00:00Z"', False),
    ('note_type = "fact"', True),
    ('note_type != "fact"', False),
    ('entity contains "Lisbon"', True),
    ('entity contains "Porto"', False),
    ('entity ~ "^Back.*n$"', True),
    ('entity ~ "^back"', False),
    ('tags contains "ops"', True),
    ('tags contains "op"', False),
    ("source_trajectory_ids contains current_trajectory", True),
])  # fmt: skip
def test_what_a_filter_means(text: str, expected: bool) -> None:
    assert asked(text) is expected


def test_a_variable_without_a_value_compares_with_nothing() -> None:
    # C-163: no scope is open here
    record = {"trajectory_id": HERE, "scope_id": ELSEWHERE}
    assert asked("trajectory_id = current_trajectory", record, "scope")
    assert not asked("id = current_scope", record, "scope")
    assert not asked("id != current_scope", record, "scope")


def test_fields_may_be_called_as_the_language_calls_them() -> None:
    # K-058, K-060
    assert compile_filter("sequence > 3", BUILT_IN["scope"]) == Comparison("sequence_number", Operator.GREATER, 3)
    assert compile_filter('goal_summary ~ "a"', BUILT_IN["trajectory"]) == Comparison("goal", Operator.MATCHES, "a")


def test_and_and_or_become_flat_lists() -> None:
    made = compile_filter(
        'confidence > 0 and (token_count > 1 and entity = "a") or note_type = "fact"', BUILT_IN["note"]
    )
    assert isinstance(made, Either)
    assert isinstance(made.conditions[0], All)
    assert len(made.conditions[0].conditions) == 3


@each(("text", "said"), [
    ("", "the text ends too early"),
    ("confidence", "a filter consists of comparisons"),
    ("confidnce > 1", "did you mean `confidence`?"),
    ("1 < confidence", "the left side of a comparison must be a field"),
    ("content_embedding = 1", "is a vector: it is searched, not compared"),
    ('content_hash = "x"', "cannot be compared"),
    ('confidence ~ "x"', "cannot be compared by ~"),
    ('confidence > "x"', "is compared with a number"),
    ("token_count = 1.5", "is compared with a whole number"),
    ("token_count = 99999999999999999999", "is compared with a whole number"),
    ("entity = 3", "is compared with a text in quotes"),
    ("entity = null", "entity is never null"),
    ("importance > null", "by = and != only"),
    ('note_type = "fac"', "did you mean `fact`?"),
    ("note_type = fact", "did you mean `fact`?"),
    ('note_id = "x"', "an id in quotes or a variable"),
    ("note_id = curent_scope", "did you mean `current_scope`?"),
    ('created_at > "yesterday"', "now() or an instant"),
    ('created_at > "2026-03-01T12:00:00"', "now() or an instant"),
    ("created_at > noww()", "now() or an instant"),
    ('entity ~ "' + "a" * 257 + '"', "at most 256 characters"),
    ('entity ~ "(a"', "this is not a pattern: missing )"),
    ('entity ~ "a{1001}"', "this is not a pattern: invalid repetition size"),
    ('entity ~ "' + r"(?:\\pL{1,20} ){10}x" + '"', "this is not a pattern: pattern too large"),
    ('entity ~ "' + r"(a)\\1" + '"', "this is not a pattern: invalid escape sequence"),
    ('entity ~ "(?=a)"', "this is not a pattern: invalid perl operator"),
    ('entity ~ "' + r"a\\C" + '"', "stands for a part of a character"),
    ("confidence > 0.9 and confidence < 0.5", "this never holds"),
    ("confidence > 1", "this never holds: confidence lies between 0 and 1"),
    ("importance < 1", "this never holds: importance lies between 1 and 10"),
    ('entity = "a" and entity != "a"', "this never holds: entity is 'a' or is not"),
    ("namespace = null and namespace != null", "this never holds: namespace is null or is not"),
    ('namespace = null and namespace = "a"', "this never holds: where namespace is null"),
    ('entity = "a" and entity = "b"', "this never holds: entity has one value"),
    ("token_count = 3 and token_count > 5", "this never holds"),
    ("confidence > 0 or (token_count > 9 and token_count < 1)", "this never holds"),
])  # fmt: skip
def test_what_is_refused_in_a_filter(text: str, said: str) -> None:
    # C-164, issue of the language: every fault with its place
    with pytest.raises(MultipleErrors) as caught:
        compile_filter(text, BUILT_IN["note"])
    (fault,) = caught.value.errors
    assert said in str(fault)


def test_all_faults_of_a_filter_are_said_at_once() -> None:
    with pytest.raises(MultipleErrors) as caught:
        compile_filter('confidnce > 1 and note_type = "fac" or token_count ~ "x"', BUILT_IN["note"])
    assert [fault.column for fault in caught.value.errors] == [1, 31, 40]


def test_a_pattern_that_is_wrong_is_pointed_at() -> None:
    # K-071: when the filter is compiled, not when it is first asked
    with pytest.raises(MultipleErrors) as caught:
        compile_filter('confidence > 0 and\n  entity ~ "[a"', BUILT_IN["note"])
    (fault,) = caught.value.errors
    assert (fault.line, fault.column) == (2, 12)


@pytest.mark.parametrize(("pattern", "text"), [
    ("(a+)+$", "a" * 100_000 + "b"),
    ("(a|a)*c", "a" * 100_000),
    ("(x+x+)+y", "x" * 100_000),
    ("[ab]*a[ab]{500}$", "ab" * 50_000),
])  # fmt: skip
def test_no_pattern_takes_longer_than_its_text_is_long(pattern: str, text: str) -> None:
    # K-071: each of these would keep a backtracking library busy for longer than a test may take
    assert asked(f'entity ~ "{pattern}"', NOTE | {"entity": text}) is False


def test_patterns_see_characters_of_any_text() -> None:
    assert matches("^...$", "é\x00\U0001f9e0")
    assert matches(r"\\C", "a\\C")
    assert matches("b", "\ud800b")
    assert not matches("B", "b")
    with pytest.raises(InvalidValue, match="half of a surrogate pair"):
        matches("\ud800", "\ud800")


def test_without_the_library_a_filter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(MultipleErrors) as caught:
        compile_filter('entity ~ "a pattern that nothing has compiled yet"', BUILT_IN["note"])
    assert "pip install 'caliber-memory[regex]'" in str(caught.value.errors[0])
    assert compile_filter('entity contains "a"', BUILT_IN["note"])
