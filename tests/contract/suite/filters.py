"""Contract tests of filters and listings: SQL conditions match the predicates, in the requested order."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from caliber.schema.predicate import Comparison, Operator, Predicate
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.schema.relations import NOTE, TURN
from caliber.storage.compile.codec import Row, codec_of, decoder_of
from caliber.storage.compile.conditions import ORDERED, Behind, Listing, compile_stored, meets
from contract.memories import CATALOG
from contract.world import World, all_rows

LISTED = (NOTE, TURN, *CATALOG.declared_relations)
_EQUALITY = (Operator.EQUAL, Operator.UNEQUAL)
_ORDER = (Operator.LESS, Operator.GREATER, Operator.AT_MOST, Operator.AT_LEAST)
_NOT_COMPARED = (ColumnType.BYTES, ColumnType.JSON, ColumnType.VECTOR)


def _asked(column: Column, rows: list[Row], at: int) -> Iterator[Predicate]:
    """Yield every comparison of a column that there is, with a value of one of its rows."""
    if column.nullable:
        yield from (Comparison(column.name, operator, None) for operator in _EQUALITY)
    decode = decoder_of(column)
    stored = next((row[at] for row in rows if row[at] is not None), None)
    if stored is None:
        return
    value = stored if decode is None else decode(stored)
    if column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY):
        yield from (Comparison(column.name, Operator.CONTAINS, item) for item in value[:1])
        return
    operators = (*_EQUALITY, *_ORDER) if column.type in ORDERED else _EQUALITY
    operators = (*operators, Operator.CONTAINS) if column.type is ColumnType.TEXT else operators
    for operator in operators:
        yield Comparison(column.name, operator, str(value) if column.enum is not None else value)


@pytest.mark.parametrize("relation", LISTED, ids=lambda relation: relation.name)
def test_a_filter_gives_the_records_it_holds_for(relation: Relation, world: World) -> None:
    # C-161 to C-165, K-064
    world.insert(relation, *(world.fresh(relation) for _ in range(3)))
    codec, store = codec_of(relation), world.store
    with store.read() as session:
        rows = all_rows(store, session, relation)
        for column in relation.columns:
            if column.type in _NOT_COMPARED:
                continue
            for asked in _asked(column, rows, codec.index(column.name)):
                meant = [row[0] for row in rows if meets(asked, relation, row, {})]
                found = compile_stored(asked, relation, store.dialect)
                assert found.ordinals(session, {}) == meant, found.plan.sql
                listing = Listing(relation, asked, store.dialect)
                count = listing.count(session, {})
                assert count == (len(meant) if found.exact else None)
                assert sorted(row[0] for row in listing.rows(session, {})) == meant


@pytest.mark.parametrize("relation", LISTED, ids=lambda relation: relation.name)
def test_records_are_listed_in_order_page_by_page(relation: Relation, world: World) -> None:
    world.insert(relation, *(world.fresh(relation) for _ in range(3)))
    store, codec = world.store, codec_of(relation)
    key_at = codec.key_places[0]
    with store.read() as session:
        rows = all_rows(store, session, relation)
        for column in (None, *(column for column in relation.columns if column.type in ORDERED)):
            at = None if column is None else codec.index(column.name)
            for descending in (False, True):
                order = functools.partial(_place, key_at=key_at, at=at)
                with_value = [row for row in rows if at is None or row[at] is not None]
                without = [row for row in rows if at is not None and row[at] is None]
                meant = [
                    row
                    for part in (with_value, without)  # NULL comes last in either direction
                    for row in sorted(part, key=order, reverse=descending)
                ]
                listing = Listing(relation, None, store.dialect, column, descending=descending)
                found = list(listing.rows(session, {}, page_rows=2))
                assert [row[key_at] for row in found] == [row[key_at] for row in meant]
                middle = meant[len(meant) // 2]
                behind = Behind(middle[key_at], None if at is None else middle[at])
                rest = [row[0] for row in listing.rows(session, {}, behind)]
                assert rest == [row[0] for row in meant[len(meant) // 2 + 1 :]]
                assert listing.count(session, {}) == len(rows)


def _place(row: Row, *, key_at: int, at: int | None) -> tuple[Any, bytes]:
    return 0 if at is None or row[at] is None else row[at], row[key_at]
