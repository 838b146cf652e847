"""Rows of bytes, one after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caliber.kernels.growing import ByteRows


@given(st.lists(st.binary(max_size=9), max_size=40), st.integers(1, 8))
def test_rows_come_back_as_they_were_added(rows: list[bytes], block: int) -> None:
    made = ByteRows(block)
    made.extend(rows)
    assert (len(made), list(made)) == (len(rows), rows)
    assert made.nbytes == sum(map(len, rows)) + 4 * len(rows)
    with pytest.raises(IndexError):
        made[len(rows)]


def test_what_an_interrupted_append_left_is_written_over() -> None:
    made = ByteRows()
    made.append(b"one")
    made.open.extend(b"half")
    made.append(b"two")
    assert list(made) == [b"one", b"two"]
