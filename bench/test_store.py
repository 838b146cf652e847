"""The store and what is read from it, against the bare driver and what people use today. Goals: design section 9.

Every comparison states its durability; answers are checked before anything is timed. A server that is not installed
has no row: install redis-server or valkey-server to see it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness.contest import OURS, PEER, Contender
from harness.notes import ARTIFACTS, ME, QUERY, QUICK_TASK, TURNS, Ours, opened, sentence, settled
from harness.peers import peer
from harness.scale import usual
from harness.writers import per_second
from support.inspection import inspect
from support.local_server import free_port

import caliber
from caliber.api.caliber import Caliber
from caliber.backends.sqlite.schema import PLANS
from caliber.backends.sqlite.statements import STATEMENTS
from caliber.config import CaliberConfig
from caliber.kernels import uuid7

NOTES, QUICK_NOTES = 10_000, 500
SECONDS, QUICK_SECONDS = usual(1.0, full=2.0), 0.1  # that writers write
COLD_RUNS, QUICK_COLD_RUNS = usual(4, full=6), 1
WINDOWS, QUICK_WINDOWS = usual(500, full=10_000), 40


def configuration(folder: Path, **overrides: Any) -> CaliberConfig:
    return caliber.profiles.reference(folder / "bench.db", **overrides)


class Loaded:
    """A store with notes, open, with a task in it."""

    def __init__(self, store: Ours, artifacts: int, turns: int) -> None:
        self.memory, self.config = store.memory, store.config
        self.notes = list(store.number_of)
        self.size = store.notes.size
        self.artifacts, self.turns = artifacts, turns
        self.trajectory = store.add_task(artifacts, turns)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> Iterator[Loaded]:
    with opened(tmp_path_factory.mktemp("loaded"), QUICK_NOTES if quick else NOTES) as store:
        yield Loaded(store, *(QUICK_TASK if quick else (ARTIFACTS, TURNS)))


@pytest.fixture
def opening() -> Iterator[ExitStack]:
    """Close everything that a benchmark opened, also when it fails: an open connection fails the next benchmark."""
    with ExitStack() as stack:
        yield stack


# --- the peer that answers from memory over a socket ------------------------------------------------


@pytest.fixture(scope="module")
def key_value() -> Iterator[tuple[str, Callable[[], bytes]] | None]:
    """A GET of one note from a server on this machine, through its Python client; None without one of them."""
    redis = peer("redis")
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if redis is None or binary is None:
        yield None
        return
    port = free_port()
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(host="127.0.0.1", port=port)
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        client.set("note", sentence(0))
        assert client.get("note") == sentence(0).encode()
        yield f"{Path(binary).name} GET", lambda: client.get("note")
    finally:
        server.terminate()
        server.wait()


# --- reading -------------------------------------------------------------------------------------------

pytestmark = pytest.mark.benchmark(min_rounds=200, max_time=1.0, warmup=True, warmup_iterations=20)


def statements_of(memory: Caliber, call: Callable[[], Any]) -> int:
    before = inspect(memory).store.statement_count()
    call()
    return inspect(memory).store.statement_count() - before


def test_assemble(
    contest: Callable[..., None], loaded: Loaded, key_value: tuple[str, Callable[[], bytes]] | None
) -> None:
    memory = loaded.memory
    call = lambda: memory.assemble_context(loaded.trajectory, query=QUERY)  # noqa: E731
    window = call()
    assert window.used_tokens <= window.max_tokens
    assert statements_of(memory, call) == 0
    contenders = [Contender(OURS, "caliber", call, lambda: settled(memory), at_most=5)]
    contenders += [] if key_value is None else [Contender(PEER, *key_value)]
    contest(
        f"assemble_context, {loaded.size}, {loaded.artifacts} artifacts, {loaded.turns} turns",
        contenders,
    )


def test_get(contest: Callable[..., None], loaded: Loaded, key_value: tuple[str, Callable[[], bytes]] | None) -> None:
    memory, wanted = loaded.memory, loaded.notes[0]
    assert memory.get(wanted).content == sentence(0)
    assert statements_of(memory, lambda: memory.get(wanted)) == 0
    contenders = [Contender(OURS, "caliber", lambda: memory.get(wanted), lambda: settled(memory), at_most=0.2)]
    contenders += [] if key_value is None else [Contender(PEER, *key_value)]
    contest("get of a resident record", contenders)


# --- writing -------------------------------------------------------------------------------------------


class Appending:
    """One store, its open scope, and the same rows written by the bare driver."""

    def __init__(self, folder: Path, opening: ExitStack, **overrides: Any) -> None:
        self.config = configuration(folder, **{"embedding.embed.turn": "off", **overrides})
        caliber.create(self.config)
        self.memory = opening.enter_context(caliber.open(self.config, principal=caliber.Principal.admin()))
        task = self.memory.start_trajectory("Append", initiator=ME)
        scope = self.memory.current_scope(task.trajectory_id)
        assert scope is not None
        self.trajectory, self.scope = task.trajectory_id, scope.scope_id
        self.path = Path(self.config.storage.resolve_path())

    def append(self) -> None:
        self.memory.append_turn(self.scope, role="user", content=sentence(7))


class Bare:
    """apsw alone: the statements of one appended turn in one transaction, synchronous=FULL, WAL."""

    def __init__(self, like: Appending, name: str, opening: ExitStack) -> None:
        copy = like.path.with_name(name)
        like.memory.close()
        shutil.copy(like.path, copy)
        self.connection = opening.enter_context(closing(apsw.Connection(str(copy))))
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self.connection.execute(f"PRAGMA {pragma}").fetchall()
        self.connection.set_busy_timeout(10_000)
        row = self.connection.execute("SELECT * FROM turn LIMIT 1").fetchall()[0]
        self.row = list(row)
        self.trajectory, self.scope = like.trajectory.bytes, like.scope.bytes
        self.next = self.connection.execute("SELECT max(turn_number) + 1000 FROM turn").fetchall()[0][0]

    def append(self) -> None:
        run = self.connection.execute
        self.next += 1
        row = [None, uuid7().bytes, *self.row[2:]]
        place = PLANS["turn"].codec.index
        row[place("sequence")] = row[place("turn_number")] = self.next
        run("BEGIN IMMEDIATE")
        run(STATEMENTS["append.scope"].sql, (9, 0, 1, 1, self.scope)).fetchall()
        run(STATEMENTS["append.trajectory"].sql, (9, 0, 1, 1, self.scope)).fetchall()
        run(PLANS["turn"].insert.sql, row).fetchall()
        run(STATEMENTS["change.insert"].sql, (bytes(16), bytes(54), 1)).fetchall()
        run("COMMIT")


DURABLE = "SQLite, WAL, synchronous=FULL on both sides"


def test_append_turn(contest: Callable[..., None], tmp_path: Path, opening: ExitStack) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    store, other = Appending(tmp_path / "ours", opening), Appending(tmp_path / "theirs", opening)
    other.append()
    bare = Bare(other, "bare.db", opening)
    contenders = [
        Contender(OURS, "caliber", store.append, lambda: settled(store.memory), at_most=1.1, note=DURABLE),
        Contender(PEER, f"apsw {apsw.apsw_version()} alone, the same rows", bare.append),
    ]
    contest("append_turn, durability commit", contenders)


def cpu_of(call: Callable[[], None], rounds: int) -> float:
    """Return the CPU seconds of the calling thread per call."""
    before = time.thread_time()
    for _ in range(rounds):
        call()
    return (time.thread_time() - before) / rounds


def test_own_cpu_of_an_append(tmp_path: Path, figure: Callable[..., None], quick: bool, opening: ExitStack) -> None:
    warm, rounds = (10, 20) if quick else (200, 1_000)
    store = Appending(tmp_path, opening)
    for _ in range(warm):
        store.append()
    mine = cpu_of(store.append, rounds)
    bare = Bare(store, "bare.db", opening)
    for _ in range(warm):
        bare.append()
    beyond = mine - cpu_of(bare.append, rounds)
    figure("own CPU of an append_turn beyond the bare driver", beyond * 1e6, "µs", at_most=30)


@pytest.mark.parametrize(("writers", "goal"), [(8, 2), (32, 3)])
def test_concurrent_writers(
    tmp_path: Path, figure: Callable[..., None], quick: bool, opening: ExitStack, writers: int, goal: float
) -> None:
    seconds = QUICK_SECONDS if quick else SECONDS
    store = Appending(tmp_path, opening, **{"storage.durability": "group"})
    store.append()
    mine, fairness = per_second(writers, seconds, lambda _: store.append)
    bare_store = Bare(store, "bare.db", opening)
    file = str(store.path.with_name("bare.db"))
    connections = [opening.enter_context(closing(apsw.Connection(file))) for _ in range(writers)]

    def bare(number: int) -> Callable[[], None]:
        peer = Bare.__new__(Bare)
        peer.__dict__.update(bare_store.__dict__)
        peer.connection = connections[number]
        peer.connection.execute("PRAGMA synchronous = FULL").fetchall()
        peer.connection.set_busy_timeout(60_000)
        peer.next = 10_000_000 * (number + 1)
        return peer.append

    theirs, _ = per_second(writers, seconds, bare)
    figure(
        f"{writers} writers at group, against {writers} connections committing one by one",
        mine / theirs,
        "x",
        at_least=goal,
    )
    figure(f"{writers} writers at group: slowest thread to mean", fairness, "", at_least=0.5)


# --- cold, memory, disk --------------------------------------------------------------------------------

COLD = """
    import sys, time
    start = time.perf_counter()
    import caliber
    with caliber.open(sys.argv[1], principal=caliber.Principal.admin()) as memory:
        window = memory.assemble_context(sys.argv[2], query="what was decided about parsing empty input")
        assert window.used_tokens
        print(time.perf_counter() - start)
"""

COLD_PEER = """
    import time
    start = time.perf_counter()
    from langgraph.store.memory import InMemoryStore
    store = InMemoryStore(index={"dims": 256, "embed": lambda texts: [[1.0] * 256 for _ in texts]})
    store.put(("notes",), "1", {"text": "a note"})
    assert store.search(("notes",), query="a note")
    print(time.perf_counter() - start)
"""


def cold(code: str, *arguments: str, runs: int) -> float:
    """Return the median seconds of a fresh interpreter; with several runs, the first only warms the disk's cache.

    What pip installs is compiled to bytecode then; a checkout is by its first run, unless the environment forbids it.
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    took = [
        float(subprocess.run(command, check=True, capture_output=True, text=True, env=compiled).stdout)
        for _ in range(runs)
    ]
    return statistics.median(took[1:] or took)


@pytest.fixture
def cold_runs(quick: bool) -> int:
    """The number of starts of each program."""
    return QUICK_COLD_RUNS if quick else COLD_RUNS


def test_cold_open_and_first_window(
    loaded: Loaded, tmp_path: Path, figure: Callable[..., None], cold_runs: int
) -> None:
    from caliber.config.manual.render import render_toml

    file = tmp_path / "caliber.toml"
    file.write_text(render_toml(loaded.config))
    mine = cold(COLD, str(file), str(loaded.trajectory), runs=cold_runs)
    figure(f"cold: import, open and first window, {loaded.size}", mine * 1e3, "ms")
    if peer("langgraph.store.memory") is not None:
        theirs = cold(COLD_PEER, runs=cold_runs)
        figure("cold, against langgraph's import, put and search of one note", mine / theirs, "x", at_most=1.0)


def test_import_cost(figure: Callable[..., None], cold_runs: int) -> None:
    code = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
    mine = cold(code.format("caliber"), runs=cold_runs)
    figure("import caliber", mine * 1e3, "ms", at_most=100)
    if peer("langgraph.store.base") is not None:
        theirs = cold(code.format("langgraph.store.base"), runs=cold_runs)
        figure("import caliber, against langgraph.store.base", mine / theirs, "x", at_most=0.2)


def test_windows_kept_up(loaded: Loaded, figure: Callable[..., None], quick: bool) -> None:
    memory = loaded.memory
    memory.flush()
    before, written = memory.admin.stats()["store"], memory.admin.stats()["behind"]["windows_written"]
    count = QUICK_WINDOWS if quick else WINDOWS
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        memory.assemble_context(loaded.trajectory, query=QUERY)
    memory.flush()
    elapsed, cpu = time.perf_counter() - start, time.process_time() - cpu
    assert memory.admin.stats()["behind"]["windows_written"] - written == count
    grown = memory.admin.stats()["store"]["bytes"] - before["bytes"]
    figure(f"{count} windows back to back: bytes a window on disk", grown / count / 1024, "KiB", at_most=20)
    figure(f"{count} windows back to back: CPU a window, all threads", cpu / count * 1e6, "µs")
    figure(f"{count} windows back to back: wall time a window", elapsed / count * 1e6, "µs")
