"""Low-level calls of the vector kernels: row norms, int8 codes, top-k search over memory segments.

Source: design sections 5 and 6; csrc/include/caliber.h; csrc/vectors/codes.h.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InvalidValue

CODE_STEP, CODE_SMALLEST, CODE_LARGEST = 64, 64, 1 << 16  # as in csrc/vectors/codes.h
_KEPT_SCRATCH = 1 << 20

Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class Codes(NamedTuple):
    """Rows in one byte an element, from which a search learns which of them need scoring.

    Shapes:  codes uint8[n, stride]; scales and errors f32[n]
    """

    codes: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]

    def part(self, start: int, stop: int) -> Codes:
        """Return a run of rows without copying."""
        return Codes(self.codes[start:stop], self.scales[start:stop], self.errors[start:stop])

    def write(self, start: int, stop: int, codes: Codes) -> None:
        """Copy ``codes`` to a run of rows."""
        self.codes[start:stop] = codes.codes
        self.scales[start:stop] = codes.scales
        self.errors[start:stop] = codes.errors

    def chosen(self, at: npt.NDArray[np.int64]) -> Codes:
        """Return a copy of given rows."""
        return Codes(self.codes[at], self.scales[at], self.errors[at])


class Segment(NamedTuple):
    """A run of rows; ``live`` None means all are; ``size`` of them belong to the snapshot."""

    rows: npt.NDArray[np.float32]
    norms: npt.NDArray[np.float64]
    codes: Codes | None
    live: npt.NDArray[np.uint8] | None
    size: int


def row_norms(rows: npt.NDArray[np.float32], *, field: str) -> npt.NDArray[np.float64]:
    """Return the canonical length of each row.

    Shapes:  rows f32[n, d], checked -> f64[n]
    Raises:  NonFiniteError
    """
    native = dispatch.native()
    out = np.empty(rows.shape[0], dtype=np.float64)
    buffer = native.ffi.from_buffer
    status = native.lib.cal_norms_f32(
        native.features, buffer("float[]", rows), rows.shape[0], rows.shape[1], buffer("double[]", out)
    )
    dispatch.check(status, non_finite=field)
    return out


def code_stride(dimensions: int) -> int:
    """Return the bytes that the codes of a row take; 0 if rows of this length have none."""
    if not CODE_SMALLEST <= dimensions <= CODE_LARGEST:
        return 0
    return -(-dimensions // CODE_STEP) * CODE_STEP


def code_rows(rows: npt.NDArray[np.float32], norms: npt.NDArray[np.float64]) -> Codes | None:
    """Return the codes of each row, or None if rows of this length have none.

    Shapes:  rows f32[n, d]; norms f64[n], both checked
    """
    count, dimensions = rows.shape
    stride = code_stride(dimensions)
    if not stride:
        return None
    native = dispatch.native()
    made = Codes(
        np.empty((count, stride), np.uint8), np.empty(count, dtype=np.float32), np.empty(count, dtype=np.float32)
    )
    buffer = native.ffi.from_buffer
    status = native.lib.cal_code_rows_f32(
        buffer("float[]", rows),
        buffer("double[]", norms),
        count,
        dimensions,
        stride,
        buffer("uint8_t[]", made.codes),
        buffer("float[]", made.scales),
        buffer("float[]", made.errors),
    )
    dispatch.check(status)
    return made


def segment_table(native: dispatch.Native, segments: Sequence[Segment]) -> tuple[Any, Any]:
    """Return the objects that keep the table alive, and the ``cal_segment *`` to pass to C."""
    table = np.zeros((len(segments), 7), dtype=np.uintp)
    for row, (rows, norms, codes, live, count) in zip(table, segments, strict=True):
        coded = (0, 0, 0) if codes is None else tuple(part.ctypes.data for part in codes)
        row[:] = (rows.ctypes.data, norms.ctypes.data, *coded, 0 if live is None else live.ctypes.data, count)
    owner = native.ffi.from_buffer("uint8_t[]", table)
    return owner, native.ffi.cast("cal_segment *", owner)


class _Scratch(threading.local):
    """Memory that searches of one thread write to, used only while C runs; one of usual size is kept."""

    module: Any = None
    key: tuple[int, int, int] | None = None
    memory: Any = None
    size: int = 0

    def of(self, native: dispatch.Native, dimensions: int, k: int, queries: int) -> tuple[Any, int]:
        key = (dimensions, k, queries)
        if key == self.key and native.lib is self.module:
            return self.memory, self.size
        size = native.lib.cal_topk_scratch(dimensions, k, queries)
        try:
            memory = native.ffi.from_buffer("uint8_t[]", np.empty(size, dtype=np.uint8))
        except (MemoryError, ValueError) as error:
            raise InvalidValue(field="k", reason=f"{k} results of {queries} queries do not fit into memory") from error
        if size <= _KEPT_SCRATCH:
            self.module, self.key, self.memory, self.size = native.lib, key, memory, size
        return memory, size


_scratch = _Scratch()


class Bounds(NamedTuple):
    """Checked arguments that all queries of a search share."""

    k: int
    floor: float
    mask: npt.NDArray[np.uint8] | None
    tie: npt.NDArray[np.uint64] | None


def bounds(size: int, k: Any, min_similarity: float | None, mask: Any, tie: Any) -> Bounds:
    """Check the arguments of a top-k search over ``size`` row ids.

    Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
    """
    return Bounds(
        min(checks.whole(k, field="k"), size),
        -np.inf if min_similarity is None else checks.threshold(min_similarity, field="min_similarity"),
        None if mask is None else checks.flags(mask, size, field="mask"),
        None if tie is None else checks.shaped(tie, checks.U64, (size, 2), field="tie"),
    )


def search(
    segments: Sequence[Segment],
    dimensions: int,
    metric: int,
    queries: npt.NDArray[np.float32],
    asked: Bounds,
    table: Any = None,
) -> list[Found]:
    """Return the best rows for each query, checked already; rows are read once for ``_TOGETHER`` queries.

    Raises:  NonFiniteError, InvalidValue
    """
    out: list[Found] = []
    for start in range(0, queries.shape[0], _TOGETHER):
        count = len(some := queries[start : start + _TOGETHER])
        ids, scores = np.empty((count, asked.k), checks.I64), np.empty((count, asked.k), checks.F32)
        found = _search(segments, dimensions, metric, some, count, asked, ids, scores, table)
        for q, size in enumerate(found):
            out.append((ids[q, :size].copy(), scores[q, :size].copy()))
    return out


_TOGETHER = 64  # their codes and heaps, about 10 KiB each, fit the second cache


def _search(
    segments: Sequence[Segment],
    dimensions: int,
    metric: int,
    queries: npt.NDArray[np.float32],
    count: int,
    asked: Bounds,
    ids: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    table: Any,
) -> Any:
    native = dispatch.native()
    ffi, lib = native.ffi, native.lib
    buffer, null = ffi.from_buffer, ffi.NULL
    k, floor, mask, tie = asked
    scratch, size = _scratch.of(native, dimensions, k, count)
    owner = segment_table(native, segments) if table is None else table(native)
    found = ffi.new("size_t[]", count)
    status = lib.cal_topk_f32(
        native.features,
        metric,
        owner[1],
        len(segments),
        dimensions,
        buffer("float[]", queries),
        count,
        k,
        floor,
        null if mask is None else buffer("uint8_t[]", mask),
        null if tie is None else buffer("uint64_t[]", tie),
        scratch,
        size,
        buffer("int64_t[]", ids),
        buffer("float[]", scores),
        found,
    )
    if status:
        dispatch.check(status, non_finite="query")
    return found
