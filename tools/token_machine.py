"""Byte classes and contexts of the calibrated token estimator (a lookup-table model of token cost per byte).

The cost of a byte depends on its class and its context. Contexts know the byte before and how long its run is, up to 16
bytes back, so a text can be measured from anywhere after reading 32 bytes. ``fit_tokens`` fits the costs with
``token_keys``, and writes these tables for C (csrc/tokens/tables.c); tests compare the C code with ``token_keys``.

Source: docs/tokens.md.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Classes of ASCII bytes. REPEAT replaces the class of a space or sign after the same byte; HIGH is all from 0x80.
(
    CONTROL, NEWLINE, SPACE, TAB, DIGIT, UPPER, VOWEL, CONSONANT, RARE, UNDERSCORE, QUOTE, STOP, BRACKET, OTHER,
    REPEAT, HIGH,
) = range(16)  # fmt: skip

_ASCII: Final = {
    NEWLINE: b"\n\r",
    SPACE: b" ",
    TAB: b"\t",
    DIGIT: b"0123456789",
    UPPER: b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    VOWEL: b"aeiou",
    CONSONANT: b"bcdfghlmnprsty",
    RARE: b"jkqvwxz",
    UNDERSCORE: b"_",
    QUOTE: b"\"'`",
    STOP: b".,:;",
    BRACKET: b"()[]{}",
    OTHER: b"!#$%&*+-/<=>?@\\^|~",
}
_LEADS: Final = (0xC0, 0xC3, 0xC4, 0xCE, 0xD0, 0xD4, 0xE0, 0xE1, 0xE2, 0xE3, 0xE4, 0xEA, 0xEE, 0xF0)
"""First bytes of characters by script: Latin-1 signs and letters, more Latin, Greek, Cyrillic, Hebrew and Arabic,
Indic and Thai, Vietnamese and Georgian, signs, kana, Han, Hangul, fullwidth forms, four-byte characters."""
_CONTINUATIONS: Final = (
    0x80, 0x81, 0x82, 0x83, 0x84, 0x88, 0x8C, 0x90, 0x94, 0x98, 0x9C, 0xA0, 0xA8, 0xB0, 0xB8, 0xBC,
)  # fmt: skip
FOURTH: Final = 14
"""Context of a byte after a continuation byte whose character has four bytes; 15 for other characters."""
THIRD: Final = 15

LEAD_FROM, FOUR_FROM = 0xC0, 0xF0
"""Bytes from which characters begin, and from which they have four bytes."""


def _classes() -> bytes:
    out = bytearray(256)
    for number, members in _ASCII.items():
        for byte in members:
            out[byte] = number
    for byte in range(0x80, 0x100):
        starts = _LEADS if byte >= LEAD_FROM else _CONTINUATIONS
        out[byte] = sum(start <= byte for start in starts) - 1
    return bytes(out)


CLASSES: Final = _classes()
"""The class of each byte: of ASCII above; of continuation bytes 0 to 15; of first bytes 0 to 13."""


def _by_class(values: dict[int, int], default: int = 0) -> bytes:
    return bytes(values.get(number, default) for number in range(16))


# Contexts of ASCII bytes. 7 to 10 are letters by the length of their run: 1, 2, 4, 8 and more.
NEXT: Final = _by_class(
    {SPACE: 1, TAB: 2, DIGIT: 3, UPPER: 5, VOWEL: 7, CONSONANT: 7, RARE: 7, BRACKET: 11, OTHER: 11, QUOTE: 12,
     UNDERSCORE: 12, STOP: 13, HIGH: 15}
)  # fmt: skip
GROUP: Final = _by_class(
    {NEWLINE: 1, SPACE: 1, TAB: 1, DIGIT: 2, UPPER: 3, UNDERSCORE: 4, QUOTE: 4, STOP: 4, BRACKET: 4, OTHER: 4}
)
AGAIN: Final = _by_class({SPACE: 1, DIGIT: 1, UPPER: 1, BRACKET: 3, OTHER: 3, QUOTE: 2, UNDERSCORE: 2, STOP: 1})
"""Added to the context a byte leaves when the byte before it is of the same group."""
REPEATS: Final = _by_class({NEWLINE: 1, SPACE: 1, TAB: 1, UNDERSCORE: 1, QUOTE: 1, STOP: 1, BRACKET: 1, OTHER: 1})
LETTER: Final = _by_class({UPPER: 1, VOWEL: 1, CONSONANT: 1, RARE: 1})
LOWER: Final = _by_class({VOWEL: 1, CONSONANT: 1, RARE: 1})
LETTER_RUNS: Final = (2, 4, 8)
"""A lower-case letter's context is one more at each of these lengths of a run of letters."""

# Contexts of first bytes: line begin, space, letter, other ASCII; 4 to 7 by the length of the run of high bytes.
NEXT_HIGH: Final = _by_class(
    {CONTROL: 0, NEWLINE: 0, SPACE: 1, TAB: 1, UPPER: 2, VOWEL: 2, CONSONANT: 2, RARE: 2, HIGH: 4}, default=3
)
HIGH_RUNS: Final = (4, 8, 16)
LEAD_CONTEXTS: Final = 8

WARM_UP: Final = 32
"""Number of bytes to read before a position at which measuring starts."""

# A vocabulary's costs are one table: by context and class of ASCII bytes, of first bytes, of continuation bytes.
LEAD_AT: Final = 16 * 16
CONTINUATION_AT: Final = LEAD_AT + 16 * LEAD_CONTEXTS
COSTS: Final = CONTINUATION_AT + 16 * 16


def token_keys(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the place in a table of costs of each byte of a text.

    Shapes:  text uint8[s] -> int64[s]
    """
    high = text >= 0x80
    kind = _of(CLASSES, text)
    ascii_class = np.where(high, HIGH, kind)

    group = _of(GROUP, ascii_class)
    context = _of(NEXT, ascii_class) + np.where(group == _before(group), _of(AGAIN, ascii_class), 0)
    letters = _run_lengths(_of(LETTER, ascii_class) == 1)
    for length in LETTER_RUNS:
        context += (_of(LOWER, ascii_class) == 1) & (letters >= length)
    repeats = (_of(REPEATS, ascii_class) == 1) & (text == _before(text))
    current = np.where(repeats, REPEAT, ascii_class)

    high_context = _of(NEXT_HIGH, ascii_class)
    highs = _run_lengths(high)
    for length in HIGH_RUNS:
        high_context = high_context + (highs >= length)

    lead = text >= LEAD_FROM
    third = np.where(_before(text, 2) >= FOUR_FROM, FOURTH, THIRD)
    inside = np.where(_before(lead), _before(kind), third)
    return np.where(
        lead,
        LEAD_AT + 16 * _before(high_context) + kind,
        np.where(high, CONTINUATION_AT + 16 * inside + kind, 16 * _before(context) + current),
    )


def token_units(text: npt.NDArray[np.uint8], costs: npt.NDArray[np.uint8]) -> int:
    """Return the cost of a text, in 1/256 tokens. Shapes: text uint8[s]; costs uint8[COSTS]."""
    return int(costs[token_keys(text)].sum(dtype=np.int64))


def _of(table: bytes, at: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.frombuffer(table, np.uint8).astype(np.int64)[at]


def _run_lengths(member: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the length of the run that ends at each byte; 0 where none does."""
    place = np.arange(member.shape[0])
    outside = np.maximum.accumulate(np.where(member, -1, place)) if len(place) else place
    return np.where(member, place - outside, 0)


def _before(values: npt.NDArray[Any], distance: int = 1) -> npt.NDArray[Any]:
    """Return the value the given number of places earlier; 0 before the beginning."""
    return np.concatenate((np.zeros(distance, values.dtype), values))[: values.shape[0]]
