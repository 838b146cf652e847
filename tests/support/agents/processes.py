"""Processes of an agent that is misled, or recovers, and kills itself at a line of the code that stores."""

from __future__ import annotations

import os
import random
import uuid
from multiprocessing.connection import Connection
from typing import Any

from support.configs import config, policy
from support.databases import DSN
from support.interrupted import in_files
from support.learning.processes import Killing

import caliber
from caliber.model.time import FixedClock

KNOBS: dict[str, Any] = {
    "embedding_provider": None,
    "summarization_provider": None,
    "jobs__poll_ms": 0,
    "write_behind__usage_enabled": False,  # what was used more is found more
    "checkpoint_retention": 20,
    "pcp__recovery_points__frequency": "manual",
    "policies": [policy("scope_close", {"action": "summarize", "target": "turn_buffer"})],
}
CODE = ("/learning/", "/pcp/", "/storage/write/", "/jobs/", "/trajectory/")
"""The folders whose lines are steps."""
USER = "ana@example.com"

PARTS = ["pump", "valve", "boiler", "filter", "fan", "sensor", "gauge", "hose", "motor", "thermostat"]
CITIES = ["Lisbon", "Porto", "Bergen", "Turin", "Krakow", "Ghent", "Malmo", "Cork"]
FIRMS = ["Siemens", "Bosch", "Northern", "Velora", "Kestrel Works"]
FOODS = ["nuts", "shellfish", "gluten", "eggs", "celery"]


def told(rng: random.Random) -> str:
    """Return a message of the user, with a fact about the user in it or none."""
    part = rng.choice(PARTS)
    return rng.choice(
        [
            f"I moved to {rng.choice(CITIES)}.",
            f"I work at {rng.choice(FIRMS)} now.",
            f"I'm allergic to {rng.choice(FOODS)}.",
            f"Could you look at the {part} next?",
            f"The {part} made a noise again this morning, at about {rng.randrange(5, 12)} o'clock.",
            f"What did the {part} cost, and who delivered it?",
        ]
    )


def answered(rng: random.Random, at: int) -> str:
    """Return an answer of the agent, or the output of a tool."""
    part = rng.choice(PARTS)
    return rng.choice(
        [
            f"Step {at}: the {part} was measured at {rng.randrange(10, 90)} degrees and {rng.randrange(1, 9)} bar.",
            f"Step {at}: the {part} needs a new seal. I have noted the order number {rng.randrange(1000, 9999)}.",
            f"Step {at}: nothing is wrong with the {part}.",
        ]
    )


def open_scope_of(memory: caliber.Caliber, task: uuid.UUID) -> Any:
    """Return the open scope of a task; a new one if there is none."""
    return memory.current_scope(task) or memory.open_scope(task)


class Worker:
    """Work on a task, from a generator of numbers: sound work and what misleads differ in nothing but the moment."""

    def __init__(self, memory: caliber.Caliber, task: uuid.UUID, rng: random.Random) -> None:
        self.memory = memory
        self.task = task
        self.rng = rng
        self.turns = 0

    def step(self, at: int, *, roles: tuple[str, ...] = ("assistant", "tool")) -> None:
        """Say, hear or make something, or close the scope."""
        choice = self.rng.random()
        scope = open_scope_of(self.memory, self.task)
        if choice < 0.35:
            self.memory.remember([{"role": "user", "content": told(self.rng)}], user=USER, task=self.task)
            self.turns += 1
        elif choice < 0.8:
            role = self.rng.choice(roles)
            called = "1" if role == "tool" else None
            self.memory.append_turn(scope.scope_id, role=role, tool_call_id=called, content=answered(self.rng, at))
            self.turns += 1
        elif choice < 0.93:
            self.make(scope, f"Report {at}: the {self.rng.choice(PARTS)} is a model {self.rng.choice('ABCD')}{at}.")
        else:
            self.memory.close_scope(scope.scope_id)

    def be_misled(self, steps: int) -> None:
        """Read wrong output of a tool and go on from there.

        A turn comes first: the summary of a scope that closes right after a checkpoint tells of nothing later, and
        stays.
        """
        scope = open_scope_of(self.memory, self.task)
        self.memory.append_turn(scope.scope_id, role="tool", tool_call_id="1", content=answered(self.rng, 0))
        self.turns += 1
        for at in range(steps):
            self.step(at, roles=("tool",))

    def make(self, scope: Any, content: str) -> Any:
        """Make an artifact."""
        return self.memory.create_artifact(
            scope.scope_id, artifact_type="fact", content=content, extraction_method="explicit"
        )

    def contradict(self, at: int) -> None:
        """Correct an artifact that was right, and say the opposite of what the user had said."""
        found = self.memory.search("report model", kinds=["artifact"], limit=5, user=USER).hits
        if found:
            self.memory.artifacts.supersede(found[0].id, content=f"Report {at}: there is no such part.")
        for text in (f"I moved to Nowhere {at}.", "I am not allergic to anything.", "I no longer work at Siemens."):
            self.memory.remember([{"role": "user", "content": text}], user=USER, task=self.task)
            self.turns += 1

    def run_away(self, at: int, steps: int) -> None:
        """Fill the context: long answers of a tool, artifacts and scopes, one after the other."""
        for number in range(steps):
            scope = open_scope_of(self.memory, self.task)
            text = " ".join(answered(self.rng, at + number) for _ in range(20))
            self.memory.append_turn(scope.scope_id, role="tool", tool_call_id="1", content=text)
            self.turns += 1
            self.make(scope, f"Report {at}.{number}: {text}")
            if number % 5 == 4:
                self.memory.close_scope(scope.scope_id)


def _run(path: str, knobs: dict[str, Any], dsn: str, at: int, reports: Connection, work: Any) -> None:
    """Do work on a store, and die at a line of it; report how many lines there are, if it comes that far."""
    os.environ[DSN] = dsn
    admin = caliber.Principal.admin()
    with caliber.open(config(path, **KNOBS, **knobs), clock=FixedClock(), principal=admin) as memory:
        lines = Killing(in_files(*CODE), at)
        with lines.counted():
            work(memory)
        reports.send(lines.run)


def misled(
    path: str, knobs: dict[str, Any], dsn: str, at: int, task: uuid.UUID, seed: int, reports: Connection
) -> None:
    """Work on a task for ten steps."""
    _run(path, knobs, dsn, at, reports, lambda memory: Worker(memory, task, random.Random(seed)).be_misled(10))


def recovering(
    path: str, knobs: dict[str, Any], dsn: str, at: int, task: uuid.UUID, _: int, reports: Connection
) -> None:
    """Recover a task from its newest checkpoint."""
    _run(path, knobs, dsn, at, reports, lambda memory: memory.pcp.recover(task))
