"""The error tree: codes, fields, texts, and that every error travels between processes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from support.cases import each

from caliber.model import errors
from caliber.model.errors import CaliberError, ConfigError, InvalidConfigValue, MissingRequired, MultipleErrors

TREE = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, CaliberError)),
    key=lambda kind: kind.__name__,
)
FAMILIES = {
    "StorageError": "CALIBER_STORAGE",
    "LlmError": "CALIBER_LLM",
    "ValidationError": "CALIBER_VALIDATION",
    "ConfigError": "CALIBER_CONFIG",
    "VectorError": "CALIBER_VECTOR",
    "AgentError": "CALIBER_AGENT",
}
# The fields each error carries, as C-059 to C-092 list them.
FIELDS: dict[str, dict[str, Any]] = {
    "NotFound": {"entity_type": "note", "id": "n1"},
    "InsertFailed": {"entity_type": "note", "reason": "r1"},
    "TransactionFailed": {"reason": "r1"},
    "ProviderNotConfigured": {"capability": "embedding"},
    "RequestFailed": {"provider": "p1", "status": 503, "message": "m1"},
    "RateLimited": {"provider": "p1", "retry_after_ms": 250},
    "InvalidResponse": {"provider": "p1", "reason": "r1"},
    "EmbeddingFailed": {"reason": "r1"},
    "SummarizationFailed": {"reason": "r1"},
    "RequiredFieldMissing": {"field": "f1"},
    "InvalidValue": {"field": "f1", "reason": "r1"},
    "ConstraintViolation": {"constraint": "c1", "reason": "r1"},
    "CircularReference": {"entity_type": "trajectory", "ids": "t1"},
    "StaleData": {"entity_type": "note", "id": "n1", "age": "31d"},
    "Contradiction": {"artifact_a": "a1", "artifact_b": "b1"},
    "InvalidStateTransition": {"entity_type": "scope", "from_state": "closed", "to_state": "open"},
    "NoCheckpointAvailable": {"trajectory_id": "t1"},
    "MissingRequired": {"field": "f1"},
    "InvalidConfigValue": {"field": "f1", "value": "v1", "reason": "r1"},
    "IncompatibleOptions": {"option_a": "a1", "option_b": "b1", "reason": "r1"},
    "ProviderNotSupported": {"provider": "p1"},
    "DimensionMismatch": {"expected": 256, "got": 384},
    "InvalidVector": {"reason": "r1"},
    "NotRegistered": {"agent_id": "a1"},
    "DelegationFailed": {"reason": "r1"},
    "HandoffFailed": {"reason": "r1"},
    "PermissionDenied": {"agent_id": "a1", "action": "update", "resource": "n1"},
    "MessageDeliveryFailed": {"message_id": "m1", "reason": "r1"},
    "MailboxFull": {"pending": 1},
}


def make(kind: type[CaliberError]) -> CaliberError:
    if issubclass(kind, MultipleErrors):
        return kind(errors=[MissingRequired(field="a"), InvalidConfigValue(field="b", value="1", reason="c")])
    return kind(**FIELDS.get(kind.__name__, {"reason": "r1"}))


@each("kind", TREE)
@each("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(kind: type[CaliberError], protocol: int) -> None:
    # C-093
    original = make(kind)
    original.retryable = not original.retryable
    original.add_note("a note")
    again = pickle.loads(pickle.dumps(original, protocol))
    assert type(again) is kind
    assert (str(again), again.message, again.retryable) == (str(original), original.message, original.retryable)
    assert repr(again.context) == repr(original.context)
    assert again.__notes__ == ["a note"]
    assert again.code == original.code


@each("kind", TREE)
def test_every_error_survives_copying(kind: type[CaliberError]) -> None:
    original = make(kind)
    for again in (copy.copy(original), copy.deepcopy(original)):
        assert (type(again), str(again)) == (kind, str(original))


@each("kind", TREE)
def test_every_error_has_the_code_of_its_family(kind: type[CaliberError]) -> None:
    # C-058
    families = [base.__name__ for base in kind.__mro__ if base.__name__ in FAMILIES]
    assert make(kind).code == (FAMILIES[families[0]] if families else "CALIBER_INTERNAL")
    assert len(families) <= 1, "an error belongs to one family"


@each("name", FIELDS)
def test_errors_carry_and_show_the_specified_fields(name: str) -> None:
    # C-059 to C-081, C-083 to C-092
    error = make(getattr(errors, name))
    assert error.context == FIELDS[name]
    for value in FIELDS[name].values():
        assert str(value) in str(error)


def test_fields_are_attributes_and_absent_ones_are_not() -> None:
    error = errors.NotFound(entity_type="note", id="n1")
    assert (error.entity_type, error.id) == ("note", "n1")
    with pytest.raises(AttributeError):
        error.resource  # noqa: B018  (reading it is the test)


def test_lock_holders_are_not_named_to_others() -> None:
    # C-087: the holder is a field; C-093: the text shows only the resource
    error = errors.LockAcquisitionFailed(resource="r1", holder="planner-7")
    assert error.context["holder"] == "planner-7"
    assert "planner-7" not in str(error)


def test_a_message_of_its_own_replaces_the_template() -> None:
    error = errors.NotFound("nothing here", entity_type="note", id="n1")
    assert str(error) == "nothing here"
    assert error.context == {"entity_type": "note", "id": "n1"}


def test_a_missing_field_does_not_break_the_message() -> None:
    assert str(errors.NotFound(entity_type="note")) == "note ? was not found"


def test_multiple_errors_show_and_hold_every_fault() -> None:
    # C-082
    error = make(MultipleErrors)
    assert isinstance(error, MultipleErrors)
    assert [type(inner) for inner in error.errors] == [MissingRequired, InvalidConfigValue]
    assert "2 faults" in str(error)
    assert "a is required" in str(error)
    assert "b = 1: c" in str(error)
    assert all(isinstance(inner, ConfigError) for inner in error.errors)
    assert "1 fault in" in str(MultipleErrors(errors=[MissingRequired(field="a")]))


@pytest.mark.parametrize(("kind", "retryable"), [
    (errors.Unavailable, True),
    (errors.RateLimited, True),
    (errors.RequestFailed, True),
    (errors.LockAcquisitionFailed, True),
    (errors.Conflict, False),
    (errors.NotFound, False),
    (errors.MultipleErrors, False),
])  # fmt: skip
def test_what_may_be_tried_again_says_so(kind: type[CaliberError], retryable: bool) -> None:
    assert make(kind).retryable is retryable


def test_kinds_are_unique_within_their_family() -> None:
    kinds = [(make(kind).code, make(kind).kind) for kind in TREE]
    assert len(kinds) == len(set(kinds))
    assert make(errors.NotFound).kind == "not_found"


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for kind in TREE:
        assert kind.__name__ in errors.__doc__, f"{kind.__name__} is missing from the drawing"
