"""Shortened texts: one to its beginning; a record to its first sentence and those that answer a query, or an excerpt.

Scores count words in common, by their stems and how rare they are in the text, so the same text and query always give
the same sentences. No model is asked. Source: C-274, docs/pcp.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import log1p
from typing import Final

from caliber.kernels import Estimator, words_of
from caliber.kernels.tokens.counting import ELLIPSIS, truncate_to_tokens
from caliber.text.sentences import iter_sentences
from caliber.text.words import Analyzer

Spans = tuple[tuple[int, int], ...]
Fits = Callable[[Sequence[tuple[int, int]]], bool]
_MAX_SENTENCES: Final = 200
"""Sentences of a longer text that are not read: compressed, it shows its beginning."""
_MAX_CHARS: Final = 262_144
"""Characters of a longer text in which an excerpt is looked for."""
_UNIT: Final = 240
"""Characters of a part of a longer sentence."""
_PARTS: Final = 1_000
_NEAR: Final = 0.6
"""Share of the best score with which other sentences enter an excerpt."""


def key_sentences(text: str, query: str, fits: Fits, language: str = "english") -> Spans:
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
    terms = [terms_of(text[start:end], language) for start, end in spans]
    shared, asked = Counter(term for each in terms for term in each), terms_of(query, language)

    def score(place: int) -> tuple[int, int, int]:
        own = terms[place]
        central = sum(shared[term] - 1 for term in own) * _PARTS // (len(own) + 1)
        return -len(own & asked), -central, place

    return _filled(spans, [0], sorted(range(1, len(spans)), key=score), fits)


def excerpt(text: str, query: str, fits: Fits, language: str) -> Spans:
    """Return the spans of the sentences that answer a query, and of some around the best, in their order.

    Without a word in common they are those of the beginning; none if not even one fits.
    """
    spans = list(_units(text[:_MAX_CHARS]))
    asked = terms_of(query, language)
    common = [terms_of(text[start:end], language) & asked for start, end in spans]
    count = Counter(term for each in common for term in each)
    scores = [round(sum(_PARTS * log1p(len(spans) / count[term]) for term in each)) for each in common]
    order = sorted(range(len(spans)), key=lambda place: (-scores[place], place))
    best = order[0] if order else 0
    near = [place for place in order if scores[place] and scores[place] >= _NEAR * scores[best]]
    around = [best + step for step in (0, 1, -1, 2, -2) if 0 <= best + step < len(spans)]
    return _filled(spans, [], [*near, *around], fits)


def _filled(spans: list[tuple[int, int]], chosen: list[int], order: Sequence[int], fits: Fits) -> Spans:
    """Return the chosen spans, and those in an order that fit beside them."""
    missed = 0
    for place in order:
        tried = sorted({*chosen, place})
        if fits([spans[each] for each in tried]):
            chosen = tried
        elif (missed := missed + 1) > _MAX_SENTENCES:
            break
    return tuple(spans[each] for each in chosen)


def _units(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of sentences; of long ones, parts between spaces."""
    for sentence in iter_sentences(text):
        start = sentence.start
        while sentence.end - start > _UNIT:
            end = text.rfind(" ", start + 1, start + _UNIT)
            end = start + _UNIT if end < 0 else end
            yield start, end
            start = end + (text[end] == " ")
        if start < sentence.end:
            yield start, sentence.end


@lru_cache(maxsize=4)
def _analyzer(language: str) -> Analyzer:
    return Analyzer(language)


def terms_of(text: str, language: str) -> frozenset[str]:
    """Return the stems of a text's words, without stop words."""
    analyzer = _analyzer(language)
    words = {word.decode("utf-8", "replace") for word in words_of(text.encode("utf-8", "replace"))}
    kept = [word for word in words if word.casefold() not in analyzer.lexicon.stop_words]
    return frozenset(term for word in kept for term in analyzer.cached(word).terms)


def abridge(text: str, limit: int, estimator: Estimator) -> tuple[int, bool] | None:
    """Return the characters that abridge a text to ``limit`` tokens, or None where it is short already.

    A first sentence that is too long is cut itself, and ends in dots.
    """

    def tokens(end: int) -> int:
        length = int(estimator.lengths_of([text[:end]])[0])
        return -(-length * estimator.denominator // estimator.numerator)

    if tokens(len(text)) <= limit:
        return None
    end = 0
    for sentence in iter_sentences(text):
        if tokens(sentence.end) > limit:
            break
        end = sentence.end
    if end:
        return end, False
    cut = truncate_to_tokens(text, limit, estimator=estimator)
    dots = not text.startswith(cut)
    return len(cut) - len(ELLIPSIS) * dots, dots
