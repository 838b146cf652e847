"""What the plan compiler makes of the declarations, statement by statement, compared with a file kept beside this test.

After a wanted change: ``CALIBER_GOLDEN=write pytest tests/golden`` and read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.statements import holding, irregular, own, reserving
from caliber.backends.sqlite.dialect import DIALECT as SQLITE
from caliber.backends.sqlite.statements import STATEMENTS as SQLITE_STATEMENTS
from caliber.schema.catalog import BUILT_IN
from caliber.schema.relation import AccessPath, Relation, Unique, enum, integer, text, uuid_, version
from caliber.schema.relations import RELATIONS
from caliber.storage.compile.plan import Dialect, Plan, compile_relation, quote

FOLDER = Path(__file__).parent
POSTGRES = PostgresDialect("tenant_a", "extensions")
DIALECTS: dict[str, tuple[Dialect, dict[str, Plan]]] = {
    "sqlite": (SQLITE, SQLITE_STATEMENTS),
    "postgres": (
        POSTGRES,
        {
            **irregular(POSTGRES),
            **own(POSTGRES),
            "erase.hold": holding(POSTGRES, BUILT_IN),
            **{plan.name: plan for plan in reserving(POSTGRES, BUILT_IN).values()},
        },
    ),
}


def _shown(plan: Plan) -> list[str]:
    lines = [f"-- {plan.name}", f"--   takes: {', '.join(plan.binds) or 'nothing'}"]
    if plan.results:
        lines.append(f"--   gives: {', '.join(plan.results)}")
    return [*lines, f"{plan.sql};", ""]


def rendered(dialect: Dialect, irregular: dict[str, Plan]) -> str:
    """Return every statement of a dialect as one text."""
    out = [f"-- Every statement of {dialect.name}, as compiled; see test_plans.py.", ""]
    for relation in RELATIONS:
        plans = compile_relation(relation, dialect)
        out += [f"-- ===== {relation.name}", ""]
        for statement in plans.create:
            out += [f"{statement};", ""]
        regular = [plans.insert, plans.insert_or_ignore, plans.upsert, plans.get, plans.update, plans.delete]
        regular += [
            plans.count,
            plans.page,
            plans.get_many,
            plans.lock,
            *plans.lists.values(),
            *plans.references.values(),
            *plans.unique.values(),
            plans.expired,
            plans.stale,
            plans.surplus,
            plans.surplus_by_trajectory,
        ]
        for plan in regular:
            if plan is not None:
                out += _shown(plan)
    out += ["-- ===== irregular", ""]
    for name in sorted(irregular):
        out += _shown(irregular[name])
    return "\n".join(out)


@pytest.mark.parametrize("name", DIALECTS)
def test_compiled_statements_are_those_of_the_golden_file(name: str) -> None:
    # design section 3: "golden tests show its output"
    text = rendered(*DIALECTS[name])
    golden = FOLDER / f"plans_{name}.sql"
    if os.environ.get("CALIBER_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_compiling_twice_gives_the_same() -> None:
    for dialect, statements in DIALECTS.values():
        assert rendered(dialect, statements) == rendered(dialect, statements)


def test_names_are_quoted_whatever_they_hold() -> None:
    assert quote('a"b') == '"a""b"'


def test_statements_use_nothing_newer_than_their_database() -> None:
    """No statement has a hole to be filled when it is run, and none speaks another database's words."""
    # PostgreSQL 15 and 16 brought MERGE, NULLS NOT DISTINCT, ANY_VALUE and max of transaction numbers.
    foreign = {
        "sqlite": ("jsonb_", "::", "$1"),
        "postgres": ("json_each", "STRICT", "?1", "MERGE", "NULLS NOT", "max(xid)"),
    }
    for dialect, statements in DIALECTS.values():
        text = rendered(dialect, statements)
        for forbidden in ("%s", "{", "}", "CREATE TEMP", "ATTACH", *foreign[dialect.name]):
            assert forbidden not in text


def test_small_relation_compiles_to_what_one_would_write() -> None:
    """One relation in full, so that a reader sees the rules without the whole file."""
    from enum import StrEnum

    class Colour(StrEnum):
        RED = "red"
        BLUE = "blue"

    relation = Relation(
        name="ball",
        plural="balls",
        entity=object,
        code=99,
        comment="",
        derived=None,
        erase=None,
        links=None,
        trust=None,
        exported=None,
        ordinal=True,
        versioned=True,
        key=("ball_id",),
        columns=(
            uuid_("ball_id"),
            enum("colour", Colour),
            text("label", nullable=True),
            integer("size", check=(0, 9)),
            version(),
        ),
        uniques=(Unique(("label",), where=(("label", False),)),),
        paths=(AccessPath("list_by_colour", ("colour",), ("size", "ordinal"), descending=True, limited=True),),
    )
    plans = compile_relation(relation, SQLITE)
    assert "".join(plans.create[:1]) == (
        'CREATE TABLE "ball" (\n'
        '  "ordinal" INTEGER PRIMARY KEY AUTOINCREMENT,\n'
        '  "ball_id" BLOB NOT NULL CHECK (length("ball_id") = 16),\n'
        "  \"colour\" TEXT NOT NULL CHECK (\"colour\" IN ('red', 'blue')),\n"
        '  "label" TEXT,\n'
        '  "size" INTEGER NOT NULL CHECK ("size" >= 0) CHECK ("size" <= 9),\n'
        '  "version" INTEGER NOT NULL CHECK ("version" >= 1),\n'
        '  UNIQUE ("ball_id")\n'
        ") STRICT"
    )
    assert plans.create[1:] == (
        'CREATE UNIQUE INDEX "uq_ball_label" ON "ball" ("label") WHERE "label" IS NOT NULL',
        'CREATE INDEX "ix_ball_list_by_colour" ON "ball" ("colour", "size")',
    )
    assert plans.insert.sql == (
        'INSERT INTO "ball" ("ordinal", "ball_id", "colour", "label", "size", "version")'
        ' VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING "ordinal"'
    )
    assert plans.update is not None
    assert plans.update.sql == (
        'UPDATE "ball" SET "colour" = ?1, "label" = ?2, "size" = ?3, "version" = ?4'
        ' WHERE "ball_id" = ?5 AND "version" = ?6'
    )
    assert plans.update.binds == ("colour", "label", "size", "version", "ball_id", "version")
    assert plans.lists["list_by_colour"].sql == (
        'SELECT "ordinal", "ball_id", "colour", "label", "size", "version" FROM "ball"'
        ' WHERE "colour" = ?1 ORDER BY "size" DESC, "ordinal" DESC LIMIT ?2'
    )
