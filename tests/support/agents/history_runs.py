"""Runs of killed and paused processes on one store, and the judgement of their histories."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from support.agents import history_process
from support.agents.history import Op, Subject, operations, read_entries
from support.agents.history_process import KNOBS, Order
from support.crash.processes import Forked
from support.databases import DSN, Backend
from support.waits import let_run

PAUSE_S = 0.3
"""Longer than every lease."""
PATIENCE_S = 90
LEAST_LINES = 40


class Using(Forked):
    """One process of clients."""

    def __init__(self, order: Order) -> None:
        super().__init__(history_process.work, order)
        self.log = order.log
        self._lines = self._offset = 0

    def wait(self) -> None:
        """Return once the store is open."""
        assert self.reports.recv() == "open"

    def lines(self) -> int:
        """Return how many lines its log has."""
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._offset)
                more = file.read()
            self._offset += len(more)
            self._lines += more.count(b"\n")
        return self._lines

    def pause(self, seconds: float) -> None:
        """Stop the process for a while, wherever it is."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        let_run(seconds)
        os.kill(self.process.pid, signal.SIGCONT)

    def check(self) -> None:
        """Raise AssertionError for a client that met with an error which no caller expects."""
        while self.reports.poll():
            report = self.reports.recv()
            assert report == "open", report


class Run:
    """The clients of one round on a store; they have their own names in it."""

    def __init__(
        self, backend: Backend, subject: Subject, folder: Path, *, label: str, seed: int, skew_ms: int = 0,
        processes: int = 2, threads: int = 2,
    ) -> None:  # fmt: skip
        self._backend, self._subject, self._folder = backend, subject, folder
        self._label, self._skew_us, self._threads = label, skew_ms * 1_000, threads
        self._rng = random.Random(seed)
        self._processes = processes
        self._using: list[Using] = []
        self.kills = self.pauses = self._started = 0
        memory = backend.open(**{**KNOBS, **subject.knobs})
        self._world = subject.prepare(memory, label)
        memory.close()

    def _start(self) -> Using:
        number, rng = self._started, self._rng
        self._started += 1
        order = Order(
            self._backend.path, self._backend.knobs, os.environ.get(DSN, ""), self._subject, self._world,
            f"{self._label}p{number}", self._threads, rng.getrandbits(30),
            rng.randint(-self._skew_us, self._skew_us), self._folder / f"{self._label}-{number}.log",
        )  # fmt: skip
        return Using(order)

    def play(self, calls: int, *, disturb_s: float = 0.4) -> None:
        """Have clients make so many calls, while processes are killed and paused."""
        self._using = [self._start() for _ in range(self._processes)]
        ended = 0
        try:
            for one in self._using:
                one.wait()
            until = time.monotonic() + PATIENCE_S + calls / 50
            wanted = 2 * calls + sum(one.lines() for one in self._using)
            while ended + sum(one.lines() for one in self._using) < wanted:
                assert time.monotonic() < until, "the clients hardly get on"
                for one in self._using:
                    one.check()
                let_run(self._rng.uniform(0, disturb_s))
                at = self._rng.randrange(len(self._using))
                # A process that is killed before it calls proves nothing.
                if (self.kills and self._rng.random() < 0.7) or self._using[at].lines() < LEAST_LINES:
                    self._using[at].pause(self._rng.uniform(0, PAUSE_S))
                    self.pauses += 1
                else:
                    self._using[at].kill()
                    ended += self._using[at].lines()
                    self._using[at] = self._start()
                    self.kills += 1
        finally:
            for one in self._using:
                one.kill()

    def judged(self) -> tuple[list[str], list[Op]]:
        """Return the violations, and the history."""
        logs = sorted(self._folder.glob(f"{self._label}-*.log"))
        ops = operations(entry for log in logs for entry in read_entries(log))
        memory = self._backend.open(**{**KNOBS, **self._subject.knobs})
        faults = self._subject.judge(memory, self._world, ops)
        faults += [str(fault) for fault in memory.admin.verify()]
        memory.close()
        return faults, ops


def outcomes(ops: list[Op]) -> Counter[tuple[str, str]]:
    """Return how often each call had each outcome."""
    return Counter((op.name, op.outcome) for op in ops)
