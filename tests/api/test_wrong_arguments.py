"""Arguments of the wrong type or value are typed errors everywhere. Source: issue, Bad input; C-028 to C-092."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.configs import USER, config

import caliber
from caliber import EntityRef, Principal
from caliber.api.caliber import Caliber
from caliber.model.errors import DTypeError, InputError, InvalidValue


@pytest.fixture(scope="module")
def memory() -> Iterator[Caliber]:
    with caliber.open(config(":memory:")) as opened:
        yield opened


@pytest.fixture(scope="module")
def task(memory: Caliber) -> uuid.UUID:
    return memory.start_trajectory("g", initiator=USER).trajectory_id


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "initiator=EntityRef(user, text)": lambda m, t: m.start_trajectory("g", initiator=EntityRef("user", "text")),
    "initiator=EntityRef(nobody, id)": lambda m, t: m.start_session(initiator=EntityRef("nobody", uuid.uuid4())),
    "forget(text)": lambda m, t: m.forget(entity="user"),
    "forget(EntityRef(user, 5))": lambda m, t: m.forget(entity=EntityRef("user", 5)),
    "append_turns(None)": lambda m, t: m.append_turns(m.current_scope(t).scope_id, None),
    "append_turns(dict)": lambda m, t: m.append_turns(m.current_scope(t).scope_id, {"role": "user"}),
    "extra_sections=text": lambda m, t: m.assemble_context(t, extra_sections="abc"),
    "extra_sections={1: …}": lambda m, t: m.assemble_context(t, extra_sections={1: "a"}),
    "consistency=maybe": lambda m, t: m.assemble_context(t, consistency="maybe"),
    "search consistency=5": lambda m, t: m.search("a", consistency=5),
    "filter=[1]": lambda m, t: m.search("a", filter=[1]),
    "search_many(text)": lambda m, t: m.search_many("abc"),
    "search_many(None)": lambda m, t: m.search_many(None),
    "acting_as(text)": lambda m, t: m.acting_as("bob"),
    "acting_as(kind)": lambda m, t: m.acting_as(Principal("robot", "bob")),
    "acting_as(role)": lambda m, t: m.acting_as(Principal("agent", "bob", "boss")),
    "subscribe(5)": lambda m, t: m.events.subscribe(5),
    "release(text)": lambda m, t: m.agents.locks.release("r", holder="me"),
    "renew(text)": lambda m, t: m.agents.locks.renew("r", holder="me", lease_ms=5),
    "storage limit=text": lambda m, t: m.storage.trajectories.list_by_status("active", limit="a"),
    "storage limit=-1": lambda m, t: m.storage.trajectories.list_by_status("active", limit=-1),
    "open principal": lambda m, t: caliber.open(config(":memory:"), principal="me"),
    "open embedding": lambda m, t: caliber.open(config(":memory:"), embedding_provider=5),
    "open summarization": lambda m, t: caliber.open(config(":memory:"), summarization_provider=5),
    "open clock": lambda m, t: caliber.open(config(":memory:"), clock=5),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_is_an_input_error(
    memory: Caliber, task: uuid.UUID, call: Callable[[Any, Any], object]
) -> None:
    with pytest.raises(InputError) as caught:
        call(memory, task)
    assert isinstance(caught.value, DTypeError | InvalidValue)


def test_a_principal_may_be_named_by_text(memory: Caliber) -> None:
    """Enums compare equal to their text, so their text has to do as well."""
    agent = memory.acting_as(Principal("agent", "planner", "executor"))
    assert repr(agent.principal.label) == "'agent:planner'"
    note = agent.add_note(entity="e", entity_type="t", note_type="fact", content="c", confidence=1.0)
    assert agent.get(note.note_id).content == "c"


def test_type_and_id_of_an_entity_may_be_given_as_text(memory: Caliber) -> None:
    who = uuid.uuid4()
    task = memory.start_trajectory("g", initiator=EntityRef("user", str(who)))  # type: ignore[arg-type]
    assert memory.get(task.trajectory_id).initiator == EntityRef(caliber.EntityType.USER, who)
