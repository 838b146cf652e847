"""Declared memories as relations of their own: created, opened, written, mirrored."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.memories import AT, FACT, STEP, record

import caliber
from caliber.kernels import uuid7
from caliber.model.errors import Conflict, NotFound, SchemaMismatch
from caliber.model.time import from_us
from caliber.resident.predicates import mask
from caliber.schema.predicate import All, Comparison, Operator


def test_a_declared_memory_is_a_relation_of_its_own(backend: Any) -> None:  # C-130, C-132, K-060
    memory = backend.open(memories=[FACT, STEP])
    store, resident = inspect(memory).store, inspect(memory).resident
    fact = store.catalog.memories["fact"].relation
    assert fact.name == "memory_fact"
    assert store.catalog.by_code[fact.code] is fact
    made = record(store.catalog, "fact", subject="Ada", content="wrote the first program", kind="claim", score=0.5)
    ordinal = inspect(memory).write(lambda uow: uow.insert(fact, made))
    snapshot = resident.snapshot[fact.name]
    row = snapshot.find(made.record_id.bytes)
    assert resident.entity(snapshot, row) == made
    assert snapshot.row(row)[0] == ordinal
    assert memory.get(made.record_id) == made
    with store.read() as session:
        stored = session.run(store.plans[fact.name].get, (made.record_id.bytes,))
    assert store.plans[fact.name].codec.decode(stored[0]) == made

    def change(uow: Any) -> Any:
        return uow.update(fact, dataclasses.replace(uow.get(fact, made.record_id.bytes), content="an algorithm"))

    changed = inspect(memory).write(change)
    assert changed.version == 2
    assert memory.get(made.record_id).content == "an algorithm"
    with store.read() as session:
        kept = session.run(store.statements["content.at"], (fact.name, ordinal, 1))
    assert "wrote the first program" in kept[0][0]
    assert inspect(memory).resident.verify() == []
    inspect(memory).write(lambda uow: uow.delete(fact, uow.get(fact, made.record_id.bytes)))
    with pytest.raises(NotFound):
        memory.get(made.record_id)


@needs("reopen")
def test_records_are_found_again_after_reopening(backend: Any) -> None:  # C-130
    settings = backend.config(memories=[FACT, STEP])
    with backend.open(settings) as memory:
        store = inspect(memory).store
        fact, step = (store.catalog.memories[name].relation for name in ("fact", "step"))
        first = record(store.catalog, "fact", subject="Ada", content="x", kind="claim")
        second = record(store.catalog, "step", parent_id=first.record_id, position=3)
        inspect(memory).write(lambda uow: (uow.insert(fact, first), uow.insert(step, second)))
    memory = backend.open(settings)
    assert memory.get(first.record_id) == first
    assert memory.get(second.record_id) == second

    def remove(uow: Any) -> None:
        uow.delete(fact, uow.get(fact, first.record_id.bytes))

    inspect(memory).write(remove)  # what belongs to it goes with it, from the mirror too
    assert inspect(memory).resident.snapshot["memory_step"].count() == 0
    assert inspect(memory).resident.verify() == []


@needs("reopen")
def test_a_configuration_that_says_more_than_the_store_is_told_to_migrate(backend: Any) -> None:  # C-130, C-132
    backend.open(memories=[FACT]).close()
    with pytest.raises(SchemaMismatch, match=r"no memory step, .* run `caliber db migrate"):
        caliber.open(backend.config(memories=[FACT, STEP]))
    wider = {**FACT, "fields": [*FACT["fields"], {"name": "place", "type": "text", "optional": True}]}
    with pytest.raises(SchemaMismatch, match="memory fact has no field place"):
        caliber.open(backend.config(memories=[wider]))
    with caliber.open(backend.config()) as memory:  # what the store has beside it is no fault
        assert list(inspect(memory).store.catalog.memories) == ["fact"]


def test_filters_over_values_that_are_missing(backend: Any) -> None:  # K-064
    memory = backend.open(memories=[FACT])
    store = inspect(memory).store
    fact = store.catalog.memories["fact"].relation
    values: list[dict[str, Any]] = [
        {},
        {"score": -1.7976931348623157e308, "count": -(2**63) + 1, "certain": False, "seen_at": from_us(0)},
        {"score": 0.0, "count": 0, "certain": True, "seen_at": from_us(10)},
    ]
    rows = [record(store.catalog, "fact", subject=f"s{at}", kind="claim", **v) for at, v in enumerate(values)]
    inspect(memory).write(lambda uow: [uow.insert(fact, row) for row in rows])
    snapshot = inspect(memory).resident.snapshot[fact.name]

    def found(*comparisons: tuple[str, Operator, Any]) -> list[int]:
        parts = tuple(Comparison(*item) for item in comparisons)
        predicate = parts[0] if len(parts) == 1 else All(parts)
        chosen = mask(predicate, snapshot, {}, inspect(memory).resident.texts)
        return [at for at, row in enumerate(rows) if chosen[snapshot.find(row.record_id.bytes)]]

    for name, low, high in (("score", -1e308, 0.0), ("count", -5, 0)):
        assert found((name, Operator.EQUAL, None)) == [0]
        assert found((name, Operator.UNEQUAL, high)) == [1]
        assert found((name, Operator.LESS, low)) == [1]
        assert found((name, Operator.AT_LEAST, low)) == [2]
    assert found(("certain", Operator.UNEQUAL, True)) == [1]
    assert found(("certain", Operator.EQUAL, None)) == [0]
    assert found(("seen_at", Operator.LESS, from_us(5))) == [1]
    assert found(("kind", Operator.EQUAL, "claim"), ("subject", Operator.EQUAL, "s2")) == [2]


def test_members_of_an_enum_are_called_as_their_values(backend: Any) -> None:
    values = ["open", "in progress", "in-progress", "in_progress_2", "1st", "§", "größe"]
    task = {"name": "task", "type": "semantic", "fields": [{"name": "state", "type": "enum", "values": values}]}
    tasks = backend.open(memories=[task]).records("task")
    made = tasks.insert(state="in-progress")
    names = [member.name for member in type(made.state)]
    assert names == ["OPEN", "IN_PROGRESS", "IN_PROGRESS_2", "IN_PROGRESS_2_2", "VALUE_1ST", "VALUE", "GRÖSSE"]
    assert [member.value for member in type(made.state)] == values
    assert made.state is type(made.state).IN_PROGRESS_2
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_record_shows_what_people_read_of_it(backend: Any, start: Any) -> None:
    agent = start(backend.open(memories=[FACT]))
    fact = agent.memory.records("fact").insert(subject="Ada", content="x", kind="claim")
    shown = [repr(item) for item in (fact, agent.note("Ada likes tea"), agent.keep("a patch"))]
    assert all("content_hash" not in text for text in shown), shown
    assert "CLAIM" in shown[0]
    assert agent.memory.get(fact.record_id).content_hash == fact.content_hash


def test_a_record_is_copied_and_pickled(backend: Any) -> None:  # C-132
    memory = backend.open(memories=[FACT])
    made = record(inspect(memory).store.catalog, "fact", subject="Ada", kind="rumour", about={"a": [1, None]})
    assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))
    assert made.kind == "rumour"
    assert type(pickle.loads(pickle.dumps(made.kind))) is type(made.kind)


def test_the_same_key_twice_is_refused(backend: Any) -> None:
    memory = backend.open(memories=[FACT])
    catalog = inspect(memory).store.catalog
    fact = catalog.memories["fact"].relation
    first = record(catalog, "fact", subject="Ada", kind="claim", idempotency_key="once")
    inspect(memory).write(lambda uow: uow.insert(fact, first))
    with pytest.raises(Conflict):
        inspect(memory).write(lambda uow: uow.insert(fact, dataclasses.replace(first, record_id=uuid7())))


def test_a_memory_may_be_called_as_what_there_is(backend: Any) -> None:
    shape = {"type": "meta", "fields": [{"name": "select", "type": "text"}], "retention": {"kind": "persistent"}}
    names = ("type", "notes", "memory_notes", "memory_memory_notes", "memory_type", "select", "event")
    memory = backend.open(memories=[{"name": name, **shape} for name in names])
    for name in names:
        own = inspect(memory).store.catalog.memories[name]
        made = record(inspect(memory).store.catalog, name, select=name)
        inspect(memory).write(lambda uow, own=own, made=made: uow.insert(own.relation, made))
        assert memory.get(made.record_id) == made
        assert memory.storage.get(own.relation.plural).get(made.record_id) == made
        assert memory.storage.get(own.relation.plural).count() == 1
    assert memory.storage.notes.count() == 0
    assert memory.admin.verify() == []


def test_stores_of_one_process_have_memories_of_one_name_with_other_types(backend: Any, another: Any) -> None:
    said = {"int": 7, "timestamp": AT, "text": "7", "float": 7.5, "bool": True}
    made = []
    for kind, value in said.items():
        shape = {"type": "meta", "retention": {"kind": "persistent"}, "fields": [{"name": "said", "type": kind}]}
        store = another(backend.name)
        memory = store.open(store.config(memories=[{"name": "saying", **shape}]))
        made.append((memory, memory.records("saying").insert(said=value)))
    for memory, one in made:
        assert list(memory.storage.saying.all()) == [one]
        assert memory.admin.verify() == []


def test_names_may_be_as_long_as_they_may(backend: Any) -> None:  # NAME_CHARS
    first, second = "m" * 47 + "a", "m" * 47 + "b"
    fields = [{"name": "f" * 47 + "a", "type": "text"}, {"name": "f" * 47 + "b", "type": "text"}]
    indexes = [{"field": item["name"], "type": "btree"} for item in fields]
    shape = {"type": "meta", "fields": fields, "indexes": indexes, "retention": {"kind": "persistent"}}
    memory = backend.open(memories=[{"name": first, **shape}, {"name": second, **shape}])
    catalog = inspect(memory).store.catalog
    for name in (first, second):
        relation = catalog.memories[name].relation
        made = record(catalog, name, **{item["name"]: f"{name} {item['name']}" for item in fields})
        inspect(memory).write(lambda uow, relation=relation, made=made: uow.insert(relation, made))
        changed = dataclasses.replace(made, token_count=2)

        def change(uow: Any, relation: Any = relation, changed: Any = changed) -> Any:
            uow.get(relation, changed.record_id.bytes)
            return uow.update(relation, changed)

        stored = inspect(memory).write(change)
        table = memory.storage.get(name)
        for item in fields:
            listed = getattr(table, f"list_by_{item['name']}")(f"{name} {item['name']}")
            assert listed == [stored]
        assert table.count() == 1
    assert memory.admin.verify() == []
    assert memory.admin.check() == []
