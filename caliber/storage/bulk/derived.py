"""What a relation's columns are made from where a load does not give them, and what given ones must equal.

Ids, hashes and token counts come from the kernels, over the buffers of the columns they are made from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from caliber.kernels import sha256_spans, uuid7_batch
from caliber.kernels.copy import CopyColumn
from caliber.kernels.estimators import Estimator
from caliber.kernels.tokens import estimate_tokens_spans
from caliber.model.errors import InvalidRow, InvalidValue
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Column, ColumnType, Relation
from caliber.storage.bulk.arrow import default_column, field_of
from caliber.storage.bulk.columns import (
    Columns,
    column_of_bytes,
    column_of_numbers,
    column_of_texts,
    edges,
    empty_lists,
    nothing,
    values_of,
)
from caliber.storage.write.memory_records import KEY, digest_of

Fingerprints = Callable[[Columns, int], Sequence[bytes]]
"""Gives the fingerprint of each note of a batch."""

_HASHED: dict[str, dict[str, str]] = {
    "note": {"content_hash": "content"},
    "artifact": {"content_hash": "content"},
}
"""Columns that are the SHA-256 of another, by relation."""

_COUNTED = {"turn", "note", "artifact"}
"""Relations whose ``token_count`` is that of ``content``."""

_NOW = frozenset(
    {
        "created_at",
        "updated_at",
        "last_activity_at",
        "last_active_at",
        "opened_at",
        "started_at",
        "generated_at",
        "last_accessed_at",
    }
)
_LIKE = {"base_importance": "importance", "base_weight": "weight"}
"""Columns that begin as another."""

_TRUSTED_LEAST = {"trust": list(TrustLabel)[-1].value.encode()}
"""The label of rows that come without one: nothing says where they came from."""

_EMPTY_JSON = {"tool_calls": b"[]"}


@dataclass(frozen=True, slots=True)
class Maker:
    """What derived columns need besides the batch itself."""

    now_us: int
    estimator: Estimator
    fingerprints: Fingerprints


def check_names(relation: Relation, names: Sequence[str]) -> None:
    """Raise InvalidValue for columns that the relation does not have, or lacks and cannot be made."""
    unknown = sorted(set(names) - {column.name for column in relation.columns})
    if unknown:
        raise InvalidValue(field="columns", reason=f"{relation.name} has no {', '.join(unknown)}")
    if len(set(names)) != len(names):
        raise InvalidValue(field="columns", reason="a column comes twice")
    lacking = [
        column.name
        for column in relation.columns
        if column.name not in names and not column.nullable and not _can_be_made(relation, column)
    ]
    if lacking:
        raise InvalidValue(field="columns", reason=f"{relation.name} also needs {', '.join(lacking)}")


def _can_be_made(relation: Relation, column: Column) -> bool:
    name = column.name
    if relation.has(KEY) and name in ("token_count", "content_hash"):
        return True
    return (
        column.default is not None
        or name == "version"
        or (relation.key == (name,) and column.type is ColumnType.UUID)
        or name in _HASHED.get(relation.name, {})
        or (name == "token_count" and relation.name in _COUNTED)
        or (name == "fingerprint" and relation.name == "note")
        or (name in _NOW and column.type is ColumnType.INSTANT)
        or name in _LIKE
        or name in _EMPTY_JSON
        or name in _TRUSTED_LEAST
        or column.type in (ColumnType.TEXT_ARRAY, ColumnType.UUID_ARRAY)
    )


def _is_of_content(relation: Relation, name: str) -> bool:
    counted = name == "token_count" and (relation.name in _COUNTED or relation.has(KEY))
    if relation.has(KEY) and name == "content_hash":
        return True
    return name in _HASHED.get(relation.name, {}) or counted or name in ("fingerprint", *_LIKE)


def add_plain(relation: Relation, columns: Columns, rows: int, maker: Maker) -> None:
    """Add the columns that were not given and say nothing of the others."""
    for declared in relation.columns:
        if declared.name not in columns and not _is_of_content(relation, declared.name):
            columns[declared.name] = _made(relation, declared, columns, rows, maker)


def add_derived(relation: Relation, columns: Columns, rows: int, maker: Maker) -> None:
    """Add the columns that are made from others, which have been checked."""
    for declared in relation.columns:
        if declared.name not in columns:
            columns[declared.name] = _made(relation, declared, columns, rows, maker)


def _made(relation: Relation, declared: Column, columns: Columns, rows: int, maker: Maker) -> CopyColumn:
    name = declared.name
    if name == "version":
        return column_of_numbers(declared, np.ones(rows, np.int64))
    if name in _LIKE and _LIKE[name] in columns:
        like = columns[_LIKE[name]]
        return dataclasses.replace(like, field=field_of(declared))
    if declared.default is not None:
        return default_column(declared, rows)
    if declared.nullable:
        return nothing(declared, rows)
    if relation.key == (name,):
        return column_of_bytes(declared, uuid7_batch(rows))
    if name in _HASHED.get(relation.name, {}):
        return column_of_bytes(declared, _hashes(columns[_HASHED[relation.name][name]], rows))
    if relation.has(KEY) and name == "content_hash":
        return column_of_bytes(declared, _hashes_of_records(relation, columns, rows))
    if relation.has(KEY) and name == "token_count":
        texts = (each for each in relation.columns if each.declared and each.type is ColumnType.TEXT)
        counts = (_tokens(columns[each.name], rows, maker.estimator) for each in texts)
        return column_of_numbers(declared, sum(counts, np.zeros(rows, np.int64)))
    if name == "token_count":
        return column_of_numbers(declared, _tokens(columns["content"], rows, maker.estimator))
    if name == "fingerprint":
        raw = b"".join(maker.fingerprints(columns, rows))
        return column_of_bytes(declared, np.frombuffer(raw, np.uint8).reshape(rows, 32))
    if name in _NOW:
        return column_of_numbers(declared, np.full(rows, maker.now_us, np.int64))
    if name in _EMPTY_JSON:
        return column_of_texts(declared, [_EMPTY_JSON[name]] * rows)
    if name in _TRUSTED_LEAST:
        return column_of_texts(declared, [_TRUSTED_LEAST[name]] * rows)
    return empty_lists(declared, rows)


def _hashes_of_records(relation: Relation, columns: Columns, rows: int) -> np.ndarray:
    """Return the digest of what each record of a declared memory says, as ``memory_records`` makes it."""
    declared = [column for column in relation.columns if column.declared]
    values = [values_of(column, columns[column.name], rows) for column in declared]
    names = [column.name for column in declared]
    said = [digest_of(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)] if rows else []
    return np.frombuffer(b"".join(said), np.uint8).reshape(rows, 32)


def _hashes(content: CopyColumn, rows: int) -> np.ndarray:
    return sha256_spans(content.values, edges(content, rows))


def _tokens(content: CopyColumn, rows: int, estimator: Estimator) -> np.ndarray:
    return estimate_tokens_spans(content.values, edges(content, rows), estimator=estimator)


def verify(relation: Relation, columns: Columns, given: Sequence[str], rows: int, first_row: int, maker: Maker) -> None:
    """Raise InvalidRow where a given hash is not that of its content: what is found by it would not be found again."""
    for name, source in _HASHED.get(relation.name, {}).items():
        if name in given:
            _same(columns[name], _hashes(columns[source], rows), rows, first_row, name, f"not the SHA-256 of {source}")
    if relation.name == "note" and "fingerprint" in given:
        raw = b"".join(maker.fingerprints(columns, rows))
        wanted = np.frombuffer(raw, np.uint8).reshape(rows, 32)
        _same(columns["fingerprint"], wanted, rows, first_row, "fingerprint", "not that of what the note says")


def _same(column: CopyColumn, wanted: np.ndarray, rows: int, first_row: int, name: str, reason: str) -> None:
    # Checked before: each value has as many bytes as a hash has.
    start = int(edges(column, rows)[0])
    given = column.values[start : start + 32 * rows].reshape(rows, 32)
    different = (given != wanted).any(axis=1)
    if different.any():
        raise InvalidRow(row=first_row + int(different.argmax()), field=name, reason=reason)
