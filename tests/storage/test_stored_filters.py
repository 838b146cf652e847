"""Filters that a database answers: any filter, any rows, the answers of ``holds``."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from support.evidence import examples, scale
from support.storage.filled import Filled
from support.storage.predicates import IDS, VARIABLES, cases, singles

from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.sqlite.dialect import DIALECT
from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model.errors import InvalidValue
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, Variable, holds
from caliber.schema.relations import BY_NAME
from caliber.storage.compile import conditions
from caliber.storage.compile.conditions import StoredFilter, compile_stored
from caliber.storage.compile.plan import Dialect
from caliber.storage.protocol import Store

EXAMPLES, ROWS = examples(15, 2_000), scale(25, 200)


class Asked(Filled):
    """Asks the database of a store the same as a person."""

    def __init__(self, store: Store, dialect: Dialect) -> None:
        super().__init__(store, ROWS)
        self.dialect = dialect

    def check(self, name: str, predicate: Predicate, variables: Any = VARIABLES) -> StoredFilter:
        relation = BUILT_IN[name].relation
        stored = compile_stored(predicate, relation, self.dialect)
        with self.store.read() as session:
            found = stored.ordinals(session, variables)
        known = sorted(self.records[relation.name].items())
        assert found == [at for at, item in known if holds(predicate, item, variables, matches)], stored.plan.sql
        return stored


@pytest.fixture
def filled(backend: Any) -> Asked:
    settings = backend.config()
    dialect = dialect_of(settings.storage.schema_name, "public") if backend.adapter == "postgres" else DIALECT
    return Asked(backend.store(), dialect)


def test_a_database_answers_as_the_meaning_says(filled: Asked) -> None:
    # C-161 to C-165, K-064, K-071
    kinds: dict[Any, list[tuple[str, Comparison]]] = {}
    for name, memory in BUILT_IN.items():
        for column in memory.relation.columns:
            for single in singles(column):
                kind = (column.type, column.nullable, column.name.startswith("valid_"), single.operator)
                kinds.setdefault(kind, []).append((name, single))
    for several in kinds.values():
        filled.check(*filled.chance.choice(several))

    @given(cases)
    @settings(max_examples=EXAMPLES)
    def any_filter(case: tuple[str, Predicate]) -> None:
        filled.check(*case)

    any_filter()


def test_values_are_bound_and_long_filters_fit(filled: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = compile_filter("""entity = "x'); DROP TABLE note; --" or confidence = 0.25""", BUILT_IN["note"])
    stored = filled.check("note", hostile)
    assert "DROP" not in stored.plan.sql
    assert stored.plan.name == compile_stored(hostile, BY_NAME["note"], filled.dialect).plan.name
    without_now = {**VARIABLES, Variable.NOW: None}
    filled.check("note", Comparison("valid_until", Operator.GREATER, Variable.NOW), without_now)
    # a chain of so many would be deeper than SQLite takes
    long = Either(tuple(Comparison("token_count", Operator.EQUAL, number) for number in range(1_500)))
    filled.check("note", long)
    monkeypatch.setattr(conditions, "MOST_VALUES", 1_499)
    with pytest.raises(InvalidValue, match="more than 1499 values"):
        compile_stored(long, BY_NAME["note"], filled.dialect)
    # PostgreSQL keeps a zero character as an escape that ends in "0"
    assert "é\x00b" in {item["entity"] for item in filled.records["note"].values()}
    for part, exact in (("0", False), ("\x00", True), ("b", True), ("\ufdd0", True)):
        stored = filled.check("note", Comparison("entity", Operator.CONTAINS, part))
        assert stored.exact is exact
    # an id that begins within another is no member
    across = uuid.UUID(bytes=(IDS[2].bytes + IDS[1].bytes)[8:24])
    assert (IDS[2], IDS[1]) in {item["source_trajectory_ids"] for item in filled.records["note"].values()}
    filled.check("note", Comparison("source_trajectory_ids", Operator.CONTAINS, across))
