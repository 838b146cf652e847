"""Search subsystem of one open tenant: searcher, filters and caches that all principals share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from caliber.config.cron import zone_of
from caliber.engine.engine import Engine
from caliber.resident.snapshot import ResidentSnapshot
from caliber.search.filtering.filters import kinds_of
from caliber.search.filtering.visible import Filters
from caliber.search.in_database.stored import StoredRecords, open_stored_search
from caliber.search.searcher import Searcher
from caliber.search.usage import UsageCounts

if TYPE_CHECKING:
    from caliber.access.visibility import Readers
    from caliber.model.guard.validation import ValidationIssue


class ReadCheck(Protocol):
    """Checks what searches and windows return, by rules, in native memory."""

    def issues(self, readers: Readers, keys: Iterable[uuid.UUID]) -> tuple[ValidationIssue, ...]:
        """Return the findings about some records that ``readers`` may see."""
        ...


class SearchEngine:
    """The searcher of resident memory, compiled filters, and the search in the database where that is configured.

    ``stored`` and ``records`` are None for a tenant whose records are in memory.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kinds = kinds_of(engine.store.catalog)
        self.searcher = self.fresh()
        self.filters = Filters(engine.store.catalog.binding)
        self.usage = UsageCounts()
        self.zone = zone_of(engine.config.time_zone)
        self.read_check: ReadCheck | None = None
        """Checks results, where ``validation_mode`` is always and records are in memory."""
        self.stored = open_stored_search(engine.store, engine.memory, engine.config)
        self.records = None if self.stored is None else StoredRecords(engine.store, self.stored, engine.config)

    def fresh(self) -> Searcher:
        """Return a searcher of this tenant's memory that has no words cached."""
        return Searcher(self._engine.memory, self._engine.config.search, tuple(self.kinds.values()))

    def around(
        self,
        snapshot: ResidentSnapshot,
        trajectory_id: uuid.UUID,
        scopes: Iterable[uuid.UUID],
        things: Sequence[tuple[str, str]] = (),
    ) -> ResidentSnapshot:
        """Return a snapshot with the records for a call about a trajectory: the given one if memory holds all."""
        return snapshot if self.records is None else self.records.around(snapshot, trajectory_id, scopes, things)

    def warm(self, stopped: Callable[[], bool]) -> None:
        """Build the structures that the first search needs, so that it does not wait for them."""
        self.searcher.warm(self._engine.memory.snapshot, stopped)

    def forget_words(self) -> None:
        """Clear the caches of words, stems and filters."""
        self.filters.clear()
        self.searcher = self.fresh()
        if self.stored is not None:
            self.stored.forget_words()
