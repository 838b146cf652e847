"""pgvector indexes of one store: creates, inspects, queries and drops them.

A space has an index for each kind of record, as nearly every search is of some kinds: one for all would walk past the
turns of a year to find twenty notes.

Source: design, section 3; K-102, K-103, K-154; docs/decisions/0121.
"""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from caliber.backends.postgres.connecting.cancelling import cancel_soon
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.backends.postgres.connecting.pool import Transaction, with_lock_retry
from caliber.backends.postgres.dialect import PostgresDialect
from caliber.backends.postgres.searching.search_plans import (
    HALFVEC_MAX,
    PREFIX,
    VECTOR_MAX,
    Space,
    create_index,
    drop_index,
    index_name,
    nearest_plan,
    vector_plans,
)
from caliber.model.embedding import EmbeddingSpace, VectorIndexType
from caliber.model.progress import Progress
from caliber.schema.relation import Relation
from caliber.storage.compile.codec import Row
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Near, SpaceIndex
from caliber.storage.waiting import starting

if TYPE_CHECKING:
    import psycopg

    from caliber.config import VectorConfig

_HNSW, _IVFFLAT = "hnsw", "ivfflat"
_METHODS: Final = {VectorIndexType.HNSW: _HNSW, VectorIndexType.IVF_FLAT: _IVFFLAT}
"""PostgreSQL's names of the index methods."""
_ITERATIVE: Final = (0, 8)
_HALFVEC: Final = (0, 7)
"""The versions of pgvector that can do so."""

_BESIDE: Final = 2_000
"""Vectors up to which writers wait while a space is indexed: less than a second."""
FEW: Final = 4_096
"""Records that meet a filter up to which their vectors are all compared."""
MOST: Final = 16_384
"""Vectors asked of an index at once, where records have many."""
IVFFLAT_LISTS: Final = 100
"""Lists of an IVFFlat index, which is built once there are ten vectors for each."""
IVFFLAT_PROBES: Final = 10
"""Lists that a search examines first."""
HNSW_EF_SEARCH: Final = 100
"""Candidates that a search of an HNSW index keeps; never fewer than its limit."""
HNSW_MAX_SCAN_TUPLES: Final = 20_000
"""Vectors that a filtered search examines before it compares all that meet the filter."""
_EF_MAX: Final = 1_000
_PROBES_MAX: Final = 32_768
_ROWS_A_LIST: Final = 10
_HALF_MAX: Final = 65_504.0
"""The largest number in half precision."""
_KNOWN_S: Final = 10.0
"""How long it is remembered which indexes there are."""
_LOOK_S: Final = 0.2
_CANCEL_S: Final = 5.0
"""How long an attempt to cancel may take; no caller waits for it."""


class PostgresVectorIndex:
    """The vector indexes of one open store. Safe to share between threads."""

    def __init__(
        self,
        settings: VectorConfig | None,
        dialect: PostgresDialect,
        version: tuple[int, ...],
        texts: tuple[Relation, ...],
        read: Callable[[], AbstractContextManager[StatementSession]],
        transaction: Transaction,
        connection: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
        lock_timeout_ms: int,
    ) -> None:
        self.settings = settings
        self.dialect = dialect
        self._version = version
        self._kinds = {relation.name: relation for relation in texts if relation.text and relation.text.embedded}
        self.plans = vector_plans(dialect, version >= _ITERATIVE, texts)
        self._read = read
        self._transaction = transaction
        self._connection = connection
        self._lock_timeout_ms = lock_timeout_ms
        self._known: dict[str, str] = {}
        self._known_until = 0.0

    # --- making ----------------------------------------------------------------------------------

    def open(self, space: EmbeddingSpace) -> bool:
        method = self._method_for(space)
        if method is None:
            return False
        with self._read() as session:
            found = self.indexes_of(session, space.space_id)
            many = session.run(self.plans.many, (space.space_id.bytes, _BESIDE + 1))[0][0]
        # A memory that was declared since has none yet.
        missing = [each for each in self._kinds.values() if index_name(space.space_id, each) not in found]
        if not missing or method != _HNSW or many > _BESIDE:
            return self._is_usable(found)
        texts = [self._create(space, relation, method) for relation in missing]

        def work(connection: PgConnection) -> None:
            for text in texts:
                connection.command(text)

        with_lock_retry(self._transaction, work, self._lock_timeout_ms)
        self._known_until = 0.0
        return not found or self._is_usable(found)

    def build(self, space: EmbeddingSpace, progress: Progress | None = None) -> bool:
        method = self._method_for(space)
        if method is None:
            self.drop(space.space_id)
            return False
        with self._read() as session:
            found = self.indexes_of(session, space.space_id)
            rows = {kind: self._count(session, space, kind) for kind in self._kinds}
        names = {index_name(space.space_id, relation) for relation in self._kinds.values()}
        for name in found.keys() - names:  # of a dropped memory
            with self._connection() as raw:
                raw.execute(drop_index(name, self.dialect))
        options = {part.strip() for part in self._options(method).split(",")}
        for kind, relation in self._kinds.items():
            name = index_name(space.space_id, relation)
            existing = found.get(name)
            if existing is not None and existing[:2] == (method, True) and set(existing[2].split(", ")) == options:
                continue
            with self._connection() as raw:
                if existing is not None:
                    raw.execute(drop_index(name, self.dialect))
                if method == _IVFFLAT and rows[kind] < _ROWS_A_LIST * IVFFLAT_LISTS:
                    continue
                self._watched(raw, self._create(space, relation, method, "CONCURRENTLY"), name, progress)
        self._known_until = 0.0
        with self._read() as session:
            return self._is_usable(self.indexes_of(session, space.space_id))

    def drop(self, space_id: uuid.UUID) -> bool:
        with self._read() as session:
            found = self.indexes_of(session, space_id)
        if found:
            with self._connection() as raw:
                for name in found:
                    raw.execute(drop_index(name, self.dialect))
        self._known_until = 0.0
        return bool(found)

    def of(self, space_id: uuid.UUID) -> SpaceIndex | None:
        with self._read() as session:
            found = self.indexes_of(session, space_id)
            doing = session.run(self.plans.doing, (self.dialect.schema, f"{PREFIX}{space_id.hex}"))
        if not found:
            return None
        progress = f"{doing[0][1]}, {doing[0][2]:,} of {doing[0][3]:,}" if doing else ""
        return SpaceIndex(next(iter(found.values()))[0], self._is_usable(found), progress)

    @property
    def _vector(self) -> VectorConfig:
        assert self.settings is not None
        return self.settings

    def _method_for(self, space: EmbeddingSpace) -> str | None:
        """Return how a space is to be indexed, None for not at all."""
        most = HALFVEC_MAX if self._version >= _HALFVEC else VECTOR_MAX
        if self.settings is None or space.dimensions > most:
            return None
        return _METHODS.get(self.settings.index_type)

    def _options(self, method: str) -> str:
        settings = self._vector
        if method == _IVFFLAT:
            return f"lists={IVFFLAT_LISTS}"
        return f"m={settings.hnsw_m}, ef_construction={settings.hnsw_ef_construction}"

    def _create(self, space: EmbeddingSpace, relation: Relation, method: str, how: str = "") -> str:
        return create_index(Space.of(space), relation, self.dialect, method, self._options(method), how)

    def _watched(self, raw: psycopg.Connection[Any], text: str, name: str, progress: Progress | None) -> None:
        """Build an index in another thread, and report its progress meanwhile."""
        if progress is None:
            raw.execute(text)
            return
        failed: list[BaseException] = []

        def make() -> None:
            try:
                raw.execute(text)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=make, name="caliber-index")
        with starting():
            thread.start()
        try:
            while thread.is_alive():
                thread.join(_LOOK_S)
                with self._read() as session:
                    rows = session.run(self.plans.doing, (self.dialect.schema, name))
                for _, phase, done, total in rows:
                    progress(phase, done, total)
        except BaseException:
            cancel_soon(raw.pgconn, _CANCEL_S)
            raise
        finally:
            thread.join()
        if failed:
            raise failed[0]

    # --- looking ---------------------------------------------------------------------------------

    def indexes_of(self, session: StatementSession, space_id: uuid.UUID) -> dict[str, tuple[str, bool, str]]:
        """Return the indexes of a space by name: method, whether it is valid, options."""
        rows = session.run(self.plans.indexes, (self.dialect.schema, f"{PREFIX}{space_id.hex}"))
        return {name: (method, bool(valid), options) for name, method, valid, options in rows}

    @staticmethod
    def _is_usable(found: dict[str, tuple[str, bool, str]]) -> bool:
        return bool(found) and all(valid for _, valid, _ in found.values())

    def _count(self, session: StatementSession, space: EmbeddingSpace, kind: str) -> int:
        count: int = session.run(self.plans.of_kind, (space.space_id.bytes, kind))[0][0]
        return count

    # --- asking ----------------------------------------------------------------------------------

    def nearest(self, session: StatementSession, space: EmbeddingSpace, near: Near) -> list[Row] | None:
        is_indexed = self._method_for(space) is not None
        relation = self._kinds.get(near.kind) if is_indexed else None
        method = None if relation is None else self._method_of(session, index_name(space.space_id, relation))
        if method is None or not _fits(space, near.query):
            return None
        sight = (near.seen, near.at_us)
        asked = near.records + near.records // 8 + 8  # candidates are scored exactly afterwards and may change places
        while True:
            rows = self._ask(session, space, near, method, asked)
            if len(rows) == asked and len({row[1] for row in rows}) >= near.records:
                return rows
            if len(rows) < asked or asked >= MOST:
                break
            asked *= 4
        # The index returned everything it has or examined: few matching records are compared one by one.
        few = session.run(self.plans.few[near.kind], (space.space_id.bytes, *sight, FEW, *near.filters))
        met = next(row[1] for row in few if row[0] is None)
        return None if met >= FEW else [row for row in few if row[0] is not None]

    def _ask(self, session: StatementSession, space: EmbeddingSpace, near: Near, method: str, asked: int) -> list[Row]:
        assert isinstance(session, PgConnection)
        if method == _IVFFLAT:
            first, most = IVFFLAT_PROBES, _PROBES_MAX
        else:
            first = max(HNSW_EF_SEARCH, min(_EF_MAX, 2 * asked))
            most = HNSW_MAX_SCAN_TUPLES
        session.later(self.plans.begin[method], (str(first), str(most)))
        plan = nearest_plan(self._kinds[near.kind], Space.of(space), self.dialect)
        try:
            return session.run(plan, (near.query, near.seen, near.at_us, asked, *near.filters))
        finally:
            session.later(self.plans.end, ())

    def _method_of(self, session: StatementSession, name: str) -> str | None:
        """Return how an index is built that can be asked, from memory if it was looked up a moment ago."""
        now = time.monotonic()
        if now >= self._known_until:
            rows = session.run(self.plans.indexes, (self.dialect.schema, PREFIX))
            self._known = {known: method for known, method, valid, _ in rows if valid}
            self._known_until = now + _KNOWN_S
        return self._known.get(name)


def _fits(space: EmbeddingSpace, query: bytes) -> bool:
    """Return whether a query can be compared as the vectors of a space are indexed."""
    if space.dimensions <= VECTOR_MAX:
        return True
    return all(abs(value) <= _HALF_MAX for value in struct.unpack(f"<{space.dimensions}f", query))
