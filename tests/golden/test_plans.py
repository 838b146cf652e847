"""Golden plans of the plan compiler: six relations and the irregular statements, kept beside this test.

After a wanted change: ``CALIBER_GOLDEN=write pytest tests/golden`` and read the difference before committing it. The
statements of all other relations are proven by running them: ``contract.suite``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.storage.plans import DIALECTS, regular, rendered

from caliber.backends.sqlite.dialect import DIALECT as SQLITE
from caliber.schema.relation import AccessPath, Relation, Unique, enum, integer, text, uuid_, version
from caliber.schema.relations import ARTIFACT, CHANGE, CHECKPOINT, EMBEDDING, NOTE, RELATIONS, TURN
from caliber.storage.compile.plan import compile_relation
from caliber.storage.compile.spelling import quote

FOLDER = Path(__file__).parent

SHOWN = (TURN, ARTIFACT, NOTE, EMBEDDING, CHECKPOINT, CHANGE)
"""Between them they have every kind of statement, key and column: a conversation's JSON, a lifetime, lists,
validity, vectors and their owner, a task's checkpoints in their order, and a key that the database counts."""


@pytest.mark.parametrize("name", DIALECTS)
def test_compiled_statements_are_those_of_the_golden_file(name: str) -> None:
    # design section 3: "golden tests show its output"
    text = f"-- Six relations and the irregular statements of {name}, as compiled; see test_plans.py.\n\n"
    text += rendered(name, SHOWN)
    golden = FOLDER / f"plans_{name}.sql"
    if os.environ.get("CALIBER_GOLDEN") == "write":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def kinds(relation: Relation) -> set[str]:
    """Return the parts of a relation that the compiler has a case for: statements, column types and keys."""
    plans = [plan for dialect, _ in DIALECTS.values() for plan in regular(relation, dialect)]
    found = {plan.name.partition(".")[2] for plan in plans} - {path.name for path in relation.paths}
    found = {name for name in found if not name.startswith(("by_", "referring_"))}
    found |= {f"column of {column.type}" for column in relation.columns}
    found |= {f"key of {min(len(relation.key), 2)}", f"ordinal: {relation.ordinal}", f"counted: {relation.auto_key}"}
    found |= {f"unique, {'some' if unique.where else 'all'} rows" for unique in relation.uniques}
    return found | {f"reference, {key.on_delete}" for key in relation.foreign_keys}


def test_the_relations_that_are_shown_have_every_kind() -> None:
    shown = set().union(*map(kinds, SHOWN))
    assert {relation.name: sorted(kinds(relation) - shown) for relation in RELATIONS if kinds(relation) - shown} == {}


def test_compiling_twice_gives_the_same() -> None:
    for name in DIALECTS:
        assert rendered(name, RELATIONS) == rendered(name, RELATIONS)


def test_names_are_quoted_whatever_they_hold() -> None:
    assert quote('a"b') == '"a""b"'


def test_statements_use_nothing_newer_than_their_database() -> None:
    """No statement has a hole to be filled when it is run, and none speaks another database's words."""
    # PostgreSQL 15 and 16 brought MERGE, NULLS NOT DISTINCT, ANY_VALUE and max of transaction numbers.
    foreign = {
        "sqlite": ("jsonb_", "::", "$1"),
        "postgres": ("json_each", "STRICT", "?1", "MERGE", "NULLS NOT", "max(xid)"),
    }
    for name in DIALECTS:
        text = rendered(name, RELATIONS)
        for forbidden in ("%s", "{", "}", "CREATE TEMP", "ATTACH", *foreign[name]):
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
            uuid_("ball_id"), enum("colour", Colour), text("label", nullable=True), integer("size", check=(0, 9)),
            version(),
        ),
        uniques=(Unique(("label",), where=(("label", False),)),),
        paths=(AccessPath("list_by_colour", ("colour",), ("size", "ordinal"), descending=True, limited=True),),
    )  # fmt: skip
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
    assert plans.update.sql == (
        'UPDATE "ball" SET "colour" = ?1, "label" = ?2, "size" = ?3, "version" = ?4'
        ' WHERE "ball_id" = ?5 AND "version" = ?6'
    )
    assert plans.update.binds == ("colour", "label", "size", "version", "ball_id", "version")
    assert plans.lists["list_by_colour"].sql == (
        'SELECT "ordinal", "ball_id", "colour", "label", "size", "version" FROM "ball"'
        ' WHERE "colour" = ?1 ORDER BY "size" DESC, "ordinal" DESC LIMIT ?2'
    )
