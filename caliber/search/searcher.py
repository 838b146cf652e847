"""One search, from a text to the best rows of resident memory, and why.

``Searcher`` belongs to an open store; a search is a pure function of a snapshot, the query and the configuration.

Source: M §1.3, B-092 to B-098, K-119, K-202; docs/search.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from caliber.config.search import SearchConfig
from caliber.kernels import cosine_batch
from caliber.llm.word_vectors import WordVectors
from caliber.model.time import from_us
from caliber.resident.keywords import Keywords
from caliber.resident.memory import ResidentMemory
from caliber.search import fusion
from caliber.search.filters import Found, masks
from caliber.search.graph import GraphLeg, Reached, edge_ids
from caliber.search.legs import Bools, Floats, Nearest, Searched, keyword_leg, phrase_rows, vector_leg
from caliber.search.names import Names
from caliber.search.query import Query, QueryReader
from caliber.search.recent import recent_rows
from caliber.search.request import Outcome, Pool, Relevance, Request
from caliber.search.similar import SimilarTerms
from caliber.search.words import Analyzer

_DIVERSE_POOL = 100
"""Hits that are to differ from each other; however many are wanted, so that a larger limit only adds to a smaller."""


class Searcher:
    """Searches one store.

    Raises:  InvalidValue for an unknown language; ExtraNotInstalled for word vectors that are not there
    """

    def __init__(self, memory: ResidentMemory, settings: SearchConfig) -> None:
        self._settings = settings
        self.analyzer = analyzer = Analyzer(settings.keyword.language)
        self._reader = QueryReader(analyzer, analyzer.lexicon, max_words=settings.keyword.query_words_max)
        self.keywords = Keywords(memory, analyzer)
        self._similar: SimilarTerms | None = None
        if settings.keyword.similar_words != "none":
            silent = frozenset(term for word in analyzer.lexicon.stop_words for term in analyzer(word).terms)
            self._similar = SimilarTerms(
                WordVectors(analyzer.stem), self.keywords.dictionary, silent, least=settings.keyword.similar_min
            )
        self._names = Names(self._reader.name)
        self._graph = GraphLeg(settings.graph)

    def read(self, text: str, clock: Callable[[], date]) -> Query:
        """Return what a text asks for; ``clock`` tells the day that "last week" is meant from."""
        return self._reader.read(text, clock)

    def terms_of(self, part: str) -> tuple[str, ...]:
        """Return the terms that a part of a word is found by."""
        return self.analyzer.cached(part).terms

    def searched(self, request: Request) -> list[Searched]:
        """Return the kinds that can be searched as asked; a kind without a filtered column is left out."""
        out = []
        for kind in request.kinds:
            owners = request.snapshot[kind]
            found = masks(owners, request.conditions, request.notes, request.as_of_us, request.now_us)
            if owners.length and found is not None:
                out.append(Searched(kind, owners, *found, self.keywords.of(owners)))
        return out

    def search(self, request: Request) -> Outcome:
        """Return the best hits, best first, ties by id."""
        searched = self.searched(request)
        if not request.text.strip():
            return Outcome(recent_rows(searched, request, self._settings), None, {}, None)
        figures = request.figures
        query = self.read(request.text, lambda: _today(searched, request.now_us)) if figures is None else figures.query
        if not searched:
            weights, degraded = self._weights(request, searched)
            return Outcome([], query, weights, degraded)
        joined, reached, weights, degraded, names, beyond = self._scored(searched, query, request)
        best = self._best(searched, joined, request)
        edges = [edge for place, row, _ in best for edge in reached.edges_to(place, row)]
        found = [
            Found(searched[place].owners, row, score, joined[place].breakdown(row), joined[place].found_by(row))
            for place, row, score in best
        ]
        for place, row, score in _filled_up(joined, beyond, request.limit - len(best)):
            found.append(Found(searched[place].owners, row, float(np.float32(score)), {"vector": score}, ("vector",)))
        named = tuple(" ".join(name) for name in names)
        return Outcome(found, query, weights, degraded, named, edge_ids(request.snapshot, edges))

    def relevance(self, request: Request, pools: Sequence[Pool]) -> tuple[list[Relevance], str | None]:
        """Return how relevant the records of each pool are, and what to say of a leg that is missing.

        Each pool is searched by itself, so that a score compares within its pool, and is what a search of that kind
        alone gives. The query is read once. An empty text leaves the vector leg alone to speak.
        """
        snapshot = request.snapshot
        searched = [
            Searched(pool.kind, owners, pool.visible, pool.allowed, self.keywords.of(owners))
            for pool, owners in ((pool, snapshot[pool.kind]) for pool in pools)
        ]
        query = self._reader.read(request.text, lambda: _today(searched, request.now_us))
        out, degraded = [], self._missing(request, searched)[1]
        for pool, item in zip(pools, searched, strict=True):
            asked = replace(request, kinds=(pool.kind,), limit=pool.limit)
            joined, *_, beyond = self._scored([item], query, asked)
            (scored,) = joined
            if pool.rows is not None:
                out.append(_relevance(scored, pool.rows))
                continue
            best = self._best([item], joined, asked)
            rest = _filled_up(joined, beyond, pool.limit - len(best))
            out.append(_relevance(scored, np.array([row for _, row, _ in best], np.int64), rest))
        return out, degraded

    def _scored(
        self, searched: Sequence[Searched], query: Query, request: Request
    ) -> tuple[list[fusion.Joined], Reached, dict[str, float], str | None, Sequence[tuple[str, ...]], Nearest]:
        """Return the scores of every row, what links led to, the legs' weights, what is missing, who is named, and
        what is near beyond the candidates.
        """
        weights, degraded = self._weights(request, searched)
        nearest, beyond = self._nearest(searched, request, weights)
        keyword_leg(searched, query, self._settings.keyword, self._similar, request.figures)
        names = self._names.named(searched, query.parts)
        joined, reached = self._joined(searched, nearest, query, names, weights, request)
        return joined, reached, weights, degraded, names, beyond

    def _weights(self, request: Request, searched: Sequence[Searched]) -> tuple[dict[str, float], str | None]:
        """Return what each leg counts for, and what to say of one that the configuration counts on."""
        missing, degraded = self._missing(request, searched)
        return fusion.weights_in_force(self._settings.weights, missing), degraded

    def _missing(self, request: Request, searched: Sequence[Searched]) -> tuple[list[str], str | None]:
        """Return the legs that are not to be had, and what to say of it if the configuration counts on them."""
        counts = self._settings.weights.graph > 0
        linked = counts and (
            self._graph.has_links(request, searched)
            if request.figures is None
            else request.figures.linked or self._settings.graph.conversation
        )
        missing = [] if linked else ["graph"]
        if request.vector is not None:
            return missing, None
        wanted = self._settings.weights.vector > 0
        return [*missing, "vector"], request.without_vector if wanted else None

    def _nearest(
        self, searched: Sequence[Searched], request: Request, weights: Mapping[str, float]
    ) -> tuple[Nearest, Nearest]:
        """Return the candidates of the vector leg, as many whatever the limit is, and what is near beyond them."""
        settings = self._settings
        if request.vector is None or request.space_id is None or not weights["vector"]:
            nothing = np.zeros(0, np.int64)
            none = Nearest(nothing, nothing, np.zeros(0, np.float32))
            return none, none
        nearest = vector_leg(
            searched,
            request.snapshot.vectors,
            request.space_id,
            request.vector,
            candidates=max(settings.vector_candidates, settings.candidate_factor * request.limit),
            min_similarity=settings.min_similarity,
        )
        return nearest.parted(settings.vector_candidates)

    def _joined(
        self,
        searched: Sequence[Searched],
        nearest: Nearest,
        query: Query,
        names: Sequence[tuple[str, ...]],
        weights: Mapping[str, float],
        request: Request,
    ) -> tuple[list[fusion.Joined], Reached]:
        settings = self._settings
        by_word = fusion.keyword_scores(searched, settings)
        by_vector = fusion.vector_scores(searched, nearest, settings)
        own, lent = [scores for scores, _ in by_word], [scores for _, scores in by_word]
        reached = self._graph.reach(request, searched, _base(own, lent, by_vector, weights), weights["graph"])
        by_graph = reached.scores
        finders: list[dict[str, Bools]] = []
        found: list[Bools] = []
        for place, item in enumerate(searched):
            near = np.zeros(item.owners.length, np.bool_)
            near[nearest.rows[nearest.kinds == place]] = True
            legs_of = {"vector": near, "keyword": item.keyword > 0, "graph": by_graph[place] > 0}
            finders.append(legs_of)
            found.append((near | legs_of["keyword"] | legs_of["graph"] | _of_days(item, query)) & item.allowed)
        if settings.fusion == "rrf":
            whole = [own_ + lent_ for own_, lent_ in by_word]
            fusion.rank_scores(searched, (whole, by_vector, by_graph), settings)
            own, lent = whole, [np.zeros(len(scores)) for scores in whole]
        boosts = self._boosts(searched, query, names, request.now_us)
        # No leg left, and nothing that moves up: what counts against a hit counts in full.
        total = (sum(weights.values()) + sum(max(weight, 0.0) for _, weight, _ in boosts)) or 1.0
        out = []
        for place, item in enumerate(searched):
            legs = [
                ("keyword", weights["keyword"], own[place]),
                ("lent", weights["keyword"], lent[place]),
                ("vector", weights["vector"], by_vector[place]),
                ("graph", weights["graph"], by_graph[place]),
            ]
            if weights["importance"]:
                importance = fusion.importance_scores(item.owners, settings.neutral_importance)
                legs.append(("importance", weights["importance"], importance))
            legs.extend((name, weight, scores[place]) for name, weight, scores in boosts)
            out.append(fusion.joined(item.owners.evaluator, legs, found[place], total, finders[place]))
        return out, reached

    def _boosts(
        self, searched: Sequence[Searched], query: Query, names: Sequence[tuple[str, ...]], now_us: int
    ) -> list[tuple[str, float, list[Floats]]]:
        """Return name, weight and scores of each boost that this query calls for."""
        settings = self._settings.boosts
        out: list[tuple[str, float, list[Floats]]] = []
        if settings.mentioned and len(names) == 1:
            out.append(("mentioned", settings.mentioned, [self._names.rows(item, names[0]) for item in searched]))
        times = [fusion.times_us(item.owners) for item in searched] if query.when or settings.recency else []
        if settings.date and query.when is not None:
            when, slack = query.when, settings.date_slack_ms
            out.append(("date", settings.date, [fusion.date_scores(at, when, slack) for at in times]))
        if settings.time and query.asks_time:
            out.append(("time", settings.time, [fusion.names_time(item).astype(np.float64) for item in searched]))
        if settings.exact and query.phrases:
            exact = [np.zeros(item.owners.length) for item in searched]
            for item, scores in zip(searched, exact, strict=True):
                scores[phrase_rows(item, query.phrases)] = 1.0
            out.append(("exact", settings.exact, exact))
        if settings.question:
            out.append(("question", settings.question, [(item.asks != 0).astype(np.float64) for item in searched]))
        if settings.recency:
            half = settings.recency_half_life_ms
            out.append(("recency", settings.recency, [fusion.recency_scores(at, now_us, half) for at in times]))
        return out

    def _best(
        self, searched: Sequence[Searched], joined: Sequence[fusion.Joined], request: Request
    ) -> list[tuple[int, int, float]]:
        """Return place of the kind, row and score of each hit."""
        share = self._settings.diversity
        wanted = max(request.limit, _DIVERSE_POOL) if share else request.limit
        best = fusion.best_rows(searched, [item.score for item in joined], wanted)
        if share and len(best) > 1:
            pool, rest = best[:_DIVERSE_POOL], best[_DIVERSE_POOL:]
            scores = np.array([score for _, _, score in pool], np.float64)
            like = _likeness(searched, request, [(place, row) for place, row, _ in pool])
            best = [pool[at] for at in fusion.diversified(scores, like, share, request.limit)] + rest
        return best[: request.limit]


def _filled_up(joined: Sequence[fusion.Joined], beyond: Nearest, most: int) -> list[tuple[int, int, float]]:
    """Return what fills up a limit, the nearest first: what is near beyond the candidates and was not found.

    Its scores lie below those of all that was found, and are the same whatever the limit is.
    """
    candidates = beyond.start
    out: list[tuple[int, int, float]] = []
    for rank, (place, row) in enumerate(zip(beyond.kinds.tolist(), beyond.rows.tolist(), strict=True), start=1):
        if len(out) >= most:
            break
        if not joined[place].score[row] > 0:
            out.append((place, row, fusion.LEAST * candidates / (candidates + rank)))
    return out


def _relevance(
    scored: fusion.Joined, rows: NDArray[np.int64], rest: Sequence[tuple[int, int, float]] = ()
) -> Relevance:
    """Return how relevant ``rows`` are, and after them what fills up their limit."""
    score = scored.score[rows].astype(np.float32)
    found = score > 0
    none = np.zeros(len(rest))
    near = np.array([value for _, _, value in rest], np.float64)
    parts = {
        name: np.concatenate((share * (scores[rows] * found), near if name == "vector" else none))
        for name, (share, scores) in scored.parts.items()
    }
    more = np.array([row for _, row, _ in rest], np.int64)
    return Relevance(np.concatenate((rows, more)), np.concatenate((score, near.astype(np.float32))), parts)


def _base(
    own: Sequence[Floats], lent: Sequence[Floats], vector: Sequence[Floats], weights: Mapping[str, float]
) -> list[Floats]:
    """Return what words and vectors alone make of each row, between 0 and 1."""
    by_word, by_vector = weights["keyword"], weights["vector"]
    total = (by_word + by_vector) or 1.0
    return [
        (by_word * (mine + theirs) + by_vector * near) / total
        for mine, theirs, near in zip(own, lent, vector, strict=True)
    ]


def _of_days(item: Searched, query: Query) -> Bools:
    """Return the rows that a query of nothing but days finds: what is of them."""
    if query.terms or query.beginnings or query.when is None:
        return np.zeros(item.owners.length, np.bool_)
    times = fusion.times_us(item.owners)
    of_days: Bools = (times >= query.when.first_us) & (times <= query.when.last_us)
    return of_days


def _today(searched: Sequence[Searched], now_us: int) -> date:
    """Return the day of the newest record in sight: what "last week" is meant from."""
    newest = now_us
    times = [fusion.times_us(item.owners)[item.visible] for item in searched]
    known = [int(found.max()) for found in times if len(found)]
    if known:
        newest = min(now_us, max(known))
    return from_us(newest).date()


def _likeness(searched: Sequence[Searched], request: Request, best: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Return the cosine of each pair of hits, of their most alike chunks, 0 where one has no vector. Shapes: [n, n]"""
    vectors: list[NDArray[np.float32]] = []
    owner: list[int] = []
    for at, (place, row) in enumerate(best):
        item = searched[place]
        index = None if request.space_id is None else request.snapshot.vectors.get((item.kind, request.space_id))
        if index is not None and request.vector is not None:
            own = index.vectors(item.owners, row)
            vectors.append(own)
            owner.extend([at] * len(own))
    likeness = np.zeros((len(best), len(best)), np.float64)
    if owner:
        rows = np.concatenate(vectors)
        np.maximum.at(likeness, np.ix_(owner, owner), cosine_batch(rows, rows).astype(np.float64))
    return likeness
