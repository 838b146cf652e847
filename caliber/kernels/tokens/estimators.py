"""Token estimators: bytes per token, a calibrated lookup table, or an exact tokenizer.

Every estimator measures a text in its own unit, the length, and turns lengths into tokens by a fixed ratio, rounded up:
bytes, 1/256 tokens, or tokens. Budgets are filled in lengths.

Source: C-121, C-308, design section 6; docs/tokens.md, docs/decisions/0016.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from caliber.kernels import checks, dispatch
from caliber.kernels.tokens.costs import COSTS
from caliber.kernels.tokens.tokenizer import TokenVocabulary, open_token_vocabulary
from caliber.model.errors import DTypeError, InvalidValue
from caliber.model.lazy_dataclass import dataclass

Lengths = npt.NDArray[np.int64]

VOCABULARIES: Final = ("o200k_base", "cl100k_base")
UNITS_PER_TOKEN: Final = 256
"""Costs are 8-bit numbers in units of 1/256 token: a byte costs less than a token, as in any byte-level vocabulary."""
_RATIO_LIMIT: Final = 2**31


class Estimator(ABC):
    """Measures texts, and turns their lengths into tokens: ``length * denominator / numerator``, rounded up.

    ``additive`` says whether the length of a text is the sum of the lengths of its parts, wherever it is parted.
    """

    __slots__ = ()
    additive: ClassVar[bool]
    numerator: int
    denominator: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The estimator as recorded with a window; the same name gives the same lengths."""

    @abstractmethod
    def lengths_of_spans(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> Lengths:
        """Return the length of each span of UTF-8; arguments are checked except for the offsets."""

    @abstractmethod
    def fitting(self, data: bytes, length: int) -> int:
        """Return how many bytes of a text have at most this length, or an estimate where only measuring can tell."""

    def encoded(self, text: Any, *, field: str) -> bytes:
        """Return a text as the bytes that are measured.

        Raises:  DTypeError; InvalidValue for invalid Unicode
        """
        if not isinstance(text, str):
            raise DTypeError(field=field, expected="str", got=type(text).__name__)
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError as error:
            reason = f"has a lone surrogate at character {error.start}, which no tokenizer takes; decode it anew"
            raise InvalidValue(field=field, reason=reason) from error

    def lengths_of(self, texts: Sequence[str], *, field: str = "texts") -> Lengths:
        """Return the length of each text.

        Shapes:  n texts -> int64[n]
        Raises:  DTypeError, InvalidValue
        """
        encoded = [self.encoded(text, field=field) for text in texts]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
        return self.lengths_of_spans(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    def length_of(self, text: str, *, field: str = "text") -> int:
        """Return the length of a text.

        Raises:  DTypeError, InvalidValue
        """
        return int(self.lengths_of((text,), field=field)[0])

    def within(self, data: bytes, length: int) -> bool:
        """Return whether a text has at most this length."""
        return self._length(data) <= length

    def _length(self, data: bytes) -> int:
        edges = np.array((0, len(data)), np.int64)
        return int(self.lengths_of_spans(np.frombuffer(data, np.uint8), edges)[0])

    def tokens_of_length(self, length: int) -> int:
        """Return the tokens of a text of this length."""
        return -(-length * self.denominator // self.numerator)

    def tokens_of_bytes(self, data: bytes) -> int:
        """Return the tokens of UTF-8, or of bytes that are not quite."""
        return -(-self._length(data) * self.denominator // self.numerator)  # inline: every turn is counted

    def longest(self, tokens: int) -> int:
        """Return the greatest length that is at most the given number of tokens."""
        return tokens * self.numerator // self.denominator


@dataclass(frozen=True, slots=True)
class BytesEstimator(Estimator):
    """A token for every ``bytes_per_token`` bytes of UTF-8, rounded up; empty text has none.

    The divisor is taken as the decimal number it prints as (3.3 is 33/10), and all arithmetic is in integers, so
    the estimate is exact at any length.

    Raises:  DTypeError; InvalidValue unless finite, above 0, and a ratio of two numbers below 2^31
    """

    bytes_per_token: float
    numerator: int = field(init=False, repr=False, compare=False)
    denominator: int = field(init=False, repr=False, compare=False)
    additive: ClassVar[bool] = True

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
        return f"bytes/{self.bytes_per_token:.10g}"

    def encoded(self, text: Any, *, field: str) -> bytes:
        """Return a text as UTF-8; a lone surrogate (from a lossy decode elsewhere) as its three bytes.

        Raises:  DTypeError
        """
        if not isinstance(text, str):
            raise DTypeError(field=field, expected="str", got=type(text).__name__)
        return text.encode("utf-8", "surrogatepass")

    def length_of(self, text: str, *, field: str = "text") -> int:
        # A string knows whether it is ASCII; only others need to be encoded to be measured.
        return len(text) if type(text) is str and text.isascii() else len(self.encoded(text, field=field))

    def lengths_of(self, texts: Sequence[str], *, field: str = "texts") -> Lengths:
        lengths = [
            len(text) if type(text) is str and text.isascii() else len(self.encoded(text, field=field))
            for text in texts
        ]
        return np.array(lengths, np.int64)

    def lengths_of_spans(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> Lengths:
        _check_edges(offsets, data.shape[0])
        return np.asarray(np.diff(offsets.astype(np.int64)), dtype=np.int64)

    def fitting(self, data: bytes, length: int) -> int:
        return min(len(data), length)

    def _length(self, data: bytes) -> int:
        return len(data)


@dataclass(frozen=True, slots=True)
class CalibratedEstimator(Estimator):
    """Estimator by byte costs fitted to a vocabulary: a few percent off, without a dependency.

    A beginning of a text is never longer than the whole.

    Raises:  InvalidValue for a vocabulary without tables
    """

    vocabulary: str
    additive: ClassVar[bool] = False
    numerator: ClassVar[int] = UNITS_PER_TOKEN  # type: ignore[misc]
    denominator: ClassVar[int] = 1  # type: ignore[misc]

    def __post_init__(self) -> None:
        _check_vocabulary(self.vocabulary)

    @property
    def name(self) -> str:
        return f"calibrated/{self.vocabulary}@{digest_of(self.vocabulary)}"

    def lengths_of_spans(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> Lengths:
        native = dispatch.native()
        out = np.empty(offsets.shape[0] - 1, np.int64)
        lib, buffer = native.lib, native.ffi.from_buffer
        narrow = offsets.dtype == checks.I32
        call = lib.cal_tokens_calibrated_spans_i32 if narrow else lib.cal_tokens_calibrated_spans_i64
        status = call(
            native.features, VOCABULARIES.index(self.vocabulary), buffer("uint8_t[]", data), data.shape[0],
            buffer("int32_t[]" if narrow else "int64_t[]", offsets), out.shape[0], buffer("int64_t[]", out),
        )  # fmt: skip
        dispatch.check(status, offsets="offsets")
        return out

    def fitting(self, data: bytes, length: int) -> int:
        native = dispatch.native()
        length = max(0, min(length, 2**62))
        out = native.ffi.new("size_t *")
        vocabulary = VOCABULARIES.index(self.vocabulary)
        raw = native.ffi.from_buffer("uint8_t[]", data)
        dispatch.check(
            native.lib.cal_tokens_calibrated_prefix(native.features, vocabulary, raw, len(data), length, out)
        )
        return int(out[0])

    def within(self, data: bytes, length: int) -> bool:
        return self.fitting(data, length) == len(data)


@dataclass(frozen=True, slots=True)
class ExactEstimator(Estimator):
    """The tokens that a vocabulary gives, counted by the vocabulary itself (extra ``tokens``).

    Bytes that are not UTF-8 are counted as the replacement characters that windows show for them.

    Raises:  InvalidValue for an unknown vocabulary; ExtraNotInstalled when nothing here can read it
    """

    vocabulary: str
    counter: TokenVocabulary = field(init=False, repr=False, compare=False)
    additive: ClassVar[bool] = False
    numerator: ClassVar[int] = 1  # type: ignore[misc]
    denominator: ClassVar[int] = 1  # type: ignore[misc]

    def __post_init__(self) -> None:
        _check_vocabulary(self.vocabulary)
        object.__setattr__(self, "counter", open_token_vocabulary(self.vocabulary))

    @property
    def name(self) -> str:
        return f"exact/{self.vocabulary}"

    def lengths_of(self, texts: Sequence[str], *, field: str = "texts") -> Lengths:
        count = self.counter.count
        for text in texts:
            if not (type(text) is str and text.isascii()):
                self.encoded(text, field=field)  # refuses invalid Unicode
        return np.fromiter(map(count, texts), np.int64, len(texts))

    def lengths_of_spans(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[Any]) -> Lengths:
        _check_edges(offsets, data.shape[0])
        raw, edges = data.tobytes(), offsets.tolist()
        count = self.counter.count
        spans = (raw[edges[at] : edges[at + 1]].decode("utf-8", "replace") for at in range(len(edges) - 1))
        return np.fromiter(map(count, spans), np.int64, len(edges) - 1)

    def fitting(self, data: bytes, length: int) -> int:
        # Most tokens have about four bytes; a text of longer ones needs another look.
        size = 8 * length + 64
        while True:
            head = data[:size].decode("utf-8", "ignore")
            tokens = self.counter.encode(head)
            if len(tokens) > length or size >= len(data):
                return len(self.counter.decode(tokens[:length]))
            size *= 4

    def within(self, data: bytes, length: int) -> bool:
        # No token is longer than the longest: a text that must be too long need not be counted.
        return len(data) <= length * self.counter.longest and self._length(data) <= length

    def _length(self, data: bytes) -> int:
        return self.counter.count(data.decode("utf-8", "replace"))


@cache
def open_estimator(
    kind: Literal["bytes", "calibrated", "exact"], *, bytes_per_token: float, vocabulary: str | None
) -> Estimator:
    """Return the estimator that a configuration names; an exact one is loaded once a process.

    Raises:  InvalidValue, DTypeError; ExtraNotInstalled for ``exact`` when nothing here can read the vocabulary
    """
    if kind == "bytes":
        return BytesEstimator(bytes_per_token)
    if vocabulary is None:
        raise InvalidValue(field="vocabulary", reason=f"the estimator {kind} needs one of {', '.join(VOCABULARIES)}")
    if kind == "calibrated":
        return CalibratedEstimator(vocabulary)
    if kind == "exact":
        return ExactEstimator(vocabulary)
    raise InvalidValue(field="estimator", reason="must be bytes, calibrated or exact")


def _check_edges(edges: npt.NDArray[Any], size: int) -> None:
    """Refuse offsets that C refuses with CAL_E_OFFSETS. Raises: InvalidValue."""
    wide = edges.astype(np.int64)
    if wide.shape[0] > 1 and (wide[0] < 0 or wide[-1] > size or (np.diff(wide) < 0).any()):
        raise InvalidValue(field="offsets", reason="offsets decrease, are negative or pass the end of the data")


def _check_vocabulary(vocabulary: Any) -> None:
    if not isinstance(vocabulary, str):
        raise DTypeError(field="vocabulary", expected="str", got=type(vocabulary).__name__)
    if vocabulary not in VOCABULARIES:
        raise InvalidValue(field="vocabulary", reason=f"must be one of {', '.join(VOCABULARIES)}")


@cache
def digest_of(vocabulary: str) -> str:
    """Return by which tables a text was measured: another fit has another name."""
    return blake2b(COSTS[vocabulary], digest_size=4).hexdigest()


def byte_length(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))
