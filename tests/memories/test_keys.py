"""Records that are told apart by a key: put, found, and deleted at it, by one writer and by many, on every database.

Source: docs/memories.md.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.crash.processes import Forked, store_of
from support.drawn import needs
from support.inspection import inspect
from support.memories import put_at_once
from support.threads import at_once
from support.waits import until

import caliber
from caliber.config.memories import MemoryConfig
from caliber.memories.keys import key_of
from caliber.model.access import Principal
from caliber.model.errors import Conflict, InvalidRow, InvalidValue, NotFound, RequiredFieldMissing, SchemaMismatch
from caliber.schema.binding import binding_of

ITEM: dict[str, Any] = {
    "name": "item",
    "type": "semantic",
    "fields": [{"name": "ns", "type": "text"}, {"name": "name", "type": "text"},
               {"name": "content", "type": "text", "optional": True},
               {"name": "count", "type": "int", "optional": True}, {"name": "content_embedding", "type": "embedding"}],
    "key": ["ns", "name"],
}  # fmt: skip
PLAIN = {**ITEM, "name": "plain", "key": []}
DAY = {
    "name": "day",
    "type": "episodic",
    "fields": [{"name": "at", "type": "timestamp"}, {"name": "whose", "type": "uuid"}, {"name": "place", "type": "int"},
               {"name": "kind", "type": "enum", "values": ["work", "rest"]}, {"name": "done", "type": "bool"}],
    "key": ["at", "whose", "place", "kind", "done"],
}  # fmt: skip


@pytest.fixture
def kept(backend: Any) -> Any:
    return backend.open(backend.config(memories=[ITEM, PLAIN, DAY]))


def test_the_same_key_is_the_same_record(kept: Any) -> None:
    items = kept.records("item")
    first = items.put(ns="people", name="Ada", content="wrote the first program", count=1)
    assert items.at(ns="people", name="Ada") == first
    second = items.put({"ns": "people", "name": "Ada", "content": "was a countess"})
    assert (second.record_id, second.created_at, second.version) == (first.record_id, first.created_at, 2)
    assert (second.content, second.count) == ("was a countess", None)  # replaced whole
    assert items.put(ns="people", name="Ada", content="was a countess") == second  # nothing changed
    assert items.find() == [second]
    other = items.put(ns="people", name="Bo")
    assert other.record_id != first.record_id
    kept.flush()
    assert [hit.id for hit in items.search("countess").hits] == [first.record_id]
    assert items.search("program").hits == ()
    update = items.update(second.record_id, count=3)
    assert items.at(name="Ada", ns="people") == update


def test_what_is_done_with_an_existing_record_is_said(kept: Any) -> None:
    items = kept.records("item")
    first = items.put(ns="a", name="b", content="one", on_existing="error")
    assert items.put(ns="a", name="b", content="two", on_existing="keep") == first
    for put in (items.insert, lambda **fields: items.put(**fields, on_existing="error")):
        with pytest.raises(Conflict, match=r"there is a record with this key \(ns, name\)"):
            put(ns="a", name="b", content="two")
    with pytest.raises(InvalidValue, match="on_existing"):
        items.put(ns="a", name="b", on_existing="merge")
    assert items.find() == [first]


def test_many_are_put_in_order_all_or_none(kept: Any) -> None:
    items = kept.records("item")
    made = items.put_many({"ns": "n", "name": str(at), "count": at} for at in range(30))
    again = items.put_many([{"ns": "n", "name": "3", "count": 1}, {"ns": "n", "name": "3", "count": 2}])
    assert [record.record_id for record in again] == [made[3].record_id] * 2
    assert items.at(ns="n", name="3").count == 2
    twice = [{"ns": "n", "name": name, "count": at} for at, name in enumerate(("new", "3", "new", "newer", "new"))]
    assert [record.version for record in items.put_many(twice)] == [1, 4, 2, 1, 3]
    assert items.find(name=["new", "newer"], fields=("count", "version"), order_by="count") == [(3, 1), (4, 3)]
    assert items.delete_many(name=["new", "newer"]) == 2
    with pytest.raises(InvalidValue, match=r"records\[1\]\.nam"):
        items.put_many([{"ns": "n", "name": "x"}, {"ns": "n", "nam": "y", "name": "z"}])
    scope = kept.open_scope(kept.start_trajectory("t", user="me").trajectory_id)
    with pytest.raises(InvalidValue, match="scope_id: the owner of a record cannot be changed"):
        items.put_many([{"ns": "n", "name": "x"}, {"ns": "n", "name": "4", "scope_id": scope.scope_id}])
    assert items.count() == 30
    assert items.put_many([]) == []
    assert items.delete_many("count >= 20") == 10
    assert items.delete_many(ns="n", count=[5, 6, 7]) == 3
    assert items.count() == 17
    assert items.delete_many(ns="nobody") == 0


def test_deletions_of_many_are_logged_as_those_of_one(kept: Any) -> None:  # M-129
    items = kept.records("item")
    ids = [record.record_id for record in items.put_many({"ns": "n", "name": name} for name in "abc")]
    items.delete_many(name=["a", "b"])
    items.delete_at(ns="n", name="c")
    audits = [event for event in kept.storage.events.all() if event.family == "audit"]
    assert {event.subject_id for event in audits} == set(ids)
    assert [event.payload["action"] for event in audits] == ["delete"] * 3


@pytest.mark.parametrize(
    "more", [[], [{"name": "part", "type": "semantic", "fields": [{"name": "says", "type": "text"}], "parent": "item"}]]
)
def test_what_was_changed_meanwhile_is_not_deleted(backend: Any, more: list[Any]) -> None:
    memory = backend.open(backend.config(memories=[ITEM, *more]))  # records that others belong to go one by one
    items = memory.records("item")
    first, second, _ = items.put_many({"ns": "n", "name": name, "count": 0} for name in "abc")
    with ThreadPoolExecutor(1) as threads:
        with memory.transaction():
            items.update(first.record_id, count=1)
            deleted = threads.submit(items.delete_many, "count = 0", name=["a", "c"])
            until(lambda: backend.has_waiting(memory))
        assert deleted.result(30) == 1
        with memory.transaction():
            items.update(second.record_id, count=2)
            deleted = threads.submit(items.delete, second.record_id, version=1)
            until(lambda: backend.has_waiting(memory))
        with pytest.raises(Conflict, match="its version is 2 by now"):
            deleted.result(30)
    assert items.find(fields=("name", "count"), order_by="name") == [("a", 1), ("b", 2)]


def test_links_go_with_many_deleted_records(kept: Any) -> None:
    items = kept.records("item")
    rows = [{"ns": "n", "name": str(at)} for at in range(4)]
    ids = [record.record_id for record in items.put_many(rows)]
    for source, target in ((0, 1), (2, 0), (2, 3)):
        kept.links.add(ids[source], "supports", ids[target])
    assert items.delete_many(name=["0", "1"]) == 2
    items.put_many(rows)
    assert [len(kept.links.list(each)) for each in ids] == [0, 0, 1, 1]


def test_bad_input_says_what_to_do(kept: Any) -> None:
    items, plain = kept.records("item"), kept.records("plain")
    made = items.put(ns="a", name="b")
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: items.put(ns="a"), RequiredFieldMissing, "name"),
        (lambda: items.put(ns="a", name="b", id=uuid.uuid4()), InvalidValue, r"follows from the key \(ns, name\)"),
        (lambda: items.update(made.record_id, name="c"), InvalidValue, "is part of the key"),
        (lambda: items.at(ns="a"), RequiredFieldMissing, "name"),
        (lambda: items.at(ns="a", name="b", count=1), InvalidValue,
         r"count: is no part of the key; it is \(ns, name\)"),
        (lambda: items.at(ns="a", name="c"), NotFound, "was not found"),
        (lambda: items.delete_at(ns="a", name="c"), NotFound, "was not found"),
        (lambda: plain.put(ns="a", name="b"), InvalidValue, "plain has no key"),
        (lambda: plain.at(ns="a", name="b"), InvalidValue, "plain has no key"),
        (lambda: items.delete_many(), InvalidValue, "state a condition"),
        (lambda: items.delete_many({}), InvalidValue, "state a condition"),
    ]  # fmt: skip
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    assert items.find() == [made]


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=6))
def test_no_two_keys_are_one(pairs: list[tuple[str, str]]) -> None:
    bound = binding_of(MemoryConfig.model_validate(ITEM).declared, "item")
    keys = [key_of(bound, {"ns": ns, "name": name}) for ns, name in pairs]
    assert len(set(keys)) == len(set(pairs))
    assert all(key.version == 8 for key in keys)


def test_keys_of_every_type_and_length(kept: Any) -> None:
    items, days = kept.records("item"), kept.records("day")
    for name in ("", "%", "_", ":", "a:b", "line\nline", "x" * 10_000, "é漢😀", '"', "\\"):
        made = items.put(ns=name, name=name, content="x")
        assert items.at(ns=name, name=name) == made
    assert items.count() == 10
    at, whose = datetime(2026, 5, 1, tzinfo=UTC), uuid.uuid4()
    day = days.put(at=at, whose=whose, place=0, kind="work", done=False)
    assert days.at(at=at, whose=str(whose), place=0, kind="work", done=False) == day
    days.put(at=at, whose=whose, place=1, kind="work", done=False)
    days.put(at=at, whose=whose, place=0, kind="rest", done=True)
    assert days.count() == 3


def test_a_hidden_record_keeps_its_key(kept: Any) -> None:
    ada = kept.records("item", user="ada")
    made = ada.put(ns="a", name="b", content="mine")
    bo = kept.records("item", user="bo")
    for option in ("replace", "keep", "error"):
        with pytest.raises(Conflict, match="there is a record with this key"):
            bo.put(ns="a", name="b", content="yours", on_existing=option)
    with pytest.raises(NotFound):
        bo.at(ns="a", name="b")
    assert bo.delete_many(ns="a") == 0
    assert ada.at(ns="a", name="b") == made


def test_an_archived_record_comes_back(kept: Any) -> None:
    items = kept.records("item")
    made = items.put(ns="a", name="b", content="one")
    items.archive(made.record_id)
    assert items.find() == []
    again = items.put(ns="a", name="b", content="two")
    assert (again.record_id, again.archived_at, again.content) == (made.record_id, None, "two")
    assert items.find() == [again]
    items.delete_at(ns="a", name="b")
    assert items.put(ns="a", name="b", content="three").version == 1


def test_of_many_writers_none_is_lost(kept: Any) -> None:
    items = kept.records("item")

    def count(worker: int) -> None:
        for at in range(10):
            items.put(ns="n", name=str(at % 3), content=f"{worker} {at}")

    at_once([partial(count, worker) for worker in range(6)])
    assert sorted(record.name for record in items.find()) == ["0", "1", "2"]
    assert sum(record.version for record in items.find()) == 60


@needs("sharing")
def test_of_many_processes_none_is_lost(backend: Any) -> None:
    memory = backend.open(backend.config(memories=[ITEM]))
    path, knobs, dsn = store_of(backend)
    processes = [Forked(put_at_once, path, {**knobs, "memories": [ITEM]}, dsn, "item", 8, 5) for _ in range(2)]
    versions = [version for each in processes for version in each.reports.recv()]
    assert sorted(versions) == list(range(1, 81))
    inspect(memory).snapshot("latest")
    assert memory.records("item").at(ns="n", name="x").version == 80


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_the_application_neither_replaces_nor_deletes_what_it_does_not_see(backend: Any, mode: str) -> None:
    opened = backend.open(backend.config(memories=[ITEM, PLAIN], search__mode=mode))
    memory, ana = opened.acting_as(Principal.application()), opened.as_user("ana")
    secret, plain = (ana.records(name).insert(ns="p", name="x", content="secret") for name in ("item", "plain"))
    task = ana.start_trajectory("a task").trajectory_id
    items = memory.records("item")
    for option in ("replace", "keep", "error"):
        with pytest.raises(Conflict, match="there is a record with this key"):
            items.put(ns="p", name="x", content="mine", on_existing=option)
    shared = memory.records("plain").insert(ns="p", name="y")
    assert [memory.records(name).delete_many(ns="p") for name in ("item", "plain")] == [0, 1]
    assert memory.records("plain").find(ns="p") == []
    assert (ana.get(secret.record_id), ana.get(plain.record_id)) == (secret, plain)
    assert shared.visible_to is None
    of_task = items.put(ns="t", name="x", content="one", trajectory=task)
    assert items.put(ns="t", name="x", content="two", trajectory=task).record_id == of_task.record_id
    with pytest.raises(Conflict):
        items.put(ns="t", name="x", content="three")
    assert items.delete_many(ns="t") == 0
    assert items.delete_many(ns="t", trajectory_id=task) == 1


def test_who_replaces_a_record_is_its_author(kept: Any) -> None:
    by_ana, by_bob = (kept.as_user(name).records("item") for name in ("ana", "bob"))
    shared = kept.records("item").put(ns="a", name="b", content="of all")
    assert by_ana.put(ns="a", name="b", content="of ana").created_by != shared.created_by
    made = by_bob.put(ns="a", name="b", content="of bob")
    assert made.created_by == "human:bob@"
    assert made.visible_to is None


def test_ids_and_idempotency_keys_do_not_compete_with_keys(kept: Any) -> None:
    items, plain = kept.records("item"), kept.records("plain")
    stolen = items.put(ns="a", name="b").record_id
    items.delete_at(ns="a", name="b")
    with pytest.raises(InvalidValue, match="such ids follow from keys"):
        plain.insert(ns="a", name="b", record_id=stolen)
    for write in (items.insert, items.put, lambda record: items.put_many([record])):
        with pytest.raises(InvalidValue, match="idempotency_key: is not for records at keys"):
            write({"ns": "a", "name": "b", "idempotency_key": "once"})


@needs("bulk")
def test_a_bulk_load_takes_only_the_ids_of_keys(kept: Any, another: Any) -> None:
    kept.records("item").put_many([{"ns": "a", "name": "b"}, {"ns": "é", "name": "c", "content": "x"}])
    at, whose = datetime(2026, 5, 1, 1, 2, 3, 4, tzinfo=UTC), uuid.uuid4()
    kept.records("day").put(at=at, whose=whose, place=-5, kind="work", done=True)
    target = another("sqlite").open(memories=[ITEM, PLAIN, DAY])
    tables = {name: kept.storage.bulk_read(name).read_all() for name in ("item", "day")}
    for name, table in tables.items():
        bare = table.drop_columns(["record_id"])
        with pytest.raises(InvalidRow, match=r"row 0.*record_id: does not follow from the key"):
            target.storage.bulk_load(name, bare)
        assert target.storage.bulk_load(name, table).loaded == table.num_rows
    assert target.records("item").find() == kept.records("item").find()
    assert target.records("day").at(at=at, whose=whose, place=-5, kind="work", done=True).place == -5


@needs("reopen")
def test_a_key_stays_that_of_its_memory(backend: Any) -> None:
    with backend.open(backend.config(memories=[ITEM])) as memory:
        memory.records("item").put(ns="a", name="b")
    with pytest.raises(SchemaMismatch, match="records of item are told apart by ns, name, not by their ids"):
        caliber.migrate(backend.config(memories=[{**ITEM, "key": []}]))
    for key in (["name", "ns"], []):
        with pytest.raises(SchemaMismatch, match="records of memory item are told apart by ns, name, not by"):
            backend.open(backend.config(memories=[{**ITEM, "key": key}]))
