"""A store's own full text: kept by whoever writes, asked where ``search.mode`` says so, made anew on request."""

from __future__ import annotations

import time
from typing import Final

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.model.errors import InvalidConfigValue
from caliber.model.time import SystemClock
from caliber.resident.memory import ResidentMemory
from caliber.search.in_database.full_text import WordIndexer, indexer_of
from caliber.search.in_database.stored import StoredSearch, check_state
from caliber.storage.full_text import FullText, FullTextState, Progress, texts_of
from caliber.storage.protocol import Store

_OTHERS_S: Final = 5.0
_AGAIN_S: Final = 0.02
"""How long another program may take to make the index of an empty store, and how often it is looked at."""


def open_stored_search(store: Store, memory: ResidentMemory, config: CaliberConfig) -> StoredSearch | None:
    """Return what searches through the database; None where ``search.mode`` keeps records in memory.

    A store without records gets its index at once. In either mode our writes keep the index that a store has.

    Raises: SchemaMismatch for a store whose index is missing, incomplete, or of another language;
        InvalidConfigValue for a database that has no full text
    """
    if store.full_text is not None:
        store.full_text.keep(indexer_of)
    if config.search.mode != "backend":
        return None
    full_text = _of(store)
    state = full_text.state()
    # Begun by another program but not done: of an empty store, that is a matter of a moment.
    if (state is None or not state.complete) and _is_empty(store):
        full_text.rebuild(WordIndexer(config.search.keyword.language), unless_there=True)
        state = _finished(full_text)
    check_state(state, config.search, str(store.facts()["path"]), texts_of(store.catalog))
    return StoredSearch(store, full_text, memory, config.search, memory.snapshot.evaluator)


def _finished(full_text: FullText) -> FullTextState | None:
    """Return the state of an index that was just made, or that another program began to make at the same moment."""
    until = time.monotonic() + _OTHERS_S
    while True:
        state = full_text.state()
        if state is None or state.complete or time.monotonic() > until:
            return state
        time.sleep(_AGAIN_S)


def _of(store: Store) -> FullText:
    if store.full_text is None:
        reason = f"the adapter {store.adapter} has no full text of its own; search its records in memory"
        raise InvalidConfigValue(field="search.mode", value="backend", reason=reason)
    return store.full_text


def _is_empty(store: Store) -> bool:
    with store.read() as session:
        return not any(session.run(store.plans[relation.name].page, (-1, 1)) for relation in texts_of(store.catalog))


def rebuild_full_text(config: CaliberConfig, progress: Progress | None = None) -> int:
    """Make the full text of a store anew; return how many texts it holds. Others may go on writing meanwhile.

    Raises: Unavailable, SchemaMismatch; InvalidConfigValue for a database that has no full text
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        full_text = _of(store)
        full_text.keep(indexer_of)
        return full_text.rebuild(WordIndexer(config.search.keyword.language), progress)
    finally:
        store.close()


def complete_full_text(config: CaliberConfig, progress: Progress | None = None) -> int | None:
    """Make the full text of a store anew if it is not complete, as after a migration that changed what is searched.

    Return how many texts it holds; None for a store that has none, or a complete one.
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        state = None if store.full_text is None else store.full_text.state()
        if store.full_text is None or state is None or state.complete:
            return None
        store.full_text.keep(indexer_of)
        indexer = indexer_of(state.analyzer) or WordIndexer(config.search.keyword.language)
        return store.full_text.rebuild(indexer, progress)
    finally:
        store.close()


def drop_full_text(config: CaliberConfig) -> bool:
    """Remove the full text of a store, which writes pay for; return whether there was one."""
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        return store.full_text is not None and store.full_text.drop()
    finally:
        store.close()


def check_full_text(store: Store, config: CaliberConfig) -> list[str]:
    """Return in what full text and records disagree; empty when sound, or when there is none."""
    full_text = store.full_text
    state = None if full_text is None else full_text.state()
    if full_text is None or state is None:
        return []
    indexer = indexer_of(state.analyzer)
    return full_text.check(WordIndexer(config.search.keyword.language) if indexer is None else indexer)
