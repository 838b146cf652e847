"""The vector kernels in NumPy: scores, codes, top-k rows, near-duplicate pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32s = npt.NDArray[np.float32]
F64s = npt.NDArray[np.float64]
I64s = npt.NDArray[np.int64]
U8s = npt.NDArray[np.uint8]
U64s = npt.NDArray[np.uint64]

LANES = 8
COSINE, L2, INNER_PRODUCT = 0, 1, 2


def _lanes(values: F32s) -> F64s:
    """Widen f32[..., d] to f64[..., ceil(d / 8), 8], padded with zeros."""
    dimensions = values.shape[-1]
    steps = -(-dimensions // LANES)
    padded = np.zeros((*values.shape[:-1], steps * LANES), dtype=np.float64)
    padded[..., :dimensions] = values
    return padded.reshape(*values.shape[:-1], steps, LANES)


def _fold(terms: F64s) -> F64s:
    """Add f64[..., steps, 8] lane by lane in index order, then the lanes 4-2-1."""
    lane = np.zeros((*terms.shape[:-2], LANES), dtype=np.float64)
    for step in range(terms.shape[-2]):
        lane = lane + terms[..., step, :]
    four = lane[..., :4] + lane[..., 4:]
    two = four[..., :2] + four[..., 2:]
    return np.asarray(two[..., 0] + two[..., 1], dtype=np.float64)


def norms(rows: F32s) -> F64s:
    """Euclidean length of each row.

    Shapes:  rows f32[n, d] -> f64[n]
    """
    wide = _lanes(rows)
    return np.asarray(np.sqrt(_fold(wide * wide)), dtype=np.float64)


def sums(rows: F32s, query: F32s, *, metric: int) -> F64s:
    """The canonical f64 of each row before any rounding to f32: dot product, or for l2 the squared distance.

    Shapes:  rows f32[n, d]; query f32[d] -> f64[n]
    """
    wide, wide_query = _lanes(rows), _lanes(query)
    if metric == L2:
        difference = wide - wide_query
        return _fold(difference * difference)
    return _fold(wide * wide_query)


def scores(rows: F32s, query: F32s, *, metric: int) -> F32s:
    """Canonical score of each row.

    Shapes:  rows f32[n, d]; query f32[d] -> f32[n]
    Units:   cosine in [-1, 1], zero norm -> 0.0; l2 1/(1+distance); inner product
    """
    exact = sums(rows, query, metric=metric)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if metric == L2:
            exact = 1.0 / (1.0 + np.sqrt(exact))
        elif metric == COSINE:
            scale = norms(query[np.newaxis])[0] * norms(rows)
            exact = np.where(scale == 0.0, 0.0, np.clip(exact / scale, -1.0, 1.0))
        return exact.astype(np.float32)


def code_rows(rows: F32s, row_norms: F64s, stride: int) -> tuple[U8s, F32s, F32s]:
    """One byte per element, a scale, and a bound of the rounding error; csrc/vectors/codes.h.

    Shapes:  rows f32[n, d]; row_norms f64[n] -> uint8[n, stride], f32[n], f32[n]
    """
    count, dimensions = rows.shape
    codes = np.full((count, stride), 128, dtype=np.uint8)
    scales, errors = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=np.float32)
    some = row_norms > 0.0
    if not some.any():
        return codes, scales, errors
    shrink = 1.0 / row_norms[some]
    units = rows[some].astype(np.float64) * shrink[:, np.newaxis]
    step = (np.abs(rows[some]).max(axis=1).astype(np.float64) * shrink / 127.0).astype(np.float32)
    wide = step.astype(np.float64)[:, np.newaxis]
    nearest = np.rint(units * (1.0 / wide))
    residual = units - wide * nearest
    lanes = np.zeros((residual.shape[0], -(-dimensions // LANES) * LANES), dtype=np.float64)
    lanes[:, :dimensions] = residual * residual
    squares = _fold(lanes.reshape(residual.shape[0], -1, LANES))
    codes[some, :dimensions] = (nearest.astype(np.int32) + 128).astype(np.uint8)
    scales[some] = step
    errors[some] = (np.sqrt(squares) * (1.0 + 2.0**-20) + 2.0**-30).astype(np.float32)
    return codes, scales, errors


def canonical_order(found: F32s, ids: I64s, tie: U64s | None) -> I64s:
    """Positions of ``found`` by score descending, tie ascending, id ascending.

    Shapes:  found f32[m]; ids int64[m]; tie u64[n, 2] by id
    """
    keys: list[Any] = [ids]
    if tie is not None:
        keys += [tie[ids, 1], tie[ids, 0]]
    return np.lexsort([*keys, -found.astype(np.float64)]).astype(np.int64)


def topk(
    rows: F32s,
    query: F32s,
    k: int,
    *,
    metric: int = COSINE,
    min_similarity: float = -np.inf,
    keep: npt.NDArray[np.bool_] | None = None,
    tie: U64s | None = None,
) -> tuple[I64s, F32s]:
    """The best k rows in canonical order.

    Shapes:  rows f32[n, d]; query f32[d]; keep bool[n]; tie u64[n, 2] -> int64[m], f32[m]
    """
    every = scores(rows, query, metric=metric)
    reached = every >= np.float32(min_similarity)
    ids = np.flatnonzero(reached if keep is None else reached & keep)
    best = ids[canonical_order(every[ids], ids, tie)[:k]]
    return best, every[best]


def near_groups(rows: F32s, threshold: float, *, left_out: U8s) -> I64s:
    """The first row of each row's group, or -1: a row that is in no group takes all later near ones that are in none.

    Shapes:  rows f32[n, d]; left_out uint8[n] -> int64[n]
    """
    leader = np.full(rows.shape[0], -1, np.int64)
    for i in range(rows.shape[0]):
        if leader[i] < 0 and not left_out[i]:
            near = scores(rows[i + 1 :], rows[i], metric=COSINE) >= np.float32(threshold)
            taken = i + 1 + np.flatnonzero(near & (leader[i + 1 :] < 0) & (left_out[i + 1 :] == 0))
            leader[taken] = i
            leader[i] = i if len(taken) else -1
    return leader


def pairs_above(rows: F32s, threshold: float, *, max_pairs: int) -> tuple[I64s, F32s, bool]:
    """The best ``max_pairs`` pairs i < j whose cosine is at least ``threshold``.

    Shapes:  rows f32[n, d] -> int64[p, 2], f32[p], truncated
    """
    left, right, found = [], [], []
    for i in range(rows.shape[0] - 1):
        row_scores = scores(rows[i + 1 :], rows[i], metric=COSINE)
        hits = np.flatnonzero(row_scores >= np.float32(threshold))
        left.append(np.full(hits.shape[0], i, dtype=np.int64))
        right.append((hits + i + 1).astype(np.int64))
        found.append(row_scores[hits])
    index = np.stack([np.concatenate(side or [np.empty(0, np.int64)]) for side in (left, right)], axis=1)
    score = np.concatenate(found or [np.empty(0, np.float32)])
    best = np.lexsort([index[:, 1], index[:, 0], -score.astype(np.float64)])[:max_pairs]
    return np.ascontiguousarray(index[best]), score[best], score.shape[0] > max_pairs
