"""Native filling of a budget that sections share: walks over candidates in order, and the price of one of them.

Source: docs/windows.md; the exact rules are in csrc/include/caliber.h.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.model.errors import InvalidValue

Ints = npt.NDArray[np.int64]

SECTION, COST, PASSAGE, NUMBER, LEAD, SHORT, LINK = range(7)
"""Rows of ``candidates``; as CAL_FILL_SECTION and those after it in caliber.h."""
USED, OPENING, MOST, CAP, FLOOR = range(5)
"""Rows of ``sections``; as CAL_FILL_USED and those after it."""
WHOLE, EITHER, COMPRESSED, SHARES = range(4)
"""Ways of a walk; as CAL_WALK_*."""
NO_LIMIT: Final = -1
_ROWS, _SECTION_ROWS, _MEASURES = LINK + 1, FLOOR + 1, 4
_LENGTH, _TOTAL = 2**40 - 1, 2**60 - 1
_PASSAGES: Final = 2**20
"""Passage numbers stay below: each of them costs eight bytes at construction."""


def _writable(array: npt.NDArray[Any], field: str) -> None:
    if not array.flags.writeable:
        raise InvalidValue(field=field, reason="must be writable: the filling writes into it")


class BudgetFill:
    """One filling. The caller may change rows and codes between walks, but no ``PASSAGE`` and no ``LINK``.

    Every call checks the rows that it reads. Lengths stay below 2**40, budgets and what is used of them below 2**60.
    Shapes: candidates ``int64[7, n]``, of which ``LINK`` is written; sections ``int64[5, s]``, of which ``USED`` is;
    measures ``int64[4]``: separator, line break, mark of a hole, shortest candidate; codes ``uint8[n]``, written
    Raises: ShapeError, DTypeError, InvalidValue
    """

    __slots__ = ("_candidates", "_codes", "_native", "_price", "_room", "_short_count", "_shortened")

    def __init__(self, candidates: Ints, sections: Ints, measures: Ints, codes: npt.NDArray[np.uint8]) -> None:
        count = len(checks.view(codes, checks.U8, 1, field="codes"))
        checks.shaped(candidates, checks.I64, (_ROWS, count), field="candidates")
        checks.shaped(sections, checks.I64, (_SECTION_ROWS, None), field="sections")
        checks.shaped(measures, checks.I64, (_MEASURES,), field="measures")
        _writable(candidates, "candidates")
        _writable(sections, "sections")
        _writable(codes, "codes")
        passages = int(candidates[PASSAGE].max(initial=0)) + 1
        if passages > _PASSAGES:
            raise InvalidValue(field="passage", reason=f"a passage number is outside [0, {_PASSAGES})")
        self._native = native = dispatch.native()
        ffi = native.ffi
        buffer = ffi.from_buffer
        rows = buffer("int64_t[]", candidates)
        self._candidates = rows, count, buffer("int64_t[]", sections), sections.shape[1], buffer("int64_t[]", measures)
        self._codes = buffer("uint8_t[]", codes)
        self._room, self._price, self._short_count = ffi.new("int64_t *"), ffi.new("int64_t *"), ffi.new("size_t *")
        self._shortened = np.empty(count, np.int64)
        heads = buffer("int64_t[]", np.empty(passages, np.int64))
        status = native.lib.cal_fill_link(rows, count, sections.shape[1], heads, passages)
        dispatch.check(status, section="section", group="passage", overflow="candidates")

    def price(self, place: int, cost: int, *, leaving: bool = False) -> int:
        """Return the length that a candidate of a cost takes if it enters next, or frees if it leaves.

        Raises: DTypeError, InvalidValue
        """
        try:
            status = self._native.lib.cal_fill_price(*self._candidates, self._codes, place, cost, leaving, self._price)
        except (OverflowError, TypeError):
            status = self._native.lib.CAL_E_ARGUMENT
        if status:
            checks.whole(cost, field="cost", low=-_LENGTH, high=_LENGTH)
            checks.whole(place, field="place")
            self._refuse(status, "place")
        return int(self._price[0])

    def walk(self, places: Ints, room: int, limit: int = NO_LIMIT, how: int = WHOLE) -> tuple[int, list[int]]:
        """Let undecided candidates enter in order; return the room that is left, and those that entered compressed.

        ``limit`` bounds what their section uses.
        Raises: ShapeError, DTypeError, InvalidValue
        """
        places = checks.view(places, checks.I64, 1, field="places")
        lib, buffer = self._native.lib, self._native.ffi.from_buffer
        out = self._room, buffer("int64_t[]", self._shortened), self._short_count
        try:
            self._room[0] = room
            taken = buffer("int64_t[]", places), len(places), how, limit, self._codes
            status = lib.cal_fill_walk(*self._candidates, *taken, *out)
        except (OverflowError, TypeError):
            status = lib.CAL_E_ARGUMENT
        if status:
            checks.whole(how, field="how", low=WHOLE, high=SHARES)
            checks.whole(room, field="room", low=-_TOTAL, high=_TOTAL)
            checks.whole(limit, field="limit", low=-_TOTAL, high=_TOTAL)
            self._refuse(status, "places")
        return int(self._room[0]), self._shortened[: self._short_count[0]].tolist()

    def _refuse(self, status: int, argument: str) -> NoReturn:
        dispatch.check(status, section="section", overflow="candidates, sections or measures", argument=argument)
        raise AssertionError(status)
