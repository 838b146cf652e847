"""Grapheme boundaries: positions where a text can be truncated without splitting a visible character.

Covers what cutting would spoil in prompts: combining marks, variation selectors, skin tones, keycaps, joined
emoji, flags, tag sequences, and CR LF. The table is fixed with a version of Unicode, not Python's, so that a window
is cut the same under every Python.

Source: C-309; Unicode Standard Annex 29 (rules GB3, GB9, GB9a, GB11 to GB13).
"""

from __future__ import annotations

from bisect import bisect_right

from caliber.kernels.tokens.unicode_extend import ENDS, STARTS

_ZERO_WIDTH_JOINER = "\u200d"


def extends(char: str) -> bool:
    """Return whether a character belongs to the one before it."""
    if char < "\u0300":
        return False
    code = ord(char)
    at = bisect_right(STARTS, code) - 1
    return at >= 0 and code <= ENDS[at]


def is_boundary(text: str, at: int) -> bool:
    """Return whether text may be cut before position ``at``."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before == "\r" and after == "\n":
        return False
    # Anything after a joiner stays with it: more than GB11 asks, and never wrong to the eye.
    if extends(after) or before == _ZERO_WIDTH_JOINER:
        return False
    if _is_regional(before) and _is_regional(after):
        run = at - 1
        while run > 0 and _is_regional(text[run - 1]):
            run -= 1
        return (at - run) % 2 == 0  # flags are pairs: between two pairs is a boundary
    return True


def boundary_at_or_before(text: str, at: int) -> int:
    """Return the last position up to ``at`` where text may be cut."""
    while not is_boundary(text, at):
        at -= 1
    return at


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
