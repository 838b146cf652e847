"""Damaged Parquet is said to be damaged, whatever the reader's library makes of it. P-083."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from caliber.dump.dumped_relations import dump_relations
from caliber.model.errors import InvalidValue
from caliber.schema.catalog import BUILT_IN
from caliber.storage.bulk.parquet import open_parquet, parquet_batches

CONFIG_DOCUMENT = next(relation for relation in dump_relations(BUILT_IN) if relation.name == "config_document")


def written(table: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


@pytest.mark.parametrize("part", ["pages", "footer"])
def test_damage_is_an_error_of_ours(part: str, tmp_path: Path) -> None:
    column = CONFIG_DOCUMENT.columns[0].name
    raw = bytearray(written(pa.table({column: ["a text that is long enough to be packed " * 9] * 999})))
    places = range(4, 60) if part == "pages" else range(len(raw) - 40, len(raw) - 8)
    for place in places:
        raw[place] ^= 0xFF
    path = tmp_path / "damaged.parquet"
    path.write_bytes(raw)
    with pytest.raises(InvalidValue), open_parquet(path, batch_rows=100) as file:
        list(file.reader)


def test_pages_of_an_archive_that_cannot_be_unpacked_are_damaged() -> None:
    columns = {each.name: pa.nulls(9, pa.string()) for each in CONFIG_DOCUMENT.columns}
    raw = bytearray(written(pa.table(columns)))
    raw[4:40] = bytes(36)
    with pytest.raises(InvalidValue, match="damaged"):
        list(parquet_batches(io.BytesIO(raw), CONFIG_DOCUMENT, 100))


def test_two_columns_of_one_name_are_refused() -> None:
    names = [each.name for each in CONFIG_DOCUMENT.columns]
    table = pa.Table.from_arrays([pa.nulls(3, pa.string())] * (len(names) + 1), names=[*names, names[0]])
    with pytest.raises(InvalidValue, match="two columns of one name"):
        list(parquet_batches(io.BytesIO(written(table)), CONFIG_DOCUMENT, 100))
