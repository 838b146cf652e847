"""The network to PostgreSQL says nothing any more: calls end with their deadlines, other threads go on, and afterwards
everything is as before.

The network stays silent for a minute, and what must end does so in a sixth of it: a slow machine turns nothing red.

A server is put back to an earlier state while programs have a store open. Source: issue 5, item 5; design 5.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.entities import plain
from support.configs import USER
from support.databases import DSN, PostgresBackend, note
from support.deadlines import bounded
from support.folders import open_folder
from support.inspection import inspect, replaced
from support.local_server import LocalServer
from support.postgres.silence import Network
from support.waits import until

import caliber
from caliber.backends.postgres.store import PostgresStore
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, Unavailable
from caliber.schema.relations import TRAJECTORY

pytestmark = pytest.mark.prove

DEADLINE_MS = 300
ENOUGH_S = 10.0
THROUGH = "CALIBER_TEST_THROUGH_DSN"


@pytest.fixture
def pg(pg: PostgresBackend) -> PostgresBackend:
    """The backend, with its store already there."""
    pg.create(pg.config())
    return pg


@pytest.fixture
def network(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(postgres)
    monkeypatch.setenv(THROUGH, made.dsn)
    yield made
    made.close()


@pytest.fixture
def through(pg: PostgresBackend, network: Network) -> Iterator[caliber.Caliber]:
    """A handle whose connections go through the network."""
    with caliber.open(pg.config(storage__dsn=f"env:{THROUGH}", storage__durability="group")) as memory:
        yield memory
        network.come_back()


@pytest.fixture(params=["own pool", "lent pool"])
def either(
    request: pytest.FixtureRequest, pg: PostgresBackend, network: Network, monkeypatch: pytest.MonkeyPatch
) -> Iterator[caliber.Caliber]:
    """As ``through``, also with a pool that was handed in."""
    if request.param == "own pool":
        yield request.getfixturevalue("through")
        return
    pools = pytest.importorskip("psycopg_pool")
    with (
        pools.ConnectionPool(network.dsn, min_size=2, max_size=6, open=False) as pool,
        caliber.open(pg.config(), connection_pool=pool) as memory,
    ):
        yield memory
        network.come_back()


class Calls:
    """Calls on threads of their own, how long each took, and what it raised."""

    def __init__(self, **works: Callable[[], Any]) -> None:
        self.took: dict[str, float] = {}
        self.raised: dict[str, CaliberError] = {}
        self.threads = {name: self._begun(name, work) for name, work in works.items()}

    def _begun(self, name: str, work: Callable[[], Any]) -> threading.Thread:
        def call() -> None:
            began = time.monotonic()
            try:
                work()
            except CaliberError as error:
                self.raised[name] = error
            self.took[name] = time.monotonic() - began

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        return thread

    def joined(self, *names: str) -> Calls:
        for name in names or self.threads:
            self.threads[name].join(2 * ENOUGH_S)
            assert self.took.get(name, 99) < ENOUGH_S, f"{name} did not end with its deadline"
        return self


class Ticks:
    """A thread that runs all the time, unless something keeps it from running."""

    def __enter__(self) -> Ticks:
        self._at = [time.monotonic()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._at.append(time.monotonic())

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._at.append(time.monotonic())
        self.gap = max(after - before for before, after in zip(self._at, self._at[1:], strict=False))


def talk(memory: caliber.Caliber) -> tuple[uuid.UUID, uuid.UUID]:
    trajectory = memory.start_trajectory("g", initiator=USER).trajectory_id
    scope = memory.current_scope(trajectory).scope_id
    memory.append_turn(scope, role="user", content="hello")
    memory.search("hello", consistency="latest")
    memory.flush()  # so that nobody else writes in a moment that a test has chosen
    return trajectory, scope


def works_again(memory: caliber.Caliber) -> None:
    """Wait until calls come through, and compare what memory holds with the store."""
    limit = time.monotonic() + 30
    while True:
        try:
            with caliber.deadline(20_000):
                note(memory, "after")
                memory.search("after", consistency="latest")
            break
        except Unavailable:
            assert time.monotonic() < limit
    memory.flush()
    inspect(memory).snapshot("latest")
    assert inspect(memory).resident.verify() == []


def contents(pg: PostgresBackend, table: str) -> list[str]:
    return sorted(
        bytes(row[0]).decode() if isinstance(row[0], bytes) else row[0]
        for row in pg.ask(f"SELECT content FROM {pg.qualified(table)}")
    )


def test_calls_end_with_their_deadlines_and_other_threads_go_on(
    pg: PostgresBackend, network: Network, either: caliber.Caliber
) -> None:
    memory = either
    trajectory, scope = talk(memory)
    note(memory, "before")
    network.fall_silent()
    with Ticks() as ticks:
        calls = Calls(
            turn=lambda: bounded(DEADLINE_MS, memory.append_turn, scope, role="user", content="lost"),
            note=lambda: bounded(DEADLINE_MS, note, memory, "lost"),
            search=lambda: bounded(DEADLINE_MS, memory.search, "hello", consistency="latest"),
            window=lambda: bounded(DEADLINE_MS, memory.assemble_context, trajectory, consistency="latest"),
        ).joined()
        # No connection is left: it is making one that takes too long.
        again = Calls(**{f"again {at}": lambda: bounded(DEADLINE_MS, note, memory, "lost") for at in range(3)}).joined()
    assert ticks.gap < ENOUGH_S
    for error in (*calls.raised.values(), *again.raised.values()):
        assert isinstance(error, Unavailable)
        assert error.retryable
    assert {"turn", "note", "search", "window", "again 0", "again 1", "again 2"} == {*calls.raised, *again.raised}
    network.come_back()
    works_again(memory)
    # Nothing but what shared a transaction of somebody who has no deadline, and was told so, may stand now.
    raised = {**calls.raised, **again.raised}
    unknown = [name for name, error in raised.items() if error.context["reason"] == "outcome unknown"]
    kept = contents(pg, "note") + contents(pg, "turn")
    assert {"before", "after", "hello"} <= set(kept) <= {"before", "after", "hello", "lost"}
    assert kept.count("lost") <= len(unknown), raised


def test_commit_that_is_not_answered_is_unknown_and_not_doubled(
    pg: PostgresBackend, network: Network, through: caliber.Caliber
) -> None:
    _, scope = talk(through)
    writer: Any = inspect(through).writer

    def silenced(*arguments: Any) -> Any:
        network.fall_silent()
        return commit(*arguments)

    def append() -> Any:
        with caliber.deadline(DEADLINE_MS):
            return through.append_turn(scope, role="user", content="once", idempotency_key="k")

    with replaced(writer, "commit", silenced, once=True) as commit, Ticks() as ticks:
        calls = Calls(turn=append).joined()
    assert ticks.gap < ENOUGH_S
    assert calls.raised["turn"].context["reason"] == "outcome unknown"
    network.come_back()  # and the COMMIT reaches the server
    works_again(through)
    through.append_turn(scope, role="user", content="once", idempotency_key="k")
    assert contents(pg, "turn") == ["hello", "once"]


def test_who_shares_a_transaction_leaves_it_with_its_own_deadline(
    pg: PostgresBackend, network: Network, through: caliber.Caliber
) -> None:
    talk(through)
    store: Any = inspect(through).store
    leads, goes_on = threading.Event(), threading.Event()
    patient, hasty = plain(TRAJECTORY), plain(TRAJECTORY)

    def first(uow: Any) -> None:
        leads.set()
        goes_on.wait(ENOUGH_S)

    def silences(uow: Any) -> None:
        network.fall_silent()
        uow.insert(TRAJECTORY, patient)

    def stands_in_line(count: int, calls: Calls) -> None:
        until(lambda: inspect(store).waiting >= count or calls.took, seconds=ENOUGH_S)

    one = Calls(first=lambda: store.write(first))
    assert leads.wait(ENOUGH_S)
    two = Calls(patient=lambda: store.write(silences))
    stands_in_line(1, two)

    def hurries() -> None:
        with within(DEADLINE_MS / 1_000):
            store.write(lambda uow: uow.insert(TRAJECTORY, hasty))

    three = Calls(hasty=hurries)
    stands_in_line(2, three)
    goes_on.set()
    one.joined()
    three.joined()
    assert isinstance(three.raised["hasty"], Unavailable)
    assert "patient" not in two.took, "it has no deadline, and waits"
    network.come_back()
    two.threads["patient"].join(3 * ENOUGH_S)
    assert "patient" in two.took
    works_again(through)
    kept = [row[0] for row in pg.ask(f"SELECT trajectory_id FROM {pg.qualified('trajectory')}")]
    assert kept.count(patient.trajectory_id) == 1, "the network was away, and the link lived"
    assert kept.count(hasty.trajectory_id) <= 1


KEPT = "kept by a pool in between"
"""The harder case, and what every run tries."""


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with open_folder() as folder, LocalServer.start(folder / "server", fsync=False) as made:
        yield made


@pytest.fixture
def lone(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresBackend]:
    monkeypatch.setenv(DSN, server.dsn)
    ready, PostgresBackend.ready = PostgresBackend.ready, []
    made = PostgresBackend()
    yield made
    for close in made.closing:
        close()
    PostgresBackend.ready = ready  # the server goes with all that is in it


def copy(source: Path, target: Path) -> None:
    """Copy a stopped cluster, with its owners and modes."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    for path in (source, *source.rglob("*")):
        there = target / path.relative_to(source)
        state = path.lstat()
        os.chown(there, state.st_uid, state.st_gid, follow_symlinks=False)


@pytest.mark.parametrize("connections", [KEPT, "new"] if os.environ.get("CALIBER_SOAK") else [KEPT])
def test_earlier_state_is_noticed_however_far_it_went_on_since(
    server: LocalServer, lone: PostgresBackend, monkeypatch: pytest.MonkeyPatch, connections: str
) -> None:
    data = server.data_directory
    memory, other = lone.open(lone.config(embedding_provider=None)), lone.open(lone.config(embedding_provider=None))
    note(memory, "before the copy")
    memory.flush()
    server.stop()
    copy(data, data.with_name("earlier"))
    server.restart()
    for at in range(5):
        note(memory, f"lost {at}")
    inspect(memory).snapshot("latest")
    memory.flush()
    server.stop()
    copy(data.with_name("earlier"), data)
    server.restart()
    if connections != "new":  # PgBouncer's clients keep theirs: nothing tells them that the server is another
        monkeypatch.setattr(PostgresStore, "look_at", lambda self, connection: None)
    # More transactions than were lost: by their numbers alone nothing is amiss.
    for at in range(30):
        note(other, f"since {at}")
    other.flush()
    expected = {"before the copy", *(f"since {at}" for at in range(30))}
    reloads = memory.admin.stats()["resident"]["reloads"]
    for handle in (memory, other):
        found = handle.search("", kinds=["note"], limit=100, consistency="latest").hits
        assert {hit.content for hit in found} == expected
        assert handle.admin.verify() == []
    assert memory.admin.stats()["resident"]["reloads"] == reloads + 1
    note(memory, "goes on")
    assert memory.storage.notes.count() == 32
