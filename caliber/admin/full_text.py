"""Administration of the database's full-text index: rebuild, complete, drop or check it."""

from __future__ import annotations

from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.model.progress import Progress, unheard
from caliber.search.in_database.full_text import WordIndexer, indexer_of
from caliber.search.in_database.opening import full_text_of
from caliber.storage.protocol import Store


def rebuild_full_text(config: CaliberConfig, progress: Progress | None = None) -> int:
    """Rebuild the full text of a store; return the number of texts. Writers wait meanwhile.

    Raises: Unavailable, SchemaMismatch; InvalidConfigValue for a database that has no full text
    """
    with bare_store(config) as store:
        return full_text_of(store).rebuild(WordIndexer(config.search.keyword.language), progress or unheard)


def complete_full_text(config: CaliberConfig, progress: Progress | None = None) -> int | None:
    """Rebuild the full text of a store if it is incomplete, as after a migration that changed searched fields.

    Return how many texts it holds; None for a store that has none, or a complete one.
    """
    with bare_store(config) as store:
        state = None if store.full_text is None else store.full_text.state()
        if store.full_text is None or state is None or state.complete:
            return None
        indexer = indexer_of(state.analyzer) or WordIndexer(config.search.keyword.language)
        return store.full_text.rebuild(indexer, progress or unheard)


def drop_full_text(config: CaliberConfig) -> bool:
    """Remove the full text of a store, which writes pay for; return whether there was one."""
    with bare_store(config) as store:
        return store.full_text is not None and store.full_text.drop()


def check_full_text(store: Store, config: CaliberConfig) -> list[str]:
    """Return in what full text and records disagree; empty when sound, or when there is none."""
    full_text = store.full_text
    state = None if full_text is None else full_text.state()
    if full_text is None or state is None:
        return []
    indexer = indexer_of(state.analyzer)
    return full_text.check(WordIndexer(config.search.keyword.language) if indexer is None else indexer)
