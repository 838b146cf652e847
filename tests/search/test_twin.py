"""Search equals its plain Python twin, whatever is stored, asked and configured; hidden records leave no trace in it.

Hidden records are not in hits, order, scores or the analysis of the query.

Source: issue "Search in native memory", Done when, keyword leg; design section 7. Twin: tests/support/search/twin.py.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import config
from support.evidence import examples, record, seed, share, soaking
from support.providers import CountingEmbeddings
from support.search.checks import DIMENSIONS, assert_same, given_of, open_store, twin_answer, world
from support.search.worlds import FILTERS, INSTANTS, KINDS, KNOBS, QUERIES, SPACES, STORES, Builder, merged

import caliber
from caliber.model import AgentRole, Edge, EdgeRelation, EntityRef, EntityType, FixedClock, Principal, PrincipalKind
from caliber.model.errors import InvalidValue
from caliber.model.time import from_us
from caliber.search.ranking import legs

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


# --- every knob -----------------------------------------------------------------------------------


def note(content: str, **values: Any) -> tuple[Any, ...]:
    plain = dict.fromkeys(("importance", "occurred_at", "valid_from", "visible_to", "namespace"))
    return "note", {**plain, "content": content, "entity": "the lake", "note_type": "fact", **values}, None


def turn(content: str, name: str | None = None) -> tuple[Any, ...]:
    return "turn", {"content": content, "name": name, "role": "user", "occurred_at": None}


NOVEMBER, JUNE, MAY = (datetime(2023, month, day, 12, tzinfo=UTC) for month, day in ((11, 6), (6, 20), (5, 8)))
STEPS: list[tuple[Any, ...]] = [
    note("zeppelin zeppelin zeppelin", entity="Ines", importance=1, occurred_at=JUNE),
    note("the zeppelin, and a great many other words that nobody has asked about", importance=10, occurred_at=MAY),
    note("zeppelin on Friday", entity="Omar", occurred_at=NOVEMBER),
    note("the zeppelins were cold?", occurred_at=NOVEMBER),
    note("lake and boat", occurred_at=MAY),
    note("boat lake lake"),
    turn("was it a zeppelin?", "Ines"),
    turn("it came down on the field"),
    turn("many people saw it"),
    turn("and then it was gone"),
    note("a mast"),
    ("edge", 0, 10, 1.0),
]
QUESTIONS = (
    ("zeppelin", 50),
    ("zeppelin", 1),
    ("the zeppelin of Ines in May 2023", 50),
    ("my zeppelin in May 2023", 50),
    ("when did the zeppelin land at the glacier?", 50),
    ('"lake and boat" lake', 50),
)
LEGS = ("vector", "keyword", "graph", "importance")
TURNED: dict[str, tuple[Any, Any]] = {
    "vector_candidates": (1, 50), "min_similarity": (-1.0, 0.5), "normalisation": ("peak", "saturation"),
    "fusion": ("weighted", "rrf"), "diversity": (0.0, 0.9), "floor.words": (0.1, 1.0),
    "floor.similarity": ({}, {SPACES[0]: 0.6}), "weights.vector weights.importance": (0.1, 0.9),
    "weights.keyword weights.vector": (0.1, 0.9), "weights.graph weights.keyword": (0.1, 0.9),
    "weights.importance weights.keyword": (0.1, 0.9), "keyword.k1": (0.0, 1.2), "keyword.b": (0.0, 1.0),
    "keyword.saturate": (0.0, 1.0), "keyword.neighbour_boost": (0.0, 0.4), "keyword.language": ("none", "english"),
    "boosts.mentioned": (0.0, 0.5), "boosts.date": (0.0, 0.5), "boosts.date_slack_ms": (86_400_000, 100 * 86_400_000),
    "boosts.time": (0.0, 0.5), "boosts.exact": (0.0, 0.5), "boosts.question": (0.0, -0.5), "boosts.recency": (0.0, 0.5),
    "boosts.recency_half_life_ms": (3_600_000, 30 * 86_400_000), "graph.conversation": (False, True),
}  # fmt: skip
"""Two values of each knob; the first of two weights has them, and the second the rest."""


def with_knob(knob: str, value: Any) -> dict[str, Any]:
    """Return knobs of search of which one has a value."""
    first, _, second = knob.partition(" ")
    knobs: dict[str, Any] = {"boosts": {"date": 0.2, "recency": 0.2}, "floor": {"words": 0.1}}
    if second:
        knobs["weights"] = dict.fromkeys(LEGS, 0.0)
    for path, one in {first: value, second: 1 - value}.items() if second else [(first, value)]:
        section, _, name = path.rpartition(".")
        knobs = merged(knobs, {section: {name: one}} if section else {name: one})
    return knobs


@pytest.mark.parametrize("knob", share(TURNED, 1, daily=6))
def test_each_knob_changes_an_answer_and_the_twin_follows(knob: str) -> None:
    answers = []
    for value in TURNED[knob]:
        memory, clock = open_store(with_knob(knob, value), CountingEmbeddings(DIMENSIONS))
        with memory:
            Builder(memory, clock).build(STEPS)
            memory.flush()
            held = world(memory)
            for query, limit in QUESTIONS:
                compare(memory, held, query, {"limit": limit, "kinds": None, "filter": None, "as_of": None})
            found = [memory.search(query, limit=limit).hits for query, limit in QUESTIONS]
            answers.append([[(hit.content, hit.score, hit.breakdown) for hit in hits] for hits in found])
    assert answers[0] != answers[1]


def test_what_was_compared_is_recorded() -> None:
    """Last of this file: a run in which nothing was found has compared nothing."""
    if not TALLY["questions"]:
        pytest.skip("run by itself")
    assert TALLY["hits"] > 0
    parts = (
        "keyword", "neighbour_boost", "vector", "graph", "importance", "mentioned", "date", "time", "exact", "question",
        "recency",
    )  # fmt: skip
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


NOBODY = ["agent:nobody"]
WORDS = ["happy", "happiness", "happening", "boat", "boats", "boating", "ines", "weber", "lake", "lakes", "abandoning"]
STEMS = ("happi*", "happine*", "boati*", "boat*", "abando*", "la*")
ENTITIES = ["Ines", "Ines Weber", "the lake", "Weber"]
HIDDEN_QUERIES = (
    *STEMS, "did Ines Weber go boating?", "happy lake", '"lake boat"', "Weber", "in November 2023", "", "lake_boat",
    "unknown happiness",
)  # fmt: skip

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
notes = st.tuples(texts, st.sampled_from(ENTITIES), st.booleans())


def fill(memory: Any, told: list[tuple[str, str, bool]], *, hidden: bool) -> dict[int, Any]:
    """Add the notes in their order, the hidden ones only where asked for."""
    kept = {}
    for at, (text, entity, secret) in enumerate(told):
        if hidden or not secret:
            kept[at] = memory.add_note(
                entity=entity,
                entity_type="topic",
                note_type="fact",
                content=f"{text} n{at}",
                confidence=0.9,
                visible_to=NOBODY if secret else None,
            )
    return kept


def link(memory: Any, one: Any, other: Any) -> None:
    ends = [EntityRef(EntityType.NOTE, note.note_id) for note in (one, other)]
    memory.storage.edges.insert(Edge(uuid.uuid4(), *ends, EdgeRelation.SUPPORTS, 1.0, 1.0, from_us(1)))


def told_to_reader(memory: Any, query: str) -> Any:
    """Return all that a search tells, ids apart: those differ between two stores."""
    result = memory.acting_as(READER).search(query, limit=50)
    hits = [(hit.content, hit.score, hit.breakdown, hit.found_by, hit.snippet) for hit in result.hits]
    return hits, result.status, result.reason, result.analysis


def opened(folder: Path, **overrides: Any) -> Any:
    return caliber.open(config(":memory:", **overrides), clock=FixedClock())


@pytest.fixture
def stores(tmp_path: Path) -> Any:
    """Make pairs of stores: one with what is hidden, one without."""
    handles: list[Any] = []

    def make(told: list[tuple[str, str, bool]], **overrides: Any) -> tuple[Any, Any, Any, Any]:
        both, one = (opened(tmp_path, **overrides) for _ in range(2))
        handles.extend((both, one))
        kept, seen = fill(both, told, hidden=True), fill(one, told, hidden=False)
        both.flush()
        one.flush()
        return both, one, kept, seen

    yield make
    for handle in handles:
        handle.close()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=st.lists(notes, min_size=1, max_size=8), linked=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_hidden_notes_leave_no_trace(stores: Any, told: list[Any], linked: list[tuple[int, int]]) -> None:
    both, one, kept, seen = stores(told)
    for left, right in sorted(set(linked)):
        if left == right or max(left, right) >= len(told):
            continue
        link(both, kept[left], kept[right])
        if left in seen and right in seen:
            link(one, seen[left], seen[right])
    for query in HIDDEN_QUERIES:
        assert told_to_reader(both, query) == told_to_reader(one, query), query


def alike(stores: Any, told: list[tuple[str, str, bool]], query: str, **overrides: Any) -> Any:
    both, one, _, _ = stores(told, **overrides)
    mine = told_to_reader(both, query)
    assert mine == told_to_reader(one, query)
    return mine


def test_hidden_name_hides_no_shorter_one(stores: Any) -> None:
    told = [("of lakes", "Ines Weber", True), ("of lakes", "Ines", False), ("lakes", "Omar", False)]
    _, _, _, understood = alike(stores, told, "what lakes did Ines Weber see")
    assert understood.names == ("ines",)


def test_hidden_word_begins_nothing_for_others(stores: Any) -> None:
    """Words are found by their stems; a hidden form of a word must not open its stem to a beginning."""
    told = [("so much happiness", "a", True), ("we are happy", "b", False), ("a dull day", "c", False)]
    # Without similar words: they would find the happy one by another way.
    keyword = replace_knob(config(":memory:").search.keyword, similar_words="none")
    hits, *_ = alike(stores, told, "happine*", search__keyword=keyword)
    assert hits == []
    seen = [(text, entity, False) for text, entity, _ in told]
    both, _, _, _ = stores(seen, search__keyword=keyword)
    found, *_ = told_to_reader(both, "happine*")
    assert {hit[0] for hit in found} == {"so much happiness n0", "we are happy n1"}, "seen, it opens its stem"


def test_hidden_words_push_no_beginning_out(stores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legs, "SIMILAR_MAX", 1)
    told = [("abz", "a", True), ("aba is here", "b", False), ("abz is here", "c", False)]
    alike(stores, told, "ab*")


def test_hidden_links_weigh_nothing(stores: Any) -> None:
    told = [("lake", "a", True), ("lake", "b", True), ("a lake", "c", False), ("a boat", "d", False)]
    both, one, kept, _ = stores(told)
    link(both, kept[0], kept[1])
    link(both, kept[0], kept[2])
    assert told_to_reader(both, "lake") == told_to_reader(one, "lake")


def replace_knob(section: Any, **changes: Any) -> dict[str, Any]:
    return {**section.model_dump(), **changes}
