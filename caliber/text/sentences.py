"""Sentence splitting that respects code, lists and headings, and chunking into pieces of a token limit.

The splitter reads each character a bounded number of times. Nothing but white space falls between two sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

from caliber.model.errors import InvalidValue
from caliber.model.lazy_dataclass import dataclass
from caliber.model.providers import TokenCounter


class UnitKind(StrEnum):
    """The kind of a unit of text: running prose, an item of a list, a heading, a table row or code."""

    PROSE = "prose"
    ITEM = "item"
    HEADING = "heading"
    TABLE = "table"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Sentence:
    """One unit and its place: ``text == source[start:end]``; units of one paragraph share ``paragraph``."""

    text: str
    start: int
    end: int
    kind: UnitKind
    paragraph: int


_FENCE = re.compile(r"[ \t]{0,12}(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]{0,40}(?:[-*+•]|\d{1,9}[.)]|[A-Za-z][)])[ \t]")
_HEADING = re.compile(r"[ \t]{0,3}#{1,6}[ \t]")
_TABLE = re.compile(r"[ \t]{0,40}\|")
# The look-behind avoids a retry at each mark of a long run.
_ENDS = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*_]{0,8}+(?=\s)|[。！？｡]++[」』”’）]{0,4}")
_SPACE = re.compile(r"\s*")
_WORD_BEFORE = 24
_PLAIN_WORD = 4
# A line this short was ended by its writer and not wrapped, if the next one begins with a capital.
_SHORT_LINE = 50

# Words after which a full stop does not end the sentence: always; before a number; before a lower-case word.
_TITLES = """
mr mrs ms dr prof rev gen sen rep mt capt col lt sgt hon jr sr messrs mme ed eds al cf vs approx dept est inc ltd co
corp e.g i.e viz resp ca z.b bzw u.a nr str
"""
_COUNTED = "no nos fig figs eq eqs sec ch vol p pp art"
_SOFT = "etc st jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m u.s u.k e.u ph.d"
_NEVER_END = frozenset(_TITLES.split())
_BEFORE_NUMBER = frozenset(_COUNTED.split())
_SELDOM_END = frozenset(_SOFT.split())


def lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each line without its line break; only ``\\n`` and ``\\r\\n`` break lines."""
    start, stop = 0, len(text)
    while start < stop:
        found = text.find("\n", start, stop)
        line_end = stop if found < 0 else found
        yield start, line_end - 1 if line_end > start and text[line_end - 1] == "\r" else line_end
        start = line_end + 1


def split_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a text in order. A fenced block is one unit, closed or not."""
    return list(iter_sentences(text))


def iter_sentences(text: str) -> Iterator[Sentence]:
    """Yield the items of ``split_sentences`` one at a time, so that callers can stop early."""
    paragraph = 0
    prose: tuple[int, int] | None = None
    fence: tuple[str, int] | None = None
    fence_start = last_start = 0
    for start, end in lines(text):
        if fence is not None:
            if closes_fence(text, start, end, fence):
                yield _unit(text, fence_start, end, UnitKind.CODE, paragraph)
                fence = None
                paragraph += 1
            continue
        opened = opens_fence(text, start, end)
        kind = UnitKind.CODE if opened else _line_kind(text, start, end)
        if prose is not None and kind is not UnitKind.PROSE:
            yield from _prose(text, *prose, paragraph)
            prose = None
        if opened:
            paragraph += 1
            fence, fence_start = opened[:2], start
        elif kind is None:
            paragraph += 1
        elif kind is UnitKind.PROSE:
            if prose is not None and prose[1] - last_start < _SHORT_LINE and _next(text, start, end).isupper():
                yield from _prose(text, *prose, paragraph)
                prose = None
            prose = (start if prose is None else prose[0], end)
            last_start = start
        elif kind is UnitKind.ITEM:
            # An item can hold several sentences, and can continue in the next lines, which then count as prose.
            prose = (start, end)
            last_start = start
        else:
            yield _unit(text, start, end, kind, paragraph)
    if fence is not None:
        yield _unit(text, fence_start, len(text), UnitKind.CODE, paragraph)
    elif prose is not None:
        yield from _prose(text, *prose, paragraph)


def opens_fence(text: str, start: int, end: int) -> tuple[str, int, str] | None:
    """Return character, length and info string of the code fence that this line opens, if it opens one."""
    found = _FENCE.match(text, start, end)
    if found is None or (found[1][0] == "`" and text.find("`", found.end(), end) >= 0):
        return None
    return found[1][0], len(found[1]), text[found.end() : min(end, found.end() + 256)].strip()


def closes_fence(text: str, start: int, end: int, fence: tuple[str, int]) -> bool:
    """Return whether the line closes a fence of this character and length: as long or longer, and nothing else."""
    line = text[start : min(end, start + 256)].strip()
    return len(line) >= fence[1] and not line.strip(fence[0])


def _line_kind(text: str, start: int, end: int) -> UnitKind | None:
    if _ITEM.match(text, start, end):
        return UnitKind.ITEM
    if _HEADING.match(text, start, end):
        return UnitKind.HEADING
    if _TABLE.match(text, start, end):
        return UnitKind.TABLE
    first = _SPACE.match(text, start, end)
    return UnitKind.PROSE if first is not None and first.end() < end else None


def _prose(text: str, start: int, end: int, paragraph: int) -> Iterator[Sentence]:
    item = _ITEM.match(text, start, end)
    kind = UnitKind.ITEM if item else UnitKind.PROSE
    begin = start
    # The full stop of "1." ends no sentence.
    for found in _ENDS.finditer(text, item.end() if item else start, end):
        if _is_end(text, found, end):
            yield _unit(text, begin, found.end(), kind, paragraph)
            begin = found.end()
    if not text[begin:end].isspace() and begin < end:
        yield _unit(text, begin, end, kind, paragraph)


def _is_end(text: str, found: re.Match[str], end: int) -> bool:
    mark = found.start()
    if text[mark] != "." or found.end() - mark > 1:
        # "!", "?", "…", "..." and closing quotes: an end, unless a lower-case word goes on.
        return text[mark] not in ".…" or not _next(text, found.end(), end).islower()
    following = _next(text, found.end(), end)
    if not following:
        return True
    head = text[max(0, mark - _WORD_BEFORE) : mark]
    parts = head.split()
    word = parts[-1].lstrip("([\"'“‘*_") if parts and not head[-1].isspace() else ""
    lowered = word.lower()
    if lowered in _NEVER_END or (len(word) == 1 and word.isupper() and word != "I"):
        return False
    if lowered in _BEFORE_NUMBER and following.isdigit():
        return False
    if following.islower():
        # Some people write without capitals; an abbreviation that is not listed above is mostly shorter than this.
        return len(word) >= _PLAIN_WORD and word.isalpha() and lowered not in _SELDOM_END
    return lowered not in _SELDOM_END or following.isupper()


def _next(text: str, place: int, end: int) -> str:
    space = _SPACE.match(text, place, end)
    after = space.end() if space is not None else place
    while after < end and text[after] in "\"'“‘([*_":
        after += 1
    return text[after] if after < end else ""


def _unit(text: str, start: int, end: int, kind: UnitKind, paragraph: int) -> Sentence:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return Sentence(text[start:end], start, end, kind, paragraph)


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
