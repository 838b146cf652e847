"""A conversation that a client sends again: stored once, with the answers that it has now."""

from __future__ import annotations

from typing import Any

import pytest

import caliber
from caliber.model import FixedClock
from caliber.model.errors import Conflict

LIMA = "Is Lima in Peru?"


def talk(*texts: str) -> list[dict[str, Any]]:
    """Return messages of the user and the assistant in turn; a ``>`` begins one of the assistant, ``<`` a result."""
    out: list[dict[str, Any]] = []
    for text in texts:
        if text.startswith("!"):
            call = {"id": text[1:], "type": "function", "function": {"name": "look", "arguments": "{}"}}
            out.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif text.startswith("<"):
            out.append({"role": "tool", "tool_call_id": text[1:3], "content": text[3:]})
        else:
            out.append({"role": "assistant" if text.startswith(">") else "user", "content": text.removeprefix(">")})
    return out


def shown(memory: caliber.Caliber, task: Any) -> list[str]:
    """Return the turns that a task has now, written as ``talk`` reads them."""
    marks = {"assistant": ">", "tool": "<", "user": "", "system": "#"}
    found = memory.acting_as(caliber.Principal.admin()).storage.turns.all()
    turns = sorted((each for each in found if each.trajectory_id == task), key=lambda each: each.turn_number)
    return [
        f"!{each.tool_calls[0].id}" if each.tool_calls else f"{marks[each.role]}{each.tool_call_id or ''}{each.text}"
        for each in turns
        if each.rolled_back_at is None
    ]


CASES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "the last answer anew": (["a", ">b", "c", ">d"], ["a", ">b", "c", ">D"], ["a", ">b", "c", ">D"]),
    "the only answer anew": (["a", ">b"], ["a", ">B"], ["a", ">B"]),
    "anew, and on": (["a", ">b", "c", ">d"], ["a", ">b", "c", ">D", "e", ">f"], ["a", ">b", "c", ">D", "e", ">f"]),
    "an answer in the middle": (["a", ">b", "c", ">d"], ["a", ">B", "c", ">d", "e"], ["a", ">B", "c", ">d", "e"]),
    "two answers": (["a", ">b", "c", ">d", "e"], ["a", ">B", "c", ">D", "e"], ["a", ">B", "c", ">D", "e"]),
    "with calls now": (["a", ">b", "c", ">d"], ["a", ">b", "c", "!c1", "<c1x", ">D"],
                       ["a", ">b", "c", "!c1", "<c1x", ">D"]),
    "without calls now": (["a", "!c1", "<c1x", ">b"], ["a", ">B"], ["a", "!c1", "<c1x", ">B"]),
    "another result": (["a", "!c1", "<c1x", ">b"], ["a", "!c1", "<c1y", ">B"], ["a", "!c1", "<c1y", ">B"]),
    "of a sliding part": (["a", ">b", "c", ">d", "e", ">f"], ["c", ">d", "e", ">F"], ["a", ">b", "c", ">d", "e", ">F"]),
    "a question cut out": (["a", ">b", "c", ">d", "e", ">f"], ["a", ">b", ">d", "e", ">f", "g"],
                           ["a", ">b", "c", ">d", "e", ">f", "g"]),
    "an answer cut out": (["a", ">b", "c", ">d"], ["a", "c", ">d", "e"], ["a", ">b", "c", ">d", "e"]),
    "the last answer cut out": (["a", ">b", "c", ">d"], ["a", ">b", "c", "e"], ["a", ">b", "c", ">d", "e"]),
    "the first message cut out": (["a", ">b", "c"], [">b", "c", ">d"], ["a", ">b", "c", ">d"]),
    "a pair cut out": (["a", ">b", "is it so", ">d", "is it not", ">f"], ["a", ">b", "is it not", ">f", "g"],
                       ["a", ">b", "is it so", ">d", "is it not", ">f", "g"]),
    # The conversation goes on otherwise.
    "another question late in a long talk": (["a", ">b", "c", ">d", "e", ">f"], ["a", ">b", "c", ">d", "E"],
                                             ["a", ">b", "c", ">d", "E"]),
    "an edited question": (["a", ">b", "Is it warm in Rome?", ">Yes.", "Good.", ">Is it?"],
                           ["a", ">b", "Is it warm in Oslo?", ">No."], ["a", ">b", "Is it warm in Oslo?", ">No."]),
    "an edited question far behind": (
        ["a", ">b", "Is it warm in Rome?", ">Yes.", *(f"{'>' * (at % 2)}{at}" for at in range(20))],
        ["a", ">b", "Is it warm in Oslo?"],
        ["a", ">b", "Is it warm in Oslo?"],
    ),
    "for another answer": (["a", ">b", "c", ">d"], ["a", ">b", "c"], ["a", ">b", "c"]),
    "for another answer, with calls": (["a", ">b", "c", "!c1", "<c1x", ">d"], ["a", ">b", "c"], ["a", ">b", "c"]),
    "another answer, and nothing behind": (["a", ">b", "c", ">d", "e", ">f"], ["a", ">b", "c", ">D"],
                                           ["a", ">b", "c", ">D"]),
    # What may be another conversation is one, and a call that was late takes no words of the user back.
    "earlier": (["a", ">b", "c", ">d", "e", ">f"], ["a", ">b", "c"], ["a", ">b", "c", ">d", "e", ">f"]),
    "begins alike": (["hi", ">hello", "a", ">b"], ["hi", ">hello", "c"],
                     ["hi", ">hello", "a", ">b", "hi", ">hello", "c"]),
    "the same question": (["a", ">b", "yes", ">c"], ["yes", ">d"], ["a", ">b", "yes", ">c", "yes", ">d"]),
    "nothing alike": (["a", ">b"], ["c", ">d"], ["a", ">b", "c", ">d"]),
}  # fmt: skip


def test_a_conversation_sent_again_is_stored_once(backend: Any) -> None:
    memory = backend.open()
    wrong = {}
    for name, (before, sent, expected) in CASES.items():
        ana = memory.acting_as(caliber.Principal.user(name))
        task = ana.start_trajectory("talk").trajectory_id
        ana.remember(talk(*before), task=task)
        learned = ana.remember(talk(*sent), task=task)
        if shown(memory, task) != expected or len(set(learned.turns)) != len(sent):
            wrong[name] = shown(memory, task)
        elif ana.remember(talk(*sent), task=task).turns != learned.turns or shown(memory, task) != expected:
            wrong[f"{name}, repeated"] = shown(memory, task)
    assert wrong == {}


def test_the_same_words_of_another_day_are_another_event(backend: Any) -> None:
    """Also without dates: an exchange that comes hours later is no repeated call, nor is a day that begins alike."""
    clock = FixedClock()
    memory = backend.open(clock=clock)
    parts = (["hi"], [">hi"], ["hi", ">hi", "Took my pill."], ["Took my pill."], [">Noted."], ["hi", ">hi", "Well."])
    for at, calls in enumerate([[part] for part in (*parts[:1], ["hi", ">hi"])] + [list(parts)]):
        ana = memory.acting_as(caliber.Principal.user(f"ana{at}"))
        days = []
        for _ in range(3):
            for part in calls:
                task = ana.remember(talk(*part)).trajectory_id
                assert ana.remember(talk(*part)).trajectory_id == task  # a call that is repeated
            days.append(shown(memory, task))
            clock.advance(ms=86_400_000)
        assert days == [days[0] * (day + 1) for day in range(3)]


def test_a_new_answer_is_found_and_shown_instead_of_the_old_one(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    task = ana.remember(talk(LIMA, ">Perhaps in Chile.", "Sure?")).trajectory_id
    old = ana.assemble_context(task)
    ana.remember(talk(LIMA, ">Yes, it is the capital.", "Sure?"))
    new = ana.assemble_context(task)
    assert "Chile" not in new.text
    assert "capital" in new.text
    assert not [hit for hit in ana.search("Chile").hits if "Chile" in hit.content]
    assert ana.search("capital").hits
    assert ana.replay(old.window_id).text == old.text


def test_answers_with_ids_are_replaced_by_place_or_id(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    sent = [{**each, "id": f"m{at}"} for at, each in enumerate(talk("a", ">b", "c", ">d"))]
    task = ana.remember(sent).trajectory_id
    edited = [*sent[:3], {**sent[3], "content": "D"}]
    anew = [*sent[:3], {"role": "assistant", "content": "another", "id": "m9"}]
    for messages, last in ((edited, ">D"), (anew, ">another"), (anew, ">another")):
        ana.remember(messages)
        assert shown(memory, task) == ["a", ">b", "c", last]
    with pytest.raises(Conflict):  # the user's own words do not change under an id
        ana.remember([{**sent[0], "content": "A"}, *anew[1:]])


def test_instructions_sent_with_each_call_are_one_message(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    sent = []
    for day in ("Monday", "Tuesday", "Tuesday"):
        sent += talk(f"said on {day}")
        lead = [{"role": "system", "content": "Be kind."}, {"role": "system", "content": f"Today is {day}."}]
        task = ana.remember([*lead, *sent, {"role": "system", "content": "Be kind."}]).trajectory_id
    system = [text for text in shown(memory, task) if text.startswith("#")]
    assert sorted(system) == ["#Be kind.", "#Be kind.", "#Today is Tuesday."]
    said = [each["content"] for each in ana.assemble_context(task).to_messages() if each.get("name") == "system"]
    assert sorted(said) == ["Be kind.", "Be kind.", "Today is Tuesday."]


def test_a_guest_replaces_no_words_of_the_host(backend: Any) -> None:
    memory = backend.open(clock=FixedClock())
    ana, ben = (memory.acting_as(caliber.Principal.user(name)) for name in ("ana", "ben"))
    task = ana.remember([{"role": "system", "content": "Be kind."}, *talk("a", ">b", "c", ">d")]).trajectory_id
    ana.access.grant(to="ben", on=task, right="write")
    ben.remember([{"role": "system", "content": "Be rude."}, *talk("a", ">b", "c", ">D")], task=task)
    assert shown(memory, task) == ["#Be kind.", "a", ">b", "c", ">d", "#Be rude.", ">D"]
    ben.remember(talk("a", ">b", "c"), task=task)
    assert shown(memory, task)[:5] == ["#Be kind.", "a", ">b", "c", ">d"]


def test_turns_behind_an_edited_question_leave_windows_and_searches(backend: Any) -> None:
    memory = backend.open(clock=FixedClock())
    ana = memory.acting_as(caliber.Principal.user("ana"))
    before = talk(LIMA, ">Yes.", "Is it warm in Rome?", ">It is pleasant near the fountain.", "And in May?")
    task = ana.remember(before).trajectory_id
    old = ana.assemble_context(task)
    ana.remember([*before[:2], *talk("Is it warm in Oslo?", ">No, bring a scarf.")])
    new = ana.assemble_context(task)
    assert not [word for word in ("Rome", "fountain", "May") if word in new.text]
    assert "scarf" in new.text
    assert not [hit for hit in ana.search("fountain Rome").hits if "Rome" in hit.content or "fountain" in hit.content]
    assert ana.replay(old.window_id).text == old.text
    assert memory.forget(user="ana").proven
