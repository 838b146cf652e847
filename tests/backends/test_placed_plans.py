"""Statements of PostgreSQL, compiled once and named for each tenant's schema: those that compiling would give."""

from __future__ import annotations

import pytest

from caliber.backends.postgres import statements
from caliber.backends.postgres.dialect import TEMPLATE, PostgresDialect
from caliber.backends.postgres.schema import compile_plans
from caliber.schema.relations import RELATIONS
from caliber.storage.compile.plan import compile_relation


@pytest.mark.parametrize("schema", ["a", "tenant_x", "_" * 63, "caliber_template"])
def test_statements_of_a_schema_are_those_compiled_for_it(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = PostgresDialect(schema, "vectors")
    placed, irregular = compile_plans(dialect), statements.irregular(dialect)
    assert placed == {relation.name: compile_relation(relation, dialect) for relation in RELATIONS}
    monkeypatch.setattr(statements, "TEMPLATE", schema)
    assert irregular == statements.irregular_plans.__wrapped__("vectors")
    assert TEMPLATE not in repr(placed) + repr(irregular)
