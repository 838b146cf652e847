"""Holding an answer of ``Caliber.search`` to the one of its twin."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import Stemmer
from support.configs import HASH_PROVIDER, config
from support.inspection import inspect
from support.search.twin import KINDS, Answer, Asked, Given, Twin, World, world_of
from support.search.twin_text import Language
from support.search.worlds import NOW_US, merged

import caliber
from caliber.embedding.service import Embeddings
from caliber.model import FixedClock, Principal
from caliber.model.knowledge import NOBODY
from caliber.model.time import to_us
from caliber.search.service import DEFAULT_LIMIT
from caliber.text.words import lexicon_of

DIMENSIONS = 12
"""Of vectors in random stores."""


def may_see(visible_to: Any, principal: Principal) -> bool:
    """Return whether a list of readers lets a principal see a record, told apart from how CALIBER does it."""
    if visible_to is None or principal.is_admin:
        return True
    return f"{principal.kind}:{principal.id}" in visible_to or (
        principal.role is not None and principal.role in visible_to
    )


def open_store(knobs: dict[str, Any], provider: Any, **overrides: Any) -> tuple[Any, FixedClock]:
    """Open an empty store in memory with knobs of search, and a clock that stands still; similar words are off."""
    base = config(":memory:").search.model_dump()
    base["keyword"]["similar_words"] = "none"
    chosen = merged(base, knobs)
    clock = FixedClock(NOW_US)
    values = {"search": chosen, "vector.distance_metric": overrides.pop("metric", "cosine"), **overrides}
    values["vector.dimensions"] = DIMENSIONS
    values["embedding_provider"] = {**HASH_PROVIDER, "dimensions": DIMENSIONS}
    memory = caliber.open(config(":memory:", **values), clock=clock, embedding_provider=provider)
    return memory, clock


@functools.cache
def language_of(name: str) -> Language:
    """Return the twin's inputs for a language: its stemmer, and the lists that are data."""
    words = lexicon_of(name)
    stem = (lambda word: word) if name == "none" else Stemmer.Stemmer(name, 0).stemWord
    return Language(stem, words.stop_words, words.fillers, words.time_words, words.names_days)


@functools.cache
def word_vectors() -> Callable[[str], Sequence[float]]:
    """Return a function from an English word to its vector; the model is given, as the stemmer is."""
    from caliber.llm.local.word_vectors import WordVectors
    from caliber.text.words import Analyzer

    vectors = WordVectors("english", Analyzer("english").stems)
    return functools.cache(lambda word: tuple(vectors.vectors([word])[0].tolist()))


def given_of(memory: Any, query: str, *, degraded: str | None = None) -> Given:
    """Return the twin's inputs for a question to a store."""
    search, embedder = memory.config.search, inspect(memory).part(Embeddings).embedder
    vector = None
    if embedder is None:
        degraded = "no_embedding_provider"
    elif degraded is None and query.strip() and search.weights.vector:
        vector = [float(value) for value in embedder.query(query)]
    return Given(
        language_of(search.keyword.language),
        None if search.keyword.similar_words == "none" else word_vectors(),
        vector,
        "cosine" if embedder is None else embedder.space.metric.value,
        degraded,
        "" if embedder is None else embedder.space.name,
    )


def world(memory: Any) -> World:
    """Return the present contents of a store."""
    embedder = inspect(memory).part(Embeddings).embedder
    space_id = None if embedder is None else embedder.space.space_id
    return world_of(memory.storage, space_id, language_of(memory.config.search.keyword.language))


def twin_answer(memory: Any, held: World, query: str, given: Given, options: Mapping[str, Any]) -> Answer:
    """Return the twin's answer, asked as ``Caliber.search`` is."""
    now = inspect(memory).engine.clock.now_us()
    as_of, limit = options.get("as_of"), options.get("limit")
    asked = Asked(
        query,
        memory.config.search,
        options.get("kinds") or KINDS,
        DEFAULT_LIMIT if limit is None else limit,
        options.get("filter") or {},
        now if as_of is None else to_us(as_of),
        now,
        lambda visible_to: may_see(visible_to, memory.principal),
        NOBODY if memory.principal.is_admin else held.readers.get(memory.principal.id),
    )
    return Twin(held, given, asked).answer()


def assert_same(result: Any, expected: Answer, query: str) -> None:
    """Raise AssertionError where a result is not the twin's answer: ids, order, scores, reasons, bit for bit."""
    assert [hit.id for hit in result.hits] == [hit.record.id for hit in expected.hits], (
        query,
        [(hit.kind, hit.content, hit.score, hit.breakdown) for hit in result.hits],
        [(hit.record.kind, hit.record.text, hit.score, hit.breakdown) for hit in expected.hits],
    )
    for hit, wanted in zip(result.hits, expected.hits, strict=True):
        assert hit.kind == wanted.record.kind
        assert hit.breakdown == wanted.breakdown, (query, hit.content)
        assert hit.score == wanted.score, (query, hit.content)
        assert hit.found_by == wanted.found_by, (query, hit.content)
        assert hit.content.encode("utf-8", "replace") == wanted.record.text or b"\xff" in wanted.record.text
        total = sum(hit.breakdown.values())
        assert math.isclose(max(total, min(1e-6, hit.score)), hit.score, rel_tol=1e-6, abs_tol=1e-12)
    assert (str(result.status), result.reason) == (expected.status, expected.reason), query
    below = result.below_floor
    assert (None if below is None else astuple(below)) == expected.below, query
    understood, question = result.analysis, expected.question
    if question is None:
        assert understood.words == ()
        return
    assert list(understood.words) == question.terms, query
    assert list(understood.stop_words) == question.stop_words, query
    assert list(understood.phrases) == [" ".join(phrase) for phrase in question.phrases], query
    assert list(understood.prefixes) == question.prefixes, query
    assert understood.names == expected.names, query
    assert understood.days == question.days, query
    assert (understood.asks_time, understood.cut) == (question.asks_time, question.cut), query
    assert understood.weights == expected.weights, query
    assert all(hit.around == question.around for hit in result.hits), query
