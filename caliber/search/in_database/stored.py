"""Search for tenants whose records are not in memory: the database finds candidates, the usual searcher ranks them.

Candidates are read into a small mirror, which the same ``Searcher`` as that of resident memory searches. To it they are
the whole store: words are as rare as they are among them.

Source: design, section 5; docs/decisions/0209.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
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
from caliber.search.in_database.candidates import Candidates
from caliber.search.in_database.full_text import indexer_name
from caliber.search.in_database.vectors import StoredVectors
from caliber.search.query import Query
from caliber.search.ranking.days import newest_day
from caliber.search.request import Asked, Outcome, Request
from caliber.search.searcher import Searcher
from caliber.search.usage import keys_of
from caliber.storage.compile.codec import Row
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import FullText, FullTextState, holds, texts_of
from caliber.text.dates import Moment

NOT_RESIDENT: Final = "not_resident"
"""Why every result of this mode is degraded."""

_MAKE_ANEW: Final = "run `caliber db rebuild-search`"

_WORDS_KEPT: Final = 200_000
"""Distinct words of records read that are remembered between searches."""


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
    """Searches of one store that is not in memory. Safe to share between threads."""

    def __init__(
        self, store: Store, full_text: FullText, memory: ResidentMemory, settings: SearchConfig, evaluator: Evaluator
    ) -> None:
        self._settings = settings
        self._store = store
        self._full_text = full_text
        self.statements: Mapping[str, Plan] = full_text.statements
        self._name = str(store.facts()["path"])
        self._memory = memory
        self._evaluator = evaluator
        self._mirrors = PartialMirrors(evaluator, store.catalog)
        self._lock = threading.Lock()
        self.kinds = tuple(relation.name for relation in texts_of(store.catalog))
        """The relations that it searches."""
        self._vectors = StoredVectors(store, self.kinds)
        self._searcher = self._fresh()
        forms = ((each.name, each.resident) for each in store.catalog.mirrored)
        read = (name for name, resident in forms if resident.form is Mirror.ROWS and not resident.framed)
        self.blank = {name: self._mirrors.mirror(name, ()) for name in (*self.kinds, *read)}
        """Empty snapshots, against which filters are checked."""

    def forget_words(self) -> None:
        """Clear the caches of words and vectors: some may no longer be of any text."""
        self._vectors.forget(self._memory.sequence)
        self._searcher = self._fresh()

    def searcher(self) -> Searcher:
        """Return the searcher, a fresh one when this one remembers too many words."""
        with self._lock:
            if len(self._searcher.keywords.dictionary) > _WORDS_KEPT:
                self._searcher = self._fresh()
            return self._searcher

    def _fresh(self) -> Searcher:
        return Searcher(self._memory, self._settings, self.kinds)

    @managed
    def at_one_boundary(self) -> Iterator[Callable[[Asked], tuple[Outcome, Position]]]:
        """Yield a search of the store at one commit: it returns the best hits, and that position.

        Raises: SchemaMismatch; each search InvalidValue
        """
        with self._store.read() as session:
            state = self._full_text.state(session)
            sequence = session.run(self._store.statements["change.bounds"], ())[0][1]
            position = Position(self._store.epoch, sequence)
            yield lambda asked: (self._search(session, state, asked, position), position)

    def _search(
        self, session: StatementSession, state: FullTextState | None, asked: Asked, position: Position
    ) -> Outcome:
        self._check(state, asked)
        candidates = self.candidates(session, asked)
        query = self.read(candidates, asked, position) if asked.text.strip() else None
        rows = candidates.recent() if query is None else candidates.found(query)
        return self.searcher().search(self._request(candidates, asked, position, rows, query))

    def _check(self, state: FullTextState | None, asked: Asked) -> None:
        relations = self._store.catalog.by_name
        check_state(state, self._settings, self._name, [relations[kind] for kind in asked.kinds])

    def candidates(self, session: StatementSession, asked: Asked) -> Candidates:
        """Return the candidates of a search in a session; none is read yet."""
        return Candidates(session, self._store, self.statements, self._settings, self._vectors, asked)

    def checked(self, session: StatementSession, asked: Asked) -> None:
        """Refuse a full text that lacks searched texts. Raises: SchemaMismatch"""
        self._check(self._full_text.state(session), asked)

    def read(self, candidates: Candidates, asked: Asked, position: Position) -> Query:
        """Return the parsed query of a search; its days are relative to the newest record."""
        searcher = self.searcher()

        def newest(now: Moment) -> date:
            request = self._request(candidates, asked, position, candidates.listed("newest", 1), None)
            return newest_day(searcher.searched(request), now)

        return searcher.read(asked.text, asked.moment or Moment(asked.now_us), newest)

    def recently_used(self, kind: str, asked: Asked) -> list[Row]:
        """Return the records of a kind that were used last, or else entered last, the latest first."""
        with self._store.read() as session:
            return self.candidates(session, asked).listed("used", asked.limit)[kind]

    def _request(
        self,
        candidates: Candidates,
        asked: Asked,
        position: Position,
        rows: Mapping[str, Sequence[Row]],
        query: Query | None,
    ) -> Request:
        keys = [row[1] for some in rows.values() for row in some]
        mirrored = {**rows, "edge": list(candidates.edges.values())}
        if query is None or asked.by_role is not None:
            mirrored["usage"] = candidates.usage_of(keys_of(keys, asked.readers.used_by))
        made = {name: self._mirrors.mirror(name, some) for name, some in mirrored.items() if some}
        relations = {**self.blank, **made}
        spaces: dict[uuid.UUID, EmbeddingSpace] = {} if asked.space is None else {asked.space.space_id: asked.space}
        vectors: dict[tuple[str, uuid.UUID], VectorSnapshot] = {}
        if query is not None and asked.space is not None and asked.vector is not None:
            vectors = self._mirrors.vectors(asked.space, candidates.vectors_of(asked.space, keys), relations)
        return asked.over(ResidentSnapshot(position, relations, vectors, spaces, self._evaluator), query)
