"""Input texts of a provider: rule for long ones (``LongText``), chunking, and checks (not blank, valid Unicode).

A text that a model cannot read in one piece is cut at the ends of sentences, or refused.

Source: M-014, M-015, K-116; docs/decisions/0013-local-embeddings.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from caliber.model.errors import EmbeddingFailed, InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import TokenCounter


class LongTextMode(StrEnum):
    """The treatment of a text above the limit.

    ``chunk_mean`` one vector, the mean of its chunks; ``truncate`` that of its beginning; ``error`` it is refused;
    ``chunks`` a vector for each chunk, of which the best one counts.
    """

    CHUNK_MEAN = "chunk_mean"
    TRUNCATE = "truncate"
    ERROR = "error"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class LongText:
    """The rule for long texts. Units: ``max_tokens`` under ``count_tokens``. Source: M-015.

    Raises: InvalidValue unless ``max_tokens`` >= 1.
    """

    mode: LongTextMode
    max_tokens: int
    count_tokens: TokenCounter

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InvalidValue(field="long_text_tokens", reason="must be at least 1")


@dataclass(frozen=True, slots=True)
class Chunks:
    """The embedded pieces of one text, in order, none blank, and the weight of each in a mean.

    Units: ``tokens`` of the whole text. ``truncated``: its end is in no piece.
    """

    texts: tuple[str, ...]
    weights: tuple[float, ...]
    tokens: int
    truncated: bool = False


def require_text(text: str, index: int | None = None) -> None:
    """Refuse a text without content: a zero vector has no direction (M-014, K-116).

    Raises: InvalidValue when it is not a str; EmbeddingFailed when empty or only white space.
    """
    where = "text" if index is None else f"texts[{index}]"
    if not isinstance(text, str):
        raise InvalidValue(field=where, reason=f"expected str, got {type(text).__name__}")
    # isspace stops at the first visible character; strip would copy a large text.
    if not text or text.isspace():
        raise EmbeddingFailed(reason="empty text" if index is None else f"empty text ({where})", index=index)


def valid_unicode(text: str) -> str:
    """Return the text with lone surrogates, which no tokenizer takes, shown as replacement characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def chunk_text(text: str, rule: LongText, index: int = 0) -> Chunks:
    """Return the pieces of a text, each at most ``rule.max_tokens`` long; one that fits is one piece, unchanged.

    Chunks end where a sentence ends if that leaves them at least half full, else at white space, else anywhere. A text
    that is truncated is cut at white space. ``index`` names the text in errors.

    Raises: EmbeddingFailed (empty text, or too long under ``error``), InvalidValue (not a str; a limit below one
        character).
    """
    require_text(text, index)
    total = rule.count_tokens(text)
    if total <= rule.max_tokens:
        return Chunks((text,), (1.0,), total)
    if rule.mode is LongTextMode.ERROR:
        raise EmbeddingFailed(
            reason=f"item {index} has {total} tokens, more than long_text_tokens = {rule.max_tokens}",
            index=index,
            tokens=total,
        )
    per_token = len(text) / total
    if rule.mode is LongTextMode.TRUNCATE:
        from caliber.text.sentences import prefix_end  # here, because short texts never need it

        start = len(text) - len(text.lstrip())
        piece = text[start : prefix_end(text, start, rule.max_tokens, rule.count_tokens, per_token)]
        return Chunks((piece,), (1.0,), total, truncated=True)
    pieces = tuple(piece for piece in _pieces(text, rule, per_token) if not piece.isspace())
    return Chunks(pieces, tuple(float(rule.count_tokens(piece)) for piece in pieces), total)


def _pieces(text: str, rule: LongText, per_token: float) -> Iterator[str]:
    """Yield the text in pieces, all of it."""
    from caliber.text.sentences import iter_sentences, prefix_end  # here, because short texts never need them

    # A sentence ends where the next one starts: the white space between two goes with the first.
    starts = [sentence.start for sentence in iter_sentences(text)]
    start = border = at = 0
    while start < len(text):
        end = prefix_end(text, start, rule.max_tokens, rule.count_tokens, per_token)
        while at < len(starts) and starts[at] <= end:
            border = starts[at]
            at += 1
        if end < len(text) and border > start + (end - start) // 2:
            end = border
        yield text[start:end]
        start = end
