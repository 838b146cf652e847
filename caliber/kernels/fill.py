"""Native filling of a budget that sections share: walks over candidates in order, and the price of one of them.

Source: docs/windows.md; the exact rules are in csrc/include/caliber.h.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch

Ints = npt.NDArray[np.int64]

SECTION, COST, PASSAGE, NUMBER, LEAD, SHORT, LINK = range(7)
"""Rows of ``candidates``; as CAL_FILL_SECTION and those after it in caliber.h."""
USED, OPENING, MOST, CAP, FLOOR = range(5)
"""Rows of ``sections``; as CAL_FILL_USED and those after it."""
WHOLE, EITHER, COMPRESSED, SHARES = range(4)
"""Ways of a walk; as CAL_WALK_*."""
NO_LIMIT: Final = -1
_ROWS, _SECTION_ROWS, _MEASURES = LINK + 1, FLOOR + 1, 4


class BudgetFill:
    """One filling. The caller may change rows and codes between walks, but no passage.

    Shapes: candidates ``int64[7, n]``, of which ``LINK`` is written; sections ``int64[5, s]``; measures ``int64[4]``:
    separator, line break, mark of a hole, shortest candidate; codes ``uint8[n]``
    Raises: ShapeError, DTypeError, InvalidValue
    """

    __slots__ = ("_candidates", "_codes", "_native", "_price", "_room", "_short_count", "_shortened")

    def __init__(self, candidates: Ints, sections: Ints, measures: Ints, codes: npt.NDArray[np.uint8]) -> None:
        count = len(codes)
        checks.shaped(candidates, checks.I64, (_ROWS, count), field="candidates")
        checks.shaped(sections, checks.I64, (_SECTION_ROWS, sections.shape[-1]), field="sections")
        checks.shaped(measures, checks.I64, (_MEASURES,), field="measures")
        checks.view(codes, checks.U8, 1, field="codes")
        self._native = native = dispatch.native()
        ffi = native.ffi
        buffer = ffi.from_buffer
        rows = buffer("int64_t[]", candidates)
        self._candidates = rows, count, buffer("int64_t[]", sections), sections.shape[1], buffer("int64_t[]", measures)
        self._codes = buffer("uint8_t[]", codes)
        self._room, self._price, self._short_count = ffi.new("int64_t *"), ffi.new("int64_t *"), ffi.new("size_t *")
        self._shortened = np.empty(count, np.int64)
        passages = int(candidates[PASSAGE].max(initial=0)) + 1
        heads = buffer("int64_t[]", np.empty(passages, np.int64))
        status = native.lib.cal_fill_link(rows, count, sections.shape[1], heads, passages)
        dispatch.check(status, section="section", group="passage", overflow="candidates")

    def price(self, place: int, cost: int, *, leaving: bool = False) -> int:
        """Return the length that a candidate of a cost takes if it enters next, or frees if it leaves."""
        status = self._native.lib.cal_fill_price(*self._candidates, self._codes, place, cost, leaving, self._price)
        if status:
            dispatch.check(status, argument="place")
        return int(self._price[0])

    def walk(self, places: Ints, room: int, limit: int = NO_LIMIT, how: int = WHOLE) -> tuple[int, list[int]]:
        """Let undecided candidates enter in order; return the room that is left, and those that entered compressed.

        ``limit`` bounds what their section uses.
        Raises: ShapeError, DTypeError, InvalidValue
        """
        places = checks.shaped(places, checks.I64, (len(places),), field="places")
        lib, buffer, self._room[0] = self._native.lib, self._native.ffi.from_buffer, room
        taken = buffer("int64_t[]", places), len(places), how, limit, self._codes
        out = self._room, buffer("int64_t[]", self._shortened), self._short_count
        status = lib.cal_fill_walk(*self._candidates, *taken, *out)
        if status:
            dispatch.check(status, argument="places")
        return int(self._room[0]), self._shortened[: self._short_count[0]].tolist()
