"""Quality measures of a ranking, with their confidence.

Recall@k of a question is the share of its evidence among the first k; a question is a hit when any of it is there.
Average precision counts the evidence that was retrieved at all, so it is cut off where retrieval is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CUTOFFS = (5, 10, 20)
DEPTH = max(CUTOFFS)
"""How many answers a question gets."""

MEASURES = (*(f"recall@{k}" for k in CUTOFFS), *(f"hit@{k}" for k in CUTOFFS), f"map@{DEPTH}")
RECALL_10 = MEASURES.index("recall@10")
HIT_10 = MEASURES.index("hit@10")
AVERAGE_PRECISION = len(MEASURES) - 1
OBJECTIVE = (*range(len(CUTOFFS)), AVERAGE_PRECISION)
"""What tuning improves: the mean of all recalls and average precision, which is steadier than any of them."""

ROUNDS, SEED = 10_000, 0


def measure(retrieved: Sequence[str], evidence: Set[str]) -> tuple[float, ...]:
    """Return every one of ``MEASURES`` for one question; ``retrieved`` is best first."""
    found = [place for place, name in enumerate(retrieved[:DEPTH], 1) if name in evidence]
    recalls = [sum(place <= k for place in found) / len(evidence) for k in CUTOFFS]
    precision = sum(count / place for count, place in enumerate(found, 1)) / len(evidence)
    return (*recalls, *(float(recall > 0) for recall in recalls), precision)


@dataclass(frozen=True)
class Interval:
    """A mean with what 95 % of resamples lie between."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def signed(self) -> str:
        """Return a gain, with its sign."""
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def bootstrap(values: NDArray[np.float64], rounds: int = ROUNDS, seed: int = SEED) -> Interval:
    """Return the mean of ``values`` with its percentile interval over resampled questions.

    Of two rankings of the same questions pass the differences: the interval is then of the paired gain.
    """
    draws = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))


@dataclass(frozen=True)
class Scored:
    """The measures of one ranking of all questions, by conversation. Shapes: ``[questions, len(MEASURES)]`` each."""

    by_conversation: Mapping[str, NDArray[np.float64]]

    @property
    def pooled(self) -> NDArray[np.float64]:
        """All questions, in the order of the conversations."""
        return np.concatenate(list(self.by_conversation.values()))

    def mean(self, name: str) -> float:
        """Return one measure over all questions."""
        return float(self.pooled[:, MEASURES.index(name)].mean())

    def objective(self, without: str | None = None) -> float:
        """Return the measure that tuning improves, over all conversations but one."""
        kept = [values for name, values in self.by_conversation.items() if name != without]
        return float(np.concatenate(kept)[:, OBJECTIVE].mean())
