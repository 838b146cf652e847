"""Any declaration becomes a table and back; steps towards another leave the store that would have been made at once.

Statements follow from declared changes, from any earlier declaration to today's, with rows that stay.

Source: issue 14, item 5; decision 0201.
"""

from __future__ import annotations

import itertools
import json
import pickle
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import apsw
import pytest
from contract.entities import plain
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.evidence import examples
from support.memories import record
from support.storage.schema_changes import DEFAULTS, possible, undone, widened
from support.storage.schemas import sqlite_schema

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.sqlite.dialect import DIALECT
from caliber.model.declared import MemoryCategory, Trigger
from caliber.model.errors import InternalError, InvalidValue, SchemaMismatch, StorageError
from caliber.model.trajectory import ArtifactType
from caliber.schema.binding import faults as checked
from caliber.schema.catalog import BUILT_IN
from caliber.schema.declared_memories import bind_declared, faults
from caliber.schema.memory_definitions import definition_of, memory_from
from caliber.schema.memory_types import (
    Field,
    FieldType,
    Index,
    IndexType,
    Lifecycle,
    MemoryType,
    Retention,
    RetentionKind,
    When,
)
from caliber.schema.relation import Column, ColumnType
from caliber.schema.relations import NOTE, RELATIONS, TURN
from caliber.schema.relations.storage import FIRST_CODE, LAST_CODE, StoredMemory
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import compile_relation, create_statements
from caliber.storage.migrate.memory_steps import Wanted, memory_steps, next_step
from caliber.storage.migrate.migrations import MIGRATIONS
from caliber.storage.migrate.schema_changes import (
    AddColumn,
    AddEnumMember,
    AddRelation,
    Relations,
    SchemaChange,
    changed,
    statements_between,
)
from caliber.storage.stored_memories import first_memories
from tests.support.declarations import check_declaration

AT = datetime(2026, 1, 1, tzinfo=UTC)
PARTS = "abcdefghijklmnopqrstuvwxyz_0123456789"
NAMES = st.one_of(
    st.sampled_from(
        ["content", "title", "class", "id", "version", "trust", "created_at", "x", "select", "order", "ctid", "rowid"]
    ),
    st.text(PARTS, min_size=1, max_size=48).filter(lambda text: not text[0].isdigit()),
)
FIELDS = st.builds(
    lambda name, kind, values, optional: Field(name, kind, values if kind is FieldType.ENUM else (), optional),
    NAMES,
    st.sampled_from(FieldType),
    st.lists(st.text(max_size=6), min_size=1, max_size=4, unique=True).map(tuple),
    st.booleans(),
)
TRIGGERS = st.builds(When, st.sampled_from(Trigger), st.none())
RETENTIONS = st.builds(
    Retention,
    st.sampled_from(RetentionKind),
    st.none() | st.integers(1),
    st.none() | st.integers(1),
    st.none() | TRIGGERS,
)


def _unique(fields: list[Field]) -> tuple[Field, ...]:
    return tuple({item.name: item for item in fields}.values())


@st.composite
def memories(draw: st.DrawFn, name: str | None = None) -> MemoryType:
    fields = draw(st.lists(FIELDS, min_size=1, max_size=6).map(_unique))
    indexed = draw(st.lists(st.sampled_from([item.name for item in fields]), unique=True, max_size=3))
    return MemoryType(
        name=name or draw(st.text(PARTS, min_size=1, max_size=48).filter(lambda text: not text[0].isdigit())),
        category=draw(st.sampled_from(MemoryCategory)),
        fields=fields,
        retention=draw(RETENTIONS),
        indexes=tuple(Index(item, draw(st.sampled_from(IndexType))) for item in indexed),
        lifecycle=draw(st.sampled_from(Lifecycle)),
        closes_on=draw(st.none() | TRIGGERS),
        artifacts=draw(st.lists(st.sampled_from(ArtifactType), max_size=2).map(tuple)),
        parent=draw(st.sampled_from([None, "scope", "note", "turn_buffer"])),
        inject_on=draw(st.lists(TRIGGERS, max_size=2).map(tuple)),
    )


FACT: dict[str, Any] = json.loads(
    definition_of(
        MemoryType(
            "fact",
            MemoryCategory.SEMANTIC,
            (Field("subject", FieldType.TEXT), Field("kind", FieldType.ENUM, ("a", "b"))),
            Retention(RetentionKind.PERSISTENT),
        )
    )
)


def _stored(definition: Any, name: str = "fact", code: int = FIRST_CODE) -> StoredMemory:
    as_written: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True}
    text = definition if isinstance(definition, str) else json.dumps(definition, **as_written)
    return StoredMemory(code, name, text, AT, AT)


@pytest.mark.parametrize(
    "rows",
    [
        [_stored("[" * 100_000)],
        [_stored('{"name":' * 50_000)],
        [_stored(FACT, "other")],
        [_stored({**FACT, "name": "note"}, "note")],
        [_stored(FACT), _stored(FACT, code=FIRST_CODE + 1)],
        [_stored(FACT), _stored({**FACT, "name": "other"}, "other")],
        *([_stored(FACT, code=code)] for code in (-1, 3, FIRST_CODE - 1, LAST_CODE + 1)),
        *(
            [_stored({**FACT, **change}, change.get("name", "fact"))]
            for change in (
                {"name": 'x"; DROP TABLE note; --'},
                {"name": 5},
                {"parent": "nothing"},
                {"parent": "fact"},
                {"parent": ["note"]},
                {"parent": 'x"; --'},
                {"fields": FACT["fields"] * 2},
                {"fields": [{"name": 'a" TEXT, "b', "type": "text"}]},
                {"fields": [{"name": "a", "type": "enum", "values": [1, 2]}]},
                {"fields": [{"name": "a", "type": "text", "optional": "yes"}]},
                {"indexes": [['a"b', "btree"]]},
                {"retention": {"kind": "max", "count": "x"}},
                {"inject_on": [["turn", 5]]},
            )
        ),
    ],
)
def test_definitions_that_nobody_could_have_made_are_refused(rows: list[StoredMemory]) -> None:
    with pytest.raises((StorageError, InvalidValue)):
        BUILT_IN.with_memories(rows)


@settings(max_examples=examples(30))
@given(memories())
def test_a_definition_says_all_of_a_memory(memory: MemoryType) -> None:
    assert memory_from(definition_of(memory)) == memory


def _made(*statements: str) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE embedding (owner_type TEXT)")
    for statement in statements:
        connection.execute(statement)
    return connection


def _schema(connection: apsw.Connection, table: str) -> tuple[Any, ...]:
    columns = {(row[1], row[2], row[3]) for row in connection.execute(f'PRAGMA table_xinfo("{table}")')}
    indexes = set(connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?", (table,)))
    return columns, indexes


@settings(deadline=None, max_examples=examples(30))
@given(memories())
def test_every_memory_without_a_fault_is_a_table(memory: MemoryType) -> None:  # C-132, C-140, K-060
    assert any(checked(memory)) == any(faults(memory)), "what is checked beforehand is what can be made"
    if any(faults(memory)):
        with pytest.raises(InvalidValue):
            bind_declared(memory, 64)
        return
    (row,) = first_memories([memory], 0)
    catalog = BUILT_IN.with_memories([row])
    own = catalog.memories[memory.name]
    plans = compile_relation(own.relation, DIALECT)
    connection = _made(*plans.create)
    given_fields: dict[str, Any] = {}
    for item in memory.fields:
        if item.name in own.declared_columns and not item.optional:
            given_fields[item.name] = _VALUES[item.type] if item.type is not FieldType.ENUM else item.values[0]
    made = record(catalog, memory.name, **given_fields)
    connection.execute(plans.insert.sql, codec_of(own.relation).encode(made, None))
    (stored,) = connection.execute(plans.page.sql, (-1, 10)).fetchall()
    assert codec_of(own.relation).decode(stored) == made
    assert pickle.loads(pickle.dumps(made)) == made
    names = [line.split('"')[1] for line in compile_relation(own.relation, POSTGRES).create if "INDEX" in line[:20]]
    assert all(len(name) <= 63 for name in names)
    assert len(set(names)) == len(names)


POSTGRES = PostgresDialect("tenant", "public")
_VALUES: dict[FieldType, Any] = {
    FieldType.UUID: uuid.UUID(int=7),
    FieldType.TEXT: "text\0",
    FieldType.INT: 2**63 - 1,
    FieldType.FLOAT: -1.5,
    FieldType.BOOL: True,
    FieldType.TIMESTAMP: AT,
    FieldType.JSON: {"a": [None, 1.5]},
    FieldType.TEXTS: ("a", ""),
    FieldType.UUIDS: (uuid.UUID(int=7),),
    FieldType.BYTES: b"\x00\xff",
}


SOUND_FIELDS = st.builds(
    lambda name, kind, values, optional: Field(name, kind, values if kind is FieldType.ENUM else (), optional),
    st.sampled_from(["a", "b", "c", "content", "trajectory_id", "fact_id"]),
    st.sampled_from(
        [
            FieldType.TEXT,
            FieldType.INT,
            FieldType.ENUM,
            FieldType.UUID,
            FieldType.JSON,
            FieldType.TEXTS,
            FieldType.BYTES,
        ]
    ),
    st.sampled_from([("x",), ("y", "x"), ("x", "z w")]),
    st.sampled_from([True, True, True, False]),
)


@st.composite
def valid_memories(draw: st.DrawFn) -> MemoryType:
    """A memory that mostly can be made, as two versions of one declaration are."""
    fields = draw(st.lists(SOUND_FIELDS, min_size=1, max_size=4).map(_unique))
    if draw(st.booleans()):
        fields = (*fields, Field("content_embedding", FieldType.EMBEDDING))
    indexed = draw(st.lists(st.sampled_from([item.name for item in fields]), unique=True, max_size=2))
    indexes = tuple(Index(item, draw(st.sampled_from([IndexType.BTREE, IndexType.HASH]))) for item in indexed)
    retention = draw(st.sampled_from([RetentionKind.PERSISTENT, RetentionKind.SESSION]))
    return MemoryType("fact", MemoryCategory.SEMANTIC, fields, Retention(retention), indexes)


@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.filter_too_much])
@given(valid_memories(), valid_memories(), st.data())
def test_steps_lead_to_what_would_have_been_made_at_once(
    before: MemoryType, after: MemoryType, data: st.DataObject
) -> None:
    assume(not any(faults(before)) and not any(faults(after)))
    lost = [item.name for item in before.fields if item.name not in {field.name for field in after.fields}]
    chosen = data.draw(st.lists(st.sampled_from(lost), unique=True)) if lost else []
    drop = tuple(f"fact.{name}" for name in chosen)
    wanted = Wanted((after,), drop)
    (row,) = first_memories([before], 0)
    try:
        steps = memory_steps("store", [row], wanted, DIALECT, AT)
    except SchemaMismatch:
        return
    connection = _made(*compile_relation(bind_declared(before, row.code).relation, DIALECT).create)
    version = row.version
    for step in steps:
        for statement in step.statements:
            connection.execute(statement)
        assert step.row.version == version + 1
        version += 1
        row = step.row
    final = memory_from(row.definition)
    relation = bind_declared(final, row.code).relation
    check_declaration(relation)
    made = _made(*compile_relation(relation, DIALECT).create)
    assert _schema(connection, "memory_fact") == _schema(made, "memory_fact")
    assert memory_steps("store", [row], wanted, DIALECT, AT) == []
    kept = {item.name for item in final.fields}
    assert kept == {item.name for item in after.fields} | (set(lost) - {name.removeprefix("fact.") for name in drop})
    assert final.retention == after.retention


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("b", FieldType.TEXT)], [("a", FieldType.TEXT), ("content_embedding", FieldType.EMBEDDING)]),
        ([("id", FieldType.UUID), ("b", FieldType.INT)], [("fact_id", FieldType.UUID), ("b", FieldType.INT)]),
    ],
)
def test_what_cannot_stand_beside_what_stays_is_refused_before_any_step(
    before: list[tuple[str, FieldType]], after: list[tuple[str, FieldType]]
) -> None:
    def fact(fields: list[tuple[str, FieldType]]) -> MemoryType:
        made = tuple(Field(name, kind, optional=kind is FieldType.TEXT) for name, kind in fields)
        return MemoryType("fact", MemoryCategory.META, made, Retention(RetentionKind.PERSISTENT))

    rows = first_memories([fact(before)], 0)
    with pytest.raises(SchemaMismatch, match="what is not declared stays"):
        next_step("store", rows, Wanted((fact(after),)), DIALECT, AT)
    gone = next(name for name, _ in before if name not in dict(after))
    assert memory_steps("store", rows, Wanted((fact(after),), (f"fact.{gone}",)), DIALECT, AT)


@settings(deadline=None)
@given(st.binary(max_size=40), st.text(max_size=60))
def test_a_damaged_definition_is_an_error_of_ours(raw: bytes, text: str) -> None:
    for damaged in (text, raw.decode("latin-1"), definition_of(_SMALL)[: len(raw)]):
        with pytest.raises(StorageError):
            memory_from(damaged)


_SMALL = MemoryType("x", MemoryCategory.META, (Field("y", FieldType.INT),), Retention(RetentionKind.PERSISTENT))


def made(relations: Relations) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for relation in relations:
        for statement in create_statements(relation, DIALECT):
            connection.execute(statement)
    return connection


def asking(connection: apsw.Connection) -> Callable[[str], list[Any]]:
    return lambda text: connection.execute(text).fetchall()


WANTED = sqlite_schema(asking(made(RELATIONS)))


@given(st.lists(st.sampled_from(possible()), max_size=12, unique=True))
@settings(deadline=None)
def test_what_is_taken_back_and_added_again_is_the_same(changes: list[SchemaChange]) -> None:
    before, _ = undone(RELATIONS, changes)
    connection = made(before)
    with connection:
        for old, new in changed(before, RELATIONS):
            for statement in statements_between(old, new, DIALECT):
                connection.execute(statement).fetchall()
    assert sqlite_schema(asking(connection)) == WANTED
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    plans = compile_relation(NOTE, DIALECT)
    connection.execute(plans.insert.sql, codec_of(NOTE).encode(plain(NOTE, superseded_by=None)))
    assert connection.execute(plans.count.sql).fetchall() == [(1,)]


@pytest.mark.parametrize("column", DEFAULTS, ids=lambda column: f"{column.type}")
def test_rows_that_are_there_have_the_default_of_a_new_column(column: Column) -> None:
    after = widened(column)
    (before,) = AddColumn("turn", "added").undo((after,))
    assert before.columns == TURN.columns
    connection = made((before,))
    plans = compile_relation(replace(TURN, foreign_keys=(), uniques=(), paths=(), _by_name={}), DIALECT)
    connection.execute(plans.insert.sql, codec_of(TURN).encode(plain(TURN)))
    for statement in statements_between(before, after, DIALECT):
        connection.execute(statement).fetchall()
    # A writer of the version before goes on.
    connection.execute(plans.insert.sql, codec_of(TURN).encode(plain(TURN)))
    stored: dict[ColumnType, Any] = {ColumnType.TEXT_ARRAY: "[]", ColumnType.UUID_ARRAY: b"", ColumnType.BOOL: 1}
    value = None if column.default is None else stored.get(column.type, column.default)
    assert connection.execute("SELECT added FROM turn").fetchall() == [(value,), (value,)]
    assert sqlite_schema(asking(connection)) == sqlite_schema(asking(made((after,))))


def test_a_column_that_rows_cannot_do_without_is_no_change() -> None:
    with pytest.raises(InternalError, match="nullable or have a default"):
        AddColumn("note", "content").undo(RELATIONS)
    with pytest.raises(InternalError, match="is not declared"):
        AddRelation("unheard").undo(RELATIONS)
    member = next(iter(NOTE.column("trust").enum or ()))
    with pytest.raises(InternalError, match="twice"):
        AddEnumMember(member).undo(AddEnumMember(member).undo(RELATIONS))


def test_later_versions_let_nobody_in_again() -> None:
    """``check_versions`` asks the newest version alone."""
    steps = [MIGRATIONS[version] for version in sorted(MIGRATIONS)]
    for earlier, later in itertools.pairwise(steps):
        assert earlier.min_reader_version <= later.min_reader_version
        assert earlier.min_writer_version <= later.min_writer_version
    for version, step in MIGRATIONS.items():
        assert max(step.min_reader_version, step.min_writer_version) <= version
