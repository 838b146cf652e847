"""Peer stores that search the same notes. Each is opened, filled, and returns the notes it finds; None if its package
is not installed.

Nobody embeds while being timed: vectors are looked up. Servers and libraries work with what they recommend: indexes are
built as they are made to be, and statistics are fresh (ANALYZE).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
from support.local_server import LocalServer

from harness.notes import LIMIT, QUERY, Notes, team
from harness.peers import peer

NAMESPACE = ("notes",)
BATCH = 500
SERVER = {
    # One thread for everybody.
    "max_parallel_workers_per_gather": 0,
    "shared_buffers": "512MB",
    "maintenance_work_mem": "512MB",
    # In place of the default of this private server, which is for crashes: an index is built through it.
    "dynamic_shared_memory_type": "posix",
}

Search = Callable[[str | None], list[int]]
"""From a team, or None for all, to the numbers of the notes found."""


def _index(notes: Notes) -> dict[str, Any]:
    # The SQLite store reads another name than the others do.
    return {
        "dims": notes.dimensions,
        "embed": notes.embed(),
        "fields": ["text"],
        "text_fields": ["text"],
    }


def _fill(store: Any, notes: Notes) -> None:
    from langgraph.store.base import PutOp

    for begin in range(0, len(notes.texts), BATCH):
        numbers = range(begin, min(begin + BATCH, len(notes.texts)))
        store.batch([PutOp(NAMESPACE, str(n), {"text": notes.texts[n], "team": team(n)}) for n in numbers])


def _searching(store: Any) -> Search:
    def search(of: str | None = None) -> list[int]:
        found = store.search(NAMESPACE, query=QUERY, limit=LIMIT, filter=None if of is None else {"team": of})
        return [int(item.key) for item in found]

    return search


def in_memory_store(notes: Notes) -> Search | None:
    """LangGraph's InMemoryStore."""
    memory = peer("langgraph.store.memory")
    if memory is None:
        return None
    store = memory.InMemoryStore(index=_index(notes))
    _fill(store, notes)
    return _searching(store)


@contextmanager
def sqlite_store(notes: Notes) -> Iterator[Search | None]:
    """LangGraph's SqliteStore, in memory: its vectors need an SQLite module that loads extensions."""
    module = peer("langgraph.store.sqlite")
    loads_extensions = hasattr(sqlite3.Connection, "enable_load_extension")
    driver: Any = sqlite3 if loads_extensions else peer("pysqlite3")
    if module is None or driver is None:
        yield None
        return
    connection = driver.connect(":memory:", check_same_thread=False, isolation_level=None)
    store = module.SqliteStore(connection, index=_index(notes))
    store.setup()
    _fill(store, notes)
    connection.execute("ANALYZE")
    yield _searching(store)
    connection.close()


@contextmanager
def postgres_store(server: LocalServer, notes: Notes) -> Iterator[tuple[Search, Any] | None]:
    """LangGraph's PostgresStore with the index it makes by default, and its connection."""
    module = peer("langgraph.store.postgres")
    if module is None:
        yield None
        return
    with module.PostgresStore.from_conn_string(server.dsn, index=_index(notes)) as store:
        store.setup()
        _fill(store, notes)
        store.conn.execute("VACUUM ANALYZE store, store_vectors")
        yield _searching(store), store.conn


@contextmanager
def pgvector_table(server: LocalServer, notes: Notes, *settings: str) -> Iterator[tuple[Search, Any] | None]:
    """One table of notes with pgvector's HNSW index, asked by prepared statements in the binary protocol."""
    pgvector = peer("pgvector.psycopg")
    if pgvector is None:
        yield None
        return
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        pgvector.register_vector(connection)
        table = f"notes_{len(notes.texts)}"
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone()[0] is None:
            _make_table(connection, table, notes)
        for setting in settings:
            connection.execute(setting)
        query = np.asarray(notes.query, np.float32)
        place = f"SELECT number, body, 1 - (place <=> %s) FROM {table}"
        order = f"ORDER BY place <=> %s LIMIT {LIMIT}"

        def search(of: str | None = None) -> list[int]:
            if of is None:
                cursor = connection.execute(f"{place} {order}", [query, query], prepare=True, binary=True)
            else:
                text = f"{place} WHERE team = %s {order}"
                cursor = connection.execute(text, [query, of, query], prepare=True, binary=True)
            return [number for number, *_ in cursor.fetchall()]

        yield search, connection


def _make_table(connection: Any, table: str, notes: Notes) -> None:
    connection.execute(
        f"CREATE TABLE {table} (number int PRIMARY KEY, team text, body text, place vector({notes.dimensions}))"
    )
    with connection.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT BINARY)") as copy:
        copy.set_types(["int4", "text", "text", "vector"])
        for number, (text, row) in enumerate(zip(notes.texts, notes.vectors, strict=True)):
            copy.write_row((number, team(number), text, row))
    connection.execute(f"CREATE INDEX ON {table} USING hnsw (place vector_cosine_ops)")
    connection.execute(f"VACUUM ANALYZE {table}")


def keywords(notes: Notes) -> Search | None:
    """bm25s over the same texts: keywords alone, and no filter."""
    bm25s = peer("bm25s")
    if bm25s is None:
        return None
    index = bm25s.BM25()
    index.index(bm25s.tokenize(notes.texts, show_progress=False), show_progress=False)

    def search(of: str | None = None) -> list[int]:
        if of is not None:
            raise ValueError("bm25s has no filter by team")
        words = bm25s.tokenize([QUERY], show_progress=False)
        found, _ = index.retrieve(words, k=LIMIT, show_progress=False)
        return [int(number) for number in found[0]]

    return search


def plan_of(server: LocalServer, connection: Any, search: Callable[[], object]) -> list[str]:
    """Return how the server carries out a search, as it logs it: no client has to know the statement."""
    connection.execute("LOAD 'auto_explain'")
    connection.execute("SET auto_explain.log_analyze = on")
    connection.execute("SET auto_explain.log_min_duration = 0")
    begins = server.log_path.stat().st_size
    try:
        search()
    finally:
        connection.execute("SET auto_explain.log_min_duration = -1")
    with server.log_path.open("rb") as log:
        log.seek(begins)
        lines = log.read().decode("utf-8", "replace").splitlines()
    # The statement holds the whole vector; the plan begins at its first node.
    nodes = [line.strip("\t") for line in lines if "cost=" in line or "Filter:" in line or "Order By:" in line]
    return [re.sub(r"'\[.*?\]'", "'[…]'", re.sub(r"\(cost=[^)]*\) ", "", node)) for node in nodes]
