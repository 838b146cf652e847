"""Constants chosen on all conversations but one, and measured on that one.

The figures of a profile that was made looking at the same questions flatter it. Here each conversation is answered with
the constants that did best on the others, out of points of a grid drawn at random; the profile is none of them. The
spread over the grid says how much choosing matters at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.ablation import Overrides
from retrieval.measures import SEED, Scored

GRID: Mapping[str, Sequence[Any]] = {
    "search.keyword.k1": (0.7, 0.9, 1.2),
    "search.keyword.b": (0.25, 0.4, 0.6),
    "search.keyword.saturate": (0.5, 1.0, 2.0),
    "search.keyword.neighbour_boost": (0.3, 0.4, 0.5, 0.6),
    "search.weights.vector": (0.14, 0.21, 0.28, 0.35, 0.42),
    "search.boosts.mentioned": (0.1, 0.175, 0.28),
    "search.boosts.date": (0.14, 0.28, 0.42),
    "search.boosts.time": (0.07, 0.175, 0.28),
    "search.boosts.question": (0.0, -0.035, -0.07),
}
_OF_GRAPH = 0.09
"""What links keep of the weights: they must be 1 together, and nothing links the records of this data."""

DRAWS = 240


@dataclass(frozen=True)
class Tuned:
    """The outcome of tuning: the held-out measures, the choice for each conversation, recall@10 of every draw."""

    held_out: Scored
    chosen: Mapping[str, Overrides]
    recalls: tuple[float, ...]

    def spread(self) -> dict[str, float]:
        """Return how flat the grid is: recall@10 at its ends and in between."""
        marks = {"min": 0, "5 %": 5, "median": 50, "95 %": 95, "max": 100}
        return {name: float(np.percentile(self.recalls, percent)) for name, percent in marks.items()}


def draws(count: int, grid: Mapping[str, Sequence[Any]] = GRID, seed: int = SEED) -> list[Overrides]:
    """Return points of the grid drawn at random."""
    random = np.random.default_rng(seed)
    out: list[Overrides] = []
    for _ in range(count):
        point = {name: values[int(random.integers(len(values)))] for name, values in grid.items()}
        keyword = round(1 - _OF_GRAPH - point["search.weights.vector"], 6)
        out.append({**point, "search.weights.keyword": keyword, "search.weights.graph": _OF_GRAPH})
    return out


def leave_one_out(tried: Sequence[Overrides], ask: Callable[[Overrides], Scored]) -> Tuned:
    """Measure every point, choose on all conversations but one, and keep what the choice gives on that one."""
    scored = [ask(overrides) for overrides in tried]
    held_out, chosen = {}, {}
    for name in scored[0].by_conversation:
        best = max(range(len(tried)), key=lambda at: (scored[at].objective(without=name), -at))
        chosen[name] = tried[best]
        held_out[name] = scored[best].by_conversation[name]
    return Tuned(Scored(held_out), chosen, tuple(item.mean("recall@10") for item in scored))
