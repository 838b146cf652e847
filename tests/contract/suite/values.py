"""Contract tests of stored values: NULL, extremes, Unicode with NUL, and instants come back unchanged."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import TURN
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import TEXTS, edges, part_columns, value_of
from contract.generated import entities_of
from contract.world import DECLARED, World, all_rows, key_of, undone

_EXAMPLES = 20


def same(first: Any, second: Any) -> bool:
    """Return whether two entities are equal, field by field and type by type."""
    return first == second and all(
        type(getattr(first, field.name)) is type(getattr(second, field.name)) for field in dataclasses.fields(first)
    )


def _goes_through(world: World, relation: Relation, entity: Any) -> None:
    if world.get(relation, entity) is not None:
        return  # the store itself, or a parent, has this key

    def work(uow: UnitOfWork) -> None:
        uow.insert(relation, entity)
        stored = uow.get(relation, *key_of(world.store, relation, entity))
        assert stored == entity
        assert same(stored, entity)
        for column in relation.columns:
            value = value_of(relation, stored, column.name)
            if column.type is ColumnType.INSTANT and value is not None:
                assert isinstance(value, datetime)
                assert value.utcoffset() == timedelta(0), "instants come back in UTC"

    undone(world.store, work)


CASES = [(relation, False) for relation in DECLARED]
CASES += [(each, True) for each in DECLARED if any(each.column(key.column).nullable for key in each.foreign_keys)]


@pytest.mark.parametrize(
    ("relation", "all_of_them"), CASES, ids=[f"{each.name}{'-referring' * referring}" for each, referring in CASES]
)
def test_edges_of_every_column_come_back(relation: Relation, all_of_them: bool, world: World) -> None:
    # design section 3: uuid, instant, text, int, float, bool, bytes, json, arrays, enum, vector
    seen = 0
    for entity in edges(relation, **world.references(relation, all_of_them=all_of_them)):
        _goes_through(world, relation, entity)
        seen += 1
    assert seen >= 10


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_whatever_is_put_in_comes_back(relation: Relation, world: World) -> None:
    strategy = st.one_of(
        entities_of(relation, **world.references(relation)),
        entities_of(relation, **world.references(relation, all_of_them=True)),
    )

    @settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def check(entity: Any) -> None:
        _goes_through(world, relation, entity)

    check()


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_committed_edges_come_back_in_another_session(relation: Relation, world: World) -> None:
    """Once more through commit, reader and page, with separate keys."""
    # A change record has 32 bits for a version; what a store says of its schema's versions, everybody obeys.
    apart = {*part_columns(relation), "version", "min_reader_version", "min_writer_version"}
    made = []
    for entity in edges(relation, **world.references(relation)):
        own = world.fresh(relation)
        kept = {
            column.name: value_of(relation, entity, column.name)
            for column in relation.columns
            if column.name not in apart and not _decides_uniqueness(relation, column.name)
        }
        made.append(dataclasses.replace(own, **kept))
    world.insert(relation, *made)
    for entity in made:
        stored = world.get(relation, entity)
        assert stored == entity
        assert same(stored, entity)
    with world.store.read() as session:
        rows = all_rows(world.store, session, relation)
    decoded = [world.store.plans[relation.name].codec.decode(row) for row in rows]
    assert all(entity in decoded for entity in made)


def _decides_uniqueness(relation: Relation, name: str) -> bool:
    return name in relation.key or any(
        name in unique.columns or any(name == condition for condition, _ in unique.where) for unique in relation.uniques
    )


def test_texts_are_told_apart_whatever_a_collation_thinks(world: World) -> None:
    """Keys that a collation, a normal form or a trimmed space would make equal are different keys."""
    from caliber.schema.relations import EMBEDDING_SPACE

    texts = [*dict.fromkeys((*TEXTS, "CASE", "case", "Case", "case ", "ﬁ", "fi", "Å", "\u212b", "A\u030a"))]
    made = [world.fresh(EMBEDDING_SPACE, model_id=text, dimensions=7) for text in texts]
    world.insert(EMBEDDING_SPACE, *made)
    assert [world.get(EMBEDDING_SPACE, entity).model_id for entity in made] == texts


def test_large_content_is_kept_whole(world: World) -> None:
    content = bytes(range(256)) * 8_192
    turn = world.fresh(TURN, content=content)
    world.insert(TURN, turn)
    assert world.get(TURN, turn).content == content
