"""Days of a conversation in a window: a line before each turn of its user that is of another day than the one before.

The first turn has one too, so a window states the day of its last message. The lines follow from the turns alone: the
text before a turn stays the same while turns are appended.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caliber.context.columns import DAY, PASSAGE_ID, SOURCE, TURN_NUMBER, Candidates
from caliber.context.conversation import SPOKEN
from caliber.context.plan import AssemblyPlan
from caliber.kernels.tokens.estimators import byte_length
from caliber.resident.conversation import day_mark

_DAYS_FROM, _DAY_MOST = 200, 16
"""Tokens of windows in which a line with the day costs little; its tokens at most, where bytes do not tell them."""


def shows_days(plan: AssemblyPlan, max_tokens: int) -> bool:
    """Return whether turns carry their days: where a section is about the user, and not in small windows."""
    return plan.dated and plan.budget(max_tokens) >= _DAYS_FROM


def line_length(plan: AssemblyPlan, line: str) -> int:
    """Return the length of the line with a day; under other estimators, the most it may be."""
    return byte_length(line) if plan.additive else _DAY_MOST


def day_lengths(
    plan: AssemblyPlan, ranked: Candidates, considered: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the length of the line with the day of each turn that can have one, and which of the turns surely have it.

    A dosage lets turns in that left the conversation one by one: each counts as if it had the line.
    """
    days = ranked.numbers[DAY].take(considered) * (ranked.numbers[PASSAGE_ID].take(considered) == 0)
    lengths, begun = np.zeros(len(days), np.int64), days != 0
    spoken = np.flatnonzero(begun & (ranked.numbers[SOURCE].take(considered) == SPOKEN))
    spoken = spoken[np.argsort(ranked.numbers[TURN_NUMBER].take(considered[spoken]), kind="stable")]
    begun[spoken] = _opened(days[spoken], int(days[spoken[0]]) if len(spoken) else 0)
    for day in set(days.tolist()) - {0}:
        lengths[days == day] = line_length(plan, day_mark(day))
    return lengths, begun


def begin_days(ranked: Candidates, places: NDArray[np.int64], before: int) -> tuple[dict[int, str], int]:
    """Return the lines before turns in order of reading, by place, and the last day; ``before`` is the one before."""
    dated = places[ranked.numbers[DAY][places] != 0]
    days = ranked.numbers[DAY][dated]
    begun = _opened(days, before)
    lines = dict(zip(dated[begun].tolist(), map(day_mark, days[begun].tolist()), strict=True))
    return lines, int(days[-1]) if len(days) else before


def _opened(days: NDArray[np.int64], before: int) -> NDArray[np.bool_]:
    """Return which turns are of another day than the one before."""
    opened: NDArray[np.bool_] = np.diff(days, prepend=before) != 0
    return opened
