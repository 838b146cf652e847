"""Native score fusion: weighted sums of keyword, vector and graph scores, the best ``k``, and each part's share.

Source: docs/search.md; csrc/include/caliber.h, ``cal_join``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InvalidValue

Ints = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

VALUES: Final = 0
QUOTIENT: Final = 1
NEIGHBOURS: Final = 2
STRETCHED: Final = 3
FLAGGED: Final = 4
"""Kinds of parts; as CAL_PART_* of caliber.h."""


class Part(NamedTuple):
    """The scores of one leg or boost for each candidate.

    ``how`` selects the formula: VALUES scores; QUOTIENT scores / by; NEIGHBOURS scores / by - less / by; STRETCHED
    (near - low) / by of the first candidates, 0 of the others; FLAGGED 1 where the row's flags have a bit of ``flag``.

    Shapes:  scores, less f64[n]; near f32[m], m <= n; flags uint8[rows]
    """

    how: int
    scores: Doubles | None = None
    less: Doubles | None = None
    near: npt.NDArray[np.float32] | None = None
    flags: npt.NDArray[np.uint8] | None = None
    flag: int = 0
    by: float = 1.0
    low: float = 0.0


Weighted = Sequence[tuple[float, Part]]
"""Parts, each with its share of the whole."""


def dense(part: Part, rows: Ints) -> Doubles:
    """Return a part's score of every candidate."""
    if part.how == STRETCHED:
        assert part.near is not None
        out = np.zeros(len(rows))
        out[: len(part.near)] = (part.near.astype(np.float64) - part.low) / part.by
        return out
    if part.how == FLAGGED:
        assert part.flags is not None
        marked: Doubles = ((part.flags[rows] & np.uint8(part.flag)) != 0).astype(np.float64)
        return marked
    assert part.scores is not None
    if part.how == VALUES:
        return part.scores
    if part.how == QUOTIENT:
        return part.scores / part.by
    assert part.less is not None
    return part.scores / part.by - part.less / part.by


class Best(NamedTuple):
    """All scores, and the best candidates: their places, scores, and the contribution of each part.

    Shapes:  scores f64[n]; places int64[k]; best f32[k]; told f64[parts, k]
    """

    scores: Doubles
    places: Ints
    best: npt.NDArray[np.float32]
    contributions: Doubles


def join(
    parts: Weighted,
    rows: Ints,
    tie: npt.NDArray[np.uint64],
    k: int,
    *,
    inside: npt.NDArray[Any] | None = None,
    least: float = 0.0,
) -> Best:
    """Return the sum of shares of parts for each candidate, and the best ``k`` above 0 in canonical order.

    A score is at least ``least``, and 0 where ``inside`` (None: everywhere) does not have the candidate's row. Sums are
    of f64 in the order of the parts; the best are compared as f32.

    Shapes:  rows int64[n]; tie u64[r, 2]; inside bool[r]
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    count, room = len(rows), len(tie)
    rows = checks.view(rows, checks.I64, 1, field="rows")
    tie = checks.shaped(tie, checks.U64, (None, 2), field="tie")
    flags = None if inside is None else checks.flags(inside, room, field="inside")
    _check(parts, count, room)
    limit = min(checks.whole(k, field="k"), count)
    native = dispatch.native()
    buffer, null = native.ffi.from_buffer, native.ffi.NULL
    scores, places = np.empty(count), np.empty(limit, np.int64)
    best, shares = np.empty(limit, np.float32), np.empty(len(parts) * limit)
    found = native.ffi.new("size_t *")
    status = native.lib.cal_join(
        _table(native, parts),
        len(parts),
        count,
        buffer("int64_t[]", rows),
        room,
        null if flags is None else buffer("uint8_t[]", flags),
        least,
        buffer("uint64_t[]", tie),
        limit,
        buffer("double[]", scores),
        buffer("int64_t[]", places),
        buffer("float[]", best),
        buffer("double[]", shares),
        found,
    )
    if status:
        dispatch.check(status, argument="rows")
    size = int(found[0])
    return Best(scores, places[:size], best[:size], shares[: len(parts) * size].reshape(len(parts), size))


def best_scores(
    scores: npt.NDArray[np.float64],
    k: int,
    *,
    tie: npt.NDArray[np.uint64] | None = None,
    rows: npt.NDArray[np.int64] | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the places of the best ``k`` scores that are above 0 when rounded to f32, in canonical order.

    Score i is that of row ``rows[i]``, whose tie decides among equals; without ``rows``, of row i.

    Shapes:  scores f64[n]; rows int64[n]; tie u64[n or rows, 2] -> (int64[m], f32[m]), m <= k
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    scores = checks.view(scores, checks.F64, 1, field="scores")
    limit = min(checks.whole(k, field="k"), scores.shape[0])
    if tie is not None:
        tie = checks.shaped(tie, checks.U64, (scores.shape[0] if rows is None else None, 2), field="tie")
    if rows is not None:
        rows = checks.row_ids(rows, 0 if tie is None else tie.shape[0], field="rows")
        if rows.shape[0] != scores.shape[0]:
            raise InvalidValue(field="rows", reason="a row for each score")
    native = dispatch.native()
    ids, best = np.empty(limit, np.int64), np.empty(limit, np.float32)
    buffer, null = native.ffi.from_buffer, native.ffi.NULL
    found = native.ffi.new("size_t *")
    status = native.lib.cal_best_scores(
        buffer("double[]", scores),
        scores.shape[0],
        null if rows is None else buffer("int64_t[]", rows),
        null if tie is None else buffer("uint64_t[]", tie),
        limit,
        buffer("int64_t[]", ids),
        buffer("float[]", best),
        found,
    )
    dispatch.check(status)
    count = int(found[0])
    return ids[:count], best[:count]


def contributions(parts: Weighted, rows: Ints, room: int, places: Ints) -> Doubles:
    """Return each part's share in the scores of some places; 0 for a place of -1.

    Shapes:  rows int64[n], each below ``room``; places int64[m] -> f64[parts, m]
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    rows = checks.view(rows, checks.I64, 1, field="rows")
    places = checks.view(places, checks.I64, 1, field="places")
    _check(parts, len(rows), room)
    native = dispatch.native()
    out = np.empty((len(parts), len(places)))
    buffer = native.ffi.from_buffer
    status = native.lib.cal_join_told(
        _table(native, parts),
        len(parts),
        len(rows),
        buffer("int64_t[]", rows),
        room,
        buffer("int64_t[]", places),
        len(places),
        buffer("double[]", out),
    )
    if status:
        dispatch.check(status, argument="places")
    return out


def _check(parts: Weighted, count: int, room: int) -> None:
    for _, part in parts:
        how = part.how
        if how == FLAGGED:
            fits = _fits(part.flags, np.uint8) and len(part.flags) >= room  # type: ignore[arg-type]
        elif how == STRETCHED:
            fits = _fits(part.near, np.float32) and len(part.near) <= count  # type: ignore[arg-type]
        else:
            fits = how in (VALUES, QUOTIENT, NEIGHBOURS) and _fits(part.scores, np.float64, count)
            fits = fits and (how != NEIGHBOURS or _fits(part.less, np.float64, count))
        if not fits:
            raise InvalidValue(
                field="parts", reason="lacks a field that its kind reads, or has one of another type or length"
            )


def _fits(array: Any, dtype: Any, count: int | None = None) -> bool:
    if array is None or array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        return False
    return count is None or len(array) == count


def _table(native: dispatch.Native, parts: Weighted) -> Any:
    """Return the parts as C reads them; valid as long as their arrays are."""
    buffer = native.ffi.from_buffer
    table = native.ffi.new("cal_part[]", len(parts))
    for at, (share, part) in enumerate(parts):
        row, how = table[at], part.how
        row.how, row.share = how, share
        if how == FLAGGED:
            row.flags, row.flag = buffer("uint8_t[]", part.flags), part.flag
        elif how == STRETCHED:
            row.near, row.near_count = buffer("float[]", part.near), len(part.near)  # type: ignore[arg-type]
            row.by, row.low = part.by, part.low
        else:
            row.scores, row.by = buffer("double[]", part.scores), part.by
            if how == NEIGHBOURS:
                row.less = buffer("double[]", part.less)
    return table
