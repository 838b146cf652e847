"""Reference implementation in NumPy of the token kernels: the cost of each byte of a text, and prefix sums.

Written to be read; the tests compare the C code with it, bit for bit, and it runs under ``CALIBER_NATIVE=off``.
Arguments must have been checked already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels.tokens import classes

I64s = npt.NDArray[np.int64]
U8s = npt.NDArray[np.uint8]


def tokens_of_lengths(lengths: Sequence[int], numerator: int, denominator: int) -> list[int]:
    """ceil(length / (numerator / denominator)) in exact integers."""
    return [-(-length * denominator // numerator) for length in lengths]


def _run_lengths(member: npt.NDArray[np.bool_]) -> I64s:
    """Return the length of the run that ends at each byte; 0 where none does."""
    place = np.arange(member.shape[0])
    outside = np.maximum.accumulate(np.where(member, -1, place)) if len(place) else place
    return np.asarray(np.where(member, place - outside, 0), dtype=np.int64)


def _before(values: npt.NDArray[Any], distance: int = 1) -> npt.NDArray[Any]:
    """The value the given number of places earlier; 0 before the beginning."""
    return np.concatenate((np.zeros(distance, values.dtype), values))[: values.shape[0]]


def token_keys(text: U8s) -> I64s:
    """Return the cost-table key of each byte of a text, by the rules of ``caliber.kernels.tokens.classes``.

    Shapes:  text uint8[s] -> int64[s]
    """
    tables = {
        name: np.frombuffer(getattr(classes, name), np.uint8).astype(np.int64)
        for name in ("CLASSES", "NEXT", "GROUP", "AGAIN", "REPEATS", "LETTER", "LOWER", "NEXT_HIGH")
    }
    high = text >= 0x80
    kind = tables["CLASSES"][text]
    ascii_class = np.where(high, classes.HIGH, kind)

    group = tables["GROUP"][ascii_class]
    context = tables["NEXT"][ascii_class] + np.where(group == _before(group), tables["AGAIN"][ascii_class], 0)
    letters = _run_lengths(tables["LETTER"][ascii_class] == 1)
    for length in classes.LETTER_RUNS:
        context += (tables["LOWER"][ascii_class] == 1) & (letters >= length)
    repeats = (tables["REPEATS"][ascii_class] == 1) & (text == _before(text))
    current = np.where(repeats, classes.REPEAT, ascii_class)

    high_context = tables["NEXT_HIGH"][ascii_class]
    highs = _run_lengths(high)
    for length in classes.HIGH_RUNS:
        high_context = high_context + (highs >= length)

    lead = text >= classes.LEAD_FROM
    third = np.where(_before(text, 2) >= classes.FOUR_FROM, classes.FOURTH, classes.THIRD)
    inside = np.where(_before(lead), _before(kind), third)
    return np.where(
        lead,
        classes.LEAD_AT + 16 * _before(high_context) + kind,
        np.where(high, classes.CONTINUATION_AT + 16 * inside + kind, 16 * _before(context) + current),
    )


def token_units(text: U8s, costs: U8s) -> int:
    """Return the cost of a text, in units of ``classes.UNITS_PER_TOKEN``.

    Shapes:  text uint8[s]; costs uint8[COSTS]
    """
    return int(costs[token_keys(text)].sum(dtype=np.int64))


def token_prefix(text: U8s, costs: U8s, limit: int) -> int:
    """Return the number of leading bytes of a text that cost at most ``limit`` units.

    Shapes:  text uint8[s]; costs uint8[COSTS]
    """
    return int(np.searchsorted(np.cumsum(costs[token_keys(text)], dtype=np.int64), limit, side="right"))
