"""Relevance of what a window may hold: what a search of its kind alone gives it.

Source: issue "Search in native memory", item 8; docs/search.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.inspection import inspect
from support.search.visible_masks import masks

from caliber.access.owners import TaskOwners
from caliber.access.visibility import Readers
from caliber.embedding.service import Embeddings
from caliber.search.opening import SearchEngine
from caliber.search.request import Pool, Request

pytestmark = pytest.mark.databases("one")

QUERY = "which driver opens the parser's file?"


def test_relevance_is_the_score_of_a_search(agent: Any) -> None:
    memory = agent.memory
    for at in range(12):
        agent.note(f"note {at}: the driver of file {at}" if at % 3 else f"note {at}: lunch", importance=1 + at % 9)
        agent.keep(f"artifact {at}: parser {at}" if at % 2 else f"artifact {at}: opening hours")
    memory.flush()
    engine = inspect(memory).engine
    snapshot, now = engine.memory.snapshot, engine.clock.now_us()
    seen = Readers(engine.part(TaskOwners), memory.principal)
    vector = engine.part(Embeddings).embedder.query(QUERY)
    request = Request(
        snapshot,
        QUERY,
        vector,
        None,
        engine.part(Embeddings).embedder.space.space_id,
        ("note", "artifact"),
        5,
        seen,
        now,
        now,
    )
    pools = []
    for kind in request.kinds:
        found = masks(snapshot[kind], None, seen, now, now)
        assert found is not None
        rows = np.flatnonzero(found[1])[::-1] if kind == "artifact" else None
        pools.append(Pool(kind, None if rows is None else found[1], 5, rows))
    relevances, degraded = engine.part(SearchEngine).searcher.relevance(request, pools)
    assert degraded is None
    for pool, relevance in zip(pools, relevances, strict=True):
        hits = memory.search(QUERY, kinds=[pool.kind], limit=5).hits
        scores = {hit.id: (hit.score, hit.breakdown) for hit in hits}
        rows = relevance.rows.tolist()
        got = {
            snapshot[pool.kind].entity_id(row): (
                score,
                {name: float(part[at]) for name, part in relevance.parts.items() if part[at]},
            )
            for at, (row, score) in enumerate(zip(rows, relevance.scores.tolist(), strict=True))
        }
        assert len(scores) == 5
        assert {key: got[key] for key in scores} == scores
        if pool.rows is None:
            assert list(got) == list(scores)
        else:
            assert rows == pool.rows.tolist()
            assert sorted((score for score, _ in got.values()), reverse=True)[4] == hits[4].score
