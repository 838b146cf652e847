"""Loading many vectors into PostgreSQL, against replaying bytes that were encoded before. Goals: design section 9.

Everybody loads the same rows into the same empty table with the same indexes, in one transaction, commits synchronous.
What a server can do is the replay of its own COPY bytes; what a client adds is the difference. Equal tables before
anything is timed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from harness.contest import ASIDE, OURS, PEER, Contender
from harness.peers import peer
from harness.report import amount
from harness.scale import usual
from harness.stores import SERVER
from support.local_server import LocalServer

import caliber
from caliber.backends import backend
from caliber.kernels.copy.rows import COPY_HEADER, COPY_TRAILER, CopyRows, copy_tuples
from caliber.model import SystemClock
from caliber.model.progress import unheard
from caliber.schema.relations import EMBEDDING, EMBEDDING_SPACE
from caliber.storage.bulk import arrow
from caliber.storage.bulk.checks import Maker
from caliber.storage.bulk.columns import ordinal_column
from caliber.storage.bulk.load import batches_of
from caliber.storage.bulk.protocol import BATCH_ROWS, Batch, BulkReport, OnExisting

DIMENSIONS = 384
CHUNK_BYTES = 1 << 18
SCHEMA = "bulk"
TABLE = f"{SCHEMA}.embedding"
COLUMNS = [column.name for column in EMBEDDING.columns]
WHEN = datetime(2026, 1, 2, tzinfo=UTC)
DSN = "CALIBER_BENCH_BULK_DSN"
ROWS, QUICK = usual(20_000, full=50_000), 500

asyncpg, asyncpg_vectors = peer("asyncpg"), peer("pgvector.asyncpg")
psycopg_vectors = peer("pgvector.psycopg")
adbc = peer("adbc_driver_postgresql.dbapi")


class Rows:
    """The rows everybody loads: as Arrow, and as Python values."""

    def __init__(self, count: int) -> None:
        self.space = uuid.uuid4()
        random = np.random.default_rng(1)
        self.vectors = random.standard_normal((count, DIMENSIONS), dtype=np.float32)
        self.owners = [uuid.UUID(bytes=random.bytes(16)) for _ in range(count)]
        self.hashes = [random.bytes(32) for _ in range(count)]
        self.table = pa.table(
            {
                "space_id": pa.array([self.space.bytes] * count, pa.binary(16)),
                "owner_type": ["note"] * count,
                "owner_id": pa.array([owner.bytes for owner in self.owners], pa.binary(16)),
                "chunk_index": pa.array([0] * count),
                "content_hash": pa.array(self.hashes, pa.binary(32)),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.reshape(-1)), DIMENSIONS),
                "generated_at": pa.array([WHEN] * count, pa.timestamp("us", "UTC")),
            }
        )

    def notes(self) -> pa.Table:
        """Return the records that the vectors are of."""
        said = {"entity": "bench", "entity_type": "topic", "note_type": "fact", "confidence": 1.0}
        columns: dict[str, Any] = {name: [value] * len(self.owners) for name, value in said.items()}
        columns["content"] = [f"said {owner}" for owner in self.owners]
        return pa.table({"note_id": pa.array([owner.bytes for owner in self.owners], pa.binary(16)), **columns})

    def batches(self) -> Iterator[Batch]:
        maker = Maker(0, None)  # type: ignore[arg-type]  # nothing is left to make
        source, spaces = arrow.source_of(self.table, BATCH_ROWS), {self.space.bytes: DIMENSIONS}
        return batches_of(EMBEDDING, source, maker, spaces, owners=("note",), kinds=("note",))

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        for owner, digest, vector in zip(self.owners, self.hashes, self.vectors, strict=True):
            yield self.space, "note", owner, 0, digest, vector, WHEN, 1


class Server:
    """A private server with an empty store, and what loads into it."""

    def __init__(self, server: LocalServer, rows: Rows, closing: ExitStack) -> None:
        self.dsn = server.dsn
        self.rows = rows
        overrides = {"storage.adapter": "postgres", "storage.schema_name": SCHEMA, "embedding_provider": None}
        config = caliber.profiles.reference(f"env:{DSN}", **overrides)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        module = backend("postgres")
        module.create(config, exist_ok=False, clock_us=SystemClock().now_us)
        with caliber.open(config, principal=caliber.Principal.admin()) as memory:  # a vector is that of a record
            memory.storage.bulk_load("note", rows.notes())
        self.store = module.open_store(config, clock_us=SystemClock().now_us)
        closing.callback(self.store.close)
        self.connection = closing.enter_context(psycopg.connect(server.dsn, autocommit=True))
        if psycopg_vectors is not None:
            psycopg_vectors.register_vector(self.connection)
        self.connection.execute(
            f"INSERT INTO {SCHEMA}.{EMBEDDING_SPACE.name}"
            " (space_id, model_id, dimensions, metric, state, created_at, version)"
            " VALUES (%s, 'bench', %s, 'cosine', 'active', now(), 1)",
            (rows.space, DIMENSIONS),
        )
        self.encoded = list(self._encode())

    def _encode(self) -> Iterator[bytes]:
        yield COPY_HEADER
        for batch in self.rows.batches():
            columns = [ordinal_column("ordinal", range(batch.first_row + 1, batch.first_row + batch.rows + 1))]
            copied = CopyRows([*columns, *batch.columns.values()], batch.rows)
            yield from map(bytes, copy_tuples(copied, chunk_bytes=CHUNK_BYTES))
        yield COPY_TRAILER

    def emptied(self) -> None:
        self.connection.execute(f"TRUNCATE {TABLE}, {SCHEMA}.change")

    def content(self) -> Any:
        """Return the contents of the table, apart from numbers that the server gives."""
        names = ", ".join(COLUMNS)
        return self.connection.execute(
            f"SELECT count(*), md5(string_agg(md5(t::text), '' ORDER BY owner_id)) FROM (SELECT {names} FROM {TABLE}) t"
        ).fetchone()

    # --- who loads -------------------------------------------------------------------------------

    def ours(self, on_existing: OnExisting) -> BulkReport:
        self.emptied()
        return self.store.bulk_load(EMBEDDING, self.rows.batches(), on_existing, unheard)

    def replay(self) -> None:
        self.emptied()
        names = ", ".join(["ordinal", *COLUMNS])
        with self._copying(names) as copy:
            for piece in self.encoded:
                copy.write(piece)

    @contextmanager
    def _copying(self, names: str) -> Iterator[psycopg.Copy]:
        with self.connection.transaction(), self.connection.cursor() as cursor:  # noqa: SIM117
            with cursor.copy(f"COPY {TABLE} ({names}) FROM STDIN (FORMAT binary)") as copy:
                yield copy

    def write_row(self) -> None:
        self.emptied()
        types = ["uuid", "text", "uuid", "int8", "bytea", "vector", "timestamptz", "int8"]
        with self._copying(", ".join(COLUMNS)) as copy:
            copy.set_types(types)
            for row in self.rows.tuples():
                copy.write_row(row)

    def asyncpg(self) -> None:
        async def load() -> None:
            connection = await asyncpg.connect(self.dsn)
            try:
                await asyncpg_vectors.register_vector(connection)
                async with connection.transaction():
                    await connection.copy_records_to_table(
                        "embedding", schema_name=SCHEMA, columns=COLUMNS, records=self.rows.tuples()
                    )
            finally:
                await connection.close()

        self.emptied()
        asyncio.run(load())

    def adbc(self) -> None:
        """Into a table without types of UUID and vector, which ADBC does not know."""
        with adbc.connect(self.dsn) as connection:
            with connection.cursor() as cursor:
                cursor.execute("DROP TABLE IF EXISTS adbc_embedding")
                cursor.adbc_ingest("adbc_embedding", self.rows.table, mode="create")
            connection.commit()


@pytest.fixture(scope="module")
def server(quick: bool) -> Iterator[Server]:
    # Nothing stays open when a step fails: an open connection fails the next benchmark.
    with (
        LocalServer.start(settings=SERVER) as started,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as closing,
    ):
        patch.setenv(DSN, started.dsn)
        yield Server(started, Rows(QUICK if quick else ROWS), closing)


def name_of(package: str) -> str:
    return f"{package} {version(package)}"


def clients(server: Server) -> list[Contender]:
    """Return the clients that load into the same table, those that are installed."""
    out = []
    if asyncpg is not None and asyncpg_vectors is not None:
        out.append(Contender(PEER, f"{name_of('asyncpg')} copy_records_to_table", server.asyncpg))
    if psycopg_vectors is not None:
        out.append(Contender(PEER, f"{name_of('psycopg')} write_row", server.write_row))
    return out


def test_bulk_load(contest: Callable[..., None], server: Server) -> None:
    count = len(server.rows.owners)
    server.replay()
    expected = server.content()
    assert expected[0] == count
    direct, staged = (partial(server.ours, mode) for mode in (OnExisting.ERROR, OnExisting.SKIP))
    others = clients(server)
    for load in (direct, staged, *(other.call for other in others)):
        load()
        assert server.content() == expected
    loaded = direct()
    assert (loaded.loaded, loaded.change_records) == (count, -(-count // 1_000))
    if adbc is not None:
        server.adbc()
        assert server.connection.execute("SELECT count(*) FROM adbc_embedding").fetchone() == (count,)
        note = "into bytea and float4[] without an index: it knows neither uuid nor vector"
        others.append(Contender(ASIDE, f"{name_of('adbc-driver-postgresql')} ingest", server.adbc, note=note))
    replay = Contender(PEER, "replay of encoded COPY bytes", server.replay)
    size = f"{amount(count)} x {DIMENSIONS}, PostgreSQL"
    contest(
        f"bulk load direct, {size}",
        [Contender(OURS, "bulk_load", direct, at_most=1 / 0.9), replay, *others],
        rows=count,
        dimensions=DIMENSIONS,
    )
    contest(
        f"bulk load staged, {size}",
        [Contender(OURS, "bulk_load, on_existing='skip'", staged, at_most=2.0), replay],
        rows=count,
        dimensions=DIMENSIONS,
    )
