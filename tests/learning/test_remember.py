"""``remember``: messages become turns once, and facts about the user become notes, on every database.

It goes on with one task for all callers of a user: whom the task belongs to, and its last turns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from support.inspection import replaced

import caliber
import caliber.aio
from caliber.learning import learner, messages
from caliber.model import EntityRef
from caliber.model.errors import Conflict, InputError, InvalidValue, NotFound, RequiredFieldMissing
from caliber.model.jobs import JobState
from caliber.model.learning import Learned
from caliber.model.time import FixedClock, from_us

DAY = timedelta(days=1)


def said(*texts: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text, **fields} for text in texts]


def told(learned: Learned) -> list[tuple[str, str]]:
    return [(each.action.value, each.statement) for each in learned.decisions]


def facts(memory: caliber.Caliber, **options: Any) -> set[str]:
    """Return the contents of the notes that hold now."""
    found = memory.search("", kinds=["note"], limit=100, **options).hits
    return {hit.content for hit in found}


def turns(memory: caliber.Caliber, task: Any) -> list[tuple[str, str]]:
    scope = memory.current_scope(task)
    return [(turn.role.value, turn.text) for turn in memory.storage.turns.list_by_scope(scope.scope_id)]


def test_facts_of_a_user_are_learnt_as_notes(memory: caliber.Caliber) -> None:
    learned = memory.remember(said("Hi, I'm Maria. I live in Berlin and I'm allergic to nuts."), user="maria")
    assert told(learned) == [("add", "is called Maria"), ("add", "lives in Berlin"), ("add", "is allergic to nuts")]
    assert learned.state is JobState.DONE
    note = memory.get(learned.added[1].note_id)
    assert (note.entity, note.entity_type, note.note_type) == ("maria", "person", "fact")
    assert (note.trust, note.source_trajectory_ids) == ("user", (learned.trajectory_id,))


def test_a_fact_that_ends_while_messages_are_learnt_from_is_learnt_again(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock)
    note = memory.remember(said("I live in Berlin."), user="maria").added[0].note_id
    memory.update_note(note, valid_until=from_us(clock.now_us()) + timedelta(hours=1))

    def later(*arguments: Any) -> Any:
        clock.advance(us=7_200_000_000)
        return writer(*arguments)

    with replaced(learner, "Writer", later) as writer:
        learned = memory.remember(said("As I said, I live in Berlin."), user="maria")
    assert told(learned) == [("add", "lives in Berlin")]


def test_a_change_ends_the_old_fact_and_keeps_history(backend: Any) -> None:
    clock = FixedClock()
    memory = backend.open(clock=clock)
    memory.remember(said("I live in Berlin."), user="maria")
    before = from_us(clock.now_us())
    clock.advance(us=1_000_000)
    learned = memory.remember(said("I moved to Lisbon last month"), user="maria")
    (decision,) = learned.updated
    assert decision.statement == "lives in Lisbon"
    assert memory.get(decision.replaces).valid_until == memory.get(decision.note_id).valid_from
    assert facts(memory) == {"lives in Lisbon"}
    assert facts(memory, as_of=before) == {"lives in Berlin"}


def test_what_is_known_already_changes_nothing(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin."), user="maria")
    again = memory.remember(said("As I said, I live in Berlin."), user="maria")
    assert [(each.action.value, each.reason) for each in again.decisions] == [("nothing", "known already")]
    assert facts(memory) == {"lives in Berlin"}


def test_users_are_kept_apart(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin."), user="maria")
    learned = memory.remember(said("I moved to Lisbon."), user="bob")
    assert told(learned) == [("add", "lives in Lisbon")]
    assert facts(memory) == {"lives in Berlin", "lives in Lisbon"}
    as_bob = memory.acting_as(caliber.Principal.user("bob"))
    assert facts(as_bob) == {"lives in Lisbon"}


def test_only_the_user_teaches(memory: caliber.Caliber) -> None:
    messages = [
        {"role": "assistant", "content": "I live in Berlin."},
        {"role": "tool", "content": "I live in Rome.", "tool_call_id": "1"},
        {"role": "system", "content": "I live in Oslo."},
        {"role": "user", "content": "I live in Paris.", "trust": "web"},
    ]
    learned = memory.remember(messages, user="maria")
    assert (learned.learned_id, learned.decisions, len(learned.turns)) == (None, (), 4)
    assert facts(memory) == set()


# --- messages ------------------------------------------------------------------------------------


def test_messages_of_anthropic(memory: caliber.Caliber) -> None:
    learned = memory.remember(
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"in": "Rome"}},
                ],
            },
            {
                "role": "user",
                "id": "m2",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                    {"type": "text", "text": "Thanks"},
                ],
            },
        ],
        user="maria",
    )
    assert turns(memory, learned.trajectory_id) == [("assistant", "I look."), ("tool", "sunny"), ("user", "Thanks")]
    first, result, last = (memory.get(turn) for turn in learned.turns)
    assert first.tool_calls[0].arguments == '{"in": "Rome"}'
    assert (result.tool_call_id, result.idempotency_key, last.idempotency_key) == ("t1", "m2#0", "m2")


@pytest.mark.parametrize("messages", [
    {"role": "user", "content": "one message"},
    "text",
    [{"content": "no role"}],
    [{"role": "wizard", "content": "x"}],
    [{"role": "user"}],
    [{"role": "user", "content": 7}],
    [{"role": "user", "content": [{}]}],
    [{"role": "user", "content": "x", "id": 7}],
    [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": {1}}}]}],
    ["hello"],
    None,
])  # fmt: skip
def test_wrong_messages_are_refused(memory: caliber.Caliber, messages: Any) -> None:
    with pytest.raises(InputError):
        memory.remember(messages, user="maria")
    assert memory.storage.turns.count() == 0


# --- once ----------------------------------------------------------------------------------------


def test_a_message_with_an_id_is_appended_once(memory: caliber.Caliber) -> None:
    first = memory.remember(said("I live in Berlin.", id="m1"), user="maria")
    again = memory.remember(said("I live in Berlin.", id="m1"), user="maria")
    assert again == first
    with pytest.raises(Conflict):
        memory.remember(said("I live in Rome.", id="m1"), user="maria")
    assert turns(memory, first.trajectory_id) == [("user", "I live in Berlin.")]


def test_a_repeated_call_without_ids_appends_nothing(memory: caliber.Caliber) -> None:
    talk = [
        {"role": "system", "content": "Be kind."},
        *said("I live in Berlin."),
        {"role": "assistant", "content": "ok"},
    ]
    first = memory.remember(talk, user="maria")
    again = memory.remember(talk, user="maria")
    assert (again.learned_id, again.decisions) == (first.learned_id, first.decisions)
    assert len(turns(memory, first.trajectory_id)) == 3


def test_the_whole_conversation_may_come_each_time(memory: caliber.Caliber) -> None:
    talk: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    for text in ("Hello", "yes", "yes"):
        talk += said(text)
        task = memory.remember(talk, user="maria").trajectory_id
        talk.append({"role": "assistant", "content": "ok"})
    assert [text for _, text in turns(memory, task)] == ["Be kind.", "Hello", "ok", "yes", "ok", "yes"]


def test_a_sliding_part_of_the_conversation_may_come_each_time(memory: caliber.Caliber) -> None:
    texts = [f"message {at}" for at in range(6)]
    for at in range(1, 7):
        task = memory.remember(said(*texts[max(0, at - 3) : at]), user="maria").trajectory_id
    assert [text for _, text in turns(memory, task)] == texts


def test_the_same_words_later_are_another_message(memory: caliber.Caliber) -> None:
    memory.remember(said("Hello"), user="m")
    for _ in range(2):
        task = memory.remember(
            [*said("yes"), {"role": "assistant", "content": "ok"}, *said("no")], user="m"
        ).trajectory_id
        memory.remember([{"role": "assistant", "content": "well"}], user="m")
    assert [text for _, text in turns(memory, task)] == ["Hello", *["yes", "ok", "no", "well"] * 2]


# --- tasks ---------------------------------------------------------------------------------------


def test_the_task_of_the_user_goes_on(memory: caliber.Caliber) -> None:
    begun = memory.start_trajectory("Talk", user="maria")
    assert memory.remember(said("Hello"), user="maria").trajectory_id == begun.trajectory_id
    assert memory.remember(said("Hello"), user="bob").trajectory_id != begun.trajectory_id
    memory.complete_trajectory(begun.trajectory_id, status="success", summary="")
    assert memory.remember(said("Hello"), user="maria").trajectory_id != begun.trajectory_id


def test_a_task_may_be_named(memory: caliber.Caliber) -> None:
    first, _ = memory.start_trajectory("One", user="maria"), memory.start_trajectory("Two", user="maria")
    learned = memory.remember(said("I live in Berlin."), task=first.trajectory_id)
    assert learned.trajectory_id == first.trajectory_id
    assert memory.get(learned.added[0].note_id).entity == "maria"
    with pytest.raises(NotFound):
        memory.remember(said("Hello"), task=learned.learned_id)


# --- behind --------------------------------------------------------------------------------------


def test_learning_may_happen_behind_the_call(backend: Any) -> None:
    memory = backend.open(jobs__poll_ms=0)
    begun = memory.remember(said("I live in Berlin."), user="maria", wait=False)
    assert (begun.state, begun.decisions) == (JobState.WAITING, ())
    assert facts(memory) == set()
    memory.jobs.run_due()
    learned = memory.learning.get(begun.learned_id)
    assert (learned.state, told(learned)) == (JobState.DONE, [("add", "lives in Berlin")])


def test_the_same_call_waits_for_what_is_learnt_behind(backend: Any) -> None:
    memory = backend.open(jobs__poll_ms=0)
    begun = memory.remember(said("I live in Berlin."), user="maria", wait=False)
    again = memory.remember(said("I live in Berlin."), user="maria")
    assert (again.learned_id, told(again)) == (begun.learned_id, [("add", "lives in Berlin")])
    assert memory.jobs.run_due() == 0


# --- undo ----------------------------------------------------------------------------------------


def test_a_batch_is_undone_in_one_call(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin. My dog is called Rex."), user="maria")
    learned = memory.remember(said("I moved to Lisbon. Actually, my dog is called Max. I love jazz."), user="maria")
    assert facts(memory) == {"lives in Lisbon", "dog is called Max", "likes jazz"}
    undone = memory.learning.undo(learned.learned_id)
    assert undone.undone
    assert facts(memory) == {"lives in Berlin", "dog is called Rex"}
    assert memory.learning.undo(learned.learned_id) == undone
    assert told(memory.remember(said("I moved to Porto."), user="maria")) == [("update", "lives in Porto")]
    assert told(memory.remember(said("My dog is called Rex."), user="maria")) == [("nothing", "My dog is called Rex.")]


def test_undo_refuses_where_a_fact_was_corrected_since(memory: caliber.Caliber) -> None:
    learned = memory.remember(said("I live in Berlin. I love jazz."), user="maria")
    memory.update_note(learned.added[0].note_id, content="lives in Bergen")
    with pytest.raises(Conflict, match="corrected since"):
        memory.learning.undo(learned.learned_id)
    assert facts(memory) == {"lives in Bergen", "likes jazz"}


def test_nobody_else_undoes_what_a_user_taught(memory: caliber.Caliber) -> None:
    learned = memory.remember(said("I live in Berlin."), user="maria")
    with pytest.raises(NotFound):
        memory.acting_as(caliber.Principal.user("bob")).learning.undo(learned.learned_id)
    assert memory.acting_as(caliber.Principal.user("maria")).learning.undo(learned.learned_id).undone


def test_a_user_teaches_about_nobody_else_in_a_task_of_theirs(memory: caliber.Caliber) -> None:
    ana, ben = (memory.acting_as(caliber.Principal.user(name)) for name in ("ana", "ben"))
    ana.remember(said("I'm allergic to penicillin."))
    task = ana.start_trajectory("plan a trip").trajectory_id
    with pytest.raises(NotFound):
        ben.remember(said("I live in Berlin."), task=task)
    application = memory.acting_as(caliber.Principal.application())
    with pytest.raises(NotFound, match="was not found for ben"):
        application.remember(said("I live in Berlin."), task=task, user="ben")
    ana.access.grant(to="ben", on=task, right="write")
    guessed = ben.remember(said("I'm allergic to penicillin.", "I'm no longer allergic to penicillin."), task=task)
    assert {each.note_id for each in guessed.added} <= {
        note.note_id for note in memory.storage.notes.find_by_entity("ben", "person")
    }
    assert facts(ana) == {"is allergic to penicillin"}
    application.remember(said("I live in Berlin."), task=task, user="ben")
    assert facts(ben) == {"lives in Berlin"}


def test_a_user_may_correct_what_was_learnt(memory: caliber.Caliber) -> None:
    learned = memory.remember(said("I live in Berlin."), user="maria")
    as_maria = memory.acting_as(caliber.Principal.user("maria"))
    assert as_maria.end_note(learned.added[0].note_id).valid_until is not None
    assert told(memory.remember(said("I live in Berlin."), user="maria"))


# --- people --------------------------------------------------------------------------------------


def test_merged_users_have_one_set_of_facts(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin."), user="guest-17")
    memory.remember(said("I love jazz."), user="maria")
    memory.identities.merge("guest-17", into="maria")
    learned = memory.remember(said("I moved to Lisbon."), user="maria")
    assert told(learned) == [("update", "lives in Lisbon")]


def test_old_messages_do_not_end_what_is_newer(memory: caliber.Caliber) -> None:
    memory.remember(said("I live in Berlin."), user="maria")
    long_ago = datetime.now(UTC) - 300 * DAY
    learned = memory.remember(said("I live in Rome.", occurred_at=long_ago), user="maria")
    assert [each.reason for each in learned.ignored] == ["older than what is known"]
    assert facts(memory) == {"lives in Berlin"}


T = TypeVar("T")
CALLERS = 4


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
