"""Search against what people use today, over the same notes and vectors. Goals: design section 9.

Ours takes part twice: with every leg, as the profile ``reference`` has it, and by vector alone, which must find what an
exact scan finds, as must the peers. Whoever searches approximately has its recall beside its time. What takes part in a
goal stands in a contest of its own with ours.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from harness import stores
from harness.contest import ASIDE, OURS, PEER, Contender
from harness.notes import LIMIT, QUERY, QUICK_TASK, Notes, Ours, latencies, opened, settled
from harness.report import amount
from harness.scale import usual
from support.inspection import inspect
from support.local_server import LocalServer

from caliber.llm.local.hashed import HashEmbeddingProvider

SMALL, LARGE = 10_000, usual(20_000, full=100_000)
QUICK, QUICK_LARGE = 1_000, 1_200
TEAM = "team 3"
APPROXIMATE = ("SET hnsw.ef_search = 100", "SET hnsw.iterative_scan = strict_order")
SERVED = "PostgreSQL on a Unix socket, ANALYZEd, all in its memory, no parallel workers"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Ours]:
    with opened(tmp_path_factory.mktemp("search"), QUICK if quick else SMALL) as store:
        yield store


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Ours]:
    with opened(tmp_path_factory.mktemp("search-large"), QUICK_LARGE if quick else LARGE) as store:
        yield store


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    # Nothing here is about writing.
    with LocalServer.start(settings=stores.SERVER, fsync=False) as running:
        yield running


@pytest.fixture(scope="module")
def postgres_store(server: LocalServer, ours: Ours) -> Iterator[tuple[stores.Search, Any] | None]:
    with stores.postgres_store(server, ours.notes) as opened_store:
        yield opened_store


def version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


@contextmanager
def ours_at(store: Ours, of: str | None = None, **goals: Any) -> Iterator[list[Contender]]:
    """Our searches of one kind: with every leg, as everybody has it, and by vector alone, as the peers do it.

    The latter must be exact; neither may ask the database.
    """
    with store.by_vector() as by_vector:
        found = by_vector(of)
        assert store.notes.recall(store.numbers(found), of) == 1.0
        np.testing.assert_allclose([hit.score for hit in found.hits], store.notes.best(of), atol=1e-6)
        assert len(store.search(of).hits) == LIMIT
        assert store.statements(of) == 0
        yield [
            Contender(OURS, "every leg", lambda: store.search(of), **goals),
            Contender(OURS, "vectors alone", lambda: by_vector(of), **goals),
        ]


def peer(
    name: str, notes: Notes, search: stores.Search, of: str | None = None, *, note: str | None = None
) -> Contender:
    """Return a contender that finds the same notes, as far as its recall says."""
    recall = notes.recall(search(of), of)
    assert recall >= 0.9, f"{name} finds {recall:.0%} of the notes: that is another answer"
    return Contender(PEER, name, lambda: search(of), recall=recall, note=note)


def beside(name: str, notes: Notes, search: stores.Search, of: str | None = None) -> Contender:
    """Return a contender that may miss notes, and so decides no goal."""
    return Contender(ASIDE, name, lambda: search(of), recall=notes.recall(search(of), of))


def the_postgres_store(
    opened_store: tuple[stores.Search, Any] | None, ours: Ours, of: str | None = None
) -> list[Contender]:
    """Return LangGraph's PostgresStore as a contender, if it is installed."""
    if opened_store is None:
        return []
    name = f"PostgresStore ({version('langgraph-checkpoint-postgres')})"
    return [peer(name, ours.notes, opened_store[0], of, note=SERVED)]


def with_pgvector(
    notes: Notes, exact: tuple[stores.Search, Any] | None, approximate: tuple[stores.Search, Any] | None, of: str | None
) -> list[Contender]:
    """Return a table with pgvector as contenders, scanned and by its index, if the package is installed."""
    if exact is None or approximate is None:
        return []
    return [
        peer(f"pgvector, exact ({version('psycopg')})", notes, exact[0], of),
        beside(f"pgvector, HNSW ({version('psycopg')})", notes, approximate[0], of),
    ]


# --- the rows of the design --------------------------------------------------------------------------------


def test_search_postgres_store_filtered(
    contest: Callable[..., None],
    show: Callable[[str, list[str]], None],
    ours: Ours,
    server: LocalServer,
    postgres_store: tuple[stores.Search, Any] | None,
) -> None:
    if postgres_store is not None:
        theirs, connection = postgres_store
        show("PostgresStore, filtered:", stores.plan_of(server, connection, lambda: theirs(TEAM)))
    with ours_at(ours, TEAM, goal=40) as mine:
        contest(f"search, {ours.notes.size}, filtered", [*mine, *the_postgres_store(postgres_store, ours, TEAM)])


def test_search_postgres_store_plain(
    contest: Callable[..., None],
    show: Callable[[str, list[str]], None],
    ours: Ours,
    server: LocalServer,
    postgres_store: tuple[stores.Search, Any] | None,
) -> None:
    if postgres_store is not None:
        theirs, connection = postgres_store
        show("PostgresStore, plain:", stores.plan_of(server, connection, lambda: theirs(None)))
    with ours_at(ours, goal=8) as mine:
        contest(f"search, {ours.notes.size}, plain", [*mine, *the_postgres_store(postgres_store, ours)])


@pytest.mark.parametrize("of", [None, TEAM], ids=["plain", "filtered"])
def test_search_in_memory_store(contest: Callable[..., None], ours: Ours, of: str | None) -> None:
    theirs = stores.in_memory_store(ours.notes)
    kind, goal = ("plain", 100) if of is None else ("filtered", None)
    with ours_at(ours, of, goal=goal) as mine:
        if theirs is not None:
            mine.append(peer(f"InMemoryStore ({version('langgraph-checkpoint')})", ours.notes, theirs, of))
        contest(f"search, {ours.notes.size}, {kind}, in memory", mine)


def test_assemble_against_a_search(
    contest: Callable[..., None], quick: bool, ours: Ours, postgres_store: tuple[stores.Search, Any] | None
) -> None:
    """A whole window, with artifacts and turns in it, against only finding notes."""
    task = ours.add_task(*QUICK_TASK) if quick else ours.add_task()
    call = lambda: ours.memory.assemble_context(task, query=QUERY)  # noqa: E731
    assert call().used_tokens
    contest(
        f"assemble_context, {ours.notes.size}, against a filtered search",
        [
            Contender(OURS, "caliber", call, lambda: settled(ours.memory), goal=40),
            *the_postgres_store(postgres_store, ours, TEAM),
        ],
    )


# --- others, without a goal --------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [None, TEAM], ids=["plain", "filtered"])
def test_search_others(contest: Callable[..., None], ours: Ours, server: LocalServer, of: str | None) -> None:
    notes = ours.notes
    kind = "plain" if of is None else "filtered"
    with (
        ours_at(ours, of) as mine,
        stores.sqlite_store(notes) as sqlite,
        stores.pgvector_table(server, notes, "SET enable_indexscan = off") as exact,
        stores.pgvector_table(server, notes, *APPROXIMATE) as approximate,
    ):
        contenders = list(mine)
        if sqlite is not None:
            contenders.append(peer(f"SqliteStore ({version('langgraph-checkpoint-sqlite')})", notes, sqlite, of))
        contenders += with_pgvector(notes, exact, approximate, of)
        words = stores.keywords(notes) if of is None else None
        if words is not None:
            note = "keywords only: another question"
            contenders.append(Contender(ASIDE, version("bm25s"), lambda: words(None), note=note))
        contest(f"search, {notes.size}, {kind}, others", contenders)


@pytest.mark.parametrize("of", [None, TEAM], ids=["plain", "filtered"])
def test_search_large(
    contest: Callable[..., None],
    show: Callable[[str, list[str]], None],
    large: Ours,
    server: LocalServer,
    of: str | None,
) -> None:
    notes = large.notes
    kind = "plain" if of is None else "filtered"
    with (
        ours_at(large, of, at_most_s=5e-3) as mine,
        stores.pgvector_table(server, notes, "SET enable_indexscan = off") as exact,
        stores.pgvector_table(server, notes, *APPROXIMATE) as approximate,
    ):
        if approximate is not None:
            search, connection = approximate
            show(f"pgvector, HNSW, {kind}:", stores.plan_of(server, connection, lambda: search(of)))
        contest(f"search, {notes.size}, {kind}", [*mine, *with_pgvector(notes, exact, approximate, of)])


# --- while notes come in -----------------------------------------------------------------------------------

ADDED_A_SECOND, EACH, SECONDS = 2_000, 50, 3.0


def test_search_while_notes_are_added(
    tmp_path_factory: pytest.TempPathFactory, figure: Callable[..., None], quick: bool
) -> None:
    """One thread adds notes, in transactions of fifty, and another searches."""
    held, seconds = (QUICK, 0.1) if quick else (SMALL, SECONDS)
    waiting = int(ADDED_A_SECOND * seconds * 2)
    with opened(tmp_path_factory.mktemp("growing"), held, waiting=waiting) as store:
        idle = latencies(store.search, seconds)
        stop = threading.Event()
        added = [held]

        def add() -> None:
            begin = time.perf_counter()
            while not stop.is_set() and added[0] + EACH <= held + waiting:
                store.add(range(added[0], added[0] + EACH))
                added[0] += EACH
                ahead = (added[0] - held) / ADDED_A_SECOND - (time.perf_counter() - begin)
                stop.wait(max(0.0, ahead))

        writer = threading.Thread(target=add)
        begin = time.perf_counter()
        writer.start()
        busy = latencies(store.search, seconds)
        stop.set()
        writer.join()
        rate = (added[0] - held) / (time.perf_counter() - begin)
        # What came in is found: the answer is exact over everything there is now.
        now = Notes(store.notes.texts[: added[0]], store.notes.vectors[: added[0]], store.notes.query)
        with store.by_vector() as by_vector:
            assert now.recall(store.numbers(by_vector(None))) == 1.0
    task = f"search, {amount(held)} notes, while others are added"
    figure(f"{task}: notes added a second", rate, "notes/s", at_least=ADDED_A_SECOND * 0.95)
    for percent, goal in ((50, None), (99, 3)):
        one, other = float(np.percentile(idle, percent)), float(np.percentile(busy, percent))
        figure(f"{task}: p{percent} to that at rest ({one * 1e3:.2f} ms)", other / one, "x", at_most=goal)


# --- memory, and the server itself -------------------------------------------------------------------------


def test_memory_of_a_note(tmp_path_factory: pytest.TempPathFactory, figure: Callable[..., None], quick: bool) -> None:
    dimensions, count = 384, QUICK if quick else 2 * SMALL
    provider = HashEmbeddingProvider(dimensions, "bench")
    with opened(tmp_path_factory.mktemp("memory"), count, provider=provider) as store:
        store.search()
        memory = inspect(store.memory).resident
        beside = memory.mirrors.column_bytes / count / (4 * dimensions)
        figure(f"resident bytes a note beside its text, {dimensions} dimensions", beside, "of 4 d", at_most=1.6)
        figure("resident bytes of a note's text", memory.mirrors.text_bytes / count, "B")
