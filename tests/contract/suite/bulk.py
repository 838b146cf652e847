"""Contract tests of bulk load and bulk read: loaded rows equal those that were read. Source: design 4."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable
from typing import Any

import pytest

from caliber.model.errors import Conflict
from caliber.model.progress import unheard
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relation import Relation
from caliber.schema.relations import NOTE, SCOPE, TRAJECTORY
from caliber.storage.bulk.protocol import Batch, OnExisting
from caliber.storage.protocol import Store
from contract.world import DECLARED, Contract, World, all_rows, count


def _needs_bulk(contract: Contract) -> None:
    contract.needs("bulk")
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("the extra arrow is not installed")


def _batches(store: Store, relation: Relation, batch_rows: int = 3) -> list[Batch]:
    """Return everything a store holds of a relation as a load takes it."""
    from caliber.storage.bulk import arrow

    batches, first = [], 0
    for read in store.bulk_read(relation, batch_rows):
        columns = {column.name: arrow.column_from(read, column, first_row=first) for column in relation.columns}
        batches.append(Batch(first, read.num_rows, columns))
        first += read.num_rows
    return batches


def _load(store: Store, relation: Relation, batches: Iterable[Batch], on_existing: OnExisting) -> Any:
    return store.bulk_load(relation, batches, on_existing, unheard)


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_every_row_is_read_in_batches(relation: Relation, contract: Contract, world: World) -> None:
    _needs_bulk(contract)
    world.insert(relation, *(world.fresh(relation) for _ in range(4)))
    batches = list(world.store.bulk_read(relation, 3))
    assert sum(batch.num_rows for batch in batches) == count(world.store, relation)
    assert all(batch.schema.names == [column.name for column in relation.columns] for batch in batches)


def test_what_was_read_can_be_loaded_again(contract: Contract) -> None:
    """Row by row the same, in another store, in an order in which references exist."""
    _needs_bulk(contract)
    source, target = World(contract.store()), contract.store()
    scope = dataclasses.replace(source.parent_entities["scope"], next_sequence=2**62)  # beyond all their turns
    trajectory = dataclasses.replace(source.parent_entities["trajectory"], turn_count=2**62)
    source.store.write(lambda uow: uow.upsert(SCOPE, scope))
    source.store.write(lambda uow: uow.upsert(TRAJECTORY, trajectory))
    for relation in BUILT_IN.loadable:
        source.insert(relation, *(source.fresh(relation) for _ in range(2)))
    for relation in BUILT_IN.loadable:
        report = _load(target, relation, _batches(source.store, relation), OnExisting.ERROR)
        assert report.loaded == count(source.store, relation) > 0
        codec = source.store.plans[relation.name].codec
        with source.store.read() as one, target.read() as other:
            expected = [codec.decode(row) for row in all_rows(source.store, one, relation)]
            assert [codec.decode(row) for row in all_rows(target, other, relation)] == expected


def test_load_is_whole_or_nothing_and_passes_over_what_is_there(contract: Contract) -> None:
    _needs_bulk(contract)
    source, target = World(contract.store()), World(contract.store())
    source.insert(NOTE, *(source.fresh(NOTE) for _ in range(4)))
    batches = _batches(source.store, NOTE, 2)
    before = count(target.store, NOTE)
    loaded = _load(target.store, NOTE, batches[1:2], OnExisting.ERROR)
    assert (loaded.rows, loaded.loaded) == (2, 2)
    with pytest.raises(Conflict):
        _load(target.store, NOTE, batches, OnExisting.ERROR)
    assert count(target.store, NOTE) == before + 2
    report = _load(target.store, NOTE, batches, OnExisting.SKIP)
    assert (report.rows, report.loaded, report.skipped_rows.tolist()) == (5, 3, [2, 3])
    assert count(target.store, NOTE) == before + 5

    def broken() -> Iterable[Batch]:
        yield from batches[:1]
        raise ZeroDivisionError

    empty = contract.store()
    with pytest.raises(ZeroDivisionError):
        _load(empty, NOTE, broken(), OnExisting.ERROR)
    assert count(empty, NOTE) == 0
