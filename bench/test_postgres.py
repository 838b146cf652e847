"""A tenant in PostgreSQL beside the same tenant in SQLite: the same records, ids and vectors, and equal answers.

Resident, neither asks its database, so they must be as fast as each other. Searched in the database, they are what a
tenant gets whose records do not fit into memory. Goals: design section 9, issue "PostgreSQL".
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from harness import stores
from harness.contest import OURS, PEER, Contender
from harness.notes import LIMIT, QUERY, QUICK_TASK, Ours, opened, settled
from support.inspection import inspect
from support.local_server import LocalServer

import caliber
from caliber.admin.checking import rebuild_full_text
from caliber.api.caliber import Caliber
from caliber.backends import bare_store
from caliber.config import CaliberConfig
from caliber.embedding.reembedding import build_index

NOTES, QUICK = 10_000, 1_000
DSN = "CALIBER_BENCH_DSN"
RELATIONS = ("session", "trajectory", "scope", "note", "artifact", "turn", "embedding_space", "embedding")
TEAM = "team 3"
STORED = {"search.mode": "backend"}


class Both:
    """One tenant in both databases."""

    def __init__(self, store: Ours, task: uuid.UUID) -> None:
        self.sqlite = store
        self.task = task
        self.path = store.config.storage.resolve_path()

    def config(self, adapter: str, **overrides: Any) -> CaliberConfig:
        if adapter == "sqlite":
            return caliber.profiles.reference(self.path, **overrides)
        return caliber.profiles.reference(f"env:{DSN}", **{"storage.adapter": "postgres", **overrides})

    @contextmanager
    def opened(self, **overrides: Any) -> Iterator[tuple[Caliber, Caliber]]:
        """Open PostgreSQL's and SQLite's."""
        with (
            caliber.open(self.config("postgres", **overrides), principal=caliber.Principal.admin()) as postgres,
            caliber.open(self.config("sqlite", **overrides), principal=caliber.Principal.admin()) as sqlite,
        ):
            yield postgres, sqlite


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Both]:
    folder: Path = tmp_path_factory.mktemp("both")
    with (
        LocalServer.start(settings=stores.SERVER, fsync=False) as server,
        pytest.MonkeyPatch.context() as patch,
        opened(folder, QUICK if quick else NOTES) as store,
    ):
        patch.setenv(DSN, server.dsn)
        made = Both(store, store.add_task(*QUICK_TASK) if quick else store.add_task())
        bare = {"embedding_provider": None, "vector": None, "embedding.embed": {"default": "off"}}
        bare |= {"summaries.turns": "off"}  # without vectors it would sum up in other words than SQLite
        config = made.config("postgres", **bare)
        caliber.create(config)
        with caliber.open(config, principal=caliber.Principal.admin()) as memory:
            for name in RELATIONS:
                memory.storage.bulk_load(name, store.memory.storage.bulk_read(name).read_all())
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        yield made


def _search(memory: Caliber, of: str | None) -> Any:
    return memory.search(QUERY, kinds=["note"], limit=LIMIT, filter=None if of is None else {"entity_type": of})


def _told(found: Any) -> list[Any]:
    return [(hit.id, hit.score, hit.breakdown) for hit in found.hits]


def _statements(memory: Caliber, call: Callable[[], object]) -> int:
    count = inspect(memory).store.statement_count
    before = count()
    call()
    return int(count() - before)


@pytest.mark.parametrize("of", [None, TEAM], ids=["plain", "filtered"])
def test_search_resident(contest: Callable[..., None], both: Both, of: str | None) -> None:
    kind = "plain" if of is None else "filtered"
    with both.opened() as (postgres, sqlite):
        assert _told(_search(postgres, of)) == _told(_search(sqlite, of))
        assert len(_search(postgres, of).hits) == LIMIT
        assert _statements(postgres, lambda: _search(postgres, of)) == 0
        contest(
            f"search, {both.sqlite.notes.size}, {kind}, resident in either database",
            [
                Contender(OURS, "PostgreSQL", lambda: _search(postgres, of), at_most=1.1),
                Contender(PEER, "SQLite", lambda: _search(sqlite, of)),
            ],
        )


def test_assemble_resident(contest: Callable[..., None], both: Both) -> None:
    with both.opened() as (postgres, sqlite):
        for memory in (postgres, sqlite):
            memory.flush()  # both have summed up all blocks of the conversation
        windows = [memory.assemble_context(both.task, query=QUERY) for memory in (postgres, sqlite)]
        assert windows[0].text == windows[1].text
        assert windows[0].used_tokens
        postgres.flush()
        assert _statements(postgres, lambda: postgres.assemble_context(both.task, query=QUERY)) == 0
        contest(
            f"assemble_context, {both.sqlite.notes.size}, resident in either database",
            [
                Contender(
                    OURS, "PostgreSQL", lambda: postgres.assemble_context(both.task, query=QUERY),
                    lambda: settled(postgres), at_most=1.1,
                ),
                Contender(
                    PEER, "SQLite", lambda: sqlite.assemble_context(both.task, query=QUERY), lambda: settled(sqlite)
                ),
            ],
        )  # fmt: skip


@pytest.mark.parametrize("of", [None, TEAM], ids=["plain", "filtered"])
def test_search_in_the_database(contest: Callable[..., None], both: Both, of: str | None) -> None:
    kind = "plain" if of is None else "filtered"
    for adapter in ("postgres", "sqlite"):
        rebuild_full_text(both.config(adapter, **STORED))
        config = both.config(adapter, **STORED)
        with bare_store(config) as store:
            build_index(store, config)
    with both.opened(**STORED) as (postgres, sqlite):
        assert [space.index for space in postgres.storage.embedding_spaces.report()] == ["hnsw"]
        assert [hit.id for hit in _search(postgres, of).hits] == [hit.id for hit in _search(sqlite, of).hits]
        contest(
            f"search, {both.sqlite.notes.size}, {kind}, search.mode = backend",
            [
                Contender(OURS, "PostgreSQL", lambda: _search(postgres, of)),
                Contender(PEER, "SQLite", lambda: _search(sqlite, of)),
            ],
        )
