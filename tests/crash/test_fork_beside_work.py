"""Children that are forked while the parent has a store of SQLite open, in whatever state, and that open it themselves.

Source: docs/guarantees.md, "Processes and fork"; docs/decisions/0199.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from support.configs import config
from support.inspection import inspect

import caliber
from caliber.backends.sqlite.connecting.forks import forks
from caliber.model import EntityRef, EntityType
from caliber.model.errors import Unavailable
from caliber.schema.relations import TURN

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
PATIENCE_S = 60


class Opened:
    """A store in a file, a scope in it, and the parent's handle."""

    def __init__(self, path: Path) -> None:
        self.config = config(str(path), embedding_provider=None, policies=[])
        caliber.create(self.config)
        self.memory = caliber.open(self.config)
        goal = self.memory.start_trajectory("fork", initiator=EntityRef(EntityType.AGENT, uuid.uuid4()))
        scope = self.memory.current_scope(goal.trajectory_id)
        self.scope = scope.scope_id

    @property
    def store(self) -> Any:
        return inspect(self.memory).store

    def say(self, memory: caliber.Caliber, text: str) -> None:
        memory.append_turn(self.scope, role="user", content=text)

    def texts(self) -> list[str]:
        """Return the texts that an uninvolved process reads."""
        with contextlib.closing(apsw.Connection(self.config.storage.shown)) as other:
            assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with caliber.open(self.config) as memory:
            return [turn.text for turn in memory.storage.turns.list_by_scope(self.scope)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path / "a.db")
    yield made
    made.memory.close()


class Child:
    """A forked child that runs something, and may wait for its parent before and within."""

    def __init__(self, work: Callable[[Child], str | None]) -> None:
        self._from_parent, self._to_child = os.pipe()
        self._from_child, self._to_parent = os.pipe()
        self.process = os.fork()
        if not self.process:  # pragma: no cover  (another process)
            signal.alarm(PATIENCE_S)  # a child that hangs ends without a word
            try:
                said = work(self) or "done"
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(self._to_parent, said[:2_000].encode())
            os._exit(0)
        os.close(self._to_parent)

    def wait(self) -> None:
        """In the child: wait until the parent lets it go on."""
        os.read(self._from_parent, 1)

    def tell(self) -> None:
        """In the child: let the parent go on."""
        os.write(self._to_parent, b".")

    def heard(self) -> None:
        """In the parent: wait for what the child tells; a failure is told too."""
        first = os.read(self._from_child, 1)
        assert first == b".", first + os.read(self._from_child, 2_000)

    def go_on(self) -> None:
        os.write(self._to_child, b".")

    def said(self) -> str:
        """Return the last output of the child."""
        parts = b""
        while part := os.read(self._from_child, 2_000):
            parts += part
        os.waitpid(self.process, 0)
        for end in (self._from_child, self._from_parent, self._to_child):
            os.close(end)
        return parts.decode()


@contextlib.contextmanager
def beside(work: Callable[[threading.Event, threading.Event], None]) -> Iterator[threading.Event]:
    """Have a thread in the middle of something, until the event is set or the block ends."""
    inside, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=work, args=(inside, go))
    thread.start()
    try:
        assert inside.wait(PATIENCE_S)
        yield go
    finally:
        go.set()
        thread.join(PATIENCE_S)


def writing(opened: Opened) -> Callable[[threading.Event, threading.Event], None]:
    def work(inside: threading.Event, go: threading.Event) -> None:
        def held(uow: Any) -> None:
            del uow
            inside.set()
            go.wait(PATIENCE_S)

        opened.store.write(held)

    return work


def test_a_child_forked_within_a_transaction_of_its_parent_writes(opened: Opened) -> None:
    def work(child: Child) -> None:
        child.wait()
        with caliber.open(opened.config) as mine:
            opened.say(mine, "the child")

    with beside(writing(opened)) as go:
        child = Child(work)
        go.set()
    opened.say(opened.memory, "the parent")
    child.go_on()
    assert child.said() == "done"
    opened.say(opened.memory, "the parent again")
    assert opened.texts() == ["the parent", "the child", "the parent again"]


def test_a_child_is_locked_out_by_a_transaction_of_its_parent_and_the_parent_by_the_childs(opened: Opened) -> None:
    path = opened.config.storage.shown

    def locked(connection: apsw.Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return True
        return False

    def work(child: Child) -> str | None:
        mine = apsw.Connection(path)
        if not locked(mine):
            return "it wrote beside its parent"
        child.tell()
        child.wait()
        mine.set_busy_timeout(PATIENCE_S * 1_000)  # the parent writes by itself now and then
        if locked(mine):
            return "it stayed locked out"
        child.tell()
        child.wait()
        mine.execute("COMMIT")
        return None

    with beside(writing(opened)) as go:
        child = Child(work)
        child.heard()
        go.set()
    child.go_on()
    child.heard()
    with contextlib.closing(apsw.Connection(path)) as other:
        assert locked(other)
    child.go_on()
    assert child.said() == "done"


def test_what_a_child_reads_is_not_overwritten_by_its_parent(opened: Opened) -> None:
    """A child that counts its parent's readers as its own holds no lock: the log is folded in and begun anew."""
    opened.say(opened.memory, "before")
    store = opened.store

    def reading(inside: threading.Event, go: threading.Event) -> None:
        with store.read() as session:
            session.command("SELECT count(*) FROM turn")
            inside.set()
            go.wait(PATIENCE_S)

    def work(child: Child) -> str:
        mine = apsw.Connection(opened.config.storage.shown)
        mine.execute("BEGIN")
        before = mine.execute("SELECT count(*) FROM turn").fetchall()
        child.tell()
        child.wait()
        return f" {before} {mine.execute('SELECT count(*) FROM turn').fetchall()}"

    with beside(reading) as go:
        child = Child(work)
        child.heard()
        go.set()
    for number in range(20):
        opened.say(opened.memory, f"{number}" * 500)
    with contextlib.closing(apsw.Connection(opened.config.storage.shown)) as connection:
        connection.set_busy_timeout(0)
        busy, log, folded = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    assert busy
    assert folded < log
    child.go_on()
    assert child.said() == " [(1,)] [(1,)]"


def test_a_parent_that_closes_leaves_its_child_the_log(opened: Opened) -> None:
    """The last process to close removes the log: a child without locks would go on writing into a nameless one."""

    def work(child: Child) -> None:
        with caliber.open(opened.config) as mine:
            child.tell()
            child.wait()
            opened.say(mine, "after the parent has closed")
            child.tell()
            child.wait()

    child = Child(work)
    child.heard()
    opened.memory.close()
    child.go_on()
    child.heard()
    assert opened.texts() == ["after the parent has closed"]
    child.go_on()
    assert child.said() == "done"


def test_children_of_children(opened: Opened) -> None:
    def work(_: Child) -> str | None:
        with caliber.open(opened.config) as mine:
            opened.say(mine, "child")
            with beside(lambda *events: inspect(mine).store.write(lambda uow: held(*events))) as go:
                grandchild = Child(grand)
                go.set()
            grandchild.go_on()
            return grandchild.said()

    def held(inside: threading.Event, go: threading.Event) -> None:
        inside.set()
        go.wait(PATIENCE_S)

    def grand(child: Child) -> None:
        child.wait()
        with caliber.open(opened.config) as mine:
            opened.say(mine, "grandchild")

    assert Child(work).said() == "done"
    assert opened.texts() == ["child", "grandchild"]


def test_what_a_child_inherits_refuses_and_gives_up_no_lock(opened: Opened) -> None:
    """A read that the child inherits ends in the child: what it takes its own locks for must stay."""
    opened.say(opened.memory, "said")
    rows = opened.store.bulk_read(TURN, 1)
    session = opened.store.read()
    inherited = session.__enter__()
    next(rows)

    def work(_: Child) -> str | None:
        with contextlib.closing(apsw.Connection(opened.config.storage.shown)) as mine:
            mine.execute("BEGIN IMMEDIATE")
            with contextlib.suppress(Unavailable):
                rows.close()
            for call in (lambda: inherited.command("SELECT 1"), lambda: opened.memory.admin.stats()):
                try:
                    call()
                    return "it worked"
                except Unavailable as error:
                    if error.context["reason"] != "forked":
                        return str(error)
            session.__exit__(None, None, None)
            mine.execute("COMMIT")
        return None

    child = Child(work)
    assert child.said() == "done"
    session.__exit__(None, None, None)
    rows.close()
    opened.say(opened.memory, "the parent")


def test_a_child_forked_within_a_call_that_did_not_end_refuses_to_open(tmp_path: Path) -> None:
    made = Opened(tmp_path / "b.db")
    calls = inspect(made.store).connection
    calls.fork_wait_ms = 0

    def work(_: Child) -> str | None:
        with pytest.raises(Unavailable, match="spawned") as caught:
            caliber.open(made.config)
        return None if (caught.value.context["reason"], caught.value.retryable) == ("forked", False) else "otherwise"

    def call(inside: threading.Event, go: threading.Event) -> None:
        with calls.turn():
            inside.set()
            go.wait(PATIENCE_S)

    with beside(call) as go:
        assert Child(work).said() == "done"
        go.set()
    # The next one waits, for a moment at most, and is told nothing of that.
    calls.fork_wait_ms = PATIENCE_S * 1_000
    assert Child(lambda _: caliber.open(made.config).close()).said() == "done"
    made.say(made.memory, "the parent")
    made.memory.close()


def test_whoever_forks_in_a_call_of_its_own_does_not_wait_for_itself(opened: Opened) -> None:
    with inspect(opened.store).connection.turn():
        assert Child(lambda _: caliber.open(opened.config).close()).said() == "done"


def test_calls_let_a_fork_go_first_and_go_on_after_it(opened: Opened) -> None:
    opened.say(opened.memory, "said")

    def reading(inside: threading.Event, go: threading.Event) -> None:
        while not go.is_set():
            with opened.store.read() as session:
                for _ in range(50):
                    session.command("SELECT count(*) FROM turn")
            inside.set()

    with beside(reading), beside(reading):
        for _ in range(5):
            assert Child(lambda _: caliber.open(opened.config).close()).said() == "done"
    assert not forks.coming


def test_locks_of_modules_that_a_thread_holds_are_free_in_the_child(opened: Opened) -> None:
    from caliber.kernels import evaluator
    from caliber.resident import conversation

    def work(_: Child) -> str | None:
        held = [lock for lock in (evaluator.OPENING, conversation.LOCK) if not lock.acquire(timeout=5)]
        return "held" if held else None

    def hold(inside: threading.Event, go: threading.Event) -> None:
        with evaluator.OPENING, conversation.LOCK:
            inside.set()
            go.wait(PATIENCE_S)

    with beside(hold):
        child = Child(work)
        assert child.said() == "done"


_PAST_PYTHON = """
import ctypes, os, sys
import caliber.backends.sqlite.connecting.forks
import caliber
import apsw
config = caliber.load_config(sys.argv[1])
# No thread but this one: what another holds while it forks past Python, the child would wait for.
held = apsw.Connection(config.storage.path)
process = ctypes.PyDLL(None).fork()
if not process:
    code = 1
    try:
        caliber.open(config)
    except caliber.model.errors.Unavailable as error:
        code = 0 if error.context["reason"] == "forked" else 2
    except BaseException as error:
        os.write(2, repr(error).encode())
    os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_a_child_forked_past_python_refuses(opened: Opened, tmp_path: Path) -> None:
    """Nobody waited for calls of SQLite then."""
    file = tmp_path / "config.json"
    file.write_text(opened.config.canonical_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _PAST_PYTHON, str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
