"""Search in the database: the records a principal sees, their counts, and queries for candidates among them.

All queries run in one session, hence at one commit boundary, and count only what the principal may see. The number of
rows is bounded by ``search.candidates_max``; up to that number of matches, nothing is left out.

Source: design, section 5; docs/decisions/0082.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.kernels import VectorMatrix
from caliber.model.embedding import EmbeddingSpace
from caliber.schema.predicate import all_of
from caliber.schema.relation import Relation
from caliber.schema.relations import BY_NAME
from caliber.schema.validity import asked_us
from caliber.search.ranking.fusion import NEUTRAL_IMPORTANCE
from caliber.search.request import Asked
from caliber.search.stats import KindStats
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.damage import last_of
from caliber.storage.compile.filters import Filters, parameters, unfiltered
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.sql.full_text import PART_MARK
from caliber.storage.sql.vector_index import Near, VectorIndexes

_PAGE_VECTORS: Final = 4_096
_TOKENS_MAX: Final = 1_024
"""The most spellings that a prefix of a query is expanded to, per kind."""

_LAST: Final = "\U0010ffff"


class VisibleSet:
    """The records that one principal sees in one session, and the statements that read them.

    ``among`` are the ordinals of the records that match a filter, by kind, where parameters cannot express it;
    ``relations`` are those of the store. ``stats`` of the kinds are counted, unless they are passed in.
    """

    def __init__(
        self,
        session: StatementSession,
        statements: Mapping[str, Plan],
        asked: Asked,
        indexes: VectorIndexes | None = None,
        among: Mapping[str, Sequence[int]] | None = None,
        relations: Mapping[str, Relation] = BY_NAME,
        stats: Mapping[str, KindStats] | None = None,
        dropped: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.relations = relations
        self.dropped = functools.cache(dropped)
        """Return the relations of memories that another process removed."""
        self._session = session
        self._statements = statements
        self._indexes = indexes
        self._check = asked.check
        self._as_of_us, self.now_us = asked.as_of_us, asked.now_us
        self._seen = self._readers(asked)
        among = {} if among is None else among
        self._filters = {kind: self._encoded(kind, asked, among.get(kind)) for kind in asked.kinds}
        self.kinds = tuple(asked.kinds)
        self.stats = (
            {kind: KindStats(*self.ask(f"search.figures_{kind}", *self.of(kind))[0]) for kind in self.kinds}
            if stats is None
            else stats
        )

    def _encoded(self, kind: str, asked: Asked, among: Sequence[int] | None) -> list[Filters]:
        """Return the filters of which a record meets one."""
        where = None if asked.where is None or among is not None else asked.where.predicates[kind]
        reach = asked.reach.get(kind, (None,))
        found = [parameters(self.relations[kind], all_of(where, each), among) for each in reach]
        encodable = [filters for filters in found if filters is not None]
        assert len(encodable) == len(found)  # reach consists of values of columns only
        return encodable

    def ask(self, statement: str, *parameters: Any) -> list[Row]:
        """Run one statement of full text, if there is still time."""
        if self._check is not None:
            self._check()
        return self._session.run(self._statements[statement], parameters)

    def nearest(
        self, kind: str, filters: Filters, space: EmbeddingSpace, query: NDArray[np.float32], records: int
    ) -> list[Row] | None:
        """Return the vectors that an index finds for a number of records of a kind; None where all have to be read."""
        if self._indexes is None:
            return None
        if self._check is not None:
            self._check()
        near = Near(kind, query.astype("<f4").tobytes(), *self.of(kind), filters, records)
        return self._indexes.nearest(self._session, space, near)

    def of(self, kind: str) -> tuple[str, int]:
        """Return the reader, and the instant at which records of a kind must be in force."""
        return self._seen, asked_us(self.relations[kind], self._as_of_us, self.now_us)

    def _readers(self, asked: Asked) -> str:
        """Return the lists of readers and the entities that let the principal see a record, as JSON."""
        hiding = [each for each in self.relations.values() if each.text is not None and each.readers is not None]
        there = [each.name for each in hiding if each.name in BY_NAME or each.name not in self.dropped()]
        lists = {row[0] for name in there for row in self.ask(f"search.readers_{name}")}
        return asked.readers.stated(sorted(lists))

    def filters(self, kind: str) -> Sequence[Filters]:
        """Return the filters of which a record of a kind has to meet one; no record meets two."""
        return self._filters[kind]

    def every(self, kind: str) -> Filters:
        """Return the filters that every record of a kind meets."""
        return unfiltered(self.relations[kind])

    def filtered(self, kind: str) -> bool:
        """Return whether some visible record of a kind may not be a hit."""
        return self.filters(kind) != [self.every(kind)]

    def matching(self, kind: str) -> int:
        """Return how many visible records of a kind meet the filters."""
        name, of = f"search.matching_{kind}", self.of(kind)
        return sum(int(self.ask(name, *of, *filters)[0][0]) for filters in self.filters(kind))

    def counts(self, term: str) -> dict[str, int]:
        """Return how many visible texts hold a term, by kind."""
        return {kind: int(self.ask(f"search.count_{kind}", term, *self.of(kind))[0][0]) for kind in self.kinds}

    def counts_of_days(self, first_us: int, last_us: int) -> dict[str, int]:
        """Return how many visible records happened between two instants, both included, by kind."""
        statement = "search.count_of_days_{}"
        return {
            kind: int(self.ask(statement.format(kind), first_us, *self.of(kind), last_us)[0][0]) for kind in self.kinds
        }

    def linked(self) -> bool:
        """Return whether any two visible records are linked."""
        name = "search.linked_built_in" if self.dropped() else "search.linked"
        return bool(self.ask(name, self._seen, self._as_of_us, self.now_us)[0][0])

    def beginning(self, beginning: str) -> list[str]:
        """Return the visible spellings that begin with a text, in alphabetical order.

        Hidden spellings do not count towards the limit.
        """
        found: set[str] = set()
        for kind in self.kinds:
            for start in (beginning, PART_MARK + beginning):
                after, seen = "", 0
                while seen < _TOKENS_MAX:
                    rows = self.ask(f"search.tokens_{kind}", start, after, start + _LAST, _TOKENS_MAX)
                    page = [row[0] for row in rows]
                    visible_tokens = [token for token in page if token in found or any(self.counts(token).values())]
                    found.update(visible_tokens)
                    seen += len(visible_tokens)
                    if len(page) < _TOKENS_MAX:
                        break
                    after = page[-1]
        return sorted(found)


@dataclass(slots=True)
class Candidates:
    """Ordinals of the candidate records, by kind."""

    most: int
    rows: dict[str, set[int]] = field(default_factory=dict)

    def add(self, kind: str, ordinals: Iterable[int]) -> None:
        """Add records of a kind."""
        self.rows.setdefault(kind, set()).update(ordinals)


def by_words(visibility: VisibleSet, terms: Mapping[str, float], settings: SearchConfig, out: Candidates) -> None:
    """Add the best rows by words. ``terms`` has each token of the query with its rarity.

    Where a filter excludes some rows, the best without the filter are read too: they boost neighbours, hold names, and
    are starting points of links.
    """
    best: dict[tuple[str, int], float] = {}
    others: dict[tuple[str, int], float] = {}
    for kind in visibility.kinds:
        for filters in visibility.filters(kind):
            _best(visibility, kind, terms, settings, filters, best)
        relation = visibility.relations[kind]
        tells = relation.neighbours is not None or (relation.text is not None and relation.text.head is not None)
        if visibility.filtered(kind) and (tells or settings.weights.graph):
            _best(visibility, kind, terms, settings, visibility.every(kind), others)
    for found in (best, others):
        order = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: out.most]
        for (kind, ordinal), _ in order:
            out.add(kind, (ordinal,))


def _best(
    visibility: VisibleSet,
    kind: str,
    terms: Mapping[str, float],
    settings: SearchConfig,
    filters: Sequence[str | None],
    out: dict[tuple[str, int], float],
) -> None:
    stats, keyword = visibility.stats[kind], settings.keyword
    if not stats.terms:
        return
    flat = keyword.k1 * (1 - keyword.b)
    slope = keyword.k1 * keyword.b * stats.texts / stats.terms
    for term, rarity in terms.items():
        rows = visibility.ask(
            f"search.best_{kind}", term, *visibility.of(kind), flat, slope, settings.candidates_max, *filters
        )
        for ordinal, count, length in rows:
            score = rarity * count * (keyword.k1 + 1) / (count + flat + slope * length)
            out[kind, ordinal] = out.get((kind, ordinal), 0.0) + score


def by_vector(
    visibility: VisibleSet,
    space: EmbeddingSpace,
    query: NDArray[np.float32],
    settings: SearchConfig,
    limit: int,
    out: Candidates,
    *,
    least: float | None = None,
    besides: int = 0,
) -> None:
    """Add the records nearest to a query, scored exactly: those an index finds, or of all visible vectors.

    Without an index each is read once, a page at a time. As many more are added as there are records ``besides``, which
    may be near and are no hits.

    Units: least is a similarity; None for ``search.min_similarity``
    """
    least = settings.min_similarity if least is None else least
    limit_of_vectors = max(settings.vector_candidates, settings.candidate_factor * limit) + besides
    best: list[tuple[float, bytes, str, int]] = []
    for kind in visibility.kinds:
        for filters in visibility.filters(kind):
            found = visibility.nearest(kind, filters, space, query, limit_of_vectors)
            pages = _pages(visibility, kind, filters, space) if found is None else (found,)
            for rows in pages:
                if rows:
                    best = _nearest(best, kind, rows, space, query, least, limit_of_vectors)
    for _, _, kind, ordinal in best:
        out.add(kind, (ordinal,))


def _pages(visibility: VisibleSet, kind: str, filters: Filters, space: EmbeddingSpace) -> Iterator[list[Row]]:
    """Yield every vector of a visible record of a kind that meets the filters, a page at a time."""
    last = -1
    while True:
        rows = visibility.ask(
            f"search.vectors_{kind}", space.space_id.bytes, *visibility.of(kind), last, _PAGE_VECTORS, *filters
        )
        yield rows
        if len(rows) < _PAGE_VECTORS:
            return
        last = last_of(rows, last)


def _nearest(
    best: list[tuple[float, bytes, str, int]],
    kind: str,
    rows: Sequence[Row],
    space: EmbeddingSpace,
    query: NDArray[np.float32],
    least: float,
    count: int,
) -> list[tuple[float, bytes, str, int]]:
    """Return the ``count`` nearest of the known records and one page; a record counts by its nearest vector."""
    matrix = VectorMatrix(space.dimensions, space.metric.value)
    page = np.frombuffer(b"".join(row[3] for row in rows), "<f4").reshape(len(rows), space.dimensions)
    numbers = matrix.append(np.ascontiguousarray(page, np.float32))
    scores = matrix.snapshot().scores(query, numbers)
    near = np.flatnonzero(scores >= np.float32(least)).tolist()
    found = {(item[2], item[3]): item for item in best}
    for at in near:
        _, ordinal, key, _ = rows[at]
        score = float(scores[at])
        existing = found.get((kind, ordinal))
        if existing is None or existing[0] < score:
            found[kind, ordinal] = (score, key, kind, ordinal)
    return sorted(found.values(), key=lambda item: (-item[0], item[1]))[:count]


def beside(visibility: VisibleSet, settings: SearchConfig, out: Candidates) -> None:
    """Add the records that stand beside those found, as far as they lend or are linked."""
    keyword, graph = settings.keyword, settings.graph
    lending = any((keyword.neighbour_boost, keyword.far_neighbour_boost, keyword.answer_boost))
    steps = max(2 if lending else 0, graph.depth if graph.conversation and settings.weights.graph else 0)
    for kind in visibility.kinds:
        rows = out.rows.get(kind)
        if steps and rows and visibility.relations[kind].neighbours is not None:
            out.add(kind, (row[0] for row in visibility.ask(f"search.around_{kind}", dump_json(sorted(rows)), steps)))


def recent(visibility: VisibleSet, settings: SearchConfig, limit: int, out: Candidates) -> None:
    """Add the candidates of an empty query: recent and important records."""
    half_us = settings.boosts.recency_half_life_ms * 1_000
    # Scores are compared in f32 and then by id: a few more, so that a tie at the end is broken as in memory.
    count = limit + max(limit, 64)
    for kind in visibility.kinds:
        for filters in visibility.filters(kind):
            rows = visibility.ask(
                f"search.recent_{kind}",
                visibility.now_us,
                *visibility.of(kind),
                half_us,
                NEUTRAL_IMPORTANCE,
                count,
                *filters,
            )
            out.add(kind, (row[0] for row in rows))


def newest(visibility: VisibleSet, kind: str, limit: int, out: Candidates) -> None:
    """Add the newest of a kind that meet the filters."""
    for filters in visibility.filters(kind):
        rows = visibility.ask(f"search.newest_{kind}", *visibility.of(kind), limit, *filters)
        out.add(kind, (row[0] for row in rows))


def of_days(visibility: VisibleSet, first_us: int, last_us: int, out: Candidates) -> None:
    """Add the records of the days that a query names, if it names nothing else."""
    for kind in visibility.kinds:
        for filters in visibility.filters(kind):
            rows = visibility.ask(f"search.of_days_{kind}", first_us, *visibility.of(kind), last_us, out.most, *filters)
            out.add(kind, (row[0] for row in rows))


def linked_rows(
    visibility: VisibleSet, seeds: Sequence[uuid.UUID], depth: int, most: int
) -> tuple[list[Row], dict[str, list[Row]]]:
    """Return the edges within ``depth`` hops of seeds, and the visible records at their ends, by kind."""
    edge = BY_NAME["edge"]
    ends = [(edge.index(f"{end}_type") + 1, edge.index(f"{end}_id") + 1) for end in ("source", "target")]
    edges: dict[int, Row] = {}
    records: dict[str, list[Row]] = {}
    seen: set[bytes] = set()
    frontier = {seed.bytes for seed in seeds}
    for _ in range(depth):
        rows = visibility.ask("search.edges_of", _hex(frontier))
        edges.update((row[0], row) for row in rows[:most])
        seen |= frontier
        reached: dict[str, set[bytes]] = {}
        for row in rows[:most]:
            for kind, key in ((row[type_at], row[id_at]) for type_at, id_at in ends):
                if key not in seen:
                    reached.setdefault(kind, set()).add(key)
        frontier = set()
        for kind, keys in reached.items():
            if f"search.by_key_{kind}" in visibility._statements and kind not in visibility.dropped():
                found = visibility.ask(f"search.by_key_{kind}", _hex(keys), *visibility.of(kind))
                records.setdefault(kind, []).extend(found)
                frontier |= {row[1] for row in found}
        if not frontier or len(seen) > most:
            break
    return list(edges.values()), records


def _hex(keys: Iterable[bytes]) -> str:
    return dump_json(sorted(key.hex().upper() for key in keys))
