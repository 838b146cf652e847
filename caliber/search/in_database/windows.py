"""Searches that one context window makes in the database: recall and injection rules, at one commit boundary.

Statistics over the whole store are counted once for all of them.

Source: design, section 5; docs/search.md.
"""

from __future__ import annotations

from functools import cached_property

from caliber.model.windows import Position
from caliber.search.in_database import candidates as find
from caliber.search.in_database.candidates import Candidates, VisibleSet
from caliber.search.in_database.stored import StoredSearch, terms_of
from caliber.search.request import Asked
from caliber.search.stats import StoredStats
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import StatementSession
from caliber.text.dates import Moment

Rows = dict[str, list[Row]]
"""Records by kind."""


class WindowSearch:
    """Searches of one session. ``every`` asks for all kinds, without filters.

    Raises: SchemaMismatch when the full text cannot be trusted
    """

    def __init__(self, search: StoredSearch, session: StatementSession, every: Asked, position: Position) -> None:
        search.check(search.full_text.state(session), every)
        self._search = search
        self._session = session
        self._every = every
        self._position = position

    @cached_property
    def _visibility(self) -> VisibleSet:
        return self._search.visibility(self._session, self._every)

    @cached_property
    def stats(self) -> StoredStats:
        """Counts over the store."""
        return self._search.stats(self._visibility)

    @cached_property
    def _terms(self) -> dict[str, float]:
        visibility, stats, searcher = self._visibility, self.stats, self._search.searcher()
        query = searcher.read(self._every.text, self._every.moment or Moment(self._every.now_us), stats.newest)
        return terms_of(query, stats, visibility, searcher)

    def matching(self, asked: Asked) -> dict[str, int]:
        """Return how many records of each kind may be hits."""
        visibility = self._search.visibility(self._session, asked, {})
        return {kind: visibility.matching(kind) for kind in visibility.kinds}

    def found(self, asked: Asked, *, besides: int = 0) -> Rows:
        """Return the candidates of a search; ``besides`` as for ``StoredSearch.collect``."""
        search, found = self._search, Candidates(self._search.settings.candidates_max)
        visibility = search.visibility(self._session, asked, self.stats.kinds)
        stats = self.stats.of(visibility.kinds)
        query = search.searcher().read(asked.text, asked.moment or Moment(asked.now_us), stats.newest)
        if query.when is not None:
            stats.count_of_days(query.when)  # asked now: the figures outlive the session
        search.collect(visibility, asked, query, self._terms, found, besides=besides)
        rows = self._rows(found)
        if stats.linked and asked.text.strip():
            search.linked(visibility, search.request(visibility, asked, self._position, rows, stats, query), rows)
        return rows

    def nearest(self, asked: Asked, *, besides: int = 0) -> Rows:
        """Return the records whose vectors are nearest, however far they are."""
        found = Candidates(self._search.settings.candidates_max)
        if asked.vector is not None and asked.space is not None:
            visibility = self._search.visibility(self._session, asked, {})
            settings = self._search.settings
            find.by_vector(
                visibility, asked.space, asked.vector, settings, asked.limit, found, least=-1.0, besides=besides
            )
        return self._rows(found)

    def newest(self, asked: Asked, limit: int) -> Rows:
        """Return the newest records of each kind."""
        found = Candidates(limit)
        visibility = self._search.visibility(self._session, asked, {})
        for kind in visibility.kinds if limit else ():
            find.newest(visibility, kind, limit, found)
        return self._rows(found)

    def _rows(self, found: Candidates) -> Rows:
        return {kind: self._search.rows(self._session, kind, ordinals) for kind, ordinals in found.rows.items()}
