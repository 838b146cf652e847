"""Opening of the search in the database: checks the store's full-text index, and builds it in an empty store."""

from __future__ import annotations

import time
from typing import Final

from caliber.config import CaliberConfig
from caliber.model.errors import InvalidConfigValue
from caliber.resident.memory import ResidentMemory
from caliber.search.in_database.full_text import WordIndexer, indexer_of, rebuild
from caliber.search.in_database.stored import StoredSearch, check_state
from caliber.storage.compile.paging import filled
from caliber.storage.protocol import Store
from caliber.storage.sql.full_text import FullText, FullTextState, texts_of

_OTHERS_S: Final = 5.0
_AGAIN_S: Final = 0.02
"""The time that another program has to build the index of an empty store, and the polling interval."""


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
    # Another program may be building it; for an empty store that takes a moment.
    if (state is None or not state.complete) and _is_empty(store):
        rebuild(full_text, WordIndexer(config.search.keyword.language), unless_there=True)
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


def full_text_of(store: Store) -> FullText:
    """Return a store's own full text. Raises: InvalidConfigValue."""
    if store.full_text is None:
        reason = f"the adapter {store.adapter} has no full text of its own; search its records in memory"
        raise InvalidConfigValue(field="search.mode", value="backend", reason=reason)
    return store.full_text


def _is_empty(store: Store) -> bool:
    with store.read() as session:
        return not filled(session, [store.plans[relation.name] for relation in texts_of(store.catalog)])
