"""An agent of 2,000 turns that fails: each recovery brings back the state of the checkpoint, after kills too.

40 turns a database in ``make test``, 2,000 in ``make soak``. Source: issue 17, C-266 to C-272; docs/pcp.md.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

from support.agents import processes as agent_processes
from support.agents.processes import KNOBS, PARTS, USER, Worker, open_scope_of
from support.drawn import needs
from support.evidence import record, scale, seed
from support.learning.processes import run_until

import caliber
from caliber.model.access import Principal
from caliber.model.time import FixedClock

TURNS = scale(40, 2_000)
LATER_US = 1_700_000_000_000_000 + 3_600_000_000
"""An hour after the killed processes: their leases are over."""
FAILURES = ["killed", "bad tool output", "contradiction", "runaway context", "killed while recovering"]


def seen(memory: caliber.Caliber, task: uuid.UUID) -> dict[str, Any]:
    """Return the records of a task that are in use, facts, and answers of searches."""
    memory.flush()  # vectors are made behind
    turns = [
        turn.text
        for scope in memory.storage.scopes.list_by_trajectory(task)
        for turn in memory.storage.turns.list_by_scope(scope.scope_id)
        if turn.rolled_back_at is None
    ]
    owner = memory.identities.resolve(USER)
    notes = [] if owner is None else memory.storage.notes.find_by_entity(USER, "person")
    found = {part: sorted(hit.content for hit in memory.search(part, limit=900).hits) for part in PARTS[:4]}
    return {
        "status": memory.get(task).status,
        "turns": turns,
        "artifacts": sorted(hit.content for hit in memory.search("report", kinds=["artifact"], limit=900).hits),
        "facts": sorted(note.content for note in notes if note.active and note.valid_until is None),
        "found": found,
    }


def windows(memory: caliber.Caliber, task: uuid.UUID) -> dict[str, list[str]]:
    """Return the lines of three windows of a task."""
    memory.flush()
    queries = ["", "which model is the pump?", "where does the user live?"]
    return {query: memory.assemble_context(task, query=query).text.splitlines() for query in queries}


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Return where two answers differ, and what is missing or too many."""
    if isinstance(before, dict):
        return [line for key in before for line in differences(before[key], after[key], f"{path}/{key}")]
    if isinstance(before, list):
        was, now = Counter(before), Counter(after)
        return [f"{path}: missing {(was - now).total()}, {[*(was - now)][:3]}; more {[*(now - was)][:3]}"] * (
            was != now
        )
    return [f"{path}: {before}, then {after}"] * (before != after)


@needs("reopen")
def test_an_agent_that_fails_is_brought_back_each_time(backend: Any) -> None:
    rng = random.Random(seed())
    clock, admin = FixedClock(LATER_US), Principal.admin()
    memory = backend.open(clock=clock, principal=admin, **KNOBS)
    task = memory.start_trajectory("look after the machines of the dairy", user=USER).trajectory_id
    worker = Worker(memory, task, rng)
    failures: Counter[str] = Counter()
    rounds = 0
    while worker.turns < TURNS:
        for _ in range(rng.randrange(4, scale(8, 40))):
            worker.step(worker.turns)
        checkpoint = memory.pcp.checkpoint(task)
        before = seen(memory, task)
        # A recovery closes the open scope, so windows are compared with those after one from nothing worth telling.
        memory.append_turn(open_scope_of(memory, task).scope_id, role="user", content="One moment.")
        memory.pcp.recover(task)
        told = windows(memory, task)
        failure = FAILURES[rounds % len(FAILURES)]
        if failure == "killed":
            at, number = rng.randrange(200, 6_000), rng.randrange(1 << 30)
            failures[failure] += run_until(agent_processes.misled, backend, at, task, number) is None
        elif failure == "contradiction":
            worker.contradict(worker.turns)
        elif failure == "runaway context":
            worker.run_away(worker.turns, scale(7, 40))
        else:
            worker.be_misled(rng.randrange(3, 9))
        if failure == "killed while recovering":
            failures[failure] += (
                run_until(agent_processes.recovering, backend, rng.randrange(50, 1_500), task, 0) is None
            )
        elif failure != "killed":
            failures[failure] += 1
        done = memory.pcp.recover(task)
        assert done.success
        assert done.checkpoint_id == checkpoint.checkpoint_id
        after = seen(memory, task)
        assert differences(before, after) == [], (rounds, failure)
        assert windows(memory, task) == told, (rounds, failure)
        rounds += 1
    assert memory.admin.check() == []
    assert set(failures) == set(FAILURES)
    record(
        f"simulated-agent-{backend.name}",
        "An agent that fails, brought back to its checkpoints",
        {"turns": worker.turns, "recoveries": rounds, **failures},
    )
