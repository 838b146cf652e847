"""Days that texts name: every phrase of a small grammar, in zones, about changes of clock, against a plain twin.

Source: issue "A window that one would put into a prompt", point 3.
"""

from __future__ import annotations

import calendar
import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from caliber.text.dates import DateReader, Moment, days_said

Days = tuple[date, date] | None
READER = DateReader()
ZONES: tuple[tzinfo, ...] = (
    UTC,
    timezone(timedelta(hours=9)),
    *map(ZoneInfo, ["Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Pacific/Apia"]),
    *map(ZoneInfo, ["Australia/Lord_Howe", "Asia/Kolkata", "America/Havana"]),
)
TODAYS = [
    date(2026, 11, 28), date(2026, 3, 29), date(2026, 10, 25), date(2024, 2, 29), date(2025, 1, 1), date(2018, 11, 4),
    date(2011, 12, 31), date(2023, 5, 7), date(2026, 3, 9),
]  # fmt: skip
DAY = timedelta(1)
STEPS = (*range(-13, 14), -97, -96, -4 * 25, 4 * 25, 96, 97)
"""Quarters of an hour."""


# --- the twin: what a phrase means, by walking through the calendar ------------------------------------


def back_to(today: date, fits: Callable[[date], bool]) -> date:
    """Return the latest day before another that fits."""
    day = today - DAY
    while not fits(day):
        day -= DAY
    return day


def month_of(day: date) -> tuple[date, date]:
    """Return the month of a day."""
    return day.replace(day=1), day.replace(day=calendar.monthrange(day.year, day.month)[1])


def before_month(day: date, count: int) -> date:
    """Return the first day of an earlier month."""
    for _ in range(count):
        day = day.replace(day=1) - DAY
    return day.replace(day=1)


def latest_month(today: date, month: int) -> tuple[date, date]:
    return month_of(back_to(today + DAY, lambda day: day.month == month and day.day == 1))


def phrases(today: date) -> Iterator[tuple[str, Days]]:
    """Yield phrases of days with what they mean on a day."""
    numbers = {"one": 1, "three": 3, "10": 10, "a": 1, "twelve": 12, "twenty-one": 21}
    monday = today
    while monday.weekday():
        monday -= DAY
    yield from (
        ("yesterday", (today - DAY,) * 2),
        ("Yesterday", (today - DAY,) * 2),
        ("last night", (today - DAY,) * 2),
        ("the day before yesterday", (today - 2 * DAY,) * 2),
        ("today", (today, today)),
        ("this morning", (today, today)),
        ("tomorrow", (today + DAY,) * 2),
        ("last week", (monday - 7 * DAY, monday - DAY)),
        ("this week", (monday, monday + 6 * DAY)),
        ("next week", (monday + 7 * DAY, monday + 13 * DAY)),
        ("last weekend", (monday - 2 * DAY, monday - DAY)),
        ("this weekend", (monday + 5 * DAY, monday + 6 * DAY)),
        ("last month", month_of(before_month(today, 1))),
        ("this month", month_of(today)),
        ("last year", (date(today.year - 1, 1, 1), date(today.year - 1, 12, 31))),
        ("since yesterday", (today - DAY, today)),
        ("the last three days", (today - 3 * DAY, today)),
        ("a few days ago", (today - 5 * DAY, today - 2 * DAY)),
    )
    for word, count in numbers.items():
        s = "" if count == 1 else "s"
        yield f"{word} day{s} ago", (today - count * DAY,) * 2
        yield f"{word} week{s} ago", (today - (7 * count + 3) * DAY, today - (7 * count - 3) * DAY)
        yield f"{word} month{s} ago", month_of(before_month(today, count))
        yield f"{word} year{s} ago", (date(today.year - count, 1, 1), date(today.year - count, 12, 31))
    for number, name in enumerate(calendar.day_name):
        found = back_to(today, lambda day, number=number: day.weekday() == number)  # type: ignore[misc]
        yield f"last {name}", (found, found)
        yield f"on {name}", (found, found)
        yield f"since {name}", (found, today)
    for month in (1, 3, 5, 11):
        name = calendar.month_name[month]
        first, last = latest_month(today, month)
        yield f"in {name}", (first, last)
        yield f"in {name.lower()}", (first, last)
        yield f"since {name}", (first, today)
        yield f"{name} 2025", (date(2025, month, 1), month_of(date(2025, month, 1))[1])
        for day in (3, 30):
            one = back_to(today + DAY, lambda at, m=month, d=day: (at.month, at.day) == (m, d))  # type: ignore[misc]
            yield f"on {day} {name}", (one, one)
            yield f"{name} {day}", (one, one)
            yield f"on the {day}{'rd' if day == 3 else 'th'} of {name}", (one, one)
            yield f"{name[:3]} {day}, 2025", (date(2025, month, day),) * 2
            yield f"2025-{month:02}-{day:02}", (date(2025, month, day),) * 2
            yield f"{day:02}.{month:02}.2025", (date(2025, month, day),) * 2
            if month == 5:
                yield f"between {day - 2} and {day} May", (one.replace(day=day - 2), one)
                yield f"May {day - 2}-{day}", (one.replace(day=day - 2), one)
                yield f"from {day - 2} to {day} May 2025", (date(2025, 5, day - 2), date(2025, 5, day))
    yield "between 5 March and 20 May 2025", (date(2025, 3, 5), date(2025, 5, 20))
    yield "from December to February 2025", (date(2024, 12, 1), date(2025, 2, 28))
    yield "from 2025-05-12 to 2025-05-14", (date(2025, 5, 12), date(2025, 5, 14))
    yield "between 2019 and 2021", (date(2019, 1, 1), date(2021, 12, 31))
    yield "in 1987", (date(1987, 1, 1), date(1987, 12, 31))
    yield "12/05/2025", (date(2025, 5, 12),) * 2
    yield "25/12/2024", (date(2024, 12, 25),) * 2
    yield "12/25/2024", (date(2024, 12, 25),) * 2


WORDS = (
    "room 1987", "The PIN is 1999", "I read 1984 twice", "the file 2026-05-12-notes.md", "notes/2026-05-12/plan.txt",
    "31 February", "31 February 2026", "2026-02-30", "2026-13-01", "31.02.2026", "0 May 2023",
    "who is May?", "24/7", "1/2 cup",
    "may I march to august company",
    "do you march on?", "we may 3 times", "release-2026-05-12", "id 20260512", "v2.05.2026a",
    "call 030/12/05/2026/4", "Tuesday", "on the 5th floor", "a first day", "ten days", "10.2.3", "12:05", "the 2020s",
    "flight LH2026", "#2026", "error 1999 in room 12", "Friday's", "monthly", "the last option",
)  # fmt: skip


@pytest.mark.parametrize("text", ["{}", "What did we say {}?", "I was out {}, and came back. In May I go."])
def test_phrases_mean_what_the_twin_says(text: str) -> None:
    # issue 40, point 3
    wrong = []
    for today in TODAYS[:3]:
        for phrase, days in phrases(today):
            found = READER.find(text.format(phrase), today)
            if (found and (found.first, found.last)) != days:
                wrong.append((phrase, today, found, days))
    assert not wrong


def test_other_numbers_and_words_are_no_days() -> None:
    # issue 40: a number is a word unless the query makes it a date
    assert not [(text, found) for text in WORDS if (found := READER.find(text, TODAYS[0]))]


def test_other_languages_read_numbers() -> None:
    reader = DateReader(words=False)
    assert reader.find("im Mai", TODAYS[0]) is None
    found = reader.find("Was war am 12.05.2026?", TODAYS[0])
    assert found.first == found.last == date(2026, 5, 12)


def test_a_day_of_slashes_is_month_first_in_zones_of_the_united_states() -> None:
    for zone, day in (("America/New_York", date(2026, 12, 5)), ("Europe/London", date(2026, 5, 12))):
        for text in ("12/05/2026", "12/05/26", "on 12/05"):
            found = READER.find(text, date(2026, 12, 31), ZoneInfo(zone))
            assert found.first == day, (zone, text)


def test_what_names_no_year_is_not_after_the_newest_record() -> None:
    found = READER.find("in May, not yesterday", date(2026, 11, 28), UTC, date(2023, 8, 1))
    assert found.first == date(2023, 5, 1)
    found = READER.find("yesterday", date(2026, 11, 28), UTC, date(2023, 8, 1))
    assert found.first == date(2026, 11, 27)


def check_bounds(today: date, phrase: str, zone: tzinfo) -> None:
    """Compare the instants of an interval with the days on the clocks of a zone, about both of its ends."""
    found = READER.find(phrase, today, zone)
    if found.first.year < 1900:
        return
    for edge, step in itertools.product((found.first_us, found.last_us), STEPS):
        at_us = edge + step * 15 * 60_000_000 + (step % 2)
        inside = found.first <= Moment(at_us, zone).day <= found.last
        assert (found.first_us <= at_us <= found.last_us) == inside, (phrase, today, zone, at_us)


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_days_begin_and_end_on_the_clocks_of_the_zone(zone: tzinfo) -> None:
    # the hour that does not exist, the one that comes twice, the day that Samoa skipped
    for today in TODAYS:
        for phrase in ("yesterday", "today", "last week"):
            check_bounds(today, phrase, zone)


@pytest.mark.prove
@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_every_phrase_on_the_clocks_of_every_zone(zone: tzinfo) -> None:
    for today in TODAYS:
        for phrase, days in phrases(today):
            if days is not None and "/" not in phrase:
                check_bounds(today, phrase, zone)


def moment_of(day: date, zone: tzinfo) -> Moment:
    return Moment(round(datetime(day.year, day.month, day.day, 12, tzinfo=zone).timestamp()) * 1_000_000, zone)


def test_what_a_message_says_is_of_its_own_day_and_of_a_plan_the_next() -> None:
    # issue 40, point 3: learning reads its days here
    zone = ZoneInfo("Pacific/Auckland")
    for today in TODAYS[1:4]:
        said = moment_of(today, zone)
        for phrase, days in phrases(today):
            found = days_said(f"I was there {phrase}.", said)
            assert (found and (found.first, found.last)) == days, (phrase, today)
        plans: dict[str, Callable[[date], bool]] = {
            "on 12 June": lambda day: (day.month, day.day) == (6, 12),
            "on June 12th": lambda day: (day.month, day.day) == (6, 12),
            "on 29 February": lambda day: (day.month, day.day) == (2, 29),
            "tomorrow": lambda day, today=today: day == today + DAY,  # type: ignore[misc]
            "on the 3rd": lambda day: day.day == 3,
            "on Friday": lambda day, today=today: day > today and day.weekday() == 4,  # type: ignore[misc]
            "next tue": lambda day, today=today: day > today and day.weekday() == 1,  # type: ignore[misc]
        }
        for phrase, fits in plans.items():
            day = today
            while not fits(day):
                day += DAY
            found = days_said(f"My exam is {phrase}.", said, ahead=True)
            assert found is not None, phrase
            assert found.first == found.last == day, (phrase, today)
    assert days_said("see you tomorrow", Moment(2**62)) is None


def test_short_names_of_days_are_seen() -> None:
    assert all(READER.may_name(f"last {name[:3]}") for name in calendar.day_name)


def test_the_ends_of_the_calendar_are_days() -> None:
    for at in (datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)):
        at_us = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        for zone in ZONES:
            assert Moment(at_us, zone).day == at.date() or zone is not UTC
    assert READER.find("last week", date.min) is None
    until = READER.find("until yesterday", date(2026, 5, 12))
    assert until.first_us < until.last_us
