"""Search equals its plain Python twin, whatever is stored, asked and configured.

Source: issue "Search in native memory", Done when. Twin: tests/support/search/twin.py.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.evidence import examples, record, seed, soaking
from support.providers import CountingEmbeddings
from support.search.checks import DIMENSIONS, assert_same, given_of, open_store, twin_answer, world
from support.search.worlds import FILTERS, INSTANTS, KINDS, KNOBS, QUERIES, STORES, Builder, merged

from caliber.model import AgentRole, Principal, PrincipalKind
from caliber.model.errors import InvalidValue

READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
ASKED = st.tuples(
    QUERIES,
    st.fixed_dictionaries({"limit": st.sampled_from([None, 1, 3, 50]), "kinds": KINDS, "filter": FILTERS}),
    st.one_of(st.none(), st.none(), INSTANTS),
    st.booleans(),
)
TALLY: Counter[str] = Counter()
"""What was compared in this run."""

COLUMNS = {
    "note": ("entity", "note_type", "importance", "namespace"),
    "artifact": ("artifact_type",),
    "turn": ("role", "name"),
    "scope": (),
}


CASES: dict[str, Any] = {
    "steps": STORES,
    "knobs": KNOBS,
    "asked": st.lists(ASKED, min_size=1, max_size=5),
    "metric": st.sampled_from(["cosine", "cosine", "l2", "inner_product"]),
    "long_text": st.sampled_from(["chunk_mean", "chunks"]),
}


def hold(steps: Any, knobs: Any, asked: Any, metric: str, long_text: str) -> None:
    """Build a store, ask it and the twin, and hold one to the other."""
    longest = {"embedding.long_text": long_text, "embedding.long_text_tokens": 8}
    memory, clock = open_store(knobs, CountingEmbeddings(DIMENSIONS), metric=metric, **longest)
    with memory:
        Builder(memory, clock).build(steps)
        memory.flush()
        held = world(memory)
        for query, options, as_of, as_reader in asked:
            handle = memory.acting_as(READER) if as_reader else memory
            compare(handle, held, query, {**options, "as_of": as_of})


@settings(max_examples=examples(40, 2_000), suppress_health_check=list(HealthCheck))
@given(**CASES)
def test_search_equals_its_twin(**case: Any) -> None:
    # issue, Done when: results equal a plain Python twin of the whole pipeline on random stores
    hold(**case)
    TALLY["stores"] += 1


def test_an_older_statement_is_below_a_newer_one_that_is_hardly_better() -> None:
    # Whether it is lowered must not depend on what else was found.
    steps = [("scope", "the boat host is in Oslo"), ("advance", 226), ("scope", "the boat host is in Rome now")]
    words = {"k1": 0.0, "b": 0.0, "neighbour_boost": 0.0, "language": "none"}
    knobs = {
        "normalisation": "peak",
        "weights": {"vector": 0.0, "keyword": 0.0, "graph": 1.0, "importance": 0.0},
        "boosts": {"recency": 0.5, "recency_half_life_ms": 2_592_000_000},
        "keyword": words,
        "floor": {"words": 0.0},
    }
    asked = [("who moved the backups last week?", {"limit": None, "kinds": None, "filter": None}, None, False)]
    hold(steps, knobs, asked, "cosine", "chunk_mean")


def compare(handle: Any, held: Any, query: str, options: dict[str, Any]) -> None:
    """Ask store and twin the same, and hold one answer to the other."""
    if not_filterable(options):
        with pytest.raises(InvalidValue, match="cannot be filtered by"):
            handle.search(query, **options)
        return
    expected = twin_answer(handle, held, query, given_of(handle, query), options)
    result = handle.search(query, **options)
    assert_same(result, expected, query)
    assert all(0 <= hit.score <= 1 for hit in result.hits), "docs/search.md: a score lies between 0 and 1"
    TALLY["questions"] += 1
    TALLY["hits"] += len(result.hits)
    TALLY.update(leg for hit in result.hits for leg in hit.breakdown)


def not_filterable(options: dict[str, Any]) -> bool:
    """Return whether a filter names a column that no searched kind has."""
    kinds = options["kinds"] or tuple(COLUMNS)
    return any(not any(name in COLUMNS[kind] for kind in kinds) for name in options["filter"] or ())


@pytest.mark.prove
@settings(max_examples=examples(12, 300), suppress_health_check=list(HealthCheck))
@given(steps=STORES, knobs=KNOBS, query=QUERIES, limits=st.lists(st.integers(1, 40), min_size=2, max_size=3))
def test_larger_limit_only_adds_to_a_smaller(steps: Any, knobs: Any, query: str, limits: list[int]) -> None:
    memory, clock = open_store(knobs, CountingEmbeddings(DIMENSIONS))
    with memory:
        Builder(memory, clock).build(steps)
        memory.flush()
        results = [
            [(hit.id, hit.score, hit.breakdown) for hit in memory.search(query, limit=limit).hits]
            for limit in sorted(limits)
        ]
    for smaller, larger in itertools.pairwise(results):
        assert larger[: len(smaller)] == smaller


@pytest.mark.prove
@settings(max_examples=examples(3, 150), suppress_health_check=list(HealthCheck))
@given(steps=STORES, knobs=KNOBS, asked=st.lists(ASKED, min_size=2, max_size=5))
def test_search_with_similar_words_equals_its_twin(steps: Any, knobs: Any, asked: Any) -> None:
    """The word vectors are given, and the stores are English: what is like what, and how far, the twin works out."""
    pytest.importorskip("tokenizers", reason="the extra embed is not installed")
    words = {"language": "english", "similar_words": "wordllama-l2-supercat"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caliber.search.searcher.SIMILAR_MIN", 0.1)
        memory, clock = open_store(merged(knobs, {"keyword": words}), CountingEmbeddings(DIMENSIONS))
        with memory:
            Builder(memory, clock).build(steps)
            memory.flush()
            held = world(memory)
            for query, options, as_of, as_reader in asked:
                handle = memory.acting_as(READER) if as_reader else memory
                compare(handle, held, query, {**options, "as_of": as_of})


def test_what_was_compared_is_recorded() -> None:
    """Last of this file: a run in which nothing was found has compared nothing."""
    if not TALLY["questions"]:
        pytest.skip("run by itself")
    assert TALLY["hits"] > 0
    parts = (
        "keyword",
        "neighbour_boost",
        "vector",
        "graph",
        "importance",
        "mentioned",
        "date",
        "time",
        "exact",
        "question",
        "recency",
    )
    assert not soaking() or all(TALLY[part] for part in parts), TALLY
    record(
        "search-equals-its-twin",
        "Search held to its plain Python twin, bit for bit",
        {
            "random stores and settings": TALLY["stores"],
            "questions": TALLY["questions"],
            "hits": TALLY["hits"],
            "scores with each part": ", ".join(f"{part} {TALLY[part]}" for part in parts),
            "differences": 0,
            "seed": seed(),
        },
    )
