"""Records that live until an instant of their own, and fields that are lists, on every database.

Source: docs/memories.md.
"""

from __future__ import annotations

import uuid
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.configs import config
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.model.access import Principal
from caliber.model.errors import Conflict, DTypeError, InvalidValue, MultipleErrors, NotFound, SchemaMismatch
from caliber.model.time import FixedClock, from_us

LEASE: dict[str, Any] = {
    "name": "lease",
    "type": "working",
    "fields": [{"name": "name", "type": "text"}, {"name": "content", "type": "text", "optional": True},
               {"name": "expires_at", "type": "timestamp", "optional": True}],
    "key": ["name"],
    "retention": {"kind": "until", "field": "expires_at"},
    "indexes": [{"field": "content", "type": "gin"}],
}  # fmt: skip
PAGE: dict[str, Any] = {
    "name": "page",
    "type": "semantic",
    "fields": [{"name": "tags", "type": "list(text)"}, {"name": "links", "type": "list(uuid)", "optional": True}],
}
PART: dict[str, Any] = {
    "name": "part",
    "type": "working",
    "fields": [{"name": "says", "type": "text"}],
    "parent": "lease",
}
KEYED: dict[str, Any] = {
    "name": "keyed",
    "type": "working",
    "fields": [{"name": "says", "type": "text"}, {"name": "until", "type": "timestamp"}],
    "retention": {"kind": "until", "field": "until"},
}
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def leases(backend: Any, clock: FixedClock) -> Any:
    return backend.open(backend.config(memories=[LEASE]), clock=clock).records("lease")


def test_a_record_is_read_until_its_instant(leases: Any, clock: FixedClock) -> None:
    now = from_us(clock.now_us())
    for name, until in (("short", now + HOUR), ("long", now + 3 * HOUR), ("ever", None)):
        leases.put(name=name, content=f"a {name} lease", expires_at=until)
    assert leases.distinct("name") == ["ever", "long", "short"]
    clock.advance(us=3_600_000_000)
    assert leases.distinct("name") == ["ever", "long"]
    assert leases.find(order_by="expires_at", limit=1)[0].name == "long"  # no place of a page is spent on it
    assert leases.count(valid=False) == 3
    found = [hit.id for hit in leases.search("a short or a long lease").hits]
    assert found == [leases.at(name="long").record_id]
    for read in (leases.at, leases.delete_at):
        with pytest.raises(NotFound):
            read(name="short")
    again = leases.put(name="short", content="renewed", on_existing="error")  # the key is free
    assert leases.at(name="short") == again
    with pytest.raises(Conflict):
        leases.put(name="long", on_existing="error")


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_what_has_passed_is_gone_before_the_sweep(backend: Any, clock: FixedClock, mode: str) -> None:
    if mode == "backend" and not backend.has("full text"):
        pytest.skip("only in memory")
    memory = backend.open(backend.config(memories=[LEASE, PART, KEYED], search__mode=mode), clock=clock)
    ana, bo = memory.as_user("ana"), memory.as_user("bo")
    until = from_us(clock.now_us()) + HOUR
    lease, other = ana.records("lease").put(name="a", expires_at=until), ana.records("lease").put(name="b")
    ana.links.add(other.record_id, "supports", lease.record_id)
    keyed = memory.records("keyed").insert(says="x", until=until, idempotency_key="1")
    with pytest.raises(Conflict):
        bo.records("lease").put(name="a")
    clock.advance(us=3_600_000_000)
    assert ana.links.list(other.record_id) == ana.links.neighbours(other.record_id) == []
    for ask in (ana.get, ana.links.list, lambda key: ana.records("part").insert(parent=key, says="x")):
        with pytest.raises(NotFound):
            ask(lease.record_id)
    assert memory.records("keyed").insert(says="x", until=until + HOUR, idempotency_key="1") != keyed
    free = bo.records("lease").put(name="a", content="another user's", on_existing="error")  # nothing of it stays
    assert (free.created_by, free.version) == ("human:bo@", 1)
    assert ana.links.list(other.record_id) == ana.records("lease").find(name="a") == []
    assert memory.admin.check() == []


def test_to_live_longer_keeps_no_earlier_content(leases: Any, clock: FixedClock) -> None:
    first = leases.put(name="a", content="said once", expires_at=from_us(clock.now_us()) + HOUR)
    longer = leases.update(first.record_id, expires_at=from_us(clock.now_us()) + 2 * HOUR)
    clock.advance(us=3_700_000_000)
    assert leases.at(name="a") == longer
    assert longer.content == first.content


def test_a_sweep_deletes_what_has_passed(backend: Any, clock: FixedClock) -> None:
    memory = backend.open(backend.config(memories=[LEASE]), clock=clock)
    leases, now = memory.records("lease"), from_us(clock.now_us())
    leases.put_many({"name": str(at), "expires_at": now + HOUR * (at % 2 + 1)} for at in range(20))
    leases.put(name="ever")
    clock.advance(us=3_600_000_000)
    memory.admin.maintain()
    assert leases.count(valid=False) == 11
    clock.advance(us=3_600_000_000)
    memory.admin.maintain()
    assert leases.find(valid=False, fields=("name",)) == [("ever",)]


@needs("reopen")
def test_a_store_is_not_opened_with_another_end_of_records(backend: Any) -> None:
    plain = {**LEASE, "retention": {"kind": "persistent"}}
    settings = backend.config(memories=[plain])
    backend.open(settings).close()
    changed = settings.with_overrides(memories=[LEASE])
    with pytest.raises(SchemaMismatch, match="until their expires_at"):
        backend.open(changed)
    caliber.migrate(changed)
    assert backend.open(changed).records("lease").find() == []


@pytest.mark.parametrize("field", ["name", "expires", "created_at"])
def test_records_end_at_a_timestamp_of_their_own(backend: Any, field: str) -> None:
    with pytest.raises(MultipleErrors, match=f"{field} is no timestamp of its own"):
        backend.config(memories=[{**LEASE, "retention": {"kind": "until", "field": field}}])


def test_lists_are_kept_and_found_by_a_member(backend: Any) -> None:
    pages = backend.open(backend.config(memories=[PAGE])).records("page")
    one, other = uuid.uuid4(), uuid.uuid4()
    first = pages.insert(tags=["a", "b c", 'd"e', ""], links=[one, str(other)])
    second = pages.insert(tags=(), links=None)
    assert (first.tags, first.links) == (("a", "b c", 'd"e', ""), (one, other))
    assert (second.tags, second.links) == ((), None)
    assert pages.find(tags='d"e') == pages.find('tags contains "b c"') == pages.find(links=other) == [first]
    assert pages.find(tags=["x", ""]) == [first]  # one of several
    assert pages.update(second.record_id, tags=["z"]).tags == ("z",)
    assert pages.get(second.record_id).tags == ("z",)
    for wrong in ("abc", [1], 7):
        with pytest.raises(DTypeError):
            pages.insert(tags=wrong)
    with pytest.raises(InvalidValue):
        pages.insert(tags=[], links=["no id"])


def test_a_list_is_no_key_and_has_no_order(backend: Any) -> None:
    for more in ({"key": ["tags"]}, {"indexes": [{"field": "tags", "type": "btree"}]}):
        with pytest.raises(MultipleErrors):
            backend.config(memories=[{**PAGE, **more}])


FILE: dict[str, Any] = {
    "name": "file",
    "type": "working",
    "fields": [{"name": "path", "type": "text"}, {"name": "body", "type": "bytes", "optional": True},
               {"name": "content", "type": "text", "optional": True}],
    "key": ["path"],
    "indexes": [{"field": "content", "type": "gin"}],
}  # fmt: skip


def test_bytes_are_kept_and_never_in_memory(backend: Any, tmp_path: Path) -> None:
    memory = backend.open(backend.config(memories=[FILE]), principal=Principal.admin())
    files = memory.records("file")
    bodies = [bytes([at]) * 50_000 for at in range(20)]
    files.put_many({"path": str(at), "body": body} for at, body in enumerate(bodies))
    files.put(path="empty", body=b"", content="an empty file")
    files.put(path="none")
    assert [files.at(path=str(at)).body for at in range(20)] == bodies
    assert files.find(path=["3", "4"], fields=("path", "body"), order_by="path") == [("3", bodies[3]), ("4", bodies[4])]
    assert (files.at(path="empty").body, files.at(path="none").body) == (b"", None)
    assert sum(map(len, inspect(memory).resident.held())) < 100_000
    assert "body" not in memory.search("an empty file", kinds=["file"]).hits[0].content
    files.update(files.at(path="3").record_id, body=memoryview(b"\x00\xff new"))
    assert files.find('path = "3"')[0].body == b"\x00\xff new"
    for wrong in ("text", 7, [1]):
        with pytest.raises(DTypeError, match="expected bytes"):
            files.put(path="wrong", body=wrong)
    for ask in (lambda: files.find(body=b"x"), lambda: files.find("body = 'x'"), lambda: files.distinct("body")):
        with pytest.raises((InvalidValue, MultipleErrors)):
            ask()


def test_bytes_are_not_kept_in_the_log(backend: Any) -> None:
    memory = backend.open(backend.config(memories=[FILE]), principal=Principal.admin())
    files = memory.records("file")
    first = files.put(path="a", body=b"letters to quirinus", content="one")
    files.put(path="a", body=b"letters to nobody", content="two")
    files.update(first.record_id, body=b"no letters")
    changes = [event.payload["changes"] for event in memory.storage.events.all() if event.family == "audit"]
    assert changes == [{"content": ["one", "two"]}, {}]


@needs("sharing")
def test_a_record_and_its_bytes_are_of_one_version(backend: Any) -> None:
    settings = backend.config(memories=[FILE])
    reader, writer = (backend.open(settings).records("file") for _ in range(2))
    reader.put(path="a", body=b"1", content="1")
    writer.put(path="a", body=b"2", content="2")
    for found in (reader.at(path="a"), *reader.find(path="a")):  # no news of the other has come yet
        assert found.body == found.content.encode()


def test_bytes_survive_export_backup_and_bulk(backend: Any, tmp_path: Path) -> None:
    memory = backend.open(backend.config(memories=[FILE]), principal=Principal.admin())
    memory.records("file").put(path="a", body=bytes(range(256)))
    rows = memory.storage.bulk_read("memory_file").read_all()
    assert rows.column("body").to_pylist() == [bytes(range(256))]
    assert memory.admin.check() == []
    archive = tmp_path / "copy.zip"
    memory.admin.backup(archive)
    into = config(str(tmp_path / "restored.db"), memories=[FILE])
    caliber.restore(into, archive)
    with caliber.open(into) as restored:
        assert restored.records("file").at(path="a").body == bytes(range(256))


def test_bytes_that_name_the_forgotten_are_emptied(backend: Any) -> None:
    memory = backend.open(backend.config(memories=[FILE]), principal=Principal.admin())
    memory.remember([{"role": "user", "content": "Hello, I am Quirinus."}], user="quirinus")
    files = memory.records("file")
    files.put(path="a", body=b"\x01letters to quirinus\x02")
    files.put(path="b", body=b"\x01letters to nobody\x02")
    likes = (b"xylophone", zlib.compress(b"no name"), b"CW", b"\x00x", b"")  # begin as what CALIBER packs
    files.put_many({"path": f"like {at}", "body": body} for at, body in enumerate(likes))
    report = memory.forget(user="quirinus", texts=["quirinus"])
    assert report.findings == 0
    assert files.at(path="b").body == b"\x01letters to nobody\x02"
    assert files.at(path="a").body is None
    assert tuple(files.at(path=f"like {at}").body for at in range(len(likes))) == likes
