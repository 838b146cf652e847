"""Relevance of one record to an earlier window's query, computed now, for a record that a limit excluded.

A window's record holds the relevance of its candidates only. A record that a limit cut off is scored against present
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

import numpy as np

from caliber.config import CaliberConfig
from caliber.context.gather.candidates import members_of, pool_of_rules, pools_of
from caliber.context.gather.recall import pools_of_recall, request_of
from caliber.context.gather.scores import Flat, scorer_of
from caliber.context.inputs import AssemblyInputs, TextSource, WindowFacts
from caliber.context.plan import AssemblyPlan, plan_of
from caliber.kernels.evaluator import Allowed
from caliber.model.lazy_dataclass import dataclass
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot

if TYPE_CHECKING:
    from caliber.search.searcher import Searcher


@dataclass(frozen=True, slots=True)
class CurrentScore:
    """The present relevance of a record, and the share of each part of the search."""

    score: float
    breakdown: Mapping[str, float] = field(default_factory=dict)


def rebuild_inputs(
    facts: WindowFacts, snapshot: ResidentSnapshot, config: CaliberConfig, masks: Mapping[str, Allowed]
) -> AssemblyInputs:
    """Return the inputs of a window over another snapshot."""
    return AssemblyInputs(
        snapshot=snapshot,
        trajectory_id=facts.trajectory_id,
        max_tokens=facts.max_tokens,
        as_of_us=facts.as_of_us,
        now_us=facts.now_us,
        window_id=facts.window_id,
        config=config,
        config_hash=facts.config_hash,
        principal=facts.principal,
        masks=masks,
        query=facts.query,
        query_from=facts.query_from,
        query_embedding=facts.query_embedding,
        space_id=facts.space_id,
        extra_sections=facts.extra_sections,
        once=facts.once,
    )


def score_now(
    inputs: AssemblyInputs, owners: RelationSnapshot, row: int, searcher: Searcher, texts: TextSource
) -> CurrentScore | None:
    """Return the relevance of one row, or None: it is not eligible, or has no vector."""
    plan = plan_of(inputs.config, inputs.once)
    kind = owners.relation.name
    rows = np.array([row], np.int64)
    if plan.config.assembly.relevance == "vector":
        return _similarity(inputs, owners, rows)
    if plan.config.recall.limit and not plan.governed:
        return _recalled(inputs, plan, owners, row, searcher)
    members = members_of(inputs, plan, searcher)
    found = pool_of_rules(inputs, plan, members, kind, row, searcher, texts) if plan.rule_sections else None
    pools = {pool.kind: pool for pool in pools_of(inputs, plan, members)} if found is None else {kind: found}
    pool = pools.get(kind)
    if pool is None:
        return None
    allowed = pool.allowed
    if allowed is None:
        allowed = searcher.visibility(owners, inputs.readers, inputs.as_of_us, inputs.now_us).visible
    if not allowed[row]:
        return None
    # All rows that may enter: a limit does not count here.
    every = np.flatnonzero(allowed)
    pools[kind] = replace(pool, rows=every)
    scorer = scorer_of(inputs, plan, lambda: list(pools.values()), searcher)
    if isinstance(scorer, Flat):
        return None
    scored = scorer.score(kind, owners, every).at(np.searchsorted(every, rows))
    parts = {name: float(part[0]) for name, part in scored.parts.items() if part[0]}
    return CurrentScore(float(scored.relevance[0]), parts)


def _recalled(
    inputs: AssemblyInputs, plan: AssemblyPlan, owners: RelationSnapshot, row: int, searcher: Searcher
) -> CurrentScore | None:
    """Return the search result of a recalling window for one row."""
    if inputs.query_embedding is None and not (inputs.query or "").strip():
        return None
    pools = [pool for _, pool in pools_of_recall(inputs, plan, searcher, np.empty(0, np.int64))[0]]
    at = next((at for at, pool in enumerate(pools) if pool.kind == owners.relation.name), None)
    allowed = None if at is None else pools[at].allowed
    if at is None or allowed is None or not allowed[row]:
        return None
    pools[at] = replace(pools[at], rows=np.array([row], np.int64))
    found = searcher.relevance(request_of(inputs, plan), pools, together=True)[0][at]
    parts = {name: float(part[0]) for name, part in found.parts.items() if part[0]}
    return CurrentScore(min(1.0, float(found.scores[0])), parts)


def _similarity(inputs: AssemblyInputs, owners: RelationSnapshot, rows: np.ndarray) -> CurrentScore | None:
    if inputs.query_embedding is None or inputs.space_id is None:
        return None
    vectors = inputs.snapshot.vectors.get((owners.relation.name, inputs.space_id))
    if vectors is None or vectors.dimensions != len(inputs.query_embedding):
        return None
    scores, present = vectors.scores(inputs.query_embedding, owners, rows)
    return CurrentScore(float(scores[0])) if present[0] else None
