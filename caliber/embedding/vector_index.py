"""Creation of the database's vector index (such as pgvector): at opening, before a model switch, or on demand.

A store whose records are all in memory has none, so that its writes stay cheap; a store that has one keeps one, also
when the model changes. Source: design, section 3; docs/decisions/0121.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from caliber.backends import backend
from caliber.config import CaliberConfig
from caliber.embedding.reembedding import in_use_of
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import CaliberError
from caliber.model.progress import Progress
from caliber.model.time import SystemClock
from caliber.schema.relations import EMBEDDING_SPACE
from caliber.storage.protocol import Store

Failed = Callable[[str, CaliberError], None]


def open_index(store: Store, config: CaliberConfig, space_id: uuid.UUID | None, failed: Failed) -> None:
    """Index the active space, if the database searches it and it holds few vectors yet.

    Without an index searches are slower, and results equally right: a failure is recorded, and does not prevent
    opening.
    """
    if store.vector_index is None or config.search.mode != "backend":
        return
    space = _space(store, space_id)
    if space is None:
        return
    try:
        store.vector_index.open(space)
    except CaliberError as error:
        failed("index", error)


def complete_index(
    store: Store,
    config: CaliberConfig,
    space: EmbeddingSpace,
    before: uuid.UUID | None,
    failed: Failed,
) -> None:
    """Index a space that has been filled and is about to be searched instead of the one before."""
    indexes = store.vector_index
    if indexes is None:
        return
    try:
        if config.search.mode == "backend" or (before is not None and indexes.of(before) is not None):
            indexes.build(space)
    except CaliberError as error:
        failed("index", error)


def build_index(store: Store, config: CaliberConfig, progress: Progress | None = None) -> bool:
    """Index the active space as configured, whatever its size, where the database searches it or has an index.

    Raises: Unavailable
    """
    indexes = store.vector_index
    if indexes is None:
        return False
    plans = store.plans[EMBEDDING_SPACE.name]
    with store.read() as session:
        space = in_use_of([plans.codec.decode(row) for row in session.run(plans.lists["list_all"], ())])
    if space is None or (config.search.mode != "backend" and indexes.of(space.space_id) is None):
        return False
    return indexes.build(space, progress)


def build_index_of(config: CaliberConfig, progress: Progress | None = None) -> bool:
    """Do as ``build_index``, with a store that need not be fit to be searched yet.

    Raises: Unavailable, SchemaMismatch
    """
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    try:
        return build_index(store, config, progress)
    finally:
        store.close()


def _space(store: Store, space_id: uuid.UUID | None) -> EmbeddingSpace | None:
    if space_id is None:
        return None
    plans = store.plans[EMBEDDING_SPACE.name]
    with store.read() as session:
        rows = session.run(plans.get, (space_id.bytes,))
    space: EmbeddingSpace | None = plans.codec.decode(rows[0]) if rows else None
    return space
