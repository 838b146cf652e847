"""Contract tests of database constraints: NOT NULL, ranges, enums, types, keys, uniqueness, references."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.inspection import session_of

from caliber.model.errors import Conflict, StorageError
from caliber.model.time import from_us
from caliber.schema.relation import ColumnType, ForeignKey, Relation, Unique
from caliber.schema.relations import ARTIFACT, CHECKPOINT, CONTEXT_WINDOW, SCOPE, TRAJECTORY, TURN
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import changed, plain, value_of
from contract.world import DECLARED, World, count


def _broken(world: World, relation: Relation, column: str, value: Any) -> StorageError:
    """Insert a row with one wrong value and return the refusal; the row must not be there afterwards."""
    plans = world.store.plans[relation.name]
    row = list(plans.codec.encode(world.fresh(relation)))
    row[plans.codec.index(column)] = value
    before = count(world.store, relation)
    with pytest.raises(StorageError) as caught:
        world.store.write(lambda uow: session_of(uow).run(plans.insert, tuple(row)))
    assert count(world.store, relation) == before
    return caught.value


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_required_column_must_have_a_value(relation: Relation, world: World) -> None:
    tried = 0
    for column in relation.columns:
        if column.nullable or (relation.key == (column.name,) and column.type is ColumnType.INT):
            continue  # a database may number such rows by itself
        if column.declared:
            continue  # a declaration may change: the writers enforce it
        _broken(world, relation, column.name, None)
        tried += 1
    assert tried


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_optional_columns_may_all_be_absent(relation: Relation, world: World) -> None:
    absent = {column.name: None for column in relation.columns if column.nullable and column.name not in relation.key}
    entity = changed(relation, world.fresh(relation), **absent)
    world.insert(relation, entity)
    assert world.get(relation, entity) == entity


@pytest.mark.parametrize(
    "relation",
    [relation for relation in DECLARED if any(column.check for column in relation.columns)],
    ids=lambda relation: relation.name,
)
def test_number_out_of_range_is_refused(relation: Relation, world: World) -> None:
    # C-027 and every other range that a column declares
    tried = 0
    for column in relation.columns:
        for bound, step in zip(column.check or (None, None), (-1, 1), strict=True):
            if bound is None:
                continue
            wrong = bound + step if column.type is ColumnType.INT else bound + step * max(1e-9, abs(bound))
            assert "rule of the schema" in str(_broken(world, relation, column.name, wrong))
            tried += 1
    assert tried


@pytest.mark.parametrize(
    "relation",
    [
        relation
        for relation in DECLARED
        if any((column.enum and not column.open) or column.length for column in relation.columns)
    ],
    ids=lambda relation: relation.name,
)
def test_value_outside_its_set_or_length_is_refused(relation: Relation, world: World) -> None:
    for column in relation.columns:
        if column.enum and not column.open:
            for wrong in ("no such member", "", next(iter(column.enum)).value + " "):
                _broken(world, relation, column.name, wrong)
        if column.length:
            for length in (column.length - 1, column.length + 1):
                _broken(world, relation, column.name, b"\x01" * length)


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_value_of_another_type_is_refused(relation: Relation, world: World) -> None:
    """Tables are strict: a column holds its type and nothing else."""
    integers = (ColumnType.INT, ColumnType.INSTANT, ColumnType.BOOL, ColumnType.FLOAT)
    texts = (ColumnType.TEXT, ColumnType.JSON, ColumnType.TEXT_ARRAY, ColumnType.ENUM)
    for column in relation.columns:
        wrong: Any = b"not this" if column.type in integers else b"\x00bytes" if column.type in texts else 12.5
        _broken(world, relation, column.name, wrong)


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_second_row_with_a_key_is_refused(relation: Relation, world: World) -> None:
    # C-318, C-323
    entity = world.fresh(relation)
    world.insert(relation, entity)
    before = count(world.store, relation)
    with pytest.raises(Conflict):
        world.insert(relation, entity)
    assert world.store.write(lambda uow: uow.insert_new(relation, entity)) is False
    assert count(world.store, relation) == before


UNIQUES = [(relation, unique) for relation in DECLARED for unique in relation.uniques]


@pytest.mark.parametrize(
    ("relation", "unique"), UNIQUES, ids=[f"{relation.name}-{'-'.join(unique.columns)}" for relation, unique in UNIQUES]
)
def test_uniqueness_holds_where_its_condition_does(relation: Relation, unique: Unique, world: World) -> None:
    # K-043: partial rules bind only the rows they speak of
    given = {name: _present(world, relation, name) for name in unique.columns if relation.column(name).nullable}
    first = world.fresh(relation, **given)
    equal = {name: value_of(relation, first, name) for name in unique.columns}
    second = world.fresh(relation, **equal)
    world.insert(relation, first)
    before = count(world.store, relation)
    with pytest.raises(Conflict):
        world.insert(relation, second)
    assert world.store.write(lambda uow: uow.insert_new(relation, second)) is False
    assert count(world.store, relation) == before
    outside = [(name, null) for name, null in unique.where if name not in unique.columns]
    for name, null in outside:
        value = _present(world, relation, name) if null else None
        world.insert(relation, world.fresh(relation, **equal, **{name: value}))
    assert count(world.store, relation) == before + len(outside)
    for name in unique.columns:
        if relation.column(name).nullable:
            world.insert(relation, world.fresh(relation, **{**equal, name: None}))
            again = world.fresh(relation, **{**equal, name: None})
            rest = set(unique.columns) - {name}
            if any((name, True) in other.where and rest.issuperset(other.columns) for other in relation.uniques):
                with pytest.raises(Conflict):
                    world.insert(relation, again)
            else:  # NULL equals nothing, not even NULL
                world.insert(relation, again)


def _present(world: World, relation: Relation, name: str) -> Any:
    """Return a value for a column that may be absent."""
    for key in relation.foreign_keys:
        if key.column == name:
            return world.parents[key.relation]
    column = relation.column(name)
    if column.type is ColumnType.INSTANT:
        return from_us(5)
    if column.type is ColumnType.UUID:
        return uuid.UUID(int=99)
    if column.type is ColumnType.BYTES:
        return uuid.uuid4().bytes * 2
    return f"some {name} {uuid.uuid4()}"


KEYS = [(relation, key) for relation in DECLARED for key in relation.foreign_keys]


@pytest.mark.parametrize(("relation", "key"), KEYS, ids=[f"{relation.name}-{key.column}" for relation, key in KEYS])
def test_reference_to_nothing_is_refused(relation: Relation, key: ForeignKey, world: World) -> None:
    before = count(world.store, relation)
    with pytest.raises(StorageError):
        world.insert(relation, world.fresh(relation, **{key.column: uuid.uuid4()}))
    assert count(world.store, relation) == before


@pytest.mark.parametrize(("relation", "key"), KEYS, ids=[f"{relation.name}-{key.column}" for relation, key in KEYS])
def test_database_itself_keeps_references_whole(relation: Relation, key: ForeignKey, world: World) -> None:
    # K-038: owned rows go with their owner, mentions are set to NULL; here by the bare statement
    target = next(each for each in DECLARED if each.name == key.relation)
    owner = world.fresh(target)
    world.insert(target, owner)
    entity = world.fresh(relation, **{key.column: getattr(owner, key.target)})
    world.insert(relation, entity)
    plans = world.store.plans[target.name]
    place = plans.codec.key_of(plans.codec.encode(owner))
    assert world.store.write(lambda uow: session_of(uow).changed(plans.delete, place)) == 1
    left = world.get(relation, entity)
    if key.on_delete == "cascade":
        assert left is None
    else:
        assert left == changed(relation, entity, **{key.column: None})


def test_owned_rows_go_with_their_owner_and_mentions_are_forgotten(world: World) -> None:
    # K-038: as the unit of work does it, which also notifies mirrors
    parent = plain(TRAJECTORY)
    trajectory = plain(TRAJECTORY, parent_trajectory_id=parent.trajectory_id)
    scope = plain(SCOPE, trajectory_id=trajectory.trajectory_id)
    owner = {"trajectory_id": trajectory.trajectory_id, "scope_id": scope.scope_id}
    owned = [
        (SCOPE, scope),
        (TURN, plain(TURN, **owner)),
        (ARTIFACT, plain(ARTIFACT, **owner)),
        (CHECKPOINT, plain(CHECKPOINT, **owner)),
        (CONTEXT_WINDOW, plain(CONTEXT_WINDOW, trajectory_id=trajectory.trajectory_id)),
    ]
    rows = [(TRAJECTORY, parent), (TRAJECTORY, trajectory), *owned]
    world.store.write(lambda uow: [uow.insert(relation, entity) for relation, entity in rows])

    def forget(uow: UnitOfWork, which: Any) -> None:
        uow.delete(TRAJECTORY, uow.get(TRAJECTORY, which.trajectory_id.bytes))

    world.store.write(lambda uow: forget(uow, parent))
    assert world.get(TRAJECTORY, parent) is None
    assert world.get(TRAJECTORY, trajectory).parent_trajectory_id is None
    world.store.write(lambda uow: forget(uow, trajectory))
    assert [world.get(relation, entity) for relation, entity in owned] == [None] * len(owned)
