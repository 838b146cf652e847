"""Vectors in memory: append-only segments, immutable snapshots, exact search in canonical order.

Source: design sections 5 and 6; C-190.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch, reference
from caliber.model.errors import InvalidValue, NonFiniteError

SEGMENT_ROWS = 4096
_LARGEST_DIMENSIONS = 1 << 20


class Metric(StrEnum):
    """How two vectors are compared; every metric is a similarity, higher is closer."""

    COSINE = "cosine"
    L2 = "l2"
    INNER_PRODUCT = "inner_product"


METRIC_CODES = {Metric.COSINE: 0, Metric.L2: 1, Metric.INNER_PRODUCT: 2}  # CAL_METRIC_* of caliber.h

# Rows, their norms, live flags (None: all), and how many of them belong to the snapshot.
Segment = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64], npt.NDArray[np.uint8] | None, int]
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class VectorMatrix:
    """A growing set of vectors under one metric; every method may be called from any thread.

    Rows lie in segments of ``SEGMENT_ROWS`` that never move, so snapshots share them. ``len()`` counts live rows.

    Units:   cosine in [-1, 1], zero norm -> 0.0; l2 1/(1+distance); inner_product the product
    Raises:  InvalidValue
    """

    def __init__(self, dimensions: int, metric: str = "cosine") -> None:
        self.dimensions = checks.whole(dimensions, field="dimensions", low=1, high=_LARGEST_DIMENSIONS)
        try:
            self.metric = Metric(metric)
        except ValueError as error:
            names = ", ".join(Metric)
            raise InvalidValue(field="metric", reason=f"expected one of {names}") from error
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._size = 0
        self._live = 0
        self._newest: Snapshot | None = None

    def append(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Add rows and return their row ids, which are consecutive and stay valid until ``compact``.

        Shapes:  rows f32[n, dimensions] -> int64[n]
        Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue; nothing is added then
        """
        rows = checks.shaped(rows, checks.F32, (None, self.dimensions), field="rows")
        norms = row_norms(rows, field="rows")
        with self._lock:
            first = self._size
            done = 0
            while done < rows.shape[0]:
                done += self._fill(rows[done:], norms[done:])
            self._size += rows.shape[0]
            self._live += rows.shape[0]
            self._newest = None
        return np.arange(first, first + rows.shape[0], dtype=np.int64)

    def _fill(self, rows: npt.NDArray[np.float32], norms: npt.NDArray[np.float64]) -> int:
        if not self._segments or self._segments[-1][3] == SEGMENT_ROWS:
            self._segments.append(_empty_segment(self.dimensions))
        kept, kept_norms, live, count = self._segments[-1]
        taken: int = min(SEGMENT_ROWS - count, rows.shape[0])
        # Beyond the count of every snapshot taken so far, so no reader looks here yet.
        kept[count : count + taken] = rows[:taken]
        kept_norms[count : count + taken] = norms[:taken]
        self._segments[-1] = (kept, kept_norms, live, count + taken)
        return taken

    def retire(self, ids: npt.NDArray[np.int64]) -> int:
        """Take rows out of later snapshots and return how many were live; retiring twice changes nothing.

        Shapes:  ids int64[n]
        Raises:  DTypeError, ShapeError, InvalidValue for an unknown id; nothing is retired then
        """
        with self._lock:
            ids = checks.row_ids(ids, self._size)
            retired = 0
            for number in np.unique(ids // SEGMENT_ROWS).tolist():
                rows, norms, live, count = self._segments[number]
                # A copy: snapshots keep the flags they were taken with.
                changed = np.ones(SEGMENT_ROWS, dtype=np.uint8) if live is None else live.copy()
                at = np.unique(ids[ids // SEGMENT_ROWS == number]) % SEGMENT_ROWS
                retired += int(np.count_nonzero(changed[at]))
                changed[at] = 0
                self._segments[number] = (rows, norms, changed, count)
            if retired:
                self._live -= retired
                self._newest = None
        return retired

    def compact(self) -> npt.NDArray[np.int64]:
        """Give up the space of retired rows and return the new row id of each old one, -1 if it was retired.

        Row ids change: live rows keep their order and are numbered from 0 again. Snapshots taken before keep the old
        ids and the old rows. Without retired rows nothing moves and the mapping is the identity.

        Shapes:  -> int64[rows before]
        """
        with self._lock:
            before = self._snapshot()
            live = before.live
            mapping = np.full(before.size, -1, dtype=np.int64)
            mapping[live] = np.arange(before.live_count, dtype=np.int64)
            if before.live_count == before.size:
                return mapping
            segments: list[Segment] = []
            base = 0
            self._segments = segments
            for rows, norms, _, count in before.segments:
                kept = np.flatnonzero(live[base : base + count])
                base += count
                done = 0
                while done < kept.shape[0]:
                    done += self._fill(rows[kept[done:]], norms[kept[done:]])
            self._size = before.live_count
            self._newest = None
        return mapping

    def snapshot(self) -> Snapshot:
        """Return the rows of this moment, which no later call changes."""
        with self._lock:
            return self._snapshot()

    def _snapshot(self) -> Snapshot:
        if self._newest is None:
            self._newest = Snapshot(self.dimensions, self.metric, tuple(self._segments), self._size, self._live)
        return self._newest

    def topk(
        self,
        query: npt.NDArray[np.float32],
        k: int,
        *,
        min_similarity: float | None = None,
        mask: npt.NDArray[Any] | None = None,
        tie: npt.NDArray[np.uint64] | None = None,
    ) -> Found:
        """Return ``snapshot().topk(...)``."""
        return self.snapshot().topk(query, k, min_similarity=min_similarity, mask=mask, tie=tie)

    def topk_many(
        self,
        queries: npt.NDArray[np.float32],
        k: int,
        *,
        min_similarity: float | None = None,
        mask: npt.NDArray[Any] | None = None,
        tie: npt.NDArray[np.uint64] | None = None,
    ) -> list[Found]:
        """Return ``snapshot().topk_many(...)``."""
        return self.snapshot().topk_many(queries, k, min_similarity=min_similarity, mask=mask, tie=tie)

    @property
    def nbytes(self) -> int:
        """Bytes that the rows occupy, retired ones included."""
        return self.snapshot().nbytes

    @property
    def size(self) -> int:
        """Number of row ids given out since the last ``compact``: every id is below it."""
        return self._size

    def __len__(self) -> int:
        return self._live


class Snapshot:
    """The rows of a ``VectorMatrix`` at one moment; immutable, for any number of threads.

    ``size`` is the number of row ids, retired ones included; ``len()`` and ``live_count`` count live rows.
    """

    def __init__(
        self, dimensions: int, metric: Metric, segments: tuple[Segment, ...], size: int, live_count: int
    ) -> None:
        self.dimensions = dimensions
        self.metric = metric
        self.segments = segments
        self.size = size
        self.live_count = live_count
        self._table: tuple[Any, Any] | None = None

    def topk(
        self,
        query: npt.NDArray[np.float32],
        k: int,
        *,
        min_similarity: float | None = None,
        mask: npt.NDArray[Any] | None = None,
        tie: npt.NDArray[np.uint64] | None = None,
    ) -> Found:
        """Return row ids and scores of the best k live rows, exactly, in canonical order.

        Shapes:  query f32[d]; mask bool or uint8[size]; tie u64[size, 2] -> int64[m], f32[m], m <= k
        Units:   min_similarity is rounded to f32 as the scores are; equal scores by tie, then by lower row id
        Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
        """
        return search(
            self.segments,
            self.size,
            self.dimensions,
            METRIC_CODES[self.metric],
            query,
            k,
            min_similarity=min_similarity,
            mask=mask,
            tie=tie,
            table=self._native_table,
        )

    def topk_many(
        self,
        queries: npt.NDArray[np.float32],
        k: int,
        *,
        min_similarity: float | None = None,
        mask: npt.NDArray[Any] | None = None,
        tie: npt.NDArray[np.uint64] | None = None,
    ) -> list[Found]:
        """Return ``topk`` of each query.

        Shapes:  queries f32[q, d] -> q times (int64[m], f32[m])
        Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
        """
        queries = checks.shaped(queries, checks.F32, (None, self.dimensions), field="queries")
        return [self.topk(query, k, min_similarity=min_similarity, mask=mask, tie=tie) for query in queries]

    def scores(self, query: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the canonical scores of given rows, retired ones included.

        Shapes:  query f32[d]; ids int64[n] -> f32[n]
        Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue for an unknown id
        """
        query = checks.shaped(query, checks.F32, (self.dimensions,), field="query")
        ids = checks.row_ids(ids, self.size)
        native = dispatch.native()
        query_norm = row_norms(query.reshape(1, -1), field="query")[0]
        if native is None:
            return reference.scores(self.rows(ids), query, metric=METRIC_CODES[self.metric])
        out = np.empty(ids.shape[0], dtype=np.float32)
        buffer = native.ffi.from_buffer
        status = native.lib.cal_scores_f32(
            native.features,
            METRIC_CODES[self.metric],
            self._native_table(native),
            len(self.segments),
            SEGMENT_ROWS,
            self.dimensions,
            buffer("float[]", query),
            query_norm,
            buffer("int64_t[]", ids),
            ids.shape[0],
            buffer("float[]", out),
        )
        dispatch.check(status)
        return out

    def rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return a copy of given rows, retired ones included.

        Shapes:  ids int64[n] -> f32[n, d]
        Raises:  ShapeError, DTypeError, InvalidValue for an unknown id
        """
        ids = checks.row_ids(ids, self.size)
        out = np.empty((ids.shape[0], self.dimensions), dtype=np.float32)
        segment_of = ids // SEGMENT_ROWS
        for number in np.unique(segment_of).tolist():
            chosen = segment_of == number
            out[chosen] = self.segments[number][0][ids[chosen] % SEGMENT_ROWS]
        return out

    @cached_property
    def live(self) -> npt.NDArray[np.bool_]:
        """Which row ids are live; read-only.

        Shapes:  bool[size]
        """
        out = np.ones(self.size, dtype=np.bool_)
        base = 0
        for _, _, live, count in self.segments:
            if live is not None:
                out[base : base + count] = live[:count]
            base += count
        out.flags.writeable = False
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that the rows occupy, retired ones included."""
        total = 0
        for _, _, live, count in self.segments:
            total += count * (4 * self.dimensions + 8) + (0 if live is None else live.nbytes)
        return total

    def __len__(self) -> int:
        return self.live_count

    def _native_table(self, native: dispatch.Native) -> Any:
        # Built at the first search; a race between two threads builds it twice, to the same effect.
        if self._table is None:
            self._table = segment_table(native, self.segments)
        return self._table[1]


def row_norms(rows: npt.NDArray[np.float32], *, field: str) -> npt.NDArray[np.float64]:
    """Return the canonical length of each row.

    Shapes:  rows f32[n, d], checked -> f64[n]
    Raises:  NonFiniteError
    """
    native = dispatch.native()
    if native is None:
        if not np.isfinite(rows).all():
            raise NonFiniteError(field=field)
        return reference.norms(rows)
    out = np.empty(rows.shape[0], dtype=np.float64)
    buffer = native.ffi.from_buffer
    status = native.lib.cal_norms_f32(
        native.features, buffer("float[]", rows), rows.shape[0], rows.shape[1], buffer("double[]", out)
    )
    dispatch.check(status, non_finite=field)
    return out


def row_sums(rows: npt.NDArray[np.float32], query: npt.NDArray[np.float32], *, metric: int) -> npt.NDArray[np.float64]:
    """Return what scores are made of, in f64: dot products, or for l2 squared distances.

    Shapes:  rows f32[n, d]; query f32[d], both checked -> f64[n]
    """
    native = dispatch.native()
    if native is None:
        return reference.sums(rows, query, metric=metric)
    out = np.empty(rows.shape[0], dtype=np.float64)
    buffer = native.ffi.from_buffer
    status = native.lib.cal_sums_f32(
        native.features,
        metric,
        buffer("float[]", rows),
        rows.shape[0],
        rows.shape[1],
        buffer("float[]", query),
        buffer("double[]", out),
    )
    dispatch.check(status)
    return out


def segment_table(native: dispatch.Native, segments: Sequence[Segment]) -> tuple[Any, Any]:
    """Return what keeps the table alive, and the ``cal_segment *`` to pass to C."""
    table = np.zeros((len(segments), 4), dtype=np.uintp)
    for row, (rows, norms, live, count) in zip(table, segments, strict=True):
        row[:] = (rows.ctypes.data, norms.ctypes.data, 0 if live is None else live.ctypes.data, count)
    owner = native.ffi.from_buffer("uint8_t[]", table)
    return owner, native.ffi.cast("cal_segment *", owner)


def search(
    segments: Sequence[Segment],
    size: int,
    dimensions: int,
    metric: int,
    query: Any,
    k: Any,
    *,
    min_similarity: float | None,
    mask: npt.NDArray[Any] | None,
    tie: npt.NDArray[np.uint64] | None,
    table: Any = None,
) -> Found:
    """Check the arguments of a top-k search and run it; see ``Snapshot.topk``."""
    query = checks.shaped(query, checks.F32, (dimensions,), field="query")
    wanted = min(checks.whole(k, field="k"), size)
    floor = -np.inf if min_similarity is None else checks.threshold(min_similarity, field="min_similarity")
    if mask is not None:
        mask = checks.flags(mask, size, field="mask")
    if tie is not None:
        tie = checks.shaped(tie, checks.U64, (size, 2), field="tie")
    query_norm = row_norms(query.reshape(1, -1), field="query")[0]
    native = dispatch.native()
    if native is None:
        return _search_twin(segments, dimensions, metric, query, wanted, floor=floor, mask=mask, tie=tie)
    ids, scores = np.empty(wanted, dtype=np.int64), np.empty(wanted, dtype=np.float32)
    ffi = native.ffi
    owner = segment_table(native, segments) if table is None else (None, table(native))
    found = ffi.new("size_t *")
    status = native.lib.cal_topk_f32(
        native.features,
        metric,
        owner[1],
        len(segments),
        dimensions,
        ffi.from_buffer("float[]", query),
        query_norm,
        wanted,
        floor,
        ffi.NULL if mask is None else ffi.from_buffer("uint8_t[]", mask),
        ffi.NULL if tie is None else ffi.from_buffer("uint64_t[]", tie),
        ffi.from_buffer("int64_t[]", ids),
        ffi.from_buffer("float[]", scores),
        found,
    )
    dispatch.check(status)
    if found[0] == wanted:
        return ids, scores
    return ids[: found[0]].copy(), scores[: found[0]].copy()


def _search_twin(
    segments: Sequence[Segment],
    dimensions: int,
    metric: int,
    query: npt.NDArray[np.float32],
    k: int,
    *,
    floor: float,
    mask: npt.NDArray[np.uint8] | None,
    tie: npt.NDArray[np.uint64] | None,
) -> Found:
    rows = np.concatenate([np.empty((0, dimensions), np.float32), *(s[0][: s[3]] for s in segments)])
    live = [np.ones(s[3], np.uint8) if s[2] is None else s[2][: s[3]] for s in segments]
    keep = np.concatenate([np.empty(0, np.uint8), *live]).astype(np.bool_)
    if mask is not None:
        keep &= mask.astype(np.bool_)
    return reference.topk(rows, query, k, metric=metric, min_similarity=floor, keep=keep, tie=tie)


def _empty_segment(dimensions: int) -> Segment:
    rows = np.empty((SEGMENT_ROWS, dimensions), dtype=np.float32)
    return rows, np.empty(SEGMENT_ROWS, dtype=np.float64), None, 0
