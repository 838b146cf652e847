"""A look for due jobs costs the same however many jobs wait. Source: C-238; docs/jobs.md."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

from support.databases import Backend
from support.evidence import scale
from support.inspection import inspect

import caliber
from caliber.jobs.handlers import Handler
from caliber.jobs.queue import JobQueue
from caliber.model.time import from_us
from caliber.schema.relations import JOB
from caliber.storage.compile.codec import codec_of

KNOBS: dict[str, Any] = {"embedding_provider": None, "jobs__poll_ms": 0}
WAITING = scale(3_000, 1_000_000)
KINDS = ("one", "other")


def multiply(backend: Backend, memory: caliber.Caliber) -> None:
    """Add as many jobs as the one that waits, each due a moment after the one before, or has long ended."""
    table, rest = backend.qualified("job"), [f'"{name}"' for name in codec_of(JOB).names if name != "job_id"]
    postgres = backend.adapter == "postgres"
    new = "gen_random_uuid()" if postgres else "randomblob(16)"
    later = "+ n * interval '1 millisecond'" if postgres else "+ n * 1000"
    values = [f"{name} {later}" if name in ('"due_at"', '"available_at"') else name for name in rest]
    numbers = f"SELECT n FROM generate_series(1, {WAITING}) AS n"
    if not postgres:
        every = f"SELECT 1 UNION ALL SELECT n + 1 FROM every WHERE n < {WAITING}"
        numbers = f"WITH RECURSIVE every(n) AS ({every}) SELECT n FROM every"
    added = f"SELECT {new}, {', '.join(values)} FROM {table}, ({numbers}) AS numbers WHERE kind = 'one'"
    backend.tamper(memory, f'INSERT INTO {table} ("job_id", {", ".join(rest)}) {added}')
    backend.tamper(memory, f"ANALYZE {table}")


def plan_of(backend: Backend, memory: caliber.Caliber, name: str) -> str:
    """Return how the database runs a statement of the queue."""
    store = inspect(memory).store
    plan = store.statements[name]
    if backend.adapter == "sqlite":
        explained = dataclasses.replace(plan, name=f"explain {name}", sql=f"EXPLAIN QUERY PLAN {plan.sql}")
        values = {"job.next": (json.dumps(KINDS), 0), "job.claim": ("one", 0, 1, "me", 10)}[name]
        with store.read() as session:
            return "\n".join(str(row[-1]) for row in session.run(explained, values))
    past, until = "'2020-01-01'", "'2020-01-02'"
    given = {"job.next": f"'{json.dumps(KINDS)}', {past}", "job.claim": f"'one', {past}, {until}, 'me', 10"}[name]
    with store.read() as session:
        session.command(f'PREPARE "asked" AS {plan.sql}')
        lines = session.command(f'EXPLAIN (COSTS OFF) EXECUTE "asked"({given})')
        session.command('DEALLOCATE "asked"')
    return "\n".join(str(line[0]) for line in lines)


def test_a_look_costs_the_same_with_any_number_of_waiting_jobs(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    engine = inspect(memory).engine
    queue = JobQueue(engine)
    for kind in KINDS:
        queue.register(Handler(kind, lambda _: 1))

    def look() -> int:
        before = engine.store.statement_count()
        assert queue.claim_due() == []
        assert queue.due_in_us() is not None
        return engine.store.statement_count() - before

    for kind in KINDS:
        engine.write(
            lambda uow, kind=kind: queue.enqueue(uow, kind, due_at=from_us(uow.now_us) + timedelta(days=1)) and None
        )
    look()
    few = look()
    multiply(backend, memory)
    assert sum(queue.waiting().values()) == WAITING + 2
    assert look() == few <= 8
    for name in ("job.next", "job.claim"):
        plan = plan_of(backend, memory, name)
        assert "job_list_available" in plan, plan
        assert "Seq Scan on job" not in plan, plan
        assert "SCAN job" not in plan, plan
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan
