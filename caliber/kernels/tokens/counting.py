"""Functions that count the tokens of texts and truncate texts to a token limit, under any estimator.

Grapheme boundaries are where a text can be truncated without splitting a visible character. They cover what cutting
would spoil in prompts: combining marks, variation selectors, skin tones, keycaps, joined emoji, flags, tag sequences,
and CR LF. The table is fixed with a version of Unicode, not Python's, so that a window is cut the same under every
Python.

Source: C-308 to C-310; design section 6; docs/tokens.md; Unicode Standard Annex 29 (rules GB3, GB9, GB9a, GB11 to
GB13).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.tokens.estimators import BytesEstimator, Estimator
from caliber.kernels.tokens.unicode_extend import ENDS, STARTS
from caliber.model.errors import DTypeError
from caliber.model.lazy_dataclass import dataclass

ELLIPSIS = "..."
LEFT_OUT = "…"
"""The mark of sentences and of turns that are left out between others."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of a text: its length in characters, and whether dots follow.

    ``spans`` are the sentences that stay of a compressed text; where others are left out between them, a mark stands.
    """

    characters: int
    dots: bool
    spans: tuple[tuple[int, int], ...] = ()

    def of(self, whole: str) -> str:
        """Return the rest of a text after the cut."""
        if self.spans:
            return quoted(whole, self.spans) + f" {LEFT_OUT}" * self.dots
        return whole[: self.characters] + (ELLIPSIS if self.dots else "")


def quoted(whole: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return parts of a text in their order, with a mark between those that do not adjoin."""
    out, before = "", None
    for start, end in spans:
        gap = "" if before is None else whole[before:start]
        out += (f" {LEFT_OUT} " if gap.strip() else gap) + whole[start:end]
        before = end
    return out


def estimate_tokens(text: str, *, estimator: Estimator) -> int:
    """Return the tokens of a text; empty text has none.

    Raises:  DTypeError; InvalidValue for a lone surrogate, unless the estimator counts bytes
    """
    chosen = _checked(estimator)
    return chosen.tokens_of_length(chosen.length_of(text))


def estimate_tokens_batch(texts: Sequence[str], *, estimator: Estimator) -> npt.NDArray[np.int64]:
    """Return the tokens of each text.

    Shapes:  n texts -> int64[n]
    Raises:  DTypeError; InvalidValue for a lone surrogate, unless the estimator counts bytes
    """
    chosen = _checked(estimator)
    lengths = chosen.lengths_of(texts)
    if not isinstance(chosen, BytesEstimator):
        return _rounded_up(lengths, chosen)
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return _of_bytes(int(offsets[-1]), offsets, chosen)


def estimate_tokens_spans(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64 | np.int32], *, estimator: Estimator
) -> npt.NDArray[np.int64]:
    """Return the tokens of each span data[offsets[i] : offsets[i + 1]] of UTF-8.

    Shapes:  data uint8[s]; offsets int32 or int64[n + 1] -> int64[n]
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    data = checks.view(data, checks.U8, 1, field="data")
    offsets = checks.offsets(offsets)
    chosen = _checked(estimator)
    if isinstance(chosen, BytesEstimator):
        return _of_bytes(data.shape[0], offsets, chosen)
    return _rounded_up(chosen.lengths_of_spans(data, offsets), chosen)


def truncate_to_tokens(text: str, limit: int, *, estimator: Estimator) -> str:
    """Return the text if it fits into ``limit`` tokens, else its beginning and "...", together within the limit.

    Cuts at the last white space, or between two grapheme clusters where that would leave less than half (a word may be
    a file in base64). A limit of 0 or less gives "";
    where not even "..." and a character of text fit, the beginning comes without it.

    Raises:  DTypeError; InvalidValue for a lone surrogate, unless the estimator counts bytes
    """
    chosen = _checked(estimator)
    checks.whole(limit, field="limit", low=-(2**63))
    data = chosen.encoded(text, field="text")
    if limit <= 0:
        return ""
    return truncate_to_length(text, data, chosen.longest(limit), chosen)


def truncate_to_length(text: str, data: bytes, length: int, estimator: Estimator, *, ending: str = "") -> str:
    """Return the text if it, with ``ending`` after it, has at most a length, else its beginning and "...".

    ``data`` is the text as the estimator encodes it; the ending counts but is not returned.
    """
    after = ending.encode()
    if estimator.within(data + after, length):
        return text
    tail = estimator.length_of(ending)
    room = length - estimator.length_of(ELLIPSIS) - tail
    if room > 0:
        cut = _cut(text, data, room, estimator)
        while True:
            # Where lengths do not add up, only measuring the result tells whether it fits.
            end = _trimmed(text, _word_end(text, cut))
            if not end:
                break
            kept = text[:end] + ELLIPSIS
            over = _characters_over(kept, after, length, estimator)
            if not over:
                return kept
            cut = boundary_at_or_before(text, max(0, end - over))
    cut = _cut(text, data, max(0, length - tail), estimator)
    while cut and (over := _characters_over(text[:cut], after, length, estimator)):
        cut = boundary_at_or_before(text, max(0, cut - over))
    if cut or room < 0 or _characters_over(ELLIPSIS, after, length, estimator):
        return text[:cut]
    return ELLIPSIS  # not one character fits, and that something was left out does


def _cut(text: str, data: bytes, length: int, estimator: Estimator) -> int:
    """Return the last place where a text may be cut to about a length."""
    return boundary_at_or_before(text, _characters(data, estimator.fitting(data, length)))


def _characters_over(text: str, after: bytes, length: int, estimator: Estimator) -> int:
    """Return about how many characters a text is too long, 0 if it is not."""
    if estimator.additive:  # was cut to fit
        return 0
    data = text.encode() + after
    if estimator.within(data, length):
        return 0
    tokens = estimator.tokens_of_bytes(data) - estimator.tokens_of_length(length)
    return max(1, tokens)


def _word_end(text: str, cut: int) -> int:
    """Return the end of the last whole word up to ``cut``, or ``cut`` where that would leave less than half of it."""
    if cut >= len(text) or text[cut].isspace():
        return cut
    at = max(text.rfind(space, 0, cut) for space in (" ", "\n", "\t"))
    end = len(text[: at + 1].rstrip()) if at >= 0 else 0
    return end if end >= cut - end else cut


def _trimmed(text: str, end: int) -> int:
    """Return the start of the white space before ``end``, or the last place before it where text may be cut."""
    while True:
        stripped = len(text[:end].rstrip())
        end = boundary_at_or_before(text, stripped)
        if end == stripped:
            return end


def _characters(data: bytes, size: int) -> int:
    """Return how many whole code points the first ``size`` bytes hold."""
    while 0 < size < len(data) and data[size] & 0xC0 == 0x80:
        size -= 1
    return len(data[:size].decode("utf-8", "surrogatepass"))


def _checked(estimator: Any) -> Estimator:
    if not isinstance(estimator, Estimator):
        raise DTypeError(field="estimator", expected="an Estimator", got=type(estimator).__name__)
    return estimator


def _rounded_up(lengths: npt.NDArray[np.int64], estimator: Estimator) -> npt.NDArray[np.int64]:
    """Return the tokens of lengths that come from texts in memory: their products fit 64 bits."""
    return np.asarray(-(-lengths * estimator.denominator // estimator.numerator), dtype=np.int64)


def _of_bytes(size: int, offsets: npt.NDArray[Any], estimator: BytesEstimator) -> npt.NDArray[np.int64]:
    numerator, denominator = estimator.numerator, estimator.denominator
    native = dispatch.native()
    out = np.empty(offsets.shape[0] - 1, dtype=np.int64)
    if offsets.dtype == checks.I32:
        call, kind = native.lib.cal_tokens_bytes_spans_i32, "int32_t[]"
    else:
        call, kind = native.lib.cal_tokens_bytes_spans_i64, "int64_t[]"
    buffer = native.ffi.from_buffer
    status = call(size, buffer(kind, offsets), out.shape[0], numerator, denominator, buffer("int64_t[]", out))
    dispatch.check(status, offsets="offsets", overflow="offsets")
    return out


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
