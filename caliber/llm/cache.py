"""Embedding cache: maps a text's hash, model and dimensions to its vector, in memory (LRU) and in the store.

Keys are content hash, model and dimensions, so a vector always belongs to exactly this text under exactly this model.
Concurrent requests for one text share one computation. The durable ``VectorStore`` is optional; the engine passes it
in.

Source: C-359, C-360, relations.md 17.
"""

from __future__ import annotations

import hashlib
import os
import threading
from _thread import start_new_thread
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import NamedTuple, Protocol

import numpy as np

from caliber.llm.protocols import FloatVector
from caliber.model.deadline import deadline_passed, remaining_s
from caliber.model.errors import CaliberError, InvalidValue, StorageError
from caliber.model.lazy_dataclass import dataclass
from caliber.storage.waiting import Flag


class EmbeddingKey(NamedTuple):
    """The key of a cached vector: SHA-256 of the text's UTF-8, model, dimensions."""

    content_hash: bytes
    model_id: str
    dimensions: int


class VectorStore(Protocol):
    """A durable home for cached vectors. Called without any lock held; a ``StorageError`` only costs the caching."""

    def get_many(self, keys: Sequence[EmbeddingKey]) -> Mapping[EmbeddingKey, FloatVector]:
        """Return the vectors it has; keys it does not have are absent."""
        ...

    def mark(self) -> int:
        """Return a mark of the present state, asked before vectors are computed."""
        ...

    def put_many(self, items: Sequence[tuple[EmbeddingKey, FloatVector]], mark: int) -> None:
        """Store the vectors, unless contents were forgotten since ``mark``; an existing key may keep its vector."""
        ...


@dataclass(slots=True)
class _Flight:
    """A vector that some thread is computing now; ``vector`` stays None if that failed."""

    done: Flag = field(default_factory=Flag)
    vector: FloatVector | None = None


def content_hash(text: str) -> bytes:
    """Return the SHA-256 of the text's UTF-8 (lone surrogates are hashed as they stand)."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def usable(vector: np.ndarray, dimensions: int) -> bool:
    """Return whether this is a finite f32 vector of that length and of a length above zero."""
    return bool(
        vector.dtype == np.float32 and vector.shape == (dimensions,) and np.isfinite(vector).all() and vector.any()
    )


class EmbeddingCache:
    """A bounded, thread-safe LRU of read-only vectors; concurrent requests for one text share one computation.

    A child process starts with the entries of its parent and without the computations under way there.

    ``max_entries`` 0 keeps nothing in memory: the store and the sharing of computations remain.

    Raises: InvalidValue for a negative ``max_entries``.
    """

    def __init__(self, *, max_entries: int, store: VectorStore | None = None) -> None:
        if max_entries < 0:
            raise InvalidValue(field="max_entries", reason="must not be negative")
        self._max_entries = max_entries
        self._store = store
        self.mark: Callable[[], int] = int if store is None else store.mark
        """Returns a mark of the present state, asked before texts are embedded."""
        self._entries: OrderedDict[EmbeddingKey, FloatVector] = OrderedDict()
        self._flights: dict[EmbeddingKey, _Flight] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def peek(self, key: EmbeddingKey) -> FloatVector | None:
        """Return the vector if it is in memory; never computes and never asks the store."""
        if self._pid != os.getpid():
            self._after_fork()
        with self._lock:
            vector = self._entries.get(key)
            if vector is not None:
                self._entries.move_to_end(key)
            return vector

    def get_or_compute(
        self,
        keys: Sequence[EmbeddingKey],
        compute: Callable[[list[int]], Sequence[FloatVector | CaliberError]],
        mark: int = 0,
    ) -> list[FloatVector | CaliberError]:
        """Return a vector per key: from memory, from the store, from a thread computing it, or from ``compute``.

        ``mark`` is from before the texts were embedded.
        ``compute`` takes positions in ``keys`` (each key once) and returns a vector or an error for each. What has a
        vector is kept, whatever became of the rest. Only its caller sees an error; threads that waited for the same
        keys compute for themselves.

        Raises: what ``compute`` raises; Unavailable when the deadline passes while another thread computes.
        """
        self._after_fork()
        found: dict[EmbeddingKey, FloatVector | CaliberError] = {}
        position = {key: index for index, key in reversed(list(enumerate(keys)))}
        unique = list(dict.fromkeys(keys))
        while unique:
            flights: dict[EmbeddingKey, _Flight] = {}
            try:
                others = self._claim(unique, found, flights)
                # Own work first: two threads that wait for each other's keys would wait for ever.
                if flights:
                    self._fill(flights, position, compute, found, mark)
            finally:
                try:
                    self._land(flights)
                finally:
                    if flights:  # interrupted, and others wait for it: in another thread no handler runs
                        start_new_thread(self._land, (flights,))
            unique = []
            for key, flight in others:
                if not flight.done.wait(remaining_s()):
                    raise deadline_passed("another call computed the same vector")
                if flight.vector is None:
                    unique.append(key)
                else:
                    found[key] = flight.vector
        return [found[key] for key in keys]

    def clear(self) -> None:
        """Forget every vector in memory; the store keeps its own."""
        self._after_fork()
        with self._lock:
            self._entries.clear()

    def discard(self, content_hashes: Sequence[bytes]) -> int:
        """Forget the vectors of these contents under every model, and return how many there were."""
        self._after_fork()
        gone = frozenset(content_hashes)
        with self._lock:
            doomed = [key for key in self._entries if key.content_hash in gone]
            for key in doomed:
                del self._entries[key]
        return len(doomed)

    def __len__(self) -> int:
        return len(self._entries)

    def _claim(
        self,
        unique: list[EmbeddingKey],
        found: dict[EmbeddingKey, FloatVector | CaliberError],
        flights: dict[EmbeddingKey, _Flight],
    ) -> list[tuple[EmbeddingKey, _Flight]]:
        """Add the keys that the caller must compute to ``flights``; return those that other threads compute."""
        others: list[tuple[EmbeddingKey, _Flight]] = []
        with self._lock:
            for key in unique:
                vector = self._entries.get(key)
                if vector is not None:
                    self._entries.move_to_end(key)
                    found[key] = vector
                    continue
                flight = self._flights.get(key)
                if flight is not None:
                    others.append((key, flight))
                else:
                    flights[key] = self._flights[key] = _Flight()  # in this order: an interrupt leaves none behind
        return others

    def _land(self, flights: dict[EmbeddingKey, _Flight]) -> None:
        """End the computations of this thread, successful or not; again does no harm."""
        while flights:
            key, flight = next(iter(flights.items()))
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
            flight.done.set()
            flights.pop(key, None)

    def _fill(
        self,
        flights: dict[EmbeddingKey, _Flight],
        position: Mapping[EmbeddingKey, int],
        compute: Callable[[list[int]], Sequence[FloatVector | CaliberError]],
        found: dict[EmbeddingKey, FloatVector | CaliberError],
        mark: int,
    ) -> None:
        stored = self._from_store(list(flights))
        missing = [key for key in flights if key not in stored]
        fresh: list[tuple[EmbeddingKey, FloatVector]] = []
        if missing:
            for key, result in zip(missing, compute([position[key] for key in missing]), strict=True):
                if isinstance(result, CaliberError):
                    found[key] = result
                else:
                    fresh.append((key, _frozen(result)))
        with self._lock:
            for key, vector in (*stored.items(), *fresh):
                found[key] = self._entries[key] = flights[key].vector = vector
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        self._land(flights)
        if fresh and self._store is not None:
            with suppress(StorageError):  # the vectors are right and in use; only storing them failed
                self._store.put_many(fresh, mark)

    def _from_store(self, keys: list[EmbeddingKey]) -> dict[EmbeddingKey, FloatVector]:
        if self._store is None:
            return {}
        try:
            stored = self._store.get_many(keys)
        except StorageError:
            return {}
        return {key: _frozen(stored[key]) for key in keys if key in stored and usable(stored[key], key.dimensions)}

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            # Threads of the parent, which may have held the lock or been computing, do not exist here.
            self._lock, self._flights, self._pid = threading.Lock(), {}, os.getpid()


def _frozen(vector: FloatVector) -> FloatVector:
    """Return a read-only copy that owns its data: a row would keep its whole matrix alive."""
    copy = np.array(vector, dtype=np.float32, order="C")
    copy.setflags(write=False)
    return copy
