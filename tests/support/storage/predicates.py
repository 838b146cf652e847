"""Predicates and records for those who evaluate the ones over the others: few values, so that they meet often."""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from contract.entities import FIRST_US, INT64_MAX, LAST_US, part_columns
from hypothesis import strategies as st

from caliber.model.time import from_us
from caliber.model.trajectory import TTL, OutcomeStatus, TrajectoryOutcome, TTLKind
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import All, Comparison, Either, OneOf, Operator, Predicate, Variable
from caliber.schema.relation import Column, ColumnType, Relation

IDS = [uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=2**127 + 3)]
MOMENTS = [from_us(at) for at in (FIRST_US, 0, 1_000, LAST_US)]
WORDS = ["", "a", "ab", "Lisbon", "é\x00b", "b\nab"]
PATTERNS = ["", "^a", "b$", "(a|é).?b", "(?i)lis", "^$", r"\pL{3}"]
VARIABLES = {Variable.NOW: MOMENTS[2], Variable.TRAJECTORY: IDS[0], Variable.SCOPE: IDS[1], Variable.AGENT: None}
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


def memberships(name: str) -> st.SearchStrategy[OneOf]:
    """Conditions that a column has one of some values: of none, of one or of several, having none among them."""
    equal = {
        column.name: [item.value for item in singles(column) if item.operator is Operator.EQUAL]
        for column in BUILT_IN[name].relation.columns
    }
    known = {
        column: [value for value in values if not isinstance(value, Variable)]
        for column, values in equal.items()
        if values
    }
    return st.sampled_from(sorted(known)).flatmap(
        lambda column: st.builds(OneOf, st.just(column), st.lists(st.sampled_from(known[column])).map(tuple))
    )


@functools.cache
def predicates(name: str) -> st.SearchStrategy[Predicate]:
    def joined(inner: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Predicate]:
        several = st.lists(inner, min_size=2, max_size=4).map(tuple)
        return st.builds(All, several) | st.builds(Either, several)

    return st.recursive(comparisons(name) | memberships(name), joined, max_leaves=6)


cases = st.sampled_from(sorted(BUILT_IN)).flatmap(lambda name: st.tuples(st.just(name), predicates(name)))
"""A memory, and a predicate over it."""
