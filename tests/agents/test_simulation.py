"""Simulated agents on a faulty store: random interleavings of transactions, judged by the rules of each subsystem.

Forty seeds a subsystem in ``make test``; 10,000 in ``make soak``, recorded in ``docs/evidence/``. A seed that fails is
printed, and gives the same history again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.agent_history import Subject
from support.configs import config
from support.evidence import record, scale, seed
from support.history_runs import outcomes
from support.lock_checks import Locks
from support.planted_code import Plant, planted
from support.simulation import NO_FAULTS, SimulatedClock, Simulation

import caliber
from caliber.engine import leases
from caliber.storage.write.unit_of_work import UnitOfWork

SEEDS, SEEDS_A_STORE = scale(40, 10_000), 250
PLANTED_SEEDS = 60
"""A planted fault is seen within so many seeds."""
SKEW_MS = 40

SUBJECTS: dict[str, tuple[Subject, int]] = {
    "locks": (Locks(), 0),
}
"""Subjects, and the most that the clock of a client is off."""


@contextmanager
def simulated() -> Iterator[Simulation]:
    """Open a store in memory with a scheduler over it."""
    clock = SimulatedClock()
    settings = config(":memory:", embedding_provider=None, policies=[], jobs__poll_ms=0)
    with caliber.open(settings, clock=clock) as memory:
        simulation = Simulation(memory, clock)
        yield simulation
        simulation.close()


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 120)
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_seed_is_sound(name: str) -> None:
    started = time.monotonic()
    subject, skew_ms = SUBJECTS[name]
    total: Counter[tuple[str, str]] = Counter()
    switches = 0
    for first in range(seed(), seed() + SEEDS, SEEDS_A_STORE):
        with simulated() as simulation:
            for each in range(first, min(first + SEEDS_A_STORE, seed() + SEEDS)):
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
            "most that a client's clock is off, in ms": skew_ms,
            **{f"{call}: {outcome}": count for (call, outcome), count in sorted(total.items())},
            "violations": 0,
            "seeds a second": round(SEEDS / (time.monotonic() - started)),
        },
    )


def test_a_seed_gives_the_same_history_again() -> None:
    histories = []
    for _ in range(2):
        with simulated() as simulation:
            _, ops = simulation.run(seed(), Locks(), skew_ms=SKEW_MS)
            first = ops[0].began
            histories.append([(op.client, op.name, op.given, op.outcome, op.began - first) for op in ops])
    assert histories[0] == histories[1]


PLANTS: dict[str, tuple[str, Plant]] = {
    "the guard is not checked": ("locks", Plant(UnitOfWork, "guard", "if token is None", "if True")),
    "a lock excludes no one": ("locks", Plant(leases, "_try", "if in_the_way:", "if False:")),
    "a token is given again": ("locks", Plant(leases, "_try", "[0][0] + 1", "[0][0] + 1 - (now // 1000) % 2")),
    "any holder may release": ("locks", Plant(leases, "_held", "lock.holder == holder", "True")),
    "an old token holds beside the new one": (
        "locks",
        Plant(leases, "_try", "for lock in own_locks:", "for lock in ():"),
    ),
    "a released lock holds": (
        "locks",
        Plant(leases.LockService, "release", "dataclasses.replace(lock, expires_at=EPOCH)", "lock"),
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_seen(name: str) -> None:
    of, plant = PLANTS[name]
    with planted(plant), simulated() as simulation:
        assert any(
            simulation.run(each, SUBJECTS[of][0], chances=NO_FAULTS)[0]
            for each in range(seed(), seed() + PLANTED_SEEDS)
        ), "no seed shows the fault"
