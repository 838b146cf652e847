"""A process of the random machine: public calls drawn from a table, each logged before and after, until it is killed.

Another public call is one function and one line of ``OPERATIONS``.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from support.agents.history import Client, FileLog
from support.cli_runs import caliber as command
from support.configs import config

import caliber
from caliber.erasure.service import Forgetting
from caliber.model.errors import CaliberError, Conflict, NotFound

KNOBS: Final = {"storage__wal_autocheckpoint_pages": 60, "resident__feed_poll_ms": 20, "token_budget": 900}
STATEMENTS: Final = ("I live in Graz.", "I like green tea.", "I work as a nurse.", "My name is Ada.", "How are you?")
SIZES: Final = (20, 60, 300, 3_000, 20_000)
PATIENCE: Final = 20
"""Tries to open the store again."""
ONCE_US: Final = 125_000
"""The time for which every process writes under the same idempotency key."""
HELD_TASKS: Final = 6
"""A worker forgets older tasks of its own."""


class Order(NamedTuple):
    """The part of one process."""

    path: str
    knobs: dict[str, Any]
    environment: dict[str, str]
    folder: Path
    """Of the round: ``store`` with the store's file and texts to ingest, ``logs``, and ``elsewhere``."""
    world: dict[str, Any]
    name: str
    threads: int
    seed: str
    often: tuple[str, ...]
    """Calls that come up much more often than in ``OPERATIONS``."""
    planted: bool


def settings_of(path: str, knobs: dict[str, Any]) -> caliber.CaliberConfig:
    """Return the configuration of a store under test, or of a copy of it."""
    own = {name: value for name, value in KNOBS.items() if "adapter" not in str(knobs) or "wal" not in name}
    return config(path, **{**own, **knobs})


def digest(text: str) -> str:
    """Return a short digest of a text, as the log has it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def now_us() -> int:
    """Return the time of a clock that all processes share."""
    return time.monotonic_ns() // 1_000


class Task(NamedTuple):
    """A task that a worker started, with its person."""

    id: str
    person: str


class Worker(Client):
    """One thread of a process."""

    process: Process
    tasks: list[Task]
    drawn: Task | None = None

    def refusal(self, error: CaliberError) -> Any:
        if isinstance(error, NotFound) and self.drawn in self.tasks:
            self.tasks.remove(self.drawn)
        reason = str(error.context.get("reason"))
        return {
            "error": type(error).__name__, "reason": reason, "retryable": error.retryable, "message": str(error)[:300],
        }  # fmt: skip

    def step(self, without: tuple[str, ...] = ()) -> None:
        """Make one random call, once no other thread is opening the store again."""
        self.process.is_open.wait()
        name = self.rng.choices(list(OPERATIONS), self.process.weights)[0]
        if name not in without:
            OPERATIONS[name][1](self)

    def person(self) -> str:
        """Return one of the people whom all processes talk with."""
        return str(self.rng.choice(self.world["people"]))

    def task(self) -> Task | None:
        """Return a task that this worker knows."""
        self.drawn = self.rng.choice(self.tasks) if self.tasks else None
        return self.drawn

    def know(self, task: str, person: str) -> None:
        """Remember a task."""
        if all(known.id != task for known in self.tasks):
            self.tasks.append(Task(task, person))
            del self.tasks[:-HELD_TASKS]

    def texts(self, count: int) -> dict[str, str]:
        """Return new texts by label; each begins with its label, which no other text has."""
        made = {}
        for at in range(count):
            label = f"[{self.tag()}:{at}]"
            made[label] = f"{label} {self.rng.choice(STATEMENTS)} ".ljust(self.rng.choice(SIZES), "x")
        return made

    def write(self, name: str, texts: dict[str, str], call: Callable[[], Any], **given: Any) -> Any:
        """Call, and log the texts that it writes. ``call`` returns the id of each text's record, in order."""
        writes = {label: digest(text) for label, text in texts.items()}
        return self.do(name, call, writes=writes, **given)


# --- the calls -----------------------------------------------------------------------------------------


def remember(worker: Worker) -> None:
    person, texts = worker.person(), worker.texts(worker.rng.choice((1, 1, 2)))
    wait = worker.rng.random() < 0.7

    def call() -> dict[str, Any]:
        learned = worker.memory.remember(
            [{"role": "user", "content": text} for text in texts.values()], user=person, wait=wait
        )
        return {
            "task": str(learned.trajectory_id), "ids": [str(each) for each in learned.turns],
            "learned": str(learned.learned_id), "facts": [str(each.note_id) for each in learned.added],
        }  # fmt: skip

    found = worker.write("remember", texts, call, person=person)
    if found:
        worker.know(found["task"], person)
        worker.state["learned"] = found["learned"], person


def start(worker: Worker) -> None:
    person, texts = worker.person(), worker.texts(1)

    def call() -> dict[str, Any]:
        made = worker.memory.start_trajectory(*texts.values(), user=person)
        return {"task": str(made.trajectory_id), "ids": [str(made.trajectory_id)]}

    found = worker.write("start", texts, call, person=person)
    if found:
        worker.know(found["task"], person)


def append(worker: Worker) -> None:
    task, texts = worker.task(), worker.texts(worker.rng.choice((1, 1, 1, 8)))
    if task is None:
        return

    def call() -> dict[str, Any]:
        scope = worker.memory.current_scope(task.id)
        turns = worker.memory.append_turns(
            scope.scope_id, [{"role": "user", "content": text} for text in texts.values()]
        )
        return {"ids": [str(turn.turn_id) for turn in turns]}

    worker.write("append", texts, call, task=task.id, person=task.person)


def board(worker: Worker) -> None:
    texts = worker.texts(1)

    def call() -> dict[str, Any]:
        turn = worker.memory.append_turn(worker.world["scope"], role="assistant", content=next(iter(texts.values())))
        return {"ids": [str(turn.turn_id)], "sequence": turn.sequence}

    worker.write("board", texts, call)


def artifact(worker: Worker) -> None:
    task, texts = worker.task(), worker.texts(1)
    if task is None:
        return

    def call() -> dict[str, Any]:
        scope = worker.memory.current_scope(task.id)
        made = worker.memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=next(iter(texts.values())), extraction_method="explicit"
        )
        return {"ids": [str(made.artifact_id)]}

    worker.write("artifact", texts, call, task=task.id, person=task.person)


def note(worker: Worker) -> None:
    texts = worker.texts(1)

    def call() -> dict[str, Any]:
        made = worker.memory.add_note(
            entity=f"thing {worker.rng.randrange(9)}", entity_type="topic", note_type="fact", confidence=0.5,
            content=next(iter(texts.values())),
        )  # fmt: skip
        return {"ids": [str(made.note_id)]}

    made = worker.write("note", texts, call)
    worker.state["note"] = made["ids"][0] if made else worker.state.get("note")


def count(worker: Worker) -> None:
    def call() -> int:
        while True:
            found = worker.memory.get(worker.world["counter"])
            assert int(found.content) == found.version - 1, "a torn record"
            if not worker.world["overwrites"]:
                assert found.version >= worker.state.get("seen", 0), "memory went backwards"
            worker.state["seen"] = found.version
            try:
                changed = worker.memory.storage.notes.update(
                    found.note_id, expected_version=found.version, content=str(found.version)
                )
            except Conflict:
                continue
            return int(changed.version)

    worker.do("count", call)


def once(worker: Worker) -> None:
    """Write what every process writes at this time, under one key: all are given one record."""
    key = f"once {now_us() // ONCE_US}"

    def call() -> str:
        made = worker.memory.add_note(
            entity="once", entity_type="topic", note_type="fact", confidence=0.5, content=key, idempotency_key=key
        )
        return str(made.note_id)

    worker.do("once", call, key=key)


def look(worker: Worker) -> None:
    task = worker.task()

    def call() -> None:
        worker.memory.search("green tea", limit=3)
        if worker.state.get("note"):
            assert str(worker.memory.get(worker.state["note"]).note_id) == worker.state["note"]  # its own write
        if task is not None:
            window = worker.memory.assemble_context(task.id, consistency="latest")
            assert window.used_tokens <= window.max_tokens

    worker.do("look", call, **({} if task is None else {"task": task.id, "person": task.person}))


def forget(worker: Worker) -> None:
    person = worker.person()
    worker.do("forget", lambda: worker.memory.forget(user=person).remaining, person=person)


def purge(worker: Worker) -> None:
    task = worker.task()
    if task is not None:
        worker.tasks.remove(task)
        worker.do(
            "purge", lambda: worker.memory.admin.purge_trajectory(task.id).remaining, task=task.id, person=task.person
        )


def checkpoint(worker: Worker) -> None:
    task = worker.task()
    if task is not None:
        worker.do(
            "checkpoint", lambda: str(worker.memory.pcp.checkpoint(task.id).checkpoint_id),
            task=task.id, person=task.person,
        )  # fmt: skip


def recover(worker: Worker) -> None:
    task = worker.task()
    if task is not None:
        worker.do(
            "recover", lambda: worker.memory.pcp.recover(task.id).turns_rolled_back, task=task.id, person=task.person
        )


def undo(worker: Worker) -> None:
    learned, person = worker.state.pop("learned", ("None", ""))
    if learned != "None":
        worker.do("undo", lambda: str(worker.memory.learning.undo(learned).learned_id), person=person)


def backup(worker: Worker) -> Path | None:
    """Back up; return the file."""
    number = worker.state["backups"] = worker.state.get("backups", 0) + 1
    kind = "zip" if worker.process.on_server else worker.rng.choice(("zip", "db"))
    archive = worker.process.order.folder / "elsewhere" / f"{worker.name.replace('/', '_')}_{number}.{kind}"
    made = worker.do("backup", lambda: str(worker.memory.admin.backup(archive).path), archive=archive.name)
    return archive if made else None


def restore(worker: Worker) -> None:
    """Back up, restore to another place, look there, and purge it again."""
    archive = backup(worker)
    if archive is None:
        return
    order = worker.process.order
    if worker.process.on_server:
        schema = f"{order.knobs['storage__schema_name']}_{archive.stem}"
        other = settings_of(order.path, {**order.knobs, "storage__schema_name": schema})
    else:
        other = settings_of(str(archive.with_suffix(".restored.db")), order.knobs)

    def call() -> list[str]:
        caliber.restore(other, archive)
        with caliber.open(other) as copy:
            tables = {name: copy.storage.table_of(name) for name in ("turn", "note", "artifact", "trajectory")}
            return [str(getattr(each, f"{name}_id")) for name, table in tables.items() for each in table.all()]

    worker.do("restore", call, archive=archive.name)
    worker.do("purge copy", lambda: caliber.purge(other).remaining)
    archive.unlink()


def overwrite(worker: Worker) -> None:
    """Back up, go on for a while, and restore the store itself, which every process has open."""
    archive = backup(worker)
    if archive is None:
        return
    for _ in range(worker.rng.randrange(8)):
        worker.step(("overwrite",))
    settings = worker.process.settings
    worker.do("overwrite", lambda: bool(caliber.restore(settings, archive, replace=True)), archive=archive.name)
    archive.unlink()


def ingest(worker: Worker) -> None:
    """Ingest the folder in which the store lies."""
    ((label, text),) = worker.texts(1).items()
    folder = worker.process.order.folder
    draft = folder / "elsewhere" / f"{worker.name.replace('/', '-')}.draft"
    draft.write_text(text)
    draft.rename(folder / "store" / f"{worker.tag().replace('/', '-').replace('#', '-')}.txt")
    worker.do("ingest", lambda: run(worker, "ingest", "files", folder / "store"), holds=[label])


def run(worker: Worker, *arguments: Any) -> str | None:
    """Run a command of the command line on the store; return its errors, or None for success."""
    with worker.process.one_command:
        result = command(*arguments, "--config", worker.process.order.folder / "caliber.json", code=None)
    return result.stderr[-500:] if result.exit_code else None


def verify(worker: Worker) -> None:
    def found() -> set[str]:
        return {str(finding) for finding in worker.memory.admin.check() if not finding.harmless}

    def call() -> list[str]:
        findings = found()
        for _ in range(5):  # others write meanwhile: what differs must differ each time
            findings &= found() if findings else findings
        return sorted(findings)

    worker.do("verify", call)


def reopen(worker: Worker) -> None:
    with worker.process.reopening:
        worker.process.is_open.clear()
        try:
            worker.do("close", worker.process.close)
            for _ in range(PATIENCE):
                if worker.do("open", worker.process.open):
                    return
        finally:
            worker.process.is_open.set()
    raise AssertionError("the store does not open again")


OPERATIONS: Final[dict[str, tuple[int, Callable[[Worker], None]]]] = {
    "remember": (20, remember),
    "append": (60, append),
    "board": (40, board),
    "note": (30, note),
    "artifact": (20, artifact),
    "count": (20, count),
    "once": (15, once),
    "start": (8, start),
    "look": (8, look),
    "forget": (3, forget),
    "purge": (2, purge),
    "checkpoint": (6, checkpoint),
    "recover": (3, recover),
    "undo": (3, undo),
    "restore": (1, restore),
    "overwrite": (1, overwrite),
    "ingest": (1, ingest),
    "doctor": (1, lambda worker: worker.do("doctor", lambda: run(worker, "doctor"))),
    "migrate": (1, lambda worker: worker.do("migrate", lambda: caliber.migrate(worker.process.settings))),
    "maintain": (2, lambda worker: worker.do("maintain", worker.memory.admin.maintain)),
    "vacuum": (1, lambda worker: worker.do("vacuum", lambda: bool(worker.memory.admin.vacuum()))),
    "resume": (1, lambda worker: worker.do("resume", lambda: len(worker.memory.admin.resume_forgetting()))),
    "sweep": (1, lambda worker: worker.do("sweep", lambda: bool(worker.memory.admin.sweep()))),
    "rebuild": (1, lambda worker: worker.do("rebuild", lambda: bool(worker.memory.admin.rebuild_search()))),
    "verify": (1, verify),
    "flush": (2, lambda worker: worker.do("flush", worker.memory.flush)),
    "close": (3, reopen),
}  # fmt: skip
"""The weight of each call and the function that makes it."""


# --- the process ---------------------------------------------------------------------------------------


class Process:
    """The handle that the threads of a process share."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.settings = settings_of(order.path, order.knobs)
        self.memory = caliber.open(self.settings)
        self.on_server = "storage__schema_name" in order.knobs
        self.workers: list[Worker] = []
        # Processes differ: one forgets all the time, another does nothing but write.
        moods = random.Random(order.seed).choices((0.2, 1, 1, 1, 5), k=len(OPERATIONS))
        never = () if order.world["overwrites"] else ("overwrite",)
        self.weights = [
            weight * (20 if name in order.often else mood) * (name not in never)
            for mood, (name, (weight, _)) in zip(moods, OPERATIONS.items(), strict=True)
        ]
        self.reopening = threading.Lock()
        self.is_open = threading.Event()
        self.is_open.set()
        self.one_command = threading.Lock()
        """Click's runner exchanges the streams of the whole process."""

    def close(self) -> None:
        self.memory.close()

    def open(self) -> bool:
        self.memory = caliber.open(self.settings)
        for worker in self.workers:
            worker.memory = self.memory
        return True


@contextmanager
def fault(order: Order) -> Iterator[None]:
    """Plant the known fault where the test asks for it: descriptors that ``forget`` opens and closes.

    SQLite since 3.51 notices locks that are lost on the database itself, but not those on the index of its log.
    """
    if not order.planted:
        yield
        return
    whole = Forgetting.forget

    def faulty(self: Forgetting, *given: Any, **named: Any) -> Any:
        report = whole(self, *given, **named)
        for each in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):  # another process closes the store
                Path(order.path + each).open("rb").close()
        return report

    with patch.object(Forgetting, "forget", faulty):
        yield


def work(order: Order, reports: Connection) -> None:
    """Call at random until told to stop, or killed; report an error that is none of CALIBER's."""
    os.environ.update(order.environment)
    dump = (order.folder / "logs" / f"{order.name}.stacks").open("a")
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
    log = FileLog(order.folder / "logs" / f"{order.name}.log")
    try:
        process = Process(order)
    except BaseException as error:
        reports.send(f"cannot open: {error!r}")
        raise
    reports.send("open")
    stop = order.folder / "stop"

    def use(worker: Worker) -> None:
        try:
            while not stop.exists():
                worker.step()
        except BaseException as error:
            reports.send(f"{worker.name}: {error!r}")
            raise

    for at in range(order.threads):
        rng = random.Random(f"{order.seed} {at}")
        worker = Worker(process.memory, order.world, f"{order.name}/{at}", rng, log, now_us)
        worker.process, worker.tasks = process, []
        process.workers.append(worker)
    with fault(order):
        threads = [threading.Thread(target=use, args=(worker,)) for worker in process.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    process.workers[0].do("close", process.close)
    reports.send("ended")
