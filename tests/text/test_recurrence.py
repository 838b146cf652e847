"""Repetition rules: hand-made calendars across changes of clocks, ends and counts, and texts that are refused.

Source: P-046; RFC 5545, 3.3.10 and 3.8.5.3, whose examples are in New York.
"""

from __future__ import annotations

import itertools
import time
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.model.errors import InvalidValue
from caliber.text.recurrence import Repetition, parse_rule, zone_named

NEW_YORK = ZoneInfo("America/New_York")
BERLIN = ZoneInfo("Europe/Berlin")
PIECES = st.sampled_from(["FREQ=DAILY", ";", "COUNT=1", "BYDAY=MO", "UNTIL=", "9", "-"])
FAR = datetime(2200, 1, 1, tzinfo=UTC)


def at(text: str, zone: ZoneInfo = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone)


def days(rule: str, start: datetime, zone: ZoneInfo, count: int, since: datetime | None = None) -> list[str]:
    """Return the first occurrences on the clocks of a zone, with their offsets in hours."""
    repeated = Repetition(parse_rule(rule), start, zone)
    repeated.check_start()
    found = itertools.islice(repeated.between(since or start, FAR), count)
    return [each.astimezone(zone).strftime("%Y-%m-%d %H:%M %z")[:-2] for each in found]


def test_a_daily_event_keeps_its_time_of_day_while_clocks_change() -> None:
    assert days("FREQ=DAILY", at("2027-03-27T09:00"), BERLIN, 3) == [
        "2027-03-27 09:00 +01",
        "2027-03-28 09:00 +02",
        "2027-03-29 09:00 +02",
    ]
    assert days("FREQ=WEEKLY", at("2027-10-24T09:00"), BERLIN, 2) == ["2027-10-24 09:00 +02", "2027-10-31 09:00 +01"]


def test_a_time_in_the_skipped_hour_takes_place_an_hour_later() -> None:
    assert days("FREQ=DAILY", at("2027-03-27T02:30"), BERLIN, 3) == [
        "2027-03-27 02:30 +01",
        "2027-03-28 03:30 +02",
        "2027-03-29 02:30 +02",
    ]


def test_a_time_in_the_repeated_hour_takes_place_once_at_its_first_pass() -> None:
    assert days("FREQ=DAILY", at("2027-10-30T02:30"), BERLIN, 3) == [
        "2027-10-30 02:30 +02",
        "2027-10-31 02:30 +02",
        "2027-11-01 02:30 +01",
    ]
    second = at("2027-10-31T02:30").replace(fold=1)
    assert days("FREQ=DAILY", second, BERLIN, 2) == ["2027-10-31 02:30 +01", "2027-11-01 02:30 +01"]


def test_the_examples_of_the_standard() -> None:
    start = at("1997-09-02T09:00", NEW_YORK)
    assert days("FREQ=DAILY;INTERVAL=10;COUNT=5", start, NEW_YORK, 9) == [
        "1997-09-02 09:00 -04", "1997-09-12 09:00 -04", "1997-09-22 09:00 -04", "1997-10-02 09:00 -04",
        "1997-10-12 09:00 -04",
    ]  # fmt: skip
    ends = days("FREQ=DAILY;UNTIL=19971224T000000Z", start, NEW_YORK, 200)
    assert (len(ends), ends[-1]) == (113, "1997-12-23 09:00 -05")
    assert days("FREQ=WEEKLY;INTERVAL=2;COUNT=8;BYDAY=TU,TH", start, NEW_YORK, 9) == [
        "1997-09-02 09:00 -04", "1997-09-04 09:00 -04", "1997-09-16 09:00 -04", "1997-09-18 09:00 -04",
        "1997-09-30 09:00 -04", "1997-10-02 09:00 -04", "1997-10-14 09:00 -04", "1997-10-16 09:00 -04",
    ]  # fmt: skip
    fridays = days("FREQ=MONTHLY;COUNT=4;BYDAY=1FR", at("1997-09-05T09:00", NEW_YORK), NEW_YORK, 9)
    assert [each[:10] for each in fridays] == ["1997-09-05", "1997-10-03", "1997-11-07", "1997-12-05"]
    last = days("FREQ=MONTHLY;COUNT=3;BYDAY=-2MO", at("1997-09-22T09:00", NEW_YORK), NEW_YORK, 9)
    assert [each[:10] for each in last] == ["1997-09-22", "1997-10-20", "1997-11-17"]
    twentieth = days("FREQ=YEARLY;BYDAY=20MO", at("1997-05-19T09:00", NEW_YORK), NEW_YORK, 3)
    assert [each[:10] for each in twentieth] == ["1997-05-19", "1998-05-18", "1999-05-17"]


def test_months_and_years_without_the_day_are_left_out() -> None:
    ends = days("FREQ=MONTHLY", at("2027-01-31T12:00"), BERLIN, 4)
    assert [each[:10] for each in ends] == ["2027-01-31", "2027-03-31", "2027-05-31", "2027-07-31"]
    leaps = days("FREQ=YEARLY", at("2096-02-29T12:00"), BERLIN, 2)
    assert [each[:10] for each in leaps] == ["2096-02-29", "2104-02-29"]


def test_until_is_inclusive_as_a_day_a_local_time_and_an_instant() -> None:
    start = at("2027-03-26T09:00")
    for until, count in (("20270328", 3), ("20270328T090000", 3), ("20270328T070000Z", 3), ("20270328T065959Z", 2)):
        assert len(days(f"FREQ=DAILY;UNTIL={until}", start, BERLIN, 9)) == count, until


@given(
    st.sampled_from(["FREQ=DAILY", "FREQ=DAILY;INTERVAL=3", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR", "FREQ=WEEKLY"]),
    st.integers(0, 4_000),
    st.integers(0, 23),
)
def test_a_late_look_finds_the_same_as_one_from_the_start(rule: str, after: int, hour: int) -> None:
    start = datetime(2026, 1, 5, hour, 30, tzinfo=BERLIN)
    repeated = Repetition(parse_rule(rule), start, BERLIN)
    since = start + timedelta(days=after, hours=1)
    until = since + timedelta(days=30)
    every = [each for each in repeated.between(start, until) if each >= since]
    assert list(repeated.between(since, until)) == every
    assert repeated.after(since) == (every[0] if every else repeated.after(until))


@given(
    st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    st.sampled_from([1, 2, 5, 7, 12, 13]),
    st.sampled_from(["", ";COUNT=9", ";COUNT=400"]),
    st.sampled_from(["", ";BYDAY=MO", ";BYDAY=1FR,-1TU", ";BYDAY=MO,WE,SU"]),
    st.dates(min_value=date(2000, 1, 1), max_value=date(2004, 12, 31)),
    st.integers(0, 20_000),
)
def test_periods_that_are_passed_over_change_nothing(
    frequency: str, interval: int, count: str, by_day: str, start: date, later: int
) -> None:
    if frequency in ("DAILY", "WEEKLY") and "1" in by_day:
        return
    rule = parse_rule(f"FREQ={frequency};INTERVAL={interval}{count}{by_day}")
    first = datetime(start.year, start.month, start.day, 23, 30, tzinfo=NEW_YORK)
    repeated = Repetition(rule, first, NEW_YORK)
    since = first.astimezone(UTC) + timedelta(days=later)
    until = since + timedelta(days=3_000)
    whole = itertools.dropwhile(lambda each: each < since, repeated.between(first.astimezone(UTC), until))
    assert list(repeated.between(since, until)) == list(whole)


@pytest.mark.parametrize("rule", ["FREQ=MONTHLY", "FREQ=YEARLY", "FREQ=MONTHLY;COUNT=10000", "FREQ=YEARLY;BYDAY=1MO"])
def test_a_late_look_takes_few_steps(rule: str) -> None:
    """An event of the year 1 must not keep others waiting."""
    repeated = Repetition(parse_rule(rule), datetime(1, 1, 1, tzinfo=UTC), UTC)
    late = datetime(800, 1, 1, tzinfo=UTC)
    started = time.process_time()
    for _ in range(200):
        assert len(list(repeated.between(late, late + timedelta(days=400)))) in (1, 2, 14)
    assert time.process_time() - started < 2  # stepping from the start takes more than 10 seconds


def test_a_day_that_a_zone_skipped_takes_place_once_with_the_next() -> None:
    apia = ZoneInfo("Pacific/Apia")
    found = days("FREQ=DAILY", at("2011-12-29T10:00", apia), apia, 3)
    assert found == ["2011-12-29 10:00 -10", "2011-12-31 10:00 +14", "2012-01-01 10:00 +14"]


@pytest.mark.parametrize(("year", "zone"), [(1, "America/New_York"), (9999, "Asia/Tokyo")])
def test_a_start_outside_of_the_years_of_its_zone_is_refused_and_harms_no_reader(year: int, zone: str) -> None:
    start = datetime(year, 1, 1, tzinfo=UTC) if year == 1 else datetime(year, 12, 31, 23, tzinfo=UTC)
    for rule in (None, parse_rule("FREQ=DAILY")):
        repeated = Repetition(rule, start, ZoneInfo(zone))
        with pytest.raises(InvalidValue, match="years"):
            repeated.check_start()
        assert next(repeated.between(start, datetime.max.replace(tzinfo=UTC))) == start


def test_a_rule_without_end_is_read_as_far_as_asked() -> None:
    repeated = Repetition(parse_rule("FREQ=DAILY"), datetime(1, 1, 2, tzinfo=UTC), UTC)
    late = datetime(9999, 12, 30, tzinfo=UTC)
    assert list(repeated.between(late, datetime.max.replace(tzinfo=UTC))) == [late, late + timedelta(days=1)]


def test_an_event_without_a_rule_takes_place_once() -> None:
    start = at("2027-01-01T09:00")
    once = Repetition(None, start, BERLIN)
    once.check_start()
    assert list(once.between(start, FAR)) == [start]
    assert once.after(start + timedelta(seconds=1)) is None


@pytest.mark.parametrize("rule", [
    "",
    "FREQ=HOURLY",
    "FREQ=SECONDLY",
    "freq=daily",
    "INTERVAL=2",
    "FREQ=DAILY;FREQ=WEEKLY",
    "FREQ=DAILY;INTERVAL=0",
    "FREQ=DAILY;INTERVAL=-1",
    "FREQ=DAILY;INTERVAL=1.5",
    "FREQ=DAILY;INTERVAL=99999999999999999999",
    "FREQ=DAILY;COUNT=0",
    "FREQ=DAILY;COUNT=-3",
    "FREQ=DAILY;COUNT=1000000000",
    "FREQ=DAILY;COUNT=2;UNTIL=20280101",
    "FREQ=DAILY;UNTIL=2028-01-01",
    "FREQ=DAILY;UNTIL=20280231",
    "FREQ=DAILY;UNTIL=20280101T250000Z",
    "FREQ=WEEKLY;BYDAY=",
    "FREQ=WEEKLY;BYDAY=MO,,TU",
    "FREQ=WEEKLY;BYDAY=XX",
    "FREQ=WEEKLY;BYDAY=2MO",
    "FREQ=MONTHLY;BYDAY=6MO",
    "FREQ=MONTHLY;BYDAY=0MO",
    "FREQ=YEARLY;BYDAY=54MO",
    "FREQ=YEARLY;BYEASTER=0",
    "FREQ=DAILY;X=1",
    "FREQ=DAILY;" + "BYDAY=MO;" * 200,
])  # fmt: skip
def test_other_rules_are_refused(rule: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_rule(rule)
    assert caught.value.context["field"] == "rrule"


@given(st.text(max_size=40) | st.lists(PIECES).map("".join))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except InvalidValue:
        return
    assert rule.interval >= 1


@pytest.mark.parametrize("rule", ["FREQ=DAILY;INTERVAL=7;BYDAY=TU", "FREQ=WEEKLY;BYDAY=TU", "FREQ=MONTHLY;BYDAY=2MO"])
def test_a_start_that_is_no_occurrence_is_refused(rule: str) -> None:
    with pytest.raises(InvalidValue, match="no occurrence"):
        Repetition(parse_rule(rule), at("2027-03-01T09:00"), BERLIN).check_start()


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidValue, match="UNTIL"):
        Repetition(parse_rule("FREQ=DAILY;UNTIL=20270101"), at("2027-03-01T09:00"), BERLIN).check_start()


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "", "UTC\0", "Europe"])
def test_unknown_time_zones_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue):
        zone_named(name)
