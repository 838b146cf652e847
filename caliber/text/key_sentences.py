"""Extractive compression of one record: its first sentence, and those that answer a query or are central to it.

Scores are whole numbers of words in common, so the same text and query always give the same sentences. No model is
asked. Source: C-274, docs/pcp.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from caliber.text.sentences import iter_sentences

Spans = tuple[tuple[int, int], ...]
_WORD: Final = re.compile(r"\w{3,64}")
_MAX_SENTENCES: Final = 200
"""Sentences of a longer text that are not read: compressed, it shows its beginning."""
_PARTS: Final = 1_000


def key_sentences(text: str, query: str, fits: Callable[[Sequence[tuple[int, int]]], bool]) -> Spans:
    """Return the spans of the sentences that stay, in their order; none if not even the first one fits.

    ``fits`` tells of spans whether they are short enough together. First come sentences with words of the query, then
    those whose words occur in most others.
    """
    spans: list[tuple[int, int]] = []
    for sentence in iter_sentences(text):
        spans.append((sentence.start, sentence.end))
        if len(spans) == _MAX_SENTENCES:
            break
    # The lead of a record, such as the mark of a list item, belongs to its first sentence.
    spans[:1] = [(0, end) for _, end in spans[:1]]
    if not spans or not fits(spans[:1]):
        return ()
    words = [_words(text[start:end]) for start, end in spans]
    shared, asked = Counter(word for each in words for word in each), _words(query)

    def score(place: int) -> tuple[int, int, int]:
        own = words[place]
        central = sum(shared[word] - 1 for word in own) * _PARTS // (len(own) + 1)
        return -len(own & asked), -central, place

    chosen = [0]
    for place in sorted(range(1, len(spans)), key=score):
        tried = sorted([*chosen, place])
        if fits([spans[each] for each in tried]):
            chosen = tried
    return tuple(spans[each] for each in chosen)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text))
