"""The task that ``remember`` goes on with: one for all callers of a user, whom it belongs to, and its last turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

import caliber
import caliber.aio
from caliber.learning import messages
from caliber.model import EntityRef
from caliber.model.errors import InvalidValue, RequiredFieldMissing

T = TypeVar("T")
CALLERS = 4


def said(*texts: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, **fields} for text in texts]


def stored(memory: caliber.Caliber) -> list[str]:
    """Return the texts of all turns of the store."""
    return sorted(turn.text for turn in memory.acting_as(caliber.Principal.admin()).storage.turns.all())


def together(monkeypatch: pytest.MonkeyPatch, calls: list[Callable[[], T]]) -> list[T]:
    """Run calls in threads; each starts a conversation only once all of them have found none."""
    barrier = threading.Barrier(len(calls))
    start = messages.Conversations.start

    def late(self: Any, *arguments: Any) -> Any:
        barrier.wait(60)
        return start(self, *arguments)

    monkeypatch.setattr(messages.Conversations, "start", late)
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def test_first_messages_of_a_user_at_once_are_one_conversation(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = backend.open()
    other = backend.open() if backend.has("reopen") else one
    handles = [one, other] * 2  # two writers of one store, with two threads each
    message = said("I like tea.", id="m1")
    learned = together(monkeypatch, [lambda each=each: each.remember(message, user="dan") for each in handles])
    assert len({each.trajectory_id for each in learned}) == 1
    assert len({each.turns for each in learned}) == 1
    assert stored(one) == ["I like tea."]


def test_first_messages_that_are_gathered_are_one_conversation(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = backend.config(aio__workers=CALLERS)
    backend.create(settings)
    barrier = threading.Barrier(3)
    start = messages.Conversations.start

    def late(self: Any, *arguments: Any) -> Any:
        barrier.wait(60)
        return start(self, *arguments)

    monkeypatch.setattr(messages.Conversations, "start", late)
    texts = ["I am vegan.", "I live in Porto.", "My dog is called Pixel."]

    async def gathered() -> set[Any]:
        async with await caliber.aio.open(settings) as memory:
            mine = memory.acting_as(caliber.Principal.user("zoe"))
            learned = await asyncio.gather(*(mine.remember(said(text)) for text in texts))
            return {each.trajectory_id for each in learned}

    assert len(asyncio.run(gathered())) == 1
    if backend.has("reopen"):
        assert stored(backend.open()) == texts


def test_messages_of_a_user_do_not_go_into_a_task_that_all_may_see(backend: Any) -> None:
    memory = backend.open()
    bot, ana = (memory.acting_as(who) for who in (caliber.Principal.agent("bot"), caliber.Principal.user("ana")))
    shared = bot.start_trajectory("shared", initiator=EntityRef.agent("bot")).trajectory_id
    application = memory.acting_as(caliber.Principal.application())
    for call in (
        lambda: ana.remember(said("My PIN is 9999."), task=shared),
        lambda: application.remember(said("My PIN is 9999."), task=shared, user="ana"),
        lambda: application.remember(said("My PIN is 9999."), task=shared),
        lambda: bot.remember(said("My PIN is 9999."), task=shared, user="ana"),
    ):
        with pytest.raises(InvalidValue, match=r"everybody may see.*start_trajectory\(user="):
            call()
    assert stored(memory) == []
    with pytest.raises(RequiredFieldMissing, match="user is required"):
        bot.remember(said("My PIN is 9999."))
    own = bot.start_trajectory("for ana", user="ana").trajectory_id
    application.remember(said("My PIN is 9999."), task=own)
    assert not memory.acting_as(caliber.Principal.user("ben")).search("PIN").hits


def test_an_agent_starts_another_conversation_where_it_may_not_go_on(backend: Any) -> None:
    memory = backend.open()
    ana, bot = (memory.acting_as(who) for who in (caliber.Principal.user("ana"), caliber.Principal.agent("bot")))
    private = ana.remember(said("I live in Porto.")).trajectory_id
    first = bot.remember(said("I like tea."), user="ana").trajectory_id
    assert first != private
    assert bot.remember(said("I like jazz."), user="ana").trajectory_id == first
    assert ana.search("tea").hits


def test_a_conversation_sent_again_after_its_scope_closed_adds_nothing(backend: Any) -> None:
    memory = backend.open()
    ana = memory.acting_as(caliber.Principal.user("ana"))
    talk = [*said("I'm allergic to nuts."), {"role": "assistant", "content": "Noted."}]
    learned = ana.remember(talk)
    sent = list(learned.turns)
    for number in range(3):
        ana.close_scope(ana.current_scope(learned.trajectory_id).scope_id)
        assert list(ana.remember(talk).turns) == sent
        talk += said(f"And {number}.")
        sent = list(ana.remember(talk).turns)
    assert stored(memory) == sorted(each["content"] for each in talk)


def test_what_others_say_in_a_conversation_teaches_nothing_about_the_user(backend: Any) -> None:
    memory = backend.open()
    about = {"user": "maria@example.com"}
    assert memory.remember(said("I live in Lisbon.", name="Maria@example.com"), **about).decisions
    assert not memory.remember(said("I live in Oslo.", name="bob"), **about).decisions
    assert memory.remember(said("I live in Rome.", name="Maria"), **about).decisions == ()
    assert memory.remember(said("I live in Bonn.", name="bob\x07"), **about).decisions == ()
    memory.identities.add("Maria", "maria@example.com")
    (moved,) = memory.remember(said("I live in Bergen.", name="maria"), **about).decisions
    assert moved.statement == "lives in Bergen"
