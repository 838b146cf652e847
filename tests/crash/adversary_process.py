"""The program of one run of ``test_adversary.py``: threads that write and read, and one adversary in the main thread.

Run as ``adversary_process.py ORDER`` (JSON). What it does it tells the ledger; see ``support/crash/adversary.py``.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.admin import damage
from support.configs import USER
from support.crash.adversary import settings_of
from support.crash.relay import silence
from support.crash.workload import content_of
from support.interrupted import Interrupt, Lines, in_files

import caliber
from caliber.model.deadline import within
from caliber.model.errors import BudgetTooSmall, CaliberError, InternalError, Unavailable

DEADLINE_S: Final = 1.0
DEPTH: Final = 4
"""How many exceptions of handlers one piece of work is interrupted by, at most."""
WORDS: Final = ("fault", "abcdefghij", "thing 3", "hello", "", "where is run")


class Late(Exception):
    """The time limit of a program's own, raised by a signal's handler."""


class Ledger:
    """Appends lines to a file that the parent reads; a line is there whole or not at all."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.beats: dict[int, float] = {}
        """When each thread said something last."""

    def add(self, **entry: Any) -> None:
        self.beats[threading.get_ident()] = time.monotonic()
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def raw(self, where: str, error: BaseException) -> None:
        self.add(raw=f"{where}: " + "".join(traceback.format_exception(error))[-3_000:])


class Writer:
    """Appends contents that nobody else appends, each with its lines in the ledger."""

    def __init__(self, program: Program, memory: caliber.Caliber, name: str) -> None:
        self.program = program
        self.memory = memory
        self.name = name
        self.chance = random.Random(f"{program.order['seed']} {name}")
        self.acknowledged: list[uuid.UUID] = []
        self._made = 0
        self._open: tuple[str, str, str | None] | None = None
        """The write that was interrupted, to be done again under its key."""

    def step(self) -> None:
        if self._open is None:
            self._made += 1
            label = f"{self.name}.{self._made}"
            key = label if self.chance.random() < 0.5 else None
            self._open = label, self.chance.choice(("turn", "turn", "note", "artifact")), key
        label, kind, key = self._open
        if key is None:
            self._open = None  # an interrupt may come after the commit: nobody writes it again
        self.program.ledger.add(**{"try": label})
        try:
            made = self._write(kind, content_of(label, 20 + len(label) * 17 % 400), key)
        except CaliberError as error:
            if error.context.get("reason") != "outcome unknown":
                self.program.ledger.add(refused=label, why=str(error)[:80])
            if not error.retryable:
                self._open = None
            raise
        self.program.ledger.add(ok=label, id=str(made))
        self._open = None
        self.acknowledged.append(made)
        if self.chance.random() < 0.3:
            self.memory.get(made)

    def _write(self, kind: str, text: str, key: str | None) -> uuid.UUID:
        bound = {"idempotency_key": key}
        with self.program.timed(kind), within(self.program.bound_s):
            if kind == "turn":
                return self.memory.append_turn(self.program.scope, role="user", content=text, **bound).turn_id
            if kind == "note":
                return self.memory.add_note(
                    entity=f"thing {len(text) % 9}", entity_type="topic", note_type="fact", content=text,
                    confidence=0.5, **bound,
                ).note_id  # fmt: skip
            return self.memory.create_artifact(
                self.program.scope, artifact_type="fact", content=text, extraction_method="explicit", **bound
            ).artifact_id


class Reader:
    """Searches, assembles and gets what was acknowledged."""

    def __init__(self, program: Program, memory: caliber.Caliber, writers: list[Writer], name: str) -> None:
        self.program = program
        self.memory = memory
        self.writers = writers
        self.chance = random.Random(f"{program.order['seed']} {name}")

    def step(self) -> None:
        bound = {"consistency": self.chance.choice(("local", "latest"))}
        what = self.chance.randrange(4)
        with self.program.timed("read"), within(self.program.bound_s):
            if what == 0:
                self.memory.search(self.chance.choice(WORDS), **bound)
            elif what == 1:
                try:
                    window = self.memory.assemble_context(
                        self.program.trajectory, query=self.chance.choice(WORDS) or None, **bound
                    )
                    self.program.windows.append(window.window_id)
                except BudgetTooSmall:
                    pass
            else:
                made = self.chance.choice(self.writers).acknowledged
                if made:
                    self.memory.get(self.chance.choice(made))
        self.program.figures["reads"] += 1


class Timed:
    """Notes a call that ends too long after its deadline."""

    def __init__(self, program: Program, what: str) -> None:
        self._program, self._what = program, what

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        bound_s = self._program.bound_s
        if bound_s is not None and took > bound_s + self._program.order["slack_s"]:
            self._program.ledger.add(late=f"{self._what} took {took:.1f} s with a deadline of {bound_s} s")


class Program:
    """The store that is written, the threads beside the adversary, and what both tell the ledger."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.chance = random.Random(order["seed"])
        self.ledger = Ledger(order["ledger"])
        self.dump = Path(order["dump"]).open("a")  # noqa: SIM115  (until the end)
        faulthandler.register(signal.SIGUSR1, self.dump, all_threads=True)
        self.figures: Counter[str] = Counter()
        self.windows: list[uuid.UUID] = []
        self.going = True
        self.closing = False
        self.bound_s: float | None = None
        self.tolerates = False
        """Whether an error that says that trying again may help is none to tell of."""
        threading.excepthook = lambda about: self.ledger.raw(str(about.thread), about.exc_value or Exception())
        sys.unraisablehook = self._unraisable

    def _unraisable(self, about: Any) -> None:
        if isinstance(about.exc_value, Late | KeyboardInterrupt | SystemExit | Interrupt):
            self.figures["raised where Python lets nothing out"] += 1  # a destructor, a callback of a weak reference
        else:
            self.ledger.raw(f"unraisable in {about.object!r}", about.exc_value or Exception())

    def watch(self) -> None:
        """End the program when a thread of its own does not go on: the others would hide that."""

        def look() -> None:
            while True:
                time.sleep(0.5)
                silent = time.monotonic() - self.order["patience_s"]
                for thread, beat in list(self.ledger.beats.items()):
                    if beat < silent and self.ledger.beats.get(thread) == beat:
                        faulthandler.dump_traceback(self.dump, all_threads=True)
                        self.ledger.add(hang=f"thread {thread}: " + Path(self.order["dump"]).read_text()[-20_000:])
                        os._exit(0)

        threading.Thread(target=look, daemon=True).start()

    def open(self) -> None:
        settings = settings_of(self.order)
        caliber.create(settings)
        self.memory = caliber.open(settings)
        self.trajectory = self.memory.start_trajectory("where is run", initiator=USER).trajectory_id
        scope = self.memory.current_scope(self.trajectory)
        self.scope = scope.scope_id
        self.ledger.add(step="opened")

    # --- threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        self.main = Writer(self, self.memory, "main")
        self.writers = [self.main, *(Writer(self, self.memory, f"w{at}") for at in range(self.order["threads"]))]
        readers = [Reader(self, self.memory, self.writers, f"r{at}") for at in range(self.order["readers"])]
        self.reader = Reader(self, self.memory, self.writers, "main reader")
        self.threads = [
            threading.Thread(target=self._loop, args=(each.step, name), name=name, daemon=True)
            for name, each in [
                *((writer.name, writer) for writer in self.writers[1:]),
                *((f"r{at}", reader) for at, reader in enumerate(readers)),
            ]
        ]
        for thread in self.threads:
            thread.start()

    def _loop(self, step: Callable[[], None], name: str) -> None:
        while self.going and self.attempt(step, name):
            if name.startswith("r"):
                time.sleep(0.005)
        self.ledger.beats.pop(threading.get_ident(), None)

    def attempt(self, step: Callable[[], None], name: str) -> bool:
        """Run a step; return whether there may be another. An error that is none of the adversary's is told."""
        self.ledger.beats[threading.get_ident()] = time.monotonic()
        try:
            step()
        except CaliberError as error:
            if error.context.get("reason") == "closed" and self.closing:
                return False
            if isinstance(error, InternalError) or not (error.retryable and self.tolerates):
                self.ledger.raw(name, error)
                return False
            self.figures["typed errors"] += 1
            time.sleep(0.02)
        except Exception as error:
            if not isinstance(error, Late):
                self.ledger.raw(name, error)
                return False
            raise
        return True

    def timed(self, what: str) -> Timed:
        return Timed(self, what)

    def stop(self) -> None:
        """Let the threads end."""
        self.going = False
        for thread in self.threads:
            thread.join()  # one that does not end is found by ``watch``
        self.ledger.add(step="threads ended")

    def compare(self) -> None:
        """Compare memory with the store; others may write meanwhile, and what differs must differ each time."""
        self.figures["memory compared with the store"] += 1
        different = set(self.memory.admin.verify())
        for _ in range(5):
            if different:
                time.sleep(0.01)
                different &= set(self.memory.admin.verify())
        for difference in different:
            self.ledger.add(wrong=f"memory is not as the store: {difference}")

    def close(self) -> None:
        self.closing = True
        self.ledger.add(step="closing")
        self.memory.close()

    def end(self) -> None:
        self.ledger.add(figures=dict(self.figures))
        self.ledger.add(end=True)

    def until(self) -> float:
        return time.monotonic() + self.order["seconds"]

    # --- signals ---------------------------------------------------------------------------------

    def signals(self) -> None:
        """Handlers raise in the main thread, which writes, reads and flushes; often several, one upon the other."""
        left = 0

        def handler(number: int, _: object) -> None:
            nonlocal left
            if left <= 0:
                return
            left -= 1
            self.figures["exceptions of handlers"] += 1
            if number == signal.SIGTERM:
                sys.exit(0)
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise Late

        def layered(depth: int, work: Callable[[], Any]) -> None:
            """Run work that as many exceptions may interrupt, wherever they come."""
            nonlocal left
            try:
                if depth:
                    layered(depth - 1, work)
                else:
                    left = DEPTH
                    work()
                left = 0
            except (Late, KeyboardInterrupt, SystemExit):
                pass

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, handler)
        sending = True
        calm_s = self.chance.choice((0.002, 0.01, 0.05))

        def send() -> None:
            chance = random.Random(f"{self.order['seed']} signals")
            while sending:
                time.sleep(chance.expovariate(1 / calm_s))
                number = chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGALRM))
                for _ in range(chance.choice((1, 1, 2, 10))):
                    self.figures["signals"] += 1
                    os.kill(os.getpid(), number)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        works = (self.main.step, self.main.step, self.reader.step, self.memory.flush)
        until = self.until()
        while time.monotonic() < until:
            work = self.chance.choice(works)
            layered(DEPTH, lambda work=work: self.attempt(work, "main"))  # type: ignore[misc]
        end = self.chance.choice(("close", "close", "exit"))
        if end == "close":
            sending = False
            sender.join()
            self.stop()
            self.compare()
            sending = True
            threading.Thread(target=send, daemon=True).start()
            closed = False

            def close() -> None:
                nonlocal closed
                self.close()
                closed = True

            while not closed:
                layered(DEPTH, close)
            sending = False
            self.end()
            return
        sending = False
        sender.join()
        # As a server does that is told to end: the exception ends the program, and its end closes the store.
        self.closing = True
        self.end()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        threading.Timer(self.chance.uniform(0, 0.05), os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            self.attempt(self.main.step, "main")

    # --- forks -----------------------------------------------------------------------------------

    def forks(self) -> None:
        """Children open the store themselves, write, and end in several ways, while the parent goes on."""
        until, at = self.until(), 0
        children: list[tuple[int, bool]] = []
        while time.monotonic() < until or not at:
            for _ in range(self.chance.randrange(4)):
                self.attempt(self.main.step, "main")
            at += 1
            end = self.chance.choice(("close", "_exit", "kill"))
            pid = os.fork()
            if not pid:
                self._child(at, end)
            self.figures["children"] += 1
            children.append((pid, end == "kill"))
            if end == "kill":
                time.sleep(self.chance.expovariate(1 / 0.15))
                os.kill(pid, signal.SIGKILL)
                self.figures["children killed"] += 1
            if len(children) > 2:
                self._reaped(*children.pop(0))
        for child in children:
            self._reaped(*child)
        self.stop()
        self.compare()
        self.close()
        self.end()

    def _reaped(self, pid: int, killed: bool) -> None:
        until = time.monotonic() + self.order["patience_s"]
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                if code and not (killed and code == -signal.SIGKILL):
                    self.ledger.add(raw=f"a child ended with code {code}: " + Path(self.order["dump"]).read_text())
                return
            if time.monotonic() > until:
                os.kill(pid, signal.SIGUSR1)
                time.sleep(1)
                self.ledger.add(hang="a child: " + Path(self.order["dump"]).read_text()[-20_000:])
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            if not self.attempt(self.main.step, "main"):
                time.sleep(0.02)

    def _child(self, at: int, end: str) -> None:
        try:
            try:
                self.memory.search("fault")
                self.ledger.add(wrong="an inherited handle answered")
            except Unavailable as error:
                if error.context.get("reason") != "forked":
                    raise
            until = time.monotonic() + self.order["patience_s"] / 2
            memory = self._patiently(lambda: caliber.open(settings_of(self.order)), until)
            writer = Writer(self, memory, f"child{at}")
            for _ in range(random.Random(at).randrange(1, 6)):
                self._patiently(writer.step, until)
            memory.search("fault", consistency="latest")
            if end == "close":
                memory.close()
        except BaseException as error:
            self.ledger.raw(f"child {at}", error)
        os._exit(0)

    def _patiently(self, work: Callable[[], Any], until: float) -> Any:
        """Do work again while a typed error says that this helps."""
        while True:
            try:
                return work()
            except Unavailable as error:
                if not error.retryable or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    # --- a black hole ----------------------------------------------------------------------------

    def black_hole(self) -> None:
        """The network passes nothing for a while, or for ever: calls end with their deadlines, threads go on."""
        ticks = [time.monotonic()]

        def tick() -> None:
            while self.going:
                ticks.append(time.monotonic())
                time.sleep(0.02)

        threading.Thread(target=tick, daemon=True).start()
        until = self.until()
        self._busy(self.chance.uniform(0, 0.3))
        for_ever = self.chance.random() < 0.3
        while time.monotonic() < until:
            silence(self.order["orders"], *self.chance.choice((("up", "down"), ("up",), ("down",))))
            self.figures["silences"] += 1
            self._busy(self.chance.choice((0.1, 0.5, 1.5, 2.5)))
            if not for_ever:
                silence(self.order["orders"])
                self._busy(self.chance.uniform(0.1, 0.6))
        if not for_ever:
            silence(self.order["orders"])
        self.stop()
        gap = max(after - before for before, after in itertools.pairwise(ticks))
        if gap > self.order["slack_s"]:
            self.ledger.add(late=f"no other thread ran for {gap:.1f} s")
        if for_ever:
            self.figures["silent for ever"] += 1
            try:
                self.close()
            except Unavailable:
                self.figures["typed errors"] += 1  # what reads left behind could not be written
            self.end()
            return
        works, limit = False, time.monotonic() + self.order["patience_s"]
        while not works and time.monotonic() < limit:
            before = len(self.main.acknowledged)
            self.attempt(self.main.step, "main")
            works = len(self.main.acknowledged) > before
        if not works:
            self.ledger.add(wrong="no write comes through, although the network passes again")
        self._patiently(self.memory.flush, limit)
        self._patiently(lambda: self.memory.search("", consistency="latest"), limit)
        self.compare()
        self.close()
        self.end()

    def _busy(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.attempt(self.chance.choice((self.main.step, self.reader.step)), "main")

    # --- damage ----------------------------------------------------------------------------------

    def damages(self) -> None:
        """A copy of the store is damaged, before or while it is open, and used."""
        time.sleep(self.order["seconds"] / 3)
        self.stop()
        until = time.monotonic() + self.order["seconds"] * 2 / 3
        order = self.order = {**self.order, "shutdown_ms": 2_000}  # what a damaged store does not take is given up
        folder = Path(order["folder"])
        if order["adapter"] == "sqlite":
            self.close()
            place = f"{order['place']}-copy"
            while True:
                for left in folder.glob(Path(place).name + "*"):
                    left.unlink()
                shutil.copy(order["place"], place)
                self._use(place)
                if time.monotonic() > until:
                    break
        else:
            archive = folder / f"copy-{order['number']}.zip"
            self.memory.admin.backup(archive)
            self.close()
            place = f"{order['place']}_copy"
            caliber.restore(settings_of(order, place), archive)
            while True:
                self._use(place)
                if time.monotonic() > until:
                    break
        self.end()

    def _use(self, place: str) -> None:
        live = self.chance.random() < 0.5
        memory = None
        if live:
            memory = self._asked("open", lambda: caliber.open(settings_of(self.order, place)))
        how = self._damage(place, live)
        self.ledger.add(step=how)
        self.figures["damages"] += 1
        if memory is None:
            memory = self._asked(f"{how}: open", lambda: caliber.open(settings_of(self.order, place)))
        if memory is None:
            return
        made = memory
        ids = [one for writer in self.writers for one in writer.acknowledged]
        steps: dict[str, Callable[[], Any]] = {
            "check": made.admin.check,
            "verify": made.admin.verify,
            "search": lambda: made.search("fault abcdefghij", consistency="latest"),
            "get": lambda: made.get(self.chance.choice(ids)) if ids else None,
            "assemble": lambda: made.assemble_context(self.trajectory, query="fault"),
            "explain": lambda: made.explain(self.chance.choice(self.windows)) if self.windows else None,
            "replay": lambda: made.replay(self.chance.choice(self.windows)) if self.windows else None,
            "backup": lambda: made.admin.backup(Path(self.order["folder"]) / "damaged.zip", replace=True),
            "export": lambda: [made.storage.bulk_read(name).read_all() for name in ("note", "turn", "event")],
            "append": lambda: made.append_turn(self.scope, role="user", content="again"),
            "add": lambda: made.add_note(
                entity="e", entity_type="t", note_type="fact", content="again", confidence=0.5
            ),
            "events": lambda: list(made.storage.events.all()),
            "maintain": made.admin.maintain,
            "flush": made.flush,
        }  # fmt: skip
        names = list(steps)
        self.chance.shuffle(names)
        for name in names:
            self._asked(f"{how}: {name}", steps[name])
        self._asked(f"{how}: close", made.close)

    def _asked(self, what: str, step: Callable[[], Any]) -> Any:
        self.ledger.add(step=what)
        self.figures["calls on a damaged store"] += 1
        try:
            return step()
        except InternalError as error:
            self.ledger.raw(what, error)
        except CaliberError:
            self.figures["typed errors"] += 1
        except Exception as error:
            self.ledger.raw(what, error)
        return None

    def _damage(self, place: str, live: bool) -> str:
        if self.order["adapter"] == "postgres":
            return damage.change_a_value(self.order["direct"], place, self.chance)
        if self.chance.random() < 0.5:
            statements = damage.wrong_values(Path(place))
            for _ in range(20):
                statement = self.chance.choice(statements)
                if damage.tell_wrong(Path(place), statement):
                    return statement
        if not live:
            return damage.damage_bytes(Path(place), self.chance)
        with Path(place).open("r+b") as file:  # a file that is cut short under a mapping ends any process
            size = file.seek(0, os.SEEK_END)
            for _ in range(self.chance.choice((1, 8, 64))):
                at = file.seek(self.chance.randrange(size))
                byte = file.read(1)[0] ^ (1 << self.chance.randrange(8))
                file.seek(at)
                file.write(bytes([byte]))
        return "flip under an open handle"

    # --- interrupts ------------------------------------------------------------------------------

    FILES: Final = (
        ("caliber/engine/engine.py",),
        ("caliber/resident/",),
        ("caliber/engine/write_behind.py",),
        ("caliber/embedding/",),
        ("caliber/storage/",),
        ("caliber/backends/",),
        ("caliber/engine/",),
        ("caliber/",),
    )

    def interrupts(self) -> None:
        """An exception comes at some line of the main thread's work; memory is as the store is afterwards."""
        until, at = self.until(), 0
        works = (self.main.step, self.main.step, self.main.step, self.reader.step, self.memory.flush)
        while time.monotonic() < until or at < 5:
            at += 1
            if self._interrupted(self.chance.choice(works)):
                self.figures["interrupts"] += 1
                if not self.figures["interrupts"] % 8:
                    self.compare()
        self.stop()
        self.compare()
        closed = False
        self.closing = True

        def close() -> None:
            nonlocal closed
            self.close()
            closed = True

        while not closed:
            self._interrupted(close)
        self.end()

    def _interrupted(self, work: Callable[[], Any]) -> bool:
        lines = Lines(in_files(*self.chance.choice(self.FILES)), int(10 ** self.chance.uniform(0, 3)))
        with lines.counted():
            self.attempt(work, "main")
        return lines.hit

    # --- none ------------------------------------------------------------------------------------

    def nothing(self) -> None:
        """No adversary; ``plant`` names faults that the verdict must find."""
        for _ in range(5):
            self.attempt(self.main.step, "main")
        self.stop()
        planted = self.order.get("plant", ())
        if "lost" in planted:
            self.ledger.add(**{"try": "lost"})
            self.ledger.add(ok="lost")
        if "doubled" in planted:
            self.ledger.add(**{"try": "doubled"})
            for _ in range(2):
                self.memory.append_turn(self.scope, role="user", content="doubled|8|")
            self.ledger.add(ok="doubled")
        if "raw" in planted:
            thread = threading.Thread(target=lambda: self.attempt(lambda: {}["planted"], "planted"))
            thread.start()
            thread.join()
        if "hang" in planted:
            self.order["patience_s"] = 1  # only from here on: on a busy machine to get here takes longer
            threading.Lock().acquire()
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        self.close()
        self.end()

    def run(self) -> None:
        self.tolerates = self.order["kind"] == "black hole"
        self.bound_s = DEADLINE_S if self.order["kind"] == "black hole" else None
        self.open()
        self.watch()
        self.start()
        {
            "signals": self.signals, "forks": self.forks, "black hole": self.black_hole, "damage": self.damages,
            "interrupts": self.interrupts, "nothing": self.nothing,
        }[self.order["kind"]]()  # fmt: skip


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    program = Program(order)
    try:
        program.run()
    except Exception as error:
        program.ledger.raw("the main thread", error)
        os._exit(3)
