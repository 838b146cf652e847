"""Values of the workspace: compare-and-set, one winner of a race, deleted keys, watches, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from support.databases import Backend
from support.evidence import examples
from support.threads import at_once, begin
from support.waits import until
from support.weeks import SetClock

import caliber
from caliber.model import Principal
from caliber.model.errors import Conflict, DTypeError, InvalidValue, NotFound, PermissionDenied
from caliber.model.workspace import WorkspaceValue

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def values(memory: caliber.Caliber) -> Any:
    return memory.workspace.values


def test_values_are_listed_by_prefix_in_the_order_of_keys(values: Any) -> None:
    for key in ("b", "a/2", "a/10", "a_", "A/1", "ä/1", "%"):
        values.set(key, key)
    assert [each.key for each in values.list("a/")] == ["a/10", "a/2"]
    assert [each.key for each in values.list()] == sorted(["b", "a/2", "a/10", "a_", "A/1", "ä/1", "%"])
    assert [each.key for each in values.list("%")] == ["%"]
    assert [each.key for each in values.list(limit=2)] == ["%", "A/1"]


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("", 1, InvalidValue),
        (" ", 1, InvalidValue),
        ("k" * 10_000, 1, InvalidValue),
        ("ä" * 513, 1, InvalidValue),
        ("a\0b", 1, InvalidValue),
        ("a\nb", 1, InvalidValue),
        (7, 1, DTypeError),
        ("k", float("nan"), InvalidValue),
        ("k", 2**70, InvalidValue),
        ("k", {1: 2}, DTypeError),
        ("k", object(), DTypeError),
        ("k", "\ud800", InvalidValue),
        ("k", "x" * 1_100_000, InvalidValue),
    ],
)
def test_bad_keys_and_values_are_refused(values: Any, key: Any, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        values.set(key, value)
    assert "k" * 100 not in str(caught.value)
    assert values.list() == []


def test_nested_too_deep_is_refused(values: Any) -> None:
    value: Any = 1
    for _ in range(70):
        value = [value]
    with pytest.raises(InvalidValue, match="nested"):
        values.set("k", value)


def test_users_do_not_reach_the_values_of_agents(memory: caliber.Caliber) -> None:
    values = memory.acting_as(Principal.user("maria")).workspace.values
    for call in (lambda: values.get("k"), lambda: values.set("k", 1), lambda: values.list(), lambda: values.watch()):
        with pytest.raises(PermissionDenied):
            call()


@pytest.mark.databases("all")
def test_of_racing_writers_one_wins_each_version(memory: caliber.Caliber) -> None:
    values = memory.workspace.values
    values.set("counter", 0)
    lost = [0] * 4

    def count(at: int) -> None:
        for _ in range(15):
            while True:
                seen = values.get("counter")
                try:
                    values.set("counter", seen.value + 1, version=seen.version)
                    break
                except Conflict:
                    lost[at] += 1

    at_once([partial(count, at) for at in range(4)])
    assert values.get("counter").value == 60
    assert values.get("counter").version == 61


# --- watching --------------------------------------------------------------------------------------


def test_a_watch_sees_changes_of_its_prefix_and_nothing_before(values: Any) -> None:
    values.set("a/1", "old")
    with values.watch("a/", timeout_ms=50) as watch:
        values.set("b/1", 1)
        values.set("a/1", "new")
        values.set("a/2", "more")
        values.delete("a/2")
        seen = [(each.key, each.value, each.deleted_at is not None) for each in watch]
    assert seen == [("a/1", "new", False), ("a/2", None, True)]


def test_a_waiting_watch_is_woken_by_a_commit(values: Any) -> None:
    watch, got = values.watch(), []
    waiting = begin(lambda: got.append(next(watch)))
    values.set("k", 1)
    waiting.result(10)
    assert [each.key for each in got] == ["k"]
    watch.close()
    assert list(watch) == []


def test_closing_the_store_ends_a_watch(memory: caliber.Caliber) -> None:
    watch, got = memory.workspace.values.watch(), []
    waiting = begin(lambda: got.extend(watch))
    memory.close()
    waiting.result(10)
    assert got == []


# --- any sequence ----------------------------------------------------------------------------------


def test_any_sequence_of_calls_is_that_of_a_dictionary_with_versions(memory: caliber.Caliber) -> None:
    # P-062
    values, round_ = memory.workspace.values, iter(range(10**6))

    class Machine(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.at = f"{next(round_)}/"
            self.model: dict[str, tuple[int, bool, Any]] = {}

        @rule(key=st.sampled_from("xyz"), value=JSON, version=st.none() | st.integers(0, 4))
        def set(self, key: str, value: Any, version: int | None) -> None:
            number, there, _ = self.model.get(key, (0, False, None))
            if version is not None and version != (number if there else 0):
                with pytest.raises(Conflict, match=f"version is {number}" if there else "no value"):
                    values.set(self.at + key, value, version=version)
                return
            assert values.set(self.at + key, value, version=version).version == number + 1
            self.model[key] = (number + 1, True, value)

        @rule(key=st.sampled_from("xyz"), version=st.none() | st.integers(1, 4))
        def delete(self, key: str, version: int | None) -> None:
            number, there, held = self.model.get(key, (0, False, None))
            if not there or version not in (None, number):
                said = f"version is {number}" if there else "no value"
                with pytest.raises(NotFound if version is None else Conflict, match=None if version is None else said):
                    values.delete(self.at + key, version=version)
                return
            gone = values.delete(self.at + key, version=version)
            assert (gone.version, gone.value, gone.deleted_at is not None) == (number + 1, held, True)
            self.model[key] = (number + 1, False, None)

        @invariant()
        def same(self) -> None:
            stored: list[WorkspaceValue] = values.list(self.at) if hasattr(self, "at") else []
            held = getattr(self, "model", {})
            expected = {key: each for key, each in sorted(held.items()) if each[1]}
            assert [(each.key[len(self.at) :], each.version, each.value) for each in stored] == [
                (key, number, value) for key, (number, _, value) in expected.items()
            ]
            assert len({each.updated_by for each in stored}) <= 1
            for key in "xyz" if held else "":
                there = [each for each in stored if each.key == self.at + key]
                assert values.get(self.at + key) == (there[0] if there else None)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            suppress_health_check=list(HealthCheck), max_examples=examples(15), stateful_step_count=12, deadline=None
        ),
    )


# --- events ----------------------------------------------------------------------------------------


MARCH = datetime(2027, 3, 1, tzinfo=UTC)
KNOBS = {"embedding_provider": None, "jobs__poll_ms": 0, "policies": []}


@pytest.mark.databases("all")
def test_events_reach_those_who_may_see_the_todo_or_the_reminder(backend: Backend) -> None:
    clock = SetClock(MARCH)
    memory = backend.open(clock=clock, **KNOBS)
    handles: dict[str, caliber.Caliber] = {
        "admin": memory.acting_as(Principal.admin()),
        "ana": memory.acting_as(Principal.user("ana")),
        "eve": memory.acting_as(Principal.user("eve")),
        "ada": memory.acting_as(Principal.agent("ada")),
    }
    seen: dict[str, list[Any]] = {name: [] for name in handles}
    for name, handle in handles.items():
        handle.events.subscribe(seen[name].append)

    def heard(kind: str) -> dict[str, list[str]]:
        until(lambda: any(each.event_type == kind for each in seen["admin"]))
        memory.flush()
        return {
            name: [each.payload["id"] for each in events if each.event_type == kind] for name, events in seen.items()
        }

    ana = handles["ana"].workspace
    todo = ana.todos.add("private")
    key = str(todo.todo_id)
    until(lambda: len(heard("todo")["ana"]) == 1)
    assert heard("todo") == {"admin": [key], "ana": [key], "eve": [], "ada": []}
    ana.todos.assign(todo.todo_id, "ada")
    until(lambda: len(heard("todo")["ada"]) == 1)
    ana.todos.assign(todo.todo_id, None)
    until(lambda: len(heard("todo")["ana"]) == 3)
    assert heard("todo") == {"admin": [key] * 3, "ana": [key] * 3, "eve": [], "ada": [key]}
    event = ana.calendar.add("doctor", MARCH + timedelta(hours=1), reminder_minutes=5)
    clock.at = MARCH + timedelta(minutes=56)
    memory.jobs.run_due()
    key = str(event.event_id)
    until(lambda: len(heard("reminder")["ana"]) == 1)
    assert heard("reminder") == {"admin": [key], "ana": [key], "eve": [], "ada": []}
