"""Service that explains and replays the persisted windows of one principal, and facet ``memory.windows``."""

from __future__ import annotations

import uuid
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from caliber.config import CaliberConfig
from caliber.context.inputs import WindowFacts
from caliber.context.service import ContextService
from caliber.engine.engine import Engine
from caliber.explain.explainer import Explained, explain, explain_one, explained_of, labels_of
from caliber.explain.picture import Picture, Replayed
from caliber.explain.replayer import CurrentScore, rebuild_inputs, replay, score_now
from caliber.model import arguments
from caliber.model.context import AssemblyAction, StoredWindow
from caliber.model.errors import NotFound, StorageError
from caliber.model.references import EntityRef, Id
from caliber.model.window_diff import WindowDiff
from caliber.model.windows import ContextWindow
from caliber.search.opening import SearchEngine
from caliber.search.stored_content import StoredContents

if TYPE_CHECKING:
    from caliber.explain.diff import Side


class Explaining:
    """The explanations that one reader may have."""

    def __init__(self, engine: Engine, reader: ContextService) -> None:
        self._engine = engine
        self._reader = reader
        self._readers = reader.searching.readers
        self._shared = engine.part(SearchEngine)

    def replay(self, window_id: uuid.UUID) -> ContextWindow:
        """Return a persisted window byte for byte, by running ranking and fill again."""
        return self._replayed(*self._reader.recorded(window_id))

    def explain(self, window_id: uuid.UUID, exclusion: uuid.UUID | None) -> dict[str, Any]:
        """Return why each record of a window was included or excluded, or the reason for one record."""
        window, config, contents = self._reader.recorded(window_id)
        return explain(window.record, config, contents, exclusion=exclusion, score_now=self._score_now)

    def html(self, window_id: uuid.UUID) -> str:
        """Return a persisted window as a page, replayed and with the texts of the records left out."""
        from caliber.explain.page.render import render

        window, config, contents = self._reader.recorded(window_id)
        explained = explain(window.record, config, contents)
        again, replayed = self._again(window, config, contents)
        labels = labels_of(window.record, config, contents)
        return render(Picture(explained, again, replayed, labels))

    def diff(self, before: uuid.UUID, after: uuid.UUID) -> WindowDiff:
        """Return the difference of two persisted windows."""
        from caliber.explain.diff import compare

        first, _ = self._side(before)
        last, explained = self._side(after)
        plan = explained.decided.plan
        return compare(first, last, lambda text: plan.tokens(int(plan.estimator.lengths_of([text])[0])))

    def _side(self, window_id: uuid.UUID) -> tuple[Side, Explained]:
        """Return a window replayed, with the reason for each record."""
        from caliber.explain.diff import Key, Side

        window, config, contents = self._reader.recorded(window_id)
        explained = explained_of(window.record, config, contents)
        again, facts = self._replayed(window, config, contents), explained.record.facts
        reasons = {
            (item.source_type, item.target_id or item.section): item.reason
            for item in again.assembly_trace
            if item.action is not AssemblyAction.EXCLUDE
        }

        def reason(key: Key) -> str:
            found = reasons.get(key)
            if found is None and isinstance(key[1], uuid.UUID):
                found = str(explain_one(explained, key[1], self._score_now)["reason"])
            return found or "the window had no such text"

        return Side(again, facts.query, reason), explained

    def _replayed(self, window: StoredWindow, config: CaliberConfig, contents: StoredContents) -> ContextWindow:
        """Return a window that was read, replayed. Raises: as ``replay``."""
        try:
            return replay(window.record, config, contents)
        except NotFound:
            if self._readers.everything:  # nobody else is told whether a source was removed or is hidden
                raise
        reason = "a source of this window is gone, or you may no longer see it, so the window cannot be replayed"
        raise NotFound(reason, entity_type="context_window", id=window.window_id)

    def _again(
        self, window: StoredWindow, config: CaliberConfig, contents: StoredContents
    ) -> tuple[ContextWindow | None, Replayed]:
        """Return a window replayed, or None where it cannot be, and the comparison with what was recorded."""
        try:
            again = self._replayed(window, config, contents)
        except (NotFound, StorageError) as error:
            return None, Replayed("impossible", str(error))
        if sha256(again.text.encode()).digest() == window.text_hash:
            return again, Replayed("identical", "replay gave the recorded text again, byte for byte")
        return again, Replayed("different", "replay gave another text than the one recorded")

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


class Windows:
    """Persisted windows, as one principal sees them."""

    def __init__(self, engine: Engine, reader: ContextService) -> None:
        self._engine = engine
        self._reader = reader

    def html(self, window_id: Id, *, user: str | EntityRef | None = None) -> str:
        """Return a window as one HTML page that needs no network, with the result of its replay; docs/explain.md.

        ``user`` is whom the call is for, as in ``explain``.

        Raises: as ``explain``.
        """
        reader = self._reader.seen_by(user)
        return Explaining(self._engine, reader).html(arguments.as_uuid(window_id, "window_id"))

    def diff(self, before: Id, after: Id, *, user: str | EntityRef | None = None) -> WindowDiff:
        """Return why a prompt changed between two persisted windows, and where a provider's prompt cache broke.

        ``apply`` of the result makes the text of ``before`` that of ``after``. ``user`` is whom the call is for, as in
        ``explain``; docs/explain.md.

        Raises: as ``replay``, for either window.
        """
        first, last = arguments.as_uuid(before, "before"), arguments.as_uuid(after, "after")
        return Explaining(self._engine, self._reader.seen_by(user)).diff(first, last)
