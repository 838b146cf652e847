"""Cosine similarity of plain arrays, without an index: top-k rows, all scores, pairs above a threshold.

Source: design section 6; C-190, C-307.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.vectors import scoring
from caliber.kernels.vectors.matrix import METRIC_CODES, Metric
from caliber.kernels.vectors.scoring import Segment, row_norms
from caliber.model.errors import InvalidValue, ShapeError
from caliber.model.lazy_dataclass import dataclass

_COSINE = METRIC_CODES[Metric.COSINE]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows, the most similar first.

    Shapes:  index int64[p, 2], index[:, 0] < index[:, 1]; score f32[p]
    """

    index: npt.NDArray[np.int64]
    score: npt.NDArray[np.float32]
    truncated: bool


def cosine_topk(
    rows: npt.NDArray[np.float32],
    query: npt.NDArray[np.float32],
    k: int,
    *,
    min_similarity: float | None = None,
    mask: npt.NDArray[Any] | None = None,
    tie: npt.NDArray[np.uint64] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the best k rows by cosine, in canonical order; for rows searched once (else ``VectorMatrix``).

    Shapes:  rows f32[n, d]; query f32[d]; mask bool or uint8[n]; tie u64[n, 2] -> int64[m], f32[m], m <= k
    Units:   cosine in [-1, 1]; zero norm -> 0.0; equal scores by tie, then by lower row
    Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
    """
    rows = _matrix(rows, "rows")
    norms = row_norms(rows, field="rows")
    count, dimensions = rows.shape
    query = checks.shaped(query, checks.F32, (dimensions,), field="query")
    asked = scoring.bounds(count, k, min_similarity, mask, tie)
    # Without codes: making them costs more than one search saves.
    return scoring.search([Segment(rows, norms, None, None, count)], dimensions, _COSINE, query[None], asked)[0]


def cosine_batch(rows: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the cosine of every row with every query.

    Shapes:  rows f32[n, d]; queries f32[q, d] -> f32[q, n]
    Units:   cosine in [-1, 1]; zero norm -> 0.0
    Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
    """
    rows = _matrix(rows, "rows")
    queries = checks.shaped(queries, checks.F32, (None, rows.shape[1]), field="queries")
    native = dispatch.native()
    norms, query_norms = row_norms(rows, field="rows"), row_norms(queries, field="queries")
    out = np.empty((queries.shape[0], rows.shape[0]), dtype=np.float32)
    buffer = native.ffi.from_buffer
    status = native.lib.cal_score_batch_f32(
        native.features,
        _COSINE,
        buffer("float[]", rows),
        buffer("double[]", norms),
        rows.shape[0],
        rows.shape[1],
        buffer("float[]", queries),
        buffer("double[]", query_norms),
        queries.shape[0],
        buffer("float[]", out),
    )
    dispatch.check(status)
    return out


def pairs_above(rows: npt.NDArray[np.float32], threshold: float, *, max_pairs: int) -> Pairs:
    """Return the pairs of rows whose cosine is at least ``threshold``, the best ``max_pairs`` of them.

    Equal scores are ordered by lower first row, then lower second row; ``truncated`` is true if there were more.

    Shapes:  rows f32[n, d] Units:   cosine in [-1, 1]; zero norm -> 0.0; the threshold is rounded to f32 as the scores
    are Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
    """
    rows = _matrix(rows, "rows")
    floor = checks.threshold(threshold, field="threshold")
    limit = checks.whole(max_pairs, field="max_pairs")
    native = dispatch.native()
    norms = row_norms(rows, field="rows")
    count = rows.shape[0]
    capacity = min(limit, count * (count - 1) // 2)
    try:
        left, right = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
        scores = np.empty(capacity, dtype=np.float32)
    except MemoryError as error:
        raise InvalidValue(field="max_pairs", reason=f"{limit} pairs do not fit into memory") from error
    ffi = native.ffi
    found, truncated = ffi.new("size_t *"), ffi.new("int32_t *")
    segment = Segment(rows, norms, scoring.code_rows(rows, norms), None, count)
    owner, table = scoring.segment_table(native, [segment])
    query_codes = bytearray(native.lib.CAL_PAIR_ROWS * scoring.code_stride(rows.shape[1]))
    status = native.lib.cal_pairs_above_f32(
        native.features,
        table,
        rows.shape[1],
        floor,
        capacity,
        ffi.from_buffer("int8_t[]", query_codes),
        ffi.from_buffer("int64_t[]", left),
        ffi.from_buffer("int64_t[]", right),
        ffi.from_buffer("float[]", scores),
        found,
        truncated,
    )
    del owner  # kept until C has returned
    dispatch.check(status)
    index = np.stack([left[: found[0]], right[: found[0]]], axis=1)
    return Pairs(index, scores[: found[0]].copy(), bool(truncated[0]))


def near_groups(
    rows: npt.NDArray[np.float32], threshold: float, *, left_out: npt.NDArray[np.uint8]
) -> npt.NDArray[np.int64]:
    """Return for each row the first row of its group of near rows, or -1 for a row in none.

    In the order of rows, a row that is in no group takes all later ones that are in none and whose cosine with it is at
    least ``threshold``.

    Shapes:  rows f32[n, d]; left_out uint8[n], not 0 for rows that are to be in none -> int64[n]
    Units:   as ``pairs_above``
    Raises:  ShapeError, DTypeError, NonFiniteError
    """
    rows = _matrix(rows, "rows")
    floor = checks.threshold(threshold, field="threshold")
    left_out = checks.shaped(left_out, checks.U8, (rows.shape[0],), field="left_out")
    native = dispatch.native()
    norms = row_norms(rows, field="rows")
    leader = np.empty(rows.shape[0], np.int64)
    codes = scoring.code_rows(rows, norms)
    owner, table = scoring.segment_table(native, [Segment(rows, norms, codes, None, rows.shape[0])])
    ffi = native.ffi
    status = native.lib.cal_near_groups_f32(
        native.features,
        table,
        rows.shape[1],
        floor,
        ffi.from_buffer("uint8_t[]", left_out),
        ffi.NULL if codes is None else ffi.from_buffer("int8_t[]", bytearray(codes.codes.shape[1])),
        ffi.from_buffer("int64_t[]", leader),
    )
    del owner  # kept until C has returned
    dispatch.check(status)
    return leader


def _matrix(rows: Any, field: str) -> npt.NDArray[np.float32]:
    checked = checks.view(rows, checks.F32, 2, field=field)
    if checked.shape[1] == 0:
        raise ShapeError(field=field, expected="at least one column", got=checked.shape)
    return checked
