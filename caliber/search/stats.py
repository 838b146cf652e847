"""Corpus statistics (number of texts, word frequencies) counted by the database, to rank the rows read from it.

Source: docs/search.md, docs/decisions/0082.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import date
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.model.lazy_dataclass import dataclass
from caliber.storage.compile.damage import damaged
from caliber.text.dates import Interval, Moment


@dataclass(frozen=True, slots=True)
class KindStats:
    """Counts of one kind: the texts that a principal may see, their terms, and the instant of the newest."""

    texts: int
    terms: int
    newest_us: int | None


class TermCounts(Protocol):
    """Counts in a database, by kind; a ``VisibleSet`` does."""

    def counts(self, term: str) -> Mapping[str, int]:
        """Return how many visible texts hold a term."""
        ...

    def counts_of_days(self, first_us: int, last_us: int) -> Mapping[str, int]:
        """Return how many visible records happened between two instants, both included."""
        ...


@dataclass(slots=True)
class StoredStats:
    """CorpusStats of some kinds. ``linked``: whether any two visible records are linked.

    ``ask`` counts in the database; without it, an uncounted term occurs nowhere.
    """

    kinds: Mapping[str, KindStats]
    linked: bool
    ask: TermCounts | None
    known: dict[str | Interval, Mapping[str, int]] = field(default_factory=dict)

    def of(self, kinds: Iterable[str]) -> StoredStats:
        """Return the statistics of some of the kinds; both share the counts made so far."""
        return replace(self, kinds={kind: self.kinds[kind] for kind in kinds if kind in self.kinds})

    def detached(self) -> StoredStats:
        """Return the figures without a way to count: the session is about to end."""
        return replace(self, ask=None)

    @property
    def texts(self) -> int:
        """The number of visible texts, over all kinds that are searched."""
        return sum(stats.texts for stats in self.kinds.values())

    def newest(self, now: Moment) -> date:
        """Return the day of the newest visible record, or of ``now`` if that is earlier."""
        newest = [(stats.newest_us, kind) for kind, stats in self.kinds.items() if stats.newest_us is not None]
        at, kind = max(newest, default=(now.at_us, ""))
        try:
            return now._replace(at_us=min(now.at_us, at)).day
        except OverflowError:
            raise damaged(f"a stored {kind} is damaged: no calendar has its time", relation=kind) from None

    def count(self, term: str) -> int:
        """Return how many visible texts hold a term."""
        if term not in self.known and self.ask is not None:
            self.known[term] = self.ask.counts(term)
        return self._sum(term)

    def count_of_days(self, when: Interval) -> int:
        """Return how many visible records are of some days."""
        if when not in self.known and self.ask is not None:
            self.known[when] = self.ask.counts_of_days(when.first_us, when.last_us)
        return self._sum(when)

    def _sum(self, counted: str | Interval) -> int:
        counts = self.known.get(counted, {})
        return sum(counts.get(kind, 0) for kind in self.kinds)

    def counts(self, terms: Sequence[str]) -> NDArray[np.int64]:
        """Return how many visible texts hold each term."""
        return np.array([self.count(term) for term in terms], np.int64)

    def mean_length(self, kind: str) -> float:
        """Return how many terms a text of a kind has in the mean; 0 without any."""
        stats = self.kinds[kind]
        return stats.terms / stats.texts if stats.texts else 0.0

    def rarity(self, term: str) -> float:
        """Return the rarity of a term, by which candidates are chosen."""
        count = self.count(term)
        return math.log(1 + (self.texts - count + 0.5) / (count + 0.5))
