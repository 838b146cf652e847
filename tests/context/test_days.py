"""Days in search and windows: from now, in the zone of the writer or of the users, as far as they bound a question.

The conversation of a window has a line where days change, and one with the day of the last message.

Source: issue "A window that one would put into a prompt", point 3.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from support.context.companions import NOW, companion, recalled, tell
from support.context.provider_rules import anthropic_faults, openai_faults
from support.evidence import share

import caliber
from caliber.model.errors import ConfigError
from caliber.model.time import FixedClock, from_us, to_us


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


LINE = re.compile(r"— \w+, (\d{1,2} \w+ \d{4}) —\n")


def talked(user: Any, *said: tuple[datetime, str]) -> Any:
    """Hold one conversation, in which the assistant answers each message at once; return its task."""
    task = user.start_trajectory("talk").trajectory_id
    for at, text in said:
        answer = {"role": "assistant", "content": f"Answer to {text}", "occurred_at": at}
        user.remember([{"role": "user", "content": text, "occurred_at": at}, answer], task=task)
    return task


def test_a_conversation_carries_a_line_where_its_day_changes() -> None:
    with companion() as user:
        task = talked(user, (NOW - timedelta(1), "Tea."), (NOW - timedelta(1), "Milk."), (NOW, "And now?"))
        window = user.assemble_context(task)
        assert window.text == (
            "# Conversation\n— Tuesday, 12 May 2026 —\nuser: Tea.\n\nassistant: Answer to Tea.\n\nuser: Milk.\n\n"
            "assistant: Answer to Milk.\n\n# Now\n— Wednesday, 13 May 2026 —\nuser: And now?\n\n"
            "assistant: Answer to And now?"
        )
        contents = [message["content"] for message in window.to_messages()]
        assert contents == [
            "— Tuesday, 12 May 2026 —\nTea.", "Answer to Tea.", "Milk.", "Answer to Milk.",
            "— Wednesday, 13 May 2026 —\nAnd now?", "Answer to And now?",
        ]  # fmt: skip
        days = [ref.day and ref.day.day for section in window.sections for ref in section.sources]
        assert days == [12, None, 12, None, 13, None]
        shown = [window.text.split("\n")[1:3], LINE.findall(user.replay(window.window_id).text)]
        assert shown == [["— Tuesday, 12 May 2026 —", "user: Tea."], ["12 May 2026", "13 May 2026"]]


def test_a_conversation_of_one_day_has_one_line() -> None:
    with companion() as user:
        task = talked(user, *((NOW - timedelta(minutes=9 - at), f"Message {at}.") for at in range(9)))
        assert LINE.findall(user.assemble_context(task).text) == ["13 May 2026"]
        assert LINE.findall(user.assemble_context(task, query="").text) == ["13 May 2026"]


def test_the_day_of_a_conversation_is_that_of_the_writer() -> None:
    tokyo = timezone(timedelta(hours=9))
    early, late = datetime(2026, 5, 12, 7, 30, tzinfo=tokyo), datetime(2026, 5, 11, 22, 30, tzinfo=UTC)  # one instant
    for zone, at, day in (("UTC", early, 12), ("UTC", late, 11), ("Asia/Tokyo", late, 12)):
        with companion(time_zone=zone) as user:
            window = user.assemble_context(talked(user, (at, "Hello.")))
            assert LINE.findall(window.text) == [f"{day} May 2026"], (zone, at)


def test_the_text_before_a_turn_stays_as_turns_are_added() -> None:
    with companion() as user:
        said = [(NOW - timedelta(hours=5 * (30 - at)), f"Message {at}.") for at in range(30)]
        task, before = talked(user, said[0]), ""
        for at, text in said[1:]:
            user.remember([{"role": "user", "content": text, "occurred_at": at}], task=task)
            section = user.assemble_context(task, query="").sections[0]
            assert section.name == "user"
            assert section.content.startswith(before)
            before = section.content.rstrip()


def test_windows_of_other_profiles_carry_none() -> None:
    for profile in ("reference", "coding-agent", "ops-agent", "sources"):
        if profile not in caliber.profiles.PROFILES:
            continue
        config = caliber.profiles.PROFILES[profile](":memory:", embedding_provider=None, policies=[])
        with caliber.open(config, clock=FixedClock(to_us(NOW))) as memory:
            user = memory.acting_as(caliber.Principal.user("eve"))
            window = user.assemble_context(talked(user, (NOW - timedelta(1), "Tea."), (NOW, "Milk.")))
            assert not LINE.search(window.text), profile


def chat(user: Any, rnd: random.Random, start: int) -> tuple[Any, dict[str, str]]:
    """Hold a random chat; return its task, and the day of each message of the user by the message's mark."""
    task, at, days = user.start_trajectory("a chat").trajectory_id, start, {}
    for number in range(rnd.randrange(2, 40)):
        at += rnd.choice([30, 60, 600, 40_000, 90_000])
        when, mark = from_us(at * 1_000_000), f"M{number}M"
        text = " ".join([mark, *rnd.choices(("boats", "letters and tea", "a\nline", "the hall"), k=rnd.randrange(30))])
        turns: list[dict[str, Any]] = [{"role": "user", "content": text, "occurred_at": when}]
        if rnd.random() < 0.3:
            call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            turns.append({"role": "assistant", "content": "", "tool_calls": [call], "occurred_at": when})
            if rnd.random() < 0.8:
                turns.append({"role": "tool", "content": text, "tool_call_id": f"c{number}", "occurred_at": when})
        if rnd.random() < 0.9:
            turns.append({"role": "assistant", "content": "Well. " * rnd.randrange(1, 20), "occurred_at": when})
        user.remember(turns, task=task)
        days[mark] = f"{when.day} {when:%B %Y}"
        if rnd.random() < 0.1:
            user.close_scope(user.current_scope(task).scope_id)
            user.open_scope(task)
    return task, days


@pytest.mark.parametrize("estimator", ["bytes", "calibrated", "exact"])
@pytest.mark.parametrize("part", share(range(4), 1, daily=4))
def test_days_of_random_chats_are_true_and_fit(part: int, estimator: str) -> None:
    tokens = {"tokens.estimator": estimator, "tokens.vocabulary": "cl100k_base"}
    with companion(policies=[], **tokens) as user:
        for seed in range(8 * part, 8 * part + 8):
            rnd = random.Random(seed)
            task, days = chat(user, rnd, 1_770_000_000 + 10_000_000 * (seed % 8))
            for budget in (150, 220, 300, 600, 1_500, 4_000):
                query = rnd.choice([None, "boats", ""])
                window = user.assemble_context(task, query=query, max_tokens=budget)
                assert window.used_tokens <= budget
                assert openai_faults(window.to_messages()) == anthropic_faults(window.to_messages("anthropic")) == []
                assert user.replay(window.window_id) == window
                assert bool(LINE.search(window.text)) == (budget >= 200), (seed, budget)
                are_true(window, days)
                for limit in (budget // 2, budget - 10):
                    smaller = user.pcp.apply_dosage(window, max_tokens=limit)
                    assert smaller.used_tokens <= limit
                    are_true(smaller, days)


def are_true(window: Any, days: dict[str, str]) -> None:
    """Check that each message of the user stands behind its day, in text and in messages."""
    if not LINE.search(window.text):
        return
    current = None
    for section in window.sections:
        if section.name not in ("user", "earlier", "current"):
            continue
        last = current
        for line in section.content.splitlines():
            if found := LINE.fullmatch(line + "\n"):
                last = found[1]
            elif found := re.match(r"user: (M\d+M)", line):
                assert last == days[found[1]], (section.name, line)
        current = current if section.name == "earlier" else last
    last = None
    for message in window.messages:
        if message.role == "user" and message.name is None:
            found = LINE.match(message.content)
            last = found[1] if found else last
            mark = re.search(r"M\d+M", message.content)
            assert mark is None or last == days[mark[0]]
