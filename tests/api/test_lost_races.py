"""Two callers decide the same thing at once: each ends as if they had come one after the other, at every interleaving.

The second caller's whole call runs in the middle of the first one's: before each of its round trips to the server, or
before each of its transactions. A call that would wait for the first one's locks waits; the first one then goes on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.agents.teams import NOTE, Team
from support.databases import Backend
from support.inspection import inspect

import caliber
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model import EntityRef, EntityType, Principal
from caliber.model.errors import CaliberError

pytestmark = pytest.mark.prove
Call = Callable[[], object]
Calls = Callable[[], tuple[Call, Call]]
_STEPS_MAX = 200


def outcome(call: Call) -> str:
    """Return the kind of error of a call, or "done"."""
    try:
        call()
    except CaliberError as error:
        return type(error).__name__
    return "done"


class Interleaving:
    """Runs the second call in a thread of its own, before the step ``at`` of the first; counts the steps."""

    def __init__(self, backend: Backend, memory: caliber.Caliber, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits = None if backend.adapter == "sqlite" else (lambda: _waiting(memory))
        self.step = self.at = 0
        self._thread: int | None = None
        self._second: Call = lambda: None
        for owner, name in ((type(inspect(memory).engine.store), "write"), (PgConnection, "exchange")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread:
                self.step += 1
                if self.step == self.at:
                    self._run_second()
            return function(*args, **kwargs)

        return counted

    def _run_second(self) -> None:
        self._other = threading.Thread(target=self._second)
        self._other.start()
        while self._other.is_alive() and not (self._waits is not None and self._waits()):
            self._other.join(0.005)

    def run(self, first: Call, second: Call, at: int) -> tuple[str, str]:
        """Return the outcomes of both calls."""
        ends: list[str] = []
        self._second = lambda: ends.append(outcome(second))
        self.step, self.at, self._thread = 0, at, threading.get_ident()
        one = outcome(first)
        self._thread = None
        if self.step < at:
            self._second()
        else:
            self._other.join()
        return one, ends[0]


def _waiting(memory: caliber.Caliber) -> bool:
    """Return whether a connection of the server waits for a lock."""
    import psycopg

    with psycopg.connect(_dsn(memory), autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return bool(found[0])


def _dsn(memory: caliber.Caliber) -> str:
    import os

    name = inspect(memory).engine.config.storage.dsn
    return os.environ[str(name).removeprefix("env:")]


class World:
    """Two agents, a task of theirs, and the things that both may decide."""

    def __init__(self, backend: Backend) -> None:
        self.team = Team(backend)
        self.memory = self.team.memory
        self._numbers = itertools.count()

    def task(self) -> Any:
        return self.memory.start_trajectory(f"task {next(self._numbers)}", user="ana").trajectory_id

    def note(self) -> Any:
        return self.memory.add_note(content=f"The parser has {next(self._numbers)} rules.", **NOTE)

    def conflict(self) -> tuple[Any, Any, Any]:
        one, two = self.note().note_id, self.note().note_id
        refs = [EntityRef(EntityType.NOTE, each) for each in (one, two)]
        kind = {"conflict_type": "contradicting_fact", "reason": "both"}
        return self.memory.conflicts.report(*refs, **kind).conflict_id, one, two

    # --- the pairs of calls -----------------------------------------------------------------------

    def sides(self) -> tuple[Call, Call]:
        key, one, two = self.conflict()
        resolve = self.memory.conflicts.resolve
        return (lambda: resolve(key, keep=one)), (lambda: resolve(key, keep=two))

    def sides_of_agents(self) -> tuple[Call, Call]:
        key, one, _ = self.conflict()
        conflicts = self.memory.conflicts
        return (lambda: conflicts.resolve(key, keep=one)), (lambda: conflicts.resolve(key, keep="both"))

    def escalation(self) -> tuple[Call, Call]:
        key, one, _ = self.conflict()
        conflicts = self.memory.conflicts
        return (lambda: conflicts.escalate(key)), (lambda: conflicts.resolve(key, keep=one))

    def start_of_resolution(self) -> tuple[Call, Call]:
        key, one, _ = self.conflict()
        conflicts = self.memory.conflicts
        return (lambda: conflicts.start(key)), (lambda: conflicts.resolve(key, keep=one))

    def completion(self) -> tuple[Call, Call]:
        key = self.task()
        one, two = ({"status": each, "summary": "over"} for each in ("success", "failure"))
        complete = self.memory.complete_trajectory
        return (lambda: complete(key, **one)), (lambda: complete(key, **two))

    def suspension(self) -> tuple[Call, Call]:
        key = self.task()
        memory = self.memory
        return (
            lambda: memory.suspend_trajectory(key),
            lambda: memory.complete_trajectory(key, status="success", summary="over"),
        )

    def close(self) -> tuple[Call, Call]:
        scope = self.memory.current_scope(self.task())
        assert scope is not None
        return (lambda: self.memory.close_scope(scope.scope_id)), (lambda: self.memory.close_scope(scope.scope_id))

    def acceptance(self) -> tuple[Call, Call]:
        key = self.team.delegate().delegation_id
        planner, ada = self.team.planner.agents.delegations, self.team.ada.agents.delegations
        return (lambda: ada.accept(key)), (lambda: planner.cancel(key, reason="over"))

    def refusal(self) -> tuple[Call, Call]:
        key = self.team.delegate().delegation_id
        ada = self.team.ada.agents.delegations
        return (lambda: ada.reject(key, reason="busy")), (lambda: ada.accept(key))

    def result(self) -> tuple[Call, Call]:
        key = self.team.begun().delegation_id
        ada = self.team.ada.agents.delegations
        return (lambda: ada.complete(key, summary="done")), (lambda: ada.fail(key, reason="no"))

    def handoff(self) -> tuple[Call, Call]:
        planner, ada = self.team.planner, self.team.ada.agents.handoffs
        task = planner.start_trajectory("hand over", user="ana").trajectory_id
        key = planner.agents.handoffs.initiate(task, to="ada", reason="shift ends", notes="x").handoff_id
        return (lambda: ada.accept(key)), (lambda: ada.reject(key, reason="busy"))

    def workspace_task(self) -> tuple[Call, Call]:
        key = self.memory.workspace.todos.add(f"t{next(self._numbers)}").todo_id
        ada, bob = self.team.ada.workspace.todos, self.team.bob.workspace.todos
        return (lambda: ada.claim(key)), (lambda: bob.claim(key))

    def version(self) -> tuple[Call, Call]:
        note = self.note()
        texts = [f"The lexer has {next(self._numbers)} states." for _ in range(2)]
        one, two = ({"content": text, "version": note.version} for text in texts)
        update = self.memory.update_note
        return (lambda: update(note.note_id, **one)), (lambda: update(note.note_id, **two))

    def lock(self) -> tuple[Call, Call]:
        name = f"file {next(self._numbers)}"
        ada, bob = self.team.ada.agents.locks, self.team.bob.agents.locks
        return (lambda: ada.acquire(name)), (lambda: bob.acquire(name))

    def recovery(self) -> tuple[Call, Call]:
        key, memory = self.task(), self.memory
        memory.pcp.checkpoint(key)
        ended = {"status": "success", "summary": "over"}
        return (lambda: memory.pcp.recover(key)), (lambda: memory.complete_trajectory(key, **ended))

    def undo(self) -> tuple[Call, Call]:
        message = [{"role": "user", "content": f"I like tea{next(self._numbers)}."}]
        memory, learned = self.memory, self.memory.remember(message, user="ana")
        note = learned.added[0].note_id
        return (lambda: memory.learning.undo(learned.learned_id)), (lambda: memory.end_note(note))

    def cancelled_job(self) -> tuple[Call, Call]:
        from caliber.jobs.queue import JobQueue

        engine = inspect(self.memory).engine
        claim = engine.write(lambda uow: engine.part(JobQueue).enqueue_claimed(uow, "learning"))
        key = claim.job.job_id
        one, two = (self.memory.acting_as(Principal.admin()).jobs for _ in range(2))
        return (lambda: one.cancel(key)), (lambda: two.cancel(key))


CASES = [name for name, value in vars(World).items() if callable(value) and "Call" in str(value.__annotations__)]


@pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_the_loser_of_a_race_gets_the_error_of_who_comes_second(
    backend: Backend, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(backend)
    pair: Calls = getattr(world, case)
    first, second = pair()
    after = outcome(first), outcome(second)
    first, second = pair()
    before = tuple(reversed((outcome(second), outcome(first))))
    race = Interleaving(backend, world.memory, monkeypatch)
    wrong = []
    for at in range(1, _STEPS_MAX):
        ends = race.run(*pair(), at)
        if ends not in (after, before):
            wrong.append((at, ends))
        if race.step < at:
            break
    assert not wrong, f"one after the other: {after} or {before}"
