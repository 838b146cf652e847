"""Native ranking of window candidates and greedy filling of a token budget.

Source: C-223, C-456 to C-461; design sections 5 and 6; the exact arithmetic is in csrc/include/caliber.h.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InvalidValue, NonFiniteError
from caliber.model.lazy_dataclass import dataclass


class FillDecision(IntEnum):
    """The reason why a candidate is in the window or not."""

    INCLUDED = 1
    EXCLUDED_RELEVANCE = 2
    EXCLUDED_SECTION_BUDGET = 3
    EXCLUDED_BUDGET = 4
    EXCLUDED_GROUP = 5  # its group did not fit whole; the group's best-ranked member carries the reason


@dataclass(frozen=True, slots=True)
class RankColumns:
    """One row a candidate.

    Shapes:  priority int32[n], relevance f32[n], age_us int64[n], tokens int32[n], tie u64[n, 2], group int32[n]
             (-1: alone), section int32[n]
    """

    priority: npt.NDArray[np.int32]
    relevance: npt.NDArray[np.float32]
    age_us: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    tie: npt.NDArray[np.uint64]
    group: npt.NDArray[np.int32]
    section: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.priority.shape[0])


C_TYPES = {
    "priority": "int32_t *",
    "relevance": "float *",
    "age_us": "int64_t *",
    "tokens": "int32_t *",
    "tie": "uint64_t *",
    "group": "int32_t *",
    "section": "int32_t *",
}  # in the order of the struct
_DTYPES: Any = (checks.I32, checks.F32, checks.I64, checks.I32, checks.U64, checks.I32, checks.I32)


def rank_and_fill(
    columns: RankColumns,
    *,
    budget: int,
    section_budget: npt.NDArray[np.int32],
    section_overhead: npt.NDArray[np.int32],
    separator_tokens: int,
    min_relevance: float,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return all candidates in order, and for each one, by its index, a ``FillDecision``.

    The order is priority descending, relevance descending, age ascending, tie ascending, index ascending; members of a
    group follow its best-ranked member. One walk in that order takes each unit (a candidate alone, or a whole group)
    that passes, in this sequence: its best relevance >= min_relevance; the section's budget (-1: none); the budget.
    Its cost is its tokens plus ``separator_tokens`` between its members, plus the section's overhead if it is the
    section's first unit, else one more separator. What is refused costs nothing; later, smaller units may fit.

    Shapes:  section_budget and section_overhead int32[s] -> order int64[n], decision uint8[n]
    Units:   tokens; min_relevance is rounded to f32 as the relevances are, -inf for none
    Raises:  ShapeError, DTypeError, NonFiniteError, InvalidValue
    """
    columns = _checked(columns)
    limit = checks.whole(budget, field="budget")
    separator = checks.whole(separator_tokens, field="separator_tokens", high=2**31 - 1)
    floor = checks.threshold(min_relevance, field="min_relevance")
    caps = checks.view(section_budget, checks.I32, 1, field="section_budget")
    overhead = checks.shaped(section_overhead, checks.I32, caps.shape, field="section_overhead")
    native = dispatch.native()
    count, sections = len(columns), int(caps.shape[0])
    ffi = native.ffi
    buffer = ffi.from_buffer
    # Pointers of the struct do not keep their arrays alive; `columns` does until C has returned.
    struct = ffi.new("cal_rank_columns *", [buffer(kind, getattr(columns, name)) for name, kind in C_TYPES.items()])
    size = native.lib.cal_rank_scratch(count, sections)
    scratch = buffer("uint64_t[]", np.empty(size // 8, dtype=np.uint64))
    order, decision = np.empty(count, checks.I64), np.empty(count, checks.U8)
    status = native.lib.cal_rank_and_fill(
        struct,
        count,
        sections,
        limit,
        buffer("int32_t[]", caps),
        buffer("int32_t[]", overhead),
        separator,
        floor,
        scratch,
        size,
        buffer("int64_t[]", order),
        buffer("uint8_t[]", decision),
    )
    if status:
        if status == native.lib.CAL_E_GROUP and count and int(columns.group.max()) >= count:
            # C wants group numbers below n, so that its tables are arrays.
            return rank_and_fill(
                replace(columns, group=_dense(columns.group)),
                budget=limit,
                section_budget=caps,
                section_overhead=overhead,
                separator_tokens=separator,
                min_relevance=floor,
            )
        _check_values(columns, caps, overhead)
        dispatch.check(status)
    return order, decision


def _checked(columns: RankColumns) -> RankColumns:
    """Check types and shapes; values are checked by C."""
    shape = checks.view(columns.priority, checks.I32, 1, field="priority").shape
    for name, dtype in zip(C_TYPES, _DTYPES, strict=True):
        array, wanted = getattr(columns, name), (*shape, 2) if name == "tie" else shape
        if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != wanted or not array.flags.carray:
            checks.shaped(array, dtype, wanted, field=name)
    return columns


def _dense(group: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Number groups from 0, so that every number is below the number of candidates; below 0 stays."""
    alone = group < 0
    dense = np.unique(group, return_inverse=True)[1] - np.unique(group[alone]).shape[0]
    return np.where(alone, group, dense).astype(np.int32)


def _check_values(columns: RankColumns, caps: npt.NDArray[np.int32], overhead: npt.NDArray[np.int32]) -> None:
    """Raise the error that a status of C stands for, with the column it is in."""
    if (caps < -1).any():
        raise InvalidValue(field="section_budget", reason="must be -1 (none) or more")
    if (overhead < 0).any():
        raise InvalidValue(field="section_overhead", reason="must not be negative")
    if not np.isfinite(columns.relevance).all():
        raise NonFiniteError(field="relevance")
    if (columns.tokens < 0).any():
        raise InvalidValue(field="tokens", reason="a negative number of tokens")
    if ((columns.section < 0) | (columns.section >= caps.shape[0])).any():
        raise InvalidValue(field="section", reason="a section number is outside [0, sections)")
    if (columns.group < -1).any():
        raise InvalidValue(field="group", reason="must be -1 (alone) or more")
    grouped = columns.group >= 0
    groups, first = np.unique(columns.group[grouped], return_index=True)
    home = columns.section[grouped][first]
    if (home[np.searchsorted(groups, columns.group[grouped])] != columns.section[grouped]).any():
        raise InvalidValue(field="group", reason="a group over two sections")
