"""Searcher over a snapshot of resident memory: the best rows for a query, or the relevance of given rows.

``Searcher`` belongs to an open store; a search is a pure function of a snapshot, the query and the configuration.

Source: M §1.3, B-092 to B-098, K-119, K-202; docs/search.md.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.kernels.joining.join import FLAGGED, Part
from caliber.llm.local.word_vectors import WordVectors
from caliber.resident.keywords import ASKS, Keywords
from caliber.resident.memory import ResidentMemory
from caliber.resident.mirror import RelationSnapshot
from caliber.resident.snapshot import ResidentSnapshot
from caliber.search.filtering.filters import Found, Seen
from caliber.search.filtering.visible import VisibleCache, VisibleRows
from caliber.search.query import Now, Query, QueryReader
from caliber.search.ranking import days, fusion
from caliber.search.ranking.floor import Floored, MinimumScore, diversified, likeness, newer_first, thresholds
from caliber.search.ranking.fusion import recent_rows
from caliber.search.ranking.graph import GraphLeg, LinkGraph, Reached, edge_ids
from caliber.search.ranking.legs import Floats, Ints, KindSearch, Nearest, keyword_leg, padded, phrase_rows, vector_leg
from caliber.search.ranking.names import Names
from caliber.search.ranking.similar import SimilarTerms
from caliber.search.request import Outcome, Pool, Relevance, Request
from caliber.text.dates import Moment
from caliber.text.words import NAMES_A_TIME, Analyzer

_WEIGHT = operator.itemgetter(1)
_DIVERSE_POOL = 100
"""Hits that are to differ from each other; however many are wanted, so that a larger limit only adds to a smaller."""
SIMILAR_MIN: Final = 0.25
"""Least cosine of two words that match in part."""
QUERY_WORDS_MAX: Final = 1_024
"""Words of a query that are read; longer ones are reported as cut."""


@functools.cache
def _stop_terms(language: str) -> frozenset[str]:
    """Return the terms of the stop words of a language, the same for every handle."""
    analyzer = Analyzer(language)
    return frozenset(term for word in analyzer.lexicon.stop_words for term in analyzer(word).terms)


class Searcher:
    """Searches one store.

    Raises:  InvalidValue for an unknown language; ExtraNotInstalled for word vectors that are not there
    """

    def __init__(self, memory: ResidentMemory, settings: SearchConfig, kinds: Sequence[str]) -> None:
        self._settings = settings
        self._similarities = dict(settings.floor.similarity)
        self.kinds = tuple(kinds)
        self.analyzer = analyzer = Analyzer(settings.keyword.language)
        self._reader = QueryReader(analyzer, analyzer.lexicon, max_words=QUERY_WORDS_MAX)
        self.keywords = Keywords(memory, analyzer)
        self._similar: SimilarTerms | None = None
        if settings.keyword.similar_words != "none":
            self._similar = SimilarTerms(
                WordVectors(analyzer.language, analyzer.stems),
                self.keywords.dictionary,
                _stop_terms(analyzer.language),
                least=SIMILAR_MIN,
            )
        self._names = Names(self._spelt)
        self._days_meant = days.DaysMeant()
        self._visible_cache = VisibleCache()
        self._graph = GraphLeg(settings, self._visible_cache, self.kinds)
        self._weights_with = {
            legs: fusion.effective_weights(settings.weights, list(itertools.compress(("graph", "vector"), legs)))
            for legs in itertools.product((False, True), repeat=2)
        }
        """The weight of each leg, where the graph, and the vector of a query, are missing or not."""

    def read(self, text: str, now: Moment, newest: Callable[[Moment], date]) -> Query:
        """Return the parsed query, its days relative to ``now``; ``newest`` gives the day of the newest record."""
        return self._reader.read(text, lambda: Now(now.day, newest(now), now.zone))

    def _spelt(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return names as queries would spell them. Their words occur in the texts, so they are indexed already."""
        spelling = self.keywords.dictionary.spellings([name.encode("utf-8", "replace") for name in names])
        return [self._reader.name(parts) for parts in spelling]

    def terms_of(self, part: str) -> tuple[str, ...]:
        """Return the terms that a part of a word is found by."""
        return self.analyzer.cached(part).terms

    def visibility(self, owners: RelationSnapshot, readers: Seen, as_of_us: int, now_us: int) -> VisibleRows:
        """Return the rows that are valid and visible: by valid time at ``as_of_us``, else at ``now_us``."""
        return self._visible_cache.of(owners, readers, as_of_us, now_us)

    def warm(self, snapshot: ResidentSnapshot, stopped: Callable[[], bool]) -> None:
        """Build the structures that the first search needs, batch by batch: words of texts, vectors of words."""
        for kind in self.kinds:
            while not stopped() and not self.keywords.advance(snapshot[kind]):
                pass
        if self._similar is not None and not stopped():
            self._similar.warm()

    def searched(self, request: Request) -> list[KindSearch]:
        """Return the kinds that can be searched as asked."""
        out = []
        for kind in request.kinds:
            owners = request.snapshot[kind]
            if not owners.length:
                continue
            visibility = self._visible_cache.of(
                owners, request.readers, request.as_of_us, request.now_us, archived=request.archived
            )
            where = request.where
            allowed = visibility.visible if where is None else visibility.meeting(owners, where, request.texts)
            out.append(KindSearch(kind, owners, visibility, allowed, self.keywords.of(owners)))
        return out

    def search(self, request: Request) -> Outcome:
        """Return the best hits, best first, ties by id."""
        searched = self.searched(request)
        by_role = request.by_role
        if not request.text.strip() and request.vector is None:
            recent = recent_rows(searched, request, self._settings)
            if by_role is not None:
                recent = by_role.ordered(recent, request.uses, request.as_of_us)
            return Outcome(recent, None, {}, None)
        query = self._understood(searched, request)
        if not searched:
            weights, degraded = self._weights(request, self._graph.links(request, searched))
            return Outcome([], query, weights, degraded)
        scored = self._scored(searched, query, request)
        joined = scored.floored.joined
        best = self._best(searched, joined, request)
        edges = []
        if scored.reached.walked is not None:
            edges = [edge for hit in best for edge in scored.reached.edges_to(searched[hit.kind].kind, hit.row)]
        found = _found(searched, joined, best)
        for kind, row, score in _filled_up(searched, scored, request.limit - len(best)):
            found.append(Found(searched[kind].owners, row, float(np.float32(score)), {"vector": score}, ("vector",)))
        if by_role is not None:
            found = by_role.ordered(found, request.uses, request.as_of_us)
        named = tuple(map(" ".join, scored.names))
        traversed = edge_ids(request.snapshot, edges) if edges else ()
        below = None if found else scored.floored.below
        return Outcome(found, query, scored.weights, scored.degraded, named, traversed, below)

    def relevance(
        self, request: Request, pools: Sequence[Pool], *, together: bool = False
    ) -> tuple[list[Relevance], str | None]:
        """Return the relevance of the records of each pool, and a note on a missing leg.

        Each pool is searched by itself, so that a score compares within its pool, and is what a search of that kind
        alone gives; so is the floor. ``together`` searches all pools at once, each of another kind: then scores compare
        across pools. The query is read once. An empty text leaves only the vector leg.
        """
        searched = self._pooled(pools, request)
        query = self._understood(searched, _over(request, pools))
        degraded = self._without_vector(request)
        # Scores do not depend on the limit; given rows need nothing beyond the candidates.
        limits = [pool.limit if pool.rows is None else 1 for pool in pools]
        out: list[Relevance] = []
        if together and pools:
            asked = replace(_over(request, pools), limit=max(limits))
            scored = self._scored(searched, query, asked, whole=True)
            for place, (pool, item, limit) in enumerate(zip(pools, searched, limits, strict=True)):
                alone = replace(asked, kinds=(pool.kind,), limit=limit)
                out.append(self._relevance_of(pool, item, scored.alone(place), alone))
            return out, degraded
        for pool, item, limit in zip(pools, searched, limits, strict=True):
            asked = replace(_over(request, (pool,)), limit=limit)
            out.append(self._relevance_of(pool, item, self._scored([item], query, asked, whole=True), asked))
        return out, degraded

    def found(self, pools: Sequence[Pool], request: Request, limit: int) -> tuple[list[Relevance], Query, str | None]:
        """Return the ``limit`` best records of all pools together, by pool, the query, and a note on a missing leg.

        Unlike ``relevance``, scores compare across pools: they are those of one search of all their kinds.
        """
        searched = self._pooled(pools, request)
        asked = replace(_over(request, pools), limit=limit)
        query = self._understood(searched, asked)
        scored = self._scored(searched, query, asked, whole=True, beyond=False)
        joined, strength = scored.floored.joined, scored.floored.strength
        rows = fusion.best_rows(searched, joined, limit)
        relevances = list(map(_relevance, searched, joined, itertools.repeat(strength), rows))
        return relevances, query, scored.degraded

    def _pooled(self, pools: Sequence[Pool], request: Request) -> list[KindSearch]:
        searched = []
        for pool in pools:
            owners = request.snapshot[pool.kind]
            visibility = self._visible_cache.of(owners, request.readers, request.as_of_us, request.now_us)
            allowed = visibility.visible if pool.allowed is None else pool.allowed
            words = self.keywords.of(owners)
            searched.append(KindSearch(pool.kind, owners, visibility, allowed, words, excluded=pool.excluded))
        return searched

    def _understood(self, searched: Sequence[KindSearch], request: Request) -> Query:
        """Return the parsed query of a request."""
        if request.query is not None:
            return request.query
        newest = functools.partial(days.newest_day, searched)
        return self.read(request.text, request.moment or Moment(request.now_us), newest)

    def _relevance_of(self, pool: Pool, item: KindSearch, scored: _Scored, asked: Request) -> Relevance:
        joined, strength = scored.floored.joined[0], scored.floored.strength
        if pool.rows is not None:
            return _relevance(item, joined, strength, pool.rows)
        best = self._best([item], scored.floored.joined, asked)
        rest = _filled_up([item], scored, pool.limit - len(best))
        return _relevance(item, joined, strength, np.array([hit.row for hit in best], np.int64), rest)

    def _scored(
        self,
        searched: Sequence[KindSearch],
        query: Query,
        request: Request,
        *,
        whole: bool = False,
        beyond: bool = True,
    ) -> _Scored:
        """Score the candidates; ``whole`` evaluates the floor for all of them, not only for the best."""
        links = self._graph.links(request, searched)
        weights, degraded = self._weights(request, links)
        nearest = self._nearest(searched, request, weights, beyond=beyond)
        if query.when is not None:
            for item in searched:
                item.meant = self._days_meant.of(item, query.when)
            if query.day_terms and not days.days_tell(searched, query.when):
                query = query.with_words_of_days()
        linked = weights["graph"] > 0
        settings = self._settings
        coverage = keyword_leg(searched, query, settings.keyword, self._similar, linked=linked)
        names = self._names.named(searched, query.parts)
        joined, reached = self._joined(searched, nearest, query, names, weights, request, links)
        floored = Floored(joined, nearest.beyond)
        if request.floor:
            space = None if request.space_id is None else request.snapshot.spaces.get(request.space_id)
            least = thresholds(settings.floor, self._similarities, nearest, space)
            floored = MinimumScore(query, coverage, least).judge(
                searched, joined, nearest, self._most(request), whole=whole
            )
        before = sum(map(len, nearest.similarities))
        return _Scored(floored, reached, weights, degraded, names, before)

    def _most(self, request: Request) -> int:
        """Return how many of the best of a kind are evaluated."""
        return max(request.limit, _DIVERSE_POOL) if self._settings.diversity else request.limit

    def _weights(self, request: Request, links: LinkGraph | None) -> tuple[dict[str, float], str | None]:
        """Return the weight of each leg, and the note on a leg that is configured and missing."""
        if request.meaning is None:
            weights = self._weights_with[not self._graph.has_links(links), request.vector is None].copy()
        else:
            near = 0.0 if request.vector is None else request.meaning
            weights = dict.fromkeys(fusion.LEGS, 0.0) | {"vector": near, "keyword": 1 - near}
        return weights, self._without_vector(request)

    def _without_vector(self, request: Request) -> str | None:
        """Return why the query has no vector, if the configuration or the request counts on one."""
        weight = self._settings.weights.vector if request.meaning is None else request.meaning
        return request.without_vector if request.vector is None and weight > 0 else None

    def _nearest(
        self, searched: Sequence[KindSearch], request: Request, weights: Mapping[str, float], *, beyond: bool
    ) -> Nearest:
        """Return the candidates of the vector leg, whose number does not depend on the limit, and near rows beyond
        them.
        """
        settings = self._settings
        if request.vector is None or request.space_id is None or not weights["vector"]:
            return Nearest([np.zeros(0, np.float32) for _ in searched], compared=False)
        return vector_leg(
            searched,
            request.snapshot.vectors,
            request.space_id,
            request.vector,
            candidates=settings.vector_candidates,
            most=settings.candidate_factor * request.limit if beyond else 0,
            min_similarity=settings.min_similarity,
        )

    def _joined(
        self,
        searched: Sequence[KindSearch],
        nearest: Nearest,
        query: Query,
        names: Sequence[tuple[str, ...]],
        weights: Mapping[str, float],
        request: Request,
        links: LinkGraph | None,
    ) -> tuple[list[fusion.Joined], Reached]:
        settings = self._settings
        if query.when is not None and (query.of_days_only or not (query.terms or query.prefixes)):
            days.add_those_of(searched, query.when)
        own, neighbours = zip(*fusion.keyword_parts(searched, settings), strict=True)
        legs = fusion.Legs(own, neighbours, fusion.vector_parts(searched, nearest, settings), [None] * len(searched))
        reached = Reached([])
        if weights["graph"]:
            legs, reached = self._linked(searched, legs, weights, request, links)
        found = legs
        if settings.fusion == "rrf":
            legs = fusion.ranked_legs(searched, legs)
        boosts = self._boosts(searched, query, names, request.now_us)
        # No leg is left, and no boost applies: penalties count in full.
        total = (sum(weights.values()) + sum(map(max, map(_WEIGHT, boosts), itertools.repeat(0.0)))) or 1.0
        most = self._most(request)
        out = []
        for place, item in enumerate(searched):
            parts = [
                ("keyword", weights["keyword"], legs.own[place]),
                ("neighbour_boost", weights["keyword"], legs.neighbours[place]),
                ("vector", weights["vector"], legs.vector[place]),
                ("graph", weights["graph"], legs.graph[place]),
            ]
            if weights["importance"]:
                importance = fusion.importance_scores(item.owners, item.rows)
                parts.append(("importance", weights["importance"], fusion.values(importance)))
            parts += [(name, weight, of_kind[place]) for name, weight, of_kind in boosts]
            by_link = found.graph[place]
            linked = None if by_link is None else by_link.scores
            finders = (len(nearest.similarities[place]), item.keyword, linked)
            joined = fusion.joined(item, parts, total, most, finders)
            if settings.boosts.recency and query.when is None:
                joined = newer_first(item, joined, frozenset(query.terms), self.terms_of, most)
            out.append(joined)
        return out, reached

    def _linked(
        self,
        searched: Sequence[KindSearch],
        legs: fusion.Legs,
        weights: Mapping[str, float],
        request: Request,
        links: LinkGraph | None,
    ) -> tuple[fusion.Legs, Reached]:
        """Follow links from the best hits by words and vectors, and make candidates of the records they lead to."""
        own, neighbours, vector = (fusion.dense_legs(searched, parts) for parts in legs[:3])
        graph = [np.zeros(len(scores)) for scores in own]
        reached = self._graph.reach(
            request, searched, fusion.of_words_and_vectors(own, neighbours, vector, weights), weights["graph"], links
        )
        for place, (item, (rows, scores)) in enumerate(zip(searched, reached.found, strict=True)):
            if len(rows):
                places = item.add(rows)
                count = len(item.rows)
                own[place], neighbours[place] = padded(own[place], count), padded(neighbours[place], count)
                vector[place], graph[place] = padded(vector[place], count), np.zeros(count)
                # A seed that the filters exclude may score higher than any hit: its contribution is at most 1.
                graph[place][places] = np.minimum(scores, 1.0)
        return fusion.Legs(*(list(map(fusion.values, scores)) for scores in (own, neighbours, vector, graph))), reached

    def _boosts(
        self, searched: Sequence[KindSearch], query: Query, names: Sequence[tuple[str, ...]], now_us: int
    ) -> list[tuple[str, float, list[Part]]]:
        """Return name, weight and scores of each boost that this query calls for."""
        settings = self._settings.boosts
        out: list[tuple[str, float, list[Part]]] = []

        def applies(name: str, weight: float, scores: Iterable[NDArray[Any]]) -> None:
            out.append((name, weight, list(map(fusion.values, scores))))

        def flagged(name: str, weight: float, flag: int) -> None:
            out.append((name, weight, [Part(FLAGGED, flags=item.words.flags, flag=flag) for item in searched]))

        if settings.mentioned and len(names) == 1:
            applies(
                "mentioned", settings.mentioned, [self._names.marked(item, names[0], item.rows) for item in searched]
            )
        dated = query.when is not None or settings.recency
        times = [fusion.times_us(item.owners, item.rows) for item in searched] if dated else []
        if settings.date and query.when is not None:
            when, slack = query.when, settings.date_slack_ms
            scores = (days.date_scores(item, at, when, slack) for item, at in zip(searched, times, strict=True))
            applies("date", settings.date, scores)
        if settings.time and query.asks_time:
            flagged("time", settings.time, NAMES_A_TIME)
        if settings.exact and query.phrases:
            exact = (np.isin(item.rows, phrase_rows(item, query.phrases)) for item in searched)
            applies("exact", settings.exact, exact)
        if settings.question:
            flagged("question", settings.question, ASKS)
        if settings.recency:
            half = settings.recency_half_life_ms
            applies("recency", settings.recency, (fusion.recency_scores(at, now_us, half) for at in times))
        return out

    def _best(
        self, searched: Sequence[KindSearch], joined: Sequence[fusion.Joined], request: Request
    ) -> list[fusion.Hit]:
        share = self._settings.diversity
        best = fusion.merged(searched, [(one.best.places, one.best.best) for one in joined], self._most(request))
        if share and len(best) > 1:
            pool, rest = best[:_DIVERSE_POOL], best[_DIVERSE_POOL:]
            scores = np.array([hit.score for hit in pool], np.float64)
            like = likeness(searched, request, [(hit.kind, hit.row) for hit in pool])
            best = [pool[at] for at in diversified(scores, like, share, request.limit)] + rest
        return best[: request.limit]


def _over(request: Request, pools: Sequence[Pool]) -> Request:
    """Return a request for the kinds of some pools."""
    kinds = tuple(dict.fromkeys(map(operator.attrgetter("kind"), pools)))
    return replace(request, kinds=kinds)


class _Scored(NamedTuple):
    """Candidates of a search with their scores, links, weights, missing legs and names."""

    floored: Floored
    reached: Reached
    weights: dict[str, float]
    degraded: str | None
    names: Sequence[tuple[str, ...]]
    before: int
    """How many are nearer than the first of ``beyond``."""

    def alone(self, place: int) -> _Scored:
        """Return the result for one kind."""
        beyond = [(0 if kind == place else -1, row, similarity) for kind, row, similarity in self.floored.beyond]
        return self._replace(floored=self.floored._replace(joined=[self.floored.joined[place]], beyond=beyond))


def _found(searched: Sequence[KindSearch], joined: Sequence[fusion.Joined], best: Sequence[fusion.Hit]) -> list[Found]:
    """Return the best, explained."""
    why: dict[int, list[tuple[dict[str, float], tuple[str, ...]]]] = {}
    out = []
    for kind, _, row, score, at in best:
        if kind not in why:
            why[kind] = joined[kind].explained()
        out.append(Found(searched[kind].owners, row, score, *why[kind][at]))
    return out


def _filled_up(searched: Sequence[KindSearch], scored: _Scored, most: int) -> list[tuple[int, int, float]]:
    """Return the nearest records beyond the candidates that fill up a limit.

    Their scores lie below those of all found records, and do not depend on the limit.
    """
    out: list[tuple[int, int, float]] = []
    beyond = scored.floored.beyond
    if not beyond or most <= 0:
        return out
    scores = [np.zeros(item.owners.length) for item in searched]
    for item, joined, by_row in zip(searched, scored.floored.joined, scores, strict=True):
        by_row[item.rows] = joined.score
    for rank, (kind, row, _) in enumerate(beyond, start=1):
        if len(out) >= most:
            break
        if kind >= 0 and not scores[kind][row] > 0:
            out.append((kind, row, fusion.LEAST * scored.before / (scored.before + rank)))
    return out


def _relevance(
    item: KindSearch,
    joined: fusion.Joined,
    strength: float,
    rows: Ints,
    rest: Sequence[tuple[int, int, float]] = (),
) -> Relevance:
    """Return the relevance of ``rows``, and after them the records that fill up their limit."""
    places = item.places_of(rows)
    score = _at(joined.score, places).astype(np.float32)
    places[score <= 0] = -1  # a row that is no hit has zero in every part
    none = np.zeros(len(rest))
    near = np.array([value for _, _, value in rest], np.float64)
    shares = joined.best.shares(places)
    parts = {
        name: np.concatenate((scores, near if name == "vector" else none)) if rest else scores
        for name, scores in zip(joined.names, shares, strict=True)
    }
    if not rest:
        return Relevance(rows, score, parts, strength)
    more = np.array([row for _, row, _ in rest], np.int64)
    scores = np.concatenate((score, near.astype(np.float32)))
    return Relevance(np.concatenate((rows, more)), scores, parts, strength)


def _at(scores: Floats, places: Ints) -> Floats:
    """Return the scores at some places among candidates, 0 for a place of -1, which no leg found."""
    out = np.zeros(len(places))
    is_candidate = places >= 0
    out[is_candidate] = scores[places[is_candidate]]
    return out
