"""Tests of the scorer of learnt facts, by hand-made answers, and of the labelled messages it reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.learning.remember_score import ATTRIBUTES, OPEN, Kept, Learnt, conversations, score


def _fact(name: str, attribute: str, *value: str, **more: Any) -> dict[str, Any]:
    return {"fact": name, "subject": ["user"], "attribute": [attribute], "value": list(value), **more}


def _message(number: int, text: str, *facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"message": f"t/{number}", "role": "user", "text": text, "facts": list(facts), "ends": [], **more}


TALK: dict[str, Any] = {
    "conversation": "t",
    "user": "mia",
    "messages": [
        _message(
            1,
            "I live in Lisbon, I am a vegetarian",
            _fact("home", "home", "Lisbon"),
            _fact("veg", "diet", "vegetarian"),
        ),
        _message(2, "Remember that."),
        _message(3, "I moved to Porto", _fact("porto", "home", "Porto", "Oporto", ends=["home"])),
        _message(4, "I eat meat again. And I like jazz", _fact("jazz", "likes", "jazz", optional=True), ends=["veg"]),
    ],
}
LISBON, VEGETARIAN = Kept("1", "user", "home", "Lisbon"), Kept("2", "user", "diet", "vegetarian")
PORTO = Kept("3", "user", "home", "Oporto")
RIGHT = {
    "t/1": Learnt([LISBON, VEGETARIAN]),
    "t/3": Learnt([PORTO], ["1"]),
    "t/4": Learnt([Kept("4", "user", "likes", "jazz")], ["2"]),
}


def test_right_answers_score_one() -> None:
    found = score([TALK], RIGHT)
    assert (found.precision, found.recall, found.corrections) == (1.0, 1.0, 1.0)
    assert (found.kept, found.wanted, found.due, found.labelled, found.faults) == (3, 3, 2, 2, [])


def test_no_answers_find_nothing() -> None:
    found = score([TALK], {})
    assert (found.precision, found.recall, found.corrections) == (0.0, 0.0, 0.0)
    assert (found.due, found.labelled) == (0, 2)


@pytest.mark.parametrize(
    "junk",
    [
        Kept("9", "user", "other", "Remember that."),
        Kept("9", "user", "home", "Lisbon"),  # a second time
        Kept("9", "user", "diet", "not a vegetarian"),
        Kept("9", "Tom", "home", "Lisbon"),
        Kept("9", "user", "job", "Lisbon"),
    ],
    ids=["a non-fact", "twice", "denied", "another subject", "another attribute"],
)
def test_junk_costs_precision(junk: Kept) -> None:
    found = score([TALK], RIGHT | {"t/2": Learnt([junk])})
    assert (found.right, found.kept, found.recall) == (3, 4, 1.0)
    (fault,) = found.faults
    assert fault.startswith("t/2: kept")


def test_a_whole_message_is_no_value() -> None:
    copied = Kept("1", "user", "home", "I live in Lisbon " + "and more " * 8)
    found = score([TALK], {"t/1": Learnt([copied])})
    assert (found.right, found.kept) == (0, 1)


def test_a_sentence_with_an_accepted_wording_is_right() -> None:
    named = Kept("1", "Mia", "home", "She lives in LISBON now.")
    assert score([TALK], {"t/1": Learnt([named])}).right == 1


def test_a_part_of_a_word_is_no_wording() -> None:
    assert score([TALK], {"t/1": Learnt([Kept("1", "user", "home", "Lisbonne")])}).right == 0


def test_an_old_fact_still_held_is_a_wrong_correction() -> None:
    found = score([TALK], RIGHT | {"t/3": Learnt([PORTO])})
    assert (found.corrected, found.due, found.precision) == (1, 2, 1.0)


def test_an_end_without_the_new_value_is_a_wrong_correction() -> None:
    found = score([TALK], RIGHT | {"t/3": Learnt((), ["1"])})
    assert (found.corrected, found.due, found.wrong_ends) == (1, 2, 0)


def test_an_end_of_another_fact_is_wrong() -> None:
    found = score([TALK], RIGHT | {"t/3": Learnt([PORTO], ["1", "2"]), "t/4": Learnt()})
    assert (found.corrected, found.due, found.wrong_ends) == (1, 1, 1)
    assert found.corrections == 0.5


def test_an_end_that_a_label_allows_is_neutral() -> None:
    allowing = _message(2, "Remember that.", may_end=["veg"])
    talk = TALK | {"messages": [TALK["messages"][0], allowing]}
    found = score([talk], {"t/1": RIGHT["t/1"], "t/2": Learnt((), ["2"])})
    assert (found.wrong_ends, found.due) == (0, 0)


def test_a_held_id_kept_again_replaces_its_fact() -> None:
    found = score([TALK], RIGHT | {"t/3": Learnt([Kept("1", "user", "home", "Porto")])})
    assert (found.corrections, found.precision) == (1.0, 1.0)


def test_a_fact_kept_after_its_end_is_junk() -> None:
    found = score([TALK], RIGHT | {"t/1": Learnt([VEGETARIAN]), "t/3": Learnt([LISBON, PORTO])})
    assert (found.right, found.kept) == (2, 3)


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ({"t/9": Learnt()}, "no such messages"),
        ({"t/1": Learnt((), ["1"])}, "not held"),
        ({"t/1": Learnt([Kept("1", "user", "city", "Lisbon")])}, "unknown attribute"),
    ],
    ids=["an unknown message", "an end of nothing", "an unknown attribute"],
)
def test_an_answer_that_makes_no_sense_is_refused(answers: dict[str, Learnt], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        score([TALK], answers)


@pytest.mark.parametrize("name", ["open4.json", "sealed4.json", "sealed5.json"])
def test_the_labels_themselves_score_one(name: str) -> None:
    """Each label, given as an answer, is right; so no label contradicts another or the rule."""
    talks = conversations(OPEN.with_name(name))
    found = score(talks, {message["message"]: _labelled(message) for talk in talks for message in talk["messages"]})
    assert (found.precision, found.recall, found.corrections, found.wrong_ends) == (1.0, 1.0, 1.0, 0), found.faults
    assert found.due == found.labelled >= 30


def _labelled(message: dict[str, Any]) -> Learnt:
    kept = [
        Kept(fact["fact"], fact["subject"][-1], fact["attribute"][0], fact["value"][0]) for fact in message["facts"]
    ]
    return Learnt(kept, [*message["ends"], *(old for fact in message["facts"] for old in fact.get("ends", ()))])


def test_a_set_has_its_format() -> None:
    messages = [message for talk in conversations() for message in talk["messages"]]
    asked = [message for message in messages if message["role"] == "user"]
    assert len(asked) == 120
    assert 0.35 <= sum(not (message["facts"] or message["ends"]) for message in asked) / 120 <= 0.55
    assert all(not message["facts"] and not message["ends"] for message in messages if message["role"] == "assistant")
    facts: set[str] = set()
    for message in messages:
        for fact in message["facts"]:
            assert set(fact["attribute"]) <= ATTRIBUTES
            assert set(fact.get("ends", ())) <= facts
        assert {*message["ends"], *message.get("may_end", ())} <= facts
        facts.update(fact["fact"] for fact in message["facts"])
