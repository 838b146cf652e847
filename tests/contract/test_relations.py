"""Every relation, column by column, through every regular statement. Source: design section 3, C-187 to C-195."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.entities import different, entities_of, plain

from caliber.model.enums import ArtifactType
from caliber.model.errors import Conflict, InternalError, NotFound, StorageError
from caliber.model.time import from_us
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import (
    ARTIFACT,
    CHANGE,
    CHECKPOINT,
    CONTEXT_WINDOW,
    EMBEDDING_SPACE,
    NOTE,
    RELATIONS,
    SCOPE,
    SESSION,
    TRAJECTORY,
    TURN,
)
from caliber.storage.protocol import Store
from caliber.storage.unit_of_work import UnitOfWork

DECLARED = [relation for relation in RELATIONS if relation is not CHANGE]
VERSIONED = [relation for relation in DECLARED if relation.versioned]


def by_name(relations: list[Relation]) -> Any:
    return pytest.mark.parametrize("relation", relations, ids=lambda relation: relation.name)


class Undo(Exception):
    """Rolls a transaction back."""


def undone(store: Store, work: Any) -> None:
    """Run ``work`` in a transaction that leaves nothing behind."""

    def run(uow: UnitOfWork) -> None:
        work(uow)
        raise Undo

    with pytest.raises(Undo):
        store.write(run)


@pytest.fixture
def store(backend: Any) -> Store:
    return backend.store()


@pytest.fixture
def parents(store: Store) -> dict[str, Any]:
    """Rows that others refer to, committed."""
    session = plain(SESSION)
    trajectory = plain(TRAJECTORY)
    scope = plain(SCOPE, trajectory_id=trajectory.trajectory_id)
    artifact = plain(ARTIFACT, scope_id=scope.scope_id, trajectory_id=trajectory.trajectory_id)
    note = plain(NOTE)
    space = plain(EMBEDDING_SPACE)

    def work(uow: UnitOfWork) -> None:
        for relation, entity in (
            (SESSION, session),
            (TRAJECTORY, trajectory),
            (SCOPE, scope),
            (ARTIFACT, artifact),
            (NOTE, note),
            (EMBEDDING_SPACE, space),
        ):
            uow.insert(relation, entity)

    store.write(work)
    return {
        "session": session.session_id,
        "trajectory": trajectory.trajectory_id,
        "scope": scope.scope_id,
        "artifact": artifact.artifact_id,
        "note": note.note_id,
        "embedding_space": space.space_id,
    }


def references(relation: Relation, parents: dict[str, Any], *, all_of_them: bool) -> dict[str, Any]:
    """Return the fields of a relation that refer to existing rows."""
    return {
        key.column: parents[key.relation]
        for key in relation.foreign_keys
        if all_of_them or not relation.column(key.column).nullable
    }


def fresh(relation: Relation, parents: dict[str, Any], /, **fixed: Any) -> Any:
    """Return an unremarkable entity that clashes with no parent."""
    values = {**references(relation, parents, all_of_them=False), **fixed}
    if relation is SCOPE:
        values.setdefault("sequence_number", 7)
    if relation in (NOTE, EMBEDDING_SPACE):
        name = "fingerprint" if relation is NOTE else "model_id"
        values.setdefault(name, b"\x07" * 32 if relation is NOTE else "another model")
    if relation is ARTIFACT:
        values.setdefault("content_hash", b"\x07" * 32)
    return plain(relation, **values)


def key_of(store: Store, relation: Relation, entity: Any) -> tuple[Any, ...]:
    codec = store.plans[relation.name].codec
    row = codec.encode(entity)
    return tuple(row[codec.index(name)] for name in relation.key)


def same(first: Any, second: Any) -> bool:
    """Return whether two entities are equal, field by field and type by type."""
    return first == second and all(
        type(getattr(first, field.name)) is type(getattr(second, field.name)) for field in dataclasses.fields(first)
    )


# --- columns -------------------------------------------------------------------------------------


@by_name(DECLARED)
def test_every_column_comes_back_as_it_went_in(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    # design section 3: uuid, instant, text, int, float, bool, bytes, json, arrays, enum, vector; NULL and extremes
    taken = {parents.get(relation.name)}
    strategy = st.one_of(
        entities_of(relation, **references(relation, parents, all_of_them=False)),
        entities_of(relation, **references(relation, parents, all_of_them=True)),
    )

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def check(entity: Any) -> None:
        if getattr(entity, relation.key[0]) in taken or _clashes(relation, entity):
            return

        def work(uow: UnitOfWork) -> None:
            uow.insert(relation, entity)
            assert same(uow.get(relation, *key_of(store, relation, entity)), entity)

        undone(store, work)

    check()


def _clashes(relation: Relation, entity: Any) -> bool:
    # Number 0 of the trajectory is taken by the parent; migration 1 by the schema itself.
    if relation is SCOPE:
        return bool(entity.sequence_number == 0)
    return relation.name == "schema_migration" and entity.schema_version == 1


@by_name(DECLARED)
def test_committed_row_comes_back_in_another_session(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    entity = fresh(relation, parents)
    store.write(lambda uow: uow.insert(relation, entity))
    plans = store.plans[relation.name]
    with store.read() as session:
        rows = session.run(plans.get, key_of(store, relation, entity))
    assert [plans.codec.decode(row) for row in rows] == [entity]


@by_name(DECLARED)
def test_every_nullable_column_may_be_null_and_no_other(
    relation: Relation, store: Store, parents: dict[str, Any]
) -> None:
    plans = store.plans[relation.name]
    row = list(plans.codec.encode(fresh(relation, parents)))
    for column in relation.columns:
        place = plans.codec.index(column.name)
        if column.nullable:
            continue
        if relation.key == (column.name,) and column.type is ColumnType.INT:
            continue  # a database may number such rows by itself
        broken = [*row[:place], None, *row[place + 1 :]]
        with pytest.raises(StorageError):
            store.write(lambda uow, broken=broken: uow._session.run(plans.insert, broken))
    assert _count(store, relation) == _count_of_parents(relation, parents)


# --- rules ---------------------------------------------------------------------------------------


@by_name([relation for relation in DECLARED if any(column.check for column in relation.columns)])
def test_number_out_of_range_is_refused(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    # C-027 and every other range that a column declares
    plans = store.plans[relation.name]
    row = plans.codec.encode(fresh(relation, parents))
    tried = 0
    for column in relation.columns:
        for bound, step in zip(column.check or (None, None), (-1, 1), strict=True):
            if bound is None:
                continue
            wrong = bound + step if column.type is ColumnType.INT else bound + step * 1e-9
            place = plans.codec.index(column.name)
            broken = (*row[:place], wrong, *row[place + 1 :])
            with pytest.raises(StorageError, match="rule of the schema"):
                store.write(lambda uow, broken=broken: uow._session.run(plans.insert, broken))
            tried += 1
    assert tried


@by_name([relation for relation in DECLARED if any(column.enum or column.length for column in relation.columns)])
def test_value_outside_its_set_or_length_is_refused(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    plans = store.plans[relation.name]
    row = plans.codec.encode(fresh(relation, parents))
    for column in relation.columns:
        if not column.enum and not column.length:
            continue
        wrong: Any = "no such member" if column.enum else b"short"
        place = plans.codec.index(column.name)
        broken = (*row[:place], wrong, *row[place + 1 :])
        with pytest.raises(StorageError):
            store.write(lambda uow, broken=broken: uow._session.run(plans.insert, broken))


@by_name(DECLARED)
def test_value_of_another_type_is_refused(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    """Tables are strict: a column holds its type and nothing else."""
    plans = store.plans[relation.name]
    row = plans.codec.encode(fresh(relation, parents))
    for column in relation.columns:
        integers = (ColumnType.INT, ColumnType.INSTANT, ColumnType.BOOL, ColumnType.FLOAT)
        wrong: Any = b"not this" if column.type in integers else 12.5
        if column.type in (ColumnType.TEXT, ColumnType.JSON, ColumnType.TEXT_ARRAY, ColumnType.ENUM):
            wrong = b"\x00bytes"
        place = plans.codec.index(column.name)
        broken = (*row[:place], wrong, *row[place + 1 :])
        with pytest.raises(StorageError):
            store.write(lambda uow, broken=broken: uow._session.run(plans.insert, broken))


@by_name(DECLARED)
def test_second_row_with_a_key_is_refused(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    # C-318, C-323
    entity = fresh(relation, parents)
    store.write(lambda uow: uow.insert(relation, entity))
    with pytest.raises(Conflict):
        store.write(lambda uow: uow.insert(relation, entity))
    assert store.write(lambda uow: uow.insert_new(relation, entity)) is False
    assert _count(store, relation) == 1 + _count_of_parents(relation, parents)


UNIQUES = [(relation, unique) for relation in DECLARED for unique in relation.uniques]


@pytest.mark.parametrize(
    ("relation", "unique"), UNIQUES, ids=[f"{relation.name}-{'-'.join(unique.columns)}" for relation, unique in UNIQUES]
)
def test_uniqueness_holds_where_its_condition_does(
    relation: Relation, unique: Any, store: Store, parents: dict[str, Any]
) -> None:
    # K-043: partial rules bind only the rows they speak of
    shared = {}
    for name in unique.columns:
        if relation.column(name).nullable:
            shared[name] = "the same"
    first = fresh(relation, parents, **shared)
    equal = {name: _field(relation, first, name) for name in unique.columns}
    second = fresh(relation, parents, **_composed(relation, {**_apart(relation, unique, first), **equal, **shared}))
    store.write(lambda uow: uow.insert(relation, first))
    with pytest.raises(Conflict):
        store.write(lambda uow: uow.insert(relation, second))
    assert store.write(lambda uow: uow.insert_new(relation, second)) is False
    for name, null in unique.where:
        if name in unique.columns:
            continue
        column = relation.column(name)
        outside: Any = None
        if null:
            outside = {ColumnType.INSTANT: from_us(5), ColumnType.TEXT: "a key"}.get(column.type)
            if column.type is ColumnType.UUID:
                outside = parents[relation.name]
        third = dataclasses.replace(second, **{relation.key[0]: uuid.uuid4(), name: outside})
        store.write(lambda uow, third=third: uow.insert(relation, third))


def _field(relation: Relation, entity: Any, column: str) -> Any:
    for composite in relation.composites:
        for attribute, name in composite.parts:
            if name == column:
                return getattr(getattr(entity, composite.field), attribute)
    return getattr(entity, column)


def _composed(relation: Relation, values: dict[str, Any], entity: Any = None) -> dict[str, Any]:
    """Turn columns of a composite into its field, the rest of it taken from ``entity``."""
    out = dict(values)
    for composite in relation.composites:
        names = {name: attribute for attribute, name in composite.parts}
        given = {names[name]: out.pop(name) for name in list(out) if name in names}
        if given:
            base = getattr(entity or plain(relation), composite.field)
            out[composite.field] = dataclasses.replace(base, **given)
    return out


def _apart(relation: Relation, unique: Any, first: Any) -> dict[str, Any]:
    """Return values that keep a second row from breaking another rule than ``unique``."""
    values: dict[str, Any] = {}
    for other in relation.uniques:
        if other is unique:
            continue
        for name in other.columns:
            if name in unique.columns or name in {key.column for key in relation.foreign_keys}:
                continue
            column = relation.column(name)
            if column.type is ColumnType.INT:
                values[name] = getattr(first, name) + 1
            elif column.type is ColumnType.BYTES:
                values[name] = b"\x55" * (column.length or 3)
    return values


@pytest.mark.parametrize(
    ("relation", "key"),
    [(relation, key) for relation in DECLARED for key in relation.foreign_keys],
    ids=[f"{relation.name}-{key.column}" for relation in DECLARED for key in relation.foreign_keys],
)
def test_reference_to_nothing_is_refused(relation: Relation, key: Any, store: Store, parents: dict[str, Any]) -> None:
    entity = fresh(relation, parents, **{key.column: uuid.uuid4()})
    with pytest.raises(StorageError):
        store.write(lambda uow: uow.insert(relation, entity))
    assert _count(store, relation) == _count_of_parents(relation, parents)


def test_owned_rows_go_with_their_owner_and_mentions_are_forgotten(store: Store) -> None:
    # K-038: cascade for owned rows, set null for mentions
    parent = plain(TRAJECTORY)
    trajectory = plain(TRAJECTORY, parent_trajectory_id=parent.trajectory_id)
    scope = plain(SCOPE, trajectory_id=trajectory.trajectory_id)
    owner = {"trajectory_id": trajectory.trajectory_id, "scope_id": scope.scope_id}
    turn = plain(TURN, **owner)
    artifact = plain(ARTIFACT, **owner)
    checkpoint = plain(CHECKPOINT, **owner)
    window = plain(CONTEXT_WINDOW, trajectory_id=trajectory.trajectory_id)
    rows = [
        (TRAJECTORY, parent), (TRAJECTORY, trajectory), (SCOPE, scope), (TURN, turn),
        (ARTIFACT, artifact), (CHECKPOINT, checkpoint), (CONTEXT_WINDOW, window),
    ]  # fmt: skip
    store.write(lambda uow: [uow.insert(relation, entity) for relation, entity in rows])

    def forget_parent(uow: UnitOfWork) -> None:
        uow.delete(TRAJECTORY, uow.get(TRAJECTORY, parent.trajectory_id.bytes))

    store.write(forget_parent)
    with store.read() as session:
        plans = store.plans["trajectory"]
        left = [plans.codec.decode(row) for row in session.run(plans.page, (-1, 10))]
    assert [(item.trajectory_id, item.parent_trajectory_id) for item in left] == [(trajectory.trajectory_id, None)]

    def forget(uow: UnitOfWork) -> None:
        uow.delete(TRAJECTORY, uow.get(TRAJECTORY, trajectory.trajectory_id.bytes))

    store.write(forget)
    for relation in (TRAJECTORY, SCOPE, TURN, ARTIFACT, CHECKPOINT, CONTEXT_WINDOW):
        assert _count(store, relation) == 0, relation.name


# --- regular statements --------------------------------------------------------------------------


@by_name(DECLARED)
def test_upsert_inserts_and_then_overwrites_every_column(
    relation: Relation, store: Store, parents: dict[str, Any]
) -> None:
    entity = fresh(relation, parents)
    store.write(lambda uow: uow.upsert(relation, entity))
    assert store.write(lambda uow: uow.get(relation, *key_of(store, relation, entity))) == entity
    changed = different(relation, entity)
    store.write(lambda uow: uow.upsert(relation, changed))
    assert store.write(lambda uow: uow.get(relation, *key_of(store, relation, entity))) == changed
    assert _count(store, relation) == 1 + _count_of_parents(relation, parents)


@by_name(VERSIONED)
def test_update_writes_every_column_and_raises_the_version(
    relation: Relation, store: Store, parents: dict[str, Any]
) -> None:
    entity = fresh(relation, parents)
    store.write(lambda uow: uow.insert(relation, entity))
    key = key_of(store, relation, entity)
    wanted = different(relation, entity)

    def work(uow: UnitOfWork) -> Any:
        assert uow.get(relation, *key) == entity
        return uow.update(relation, wanted)

    stored = store.write(work)
    assert stored == dataclasses.replace(wanted, version=entity.version + 1)
    assert store.write(lambda uow: uow.get(relation, *key)) == stored


@by_name(VERSIONED)
def test_update_of_a_version_that_is_gone_is_a_conflict(
    relation: Relation, store: Store, parents: dict[str, Any]
) -> None:
    # K-082: the losing writer of a race is told, and overwrites nothing
    entity = fresh(relation, parents)
    store.write(lambda uow: uow.insert(relation, entity))
    key = key_of(store, relation, entity)
    changed = different(relation, entity)

    def lost(uow: UnitOfWork) -> None:
        held = dict(uow._held)
        uow.get(relation, *key)
        stale = dict(uow._held)
        uow.update(relation, changed)
        uow._held = {**held, **stale}
        uow.update(relation, entity)

    with pytest.raises(Conflict) as caught:
        store.write(lost)
    assert "another writer changed it first" in str(caught.value)
    assert store.write(lambda uow: uow.get(relation, *key)) == entity


@by_name(VERSIONED)
def test_writing_what_was_not_read_is_a_fault_of_ours(
    relation: Relation, store: Store, parents: dict[str, Any]
) -> None:
    entity = fresh(relation, parents)
    with pytest.raises(InternalError):
        store.write(lambda uow: uow.update(relation, entity))
    with pytest.raises(InternalError):
        store.write(lambda uow: uow.delete(relation, entity))


@by_name(DECLARED)
def test_delete_removes_the_row_and_only_it(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    entity = fresh(relation, parents)
    before = _count(store, relation)
    store.write(lambda uow: uow.insert(relation, entity))

    def work(uow: UnitOfWork) -> None:
        uow.delete(relation, uow.get(relation, *key_of(store, relation, entity)))

    store.write(work)
    assert _count(store, relation) == before
    with pytest.raises(NotFound):
        store.write(lambda uow: uow.get(relation, *key_of(store, relation, entity)))


@by_name(DECLARED)
def test_pages_give_every_row_once(relation: Relation, store: Store, parents: dict[str, Any]) -> None:
    """Keyset pages of one row each, so that every border between pages is tried."""
    inserted = [_numbered(relation, parents, number) for number in range(5)]
    store.write(lambda uow: [uow.insert(relation, entity) for entity in inserted])
    plans = store.plans[relation.name]
    seen = []
    with store.read() as session:
        keys = [plans.codec.index(name) for name in plans.page.binds[:-1]]
        after: tuple[Any, ...] = _before_all(relation, plans.page.binds[:-1])
        for _ in range(50):
            rows = session.run(plans.page, (*after, 1))
            if not rows:
                break
            seen.append(plans.codec.decode(rows[0]))
            after = tuple(rows[0][place] for place in keys)
    assert len(seen) == 5 + _count_of_parents(relation, parents)
    assert [entity for entity in seen if entity in inserted] == _in_page_order(relation, plans, inserted, seen)
    assert all(entity in seen for entity in inserted)


def _before_all(relation: Relation, names: tuple[str, ...]) -> tuple[Any, ...]:
    first = []
    for name in names:
        integer = name == "ordinal" or relation.column(name).type in (ColumnType.INT, ColumnType.INSTANT)
        text = not integer and relation.column(name).type in (ColumnType.TEXT, ColumnType.ENUM)
        first.append(-(2**63) if integer else "" if text else b"")
    return tuple(first)


def _in_page_order(relation: Relation, plans: Any, inserted: list[Any], seen: list[Any]) -> list[Any]:
    if relation.ordinal:
        return inserted
    return [entity for entity in seen if entity in inserted]


def _numbered(relation: Relation, parents: dict[str, Any], number: int) -> Any:
    """Return entities that differ in every unique column, and share the first part of a longer key."""
    values: dict[str, Any] = {}
    names = {name for unique in relation.uniques for name in unique.columns} | set(relation.key)
    fixed = {key.column for key in relation.foreign_keys}
    for name in names - fixed:
        if len(relation.key) > 1 and name == relation.key[0]:
            continue
        column = relation.column(name)
        if column.nullable and name not in relation.key:
            continue
        if column.type is ColumnType.INT:
            values[name] = 10 + number
        elif column.type is ColumnType.UUID:
            values[name] = uuid.UUID(int=number + 1)
        elif column.type is ColumnType.BYTES:
            values[name] = bytes([20 + number]) * (column.length or 2)
        elif column.type is ColumnType.TEXT:
            values[name] = f"text {number}"
    return fresh(relation, parents, **_composed(relation, values))


def test_many_rows_are_read_by_ordinal(store: Store, parents: dict[str, Any]) -> None:
    for relation in DECLARED:
        if not relation.ordinal:
            assert store.plans[relation.name].get_many is None
            continue
        entities = [_numbered(relation, parents, number) for number in range(3)]
        ordinals = store.write(
            lambda uow, relation=relation, entities=entities: [uow.insert(relation, entity) for entity in entities]
        )
        assert ordinals == sorted(set(ordinals)), relation.name
        plans = store.plans[relation.name]
        with store.read() as session:
            rows = session.run(plans.get_many, (f"[{ordinals[0]},{ordinals[2]},999999]",))
        assert sorted(row[0] for row in rows) == [ordinals[0], ordinals[2]]
        assert [plans.codec.decode(row) for row in rows if row[0] == ordinals[2]] == [entities[2]]


def test_ordinal_is_never_given_twice(store: Store) -> None:
    """Window records and the feed name rows by ordinal, also after the row is gone."""
    first = plain(TRAJECTORY)
    ordinal = store.write(lambda uow: uow.insert(TRAJECTORY, first))
    store.write(lambda uow: uow.delete(TRAJECTORY, uow.get(TRAJECTORY, first.trajectory_id.bytes)))
    again = store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert again > ordinal


PATHS = [(relation, path) for relation in DECLARED for path in relation.paths]


@pytest.mark.parametrize(("relation", "path"), PATHS, ids=[f"{relation.name}-{path.name}" for relation, path in PATHS])
def test_access_path_lists_what_it_says_in_its_order(
    relation: Relation, path: Any, store: Store, parents: dict[str, Any]
) -> None:
    # C-321, C-322, C-326, C-333 to C-335, C-341, C-345, C-350: compared with a filter and a sort in Python
    entities = list(_population(relation, path, parents))
    store.write(lambda uow: [uow.insert(relation, entity) for entity in entities])
    plans = store.plans[relation.name]
    codec = plans.codec
    with store.read() as session:
        rows = session.run(plans.page, (-1, 1_000)) if relation.ordinal else [codec.encode(e) for e in entities]
        if not relation.ordinal and relation.name == "schema_migration":
            rows = session.run(plans.page, (-1, 1_000))
        wanted_key = tuple(codec.encode(entities[0])[codec.index(name)] for name in path.by)

        def belongs(row: Any) -> bool:
            if tuple(row[codec.index(name)] for name in path.by) != wanted_key:
                return False
            return all((row[codec.index(name)] is None) == null for name, null in path.where)

        expected = sorted(
            (row for row in rows if belongs(row)),
            key=lambda row: tuple(row[codec.index(name)] for name in path.order),
            reverse=path.descending,
        )
        parameters = (*wanted_key, 100) if path.limited else wanted_key
        got = session.run(plans.lists[path.name], parameters)
        assert [tuple(row) for row in got] == [tuple(row) for row in expected]
        assert len(expected) >= 2, "the population does not try this path"
        if path.limited:
            assert session.run(plans.lists[path.name], (*wanted_key, 1)) == got[:1]
            assert session.run(plans.lists[path.name], (*wanted_key, 0)) == []


def _population(relation: Relation, path: Any, parents: dict[str, Any]) -> Iterator[Any]:
    """Yield rows that belong to one key of a path, in and out of its condition."""
    known = references(relation, parents, all_of_them=True)
    first: Any = None
    number = 0
    for outside in (False, True):
        for step in (3, 1, 2):
            entity = _numbered(relation, parents, number)
            changes: dict[str, Any] = {}
            for name, null in path.where:
                present = null if outside else not null
                changes[name] = _present(relation, name, known, step) if present else None
            for name in path.by:
                if name not in changes:
                    value = _field(relation, first or entity, name)
                    changes[name] = _present(relation, name, known, 1) if value is None else value
            for name in path.order:
                if name != "ordinal" and name not in changes and name not in relation.key:
                    if relation.column(name).type is ColumnType.INSTANT:
                        changes[name] = from_us(step)
                    elif relation.column(name).type is ColumnType.INT:
                        changes[name] = 100 * number + step
            if relation is ARTIFACT and "artifact_type" not in path.by:
                changes["artifact_type"] = list(ArtifactType)[number]
            entity = dataclasses.replace(entity, **_composed(relation, changes, entity))
            first = first or entity
            yield entity
            number += 1
        if not path.where:
            return


def _present(relation: Relation, name: str, known: dict[str, Any], step: int) -> Any:
    if name in known:
        return known[name]
    kind = relation.column(name).type
    if kind is ColumnType.INSTANT:
        return from_us(step)
    if kind is ColumnType.UUID:
        return uuid.UUID(int=99)
    return "present"


def _count(store: Store, relation: Relation) -> int:
    with store.read() as session:
        count: int = session.run(store.plans[relation.name].count, ())[0][0]
    return count


def _count_of_parents(relation: Relation, parents: dict[str, Any]) -> int:
    return int(relation.name in parents) + int(relation.name == "schema_migration")
