"""Rows of every relation as Arrow and as binary COPY, and back: nothing is lost, wherever a batch is cut. # D-005"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import numpy as np
import pytest
from contract.generated import entities_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each
from support.kernels.copy_columns import copy_chunks

from caliber.kernels.copy.rows import CopyReader, CopyRows
from caliber.schema.relation import ColumnType, Relation
from caliber.schema.relations import RELATIONS
from caliber.storage.bulk import arrow
from caliber.storage.bulk.columns import canonical_json, nothing, rows_of
from caliber.storage.compile.codec import Row, codec_of


def rows_strategy(relation: Relation) -> st.SearchStrategy[list[Row]]:
    fixed = {
        key.column: uuid.UUID(int=number)
        for number, key in enumerate(relation.foreign_keys)
        if not relation.column(key.column).nullable
    }
    codec = codec_of(relation)
    entities = st.lists(entities_of(relation, **fixed), max_size=4)
    return entities.map(lambda some: [tidy(relation, codec.encode(entity, None)) for entity in some])


def tidy(relation: Relation, row: Row) -> Row:
    """Return a row whose vectors are numbers: bytes of a NaN are not what is tested here."""
    start = 1 if relation.ordinal else 0
    values = list(row)
    for place, column in enumerate(relation.columns, start=start):
        if column.type is ColumnType.VECTOR:
            values[place] = np.nan_to_num(np.frombuffer(values[place], "<f4")).tobytes() or bytes(4)
    return tuple(values)


def columns_from(relation: Relation, batch: Any) -> dict[str, Any]:
    return {column.name: arrow.column_from(batch, column, first_row=0) for column in relation.columns}


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
@settings(max_examples=12)
@given(data=st.data())
def test_rows_come_back(relation: Relation, data: st.DataObject) -> None:
    rows = data.draw(rows_strategy(relation))
    batch = arrow.batch_from_rows(relation, rows)
    batch.validate(full=True)
    start = data.draw(st.integers(0, len(rows)))
    part = batch.slice(start, data.draw(st.integers(0, len(rows) - start)))
    columns = columns_from(relation, part)
    expected = rows[start : start + part.num_rows]
    assert list(rows_of(relation, columns, part.num_rows)) == expected
    for column in relation.columns:
        if column.json_decode is not None:  # as it was written: nothing to rewrite
            assert canonical_json(columns[column.name], column, part.num_rows, 0) is columns[column.name]
    # PostgreSQL's text cannot hold what the others can.
    without = arrow.batch_from_rows(relation, [tuple(map(without_nul, row)) for row in expected])
    assert through_copy(relation, without).equals(without)


def without_nul(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # In JSON the backslash of an escape is not the second one of a pair, which stands for itself.
    return re.sub(r"\\(u0000|.)", lambda escape: "" if escape[1] == "u0000" else escape[0], value.replace("\0", ""))


def through_copy(relation: Relation, batch: Any) -> Any:
    """Return a batch after it was encoded for the server and decoded again."""
    columns = columns_from(relation, batch)
    stream = b"".join(map(bytes, copy_chunks(iter([CopyRows(list(columns.values()), batch.num_rows)]))))
    reader = CopyReader([arrow.field_of(column) for column in relation.columns])
    parts = reader.feed(stream, rows_max=1_000)
    reader.close()
    if not parts:
        return batch.slice(0, 0)
    again = arrow.batch_from_columns(relation, parts[0].columns, parts[0].rows)
    again.validate(full=True)
    return again


def test_a_backslash_before_zeros_is_no_nul() -> None:
    texts = ["\0a", "\\u0000", "\\\\u0000", "\n\\"]
    for text in (*texts, "".join(texts), "".join(reversed(texts))):
        assert json.loads(without_nul(json.dumps(text))) == text.replace("\0", "")


@each("relation", RELATIONS)
@each("count", [0, 1, 9])
def test_nothing_is_nothing_in_every_type(relation: Relation, count: int) -> None:
    columns = {column.name: nothing(column, count) for column in relation.columns}
    empty = tuple([None] * (len(relation.columns) + relation.ordinal))
    assert list(rows_of(relation, columns, count)) == [empty] * count
