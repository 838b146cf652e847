"""Search of a store for bytes, by code that shares nothing with that of ``forget``.

It reads every value of every table by SQL, and every file, free pages and logs included.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
from support.inspection import inspect


def traces(raw: bytes, wanted: Sequence[bytes]) -> list[bytes]:
    lowered = raw.lower()
    found = [needle for needle in wanted if needle in lowered]
    for start in (0, 4):
        try:
            unpacked = zlib.decompress(raw[start:]).lower()
        except zlib.error:
            continue
        found += [needle for needle in wanted if needle in unpacked]
    return found


def sqlite_values(path: str, image: bytes = b"") -> Iterator[tuple[str, Any]]:
    """Yield every value of a file, or of the image of a database in memory."""
    with apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE if image else apsw.SQLITE_OPEN_READONLY) as connection:
        if image:
            connection.deserialize("main", image)
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        for (name,) in tables:
            if connection.execute("SELECT sql LIKE 'CREATE VIRTUAL%' FROM sqlite_schema WHERE name = ?", (name,)).get:
                continue
            for row in connection.execute(f'SELECT * FROM "{name}"'):
                yield from ((name, value) for value in row)


def postgres_values(backend: Any) -> Iterator[tuple[str, Any]]:
    schema = backend.config().storage.schema_name
    with psycopg.connect(os.environ["CALIBER_TEST_DSN"]) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'", (schema,)
        ).fetchall()
        for (name,) in tables:
            for row in connection.execute(f'SELECT t.*, t::text FROM "{schema}"."{name}" AS t').fetchall():
                yield from ((name, value) for value in row)
        for row in connection.execute("SELECT * FROM pg_stats WHERE schemaname = %s", (schema,)).fetchall():
            yield from (("pg_stats", value) for value in row)


def postgres_files(backend: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the files of every table, index and toast table of the schema, from the data directory itself."""
    schema = backend.config().storage.schema_name
    with psycopg.connect(os.environ["CALIBER_TEST_DSN"], autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        folder = Path(connection.execute("SHOW data_directory").fetchone()[0])
        if not folder.exists():
            return  # a server elsewhere
        paths = connection.execute(
            "WITH own AS (SELECT oid, reltoastrelid FROM pg_class WHERE relnamespace = %s::regnamespace OR oid = 2619)"
            " SELECT c.relname, pg_relation_filepath(c.oid) FROM pg_class AS c"
            " WHERE pg_relation_filepath(c.oid) IS NOT NULL"
            " AND (c.oid IN (SELECT oid FROM own) OR c.oid IN (SELECT reltoastrelid FROM own))",
            (schema,),
        ).fetchall()
        for name, path in paths:
            for file in folder.glob(f"{path}*"):
                yield name, file.read_bytes()


def image_of(memory: Any) -> bytes:
    """Return the database of a store in memory, between the statements of its threads."""
    with inspect(memory).lend_connection() as connection:
        image: bytes = connection.raw.serialize("main")
    return image


def values(backend: Any, memory: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value of every table, with the table's name."""
    if backend.adapter == "postgres":
        return postgres_values(backend)
    if backend.name == "sqlite":
        return sqlite_values(backend.path)
    return sqlite_values(":memory:", image_of(memory))


def searched(backend: Any, memory: Any, folder: Path, wanted: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return every place in which something is left."""
    found = []
    if backend.adapter == "postgres":
        for name, raw in postgres_files(backend):
            found += [(f"file of {name}", needle) for needle in wanted if needle in raw.lower()]
    elif backend.name == "sqlite":
        for file in folder.rglob("*"):
            if file.is_file():
                found += [(file.name, needle) for needle in traces(file.read_bytes(), wanted)]
    else:
        found += [("memory", needle) for needle in traces(image_of(memory), wanted)]
    for name, value in values(backend, memory):
        raw = value if isinstance(value, bytes) else str(value).encode()
        found += [(name, needle) for needle in traces(raw, wanted)]
    return found
