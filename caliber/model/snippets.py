"""Snippet extraction: the part of a record's text around the matched words, for a search hit."""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 160


def snippet(text: str, words: Sequence[str], *, length: int = LENGTH) -> str:
    """Return about ``length`` characters around the first place where words of the query stand close together."""
    if len(text) <= length:
        return " ".join(text.split())
    folded = text.casefold()
    if len(folded) != len(text):  # folding changed lengths: places would not fit
        folded = text.lower() if len(text.lower()) == len(text) else text
    places = sorted(place for word in words if (place := folded.find(word)) >= 0)
    start = 0
    if places:
        # The window that holds the most of the first places.
        _, start = max((sum(p <= q < p + length for q in places), -p) for p in places)
        start = max(0, -start - length // 8)
    end = min(len(text), start + length)
    start = max(0, end - length)
    if start and not text[start - 1].isspace():
        start = _after_space(text, start, end)
    if end < len(text) and not text[end].isspace():
        space = text.rfind(" ", start, end)
        end = space if space > start + length // 2 else end
    body = " ".join(text[start:end].split())
    return ("… " if start else "") + body + (" …" if end < len(text) else "")


def _after_space(text: str, start: int, end: int) -> int:
    space = text.find(" ", start, min(end, start + LENGTH // 8))
    return start if space < 0 else space + 1
