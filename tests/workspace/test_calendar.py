"""The calendar: occurrences, whose they are, reminders given once. Values: compare-and-set, races, watches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

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
from caliber.model.errors import Conflict, DTypeError, InputError, InvalidValue, NotFound, PermissionDenied
from caliber.model.workspace import WorkspaceValue

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
KNOBS = {"embedding_provider": None, "jobs__poll_ms": 0, "policies": []}
MARCH = datetime(2027, 3, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> SetClock:
    return SetClock(MARCH)


@pytest.fixture
def memory(backend: Backend, clock: SetClock) -> caliber.Caliber:
    return backend.open(clock=clock, **KNOBS)


def reminded(memory: caliber.Caliber) -> list[str]:
    memory.jobs.run_due()
    found = [each for each in memory.acting_as(Principal.admin()).storage.events.all() if each.event_type == "reminder"]
    return [each.payload["starts_at"] for each in sorted(found, key=lambda each: each.created_at)]


def test_an_event_is_read_back_and_listed_where_it_lasts(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    start = datetime(2027, 3, 5, 9, tzinfo=BERLIN)
    event = calendar.add("review", start, ends_at=start + 2 * HOUR, description="of the plan")
    assert (event.time_zone, event.rrule, event.version) == ("Europe/Berlin", None, 1)
    assert calendar.get(event.event_id) == event
    (found,) = calendar.occurrences(start + HOUR, start + DAY)
    assert (found.event, found.starts_at, found.ends_at) == (event, start, start + 2 * HOUR)
    assert calendar.occurrences(start + 2 * HOUR, start + DAY) == []
    assert calendar.occurrences(start - DAY, start) == []
    assert [each.starts_at for each in calendar.occurrences(start, start + timedelta(microseconds=1))] == [start]


def test_a_repeated_event_keeps_its_time_across_the_change_of_clocks(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    start = datetime(2027, 3, 26, 9, tzinfo=BERLIN)
    calendar.add("standup", start, ends_at=start + HOUR, rrule="FREQ=DAILY")
    found = calendar.occurrences(datetime(2027, 3, 27, tzinfo=BERLIN), datetime(2027, 3, 30, tzinfo=BERLIN))
    assert [each.starts_at.hour for each in found] == [8, 7, 7]  # in UTC
    assert {each.ends_at - each.starts_at for each in found if each.ends_at} == {HOUR}


def test_events_are_merged_by_start_and_limited(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    calendar.add("a", MARCH, rrule="FREQ=DAILY")
    calendar.add("b", MARCH + HOUR, rrule="FREQ=WEEKLY")
    calendar.add("c", MARCH + 2 * DAY)
    found = calendar.occurrences(MARCH, MARCH + 9_999 * DAY, limit=6)
    assert [each.event.title for each in found] == ["a", "b", "a", "a", "c", "a"]
    every = calendar.occurrences(MARCH, datetime.max.replace(tzinfo=UTC))
    assert len(every) == 10_000


def test_reminders_are_listed_and_given_once_each(memory: caliber.Caliber, clock: SetClock) -> None:
    calendar = memory.workspace.calendar
    start = MARCH + DAY
    calendar.add("daily", start, rrule="FREQ=DAILY;COUNT=3", reminder_minutes=30)
    due = calendar.reminders(MARCH, MARCH + 9 * DAY)
    assert [each.remind_at for each in due] == [start - HOUR / 2 + at * DAY for at in range(3)]
    assert reminded(memory) == []
    clock.at = start - HOUR / 2
    assert reminded(memory) == [start.isoformat()]
    assert reminded(memory) == [start.isoformat()]
    clock.at += DAY
    assert reminded(memory) == [start.isoformat(), (start + DAY).isoformat()]
    clock.at += 30 * DAY
    assert len(reminded(memory)) == 3
    clock.at += 30 * DAY
    assert len(reminded(memory)) == 3


def test_missed_reminders_are_given_as_one_for_the_latest(memory: caliber.Caliber, clock: SetClock) -> None:
    start = MARCH + DAY
    memory.workspace.calendar.add("daily", start, rrule="FREQ=DAILY", reminder_minutes=0)
    clock.at = start + 5 * DAY + HOUR
    assert reminded(memory) == [(start + 5 * DAY).isoformat()]
    clock.at = start + 6 * DAY
    assert reminded(memory) == [(start + 5 * DAY).isoformat(), (start + 6 * DAY).isoformat()]


def test_a_moved_or_deleted_event_has_no_reminder_of_before(memory: caliber.Caliber, clock: SetClock) -> None:
    calendar = memory.workspace.calendar
    start = MARCH + DAY
    moved = calendar.add("moved", start, reminder_minutes=60)
    gone = calendar.add("gone", start, reminder_minutes=60)
    kept = calendar.update(moved.event_id, starts_at=start + DAY, version=1)
    assert kept.next_reminder_at == start + DAY - HOUR
    calendar.update(moved.event_id, starts_at=start)
    calendar.update(moved.event_id, starts_at=start + DAY)
    calendar.delete(gone.event_id)
    clock.at = start
    assert reminded(memory) == []
    clock.at = start + DAY
    assert reminded(memory) == [(start + DAY).isoformat()]


def test_an_event_of_a_user_is_that_users(memory: caliber.Caliber) -> None:
    app = memory.acting_as(Principal.application())
    event = app.workspace.calendar.add("dentist", MARCH, user="maria")
    shared = app.workspace.calendar.add("release", MARCH)
    maria, jo = (memory.acting_as(Principal.user(name)).workspace.calendar for name in ("maria", "jo"))
    window = (MARCH, MARCH + DAY)
    assert {each.event.title for each in maria.occurrences(*window)} == {"dentist", "release"}
    assert {each.event.title for each in jo.occurrences(*window)} == {"release"}
    assert {each.event.title for each in app.workspace.calendar.occurrences(*window)} == {"release"}
    assert len(app.workspace.calendar.occurrences(*window, user="maria")) == 2
    with pytest.raises(NotFound):
        jo.get(event.event_id)
    with pytest.raises(NotFound):
        jo.delete(event.event_id)
    with pytest.raises(PermissionDenied):
        jo.update(shared.event_id, title="party")
    with pytest.raises(PermissionDenied):
        jo.occurrences(*window, user="maria")
    with pytest.raises(PermissionDenied):
        jo.add("x", MARCH, visible_to=["human:maria"])
    assert maria.update(event.event_id, title="doctor").title == "doctor"
    assert maria.add("mine", MARCH).user_id == event.user_id


def test_what_cannot_take_place_is_refused(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"title": ""}, InvalidValue),
        ({"title": "t" * 2_000}, InvalidValue),
        ({"starts_at": datetime(2027, 3, 1)}, InvalidValue),  # noqa: DTZ001
        ({"starts_at": "today"}, DTypeError),
        ({"starts_at": None}, InputError),
        ({"ends_at": MARCH - HOUR}, InvalidValue),
        ({"time_zone": "Mars/Olympus"}, InvalidValue),
        ({"rrule": "FREQ=HOURLY"}, InvalidValue),
        ({"rrule": "FREQ=DAILY;INTERVAL=-2"}, InvalidValue),
        ({"rrule": "FREQ=WEEKLY;BYDAY=TU"}, InvalidValue),  # a Monday
        ({"reminder_minutes": -1}, InvalidValue),
        ({"reminder_minutes": 10**9}, InvalidValue),
        ({"user": "maria", "visible_to": ["agent:planner"]}, InvalidValue),
    ]
    for change, error in bad:
        with pytest.raises(error):
            calendar.add(**{"title": "t", "starts_at": MARCH, **change})
    assert calendar.occurrences(MARCH - DAY, MARCH + DAY) == []
    with pytest.raises(InvalidValue):
        calendar.occurrences(MARCH, MARCH - DAY)
    with pytest.raises(InvalidValue):
        calendar.occurrences(MARCH, MARCH + DAY, limit=10_001)


def test_a_change_keeps_to_the_version_and_the_rules(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    event = calendar.add("weekly", MARCH, rrule="FREQ=WEEKLY", reminder_minutes=5)
    with pytest.raises(InvalidValue, match="no occurrence"):
        calendar.update(event.event_id, rrule="FREQ=WEEKLY;BYDAY=TU")
    once = calendar.update(event.event_id, rrule=None, reminder_minutes=None)
    assert (once.rrule, once.next_reminder_at, once.version) == (None, None, 2)
    with pytest.raises(Conflict):
        calendar.delete(event.event_id, version=1)
    assert calendar.delete(event.event_id, version=2) == once
    with pytest.raises(NotFound):
        calendar.get(event.event_id)


def test_no_event_keeps_others_from_being_listed(memory: caliber.Caliber) -> None:
    calendar = memory.workspace.calendar
    lasting = calendar.add("lasting", MARCH, ends_at=datetime(9999, 12, 31, tzinfo=UTC), rrule="FREQ=DAILY")
    calendar.add("old", datetime(1, 1, 31, tzinfo=UTC), rrule="FREQ=MONTHLY", reminder_minutes=5)
    calendar.add("last", datetime(9999, 12, 20, tzinfo=UTC), rrule="FREQ=MONTHLY", reminder_minutes=5)
    found = calendar.occurrences(MARCH + DAY, MARCH + 2 * DAY)
    assert [(each.event.title, each.starts_at) for each in found] == [("lasting", MARCH), ("lasting", MARCH + DAY)]
    assert found[0].ends_at == lasting.ends_at
    for year, zone in ((1, "America/New_York"), (9999, "Asia/Tokyo")):
        start = datetime(year, 1, 1, tzinfo=UTC) if year == 1 else datetime(year, 12, 31, 23, tzinfo=UTC)
        for repeated in (None, "FREQ=DAILY"):
            with pytest.raises(InvalidValue, match="starts_at"):
                calendar.add("beyond", start, time_zone=zone, rrule=repeated)


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


@pytest.mark.parametrize(("key", "value", "error"), [
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
])  # fmt: skip
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
