"""Steps of the vector kernels that no search returns: sums before rounding, and bounds from codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caliber.kernels import dispatch
from caliber.kernels.vectors import scoring


def row_sums(rows: npt.NDArray[np.float32], query: npt.NDArray[np.float32], *, metric: int) -> npt.NDArray[np.float64]:
    """Return the sums that scores are made of, in f64: dot products, or for l2 squared distances.

    Shapes:  rows f32[n, d]; query f32[d], both checked -> f64[n]
    """
    native = dispatch.native()
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


def score_bounds(
    segment: scoring.Segment, query: npt.NDArray[np.float32], threshold: float, *, metric: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return the bounds of each score by its codes, and the rows that pass the filter at a threshold.

    Needs codes, and a query that is not zero.

    Shapes:  query f32[d] -> lower f32[n], upper f32[n], passed bool[n]
    """
    native = dispatch.native()
    assert segment.codes is not None
    lower, upper = np.empty(segment.size, dtype=np.float32), np.empty(segment.size, dtype=np.float32)
    passed = np.empty(segment.size, dtype=np.uint8)
    buffer = native.ffi.from_buffer
    owner, table = scoring.segment_table(native, [segment])
    status = native.lib.cal_score_bounds_f32(
        native.features,
        metric,
        table,
        query.shape[0],
        buffer("float[]", query),
        threshold,
        buffer("int8_t[]", bytearray(scoring.code_stride(query.shape[0]))),
        buffer("float[]", lower),
        buffer("float[]", upper),
        buffer("uint8_t[]", passed),
    )
    dispatch.check(status)
    del owner  # kept until C has returned
    return lower, upper, passed.astype(np.bool_)
