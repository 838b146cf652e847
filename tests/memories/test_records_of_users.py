"""Records of declared memories that a user inserts without a task are that user's: read so, and forgotten so."""

from __future__ import annotations

from typing import Any

import pytest
from support.memories import FACT, STEP

from caliber.model import Principal
from caliber.model.errors import Conflict, NotFound

WORDS = {**FACT, "indexes": [{"field": "subject", "type": "btree"}, {"field": "content", "type": "gin"}]}
REMARK = {
    "name": "remark",
    "type": "episodic",
    "fields": [{"name": "content", "type": "text"}],
    "retention": {"kind": "persistent"},
    "parent": "note",
}
LISBON = {"subject": "home", "kind": "claim", "content": "lives in Lisbon"}


@pytest.fixture(params=["resident", "backend"])
def memory(backend: Any, request: Any) -> Any:
    return backend.open(memories=[WORDS, STEP, REMARK], search__mode=request.param).acting_as(Principal.application())


def _as(memory: Any, user: str) -> Any:
    return memory.acting_as(Principal.user(user))


def _read_by(memory: Any, name: str = "fact") -> set[str]:
    """Return which of four principals find a record of a memory."""
    admin = memory.acting_as(Principal.admin())
    handles = {"ada": _as(memory, "ada"), "ben": _as(memory, "ben"), "application": memory, "admin": admin}
    return {who for who, handle in handles.items() if handle.records(name).find()}


def test_a_record_of_a_user_is_that_users_until_it_is_forgotten(memory: Any) -> None:
    ada, ben = _as(memory, "ada"), _as(memory, "ben")
    made = ada.records("fact").insert(LISBON)
    ben.records("fact").insert(LISBON | {"content": "lives in Rome"})
    assert [each.content for each in ada.records("fact").find()] == ["lives in Lisbon"]
    assert ben.records("fact").count() == 1
    assert not memory.records("fact").find()
    assert memory.records("fact", user="ada").find() == [made] == [ada.get(made.record_id)]
    for call in (ben.get, ben.records("fact").get, ben.records("fact").archive, ben.records("fact").delete):
        with pytest.raises(NotFound):
            call(made.record_id)
    assert not memory.search("Lisbon").hits
    for handle, found in ((ada, 1), (ben, 0)):
        assert sum(hit.id == made.record_id for hit in handle.search("Lisbon").hits) == found
        task = handle.start_trajectory("Where is Lisbon?").trajectory_id
        assert ("lives in Lisbon" in handle.assemble_context(task, query="lives in Lisbon").text) == found

    assert ada.records("fact").update(made.record_id, content="lives in Porto").visible_to == made.visible_to
    report = memory.forget(user="ada")

    assert report.proven, report.remaining
    admin = memory.acting_as(Principal.admin())
    assert [each.content for each in admin.records("fact").find()] == ["lives in Rome"]


def test_a_record_for_a_user_is_that_users(memory: Any) -> None:
    memory.records("fact", user="ada").insert_many([LISBON])
    assert _read_by(memory) == {"ada", "admin"}
    memory.acting_as(Principal.agent("planner")).records("fact", user="ada").insert(LISBON)
    assert len(_as(memory, "ada").records("fact").find()) == 2
    assert memory.acting_as(Principal.agent("planner")).records("fact").count() == 1
    assert memory.forget(user="ada").proven
    assert _read_by(memory) == set()


def test_a_record_below_another_has_its_readers(memory: Any) -> None:
    fact = _as(memory, "ada").records("fact").insert(LISBON)
    memory.records("step", user="ada").insert(position=1, parent=fact.record_id)
    note = memory.add_note(entity="tea", entity_type="thing", content="green", confidence=0.9, user="ada")
    memory.records("remark", user="ada").insert(content="since May", parent=note.note_id)
    assert _read_by(memory, "step") == _read_by(memory, "remark") == {"ada", "admin"}
    shared = memory.records("fact").insert(LISBON)
    _as(memory, "ada").records("step").insert(position=2, parent=shared.record_id)
    assert [each.position for each in _as(memory, "ben").records("step").find()] == []


def test_a_record_of_a_users_session_is_that_users(memory: Any) -> None:
    session = memory.start_session(user="ada")
    memory.records("fact").insert(LISBON, session=session.session_id)
    assert _read_by(memory) == {"ada", "admin"}


def test_records_of_tasks_and_of_the_application_stay_as_they_were(memory: Any) -> None:
    ada = _as(memory, "ada")
    task = ada.start_trajectory("a trip").trajectory_id
    made = ada.records("fact").insert(LISBON, trajectory=task)
    assert made.visible_to is None
    assert _read_by(memory) == {"ada", "admin"}
    assert memory.records("fact").update(made.record_id, score=0.5).score == 0.5, "the application serves all users"
    assert memory.records("fact").find(trajectory_id=task)
    memory.records("fact").insert(LISBON | {"subject": "city"})
    assert _read_by(memory) == {"ada", "ben", "application", "admin"}


def test_a_key_that_another_user_used_gives_away_nothing(memory: Any) -> None:
    ada, ben = _as(memory, "ada").records("fact"), _as(memory, "ben").records("fact")
    made = ada.insert(LISBON, idempotency_key="first")
    assert ada.insert(LISBON, idempotency_key="first") == made
    with pytest.raises(Conflict, match="take another"):
        ben.insert(LISBON, idempotency_key="first")


def test_a_name_that_was_merged_keeps_its_records(memory: Any) -> None:
    _as(memory, "ada").records("fact").insert(LISBON)
    memory.acting_as(Principal.admin()).identities.merge("ada", into="ada@example.org")
    assert _as(memory, "ada@example.org").records("fact").count() == 1
    assert memory.forget(user="ada@example.org").proven
    assert _read_by(memory) == set()
