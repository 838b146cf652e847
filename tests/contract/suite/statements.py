"""Contract tests of the generated SQL statements of every relation: writes, reads by key, pages, access paths."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from support.inspection import replaced, session_of

from caliber.model.errors import Conflict, InternalError, NotFound
from caliber.model.time import from_us
from caliber.schema.relation import AccessPath, ColumnType, ForeignKey, Relation
from caliber.schema.relations import TRAJECTORY
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import different, value_of
from contract.world import DECLARED, World, all_rows, count, key_of

VERSIONED = [relation for relation in DECLARED if relation.versioned]
NUMBERED = [relation for relation in DECLARED if relation.ordinal]


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_insert_new_inserts_once(relation: Relation, world: World) -> None:
    # K-044: never check-then-insert
    entity = world.fresh(relation)
    before = count(world.store, relation)
    assert world.store.write(lambda uow: uow.insert_new(relation, entity)) is True
    assert world.get(relation, entity) == entity
    assert world.store.write(lambda uow: uow.insert_new(relation, entity)) is False
    assert count(world.store, relation) == before + 1


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_upsert_inserts_and_then_overwrites_every_column(relation: Relation, world: World) -> None:
    entity = world.fresh(relation)
    before = count(world.store, relation)
    world.store.write(lambda uow: uow.upsert(relation, entity))
    assert world.get(relation, entity) == entity
    other = different(relation, entity)
    world.store.write(lambda uow: uow.upsert(relation, other))
    assert world.get(relation, entity) == other
    assert count(world.store, relation) == before + 1


@pytest.mark.parametrize("relation", VERSIONED, ids=lambda relation: relation.name)
def test_update_writes_every_column_and_raises_the_version(relation: Relation, world: World) -> None:
    entity, bystander = world.fresh(relation), world.fresh(relation)
    world.insert(relation, entity, bystander)
    changed = different(relation, entity)

    def work(uow: UnitOfWork) -> Any:
        assert uow.get(relation, *key_of(world.store, relation, entity)) == entity
        return uow.update(relation, changed)

    stored = world.store.write(work)
    assert stored == dataclasses.replace(changed, version=entity.version + 1)
    assert world.get(relation, entity) == stored
    assert world.get(relation, bystander) == bystander


@pytest.mark.parametrize("relation", VERSIONED, ids=lambda relation: relation.name)
def test_update_of_a_version_that_is_gone_changes_nothing(relation: Relation, world: World) -> None:
    # K-082: the losing writer of a race overwrites nothing
    entity = world.fresh(relation)
    world.insert(relation, entity)
    plans = world.store.plans[relation.name]
    plan = plans.update
    assert plan is not None
    other = plans.codec.encode(different(relation, entity))
    key = key_of(world.store, relation, entity)
    values = [other[plans.codec.index(name)] for name in plan.binds[: -len(key) - 1]]

    def written(uow: UnitOfWork) -> list[int]:
        return [session_of(uow).changed(plan, (*values, *key, entity.version + step)) for step in (-1, 1, 7)]

    assert world.store.write(written) == [0, 0, 0]
    assert world.get(relation, entity) == entity
    assert world.store.write(lambda uow: session_of(uow).changed(plan, (*values, *key, entity.version))) == 1


def test_loser_of_a_race_is_told(world: World) -> None:
    trajectory = world.fresh(TRAJECTORY)
    world.insert(TRAJECTORY, trajectory)
    key = trajectory.trajectory_id.bytes

    def lost(uow: UnitOfWork) -> None:
        uow.get(TRAJECTORY, key)
        with replaced(uow, "held", {}):  # as another writer that read it as well
            uow.get(TRAJECTORY, key)
            uow.update(TRAJECTORY, dataclasses.replace(trajectory, goal="first"))
        uow.update(TRAJECTORY, dataclasses.replace(trajectory, goal="second"))

    with pytest.raises(Conflict, match="another writer changed it first"):
        world.store.write(lost)
    assert world.get(TRAJECTORY, trajectory) == trajectory, "both updates are undone"


@pytest.mark.parametrize("relation", VERSIONED, ids=lambda relation: relation.name)
def test_writing_what_was_not_read_is_a_fault_of_ours(relation: Relation, world: World) -> None:
    entity = world.fresh(relation)
    with pytest.raises(InternalError):
        world.store.write(lambda uow: uow.update(relation, entity))
    with pytest.raises(InternalError):
        world.store.write(lambda uow: uow.delete(relation, entity))


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_delete_removes_the_row_and_only_it(relation: Relation, world: World) -> None:
    entity, bystander = world.fresh(relation), world.fresh(relation)
    world.insert(relation, entity, bystander)
    before = count(world.store, relation)

    def work(uow: UnitOfWork) -> None:
        uow.delete(relation, uow.get(relation, *key_of(world.store, relation, entity)))

    world.store.write(work)
    assert count(world.store, relation) == before - 1
    assert world.get(relation, entity) is None
    assert world.get(relation, bystander) == bystander
    with pytest.raises(NotFound):
        world.store.write(work)


@pytest.mark.parametrize("relation", [each for each in DECLARED if each.by_id], ids=lambda relation: relation.name)
def test_several_rows_are_inserted_found_and_deleted_at_once(relation: Relation, world: World) -> None:
    made = [world.fresh(relation) for _ in range(4)]
    before = count(world.store, relation)
    keys = [key_of(world.store, relation, entity)[0] for entity in made]
    rows = [world.store.plans[relation.name].codec.encode(entity) for entity in made]
    assert world.store.write(lambda uow: uow.insert_all(relation, rows[:3])) is True
    with pytest.raises(ValueError, match="undone"):
        world.store.write(lambda uow: _refused(uow, relation, rows))
    assert world.store.write(lambda uow: uow.find_all(relation, keys)) == dict(zip(keys, made[:3], strict=False))

    def work(uow: UnitOfWork) -> None:
        found = uow.find_rows(relation, keys[:2])
        uow.delete_rows(relation, list(found.values()))

    world.store.write(work)
    assert world.store.write(lambda uow: uow.find_all(relation, keys)) == {keys[2]: made[2]}
    assert count(world.store, relation) == before + 1


def _refused(uow: UnitOfWork, relation: Relation, rows: list[Row]) -> None:
    assert uow.insert_all(relation, rows) is False
    raise ValueError("undone")


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_pages_give_every_row_once_and_in_order(relation: Relation, world: World) -> None:
    """Pages of one row, so that every border is tried; their order is that of pages of any size."""
    shared: dict[str, Any] = {}
    if len(relation.key) > 1:  # rows that share the first part of a longer key
        shared[relation.key[0]] = value_of(relation, world.fresh(relation), relation.key[0])
    made = [world.fresh(relation, **shared) for _ in range(5)]
    ordinals = world.insert(relation, *made)
    codec = world.store.plans[relation.name].codec
    with world.store.read() as session:
        whole = all_rows(world.store, session, relation)
        pages = {rows: all_rows(world.store, session, relation, page_rows=rows) for rows in (1, 3)}
        assert session.run(world.store.plans[relation.name].count, ()) == [(len(whole),)]
    assert pages[1] == whole
    assert pages[3] == whole
    decoded = [codec.decode(row) for row in whole]
    assert [decoded.count(entity) for entity in made] == [1] * 5
    if relation.ordinal:
        assert [row[0] for row in whole] == sorted({row[0] for row in whole})
        assert [row[0] for row in whole if codec.decode(row) in made] == ordinals
    else:
        first = codec.index(relation.key[0])
        if not isinstance(whole[0][first], str):  # the order of texts is the database's own
            assert [row[first] for row in whole] == sorted(row[first] for row in whole)


@pytest.mark.parametrize("relation", NUMBERED, ids=lambda relation: relation.name)
def test_many_rows_are_read_by_ordinal(relation: Relation, world: World) -> None:
    made = [world.fresh(relation) for _ in range(3)]
    ordinals = world.insert(relation, *made)
    assert len(set(ordinals)) == 3
    plans = world.store.plans[relation.name]
    assert plans.get_many is not None
    with world.store.read() as session:
        rows = session.run(plans.get_many, (dump_json([ordinals[0], ordinals[2], 2**62]),))
        assert session.run(plans.get_many, ("[]",)) == []
    assert len(rows) == 2
    assert {row[0]: plans.codec.decode(row) for row in rows} == {ordinals[0]: made[0], ordinals[2]: made[2]}


@pytest.mark.parametrize("relation", NUMBERED, ids=lambda relation: relation.name)
def test_ordinal_is_never_given_twice(relation: Relation, world: World) -> None:
    """Window records and change records name rows by ordinal, also after the row was deleted."""
    first, second = world.fresh(relation), world.fresh(relation)
    (ordinal,) = world.insert(relation, first)
    assert ordinal is not None
    key = key_of(world.store, relation, first)
    world.store.write(lambda uow: uow.delete(relation, uow.get(relation, *key)))
    (again,) = world.insert(relation, second)
    assert again is not None
    assert again > ordinal


@pytest.mark.parametrize("relation", DECLARED, ids=lambda relation: relation.name)
def test_row_can_be_locked_where_the_database_locks_rows(relation: Relation, world: World) -> None:
    entity = world.fresh(relation)
    world.insert(relation, entity)
    plan = world.store.plans[relation.name].lock
    if plan is None:
        return  # one writer at a time: no other can write it
    here, nowhere = key_of(world.store, relation, entity), key_of(world.store, relation, world.fresh(relation))
    found = world.store.write(lambda uow: [len(session_of(uow).run(plan, key)) for key in (here, nowhere)])
    assert found == [1, 0]


PATHS = [(relation, path) for relation in DECLARED for path in relation.paths]


@pytest.mark.parametrize(("relation", "path"), PATHS, ids=[f"{relation.name}-{path.name}" for relation, path in PATHS])
def test_access_path_lists_what_it_says_in_its_order(relation: Relation, path: AccessPath, world: World) -> None:
    # C-321, C-322, C-326, C-333 to C-335, C-341, C-345, C-350: compared with a filter and a sort in Python
    made = list(_population(world, relation, path))
    world.insert(relation, *made)
    plans = world.store.plans[relation.name]
    codec = plans.codec
    places = [codec.index(name) for name in path.by]
    encoded = codec.encode(made[0])
    wanted = tuple(encoded[place] for place in places)

    def belongs(row: Row) -> bool:
        if tuple(row[place] for place in places) != wanted:
            return False
        values = ((row[codec.index(name)], wanted) for name, wanted in path.where)
        return all(
            (value is None) == wanted if isinstance(wanted, bool) else value == wanted for value, wanted in values
        )

    with world.store.read() as session:
        expected = sorted(
            (row for row in all_rows(world.store, session, relation) if belongs(row)),
            key=lambda row: tuple(row[codec.index(name)] for name in path.order),
            reverse=path.descending,
        )
        listed = plans.lists[path.name]
        got = session.run(listed, (*wanted, 1_000) if path.limited else wanted)
        counted = session.run(plans.counts[path.name], wanted)
        assert sum(codec.decode(row) in made for row in got) >= 2, "the population does not try this path"
        assert [_order(codec.names, path, row) for row in got] == [_order(codec.names, path, row) for row in expected]
        assert sorted(map(repr, got)) == sorted(map(repr, expected))
        assert counted == [(len(expected),)]
        if path.by or path.where:
            assert len(expected) < count(world.store, relation), "every row belongs to this key"
        if path.limited:
            assert session.run(listed, (*wanted, 1)) == got[:1]
            assert session.run(listed, (*wanted, 0)) == []


def _order(names: tuple[str, ...], path: AccessPath, row: Row) -> tuple[Any, ...]:
    return tuple(row[names.index(name)] for name in path.order)


def _population(world: World, relation: Relation, path: AccessPath) -> Iterator[Any]:
    """Yield rows of one key of a path, in and out of its condition and in no order, and one of another key."""
    references = world.references(relation, all_of_them=True)
    first = world.fresh(relation)
    common: dict[str, Any] = {}
    for name in path.by:
        value = value_of(relation, first, name)
        common[name] = _present(relation, name, references, 1) if value is None else value
    base, number = next(_bases), 0
    for outside in (False, True) if path.where else (False,):
        for step in (3, 1, 2):
            columns = {**common, **_apart(relation, path, number)}
            for name, null in path.where:
                if not isinstance(null, bool):  # a member of an enum
                    columns[name] = next(each for each in type(null) if (each is null) is not outside)
                    continue
                present = null if outside else not null
                columns[name] = columns.get(name) or _present(relation, name, references, step) if present else None
            for name in path.order:
                if name != "ordinal" and name not in columns:
                    kind = relation.column(name).type
                    if kind is ColumnType.INSTANT:
                        columns[name] = from_us(step)
                    elif kind is ColumnType.INT:
                        check = relation.column(name).check
                        few = check is not None and check[1] is not None  # 1 to 3 are among them
                        columns[name] = step if few else base + 100 * step + outside
            yield world.fresh(relation, **columns)
            number += 1
    yield world.fresh(relation, **_elsewhere(world, relation, path))


def _elsewhere(world: World, relation: Relation, path: AccessPath) -> dict[str, Any]:
    """Return the columns of another key of a path."""
    other = different(relation, world.fresh(relation))
    columns: dict[str, Any] = {}
    for name in path.by:
        key = next((key for key in relation.foreign_keys if key.column == name), None)
        if key is not None:
            target = next(each for each in DECLARED if each.name == key.relation)
            owner = world.fresh(target)
            world.insert(target, owner)
            columns[name] = getattr(owner, key.target)
        elif name not in relation.key:
            columns[name] = value_of(relation, other, name)
    return columns


_bases = iter(range(3_000_000_000, 4_000_000_000, 1_000))


def _apart(relation: Relation, path: AccessPath, number: int) -> dict[str, Any]:
    """Return values that keep rows of one key of a path from breaking a rule of uniqueness with each other."""
    names = {name for unique in relation.uniques for name in unique.columns} - set(path.by)
    enums = {name: relation.column(name).enum for name in names}
    values: dict[str, Any] = {name: list(enum)[number % len(enum)] for name, enum in enums.items() if enum is not None}
    if number:  # the first row alone meets the condition of a rule that binds all rows of the key
        values |= {
            name: _present(relation, name, {}, number)
            for unique in relation.uniques
            if set(path.by).issuperset(unique.columns)
            for name, null in unique.where
            if null is True
        }
    return values


def _present(relation: Relation, name: str, references: dict[str, Any], step: int) -> Any:
    if name in references:
        return references[name]
    column = relation.column(name)
    kind = column.type
    if column.enum is not None:
        return next(iter(column.enum))
    if kind is ColumnType.INSTANT:
        return from_us(step)
    if kind is ColumnType.UUID:
        return uuid.UUID(int=99)
    return step if kind is ColumnType.INT else "present"


REFERENCES = [(relation, key) for relation in DECLARED if relation.mirrored for key in relation.foreign_keys]


@pytest.mark.parametrize(
    ("relation", "key"), REFERENCES, ids=[f"{relation.name}-{key.column}" for relation, key in REFERENCES]
)
def test_referring_rows_are_found(relation: Relation, key: ForeignKey, world: World) -> None:
    target = next(each for each in DECLARED if each.name == key.relation)
    owner = world.fresh(target)
    world.insert(target, owner)
    at = getattr(owner, key.target)
    referring = [world.fresh(relation, **{key.column: at}) for _ in range(2)]
    world.insert(relation, *referring, world.fresh(relation))
    plans = world.store.plans[relation.name]
    with world.store.read() as session:
        rows = session.run(plans.references[key.column], (at.bytes,))
    assert [plans.codec.decode(row) for row in rows] == referring
