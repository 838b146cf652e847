"""Opening of the search in the database: checks the store's full-text index, and builds it in an empty store."""

from __future__ import annotations

from caliber.config import CaliberConfig
from caliber.model.errors import InvalidConfigValue
from caliber.resident.memory import ResidentMemory
from caliber.search.in_database.full_text import WordIndexer, indexer_of
from caliber.search.in_database.stored import StoredSearch, check_state
from caliber.storage.compile.paging import filled
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import FullText, texts_of


def open_stored_search(store: Store, memory: ResidentMemory, config: CaliberConfig) -> StoredSearch | None:
    """Return the search in the database; None where ``search.mode`` keeps records in memory.

    A store without records gets its index at once. In either mode our writes keep the index that a store has.

    Raises: SchemaMismatch for a store whose index is missing, incomplete, or of another language;
        InvalidConfigValue for a database that has no full text
    """
    if store.full_text is not None:
        store.full_text.keep(indexer_of)
    if config.search.mode != "backend":
        return None
    full_text = full_text_of(store)
    state = full_text.state()
    if (state is None or not state.complete) and _is_empty(store):
        full_text.rebuild(WordIndexer(config.search.keyword.language), unless_there=True)
        state = full_text.state()
    check_state(state, config.search, str(store.facts()["path"]), texts_of(store.catalog))
    return StoredSearch(store, full_text, memory, config.search, memory.snapshot.evaluator)


def full_text_of(store: Store) -> FullText:
    """Return a store's own full text. Raises: InvalidConfigValue."""
    if store.full_text is None:
        reason = f"the adapter {store.adapter} has no full text of its own; search its records in memory"
        raise InvalidConfigValue(field="search.mode", value="backend", reason=reason)
    return store.full_text


def _is_empty(store: Store) -> bool:
    with store.read() as session:
        return not filled(session, [store.plans[relation.name] for relation in texts_of(store.catalog)])
