"""Declared memories that tests use, and records of them."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import caliber
from caliber.kernels import uuid7
from caliber.model.trust import TrustLabel
from caliber.schema.catalog import Catalog
from support.threads import at_once

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

FACT: dict[str, Any] = {
    "name": "fact",
    "type": "semantic",
    "fields": [
        {"name": "fact_id", "type": "uuid"},
        {"name": "subject", "type": "text"},
        {"name": "content", "type": "text", "optional": True},
        {"name": "kind", "type": "enum", "values": ["claim", "rumour"]},
        {"name": "score", "type": "float", "optional": True},
        {"name": "count", "type": "int", "optional": True},
        {"name": "certain", "type": "bool", "optional": True},
        {"name": "seen_at", "type": "timestamp", "optional": True},
        {"name": "about", "type": "json", "optional": True},
        {"name": "owner", "type": "uuid", "optional": True},
        {"name": "content_embedding", "type": "embedding"},
    ],
    "retention": {"kind": "persistent"},
    "indexes": [{"field": "subject", "type": "btree"}],
}
"""A memory with a field of every type."""

STEP: dict[str, Any] = {
    "name": "step",
    "type": "procedural",
    "fields": [{"name": "position", "type": "int"}],
    "retention": {"kind": "persistent"},
    "parent": "fact",
}
"""A memory whose records belong to those of another."""


def record(catalog: Catalog, name: str, **fields: Any) -> Any:
    """Return a record of a declared memory; its enums are given as texts."""
    relation = catalog.memories[name].relation
    for column in relation.columns:
        if column.enum is not None and fields.get(column.name) is not None:
            fields[column.name] = column.enum(fields[column.name])
    said = repr(sorted(fields.items(), key=lambda item: item[0])).encode()
    values = {
        "record_id": uuid7(),
        "created_at": AT,
        "updated_at": AT,
        "trust": TrustLabel.USER,
        "token_count": 1,
        "content_hash": hashlib.sha256(said).digest(),
    }
    return relation.entity(**{**values, **fields})


def put_at_once(
    path: str, knobs: dict[str, Any], dsn: str, name: str, threads: int, times: int, to: Connection
) -> None:
    """Put the record at one key of a memory from many threads, each time with other words; report its versions."""
    from support.configs import config
    from support.databases import DSN

    os.environ[DSN] = dsn
    with caliber.open(config(path, **knobs)) as memory:
        items = memory.records(name)
        versions: list[int] = []

        def put(thread: int) -> None:
            for time in range(times):
                versions.append(items.put(ns="n", name="x", content=f"{os.getpid()} {thread} {time}").version)

        at_once([partial(put, thread) for thread in range(threads)])
        to.send(versions)
