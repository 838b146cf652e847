"""Service that explains and replays the persisted windows of one principal."""

from __future__ import annotations

import uuid
from typing import Any

from caliber.context.facts import WindowFacts
from caliber.context.service import Reader
from caliber.engine.engine import Engine
from caliber.explain.explainer import explain
from caliber.explain.replayer import replay
from caliber.explain.rescore import CurrentScore, rebuild_inputs, score_now
from caliber.model.errors import NotFound
from caliber.model.windows import ContextWindow
from caliber.search.opening import SearchEngine


class Explaining:
    """The explanations that one reader may have."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self._engine = engine
        self._reader = reader
        self._readers = reader.searching.readers
        self._shared = engine.part(SearchEngine)

    def replay(self, window_id: uuid.UUID) -> ContextWindow:
        """Return a persisted window byte for byte, by running ranking and fill again."""
        window, config, contents = self._reader.recorded(window_id)
        try:
            return replay(window.record, config, contents)
        except NotFound:
            if self._readers.everything:  # nobody else is told whether a source was removed or is hidden
                raise
        reason = "a source of this window is gone, or you may no longer see it, so the window cannot be replayed"
        raise NotFound(reason, entity_type="context_window", id=window_id)

    def explain(self, window_id: uuid.UUID, exclusion: uuid.UUID | None) -> dict[str, Any]:
        """Return why each record of a window was included or excluded, or the reason for one record."""
        window, config, contents = self._reader.recorded(window_id)
        return explain(window.record, config, contents, exclusion=exclusion, score_now=self._score_now)

    def _score_now(self, record_id: uuid.UUID, facts: WindowFacts) -> CurrentScore | None:
        """Return the present relevance of a record to a window's query; None when it has none."""
        engine = self._engine
        if self._shared.records is not None:  # a score compares with those of all other records
            return None
        snapshot = engine.memory.snapshot
        found = snapshot.locate(record_id.bytes)
        if found is None or facts.config_hash != engine.config.hash.hex():
            return None
        masks = self._readers.acting_for(facts.trajectory_id).masks(snapshot)
        return score_now(
            rebuild_inputs(facts, snapshot, engine.config, masks), *found, self._shared.searcher, engine.memory
        )
