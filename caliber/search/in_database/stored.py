"""Search for tenants whose records are not in memory: the database finds candidates, the usual searcher ranks them.

The database reports how many texts hold each word and which records are candidates. These are read into a small mirror
and searched by the same ``Searcher`` as resident memory. Document counts cover all visible records, so scores equal
those of a search in memory.

Source: design, section 5; docs/decisions/0082.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from caliber.config.search import SearchConfig
from caliber.kernels.evaluator import Evaluator
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import SchemaMismatch
from caliber.model.process.interrupts import managed
from caliber.model.windows import Position
from caliber.resident.memory import ResidentMemory
from caliber.resident.partial import PartialMirrors
from caliber.resident.snapshot import ResidentSnapshot
from caliber.resident.vectors import VectorSnapshot
from caliber.schema.relation import Relation
from caliber.schema.traits import Mirror
from caliber.search.in_database import candidates as find
from caliber.search.in_database.candidates import Candidates, VisibleSet
from caliber.search.in_database.full_text import indexer_name
from caliber.search.query import Query
from caliber.search.ranking.days import SAID_WITHIN_US
from caliber.search.request import Asked, Outcome, Request
from caliber.search.searcher import Searcher
from caliber.search.stats import KindStats, StoredStats
from caliber.search.usage import keys_of
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.filters import parameters
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import PART_MARK, FullText, FullTextState, holds, texts_of
from caliber.storage.write.catalog_guard import dropped_since
from caliber.text.dates import DAY_US, Moment

NOT_RESIDENT: Final = "not_resident"
"""Why every result of this mode is degraded."""

_MAKE_ANEW: Final = "run `caliber db rebuild-search`"

_WORDS_KEPT: Final = 200_000
"""Distinct words of records read that are remembered between searches."""

_SEEDS: Final = 64
"""Best hits whose links are read, if more than the graph leg starts from."""


def check_state(state: FullTextState | None, settings: SearchConfig, store: str, texts: Iterable[Relation]) -> None:
    """Refuse to search a full-text index that is missing, incomplete, made by other rules, or without some of
    ``texts``.

    Raises: SchemaMismatch, which names the command to run
    """
    expected = indexer_name(settings.keyword.language)
    if state is None:
        reason = 'search.mode is "backend", and it has no full text'
    elif state.analyzer != expected:
        reason = f"its full text was made by the rules {state.analyzer}, and {expected} are configured"
    elif not state.complete:
        reason = "its full text is not complete"
    elif not holds(state.memories, texts):
        reason = "its full text does not hold every memory as this process knows it"
        raise SchemaMismatch(store=store, reason=f"{reason}; open it again, or {_MAKE_ANEW} if that changes nothing")
    else:
        return
    raise SchemaMismatch(store=store, reason=f"{reason}; {_MAKE_ANEW}")


class StoredSearch:
    """Searches of one store that is not in memory. Safe to share between threads.

    There is no expansion by similar words: their vectors would have to be in memory.
    """

    def __init__(
        self, store: Store, full_text: FullText, memory: ResidentMemory, settings: SearchConfig, evaluator: Evaluator
    ) -> None:
        exact = settings.keyword.model_copy(update={"similar_words": "none"})
        self.settings: SearchConfig = settings.model_copy(update={"keyword": exact})
        self._store = store
        self.full_text = full_text
        self._name = str(store.facts()["path"])
        self._memory = memory
        self._evaluator = evaluator
        self._mirrors = PartialMirrors(evaluator, store.catalog)
        self._lock = threading.Lock()
        self.kinds = tuple(relation.name for relation in texts_of(store.catalog))
        """The relations that it searches."""
        self._searcher = self._fresh()
        read = (each.name for each in store.catalog.mirrored if each.mirror is Mirror.ROWS and not each.framed)
        self.blank = {name: self._mirrors.mirror(name, ()) for name in (*self.kinds, *read)}
        """Empty snapshots, against which filters are checked."""

    def forget_words(self) -> None:
        """Clear the caches of words: some may no longer occur in any text."""
        self._searcher = self._fresh()

    @managed
    def at_one_boundary(self) -> Iterator[Callable[[Asked], tuple[Outcome, Position]]]:
        """Yield a search of the store at one commit: it returns the best hits, and that position.

        Raises: SchemaMismatch; each search InvalidValue
        """
        with self._store.read() as session:
            state = self.full_text.state(session)
            sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
            position = Position(self._store.epoch, sequence)
            yield lambda asked: (self._search(session, state, asked, position), position)

    def check(self, state: FullTextState | None, asked: Asked) -> None:
        """Refuse an index that lacks searched texts. An index from which another process removed a memory holds the
        rest.
        """
        relations = self._store.catalog.by_name
        check_state(state, self.settings, self._name, [relations[kind] for kind in asked.kinds])

    def visibility(
        self, session: StatementSession, asked: Asked, stats: Mapping[str, KindStats] | None = None
    ) -> VisibleSet:
        """Return the visible set of a session."""
        among = self._let_through(session, asked)
        relations = self._store.catalog.by_name
        return VisibleSet(
            session,
            self.full_text.statements,
            asked,
            self._store.vector_index,
            among,
            relations,
            stats,
            functools.partial(self._dropped, session),
        )

    def _dropped(self, session: StatementSession) -> frozenset[str]:
        """Return the relations of memories that another process removed since this one opened the store."""
        store = self._store
        if not store.catalog.declared_relations:
            return frozenset()
        return dropped_since(session, store.plans, store.statements, store.catalog)

    def searcher(self) -> Searcher:
        """Return the searcher, a fresh one when this one remembers too many words."""
        with self._lock:
            if len(self._searcher.keywords.dictionary) > _WORDS_KEPT:
                self._searcher = self._fresh()
            return self._searcher

    def _fresh(self) -> Searcher:
        return Searcher(self._memory, self.settings, self.kinds)

    def _search(
        self, session: StatementSession, state: FullTextState | None, asked: Asked, position: Position
    ) -> Outcome:
        self.check(state, asked)
        settings, searcher = self.settings, self.searcher()
        visibility = self.visibility(session, asked)
        found = Candidates(settings.candidates_max)
        query: Query | None = None
        stats: StoredStats | None = None
        if asked.text.strip():
            counted = stats = self.stats(visibility)
            query = searcher.read(asked.text, asked.moment or Moment(asked.now_us), counted.newest)
            self.collect(visibility, asked, query, terms_of(query, stats, visibility, searcher), found)
        else:
            find.recent(visibility, settings, asked.limit, found)
        rows = {kind: self.rows(session, kind, ordinals) for kind, ordinals in found.rows.items()}
        request = self.request(visibility, asked, position, rows, stats, query)
        if stats is not None and stats.linked:
            rows["edge"] = self.linked(visibility, request, rows)
            request = self.request(visibility, asked, position, rows, stats, query)
        return searcher.search(request)

    def recently_used(self, kind: str, asked: Asked) -> list[Row]:
        """Return the records of a kind that were used last, or else entered last, the latest first."""
        with self._store.read() as session:
            visibility = self.visibility(session, asked)
            ordinals = [
                row[0]
                for filters in visibility.filters(kind)
                for row in visibility.ask(f"search.used_{kind}", *visibility.of(kind), asked.limit, *filters)
            ]
            rows = {row[0]: row for row in self.rows(session, kind, ordinals)}
            return [rows[ordinal] for ordinal in ordinals]

    def stats(self, visibility: VisibleSet) -> StoredStats:
        """Return the statistics of all visible records."""
        return StoredStats(visibility.stats, bool(self.settings.weights.graph) and visibility.linked(), visibility)

    def collect(
        self,
        visibility: VisibleSet,
        asked: Asked,
        query: Query,
        terms: Mapping[str, float],
        out: Candidates,
        *,
        besides: int = 0,
    ) -> None:
        """Add the records that words, days and vectors of a query find, and the turns beside them.

        ``besides`` are records that may be near and are no hits.
        """
        settings = self.settings
        find.by_words(visibility, terms, settings, out)
        if query.when is not None and (query.of_days_only or not (query.terms or query.prefixes)):
            # Wider by any offset from UTC, as days of some records are of other zones; then those that mean the days.
            for wider in (DAY_US, SAID_WITHIN_US):
                find.of_days(visibility, query.when.first_us - wider, query.when.last_us + wider, out)
        if asked.vector is not None and asked.space is not None and settings.weights.vector:
            find.by_vector(visibility, asked.space, asked.vector, settings, asked.limit, out, besides=besides)
        find.beside(visibility, settings, out)

    def linked(self, visibility: VisibleSet, request: Request, rows: dict[str, list[Row]]) -> list[Row]:
        """Return the edges that lead on from the best hits, and add the records that they lead to."""
        settings = self.settings
        seeds = max(_SEEDS, settings.graph.seeds)
        # Links lead on from all that filters and the floor leave out.
        limit = max(seeds, request.limit)
        unfiltered = dataclasses.replace(request, limit=limit, where=None, floor=False, by_role=None)
        best = self.searcher().search(unfiltered).found
        ids = [hit.relation.entity_id(hit.row) for hit in best[:seeds]]
        edges, reached = find.linked_rows(visibility, ids, settings.graph.depth, settings.candidates_max)
        for kind, more in reached.items():
            rows[kind] = [*rows.get(kind, []), *more]
        return edges

    def _let_through(self, session: StatementSession, asked: Asked) -> dict[str, list[int]]:
        """Return the ordinals of the records that match a filter, by kind, where parameters cannot express it.

        All of them: a limit here would leave out matching records.
        """
        where, relations = asked.where, self._store.catalog.by_name
        if where is None:
            return {}
        return {
            kind: self._store.filter(where.predicates[kind], relations[kind]).ordinals(
                session, where.variables, check=asked.check
            )
            for kind in asked.kinds
            if parameters(relations[kind], where.predicates[kind]) is None
        }

    # --- a mirror of the candidates --------------------------------------------------------------

    def rows(self, session: StatementSession, kind: str, ordinals: Iterable[int]) -> list[Row]:
        """Return the records of a kind with these ordinals."""
        plan = self._store.plans[kind].get_many
        assert plan is not None
        return session.run(plan, (dump_json(sorted(ordinals)),))

    def request(
        self,
        visibility: VisibleSet,
        asked: Asked,
        position: Position,
        rows: Mapping[str, Sequence[Row]],
        stats: StoredStats | None,
        query: Query | None,
    ) -> Request:
        keys = [row[1] for kind in self.kinds for row in rows.get(kind, ())]
        packed = dump_json([key.hex().upper() for key in keys])
        if stats is None or asked.by_role is not None:
            uses = keys_of(keys, asked.readers.used_by)
            found = visibility.ask("search.usage_of", dump_json([key.hex().upper() for key in uses]))
            rows = {**rows, "usage": found}
        relations = {name: self._mirrors.mirror(name, rows.get(name, ())) for name in self.blank}
        spaces: dict[uuid.UUID, EmbeddingSpace] = {} if asked.space is None else {asked.space.space_id: asked.space}
        vectors: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        if stats is not None and asked.space is not None and asked.vector is not None:
            found = visibility.ask("search.vectors_of", asked.space.space_id.bytes, packed)
            vectors = self._mirrors.vectors(asked.space, found, relations)
        return Request(
            snapshot=ResidentSnapshot(position, relations, vectors, spaces, self._evaluator),
            text=asked.text,
            vector=asked.vector,
            without_vector=asked.without_vector,
            moment=asked.moment,
            space_id=None if asked.space is None else asked.space.space_id,
            kinds=visibility.kinds,
            limit=asked.limit,
            readers=asked.readers,
            as_of_us=asked.as_of_us,
            now_us=asked.now_us,
            stats=stats,
            query=query,
            where=asked.where,
            floor=asked.floor,
            by_role=asked.by_role,
        )


def terms_of(query: Query, stats: StoredStats, visibility: VisibleSet, searcher: Searcher) -> dict[str, float]:
    """Return the terms to look up for a query, with their rarity, and for prefixes also spellings."""
    unique = dict.fromkeys((*query.terms, *query.day_terms))
    for beginning in query.prefixes:
        for token in visibility.beginning(beginning):
            unique[token] = None
            if token.startswith(PART_MARK):
                unique.update(dict.fromkeys(searcher.terms_of(token.removeprefix(PART_MARK))))
    return {term: stats.rarity(term) for term in unique if stats.count(term)}
