"""Records without a history: what is replaced or deleted leaves nothing, in tables, files and replays.

Source: docs/memories.md, docs/retention.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, config
from support.drawn import needs

import caliber
from caliber.model.access import Principal
from caliber.model.errors import MultipleErrors, NotFound, SchemaMismatch

ITEM: dict[str, Any] = {
    "name": "item",
    "type": "semantic",
    "fields": [{"name": "ns", "type": "text"}, {"name": "content", "type": "text"},
               {"name": "content_embedding", "type": "embedding"}],
    "key": ["ns"],
}  # fmt: skip
GONE = {**ITEM, "name": "gone", "history": "none"}
OLD, NEW = "the zorblatt was painted crimson", "the zorblatt was painted ochre"
EVERY = 'ns != "nobody"'


@pytest.mark.parametrize("name", ["item", "gone"])
def test_what_is_replaced_or_deleted_leaves_nothing_without_a_history(backend: Any, name: str) -> None:
    memory = backend.open(backend.config(memories=[ITEM, GONE]))
    items = memory.records(name)
    items.put(ns="a", content=OLD)
    items.put(ns="a", content=NEW)
    items.put_many([{"ns": str(at), "content": OLD} for at in range(3)])
    items.delete_at(ns="a")
    assert items.delete_many(EVERY) == 3
    memory.flush()
    kept = memory.storage.content_versions.count()
    told = [each for each in memory.storage.events.all() if each.payload.get("memory") == name]
    assert (kept, len(told)) == ((5, 9) if name == "item" else (0, 0))


def test_no_byte_of_it_stays_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    settings = config(str(path), memories=[ITEM, GONE])
    caliber.create(settings)
    with caliber.open(settings, principal=Principal.admin()) as memory:
        items = memory.records("gone")
        items.put_many([{"ns": f"thread {at}", "content": f"{OLD} {at}"} for at in range(50)])
        items.put(ns="thread 0", content=NEW)
        memory.flush()
        assert memory.search("zorblatt crimson").hits
        items.delete_many(EVERY)
        memory.flush()
        memory.admin.vacuum()
    files = [each for each in tmp_path.iterdir() if each.is_file()]
    assert files
    assert not [each for each in files if b"zorblatt" in each.read_bytes()]


def test_a_window_that_showed_it_says_that_it_is_gone(backend: Any) -> None:
    rule = {"memory": "gone", "mode": {"kind": "full"}, "priority": 50}
    memory = backend.open(backend.config(memories=[GONE], injection_rules=[rule]))
    items = memory.records("gone")
    items.put(ns="a", content=OLD)
    task = memory.start_trajectory("paint", initiator=USER)
    window = memory.assemble_context(task.trajectory_id, query="zorblatt")
    assert OLD in window.text
    memory.flush()
    assert memory.replay(window.window_id).text == window.text
    items.put(ns="a", content=NEW)
    with pytest.raises(NotFound):
        memory.replay(window.window_id)


@needs("reopen")
def test_a_history_may_be_given_up_later(backend: Any) -> None:
    with backend.open(backend.config(memories=[ITEM])) as memory:
        memory.records("item").put(ns="a", content=OLD)
    without = backend.config(memories=[{**ITEM, "history": "none"}])
    with pytest.raises(SchemaMismatch, match=r"keeps the history versions, not none, .* run `caliber db migrate`"):
        backend.open(without)
    caliber.migrate(without)
    memory = backend.open(without)
    memory.records("item").put(ns="a", content=NEW)
    assert memory.storage.content_versions.count() == 0


def test_only_own_memories_can_do_without(backend: Any) -> None:
    note = {"name": "note", "type": "semantic", "fields": [{"name": "content", "type": "text"}], "history": "none"}
    with pytest.raises(MultipleErrors, match="keeps its versions for replay"):
        backend.open(backend.config(memories=[note]))
