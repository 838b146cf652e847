"""Statements that follow from declared changes: from any earlier declaration to today's, with rows that stay.

Source: issue 14, item 5; decision 0201.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import apsw
import pytest
from contract.entities import plain
from hypothesis import given, settings
from hypothesis import strategies as st
from support.storage.schema_changes import DEFAULTS, possible, undone, widened
from support.storage.schemas import sqlite_schema

from caliber.backends.sqlite.dialect import DIALECT
from caliber.model.errors import InternalError
from caliber.schema.relation import Column, ColumnType
from caliber.schema.relations import NOTE, RELATIONS, TURN
from caliber.storage.compile.codec import codec_of
from caliber.storage.compile.plan import compile_relation, create_statements
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
