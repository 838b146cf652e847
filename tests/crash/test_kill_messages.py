"""Consumers of messages are killed at random moments: no message is lost, and none has its effect twice.

Ten kills a database in ``make prove``; 100 in ``make soak``. Source: C-371, C-372.
"""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.agents import message_processes
from support.crash.processes import Forked, store_of
from support.databases import BACKENDS, Backend
from support.evidence import scale, seed
from support.waits import let_run, until

import caliber
from caliber.model import Principal

pytestmark = pytest.mark.prove

KILLS = scale(10, 100)
NAMES = ("bob", "eve")


def consumer(backend: Backend, name: str) -> Forked:
    """Return a process that consumes messages as an agent; it has begun."""
    made = Forked(message_processes.work, *store_of(backend), name)
    assert made.reports.recv() == name
    return made


@pytest.mark.timeout(0 if os.environ.get("CALIBER_SOAK") else 120)
@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_every_message_has_its_effect_once_whoever_is_killed(name: str, tmp_path: Path, request: Any) -> None:
    if name == "postgres":
        request.getfixturevalue("postgres")
    rng = random.Random(seed())
    print(f"seed {seed()}")
    with closing(BACKENDS[name](tmp_path)) as backend:
        backend.create(backend.config(**message_processes.KNOBS))
        memory: caliber.Caliber = backend.open(**message_processes.KNOBS)
        for each in NAMES:
            memory.agents.register(each, type="worker")
        memory.agents.register("ann")
        ann = memory.acting_as(Principal.agent("ann")).agents.messages
        working = {each: consumer(backend, each) for each in NAMES}
        sent = 0
        for _ in range(KILLS):
            for _ in range(rng.randint(5, 15)):
                to: dict[str, Any] = {"to": rng.choice(NAMES)} if rng.random() < 0.3 else {"to_type": "worker"}
                ann.send({"n": sent}, topic=rng.choice([None, "a", "b"]), idempotency_key=str(sent), **to)
                sent += 1
            let_run(rng.expovariate(1 / 0.05))
            victim = rng.choice(NAMES)
            working[victim].kill()
            working[victim] = consumer(backend, victim)
        until(lambda: len(ann.list(state="acknowledged", limit=10_000)) == sent, "a message is lost", 60)
        for process in working.values():
            process.kill()
        assert message_processes.effects(memory) == dict.fromkeys(range(sent), 1)
