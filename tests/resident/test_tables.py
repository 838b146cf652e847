"""Tables of rows by key against dictionaries: one by one, many at once, growing, keys that come again."""

# C-043

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.resident.tables import KeyTable, OrdinalTable, SegmentedColumn

_FEW = st.integers(0, 12).map(lambda number: uuid.UUID(int=number << 60))
_IDS = st.one_of(_FEW, st.uuids())


@given(st.lists(st.lists(_IDS, max_size=90), max_size=6), st.booleans())
def test_ids_find_the_row_that_a_dictionary_finds(batches: list[list[uuid.UUID]], together: bool) -> None:
    keys = SegmentedColumn(np.uint64, 32, 2)
    table, expected, start = KeyTable(keys), {}, 0
    for batch in batches:
        pairs = np.frombuffer(b"".join(key.bytes for key in batch), ">u8").reshape(-1, 2).astype(np.uint64)
        keys.put_many(start, pairs)
        if together:
            before = dict(expected)
            for row, holder in table.extend(start, len(batch)):
                assert row != holder
                assert batch[row - start] == (batch[holder - start] if holder >= start else None) or holder < start
            # Which of several takes the place is the table's; that one of them does is not.
            for at, key in enumerate(batch):
                assert table.get(key.bytes) in {before.get(key.bytes), *range(start, start + len(batch))}
                table[key.bytes] = expected[key.bytes] = start + at
        else:
            for at, key in enumerate(batch):
                table[key.bytes] = expected[key.bytes] = start + at
        start += len(batch)
        assert {key: table.get(key) for key in expected} == expected
        assert sorted(table.rows()) == sorted(expected.values())
        assert len(table) == len(expected)
        asked = [*expected, uuid.UUID(int=5).bytes, *(key.bytes for key in batch)]
        pairs = np.frombuffer(b"".join(asked), ">u8").reshape(-1, 2).astype(np.uint64)
        assert table.get_all(pairs).tolist() == [table.get(key) for key in asked]
    assert table.get(uuid.UUID(int=5).bytes, -7) == -7


@given(st.sets(st.integers(0, 2**62), max_size=400), st.integers(1, 64))
def test_ordinals_find_their_rows(ordinals: set[int], batch: int) -> None:
    column = SegmentedColumn(np.int64, 128)
    table, wanted = OrdinalTable(column), list(ordinals)
    for start in range(0, len(wanted), batch):
        part = wanted[start : start + batch]
        column.put_many(start, np.array(part, np.int64))
        assert table.extend(start, len(part)) == []
    assert [table.get(ordinal) for ordinal in wanted] == list(range(len(wanted)))
    assert table.get(2**62 + 1) == -1


@pytest.mark.parametrize("count", [1, 1_000, 5_000])
def test_a_table_takes_at_most_twelve_bytes_a_row(count: int) -> None:
    keys = SegmentedColumn(np.uint64, 1_024, 2)
    rng = np.random.default_rng(3)
    keys.put_many(0, rng.integers(0, 2**63, (count, 2), np.uint64))
    table = KeyTable(keys)
    assert table.extend(0, count) == []
    assert table.nbytes <= max(256, 12 * count)
