"""The floor only leaves out: what it keeps stands in the same order with the same scores.

Source: issue "Windows that hold the answer", Build 3; docs/search.md, The floor.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.evidence import examples
from support.inspection import inspect
from support.providers import CountingEmbeddings
from support.search.checks import DIMENSIONS, open_store
from support.search.worlds import KINDS, KNOBS, QUERIES, SPACES, STORES, Builder, merged

from caliber.config.search import FloorConfig
from caliber.search.opening import SearchEngine
from caliber.search.searcher import Searcher

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
