"""Messages of the user that stand in windows though no query asks for them: whose, how much, and where not."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import caliber
from caliber import EntityRef
from caliber.context.gather.told import rarity

SMALL_TALK = ("The clocks disagree again.", "What a day.", "The lid of the jar won.", "It rains and it rains.")


@pytest.fixture
def memory() -> Iterator[Any]:
    knobs = {"resident.feed_poll_ms": 0, "policies": []}
    config = caliber.profiles.chat_companion(":memory:", embedding_provider=None, **knobs)
    with caliber.open(config, create=True) as made:
        yield made


def told(memory: Any, user: str, *texts: str, name: str | None = None) -> Any:
    """Return the handle of a user who said some things, each in a talk that is over, between small talk."""
    own = memory.acting_as(caliber.Principal.user(user))
    for text in texts:
        task = own.start_trajectory("a talk").trajectory_id
        turns = [*SMALL_TALK, text]
        scope = own.open_scope(task).scope_id
        own.append_turns(scope, [{"role": "user", "content": each, "name": name} for each in turns])
        own.complete_trajectory(task, status="success", summary="")
    return own


def window(own: Any, question: str, **options: Any) -> Any:
    task = own.start_trajectory("a question").trajectory_id
    own.append_turns(own.open_scope(task).scope_id, [{"role": "user", "content": question}])
    return own.assemble_context(task, **options)


def section(made: Any) -> str:
    return next((part.content for part in made.sections if part.name == "told"), "")


TOLD = (
    "Sang the tenor solo with a cold, and my wife Nerys says it sounded like a gate.",
    "Mein Enkel Malo ist sieben und verträgt keine Haselnüsse.",
    "Nightshades set my joints on fire: tomatoes, peppers, aubergines.",
)


def test_a_greeting_and_a_request_get_what_was_told_in_passing(memory: Any) -> None:
    ana = told(memory, "ana", *TOLD)
    for question in ("Morning, old thing.", "I am frozen. Cook me a stew.", "Tell me who I am."):
        made = window(ana, question, max_tokens=1_000)
        assert all(text in section(made) for text in TOLD)
        assert made.text.count("clocks disagree") <= 1, "equal messages stand once"
        assert made.used_tokens <= 1_000
        assert sum(part.token_count for part in made.sections if part.name == "told") <= 500
        assert ana.replay(made.window_id).text == made.text


@pytest.mark.parametrize("question", ["Quick, which river flows through Vientiane?", "What did we talk of yesterday?"])
def test_a_question_about_others_or_about_days_gets_nothing_else(memory: Any, question: str) -> None:
    assert section(window(told(memory, "ana", *TOLD), question)) == ""


def test_only_the_words_of_the_user(memory: Any) -> None:
    ana = told(memory, "ana", "I keep three hives behind the chapel.")
    bo = told(memory, "bo", "I owe the bookmaker four hundred dollars.")
    told(memory, "ana", "I am Carla, and I collect thimbles.", name="carla")
    scope = ana.open_scope(ana.start_trajectory("a talk").trajectory_id).scope_id
    ana.append_turns(scope, [{"role": "assistant", "content": "Zanzibar would suit you."}])
    text = section(window(ana, "Good evening."))
    assert "hives" in text
    assert not any(word in text for word in ("bookmaker", "thimbles", "Zanzibar"))
    assert "hives" not in window(bo, "Good evening.").text


def test_what_the_window_shows_already_is_not_repeated(memory: Any) -> None:
    ana = memory.acting_as(caliber.Principal.user("ana"))
    talk = ana.start_trajectory("a talk").trajectory_id
    ana.remember([{"role": "user", "content": "I'm allergic to shellfish."}], task=talk)
    ana.complete_trajectory(talk, status="success", summary="")
    task = ana.start_trajectory("a talk").trajectory_id
    scope = ana.open_scope(task).scope_id
    ana.append_turns(scope, [{"role": "user", "content": "I keep three hives behind the chapel."}])
    ana.append_turns(scope, [{"role": "assistant", "content": "Brave."}, {"role": "user", "content": "Hello again."}])
    made = ana.assemble_context(task)
    assert made.text.count("three hives") == 1
    assert made.text.count("shellfish") == 1


def test_nobody_elses_words_are_the_users(memory: Any) -> None:
    task = memory.start_trajectory("import", initiator=EntityRef("system", uuid.uuid4())).trajectory_id
    memory.append_turn(memory.open_scope(task).scope_id, role="user", content="Dr Okafor raised the lithium dose.")
    ana = told(memory, "ana", "I keep three hives behind the chapel.")
    shared = ana.start_trajectory("with a guest").trajectory_id
    scope = ana.open_scope(shared).scope_id
    memory.access.grant(to="ben", on=shared, right="write")
    memory.acting_as(caliber.Principal.user("ben")).append_turn(scope, role="user", content="Oysters upset my belly.")
    text = section(window(ana, "Good evening."))
    assert "hives" in text
    assert not any(word in text for word in ("lithium", "Oysters"))


def test_what_has_ended_and_what_was_pasted_is_not_told(memory: Any) -> None:
    ana = told(memory, "ana", "Traceback " + " ".join(f"frame{at} file{at}.py" for at in range(200)), *TOLD)
    talk = ana.start_trajectory("a talk").trajectory_id
    for said in ("I live in Berlin.", "I live in Lisbon now."):
        ana.remember([{"role": "user", "content": said}], task=talk)
    ana.complete_trajectory(talk, status="success", summary="")
    text = section(window(ana, "Good evening.", max_tokens=600))
    assert "Nerys" in text
    assert not any(word in text for word in ("Traceback", "Berlin"))


def test_one_message_is_told_and_many_leave_the_present_conversation_its_room(memory: Any) -> None:
    ana = memory.acting_as(caliber.Principal.user("ana"))
    for at in range(120):
        task = ana.start_trajectory("a talk").trajectory_id
        ana.append_turn(ana.open_scope(task).scope_id, role="user", content=f"Lily{at} ok{at}.")
        if not at:
            assert "Lily0" in section(window(ana, "Good evening."))
    made = window(ana, "Good evening.", max_tokens=1_000)
    assert 200 < sum(part.token_count for part in made.sections if part.name == "told") <= 500
    task = ana.start_trajectory("now").trajectory_id
    scope = ana.open_scope(task).scope_id
    for at in range(36):
        role = "assistant" if at % 2 else "user"
        ana.append_turn(scope, role=role, content=f"Stone{at} gravel{at} pebble{at} rock{at} boulder{at}.")
    ana.append_turn(scope, role="user", content="Good evening.")
    made = ana.assemble_context(task, max_tokens=1_000)
    assert sum(f"Stone{at} " in made.text for at in range(36)) == 36
    for limit in range(60, made.used_tokens, 97):
        smaller = memory.pcp.apply_dosage(made, max_tokens=limit)
        assert "Good evening." in smaller.text
        assert 0 < smaller.used_tokens <= limit


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=12))
def test_rarity_is_the_sum_over_words_of_how_few_texts_have_them(texts: list[list[int]]) -> None:
    found = rarity(texts)
    for at, (words, value) in enumerate(zip(texts, found, strict=True)):
        having = [sum(word in each for each in texts) for word in set(words)]
        expected = 0.0 if words in texts[:at] else sum(math.log((len(texts) + 1) / count) for count in having)
        assert math.isclose(value, expected, abs_tol=1e-9)
