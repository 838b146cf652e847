"""Days in search and windows: from now, in the zone of the writer or of the users, as far as they bound a question.

Source: issue "A window that one would put into a prompt", point 3.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from support.context.companions import NOW, companion, recalled, tell

import caliber
from caliber.model.errors import ConfigError


def found(user: Any, query: str) -> list[str]:
    return [hit.content for hit in user.search(query, kinds=("turn",)).hits]


TALKS = (
    (NOW - timedelta(1), "The heron stood in the pond."),
    (NOW - timedelta(3), "We talked of the broken lift."),
    (NOW - timedelta(4), "Saturday was for the orchard."),
    (NOW - timedelta(9), "A letter from the bank came."),
    (datetime(2026, 3, 10, 9, tzinfo=UTC), "The kiln is hot."),
    (datetime(2025, 3, 10, 9, tzinfo=UTC), "The kiln is new."),
)


def test_a_question_about_days_finds_them_and_no_others() -> None:
    asks = {
        "What did we talk of yesterday?": "heron",
        "Remind me what I told you yesterday": "heron",
        "yesterday": "heron",
        "What was on last Saturday?": "orchard",
        "What happened last weekend?": "orchard lift",
        "What did I mention nine days ago?": "bank",
        "What did we speak about last week?": "orchard lift bank",
        "What was it in March?": "hot",
        "What was it in March 2025?": "new",
        "What did I say between 1 and 5 May?": "bank",
        "And from 1 March to 5 May, what was there?": "hot bank",
        "What happened on 2026-05-12?": "heron",
        "What happened on 12/05/2026?": "heron",
    }
    marks = ("heron", "lift", "orchard", "bank", "hot", "new")
    with companion() as user:
        tell(user, *TALKS)
        for question, wanted in asks.items():
            for text in (" ".join(found(user, question)), recalled(user, question)):
                assert {mark for mark in marks if mark in text} == set(wanted.split()), (question, text)


def test_days_of_another_question_hide_nothing() -> None:
    with companion() as user:
        tell(user, *TALKS)
        for message in (
            "I slept badly yesterday. Where did I put the letter from the bank?",
            "Should I answer the letter from the bank today?",
        ):
            assert "bank" in recalled(user, message), message


def test_yesterday_is_the_day_before_the_last_message() -> None:
    with companion() as user:
        tell(user, *TALKS)
        assert "orchard" in recalled(user, "What was it yesterday?", NOW - timedelta(3))


@pytest.mark.parametrize("options", [{}, {"search.mode": "backend"}], ids=["in memory", "in the database"])
def test_the_day_is_that_of_the_writer_or_else_of_the_zone(options: dict[str, Any]) -> None:
    tokyo = timezone(timedelta(hours=9))
    early, late = datetime(2026, 5, 2, 7, 30, tzinfo=tokyo), datetime(2026, 5, 1, 22, 30, tzinfo=UTC)  # one instant
    for zone, at, day in (
        ("UTC", early, 2), ("UTC", late, 1), ("Asia/Tokyo", late, 2), ("America/New_York", early, 2),
        ("America/New_York", late.replace(hour=3), 30),
    ):  # fmt: skip
        with companion(time_zone=zone, **options) as user:
            tell(user, (at, "The plumber came by."))
            month = "April" if day == 30 else "May"
            assert found(user, f"What was on {day} {month} 2026?") == ["The plumber came by."], (zone, at)
            other = found(user, f"What did the plumber do on {3 if day == 30 else day + 3} June 2025?")
            assert other == found(user, "plumber"), "none of those days: the days bound nothing"
            assert f"[user, {day} {month} 2026] The plumber" in recalled(user, "When did the plumber come?"), (zone, at)


def test_the_days_of_a_question_are_those_of_its_writer() -> None:
    tokyo = timezone(timedelta(hours=9))
    with companion() as user:
        tell(
            user,
            (datetime(2026, 5, 12, 6, tzinfo=tokyo), "Tea with Aiko."),
            (datetime(2026, 5, 12, 23, tzinfo=tokyo), "Chess."),
        )
        assert "Tea" in recalled(user, "What was it yesterday?", datetime(2026, 5, 13, 7, tzinfo=tokyo))


def test_numbers_are_found_as_they_are_written() -> None:
    with companion() as user:
        tell(
            user,
            (NOW - timedelta(2), "The PIN is 1999."),
            (NOW - timedelta(2), "Room 1987 is mine."),
            (NOW - timedelta(2), "I keep it in 2026-04-01-plan.md."),
        )
        for query, text in (("1999", "PIN"), ("room 1987", "Room"), ("2026-04-01-plan.md", "plan")):
            assert text in found(user, query)[0], query
            assert user.search(query).analysis.days is None


def test_an_unknown_zone_is_refused() -> None:
    for zone in ("Mars/Olympus", "", "UTC+2", "../UTC"):
        with pytest.raises(ConfigError, match="time_zone"):
            caliber.profiles.chat_companion(":memory:", time_zone=zone)


def test_what_the_analysis_says_are_the_days_of_now() -> None:
    with companion() as user:
        tell(user, *TALKS[-1:])
        assert user.search("What was it yesterday?").analysis.days == (date(2026, 5, 12),) * 2
