"""Searches through the database for one window: what is recalled, and what rules take.

All of them are asked at one boundary, of one query; what is counted over the store is counted once.

Source: design, section 5; docs/search.md.
"""

from __future__ import annotations

from functools import cached_property

from caliber.model.windows import Position
from caliber.search.figures import StoredFigures
from caliber.search.in_database import candidates as find
from caliber.search.in_database.candidates import Candidates, Sight
from caliber.search.in_database.stored import StoredSearch, terms_of
from caliber.search.request import Asked
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import StatementSession

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
    def _sight(self) -> Sight:
        return self._search.sight(self._session, self._every)

    @cached_property
    def figures(self) -> StoredFigures:
        """Counts over the store."""
        return self._search.figures(self._sight)

    @cached_property
    def _terms(self) -> dict[str, float]:
        sight, figures, searcher = self._sight, self.figures, self._search.searcher()
        query = searcher.read(self._every.text, lambda: figures.today(sight.now_us))
        return terms_of(query, figures, sight, searcher)

    def matching(self, asked: Asked) -> dict[str, int]:
        """Return how many records of each kind may be hits."""
        sight = self._search.sight(self._session, asked, {})
        return {kind: sight.matching(kind) for kind in sight.kinds}

    def found(self, asked: Asked, *, besides: int = 0) -> Rows:
        """Return the records that a search looks at; ``besides`` as for ``StoredSearch.collect``."""
        search, found = self._search, Candidates(self._search.settings.candidates_max)
        sight = search.sight(self._session, asked, self.figures.kinds)
        figures = self.figures.of(sight.kinds)
        query = search.searcher().read(asked.text, lambda: figures.today(sight.now_us))
        if query.when is not None:
            figures.count_of_days(query.when)  # asked now: the figures outlive the session
        search.collect(sight, asked, query, self._terms, found, besides=besides)
        rows = self._rows(found)
        if figures.linked and asked.text.strip():
            search.linked(sight, search.request(sight, asked, self._position, rows, figures, query), rows)
        return rows

    def nearest(self, asked: Asked, *, besides: int = 0) -> Rows:
        """Return the records whose vectors are nearest, however far they are."""
        found = Candidates(self._search.settings.candidates_max)
        if asked.vector is not None and asked.space is not None:
            sight = self._search.sight(self._session, asked, {})
            settings = self._search.settings
            find.by_vector(sight, asked.space, asked.vector, settings, asked.limit, found, least=-1.0, besides=besides)
        return self._rows(found)

    def newest(self, asked: Asked, limit: int) -> Rows:
        """Return the newest records of each kind."""
        found = Candidates(limit)
        sight = self._search.sight(self._session, asked, {})
        for kind in sight.kinds if limit else ():
            find.newest(sight, kind, limit, found)
        return self._rows(found)

    def _rows(self, found: Candidates) -> Rows:
        return {kind: self._search.rows(self._session, kind, ordinals) for kind, ordinals in found.rows.items()}
