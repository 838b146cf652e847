"""Texts that a store holds, read by the database's driver alone, as JSON. Run as ``machine_rows.py PLACE [SCHEMA]``.

A process of its own: it opens the file of a store that other processes had open, and shares nothing with CALIBER.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TABLES = {
    "turn": "turn_id, content, sequence, scope_id",
    "note": "note_id, content, version, NULL",
    "artifact": "artifact_id, content, NULL, NULL",
    "trajectory": "trajectory_id, goal, turn_count, NULL",
}


def of_file(path: str) -> dict[str, Any]:
    """Return the rows of a SQLite file, and the findings of its own checks."""
    import apsw

    connection = apsw.Connection(path)
    connection.set_busy_timeout(30_000)
    rows = {}
    findings = []
    try:
        findings += [line for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
        findings += [f"foreign key: {row[:3]}" for row in connection.execute("PRAGMA foreign_key_check")]
        for table, columns in TABLES.items():
            rows[table] = list(connection.execute(f'SELECT {columns} FROM "{table}" NOT INDEXED ORDER BY ordinal'))
    except apsw.Error as error:
        findings.append(f"{type(error).__name__}: {error}")
    return {"findings": findings, "rows": rows}


def of_schema(dsn: str, schema: str) -> dict[str, Any]:
    """Return the rows of a schema of PostgreSQL."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        rows = {
            table: connection.execute(
                f'SELECT {columns} FROM "{schema}"."{table}" ORDER BY ordinal'.encode()
            ).fetchall()
            for table, columns in TABLES.items()
        }
    return {"findings": [], "rows": rows}


def plain(value: Any) -> Any:
    """Return a value as JSON takes it: an id in its usual form, a content as text."""
    if isinstance(value, bytes):
        try:
            return value.decode("ascii") if len(value) != 16 else value.hex()
        except UnicodeDecodeError:
            return value.hex()
    return str(value).replace("-", "") if type(value).__name__ == "UUID" else value


if __name__ == "__main__":
    print(json.dumps(of_schema(*sys.argv[1:]) if len(sys.argv) > 2 else of_file(sys.argv[1]), default=plain))
