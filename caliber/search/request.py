"""Data classes of searches (in memory or in the database) and of relevance ratings: requests, pools, outcomes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caliber.access.visibility import Readers
from caliber.model.embedding import EmbeddingSpace
from caliber.model.lazy_dataclass import dataclass
from caliber.model.windows import Evidence
from caliber.resident.predicates import Texts, held_texts
from caliber.resident.snapshot import ResidentSnapshot
from caliber.schema.predicate import Predicate
from caliber.search.filtering.filters import Found, Seen, Where
from caliber.search.query import Query
from caliber.search.usage import Uses
from caliber.text.dates import Moment


class HitOrder(Protocol):
    """Re-ranks the hits of a search; ``search.ranking.roles.RoleScoring`` does."""

    def ordered(self, found: Sequence[Found], uses: Uses, at_us: int) -> list[Found]:
        """Return the best hits in their order, by the uses that the reader may know of, and an instant."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A search: its query and its principal. ``vector`` None: there is none, for the reason ``without_vector``."""

    snapshot: ResidentSnapshot
    text: str
    vector: NDArray[np.float32] | None
    without_vector: str | None
    space_id: uuid.UUID | None
    kinds: Sequence[str]
    limit: int
    readers: Seen
    as_of_us: int
    now_us: int
    query: Query | None = None
    """The text as it was understood, where it was read already."""
    where: Where | None = None
    texts: Texts = held_texts
    """Reads the texts that a filter compares."""
    floor: bool = True
    """Whether only records above the relevance floor are found."""
    by_role: HitOrder | None = None
    """Re-ranks the hits."""
    moment: Moment | None = None
    """The instant from which "yesterday" is reckoned, and the zone that makes days; None: the clock, in UTC."""
    meaning: float | None = None
    """The weight of nearness in meaning, the rest being that of words; None: all legs as they are configured."""
    archived: bool = False
    """Whether archived records are found too."""

    @property
    def uses(self) -> Uses:
        """The uses that the reader may know of."""
        return Uses(self.snapshot["usage"], self.readers.used_by)


@dataclass(frozen=True, slots=True)
class Asked:
    """A search through the database, and its principal; fields as in ``Request``."""

    text: str
    vector: NDArray[np.float32] | None
    without_vector: str | None
    space: EmbeddingSpace | None
    kinds: Sequence[str]
    limit: int
    readers: Readers
    as_of_us: int
    now_us: int
    check: Callable[[], None] | None = None
    """Called between statements; raises when the time of the call is up."""
    where: Where | None = None
    floor: bool = True
    """Whether only records above the relevance floor are found."""
    reach: Mapping[str, Sequence[Predicate | None]] = field(default_factory=dict)
    """Conditions by kind, of which a record has to meet one besides, and meets none but that; of other kinds none."""
    by_role: HitOrder | None = None
    """Re-ranks the hits."""
    moment: Moment | None = None
    meaning: float | None = None
    archived: bool = False

    def over(self, snapshot: ResidentSnapshot, query: Query | None = None, texts: Texts = held_texts) -> Request:
        """Return the same search of what a snapshot holds; ``query`` is the text where it was read already."""
        return Request(
            snapshot=snapshot,
            text=self.text,
            vector=self.vector,
            without_vector=self.without_vector,
            space_id=None if self.space is None else self.space.space_id,
            kinds=self.kinds,
            limit=self.limit,
            readers=self.readers,
            as_of_us=self.as_of_us,
            now_us=self.now_us,
            query=query,
            where=self.where,
            texts=texts,
            floor=self.floor,
            by_role=self.by_role,
            moment=self.moment,
            meaning=self.meaning,
            archived=self.archived,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The hits, the parsed query, and the weight of each leg."""

    found: list[Found]
    query: Query | None
    weights: dict[str, float]
    degraded: str | None
    names: tuple[str, ...] = ()
    traversed: tuple[uuid.UUID, ...] = ()
    """Edges that brought hits."""
    below: Evidence | None = None
    """The evidence that there was, where no record reaches the floor."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Records of one kind whose relevance is asked for: given ``rows``, all of them allowed, or the best ``limit``.

    ``allowed`` None: all visible rows. ``excluded`` rows are not allowed, boost no neighbour and lead to nothing: a
    row that repeats the query would only find its neighbours.

    Shapes: ``bool[length of the mirror]``, rows and excluded ``int64[n]``
    """

    kind: str
    allowed: NDArray[np.bool_] | None
    limit: int
    rows: NDArray[np.int64] | None = None
    excluded: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Relevance:
    """The relevance of rows of one kind, and the share of each part; 0 for a row that is not found.

    A row is found if a leg found it and it reaches the floor. ``strength`` in [0, 1] measures the best evidence of any
    row scored with these: scores compare within one search, their products with its strength between searches.

    Shapes: rows ``int64[n]``, scores ``f32[n]`` in [0, 1], parts ``f64[n]`` by name.
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    parts: Mapping[str, NDArray[np.float64]]
    strength: float = 1.0
