"""Token estimates, and cutting text to a number of tokens.

Source: C-308 to C-310; design section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch, reference
from caliber.kernels.digest import check_edges
from caliber.kernels.graphemes import boundary_at_or_before
from caliber.model.errors import DTypeError, InvalidValue

ELLIPSIS = "..."
_RATIO_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class BytesEstimator:
    """A token for every ``bytes_per_token`` bytes of UTF-8, rounded up; empty text has none.

    The divisor is taken as the decimal number it prints as (3.3 is 33/10), and all arithmetic is in integers, so
    the estimate is exact at any length.

    Raises:  DTypeError; InvalidValue unless finite, above 0, and a ratio of two numbers below 2^31
    """

    bytes_per_token: float
    numerator: int = field(init=False, repr=False, compare=False)
    denominator: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.bytes_per_token, bool) or not isinstance(self.bytes_per_token, int | float):
            got = type(self.bytes_per_token).__name__
            raise DTypeError(field="bytes_per_token", expected="a number", got=got)
        try:
            ratio = Fraction(repr(self.bytes_per_token))
        except ValueError as error:
            raise InvalidValue(field="bytes_per_token", reason="must be finite") from error
        if not (0 < ratio.numerator < _RATIO_LIMIT and ratio.denominator < _RATIO_LIMIT):
            raise InvalidValue(field="bytes_per_token", reason="must be above 0 and have at most nine digits")
        object.__setattr__(self, "bytes_per_token", float(self.bytes_per_token))
        object.__setattr__(self, "numerator", ratio.numerator)
        object.__setattr__(self, "denominator", ratio.denominator)

    @property
    def name(self) -> str:
        """The estimator as recorded with a window, such as ``bytes/3.5``."""
        return f"bytes/{self.bytes_per_token:.10g}"

    def tokens_of_length(self, length: int) -> int:
        """Return the tokens of a text of ``length`` bytes."""
        return -(-length * self.denominator // self.numerator)

    def longest(self, tokens: int) -> int:
        """Return the greatest number of bytes that estimates to at most ``tokens``."""
        return tokens * self.numerator // self.denominator


def estimate_tokens(text: str, *, estimator: BytesEstimator) -> int:
    """Return the estimated tokens of a text.

    Raises:  DTypeError
    """
    # A string knows whether it is ASCII; only others need to be encoded to be measured.
    if type(text) is str and text.isascii():
        return _checked(estimator).tokens_of_length(len(text))
    return _checked(estimator).tokens_of_length(len(_encode(text, field="text")))


def estimate_tokens_batch(texts: Sequence[str], *, estimator: BytesEstimator) -> npt.NDArray[np.int64]:
    """Return the estimated tokens of each text.

    Shapes:  n texts -> int64[n]
    Raises:  DTypeError
    """
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    lengths = [
        len(text) if type(text) is str and text.isascii() else len(_encode(text, field="texts")) for text in texts
    ]
    np.cumsum(np.array(lengths, dtype=np.int64), out=offsets[1:])
    return _estimate(int(offsets[-1]), offsets, _checked(estimator))


def estimate_tokens_spans(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64 | np.int32], *, estimator: BytesEstimator
) -> npt.NDArray[np.int64]:
    """Return the estimated tokens of each span data[offsets[i] : offsets[i + 1]] of UTF-8.

    Shapes:  data uint8[s]; offsets int32 or int64[n + 1] -> int64[n]
    Raises:  DTypeError, ShapeError, InvalidValue
    """
    data = checks.view(data, checks.U8, 1, field="data")
    return _estimate(data.shape[0], checks.offsets(offsets), _checked(estimator))


def truncate_to_tokens(text: str, limit: int, *, estimator: BytesEstimator) -> str:
    """Return the text if it fits into ``limit`` tokens, else its beginning and "...", together within the limit.

    Cuts at the last white space, or where there is none between two grapheme clusters. A limit of 0 or less gives "";
    where not even "..." and a byte of text fit, the beginning comes without it.

    Raises:  DTypeError
    """
    _checked(estimator)
    checks.whole(limit, field="limit", low=-(2**63))
    data = _encode(text, field="text")
    if limit <= 0:
        return ""
    if estimator.tokens_of_length(len(data)) <= limit:
        return text
    room = estimator.longest(limit)
    if room <= len(ELLIPSIS):
        return text[: boundary_at_or_before(text, _characters(data, room))]
    cut = boundary_at_or_before(text, _characters(data, room - len(ELLIPSIS)))
    if not text[cut].isspace():
        word_end = _last_space(text, cut)
        cut = word_end if word_end > 0 else cut
    return text[:cut].rstrip() + ELLIPSIS


def _last_space(text: str, end: int) -> int:
    """Return where the last run of white space before ``end`` starts, if text stands before it; else 0."""
    at = max(text.rfind(space, 0, end) for space in (" ", "\n", "\t"))
    return len(text[: at + 1].rstrip()) if at >= 0 else 0


def _characters(data: bytes, size: int) -> int:
    """Return how many whole code points the first ``size`` bytes hold."""
    while size > 0 and data[size] & 0xC0 == 0x80:
        size -= 1
    return len(data[:size].decode("utf-8", "surrogatepass"))


def _encode(text: Any, *, field: str) -> bytes:
    if not isinstance(text, str):
        raise DTypeError(field=field, expected="str", got=type(text).__name__)
    # A lone surrogate (from a lossy decode elsewhere) counts as its three bytes instead of failing.
    return text.encode("utf-8", "surrogatepass")


def _checked(estimator: Any) -> BytesEstimator:
    if not isinstance(estimator, BytesEstimator):
        raise DTypeError(field="estimator", expected="BytesEstimator", got=type(estimator).__name__)
    return estimator


def _estimate(size: int, offsets: npt.NDArray[Any], estimator: BytesEstimator) -> npt.NDArray[np.int64]:
    numerator, denominator = estimator.numerator, estimator.denominator
    native = dispatch.native()
    if native is None:
        check_edges(offsets, size)
        lengths = np.diff(offsets.astype(np.int64)).tolist()
        return np.array(reference.tokens_of_lengths(lengths, numerator, denominator), dtype=np.int64)
    out = np.empty(offsets.shape[0] - 1, dtype=np.int64)
    if offsets.dtype == checks.I32:
        call, kind = native.lib.cal_tokens_bytes_spans_i32, "int32_t[]"
    else:
        call, kind = native.lib.cal_tokens_bytes_spans_i64, "int64_t[]"
    buffer = native.ffi.from_buffer
    status = call(size, buffer(kind, offsets), out.shape[0], numerator, denominator, buffer("int64_t[]", out))
    dispatch.check(status, offsets="offsets", overflow="offsets")
    return out
