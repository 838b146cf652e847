"""Filters that a database answers: any filter, any rows, the answers of ``holds``."""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from support.predicates import IDS, VARIABLES, cases, entity, record, singles

from caliber.backends.postgres.dialect import dialect_of
from caliber.backends.sqlite.dialect import DIALECT
from caliber.dsl.filters import compile_filter
from caliber.kernels.patterns import matches
from caliber.model.errors import InvalidValue
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import Comparison, Either, Operator, Predicate, Variable, holds
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.storage import conditions
from caliber.storage.codec import codec_of
from caliber.storage.conditions import StoredFilter, compile_stored
from caliber.storage.plan import Dialect
from caliber.storage.protocol import Store
from caliber.testing.entities import plain, unlike_any
from caliber.testing.world import session_of

EXAMPLES, ROWS = (2_000, 200) if os.environ.get("CALIBER_SOAK") else (15, 25)
ORDER = ("trajectory", "scope", "artifact", "note", "turn")


class Filled:
    """A store with records of every memory, and what a person would make of a predicate over them."""

    def __init__(self, store: Store, dialect: Dialect) -> None:
        self.store = store
        self.dialect = dialect
        self.chance = random.Random(7)
        store.write(self._fill)
        self.records: dict[str, dict[int, dict[str, Any]]] = {}
        with store.read() as session:
            for name in ORDER:
                codec, page = codec_of(BY_NAME[name]), store.plans[name].page
                rows = session.run(page, (-(2**63), 10_000))
                self.records[name] = {row[0]: record(codec.relation, codec.decode(row)) for row in rows}
                assert len(rows) > len(IDS) + 3

    def _fill(self, uow: Any) -> None:
        session = session_of(uow)

        def write(relation: Relation, item: Any) -> None:
            # What breaks a rule of uniqueness is left out.
            session.run(self.store.plans[relation.name].insert_or_ignore, codec_of(relation).encode(item))

        for key in IDS:
            write(
                BY_NAME["session"], plain(BY_NAME["session"], **{**unlike_any(BY_NAME["session"]), "session_id": key})
            )
        for name in ORDER:
            relation = BY_NAME[name]
            references = {
                key.column: IDS[0] for key in relation.foreign_keys if not relation.column(key.column).nullable
            }
            for key in IDS:
                write(relation, plain(relation, **{**unlike_any(relation), **references, relation.key[0]: key}))
            for _ in range(ROWS):
                item = entity(relation, self.chance, 0)
                hashes = {column.name: self.chance.randbytes(32) for column in relation.columns if column.length == 32}
                write(relation, replace(item, **unlike_any_key(relation), **hashes))

    def check(self, name: str, predicate: Predicate, variables: Any = VARIABLES) -> StoredFilter:
        relation = BUILT_IN[name].relation
        stored = compile_stored(predicate, relation, self.dialect)
        with self.store.read() as session:
            found = [row[0] for row in stored.rows(session, variables, page_rows=20)]
        known = sorted(self.records[relation.name].items())
        assert found == [at for at, item in known if holds(predicate, item, variables, matches)], stored.plan.sql
        return stored


def unlike_any_key(relation: Relation) -> dict[str, Any]:
    return {relation.key[0]: unlike_any(relation)[relation.key[0]]}


@pytest.fixture
def filled(backend: Any) -> Filled:
    settings = backend.config()
    dialect = dialect_of(settings.storage.schema_name, "public") if backend.adapter == "postgres" else DIALECT
    return Filled(backend.store(), dialect)


def test_a_database_answers_as_the_meaning_says(filled: Filled) -> None:
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


def test_values_are_bound_and_long_filters_fit(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
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
