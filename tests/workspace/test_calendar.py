"""The calendar: occurrences in a time, whose they are, reminders given once, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from support.databases import Backend
from support.weeks import SetClock

import caliber
from caliber.model import Principal
from caliber.model.errors import Conflict, DTypeError, InputError, InvalidValue, NotFound, PermissionDenied

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
    assert [(each.event.title, each.starts_at) for each in found] == [
        ("lasting", MARCH),
        ("lasting", MARCH + DAY),
    ]
    assert found[0].ends_at == lasting.ends_at
    for year, zone in ((1, "America/New_York"), (9999, "Asia/Tokyo")):
        start = datetime(year, 1, 1, tzinfo=UTC) if year == 1 else datetime(year, 12, 31, 23, tzinfo=UTC)
        for rule in (None, "FREQ=DAILY"):
            with pytest.raises(InvalidValue, match="starts_at"):
                calendar.add("beyond", start, time_zone=zone, rrule=rule)
