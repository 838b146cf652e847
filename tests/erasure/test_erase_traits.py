"""Declarations of erasing by relations: refusals, and bytes lost when packed; erasing knows no relation by name."""

from __future__ import annotations

import ast
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

import caliber
from caliber.erasure import redaction
from caliber.erasure.subject import MARK, Subject
from caliber.model.errors import StorageError
from caliber.schema.derived import Sha256
from caliber.schema.erase import Erase, Layout, MadeFrom, Packed, Redaction
from caliber.schema.relation import Column, ColumnType, Relation, blob, integer, json_, text, text_array, uuid_
from caliber.schema.relations import RELATIONS, TENANT
from caliber.storage.compile.codec import dump_json
from tests.support.declarations import check_declaration

NAME = "Trillian Astra"


def _relation(*columns: Column, **traits: Any) -> Relation:
    given = {"derived": None, "erase": Erase(), "links": None, "trust": None, "exported": None, **traits}
    return Relation("planted", "planted", object, (integer("number"), *columns), ("number",), 63, "Planted.", **given)


@pytest.mark.parametrize(
    "column", [blob("raw"), json_("body", dict, dict), blob("raw", nullable=True), blob("raw", content=True)]
)
def test_bytes_and_json_state_how_they_are_redacted(column: Column) -> None:
    # issue 14: "today redaction would corrupt packed bytes"
    with pytest.raises(AssertionError, match=f"column {column.name} holds {column.type}: state how it is redacted"):
        check_declaration(_relation(column))
    assert _relation(column, erase=None).erase is None, "nothing of anybody is in it"
    with pytest.raises(TypeError, match="erase"):
        Relation("planted", "planted", object, (column,), (column.name,), 63, "", derived=None)  # type: ignore[call-arg]


def test_a_derived_hash_is_made_anew_and_states_nothing() -> None:
    made = _relation(text("words"), blob("hash", length=32), derived=(Sha256("hash", ("words",)),))
    assert made.column("hash").redact is None


@pytest.mark.parametrize(("column", "erase", "reason"), [
    (blob("raw", redact=Redaction.EMPTIED), Erase(), "raw cannot be emptied"),
    (text("key", per_record=True), Erase(), "key cannot belong to one record"),
    (blob("raw", redact=Packed(Layout.JSON, digest="hash")), Erase(), "hash is used but not declared"),
    (text("words"), Erase(names=("word",)), "word is used but not declared"),
    (text("words"), Erase(made_from=(MadeFrom(("turn",), "turn", ("turn_id",)),)), "turn is used but not declared"),
])  # fmt: skip
def test_a_trait_that_cannot_be_is_refused(column: Column, erase: Erase, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_declaration(_relation(column, erase=erase))


def test_what_a_column_loses_follows_from_its_type() -> None:
    columns = (text("a"), text_array("b"), uuid_("c", nullable=True), uuid_("d"), integer("e"))
    made = [each.redaction for each in _relation(*columns).columns[1:]]
    assert made == [Redaction.WORDS, Redaction.WORDS, Redaction.IDS, Redaction.NOTHING, Redaction.NOTHING]


def test_what_relations_are_made_from_is_there() -> None:
    by_name = {relation.name: relation for relation in RELATIONS}
    for relation in RELATIONS:
        for made in () if relation.erase is None else relation.erase.made_from:
            assert all(by_name[made.relation].has(name) for name in made.target)
            assert len(made.target) == len(made.columns)


def test_an_idempotency_key_is_replaced() -> None:
    for relation in (*RELATIONS, TENANT):
        if relation.has("idempotency_key"):
            assert relation.column("idempotency_key").redaction is Redaction.NEW_KEY, relation.name


def test_erasing_knows_no_relation_by_name() -> None:
    # What an erasure leaves of itself, and the tasks that a purge begins with, are its own.
    own = {"ERASURE", "TRAJECTORY"}
    for path in (Path(caliber.__file__).parent / "erasure").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        imported = re.findall(r"from caliber\.schema\.relations import (.*)", source)
        assert {name.strip() for line in imported for name in line.split(",")} <= own, path
        texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
        names = {relation.name for relation in RELATIONS} - {"trajectory"}
        assert not texts & names, path


def _lost() -> redaction.Lost:
    subject = Subject((), (NAME,))

    def words(value: Any) -> Any:
        if isinstance(value, str):
            return subject.without(value)
        return {words(key): words(each) for key, each in value.items()} if isinstance(value, dict) else value

    return redaction.Lost(subject, words)


@pytest.mark.parametrize("pack", [lambda raw: raw, zlib.compress], ids=["plain", "zlib"])
def test_packed_json_is_packed_as_it_was(pack: Any) -> None:
    named, free = ({"who": who, "n": 1, "long": "x" * 99} for who in (f"it is {NAME}", "nobody"))
    raw = pack(dump_json(named).encode())
    without, closed = redaction.without(Layout.JSON, raw, _lost())
    assert without == pack(dump_json({**named, "who": f"it is {MARK}"}).encode())
    assert not closed
    assert next(iter(redaction.said(Layout.JSON, raw))) == dump_json(named).encode(), "as it is read for a proof"
    spelt = pack(json.dumps(free, indent=3).encode())
    assert redaction.without(Layout.JSON, spelt, _lost())[0] is spelt, "what names nobody stays byte by byte"


@pytest.mark.parametrize("layout", [Layout.JSON, Layout.CHECKPOINT])
@pytest.mark.parametrize("raw", [b"\xff\x00raw", b"", b"\x78\x9c broken", zlib.compress(b"no JSON")])
def test_damaged_packed_bytes_are_not_guessed_at(layout: Layout, raw: bytes) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        redaction.without(layout, raw, _lost())


def test_vectors_and_numbers_have_nothing_to_lose() -> None:
    for relation in RELATIONS:
        for column in relation.columns:
            if column.type in (ColumnType.VECTOR, ColumnType.INT, ColumnType.FLOAT, ColumnType.INSTANT):
                assert column.redaction is Redaction.NOTHING
