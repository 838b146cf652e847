"""What looks after a store knows its own memories: backup, restore, check, figures, bulk, moving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.memories import FACT, STEP, record

import caliber
from caliber.storage.archive import Archive

MEMORIES = [FACT, STEP]


def _filled(memory: caliber.Caliber) -> list[Any]:
    """Write records of both memories, a version of one, and one that is gone; return those that are there."""
    catalog = memory._engine.store.catalog
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

    memory._engine.write(write)
    memory._engine.write(lambda uow: uow.delete(fact, uow.get(fact, facts[0].record_id.bytes)))
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
    memory.storage.backup(path)
    target = another(other)
    settings = target.config(memories=[{**FACT, "name": "rumour"}, {**STEP, "name": "fact", "parent": None}])
    target.open(settings).close()  # what is there gives way, its memories too
    report = caliber.restore(settings, path)
    assert report.rows["memory_fact"] == 4
    with target.open(target.config(memories=MEMORIES)) as restored:
        assert [restored.get(each.record_id) for each in kept] == kept
        assert restored.verify() == []
        assert restored.storage.check() == []
        again = tmp_path / "again.zip"
        restored.storage.backup(again)
        before, after = _hashes(path), _hashes(again)
        for name in ("memory_type", "memory_fact", "memory_step", "content_version"):
            assert after[name] == before[name]
        fresh = record(restored._engine.store.catalog, "fact", subject="new", kind="claim")
        relation = restored._engine.store.catalog.memories["fact"].relation
        assert restored._engine.write(lambda uow: uow.insert(relation, fresh)) > 5, "no ordinal is given out again"
