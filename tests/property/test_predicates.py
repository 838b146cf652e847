"""Any filter, any rows: whoever evaluates a predicate answers as ``holds`` does, record by record."""

from __future__ import annotations

import functools
import os
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from caliber.kernels.patterns import matches
from caliber.model.entities import TTL, TrajectoryOutcome
from caliber.model.enums import OutcomeStatus, TTLKind
from caliber.model.time import from_us
from caliber.resident.mirror import EVICTED, Generation, Layout, RelationSnapshot
from caliber.resident.predicates import mask
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import All, Comparison, Either, Operator, Predicate, Variable, holds
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.codec import codec_of
from caliber.testing.entities import FIRST_US, INT64_MAX, LAST_US, part_columns

EXAMPLES = 5_000 if os.environ.get("CALIBER_SOAK") else 200
IDS = [uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=2**127 + 3)]
MOMENTS = [from_us(at) for at in (FIRST_US, 0, 1_000, LAST_US)]
WORDS = ["", "a", "ab", "Lisbon", "é\x00b", "b\nab"]
PATTERNS = ["", "^a", "b$", "(a|é).?b", "(?i)lis", "^$", r"\pL{3}"]
VARIABLES = {
    Variable.NOW: MOMENTS[2],
    Variable.TRAJECTORY: IDS[0],
    Variable.SCOPE: IDS[1],
    Variable.AGENT: None,
}
ORDER = (Operator.LESS, Operator.GREATER, Operator.AT_MOST, Operator.AT_LEAST)
EQUALITY = (Operator.EQUAL, Operator.UNEQUAL)
OPERATORS = {
    ColumnType.UUID: EQUALITY,
    ColumnType.INSTANT: (*EQUALITY, *ORDER),
    ColumnType.TEXT: (*EQUALITY, Operator.MATCHES, Operator.CONTAINS),
    ColumnType.INT: (*EQUALITY, *ORDER),
    ColumnType.FLOAT: (*EQUALITY, *ORDER),
    ColumnType.BOOL: EQUALITY,
    ColumnType.ENUM: EQUALITY,
    ColumnType.TEXT_ARRAY: (Operator.CONTAINS,),
    ColumnType.UUID_ARRAY: (Operator.CONTAINS,),
}


@functools.cache
def pool(column: Column) -> tuple[Any, ...]:
    """A few values of a column, of which rows and filters take the same ones often; NULL where it may be."""
    low, high = column.check or (None, None)
    values: Sequence[Any]
    match column.type:
        case ColumnType.UUID:
            values = IDS
        case ColumnType.INSTANT:
            values = MOMENTS
        case ColumnType.TEXT:
            values = WORDS
        case ColumnType.INT:
            values = [int(low or 0), int(low or 0) + 3, int(high or INT64_MAX)]
        case ColumnType.FLOAT:
            values = [float(low or 0), 0.1 + 0.2 + float(low or 0), float(high or 1)]
        case ColumnType.BOOL:
            values = [False, True]
        case ColumnType.BYTES:
            values = [b"x" * (column.length or 1)]
        case ColumnType.TEXT_ARRAY:
            values = [(), ("a",), ("ab", "é\x00b")]
        case ColumnType.UUID_ARRAY:
            values = [(), (IDS[0],), (IDS[2], IDS[1])]
        case ColumnType.ENUM:
            assert column.enum is not None
            values = list(column.enum)
        case _:
            values = [None if column.nullable else ()]
    return (None, *values) if column.nullable else tuple(values)


def entity(relation: Relation, chance: random.Random, number: int) -> Any:
    parts = part_columns(relation)
    fields = {column.name: chance.choice(pool(column)) for column in relation.columns if column.name not in parts}
    fields[relation.key[0]] = uuid.UUID(int=number % 7 + 1)
    for composite in relation.composites:
        if composite.field == "ttl":
            fields["ttl"] = chance.choice([TTL(TTLKind.PERSISTENT), TTL(TTLKind.DURATION, 3)])
        else:
            fields[composite.field] = composite.cls(
                **{attribute: chance.choice(pool(relation.column(name))) for attribute, name in composite.parts}
            )
    if "outcome" in fields and chance.random() < 0.5:
        fields["outcome"] = TrajectoryOutcome(OutcomeStatus.SUCCESS, "s", (), (), 1, 1, 1)
    return relation.entity(**fields)


def record(relation: Relation, item: Any) -> dict[str, Any]:
    """An entity's values by column, as ``holds`` takes them."""
    source = {column.name: (item, column.name) for column in relation.columns}
    for composite in relation.composites:
        source.update({name: (getattr(item, composite.field), attribute) for attribute, name in composite.parts})
    return {name: getattr(owner, attribute) for name, (owner, attribute) in source.items()}


class Rows:
    """Some rows of a relation: some replaced by later ones, some deleted, some with texts that have left memory."""

    def __init__(self, name: str, count: int, seed: int) -> None:
        self.relation = relation = BUILT_IN[name].relation
        chance = random.Random(seed)
        generation = Generation(Layout(relation), segment_rows=4)
        self.records: list[dict[str, Any]] = []
        self.texts: list[Any] = []
        encode, place = codec_of(relation).encode, Layout(relation).text_place
        for number in range(count):
            made = entity(relation, chance, chance.randrange(8))
            row = encode(made, number + 1)
            old = generation.index.get(generation.layout.key_of(row), -1)
            generation.append(row)
            generation.retire([old] if old >= 0 else [])
            self.records.append(record(relation, made))
            self.texts.append(row[place])
        generation.retire([number for number in range(count) if chance.random() < 0.1])
        self.snapshot = RelationSnapshot(generation)
        for number in range(chance.randrange(3)):  # behind the boundary, and not to be seen
            made = entity(relation, chance, number)
            generation.append(encode(made, count + number + 1))
        generation.evict_texts(chance.choice([0, 4, 10**9]))
        self.among = np.array([chance.random() < 0.7 for _ in range(count)], np.bool_)
        self.read: list[int] = []

    def read_texts(self, snapshot: RelationSnapshot, numbers: Sequence[int]) -> list[Any]:
        assert snapshot is self.snapshot
        self.read.extend(numbers)
        held = [snapshot.text(number) for number in numbers]
        return [self.texts[at] if text is EVICTED else text for at, text in zip(numbers, held, strict=True)]


@functools.cache
def singles(column: Column) -> tuple[Comparison, ...]:
    """Every operator of a column with each of some values."""
    values: list[Any] = [value for value in pool(column) if value is not None]
    if column.type is ColumnType.INSTANT:
        values += [Variable.NOW, MOMENTS[1] + timedelta(microseconds=1)]
    elif column.type is ColumnType.FLOAT:
        values.append(-1.0)  # what stands for NULL in memory is a value like any other in a filter
    elif column.type in (ColumnType.UUID, ColumnType.UUID_ARRAY):
        values = [*IDS, uuid.UUID(int=99), Variable.TRAJECTORY, Variable.SCOPE, Variable.AGENT]
    elif column.type is ColumnType.TEXT_ARRAY:
        values = [*WORDS]
    elif column.type is ColumnType.ENUM:
        values = [member.value for member in values]
    out = []
    for operator in OPERATORS.get(column.type, ()):
        wanted = [*values, None] if operator in EQUALITY and column.nullable else values
        wanted = PATTERNS if operator is Operator.MATCHES else wanted
        out += [Comparison(column.name, operator, value) for value in wanted]
    return tuple(out)


def comparisons(name: str) -> st.SearchStrategy[Comparison]:
    columns = [column for column in BUILT_IN[name].relation.columns if singles(column)]
    return st.sampled_from(columns).flatmap(lambda column: st.sampled_from(singles(column)))


@functools.cache
def predicates(name: str) -> st.SearchStrategy[Predicate]:
    def joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
        several = st.lists(inner, min_size=2, max_size=4).map(tuple)
        return st.builds(All, several) | st.builds(Either, several)

    return st.recursive(comparisons(name), joined, max_leaves=6)


cases = st.sampled_from(sorted(BUILT_IN)).flatmap(lambda name: st.tuples(st.just(name), predicates(name)))


@given(cases, st.integers(0, 14), st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
def test_a_mask_says_what_the_meaning_says(case: tuple[str, Predicate], count: int, seed: int) -> None:
    # C-161 to C-165, K-064, K-071
    name, predicate = case
    rows = Rows(name, count, seed)
    meant = [holds(predicate, item, VARIABLES, matches) for item in rows.records]
    live = rows.snapshot.live_mask
    found = mask(predicate, rows.snapshot, VARIABLES, rows.read_texts)
    assert found.tolist() == [bool(alive) and held for alive, held in zip(live, meant, strict=True)]
    assert live[rows.read].all(), "texts of records that are gone may be gone too"
    rows.read.clear()
    among = mask(predicate, rows.snapshot, VARIABLES, rows.read_texts, rows.among)
    assert among.tolist() == (found & rows.among).tolist()
    assert rows.among[rows.read].all()


def test_every_operator_of_every_column() -> None:
    """One by one: what a drawn predicate seldom reaches is reached here for sure."""
    for name, memory in BUILT_IN.items():
        for rows in (Rows(name, 3, 1), Rows(name, 40, 5)):
            for column in memory.relation.columns:
                for asked in singles(column):
                    found = mask(asked, rows.snapshot, VARIABLES, rows.read_texts)
                    held = [holds(asked, item, VARIABLES, matches) for item in rows.records]
                    assert found.tolist() == (rows.snapshot.live_mask & np.array(held)).tolist(), asked


def test_texts_are_read_last_and_only_where_they_decide() -> None:
    # the least work: once for all rows that cheaper conditions leave
    rows = Rows("note", 60, 3)
    wide = Comparison("content", Operator.CONTAINS, "a")
    narrow = Comparison("confidence", Operator.EQUAL, 0.0)
    left = np.flatnonzero(mask(narrow, rows.snapshot, VARIABLES, rows.read_texts)).tolist()
    assert rows.read == []
    assert 0 < len(left) < rows.snapshot.count()
    mask(All((wide, narrow)), rows.snapshot, VARIABLES, rows.read_texts)
    assert rows.read == left
    rows.read.clear()
    mask(Either((wide, narrow)), rows.snapshot, VARIABLES, rows.read_texts)
    assert rows.read == sorted(set(rows.snapshot.rows().tolist()) - set(left))


def test_nothing_is_asked_of_rows_behind_the_boundary() -> None:
    made = replace(entity(BUILT_IN["note"].relation, random.Random(1), 1), entity="new")
    rows = Rows("note", 5, 2)
    rows.snapshot.generation.append(codec_of(rows.relation).encode(made, 99))
    found = mask(Comparison("entity", Operator.EQUAL, "new"), rows.snapshot, VARIABLES, rows.read_texts)
    assert found.shape == (5,)
    assert not found.any()
