"""Nothing newer than PostgreSQL 14 in any statement (design section 3): the oldest server that may hold a store.

Servers at hand are newer, so this looks at the text: every constant of the backend, f-strings piece by piece, and what
the plan compiler makes of every relation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.storage.plans import rendered

from caliber.backends.postgres import statements
from caliber.backends.postgres.dialect import TEMPLATE, PostgresDialect
from caliber.backends.postgres.schema import compile_plans
from caliber.schema.relations import RELATIONS
from caliber.storage.compile.plan import compile_relation

ROOT = Path(__file__).resolve().parents[2]
NEWER: dict[int, str] = {
    15: r"\bMERGE\s+INTO\b|\bNULLS\s+NOT\s+DISTINCT\b|\bregexp_(count|instr|like|substr)\s*\(|\bsecurity_invoker\b"
    r"|\b(max|min)\((xid|\w+\.xid)\)|\bSET\s+(NULL|DEFAULT)\s*\(|\bON\s+PARAMETER\b|\brange_agg\(\s*multirange",
    16: r"\bANY_VALUE\s*\(|\bJSON_(ARRAY|OBJECT|ARRAYAGG|OBJECTAGG)\s*\(|\bIS\s+JSON\b|\brandom_normal\s*\("
    r"|\bpg_stat_io\b|\barray_(shuffle|sample)\s*\(|\bpg_input_(is_valid|error_info)\b|\bdate_(add|subtract)\s*\(|\bGENERIC_PLAN\b"
    r"|\b0x[0-9a-fA-F]+\b|\b[0-9]+_[0-9]{3}\b|\bAS\s+\w+\s+STORAGE\b",
    17: r"\bJSON_(TABLE|QUERY|VALUE|EXISTS|SCALAR|SERIALIZE)\s*\(|\btransaction_timeout\b|\bON_ERROR\b"
    r"|\bto_(bin|oct)\s*\(|\buuid_extract_\w+|\bMAINTAIN\b|\bpg_wait_events\b|\bmerge_action\s*\(|\bjson_path_exists_tz\b",
    18: r"\buuidv[47]\s*\(|\bRETURNING\s+(OLD|NEW|WITH)\b|\bVIRTUAL\b|\bcasefold\s*\(|\barray_(sort|reverse)\s*\("
    r"|\bWITHOUT\s+OVERLAPS\b|\bNOT\s+ENFORCED\b|\bREJECT_LIMIT\b|\bcrc32c?\s*\(|\bPG_UNICODE_FAST\b",
}
SERVER_SIDE = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|WITH|COPY|FROM|WHERE|RETURNING|SET|MERGE)\b")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield every text of a module that may be SQL, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SERVER_SIDE.search(node.value):
            yield node.lineno, node.value


def newer(text: str) -> list[str]:
    """Return the features in a text that PostgreSQL 14 does not have."""
    found = []
    for version, pattern in NEWER.items():
        found += [f"PostgreSQL {version}: {match[0]}" for match in re.finditer(pattern, text, re.IGNORECASE)]
    return found


def test_no_statement_needs_more_than_postgresql_14() -> None:
    seen = 0
    for path in sorted((ROOT / "caliber/backends/postgres").rglob("*.py")):
        for line, text in texts(path.read_text(encoding="utf-8")):
            seen += 1
            assert newer(text) == [], f"{path.name}:{line}"
    assert seen > 50
    assert newer(rendered("postgres", RELATIONS)) == []


@pytest.mark.parametrize("statement", [
    'CREATE UNIQUE INDEX i ON t ("a") NULLS NOT DISTINCT',
    "MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE",
    "SELECT max(xid) FROM change",
    "SELECT any_value(a) FROM t",
    "SELECT * FROM json_table('[]', '$' COLUMNS (a int))",
    "SET LOCAL transaction_timeout = 5",
    "UPDATE t SET a = 1 RETURNING old.a",
    "INSERT INTO t VALUES (uuidv7())",
])  # fmt: skip
def test_planted_statement_is_seen(statement: str) -> None:
    assert len(newer(statement)) == 1
    assert list(texts(f"X = {statement!r}")) == [(1, statement)]


# --- plans of a schema -----------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["a", "tenant_x", "_" * 63, "caliber_template"])
def test_statements_of_a_schema_are_those_compiled_for_it(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = PostgresDialect(schema, "vectors")
    placed, irregular = compile_plans(dialect), statements.irregular(dialect)
    assert placed == {relation.name: compile_relation(relation, dialect) for relation in RELATIONS}
    monkeypatch.setattr(statements, "TEMPLATE", schema)
    assert irregular == statements.irregular_plans.__wrapped__("vectors")
    assert TEMPLATE not in repr(placed) + repr(irregular)
