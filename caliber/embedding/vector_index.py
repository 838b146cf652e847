"""Creation of the database's vector index (such as pgvector): at opening, before a model switch, or on demand.

A store whose records are all in memory has none, so that its writes stay cheap; a store that has one keeps one, also
when the model changes. Source: design, section 3; docs/decisions/0121.
"""

from __future__ import annotations

from caliber.config import CaliberConfig
from caliber.embedding.reembedding import in_use_of
from caliber.engine.engine import Engine
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import CaliberError
from caliber.model.progress import Progress
from caliber.schema.relations import EMBEDDING_SPACE
from caliber.storage.protocol import Store


def open_index(engine: Engine) -> None:
    """Index the active space, if the database searches it and it holds few vectors yet.

    Without an index searches are slower, and results equally right: a failure is recorded, and does not prevent
    opening.
    """
    store, space_id = engine.store, engine.memory.snapshot.space_in_use
    if store.vector_index is None or engine.config.search.mode != "backend" or space_id is None:
        return
    plans = store.plans[EMBEDDING_SPACE.name]
    with store.read() as session:
        rows = session.run(plans.get, (space_id.bytes,))
    if rows:
        try:
            store.vector_index.open(plans.codec.decode(rows[0]))
        except CaliberError as error:
            engine.record_error("embedding index", error)


def complete_index(engine: Engine, space: EmbeddingSpace) -> None:
    """Index a space that has been filled and is about to be searched instead of the one before."""
    indexes, before = engine.store.vector_index, engine.memory.snapshot.space_in_use
    if indexes is None:
        return
    try:
        if engine.config.search.mode == "backend" or (before is not None and indexes.of(before) is not None):
            indexes.build(space)
    except CaliberError as error:
        engine.record_error("embedding index", error)


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
