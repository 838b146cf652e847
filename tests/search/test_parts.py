"""The parts of search by themselves: words, queries, days, snippets, who stands beside whom.

The floor only leaves out: what it keeps stands in the same order with the same scores.

Twins: tests/support/search/twin_text.py. Source: issue "Search in native memory", query side; issue "Windows that
hold the answer", Build 3; docs/search.md, The floor.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.cases import each
from support.evidence import examples
from support.inspection import inspect
from support.providers import CountingEmbeddings
from support.search.checks import DIMENSIONS, language_of, open_store
from support.search.twin_text import understand, words_of
from support.search.worlds import KINDS, KNOBS, QUERIES, SPACES, STORES, TEXTS, Builder, merged

from caliber.config.search import FloorConfig
from caliber.kernels import words_of as scanned
from caliber.model.windows import SNIPPET_CHARS, snippet
from caliber.resident.chain import NOBODY, Chain
from caliber.search.opening import SearchEngine
from caliber.search.query import Now, QueryReader, names_in
from caliber.search.searcher import Searcher
from caliber.text.words import NAMES_A_TIME, Analyzer, languages, lexicon_of

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
_SIGNS = st.text(st.sampled_from("aB1_'’.-/+#:@&,*\"“”„« \u0301éßﬁ東京й9Zz"), max_size=24)
SOME_TEXT = TEXTS | _SIGNS | ANY_TEXT | QUERIES
LANGUAGES = st.sampled_from(["english", "german", "french", "porter", "none"])
ANY_DAY = Now(datetime.date(2023, 5, 8), datetime.date(2023, 5, 8), datetime.UTC)
DAYS = st.dates(datetime.date(1905, 1, 1), datetime.date(2095, 12, 31))


# --- words ----------------------------------------------------------------------------------------


@given(text=st.binary(max_size=80) | SOME_TEXT.map(str.encode))
@example(b"\xed\xa0\x80a\xff b\xc3")
@example(b"C++ C# F## a+b ++c 3,000,1 a::b a:::b x@y.z")
def test_words_are_those_of_the_twin(text: bytes) -> None:
    assert [word.decode() for word in scanned(text)] == words_of(text)


@given(text=SOME_TEXT, language=LANGUAGES)
@example("HTTPServer2 l'homme d’être dogs' 'tis __init__ İstanbul aB1é ǅ", "english")
def test_a_word_stands_for_what_the_twin_says(text: str, language: str) -> None:
    analyzer, twin = Analyzer(language), language_of(language)
    for word in words_of(text.encode()):
        analysis, meaning = analyzer(word), twin.meaning(word)
        assert (analysis.parts, analysis.terms) == (meaning.parts, meaning.terms), word
        assert bool(analysis.flags & NAMES_A_TIME) == meaning.dated, word
        assert analysis.terms, "nothing is found by nothing"


@given(parts=st.lists(st.from_regex(r"[a-z]{2,8}", fullmatch=True), min_size=2, max_size=4))
def test_an_identifier_is_found_by_its_parts_however_it_is_spelt(parts: list[str]) -> None:
    analyzer = Analyzer("english")
    stems = {analyzer.stem(part) for part in parts}
    camel = "".join(part.capitalize() for part in parts)
    for spellings in (
        "_".join(parts),
        "-".join(parts),
        ".".join(parts),
        "/".join(parts),
        camel,
        camel[0].lower() + camel[1:],
    ):
        analysis = analyzer(spellings)
        assert stems <= set(analysis.terms), spellings
        assert analysis.parts == tuple(parts), spellings
    assert analyzer(camel).terms[-1] == analyzer("".join(parts)).terms[-1], "the whole is found, too"


@each("language", languages())
def test_every_language_stems_what_is_empty_long_or_strange(language: str) -> None:
    analyzer = Analyzer(language)
    for word in ("", "a", "x" * 70, "\u0130", "\u0345", "日本", "é" * 40, "\U0001d518"):
        assert analyzer(word).terms


# --- queries --------------------------------------------------------------------------------------


@given(text=SOME_TEXT, language=LANGUAGES, today=DAYS, most=st.sampled_from([1, 3, 1_024]))
@example(
    '“a b” "c" „d“ «e f» "" Omar\'s back* *x a.b* x**y* when did it happen on 8 May',
    "english",
    datetime.date(2023, 11, 14),
    9,
)
@example("Who saw The Who, I and Will in IT? It was, NO. So And", "english", datetime.date(2023, 11, 14), 99)
@example("WHAT IS IT OR THE WHO", "english", datetime.date(2023, 11, 14), 99)
def test_a_query_is_read_as_the_twin_reads_it(text: str, language: str, today: datetime.date, most: int) -> None:

    reader = QueryReader(Analyzer(language), lexicon_of(language), max_words=most)
    query = reader.read(text, lambda: Now(today, today, datetime.UTC))
    twin = understand(text, language_of(language), lambda: (today, datetime.UTC, today), max_words=most)
    assert list(query.terms) == twin.terms
    assert list(query.stop_words) == twin.stop_words
    assert query.surfaces == twin.around
    assert list(query.phrases) == twin.phrases
    assert list(query.prefixes) == twin.prefixes
    assert list(query.parts) == twin.parts
    assert (query.when and (query.when.first, query.when.last)) == twin.days
    assert query.of_days_only == twin.of_days
    assert (query.asks_time, query.cut) == (twin.asks_time, twin.cut)


@each("text", ["harbour of place 7", "the PIN is 4711", "what did Omar say?"])
def test_a_query_that_can_mean_no_day_is_read_once(text: str) -> None:
    def now() -> Now:
        raise AssertionError("the day does not matter")

    reader = QueryReader(Analyzer("english"), lexicon_of("english"), max_words=99)
    assert reader.read(text, now) is reader.read(text, now)


def test_a_query_that_may_mean_a_day_is_read_again() -> None:
    reader = QueryReader(Analyzer("english"), lexicon_of("english"), max_words=99)
    first, then = (ANY_DAY._replace(today=datetime.date(2023, 5, day)) for day in (8, 9))
    found = [reader.read("what did we say yesterday?", lambda day=day: day) for day in (first, then)]
    assert [query.when.first.day for query in found] == [7, 8]


@pytest.mark.parametrize("signs", ["„", "«", "“a", '"', "a.", "a-", "*", "a.*", '"a" ', "a1* "])
def test_a_query_of_signs_is_read_in_linear_time(signs: str) -> None:
    # issue, Bad input: a megabyte of opening quotes once took hours, as each looked for its end in all that followed
    reader = QueryReader(Analyzer("english"), lexicon_of("english"), max_words=10_000)
    begun = time.process_time()
    query = reader.read(signs * (500_000 // len(signs)) + " a.b*", lambda: ANY_DAY)
    assert time.process_time() - begun < 5
    assert max(len(query.phrases), len(query.prefixes)) <= 2 * 10_000
    assert query.cut or query.prefixes == ("a.b",)


def test_quotes_and_beginnings_beyond_the_most_words_are_cut_and_said_so() -> None:
    reader = QueryReader(Analyzer("english"), lexicon_of("english"), max_words=8)
    text = " ".join(f'"{letter}"' for letter in "bcdefgh") + ' "!" "?"'
    quoted = reader.read(text, lambda: ANY_DAY)
    assert (len(quoted.phrases), quoted.cut) == (7, True)
    starred = reader.read("x" + " ".join(f"{letter}-*" for letter in "bcdefghjk"), lambda: ANY_DAY)
    assert (len(starred.prefixes), starred.cut) == (8, True)


@given(
    parts=st.lists(st.sampled_from("abcd"), max_size=12),
    known=st.sets(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3).map(tuple), max_size=6),
)
def test_names_are_the_longest_from_the_left_and_do_not_overlap(parts: list[str], known: set[tuple[str, ...]]) -> None:
    expected, at = [], 0
    while at < len(parts):
        fits = [name for name in known if tuple(parts[at : at + len(name)]) == name]
        if fits:
            expected.append(max(fits, key=len))
        at += len(expected[-1]) if fits else 1
    assert names_in(parts, known.__contains__, 6) == list(dict.fromkeys(expected))


# --- snippets -------------------------------------------------------------------------------------


@given(
    text=st.text(max_size=40) | st.lists(TEXTS, max_size=12).map(" ".join),
    words=st.lists(st.sampled_from(["lake", "boat", "zz"])),
)
def test_a_snippet_is_a_piece_of_its_text(text: str, words: list[str]) -> None:
    piece = snippet(text, words)
    bare = piece.removeprefix("… ").removesuffix(" …")
    assert bare in " ".join(text.split())
    assert len(piece) <= SNIPPET_CHARS + 4
    if len(text) <= SNIPPET_CHARS:
        assert piece == " ".join(text.split())


@given(before=st.integers(0, 2_000), after=st.integers(0, 2_000), word=st.sampled_from(["quokka", "Quokka", "QUOKKA"]))
def test_a_snippet_shows_the_word_it_is_cut_around(before: int, after: int, word: str) -> None:
    text = "of the lake " * (before // 12) + word + " in a boat" * (after // 10)
    assert word in snippet(text, ["quokka"])


# --- who stands beside whom -----------------------------------------------------------------------

_ADDED = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=6, unique=True)


@given(commits=st.lists(_ADDED, min_size=1, max_size=8))
def test_rows_stand_in_the_order_of_their_places_whatever_came_when(commits: list[list[tuple[int, int]]]) -> None:
    """A place that comes again is a newer version of its row. Readers of an older state go on seeing it."""
    chain = Chain()
    newest: dict[tuple[int, int], int] = {}
    for commit in commits:
        older = (chain.before.array, chain.after.array, dict(newest), chain.length)
        replaced = [newest.get(key, NOBODY) for key in commit]
        codes, places = (np.array(column, np.int64) for column in zip(*commit, strict=True))
        newest.update({key: chain.length + at for at, key in enumerate(commit)})
        chain.extend(codes, places, np.array(replaced, np.int64))
        check_order(chain.before.array, chain.after.array, newest)
        check_older(older)


def check_order(before: np.ndarray, after: np.ndarray, newest: dict[tuple[int, int], int]) -> None:
    for stretch in {code for code, _ in newest}:
        rows = [row for (code, place), row in sorted(newest.items()) if code == stretch]
        assert [int(before[row]) for row in rows] == [NOBODY, *rows[:-1]]
        assert [int(after[row]) for row in rows] == [*rows[1:], NOBODY]


def check_older(older: tuple[np.ndarray, np.ndarray, dict[tuple[int, int], int], int]) -> None:
    """An earlier reader's rows keep their links; only the ends may lead on, to rows it does not know."""
    before, after, newest, length = older
    for stretch in {code for code, _ in newest}:
        rows = [row for (code, _), row in sorted(newest.items()) if code == stretch]
        for row, earlier, later in zip(rows, [NOBODY, *rows[:-1]], [*rows[1:], NOBODY], strict=True):
            assert int(before[row]) in (earlier,)
            assert int(after[row]) == later or (later == NOBODY and int(after[row]) >= length)


OFF = {"words": 0.0}
SHARES = st.sampled_from([0.01, 0.1, 0.35, 0.6, 1.0])
LEAST = 1e-6
LIMIT = 200
"""More than any of these stores holds: nothing is cut off."""


def answers(steps: Any, knobs: Any, floors: list[dict[str, Any]], query: str, kinds: Any) -> list[Any]:
    """Return the answers of one store under each floor."""
    knobs = merged(knobs, {"diversity": 0.0})
    memory, clock = open_store(knobs, CountingEmbeddings(DIMENSIONS))
    with memory:
        Builder(memory, clock).build(steps)
        memory.flush()
        engine, search = inspect(memory).engine, memory.config.search
        out = []
        for changes in floors:
            floor = FloorConfig.model_validate({**search.floor.model_dump(), **changes})
            engine.part(SearchEngine).searcher = Searcher(
                engine.memory, search.model_copy(update={"floor": floor}), engine.part(SearchEngine).searcher.kinds
            )
            out.append(memory.search(query, kinds=kinds, limit=LIMIT))
        return out


def hits(result: Any) -> list[tuple[Any, ...]]:
    return [(hit.id, hit.score, hit.breakdown, hit.found_by) for hit in result.hits]


def is_part(some: list[Any], whole: list[Any]) -> bool:
    """Return whether items stand in a list, in this order."""
    left = iter(whole)
    return all(any(item == other for other in left) for item in some)


@settings(max_examples=examples(25, 1_000), suppress_health_check=list(HealthCheck))
@given(steps=STORES, knobs=KNOBS, query=QUERIES, kinds=KINDS)
def test_the_floor_only_leaves_out(steps: Any, knobs: Any, query: str, kinds: Any) -> None:
    floored, every = answers(steps, knobs, [{}, OFF], query, kinds)
    # What fills up the end may have been found by its words without the floor, with another score.
    assert is_part([hit for hit in hits(floored) if hit[1] > LEAST], hits(every))
    assert len(floored.hits) <= len(every.hits)
    if not query.strip():
        assert hits(floored) == hits(every), "an empty query lists"
    assert every.below_floor is None
    assert floored.below_floor is None or not floored.hits


@settings(max_examples=examples(15, 500), suppress_health_check=list(HealthCheck))
@given(
    steps=STORES,
    knobs=KNOBS,
    query=QUERIES,
    name=st.sampled_from(["words", "similarity"]),
    bounds=st.tuples(SHARES, SHARES).map(sorted),
)
def test_a_higher_floor_never_finds_more(steps: Any, knobs: Any, query: str, name: str, bounds: list[float]) -> None:
    low, high = bounds
    values: list[Any] = [low, high]
    if name == "similarity":
        values = [dict.fromkeys(SPACES, bound) for bound in bounds]
    fewer = [{name: value} for value in values]
    lower, higher = answers(steps, knobs, fewer, query, None)
    assert {hit.id for hit in higher.hits} <= {hit.id for hit in lower.hits}, name
    assert is_part([hit for hit in hits(higher) if hit[1] > LEAST], hits(lower)), name


@settings(max_examples=examples(25, 500), suppress_health_check=list(HealthCheck))
@given(steps=STORES, knobs=KNOBS, query=st.sampled_from(["the", "please tell me", "hello", "and so?", "thanks", "who"]))
def test_words_that_ask_for_nothing_find_nothing(steps: Any, knobs: Any, query: str) -> None:
    floor = {"words": 0.1}
    knobs = merged(knobs, {"keyword": {"language": "english"}})
    (result,) = answers(steps, knobs, [floor], query, None)
    assert result.hits == ()
    assert result.status == "empty"
