"""What every provider asks of a text before it works on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from caliber.model.errors import EmbeddingFailed, InvalidValue

TokenCounter: TypeAlias = Callable[[str], int]


def require_text(text: str, index: int | None = None) -> None:
    """Refuse what has no meaning to embed: a zero vector has no direction (M-014, K-116).

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


def prefix_end(text: str, start: int, max_tokens: int, count_tokens: TokenCounter, chars_per_token: float) -> int:
    """Return the end of a piece from ``start`` on that counts at most ``max_tokens``, at white space where possible.

    The piece is close to the largest one; each call counts about one piece, so cutting a whole text stays linear.

    Raises: InvalidValue when not even one character fits.
    """
    size = max(1, int(max_tokens * chars_per_token))
    while True:
        end = min(len(text), start + size)
        if end < len(text):
            end = _at_space(text, start, end)
        used = count_tokens(text[start:end])
        if used <= max_tokens:
            return end
        if end - start == 1:
            raise InvalidValue(field="max_tokens", reason=f"{max_tokens} cannot hold a single character")
        size = max(1, min(end - start - 1, int((end - start) * max_tokens / used * 0.97)))


def _at_space(text: str, start: int, end: int) -> int:
    floor = max(start + 1, end - max(1, (end - start) // 4))
    for place in range(end, floor, -1):
        if text[place - 1].isspace():
            return place
    return end
