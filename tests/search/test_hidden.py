"""Hidden records leave no trace in a search: not in hits, order, scores or the analysis of the query.

Source: issue "Search in native memory", keyword leg; design section 7.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import config

import caliber
from caliber.model import AgentRole, Edge, EdgeRelation, EntityRef, EntityType, FixedClock, Principal, PrincipalKind
from caliber.model.time import from_us
from caliber.search.ranking import legs

READER = Principal(PrincipalKind.AGENT, "reader", AgentRole.EXECUTOR)
NOBODY = ["agent:nobody"]
WORDS = ["happy", "happiness", "happening", "boat", "boats", "boating", "ines", "weber", "lake", "lakes", "abandoning"]
STEMS = ("happi*", "happine*", "boati*", "boat*", "abando*", "la*")
ENTITIES = ["Ines", "Ines Weber", "the lake", "Weber"]
QUERIES = (
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
    for query in QUERIES:
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
