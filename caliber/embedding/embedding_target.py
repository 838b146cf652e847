"""Embedding target, a provider with its space: vectors of texts and queries; and writing of a record's vectors.

Source: design section 4, C-245 to C-248, C-291, K-042.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caliber.engine.engine import Engine
from caliber.engine.refusals import long_text_rule
from caliber.engine.stale_inputs import check_erasures
from caliber.llm.cache import EmbeddingCache, EmbeddingKey, content_hash
from caliber.llm.embedding import Embedded, batch_error, embed_records
from caliber.llm.local.base import LocalEmbedding
from caliber.llm.protocols import EmbeddingProvider
from caliber.llm.retry import retrying
from caliber.llm.texts import LongTextMode
from caliber.model.embedding import CachedEmbedding, Embedding, EmbeddingSpace, SpaceState
from caliber.model.errors import CaliberError, Conflict, EmbeddingFailed
from caliber.model.events import EventType
from caliber.model.references import kind_named
from caliber.model.time import from_us
from caliber.resident.documents import headed
from caliber.schema.relations import EMBEDDING, EMBEDDING_CACHE, EMBEDDING_SPACE
from caliber.storage.write.unit_of_work import UnitOfWork

Vector = NDArray[np.float32]
Rows = NDArray[np.float32]
"""The vectors of one record. Shapes: f32[c, d]; c is 1 unless long texts have a vector for each chunk."""


CACHE_ENTRIES: Final = 10_000
"""Vectors of recent texts kept in memory."""


class MissingVector(NamedTuple):
    """A record that lacks a vector, and the text that it is to be made from."""

    kind: str
    owner: bytes
    text: str


class StoreVectorCache:
    """The durable side of the embedding cache: relation ``embedding_cache``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_many(self, keys: Sequence[EmbeddingKey]) -> Mapping[EmbeddingKey, Vector]:
        plans = self._engine.store.plans[EMBEDDING_CACHE.name]
        out: dict[EmbeddingKey, Vector] = {}
        with self._engine.store.read() as session:
            for key in keys:
                rows = session.run(plans.get, (key.content_hash, key.model_id, key.dimensions))
                if rows:
                    out[key] = np.frombuffer(plans.codec.decode(rows[0]).vector, "<f4").astype(np.float32)
        return out

    def mark(self) -> int:
        return self._engine.memory.erasures

    def put_many(self, items: Sequence[tuple[EmbeddingKey, Vector]], mark: int) -> None:
        now = from_us(self._engine.clock.now_us())

        def work(uow: UnitOfWork) -> None:
            check_erasures(uow, mark)
            for key, vector in items:
                raw = np.asarray(vector, "<f4").tobytes()
                uow.upsert(EMBEDDING_CACHE, CachedEmbedding(key.content_hash, key.model_id, key.dimensions, raw, now))

        self._engine.store.write(work)


def is_of(space: EmbeddingSpace, provider: EmbeddingProvider) -> bool:
    """Return whether a provider makes the vectors of a space."""
    return (space.model_id, space.dimensions) == (provider.model_id, provider.dimensions)


def embedded_text(head: str | None, text: str) -> str:
    """Return the text to embed for a record, after a note's subject or a turn's speaker.

    Without its head only half of the content would be searchable; a head without a text is not embedded.
    """
    return headed(head, text) if says_something(text) else text


def mean_vector(rows: Rows) -> Vector:
    """Return the vector by which a record of several vectors asks: their mean."""
    out: Vector = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return out


def says_something(text: str) -> bool:
    """Return whether there is anything to embed in a text."""
    return bool(text) and not text.isspace()


class EmbeddingTarget:
    """Turns texts into vectors of one space, and queues the records that wait for theirs.

    ``durable``: vectors are cached in the store, too.
    """

    def __init__(self, engine: Engine, provider: EmbeddingProvider, space: EmbeddingSpace, *, durable: bool) -> None:
        self._engine = engine
        self.provider: EmbeddingProvider = retrying(provider, engine.providers.retry)
        self.local = isinstance(provider, LocalEmbedding)
        """Whether the provider computes on this machine, so that nobody waits long for a vector."""
        self.space = space
        self.key = space.space_id.bytes
        self._batch = engine.config.embedding.batch_size
        self._long_text = long_text = long_text_rule(engine.config, provider, engine.count_text)
        # A query is compared as one vector, even if records have several.
        one = LongTextMode.CHUNK_MEAN if long_text.mode is LongTextMode.CHUNKS else long_text.mode
        self._query_rule = replace(long_text, mode=one)
        self._cache = EmbeddingCache(max_entries=CACHE_ENTRIES, store=StoreVectorCache(engine) if durable else None)
        # Queries stay off the disk: reading them there would cost a statement on the reader's path.
        self._queries = EmbeddingCache(max_entries=CACHE_ENTRIES)
        self.queue: deque[MissingVector] = deque()
        self.asking: Sequence[MissingVector] = ()
        self.refused: set[bytes] = set()
        """Owners whose texts this provider will never embed; asking for ever would starve the others."""
        self.failures = 0
        self.not_before_s = 0.0
        """When it may be asked again after failures, on the monotonic clock."""

    def _truncated(self, kind: str, texts: int, tokens: int) -> None:
        """Record that texts were embedded without their ends; ``tokens`` is the length of the longest."""
        payload = {"kind": kind, "texts": texts, "longest_tokens": tokens}
        self._engine.record(self._engine.event(EventType.EMBED_TRUNCATE, payload=payload))

    def waiting(self, sees: Callable[[bytes], bool] | None = None) -> int:
        """Return the number of records that wait for a vector, those being embedded included; of those it ``sees``."""
        if sees is None:
            return len(self.queue) + len(self.asking)
        return sum(sees(item.owner) for item in (*self.asking, *self.queue.copy()))

    def query(self, text: str) -> Vector:
        """Return the vector of a query, from memory when it was asked before; a long one has the mean of its chunks.

        Raises: LlmError kinds; Unavailable when the deadline of the call passes first.
        """
        (result,) = self.queries([text])
        if isinstance(result, CaliberError):
            raise result
        return result

    def queries(self, texts: Sequence[str]) -> list[Vector | CaliberError]:
        """Return the vectors of queries, embedded in one request; an error in place of a failed one.

        Raises: as ``query``, when it concerns them all.
        """
        if len(texts) == 1:
            # Only a text that is one piece is known by its own hash, so its vector is that of the whole.
            key = EmbeddingKey(content_hash(texts[0]), self.space.model_id, self.space.dimensions)
            known = self._queries.peek(key)
            if known is not None:
                return [known]
        results = embed_records(
            self.provider, self._queries, texts, long_text=self._query_rule, batch_size=self._batch, apart=False
        )
        cut = [result for result in results if not isinstance(result, CaliberError) and result.truncated]
        for result in cut:
            self._truncated("query", 1, result.tokens)
        return [result if isinstance(result, CaliberError) else result.rows[0] for result in results]

    def whole(self, kind: str, texts: Sequence[str]) -> list[Rows | None]:
        """Return the vectors of all texts, None for white space. Raises: LlmError kinds, naming which texts failed."""
        results = self.embedded(kind, texts, apart=False)
        failed = {at: result for at, result in enumerate(results) if isinstance(result, CaliberError)}
        if failed:
            raise batch_error(failed, len(texts))
        return [result.rows if isinstance(result, Embedded) else None for result in results]

    def embedded(self, kind: str, texts: Sequence[str], *, apart: bool) -> list[Embedded | CaliberError | None]:
        """Return vectors or an error per text; None for white space."""
        places = [at for at, text in enumerate(texts) if says_something(text)]
        results = embed_records(
            self.provider,
            self._cache,
            [texts[at] for at in places],
            long_text=self._long_text,
            batch_size=self._batch,
            apart=apart,
        )
        cut = [result.tokens for result in results if isinstance(result, Embedded) and result.truncated]
        if cut:
            self._truncated(kind, len(cut), max(cut))
        out: list[Embedded | CaliberError | None] = [None] * len(texts)
        for at, result in zip(places, results, strict=True):
            out[at] = result
        return out

    def at_once(self, kind: str, text: str) -> Vector | None:
        """Return the vector that a record will have, made now by a local provider; None where it waits for it."""
        (made,) = self.embedded(kind, [text], apart=True) if self.local else (None,)
        return mean_vector(made.rows) if isinstance(made, Embedded) else None

    def is_open(self, uow: UnitOfWork) -> bool:
        """Return whether the space still takes vectors: another program may have retired or dropped it."""
        space: EmbeddingSpace | None = uow.find(EMBEDDING_SPACE, self.key)
        return space is not None and space.state is not SpaceState.RETIRED

    def replace(self, uow: UnitOfWork, kind: str, owner: uuid.UUID, text: str, rows: Rows) -> None:
        """Write a record's vectors in the record's own transaction, replacing older ones."""
        if not self.is_open(uow):
            return
        old = None
        for chunk, row in enumerate(self._rows_of(kind, owner, text, rows, from_us(uow.now_us))):
            # Chunks are numbered without gaps: after a missing one there is none.
            old = uow.find(EMBEDDING, self.key, owner.bytes, chunk) if chunk == 0 or old is not None else None
            if old is None:
                uow.insert(EMBEDDING, row)
            else:
                uow.update(EMBEDDING, replace(row, version=old.version))
        chunk = len(rows)
        while old is not None:
            old = uow.find(EMBEDDING, self.key, owner.bytes, chunk)
            if old is not None:
                uow.delete(EMBEDDING, old)
            chunk += 1

    def add(self, uow: UnitOfWork, item: MissingVector, rows: Rows) -> bool:
        """Write the vectors of a record unless it has some by now; return whether they were written."""
        owner = uuid.UUID(bytes=item.owner)
        first, *others = self._rows_of(item.kind, owner, item.text, rows, from_us(uow.now_us))
        if not uow.insert_new(EMBEDDING, first):
            return False
        for row in others:
            uow.insert_new(EMBEDDING, row)
        return True

    def _rows_of(self, kind: str, owner: uuid.UUID, text: str, rows: Rows, now: datetime) -> list[Embedding]:
        """Return the rows of relation ``embedding`` that hold a record's vectors."""
        digest = content_hash(text)
        return [
            Embedding(
                self.space.space_id, kind_named(kind), owner, chunk, digest, np.asarray(vector, "<f4").tobytes(), now
            )
            for chunk, vector in enumerate(rows)
        ]

    def discard(self, hashes: Sequence[bytes]) -> None:
        """Forget cached vectors of given contents."""
        self._cache.discard(hashes)
        self._queries.discard(hashes)

    def clear(self) -> None:
        """Forget every vector that is cached in memory."""
        self._cache.clear()
        self._queries.clear()


Vectors = list[tuple[EmbeddingTarget, Rows]]
"""The vectors of one record, one for each space it is to be found in."""


def attach(uow: UnitOfWork, kind: str, owner: uuid.UUID, text: str, vectors: Vectors | None) -> None:
    """Write a record's vectors, if it has some by now, in the record's own transaction, replacing older ones."""
    for target, rows in vectors or ():
        target.replace(uow, kind, owner, text, rows)


def retired_elsewhere(target: EmbeddingTarget) -> Conflict:
    """Return the error of a target whose space another program retired or dropped."""
    return Conflict(
        f"the embedding space {target.space.name} was retired or dropped by another program; nothing is embedded in it "
        "until the store is opened again",
        entity_type="embedding_space",
        id=str(target.space.space_id),
        reason="retired elsewhere",
    )


def as_failure(error: Exception) -> CaliberError:
    """Return an error of ours, or that of a provider's own code by its type alone."""
    return error if isinstance(error, CaliberError) else EmbeddingFailed(reason=type(error).__name__)
