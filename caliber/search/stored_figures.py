"""What is counted over a whole store for one query, of whose records only some are read.

Source: docs/search.md, docs/decisions/0082.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from caliber.search.candidates import Sight
from caliber.search.dates import Interval
from caliber.search.query import Query


@dataclass(slots=True)
class StoredFigures:
    """Figures of one query; ``linked`` says whether any two records in sight are."""

    query: Query
    sight: Sight
    linked: bool
    known: dict[str, int] = field(default_factory=dict)

    @property
    def texts(self) -> int:
        """How many texts are in sight, over all kinds that are searched."""
        return self.sight.texts

    def count(self, term: str) -> int:
        """Return how many texts in sight hold a term."""
        count = self.known.get(term)
        if count is None:
            count = self.known[term] = self.sight.count(term)
        return count

    def counts(self, terms: Sequence[str]) -> NDArray[np.int64]:
        """Return how many texts in sight hold each term."""
        return np.array([self.count(term) for term in terms], np.int64)

    def count_of_days(self, when: Interval) -> int:
        """Return how many records in sight are of some days."""
        return self.sight.count_of_days(when.first_us, when.last_us)

    def mean_length(self, kind: str) -> float:
        """Return how many terms a text of a kind has in the mean; 0 without any."""
        figures = self.sight.figures[kind]
        return figures.terms / figures.texts if figures.texts else 0.0

    def rarity(self, term: str) -> float:
        """Return how rare a term is: what candidates are chosen by."""
        count = self.count(term)
        return math.log(1 + (self.texts - count + 0.5) / (count + 0.5))
