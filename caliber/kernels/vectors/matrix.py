"""Append-only matrix of vectors with immutable snapshots and exact top-k search.

Source: design sections 5 and 6; C-190.
"""

from __future__ import annotations

import threading
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.vectors import scoring
from caliber.kernels.vectors.scoring import Bounds, Codes, Found, Segment, row_norms
from caliber.model.errors import InvalidValue

SEGMENT_ROWS = 4096
CACHE_LINE = 64
_LARGEST_DIMENSIONS = 1 << 20


class Metric(StrEnum):
    """The comparison of two vectors; every metric is a similarity, higher is closer."""

    COSINE = "cosine"
    L2 = "l2"
    INNER_PRODUCT = "inner_product"


METRIC_CODES = {Metric.COSINE: 0, Metric.L2: 1, Metric.INNER_PRODUCT: 2}  # CAL_METRIC_* of caliber.h


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
        codes = scoring.code_rows(rows, norms)
        with self._lock:
            first = self._size
            self._extend(rows, norms, codes)
            self._size += rows.shape[0]
            self._live += rows.shape[0]
            self._newest = None
        return np.arange(first, first + rows.shape[0], dtype=np.int64)

    def _extend(self, rows: npt.NDArray[np.float32], norms: npt.NDArray[np.float64], codes: Codes | None) -> None:
        done = 0
        while done < rows.shape[0]:
            if not self._segments or self._segments[-1].size == SEGMENT_ROWS:
                self._segments.append(_empty_segment(self.dimensions))
            last = self._segments[-1]
            start = last.size
            stop = min(SEGMENT_ROWS, start + rows.shape[0] - done)
            taken = slice(done, done + stop - start)
            # Beyond the count of every snapshot taken so far, so no reader looks here yet.
            last.rows[start:stop] = rows[taken]
            last.norms[start:stop] = norms[taken]
            if last.codes is not None and codes is not None:
                last.codes.write(start, stop, codes.part(taken.start, taken.stop))
            self._segments[-1] = last._replace(size=stop)
            done = taken.stop

    def retire(self, ids: npt.NDArray[np.int64]) -> int:
        """Take rows out of later snapshots and return how many were live; retiring twice changes nothing.

        Shapes:  ids int64[n]
        Raises:  DTypeError, ShapeError, InvalidValue for an unknown id; nothing is retired then
        """
        with self._lock:
            ids = checks.row_ids(ids, self._size)
            retired = 0
            for number in np.unique(ids // SEGMENT_ROWS).tolist():
                segment = self._segments[number]
                # A copy: snapshots keep the flags they were taken with.
                changed = np.ones(SEGMENT_ROWS, dtype=np.uint8) if segment.live is None else segment.live.copy()
                at = np.unique(ids[ids // SEGMENT_ROWS == number]) % SEGMENT_ROWS
                retired += int(np.count_nonzero(changed[at]))
                changed[at] = 0
                self._segments[number] = segment._replace(live=changed)
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
            self._segments = []
            base = 0
            for segment in before.segments:
                kept = np.flatnonzero(live[base : base + segment.size])
                base += segment.size
                codes = None if segment.codes is None else segment.codes.chosen(kept)
                self._extend(segment.rows[kept], segment.norms[kept], codes)
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
        self._metric_code = METRIC_CODES[metric]
        self._query_shape = (dimensions,)
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
        return self.nearest(query, scoring.bounds(self.size, k, min_similarity, mask, tie))

    def nearest(self, query: npt.NDArray[np.float32], asked: Bounds) -> Found:
        """Return ``topk`` within bounds that the caller has checked. Raises: as ``topk`` for a query."""
        query = checks.shaped(query, checks.F32, self._query_shape, field="query")
        some = query.reshape(1, -1)
        return scoring.search(self.segments, self.dimensions, self._metric_code, some, asked, self._native_table)[0]

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
        asked = scoring.bounds(self.size, k, min_similarity, mask, tie)
        return scoring.search(self.segments, self.dimensions, self._metric_code, queries, asked, self._native_table)

    def scores(self, query: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the canonical scores of given rows, retired ones included.

        Shapes:  query f32[d]; ids int64[n] -> f32[n]
        Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue for an unknown id
        """
        query = checks.shaped(query, checks.F32, (self.dimensions,), field="query")
        ids = checks.row_ids(ids, self.size)
        native = dispatch.native()
        query_norm = row_norms(query.reshape(1, -1), field="query")[0]
        out = np.empty(ids.shape[0], dtype=np.float32)
        buffer = native.ffi.from_buffer
        status = native.lib.cal_scores_f32(
            native.features,
            self._metric_code,
            self._native_table(native)[1],
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
            out[chosen] = self.segments[number].rows[ids[chosen] % SEGMENT_ROWS]
        return out

    @cached_property
    def live(self) -> npt.NDArray[np.bool_]:
        """The mask of live row ids; read-only.

        Shapes:  bool[size]
        """
        out = np.ones(self.size, dtype=np.bool_)
        base = 0
        for segment in self.segments:
            if segment.live is not None:
                out[base : base + segment.size] = segment.live[: segment.size]
            base += segment.size
        out.flags.writeable = False
        return out

    @property
    def nbytes(self) -> int:
        """Bytes that the rows occupy, retired ones included."""
        total = 0
        stride = scoring.code_stride(self.dimensions)
        each = 4 * self.dimensions + 8 + (stride + 8 if stride else 0)
        for segment in self.segments:
            total += segment.size * each + (0 if segment.live is None else segment.live.nbytes)
        return total

    def __len__(self) -> int:
        return self.live_count

    def _native_table(self, native: dispatch.Native) -> Any:
        # Built at the first search; a race between two threads builds it twice, to the same effect.
        if self._table is None:
            self._table = scoring.segment_table(native, self.segments)
        return self._table


def _empty_segment(dimensions: int) -> Segment:
    stride = scoring.code_stride(dimensions)
    codes = None
    if stride:
        codes = Codes(
            _aligned_bytes(SEGMENT_ROWS * stride).reshape(SEGMENT_ROWS, stride),
            np.empty(SEGMENT_ROWS, dtype=np.float32),
            np.empty(SEGMENT_ROWS, dtype=np.float32),
        )
    rows = np.empty((SEGMENT_ROWS, dimensions), dtype=np.float32)
    return Segment(rows, np.empty(SEGMENT_ROWS, dtype=np.float64), codes, None, 0)


def _aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Return memory that begins a cache line, so that no code is read from two."""
    memory = np.empty(size + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size]
