"""Values of subclasses (NumPy's texts and numbers, an HTML library's strings) are kept as plain ones, or refused."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import time
import uuid
from typing import Any

import numpy as np
import pytest

from caliber.model import EntityRef, EntityType, Principal, PrincipalKind
from caliber.model.agents import LockToken
from caliber.model.errors import InputError

pytestmark = pytest.mark.databases("one")


class Lying(str):
    """A text whose methods say something else than it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True

    def __len__(self) -> int:
        return 3

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"another"

    def strip(self, *_: Any) -> str:
        raise RuntimeError("not expected to be asked")


class Number(enum.IntEnum):
    FIVE = 5


class Later(datetime.datetime):
    def isoformat(self, *_: Any, **__: Any) -> str:
        return "never"


class Id(uuid.UUID):
    pass


WHEN = Later(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", [np.str_, Lying])
def test_texts_of_a_subclass_are_kept_as_they_read(text: Any, backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    me = EntityRef(EntityType.AGENT, Id(int=uuid.uuid4().int))
    task = memory.start_trajectory(text("the goal"), initiator=me, tags=[text("tag")])
    scope = memory.current_scope(task.trajectory_id).scope_id
    said = memory.append_turn(
        scope,
        role=text("user"),
        content=text("hello there"),
        name=text("bob"),
        idempotency_key=text("key"),
        model_id=text("model"),
        occurred_at=WHEN,
    )
    calls = [{"id": text("c1"), "function": {"name": text("look"), "arguments": text("{}")}}]
    asked = memory.append_turn(scope, role="assistant", content="looking", tool_calls=calls)
    answered = memory.append_turn(scope, role="tool", content="found", tool_call_id=text("c1"))
    note = memory.add_note(
        entity=text("Pixel"),
        entity_type=text("dog"),
        note_type=text("fact"),
        content=text("Pixel is a dog."),
        confidence=np.float64(0.5),
        importance=Number.FIVE,
        namespace=text("pets"),
        tags=[text("brown")],
    )
    kept = memory.create_artifact(
        scope,
        artifact_type="design_decision",
        content=text("decide"),
        extraction_method="explicit",
        schema_version=text("v1"),
        idempotency_key=text("k"),
        ttl=text("persistent"),
    )
    assert memory.append_turn(scope, role="user", content="hello there", name="bob", idempotency_key="key",
                              model_id="model", occurred_at=WHEN).turn_id == said.turn_id  # fmt: skip
    handles = [memory]
    if backend.has("reopen"):
        handles.append(backend.open(backend.config(embedding_provider=None)))
    for handle in handles:
        turn = handle.get(said.turn_id)
        assert (turn.content, turn.name, turn.model_id) == (b"hello there", "bob", "model")
        assert type(turn.name) is str
        assert [(call.id, call.name) for call in handle.get(asked.turn_id).tool_calls] == [("c1", "look")]
        assert handle.get(answered.turn_id).tool_call_id == "c1"
        got = handle.get(note.note_id)
        assert (got.entity, got.entity_type, got.namespace) == ("Pixel", "dog", "pets")
        assert (got.content, got.tags, got.importance) == ("Pixel is a dog.", ("brown",), 5.0)
        assert (handle.get(kept.artifact_id).content, handle.get(kept.artifact_id).schema_version) == (b"decide", "v1")
        assert handle.get(task.trajectory_id).goal == "the goal"
        assert handle.admin.verify() == []
        assert len(handle.records("note").find(entity=np.str_("Pixel"))) == 1
        window = handle.assemble_context(task.trajectory_id, query=text("Pixel dog"))
        assert "bob" in window.text
        assert "hello there" in window.text
        assert window.to_messages()
    memory.append_turn(scope, role="user", content=text("We decided on 3 May that the dog is called Pixel."))
    summary = memory.close_scope(scope).summary
    assert "3 May" in summary
    assert "b'" not in summary


@pytest.mark.parametrize("value", [np.str_("bob"), Lying("bob")])
def test_a_row_with_a_text_that_is_not_plain_is_refused(value: Any, backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    task = memory.start_trajectory("goal", initiator=EntityRef(EntityType.AGENT, uuid.uuid4()))
    turn = memory.append_turn(memory.current_scope(task.trajectory_id).scope_id, role="user", content="hello")
    odd = dataclasses.replace(turn, turn_id=uuid.uuid4(), sequence=7, name=value)
    with pytest.raises(InputError, match="plain"):
        memory.storage.turns.insert(odd)
    assert memory.storage.turns.count() == 1


def test_marks_that_pile_up_take_no_time(agent: Any) -> None:
    """Ordering the marks of one character takes time by their square: 200,000 of them took minutes."""
    agent.note("the lake is deep", entity="Lake")
    piled = "a" + "\u0301\u0323" * 100_000
    began = time.process_time()
    agent.say(f"the lake {piled} again")
    agent.note(f"the lake {piled} again", entity="Lake")
    agent.note(f"the lake {piled} again and again", entity="Lake")
    assert agent.memory.search(f"lake {piled}").hits
    assert agent.memory.assemble_context(agent.trajectory_id, query="lake").used_tokens
    assert agent.memory.forget(texts=("Ada Lovelace",)).proven
    assert time.process_time() - began < 20


def test_locks_of_subclass_texts_exclude(backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    holder = Principal(PrincipalKind.AGENT, np.str_("boss")).label
    lock = memory.agents.locks.acquire(np.str_("vault"), holder=np.str_(holder), lease_ms=Number.FIVE * 10_000)
    assert memory.agents.locks.held(np.str_("vault"))[0].holder == holder
    assert memory.agents.locks.release(LockToken(np.str_("vault"), lock.token), holder=np.str_(holder))


def test_who_has_locks_cannot_choose_who_they_are(backend: Any) -> None:
    memory = backend.open(backend.config(embedding_provider=None))
    boss, spy = (memory.acting_as(Principal("agent", name)) for name in ("boss", "spy"))
    boss.agents.locks.acquire("vault", holder="agent:boss")
    public = [getattr(spy.agents.locks, name) for name in dir(spy.agents.locks) if not name.startswith("_")]
    names = ["acquire", "break_lock", "held", "hold", "list", "reap", "release", "renew", "waiting"]
    assert sorted(each.__name__ for each in public) == names
    assert spy.agents.locks.held("vault") == []
