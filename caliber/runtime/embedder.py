"""Embeddings of one tenant: prepared before a commit, or added behind it by a worker.

What lacks a vector is found by the absence of its row, so nothing is forgotten by a crash.
Source: design section 4, C-245 to C-248, C-291, K-042.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from caliber.config import CaliberConfig
from caliber.kernels import uuid7
from caliber.llm.cache import EmbeddingCache, EmbeddingKey, content_hash
from caliber.llm.embedding import Embedded, batch_error, embed_records
from caliber.llm.protocols import CountingEmbedding, EmbeddingProvider
from caliber.llm.texts import LongText, LongTextMode, TokenCounter
from caliber.model.entities import CachedEmbedding, Embedding, EmbeddingSpace
from caliber.model.enums import DistanceMetric, EmbedMode, EntityType, SpaceState
from caliber.model.errors import (
    AuthenticationFailed,
    CaliberError,
    ConfigError,
    DimensionMismatch,
    EmbeddingFailed,
    IncompatibleOptions,
    MultipleErrors,
)
from caliber.model.ids import SpaceId
from caliber.model.time import from_us
from caliber.resident.documents import document_of, headed
from caliber.schema.relations import BY_NAME, EMBEDDING, EMBEDDING_CACHE, EMBEDDING_SPACE
from caliber.storage.changes import UPSERT
from caliber.storage.codec import Row, codec_of
from caliber.storage.protocol import Store
from caliber.storage.unit_of_work import RowChange, UnitOfWork

Vector = NDArray[np.float32]
Rows = NDArray[np.float32]
"""The vectors of one record. Shapes: f32[c, d]; c is 1 unless long texts have a vector for each chunk."""

_OWNER = codec_of(EMBEDDING).index("owner_id")
_LAST = 2**62
"""Beyond every ordinal."""

_SCAN_LIMIT = 4_096
"""Rows one look for missing vectors takes into memory; the next look finds the rest."""

_NOT_OF_THE_TEXT = (AuthenticationFailed, ConfigError, DimensionMismatch)
"""What no text is at fault for: it waits until somebody has mended it, as for an outage."""

MODES = {"turn": "embed_turns", "note": "embed_notes", "artifact": "embed_artifacts", "scope": "embed_summaries"}


class StoreVectorCache:
    """The durable side of the embedding cache: relation ``embedding_cache``."""

    def __init__(self, store: Store, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._clock_us = clock_us

    def get_many(self, keys: Sequence[EmbeddingKey]) -> Mapping[EmbeddingKey, Vector]:
        plans = self._store.plans[EMBEDDING_CACHE.name]
        out: dict[EmbeddingKey, Vector] = {}
        with self._store.read() as session:
            for key in keys:
                rows = session.run(plans.get, (key.content_hash, key.model_id, key.dimensions))
                if rows:
                    out[key] = np.frombuffer(plans.codec.decode(rows[0]).vector, "<f4").astype(np.float32)
        return out

    def put_many(self, items: Sequence[tuple[EmbeddingKey, Vector]]) -> None:
        now = from_us(self._clock_us())

        def work(uow: UnitOfWork) -> None:
            for key, vector in items:
                raw = np.asarray(vector, "<f4").tobytes()
                uow.upsert(EMBEDDING_CACHE, CachedEmbedding(key.content_hash, key.model_id, key.dimensions, raw, now))

        self._store.write(work)


def long_text_rule(config: CaliberConfig, provider: EmbeddingProvider, count_tokens: TokenCounter) -> LongText:
    """Return the rule for long texts, counted by the provider's own tokenizer where it has one.

    Raises: IncompatibleOptions when the model would not read all of a piece.
    """
    settings = config.embedding
    if isinstance(provider, CountingEmbedding):
        count_tokens = provider.count_tokens
        if settings.long_text_tokens > provider.max_tokens:
            raise IncompatibleOptions(
                option_a="embedding.long_text_tokens",
                option_b="embedding_provider",
                reason=f"of {settings.long_text_tokens} tokens a piece the model would read {provider.max_tokens}",
            )
    return LongText(LongTextMode(settings.long_text), settings.long_text_tokens, count_tokens)


def embedded_text(head: str | None, text: str) -> str:
    """Return what is embedded for a record: its text, and before it what a note is about or who says a turn.

    Without its head it would be found by half of what it says; a head alone says nothing.
    """
    return headed(head, text) if _says_something(text) else text


def _says_something(text: str) -> bool:
    """Return whether there is anything to embed in a text."""
    return bool(text) and not text.isspace()


def _places(kind: str) -> tuple[int, int]:
    """Return where id and text stand in a row."""
    codec = codec_of(BY_NAME[kind])
    return codec.index(f"{kind}_id"), codec.index("summary" if kind == "scope" else "content")


class Embedder:
    """Turns records into vectors of the tenant's space."""

    def __init__(
        self,
        store: Store,
        provider: EmbeddingProvider,
        config: CaliberConfig,
        *,
        clock_us: Callable[[], int],
        long_text: LongText,
        failed: Callable[[str, CaliberError], None],
        truncated: Callable[[str, int, int], None],
        has_vector: Callable[[str, uuid.UUID, bytes], bool],
        durable_cache: bool,
    ) -> None:
        settings = config.embedding
        if config.vector is not None and provider.dimensions != config.vector.dimensions:
            raise MultipleErrors(
                errors=[
                    IncompatibleOptions(
                        option_a="vector.dimensions",
                        option_b="embedding_provider",
                        reason=f"the provider gives {provider.dimensions}, the space has {config.vector.dimensions}",
                    )
                ]
            )
        self._store = store
        self.provider = provider
        self._clock_us = clock_us
        self._failed = failed
        self._truncated = truncated
        self._batch = settings.batch_size
        self._idle_s = settings.worker_idle_ms / 1000
        self._longest_idle_s = max(self._idle_s, config.llm_retry_config.max_backoff / 1000)
        self._long_text = long_text
        # A query is compared as one vector, whatever records have.
        one = LongTextMode.CHUNK_MEAN if long_text.mode is LongTextMode.CHUNKS else long_text.mode
        self._query_rule = replace(long_text, mode=one)
        backing = StoreVectorCache(store, clock_us) if durable_cache else None
        self._cache = EmbeddingCache(max_entries=settings.cache_entries, store=backing)
        # Queries stay off the disk: reading them there would cost a statement on the reader's path.
        self._queries = EmbeddingCache(max_entries=settings.cache_entries)
        self.modes = {kind: EmbedMode(getattr(settings, knob)) for kind, knob in MODES.items()}
        metric = config.vector.distance_metric if config.vector is not None else DistanceMetric.COSINE
        self.space = self._ensure_space(metric)
        self._refused: dict[str, set[bytes]] = {kind: set() for kind in MODES}
        self._queue: deque[tuple[str, bytes, str]] = deque()
        self._asking = 0
        self._has_vector = has_vector
        self._places = {kind: _places(kind) for kind in self.embedded}
        self._draining = threading.Lock()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def _ensure_space(self, metric: DistanceMetric) -> EmbeddingSpace:
        wanted = (self.provider.model_id, self.provider.dimensions, metric)

        def find() -> EmbeddingSpace | None:
            plans = self._store.plans[EMBEDDING_SPACE.name]
            with self._store.read() as session:
                for row in session.run(plans.page, (-1, 10_000)):
                    space: EmbeddingSpace = plans.codec.decode(row)
                    if (space.model_id, space.dimensions, space.metric) == wanted:
                        return space
            return None

        found = find()
        if found is None:
            now = from_us(self._clock_us())
            fresh = EmbeddingSpace(SpaceId(uuid7()), *wanted, SpaceState.ACTIVE, now)
            self._store.write(lambda uow: uow.insert_new(EMBEDDING_SPACE, fresh))
            found = find()
        assert found is not None
        return found

    # --- now -------------------------------------------------------------------------------------

    def query(self, text: str) -> Vector:
        """Return the vector of a query, from memory when it was asked before; a long one has the mean of its chunks.

        Raises: LlmError kinds; Unavailable when the deadline of the call passes first.
        """
        (result,) = embed_records(self.provider, self._queries, [text], long_text=self._query_rule, apart=False)
        if isinstance(result, CaliberError):
            raise result
        if result.truncated:
            self._truncated("query", 1, result.tokens)
        vector: Vector = result.rows[0]
        return vector

    def prepare(self, kind: str, texts: Sequence[str]) -> list[Rows | None] | None:
        """Return the vectors to commit with the records, or None when this kind is embedded behind or not at all.

        White space has no meaning to embed: it is stored without a vector.

        Raises: LlmError kinds; the caller then stores nothing.
        """
        if self.modes[kind] is not EmbedMode.COMMIT or not texts:
            return None
        results = self._embedded(kind, texts, apart=False)
        failed = {at: result for at, result in enumerate(results) if isinstance(result, CaliberError)}
        if failed:
            raise batch_error(failed, len(texts))
        return [result.rows if isinstance(result, Embedded) else None for result in results]

    def prepare_each(self, kind: str, texts: Sequence[str]) -> list[Rows | None] | None:
        """As ``prepare``, for texts that were found, not given: one that has no vector does not cost the others theirs.

        Raises: LlmError kinds of an outage.
        """
        if self.modes[kind] is not EmbedMode.COMMIT or not texts:
            return None
        out: list[Rows | None] = []
        for result in self._embedded(kind, texts, apart=True):
            if isinstance(result, CaliberError):
                if result.retryable:
                    raise result
                self._failed(kind, result)
            out.append(result.rows if isinstance(result, Embedded) else None)
        return out

    def _embedded(self, kind: str, texts: Sequence[str], *, apart: bool) -> list[Embedded | CaliberError | None]:
        """Return vectors or an error per text; None for white space."""
        places = [at for at, text in enumerate(texts) if _says_something(text)]
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

    def attach(self, uow: UnitOfWork, kind: str, owner: uuid.UUID, text: str, rows: Rows) -> None:
        """Write a record's vectors in the record's own transaction, replacing older ones."""
        now = from_us(uow.now_us)
        space = self.space.space_id.bytes
        old = None
        for chunk, row in enumerate(self._rows_of(kind, owner, text, rows, now)):
            # Chunks are numbered without gaps: where one is missing there is none behind it.
            old = uow.find(EMBEDDING, space, owner.bytes, chunk) if chunk == 0 or old is not None else None
            if old is None:
                uow.insert(EMBEDDING, row)
            else:
                uow.update(EMBEDDING, replace(row, version=old.version))
        chunk = len(rows)
        while old is not None:
            old = uow.find(EMBEDDING, space, owner.bytes, chunk)
            if old is not None:
                uow.delete(EMBEDDING, old)
            chunk += 1

    def _rows_of(self, kind: str, owner: uuid.UUID, text: str, rows: Rows, now: datetime) -> list[Embedding]:
        """Return the rows of relation ``embedding`` that hold a record's vectors."""
        digest = content_hash(text)
        return [
            Embedding(
                self.space.space_id, EntityType(kind), owner, chunk, digest, np.asarray(vector, "<f4").tobytes(), now
            )
            for chunk, vector in enumerate(rows)
        ]

    def discard(self, hashes: Sequence[bytes]) -> None:
        """Forget cached vectors of given contents."""
        self._cache.discard(hashes)
        self._queries.discard(hashes)

    # --- behind ----------------------------------------------------------------------------------

    @property
    def embedded(self) -> tuple[str, ...]:
        """The kinds of records that are to have vectors.

        With mode ``commit`` too the worker gives one to what has none: records of an earlier model, or changed since.
        """
        return tuple(kind for kind, mode in self.modes.items() if mode is not EmbedMode.OFF)

    def committed(self, changes: Sequence[RowChange]) -> None:
        """Take note of rows of ours that lack a vector; called after each commit, hence quick."""
        found = False
        # Memory takes these changes over only when somebody reads: until then it still shows a dropped vector.
        vectors = {change.row[_OWNER]: change.operation for change in changes if change.relation is EMBEDDING}
        for change in changes:
            kind = change.relation.name
            places = self._places.get(kind)
            if places is None or change.operation != UPSERT:
                continue
            owner = change.row[places[0]]
            if vectors.get(owner) == UPSERT:
                continue
            text = self._text_of(kind, change.row)
            if _says_something(text) and (owner in vectors or not self._has_vector(kind, self.space.space_id, owner)):
                self._refused[kind].discard(owner)
                self._queue.append((kind, owner, text))
                found = True
        if found:
            self.start()

    def start(self) -> None:
        """Wake the worker, starting it the first time."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(target=self._run, name="caliber-embed", daemon=True)
            self._thread.start()
        self._wake.set()

    def _text_of(self, kind: str, row: Row) -> str:
        content = row[self._places[kind][1]]
        if content is None:
            return ""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
        # What is indexed by word, too: a record has one text.
        return document_of(kind, row, text).decode("utf-8", "surrogatepass") if _says_something(text) else text

    def _embed_queued(self) -> int:
        """Embed one batch of what was committed; return how many rows were handled.

        Raises: LlmError kinds of an outage; what it did not reach is queued again.
        """
        batch: list[tuple[str, bytes, str]] = []
        while self._queue and len(batch) < self._batch:
            batch.append(self._queue.popleft())
            self._asking = len(batch)
        if batch:
            left: Sequence[tuple[str, bytes, str]] = batch
            try:
                left, outage = self._embed(batch)
            finally:
                self._queue.extendleft(reversed(left))
                self._asking = 0
            if outage is not None:
                raise outage
        return len(batch)

    def scan(self) -> int:
        """Queue what lacks a vector in the store, whoever left it so; return how many rows are queued."""
        for kind in self.embedded:
            refused = self._refused[kind]
            plan = self._store.statements[f"embedding.pending_{kind}"]
            with self._store.read() as session:
                rows = session.run(plan, (self.space.space_id.bytes, _LAST, _SCAN_LIMIT))
            for _, owner, head, raw in rows:
                text = embedded_text(head, raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw)
                if owner not in refused and _says_something(text):
                    self._queue.append((kind, owner, text))
        return len(self._queue)

    def _embed(
        self, batch: Sequence[tuple[str, bytes, str]]
    ) -> tuple[list[tuple[str, bytes, str]], CaliberError | None]:
        """Store the vectors of a batch; return what an outage left without, and the outage."""
        results = self._embedded("records", [text for _, _, text in batch], apart=True)
        ready: list[tuple[str, bytes, str, Rows]] = []
        left: list[tuple[str, bytes, str]] = []
        outage: CaliberError | None = None
        for item, result in zip(batch, results, strict=True):
            kind, owner, text = item
            if isinstance(result, Embedded):
                ready.append((kind, owner, text, result.rows))
            elif result is not None and (result.retryable or isinstance(result, _NOT_OF_THE_TEXT)):
                left.append(item)
                outage = outage or result
            elif result is not None:
                # This text will never have a vector; asking for ever would starve the others.
                self._refused[kind].add(owner)
                self._failed(kind, result)

        def work(uow: UnitOfWork) -> None:
            now = from_us(uow.now_us)
            for kind, owner, text, rows in ready:
                if self._still_says(uow, kind, owner, text):
                    for row in self._rows_of(kind, uuid.UUID(bytes=owner), text, rows, now):
                        uow.insert_new(EMBEDDING, row)

        if ready:
            self._store.write(work)
        return left, outage

    def _still_says(self, uow: UnitOfWork, kind: str, owner: bytes, text: str) -> bool:
        """Return whether a record is still there with the content its vector was made from."""
        entity = uow.find(BY_NAME[kind], owner)
        if entity is None:
            return False
        return self._text_of(kind, codec_of(BY_NAME[kind]).encode(entity)) == text

    def waiting(self) -> int:
        """Return how many records wait for a vector, those that are being asked for included."""
        return len(self._queue) + self._asking

    def drain(self) -> None:
        """Embed until nothing is pending. Raises: LlmError kinds of an outage."""
        with self._draining:
            while self._embed_queued() or self.scan():
                pass

    def close(self) -> None:
        """Stop the worker; what is pending is found again at the next open."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        scanned = False
        failures = 0
        while not self._stopped.is_set():
            try:
                with self._draining:
                    # Once: what an earlier process left without a vector. Own commits are queued as they come.
                    while not self._stopped.is_set() and (self._embed_queued() or (not scanned and self.scan())):
                        pass
                    scanned = True
                    failures = 0
            except Exception as error:
                # Whatever a provider raises: the worker goes on, and an outage is reported once.
                if self._stopped.is_set():
                    return
                if not failures:
                    reported = (
                        error if isinstance(error, CaliberError) else EmbeddingFailed(reason=type(error).__name__)
                    )
                    self._failed("worker", reported)
                # Each time twice as long: a service that is down for hours, or refuses its key, is not asked all day.
                self._stopped.wait(min(self._idle_s * 2.0 ** min(failures, 32), self._longest_idle_s))
                failures += 1
                continue
            self._wake.wait()
            self._wake.clear()
