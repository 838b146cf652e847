"""Days of a question: what is found of them, what is of other days, and what texts mean by "yesterday".

Source: issue "A window that one would put into a prompt", point 3.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

pytestmark = pytest.mark.databases("one")

MAY = datetime(2023, 5, 12, 12, tzinfo=UTC)
DAY = timedelta(1)


@pytest.fixture(params=["resident", "backend"])
def days(backend: Any, start: Any, request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent whose store is searched by words alone, from memory and from its database."""
    monkeypatch.setattr("caliber.search.ranking.floor.WORDS_ALONE", 0.35)
    weights = {"vector": 0.0, "keyword": 0.9, "graph": 0.1, "importance": 0.0}
    config = backend.config(
        embedding_provider=None, search__weights=weights, search__mode=request.param,
        search__keyword__similar_words="none",
    )  # fmt: skip
    return start(backend.open(config))


def contents(agent: Any, query: str) -> list[str]:
    return [hit.content for hit in agent.memory.search(query).hits]


@pytest.mark.parametrize(("text", "said", "meant"), [
    ("I was at the dentist yesterday", MAY, "11 May 2023"),
    ("the dentist comes tomorrow", MAY, "13 May 2023"),
    ("the dentist came last Tuesday", MAY, "9 May 2023"),
    ("three days ago the dentist called", MAY, "9 May 2023"),
    ("the dentist is on 5 June", MAY, "5 June 2023"),
    ("the dentist was away last month", MAY, "April 2023"),
    ("we saw the dentist last weekend", MAY, "6 May 2023"),
    ("the dentist, 2023-05-20, noon", MAY, "20 May 2023"),
])  # fmt: skip
def test_a_text_counts_for_the_day_that_it_means(days: Any, text: str, said: datetime, meant: str) -> None:
    days.note(text, occurred_at=said)
    days.note("the chimney was swept", occurred_at=said)
    for at in range(-40, 41, 10):
        days.note(f"nothing of note, {at}", occurred_at=said + at * DAY + DAY / 3)
    lead = "in" if meant[0].isalpha() else "on"
    assert text in contents(days, f"What happened {lead} {meant}?")
    assert text not in contents(days, "What happened on 3 July 2023?")


@pytest.mark.parametrize(
    "text", ["I have known the dentist for years", "at last the dentist came", "may the dentist live long"]
)
def test_words_of_time_that_are_no_days_mean_none(days: Any, text: str) -> None:
    days.note(text, occurred_at=MAY)
    days.note("the chimney was swept", occurred_at=MAY - DAY)
    assert contents(days, "What happened on 11 May 2023?") == ["the chimney was swept"]


def test_the_clock_of_the_writer_makes_the_day_that_is_meant(days: Any) -> None:
    tokyo = timezone(timedelta(hours=9))
    days.say("I was at the dentist yesterday", occurred_at=datetime(2023, 5, 12, 7, tzinfo=tokyo))
    days.say("a walk", occurred_at=datetime(2023, 5, 10, 12, tzinfo=tokyo))
    assert contents(days, "What happened on 11 May 2023?") == ["I was at the dentist yesterday"]
    assert contents(days, "What happened on 10 May 2023?") == ["a walk"]


def test_another_day_answers_where_the_day_does_not(days: Any) -> None:
    days.note("Anna: the kitchen budget is 5,000", occurred_at=MAY + DAY)
    days.note("we swept the chimney", occurred_at=MAY)
    found = contents(days, "How large was the kitchen budget on 12 May 2023?")
    assert sorted(found) == ["Anna: the kitchen budget is 5,000", "we swept the chimney"]
    days.note("the kitchen budget was 4,000", occurred_at=MAY)
    found = contents(days, "How large was the kitchen budget on 12 May 2023?")
    assert "Anna: the kitchen budget is 5,000" not in found
    assert found[0] == "the kitchen budget was 4,000"


def test_a_question_about_a_day_alone_finds_that_day_alone(days: Any) -> None:
    days.note("we talked about the noisy neighbour", occurred_at=MAY - 3 * DAY)
    days.note("we compared two shops", occurred_at=MAY)
    assert contents(days, "What did we talk about on 12 May 2023?") == ["we compared two shops"]


def test_days_that_tell_nothing_apart_are_words(days: Any) -> None:
    days.note("I started to climb one year ago", occurred_at=MAY)
    days.note("I started to swim", occurred_at=MAY + 9 * DAY)
    assert contents(days, "What did I start one year ago?")[0] == "I started to climb one year ago"
