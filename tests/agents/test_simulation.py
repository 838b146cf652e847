"""Simulated agents on a faulty store: random interleavings of transactions, judged by the rules of each subsystem.

A hundred seeds a subsystem in ``make prove``; 10,000 in ``make soak``, recorded in ``docs/evidence/``. One that fails
is printed, and gives the same history again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.agents.history import Subject
from support.agents.history_runs import outcomes
from support.agents.planted_code import planted
from support.agents.simulation import FAULTS, NO_FAULTS, SimulatedClock, Simulation
from support.agents.subjects import PARTS, PLANTS
from support.configs import config
from support.evidence import record, scale, seed

import caliber

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
