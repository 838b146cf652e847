"""Declared memories in maintenance tools: backup, restore, check, figures, bulk, moving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.drawn import needs
from support.inspection import inspect
from support.memories import FACT, STEP, record

import caliber
from caliber.dump.archive import Archive
from caliber.model.errors import InvalidRow
from caliber.storage.compile.derived import completed

MEMORIES = [FACT, STEP]


def _filled(memory: caliber.Caliber) -> list[Any]:
    """Write records of both memories, a version of one, and one that is gone; return those that are there."""
    catalog = inspect(memory).store.catalog
    fact, step = (catalog.memories[name].relation for name in ("fact", "step"))
    facts = [
        record(catalog, "fact", subject=f"s{at}", content=f"c{at}", kind="claim", score=at / 3, about={"at": [at]})
        for at in range(5)
    ]
    steps = [record(catalog, "step", parent_id=facts[at].record_id, position=at) for at in range(3)]

    def write(uow: Any) -> None:
        for each in facts:
            uow.insert(fact, each)
        for each in steps:
            uow.insert(step, each)

    inspect(memory).write(write)
    inspect(memory).write(lambda uow: uow.delete(fact, uow.get(fact, facts[0].record_id.bytes)))
    return [*facts[1:], *steps[1:]]


def _hashes(path: Path) -> dict[str, str]:
    archive = Archive(path)
    try:
        return {member.relation: member.rows_sha256 for member in archive.manifest.relations}
    finally:
        archive.close()


@pytest.mark.parametrize("other", ["sqlite", "postgres"])
def test_an_archive_carries_memories_to_any_database(
    other: str, backend: Any, another: Any, tmp_path: Path
) -> None:  # P-083
    memory = backend.open(memories=MEMORIES)
    kept = _filled(memory)
    path = tmp_path / "all.zip"
    memory.admin.backup(path)
    target = another(other)
    settings = target.config(memories=[{**FACT, "name": "rumour"}, {**STEP, "name": "fact", "parent": None}])
    target.open(settings).close()  # what is there gives way, its memories too
    report = caliber.restore(settings, path)
    assert report.rows["memory_fact"] == 4
    with target.open(target.config(memories=MEMORIES)) as restored:
        assert [restored.get(each.record_id) for each in kept] == kept
        assert restored.admin.verify() == []
        assert restored.admin.check() == []
        again = tmp_path / "again.zip"
        restored.admin.backup(again)
        before, after = _hashes(path), _hashes(again)
        for name in ("memory_type", "memory_fact", "memory_step", "content_version"):
            assert after[name] == before[name]
        fresh = record(inspect(restored).store.catalog, "fact", subject="new", kind="claim")
        relation = inspect(restored).store.catalog.memories["fact"].relation
        assert inspect(restored).write(lambda uow: uow.insert(relation, fresh)) > 5, "no ordinal is given out again"


def test_what_looks_after_the_store_counts_its_memories(backend: Any) -> None:
    memory = backend.open(memories=MEMORIES)
    kept = _filled(memory)
    assert memory.admin.stats()["records"]["memory_fact"] == 4
    assert {each.name: each.rows for each in memory.admin.status().relations}["memory_step"] == 2
    assert memory.admin.vacuum().skipped == ()
    assert memory.admin.check() == []
    assert [memory.storage.fact.get(each.record_id) for each in kept[:4]] == kept[:4]
    assert memory.storage.fact.list_by_subject("s3") == [kept[2]]
    assert memory.storage.step.list_by_parent(kept[0].record_id) == [kept[4]]
    assert [each.name for each in memory.storage.memory_types.list_all()] == ["fact", "step"]
    assert not any(hasattr(memory.storage.memory_types, call) for call in ("insert", "update", "delete"))


def test_a_check_sees_what_is_wrong_with_memories(backend: Any) -> None:
    memory = backend.open(memories=MEMORIES)
    _filled(memory)
    backend.damage(memory, f"DELETE FROM {backend.qualified('memory_fact')} WHERE subject = 's1'")
    found = {(each.relation, each.what) for each in memory.admin.check()}
    assert ("memory_step", "parent_id refers to no memory_fact") in found
    assert {relation for relation, _ in found} >= {"memory_fact", "memory_step"}


@needs("bulk")
def test_records_of_memories_are_loaded_and_read_in_bulk(backend: Any, another: Any) -> None:
    memory = backend.open(memories=MEMORIES)
    kept = _filled(memory)
    table = memory.storage.bulk_read("memory_fact").read_all()
    target = another("sqlite").open(memories=MEMORIES)
    report = target.storage.bulk_load("memory_fact", table)
    assert report.loaded == 4
    assert [target.get(each.record_id) for each in kept[:4]] == kept[:4]
    bare = table.select(["subject", "content", "kind"])
    target.storage.bulk_load("fact", bare)
    made = [each for each in target.storage.fact.list_by_subject("s2") if each.record_id != kept[1].record_id]
    relation = inspect(target).store.catalog.memories["fact"].relation
    assert made[0].content_hash == completed(relation, made[0], None).content_hash
    assert made[0].token_count > 0
    assert made[0].trust == "web"
    wrong = bare.set_column(2, "kind", [["lie"] * 4])
    with pytest.raises(InvalidRow, match="must be one of claim, rumour"):
        target.storage.bulk_load("fact", wrong)
    assert target.admin.verify() == []


@needs("reopen")
def test_records_are_found_where_they_are_not_in_memory(backend: Any) -> None:
    knobs: dict[str, Any] = {"search__mode": "backend", "search__keyword__similar_words": "none"}
    with backend.open(memories=MEMORIES, **knobs) as memory:
        kept = _filled(memory)
        assert "memory_fact" not in inspect(memory).resident.snapshot.relations
        assert [memory.get(each.record_id) for each in kept] == kept
        assert memory.admin.verify() == []
