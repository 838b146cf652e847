"""Any filter, any rows: whoever evaluates a predicate answers as ``holds`` does, record by record."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.evidence import examples
from support.storage.predicates import VARIABLES, cases, entity, record, singles

from caliber.kernels.patterns import matches
from caliber.resident.mirror import EVICTED, Generation, RelationSnapshot
from caliber.resident.predicates import mask
from caliber.resident.tables import Layout
from caliber.schema.memories import BUILT_IN
from caliber.schema.predicate import All, Comparison, Either, OneOf, Operator, Predicate, Variable, holds
from caliber.storage.compile.codec import codec_of

EXAMPLES = examples(120, 5_000)


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


@pytest.mark.parametrize("compared", [0, 16])
def test_one_of_some_values_of_every_column(compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # of a column of codes few values are compared, and many looked up
    monkeypatch.setattr("caliber.resident.predicates.CODES_COMPARED", compared)
    for name, memory in BUILT_IN.items():
        rows = Rows(name, 40, 5)
        for column in memory.relation.columns:
            values = [item.value for item in singles(column) if item.operator is Operator.EQUAL]
            plain = [value for value in values if not isinstance(value, Variable)]
            for left_out in range(len(plain) + 1):
                asked = OneOf(column.name, tuple(plain[:left_out] + plain[left_out + 1 :]))
                found = mask(asked, rows.snapshot, VARIABLES, rows.read_texts)
                held = [holds(asked, item, VARIABLES, matches) for item in rows.records]
                assert found.tolist() == (rows.snapshot.live_mask & np.array(held)).tolist(), asked


def test_texts_are_read_last_and_only_where_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    # the least work: once for all rows that cheaper conditions leave, in pieces
    monkeypatch.setattr("caliber.resident.predicates.TEXTS_AT_ONCE", 7)
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
