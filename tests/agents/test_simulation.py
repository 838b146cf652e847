"""Simulated agents on a faulty store: random interleavings of transactions, judged by the rules of each subsystem.

A hundred seeds a subsystem in ``make prove``; 10,000 in ``make soak``, recorded in ``docs/evidence/``. One that fails
is printed, and gives the same history again.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, NamedTuple

import pytest
from support.agents.history import Client, Entry, Op, Subject, operations
from support.agents.history_runs import outcomes
from support.agents.planted_code import planted
from support.agents.subjects import PARTS, PLANTS
from support.configs import config
from support.evidence import record, scale, seed
from support.inspection import inspect

import caliber
from caliber.model.errors import TransactionFailed, Unavailable
from caliber.storage.write.group import finish

START_US = 1_700_000_000_000_000


class Killed(BaseException):
    """The end of a client in the middle of a call."""


class _UndoneError(Exception):
    """Takes a transaction back that has done its work."""


class Chances(NamedTuple):
    """The shares of transactions that meet with each fault."""

    fails: float = 0.03
    """Nothing happens, and the client learns it."""
    repeats: float = 0.05
    """The work is done, taken back, and done again, as after a lost race."""
    unknown: float = 0.03
    """The transaction commits or not, and the client learns neither."""
    killed: float = 0.02
    """The client ends before or after the transaction; another one with its name begins."""


FAULTS = Chances()
NO_FAULTS = Chances(0, 0, 0, 0)


class SimulatedClock:
    """A clock that the scheduler advances; each client sees it with its skew."""

    def __init__(self) -> None:
        self.true_us = START_US
        self.skew_us = 0

    def now_us(self) -> int:
        return self.true_us + self.skew_us


class _Actor:
    """A client's thread."""

    def __init__(self, name: str, skew_us: int) -> None:
        self.name, self.skew_us = name, skew_us
        self.go = threading.Semaphore(0)
        self.done = False
        self.failure: BaseException | None = None


class Simulation:
    """The scheduler over one open store in memory; ``run`` plays one seed."""

    def __init__(self, memory: caliber.Caliber, clock: SimulatedClock) -> None:
        self._memory, self._clock = memory, clock
        self._store: Any = inspect(memory).store
        self._write = self._store.write
        self._store.write = self._faulty_write
        self._own = threading.local()
        self._yielded = threading.Semaphore(0)
        self._rng = random.Random(0)
        self._chances = NO_FAULTS
        self.switches = 0

    def close(self) -> None:
        """Give the store back its own ``write``."""
        del self._store.write

    def run(
        self, seed: int, subject: Subject, *, clients: int = 4, steps: int = 10, skew_ms: int = 0,
        chances: Chances = FAULTS,
    ) -> tuple[list[str], list[Op]]:  # fmt: skip
        """Play a seed; return the violations and the history."""
        self._rng, self._chances = random.Random(seed), chances
        # The seed's own names: so one store serves many seeds.
        world = subject.prepare(self._memory, f"seed {seed}")
        log: list[Entry] = []
        actors = []
        for at in range(clients):
            actor = _Actor(f"a{at}", self._rng.randint(-skew_ms, skew_ms) * 1_000)
            arguments = (actor, subject, world, log, self._rng.getrandbits(32), steps)
            threading.Thread(target=self._play, args=arguments, daemon=True).start()
            actors.append(actor)
        self._schedule(actors)
        for actor in actors:
            if actor.failure is not None:
                raise actor.failure
        ops = operations(log)
        return subject.judge(self._memory, world, ops), ops

    def _schedule(self, actors: Sequence[_Actor]) -> None:
        running = list(actors)
        while running:
            actor = self._rng.choice(running)
            self._clock.true_us += self._rng.choice((1, 50, 500, 1_000, 5_000))
            self._clock.skew_us = actor.skew_us
            actor.go.release()
            self._yielded.acquire()
            self.switches += 1
            if actor.done:
                running.remove(actor)
        self._clock.skew_us = 0

    def _play(
        self, actor: _Actor, subject: Subject, world: dict[str, Any], log: list[Entry], seed: int, steps: int
    ) -> None:
        actor.go.acquire()
        self._own.actor = actor
        lives, client = 0, None
        rng = random.Random(seed)
        try:
            for _ in range(steps):
                if client is None:
                    name = f"{actor.name}/{lives}" if lives else actor.name
                    client = Client(self._memory, world, name, rng, log, self._tick)
                try:
                    subject.step(client)
                except Killed:
                    client, lives = None, lives + 1
                self._give_way()
        except BaseException as error:
            actor.failure = error
        finally:
            actor.done = True
            self._yielded.release()

    def _tick(self) -> int:
        """Return the true time, another one for each entry of a history."""
        self._clock.true_us += 1
        return self._clock.true_us

    def _give_way(self) -> None:
        actor: _Actor = self._own.actor
        self._yielded.release()
        actor.go.acquire()

    def _faulty_write(self, work: Callable[[Any], Any], *, exclusive: bool = False) -> Any:
        if getattr(self._own, "actor", None) is None:  # a thread of the store itself, or the judge
            return self._write(work, exclusive=exclusive)
        self._give_way()
        chances, draw = self._chances, self._rng.random()
        kill_at = self._rng.choice(("before", "after")) if self._rng.random() < chances.killed else None
        if kill_at == "before":
            raise Killed
        if draw < chances.fails:
            raise TransactionFailed("planted: nothing was written", retryable=True)
        if draw < chances.fails + chances.repeats:
            self._undone(work, exclusive)
            self._give_way()
        unknown = chances.fails + chances.repeats < draw < chances.fails + chances.repeats + chances.unknown
        if unknown and self._rng.random() < 0.5:
            self._undone(work, exclusive)
        else:
            result = self._write(work, exclusive=exclusive)
        if unknown:
            raise Unavailable("planted: the outcome is unknown", reason="outcome unknown")
        if kill_at == "after":
            raise Killed
        self._give_way()
        return result

    def _undone(self, work: Callable[[Any], Any], exclusive: bool) -> None:
        """Do the work and take it back."""

        def run(uow: Any) -> None:
            outcome = work(uow)
            if isinstance(outcome, GeneratorType):
                finish(uow, outcome)
            raise _UndoneError

        try:
            self._write(run, exclusive=exclusive)
        except _UndoneError:
            return


pytestmark = pytest.mark.prove

SEEDS, SEEDS_A_STORE = scale(100, 10_000), 250
PLANTED_SEEDS = 60
"""A planted fault is seen within so many seeds."""


@contextmanager
def simulated(subject: Subject) -> Iterator[Simulation]:
    """Open a store in memory with a scheduler over it."""
    clock = SimulatedClock()
    settings = config(":memory:", embedding_provider=None, policies=[], jobs__poll_ms=0, **subject.knobs)
    with caliber.open(settings, clock=clock) as memory:
        simulation = Simulation(memory, clock)
        yield simulation
        simulation.close()


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 120)
@pytest.mark.parametrize("name", PARTS)
def test_every_seed_is_sound(name: str) -> None:
    started = time.monotonic()
    part = PARTS[name]
    total: Counter[tuple[str, str]] = Counter()
    switches = 0
    for first in range(seed(), seed() + SEEDS, SEEDS_A_STORE):
        with simulated(part.simulated[0]) as simulation:
            for each in range(first, min(first + SEEDS_A_STORE, seed() + SEEDS)):
                skewed = each % 2 == 1  # clocks of every second seed differ
                subject, skew_ms = (part.simulated[1], part.skew_ms) if skewed else (part.simulated[0], 0)
                faults, ops = simulation.run(each, subject, skew_ms=skew_ms)
                assert faults == [], f"simulation {name} of seed {each}: {faults[:5]}\n" + "\n".join(map(str, ops))
                total += outcomes(ops)
            switches += simulation.switches
    assert {call for call, outcome in total if outcome == "ok"} >= {call for call, _ in total}, "a call never worked"
    record(
        f"agent-simulation-{name}",
        f"Simulated clients of {name} on a faulty store, from seeds",
        {
            "seeds": f"{SEEDS}, from {seed()}",
            "calls": total.total(),
            "times that a client gave way to another": switches,
            "most that a client's clock is off, in every second seed, in ms": part.skew_ms,
            **{f"{call}: {outcome}": count for (call, outcome), count in sorted(total.items())},
            "violations": 0,
            "seeds a second": round(SEEDS / (time.monotonic() - started)),
        },
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_seed_gives_the_same_history_again(name: str) -> None:
    histories = []
    for _ in range(2):
        with simulated(PARTS[name].simulated[0]) as simulation:
            _, ops = simulation.run(seed(), PARTS[name].simulated[1], skew_ms=PARTS[name].skew_ms)
            histories.append([(op.client, op.name, op.outcome, op.began, op.ended) for op in ops])
    assert histories[0] == histories[1]


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_seen(name: str) -> None:
    of, plant = PLANTS[name]
    subject = PARTS[of].simulated[0]
    seeds = range(seed(), seed() + PLANTED_SEEDS)
    with planted(plant), simulated(subject) as simulation:
        chances = FAULTS if of == "messages" else NO_FAULTS  # a message is sent again after an unknown outcome
        assert any(simulation.run(each, subject, chances=chances)[0] for each in seeds), "no seed shows the fault"
