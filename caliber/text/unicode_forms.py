"""Unicode normalization that takes linear time also for hostile texts."""

from __future__ import annotations

import unicodedata
from typing import Final, Literal

_PIECE: Final = 256
"""Characters normalized at once: to order the marks of one character takes time by the square of their number."""


def normalized(form: Literal["NFC", "NFKC"], word: str) -> str:
    """Return a word in a normal form; one longer than any word is normalized in pieces, to bound the marks."""
    if word.isascii():
        return word
    if len(word) <= _PIECE:
        return unicodedata.normalize(form, word)
    pieces = (word[at : at + _PIECE] for at in range(0, len(word), _PIECE))
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)
