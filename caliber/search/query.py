"""Parser of a search query: words, quoted phrases, prefixes, names and days; there is no other query syntax.

Source: issue "Search in native memory", keyword leg and query side; P-041.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, tzinfo
from itertools import filterfalse, islice
from typing import Final, NamedTuple

from caliber.kernels import PHRASE_MAX, words_of
from caliber.model.lazy_dataclass import dataclass
from caliber.text.dates import DateReader, Interval
from caliber.text.words import Analyzer, Lexicon

_QUOTES: Final = {'"': '"', "“": "”", "«": "»", "„": "“”"}
"""Opening and closing quotation marks."""

_OPENING = re.compile(f"[{''.join(_QUOTES)}]")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s?\Z")
_REMEMBERED = 1_024
_REMEMBERED_CHARS = 1_024
"""Queries that are remembered, and how long they may be."""
CHARS_A_WORD = 64
"""Limit on the characters scanned, as a multiple of the words read: a pasted log must not take seconds."""
_SENTENCE_ENDS: Final = ".?!\n"
_PAST = re.compile(r"\b(?:did|was|were|\w{3,}ed)\b", re.IGNORECASE)
_QUESTION_WORD: Final = r"\b(?:what|which|who|whom|whose|when|where|how|why)\b"
_ASKING = re.compile(_QUESTION_WORD, re.IGNORECASE)
_SAID = re.compile(r"\b(?:i|we|you|he|she|they|it|my|our|your|his|her|their)\b", re.IGNORECASE)
_OF_OTHERS = re.compile(
    rf"(?!.*\b(?:i|me|my|mine|myself|we|us|ours?)\b)(?=.*{_QUESTION_WORD})[^.?!\n]*\?\s*", re.IGNORECASE
)
"""One question, in words of questions, without a word for the user."""
_INSIDE = re.compile(r"(?<=[\w,;'’] )\w{2,}")
"""Words inside a sentence, where a capital makes a name."""
_STARRED = re.compile(r"(?<![\w.-])[\w.-]+\*")
_PREFIX = re.compile(r"(?<![\w*])\w[\w.-]+")


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query. ``terms`` are stems and whole words, in the order of the text, without stop words.

    ``fillers`` are the terms that are no evidence; a query that ``lacks_evidence`` has words, and all are fillers.
    ``stop_word_phrase`` has the parts of a query of stop words alone.
    """

    text: str
    terms: tuple[str, ...]
    stop_words: tuple[str, ...]
    surfaces: tuple[str, ...]
    phrases: tuple[tuple[str, ...], ...]
    prefixes: tuple[str, ...]
    parts: tuple[str, ...]
    when: Interval | None
    asks_time: bool
    cut: bool
    fillers: frozenset[str] = frozenset()
    lacks_evidence: bool = False
    stop_word_phrase: tuple[str, ...] = ()
    of_days_only: bool = False
    """Whether it asks for what was on its days: then records of other days are found only where none is of these."""
    of_others: bool = False
    """Whether it is one question that asks for nothing of the user: "Which river flows through Vientiane?\""""
    day_terms: tuple[str, ...] = ()
    """The terms of "two weeks ago", which are searched where the days tell no records apart."""

    def with_words_of_days(self) -> Query:
        """Return the query that is searched by the words of its days as well."""
        return replace(self, terms=tuple(dict.fromkeys((*self.terms, *self.day_terms))))


class Now(NamedTuple):
    """The day from which a query reckons, the day of the newest record, and the zone of days."""

    today: date
    newest: date
    zone: tzinfo


class QueryReader:
    """Parser of queries in one language."""

    def __init__(self, analyzer: Analyzer, lexicon: Lexicon, *, max_words: int) -> None:
        self._analyzer = analyzer
        self._lexicon = lexicon
        self._max_words = max_words
        self._max_chars = max_words * CHARS_A_WORD
        self._dates = DateReader(words=lexicon.names_days)
        self._remembered: dict[str, Query] = {}

    def read(self, text: str, now: Callable[[], Now]) -> Query:
        """Return the parsed query; its days are relative to ``now``."""
        # An agent repeats a query at every step of its work: a parse that does not depend on the clock is cached.
        short = len(text) <= _REMEMBERED_CHARS
        cached = self._remembered.get(text) if short else None
        if cached is not None:
            return cached
        read = text if len(text) <= self._max_chars else self._readable_part(text)
        dated = self._dates.may_name(read)
        found = self._analyzed(read, now() if dated else None)
        if len(read) < len(text):
            found = replace(found, text=text, cut=True)
        if short and not dated:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[text] = found
        return found

    def _readable_part(self, text: str) -> str:
        """Return as much of a text as is read, without a word of which only a part would be."""
        text = text.lstrip()
        read = text[: self._max_chars]
        if len(read) < len(text) and not text[len(read)].isspace():
            whole = read.rsplit(maxsplit=1)
            return whole[0] if len(whole) == 2 and not read[-1].isspace() else read
        return read

    def _analyzed(self, text: str, now: Now | None) -> Query:
        when = None if now is None else self._dates.find(text, now.today, now.zone, now.newest)
        # The days are a separate leg: as words they would match every text that names the month.
        rest = text if when is None else f"{text[: when.start]} {text[when.end :]}"
        stop_words, fillers, most = self._lexicon.stop_words, self._lexicon.fillers, self._max_words
        raw = _words_of(rest)
        names = _names(rest, raw[:most])
        terms: dict[str, bool] = {}
        evidence: set[str] = set()
        parts: list[str] = []
        phrases: dict[tuple[str, ...], None] = {}
        for word in raw[:most]:
            analysis = self._analyzer.cached(word)
            for part in analysis.parts:
                if "'" in part or "’" in part:  # a possessive names somebody too; stems have no ending
                    part = _POSSESSIVE.sub("", part)
                parts.append(part)
            alone = analysis.parts[0] if len(analysis.parts) == 1 else None
            is_stop_word = alone in stop_words and word not in names
            for term in analysis.terms:
                terms[term] = is_stop_word and terms.get(term, True)
            if not is_stop_word and alone not in fillers:
                evidence.update(analysis.terms)
            if len(analysis.parts) > 1:
                phrases[analysis.parts[:PHRASE_MAX]] = None
        quotations = list(islice(_quotations(rest), most + 1)) if _OPENING.search(rest) else []
        for quoted in quotations[:most]:
            inside = self._parts_of(quoted)
            if inside:
                phrases[inside[:PHRASE_MAX]] = None
        prefixes = list(islice(_prefixes(rest), most + 1)) if "*" in rest else []
        cut = max(len(raw), len(quotations), len(prefixes)) > most
        kept = tuple(filterfalse(terms.__getitem__, terms))
        # Stop words are searched only where the query has nothing else: with days ("in May") it has.
        enough = bool(kept) or when is not None
        return Query(
            text=text,
            terms=kept if enough else tuple(terms),
            stop_words=tuple(filter(terms.__getitem__, terms)) if enough else (),
            surfaces=tuple(dict.fromkeys(filterfalse(stop_words.__contains__, parts))) or tuple(parts),
            phrases=tuple(phrases),
            prefixes=tuple(dict.fromkeys(map(str.casefold, prefixes[:most]))),
            parts=tuple(parts),
            when=when,
            day_terms=self._day_terms(text, when),
            of_days_only=now is not None and when is not None and _asks_of_days(text, when, now.today),
            of_others=_OF_OTHERS.fullmatch(text) is not None,
            asks_time=self._lexicon.asks_time.search(text) is not None,
            cut=cut,
            fillers=frozenset(terms).difference(evidence),
            lacks_evidence=bool(terms) and not (evidence or prefixes or when is not None),
            stop_word_phrase=() if enough or prefixes else tuple(parts[:PHRASE_MAX]),
        )

    def name(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return a name as a query would spell it; empty if only stop words remain."""
        return () if all(part in self._lexicon.stop_words for part in parts) else parts

    def _day_terms(self, text: str, when: Interval | None) -> tuple[str, ...]:
        """Return the terms of the words that name days by their distance from today."""
        if when is None or not when.relative:
            return ()
        analyses = map(self._analyzer.cached, _words_of(text[when.start : when.end]))
        stop_words = self._lexicon.stop_words
        return tuple(term for found in analyses if not stop_words.issuperset(found.parts) for term in found.terms)

    def _parts_of(self, text: str) -> tuple[str, ...]:
        return tuple(part for word in _words_of(text) for part in self._analyzer.cached(word).parts)


def _words_of(text: str) -> list[str]:
    return list(map(bytes.decode, words_of(text.encode("utf-8", "replace"))))


def _names(text: str, words: Sequence[str]) -> set[str]:
    """Return the words written as names: with a capital inside a sentence or alone, or in capitals.

    They are searched, also if they are spelt like stop words: "Who is Will?", "The Who", "IT".
    """
    names: set[str] = set()
    has_small = len(words) <= 2
    for word in words:
        if word[0].islower():
            has_small = True
        elif (len(word) > 1 and word.isupper()) or (len(words) == 1 and word[0].isupper()):
            names.add(word)
    if not has_small:
        return set()  # every word has a capital
    for word in _INSIDE.findall(text):
        if word[0].isupper():
            names.add(word)
    return names


def _asks_of_days(text: str, when: Interval, today: date) -> bool:
    """Return whether the sentence that names days asks for what was on them: "What did we talk of yesterday?"

    "What should I cook today?" does not, nor does "I slept badly yesterday".
    """
    begin = max(text.rfind(sign, 0, when.start) for sign in _SENTENCE_ENDS) + 1
    end = min((at for sign in _SENTENCE_ENDS if (at := text.find(sign, when.end)) >= 0), default=len(text))
    sentence = text[begin : end + 1]
    if when.last >= today and _PAST.search(sentence) is None:
        return False
    return sentence.endswith("?") or _ASKING.search(sentence) is not None or not _SAID.search(sentence)


# Each scans a text once, whatever signs it consists of: a query may be a megabyte of opening quotes.


def _quotations(text: str) -> Iterator[str]:
    """Yield the quoted parts; an opening sign without its closing one quotes nothing."""
    closing: dict[str, int] = {}  # position of the next sign of each sort; the end of the text if there is none

    def close(sign: str, at: int) -> int:
        if closing.get(sign, -1) <= at:
            found = text.find(sign, at + 1)
            closing[sign] = len(text) if found < 0 else found
        return closing[sign]

    after = 0
    for opening in _OPENING.finditer(text):
        at = opening.start()
        if at < after:
            continue
        end = min(close(sign, at) for sign in _QUOTES[text[at]])
        if at + 1 < end < len(text):
            yield text[at + 1 : end]
            after = end + 1


def _prefixes(text: str) -> Iterator[str]:
    """Yield the text before each ``*`` of the form ``back*``."""
    for run in _STARRED.finditer(text):
        found = _PREFIX.search(text, run.start(), run.end() - 1)
        if found is not None:
            yield found.group()


def names_in(parts: Sequence[str], is_name: Callable[[tuple[str, ...]], bool], longest: int) -> list[tuple[str, ...]]:
    """Return the known names that a row of parts holds, the longest where several begin at one place."""
    found: dict[tuple[str, ...], None] = {}
    at = 0
    while at < len(parts):
        for size in range(min(longest, len(parts) - at), 0, -1):
            name = tuple(parts[at : at + size])
            if is_name(name):
                found[name] = None
                at += size
                break
        else:
            at += 1
    return list(found)
