"""Administration of the database's full-text index: rebuild, complete, drop or check it."""

from __future__ import annotations

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.model.progress import Progress
from caliber.model.time import SystemClock
from caliber.search.in_database.full_text import WordIndexer, indexer_of
from caliber.search.in_database.opening import full_text_of
from caliber.storage.protocol import Store


def rebuild_full_text(config: CaliberConfig, progress: Progress | None = None) -> int:
    """Make the full text of a store anew; return how many texts it holds. Others may go on writing meanwhile.

    Raises: Unavailable, SchemaMismatch; InvalidConfigValue for a database that has no full text
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        full_text = full_text_of(store)
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
