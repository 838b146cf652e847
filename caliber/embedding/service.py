"""Embedding subsystem of one open tenant: opens providers, spaces and worker; gives services vectors to commit."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from caliber.embedding.embedder import Embedder
from caliber.embedding.embedding_target import EmbeddingTarget, Vectors, attach, is_of
from caliber.embedding.reembedding import enter_space, open_index
from caliber.engine.engine import Engine
from caliber.llm.protocols import EmbeddingProvider
from caliber.model.embedding import EmbeddingSpace
from caliber.model.errors import CaliberError
from caliber.resident.snapshot import ResidentSnapshot
from caliber.storage.write.unit_of_work import UnitOfWork

_SETTLED_BATCHES: Final = 8
"""Batches of records for whose vectors a caller may wait: an import goes on behind."""


class Embeddings:
    """Embeds for the services of a tenant. ``embedder`` is None without an embedding provider."""

    def __init__(self, embedder: Embedder | None) -> None:
        self.embedder = embedder

    def vectors(self, kind: str, texts: Sequence[str], *, apart: bool = False) -> list[Vectors | None]:
        """Return the vectors to commit with records, if they get any now. Raises: as ``Embedder.prepare``."""
        return [None] * len(texts) if self.embedder is None else self.embedder.prepare(kind, texts, apart=apart)

    def vector(self, kind: str, text: str) -> Vectors | None:
        """As ``vectors``, of one record."""
        return self.vectors(kind, [text])[0]

    def settle(self) -> None:
        """Return once what was written has vectors, if providers of this machine make them and it is not much."""
        embedder = self.embedder
        if embedder is None or not all(target.local for target in embedder.targets):
            return
        with suppress(CaliberError):  # the worker goes on, and reports what fails
            for _ in range(_SETTLED_BATCHES):
                if not embedder.waiting():
                    return
                embedder.embed_waiting()

    def attach(self, uow: UnitOfWork, kind: str, owner: uuid.UUID, text: str, vectors: Vectors | None) -> None:
        """Write a record's vectors, if it has some by now, in the record's own transaction."""
        attach(uow, kind, owner, text, vectors)

    def searched(self, snapshot: ResidentSnapshot, *, given: bool = False) -> EmbeddingSpace | None:
        """Return the embedding space that is searched at a boundary.

        None without one, and without an embedding provider, unless the caller has ``given`` the vector of the query.
        """
        if snapshot.space_in_use is None or (self.embedder is None and not given):
            return None
        return snapshot.spaces[snapshot.space_in_use]


def open_embeddings(engine: Engine) -> None:
    """Add the tenant's embeddings, and let their worker follow its commits.

    Raises: DTypeError for an object that is no provider, MultipleErrors for wrong dimensions; ExtraNotInstalled.
    """
    provider, durable = engine.providers.embedding()
    embedder = None if provider is None else _open_embedder(engine, provider, durable=durable)
    engine.add(Embeddings(embedder))
    if embedder is not None:
        engine.follow(embedder)
        if embedder.embedded:
            embedder.start()


def _open_embedder(engine: Engine, provider: EmbeddingProvider, *, durable: bool) -> Embedder:
    """Embed with ``provider``, and with the previous one while its space is the one that is searched."""
    space = enter_space(engine, provider)
    open_index(engine)
    target = EmbeddingTarget(engine, provider, space, durable=durable)
    snapshot = engine.memory.snapshot
    in_use = None if snapshot.space_in_use is None else snapshot.spaces[snapshot.space_in_use]
    return Embedder(engine, target, _earlier_target(engine, in_use, space))


def _earlier_target(engine: Engine, in_use: EmbeddingSpace | None, space: EmbeddingSpace) -> EmbeddingTarget | None:
    """Return the provider before this one beside the space that is searched, as long as that is its own."""
    provider, durable = engine.providers.previous()
    if provider is None or in_use is None or in_use.space_id == space.space_id or not is_of(in_use, provider):
        return None
    return EmbeddingTarget(engine, provider, in_use, durable=durable)
