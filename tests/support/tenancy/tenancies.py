"""Tenants on two clusters and in files, for tests: their configuration, what they remember, processes that use them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.configs import USER, config
from support.inspection import inspect
from support.memories import record
from support.waits import let_run, until

import caliber
from caliber.backends import backend
from caliber.config import CaliberConfig, profiles
from caliber.model import ConflictStatus, ConflictType, Disagreement, EntityRef, EntityType, SystemClock
from caliber.model.errors import CaliberError, Unavailable
from caliber.model.references import ConflictId
from caliber.model.time import from_us
from caliber.schema.relation import ColumnType
from caliber.schema.relations import CHANGE, RELATIONS, SCHEMA_MIGRATION

FIRST, SECOND, SECRET = "CALIBER_TEST_DSN", "CALIBER_TEST_SECOND_DSN", "CALIBER_TEST_ROLE_SECRET"
VARIABLES = (FIRST, SECOND, SECRET)

# Children are forked from a process without threads that has imported what takes long: each begins at once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["caliber.api.tenants", "caliber.backends.postgres.moving.replica"])

BLOCK_TURNS = 16
"""Turns of a block that is summarized: few, so that what moves has summaries, whatever profiles are tuned to."""


def tenancy_config(folder: Path, *, directory: str = "sqlite", **overrides: Any) -> CaliberConfig:
    """Return a configuration with tenants in files, on the first cluster, and with login roles on the second."""
    unique = uuid.uuid4().hex[:12]
    on = {"storage.adapter": "postgres", "storage.pool_max": 6}
    first = profiles.reference(f"env:{FIRST}", **on).to_mapping()["storage"]
    files = profiles.reference(str(folder / "{tenant}.db")).to_mapping()["storage"]
    login = {"login_role": f"r{unique}_{{tenant}}", "login_secret": f"env:{SECRET}"}
    places = {
        "sqlite": {"adapter": "sqlite", "path": str(folder / "tenants.db")},
        "postgres": {"adapter": "postgres", "dsn": f"env:{FIRST}", "schema_name": f"d{unique}"},
    }
    tenancy: dict[str, Any] = {
        "new_tenants": "files",
        "fence_ms": "20s",
        "verify_in_fence": True,
        "directory": places[directory],
        "sources": {"files": files, "first": {**first, "schema_name": f"t{unique}_{{tenant}}"},
                    "second": {**first, "dsn": f"env:{SECOND}", "schema_name": f"t{unique}_{{tenant}}", **login}},
    }  # fmt: skip
    tenancy |= {name.removeprefix("tenancy__"): overrides.pop(name) for name in list(overrides) if "tenancy__" in name}
    overrides.setdefault("assembly__evict_block_turns", BLOCK_TURNS)
    return config(str(folder / "unused.db"), tenancy=tenancy, **overrides)


def fill(memory: caliber.Caliber, turns: int = 40) -> dict[str, Any]:
    """Remember something of every kind, some of it changed or removed again; return what is asked about later."""
    trajectory = memory.start_trajectory("move house", initiator=USER)
    scope = memory.current_scope(trajectory.trajectory_id)
    assert scope is not None
    for number in range(turns):
        memory.append_turn(scope.scope_id, role="user", content=f"turn {number} \0 ünïcode \ufdd0 {'x' * number}")
    about: dict[str, Any] = {"entity": "house", "entity_type": "topic", "note_type": "fact", "confidence": 0.9}
    notes = [memory.add_note(content=f"The house has room {number}.", **about) for number in range(12)]
    sides = [EntityRef(EntityType.NOTE, note.note_id) for note in notes[:2]]
    what = ConflictId(uuid.uuid4()), ConflictType.CONTRADICTING_FACT, sides[0], sides[1], ConflictStatus.ESCALATED
    conflict = Disagreement(*what, "3 and 4 \0 ünï", from_us(1_000), "system:a", from_us(1_000))
    memory.storage.conflicts.insert(conflict)
    memory.create_artifact(
        scope.scope_id, artifact_type="fact", content="four walls", extraction_method="explicit", ttl="persistent"
    )
    _remember_facts(memory, trajectory.trajectory_id)
    window = memory.assemble_context(trajectory.trajectory_id, query="which rooms are there?")
    memory.search("room 3", limit=3)
    memory.flush()
    assert memory.storage.turn_summaries.count() == turns // BLOCK_TURNS
    return {
        "trajectory": trajectory.trajectory_id,
        "scope": scope.scope_id,
        "notes": [note.note_id for note in notes],
        "conflict": conflict,
        "window": window.window_id,
        "text": window.text,
    }


def _remember_facts(memory: caliber.Caliber, trajectory_id: uuid.UUID) -> None:
    """Write records of declared memories, where there are some, that belong to a task and to each other."""
    catalog = inspect(memory).store.catalog
    if not catalog.memories:
        return
    fact, step = (catalog.memories[name].relation for name in ("fact", "step"))

    def write(uow: Any) -> None:
        for number in range(6):
            made = record(
                catalog,
                "fact",
                subject=f"room \0 {number}",
                kind="claim",
                score=number / 7,
                about={"\0": [number]},
                trajectory_id=trajectory_id,
            )
            uow.insert(fact, made)
            uow.insert(step, record(catalog, "step", parent_id=made.record_id, position=number))
        uow.delete(fact, made)

    inspect(memory).write(write)


BEFORE_EVERY_KEY: dict[ColumnType, Any] = {
    ColumnType.INT: -1, ColumnType.INSTANT: -1, ColumnType.TEXT: "", ColumnType.ENUM: "", ColumnType.UUID: bytes(16),
    ColumnType.BYTES: b"",
}  # fmt: skip


def rows_of(settings: CaliberConfig) -> dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]:
    """Return every row of a store by key, as the regular statements read it: ordinal first where there is one."""
    store = backend(settings.storage.adapter).open_store(settings, clock_us=SystemClock().now_us)
    out: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {}
    try:
        for relation in store.catalog.relations:
            if relation in (CHANGE, SCHEMA_MIGRATION):
                continue
            plans = store.plans[relation.name]
            types = {column.name: column.type for column in relation.columns}
            after = tuple(BEFORE_EVERY_KEY[types.get(name, ColumnType.INT)] for name in plans.page.binds[:-1])
            with store.read() as session:
                rows = session.run(plans.page, (*after, 10**6))
            out[relation.name] = {plans.codec.key_of(row): row for row in rows}
    finally:
        store.close()
    return out


def place_config(settings: CaliberConfig, name: str, place: Any) -> CaliberConfig:
    """Return the configuration of a tenant's store at a place it was, or is to be."""
    with caliber.Tenants(settings) as tenants:
        storage = inspect(tenants).directory.storage(tenants.get(name), place)
    return settings.with_overrides(storage=storage, tenancy=None)


def lost(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return which rows of a store are in another neither as they were nor in a later version."""
    out = []
    for relation in RELATIONS:
        for key, row in old.get(relation.name, {}).items():
            there = new[relation.name].get(key)
            later = relation.versioned and there is not None and there[-1] > row[-1] and there[0] == row[0]
            if there != row and not later:
                out.append(f"{relation.name} {key}")
    return out


# --- other processes ------------------------------------------------------------------------------


def variables() -> dict[str, str]:
    """Return the variables of the environment that a child needs: it was forked before the servers started."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def move_until(settings: CaliberConfig, name: str, source: str, step: str, known: dict[str, str]) -> None:
    """Move a tenant, and be killed at the beginning of a step; without such a step, to the end."""
    os.environ.update(known)

    def progress(begun: str, *_: Any) -> None:
        if begun == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with caliber.Tenants(settings) as tenants:
        tenants.move(name, source, progress=progress)


def write_until(settings: CaliberConfig, name: str, scope: uuid.UUID, stop: Any, told: Connection) -> None:
    """Write turns to a tenant, wherever it is, until ``stop``; tell which were acknowledged and what was heard."""
    os.environ.update(told.recv())
    acknowledged: list[uuid.UUID] = []
    heard: dict[str, int] = {}
    memory = _opened(settings, name)
    number = 0
    opened_again = False
    while not stop.is_set():
        number += 1
        try:
            turn = memory.append_turn(scope, role="user", content=f"written {number}", idempotency_key=f"k{number}")
            acknowledged.append(turn.turn_id)
            if opened_again:
                told.send("at home")
                opened_again = False
        except CaliberError as error:
            reason = error.context.get("reason", error.kind)
            heard[reason] = heard.get(reason, 0) + 1
            number -= 1
            if reason == "moved":
                memory.close()
                memory = _opened(settings, name)
                opened_again = True
            elif reason != "moving" or not error.retryable:
                heard["unexpected"] = heard.get("unexpected", 0) + 1
                told.send((acknowledged, heard, str(error)))
                return
            let_run(0.005)
        if number == 20:
            told.send("writing")
    memory.close()
    told.send((acknowledged, heard, ""))


def _opened(settings: CaliberConfig, name: str) -> caliber.Caliber:
    def opened() -> caliber.Caliber | None:
        try:
            return caliber.open(settings, tenant=name)
        except Unavailable as error:
            if error.context.get("reason") not in ("moving", "moved"):
                raise
            return None

    return until(opened, seconds=60)  # type: ignore[return-value]


@contextlib.contextmanager
def writing(settings: CaliberConfig, name: str, scope: uuid.UUID) -> Iterator[dict[str, Any]]:
    """Have another process write turns to a tenant that moves meanwhile; the dict says afterwards what it did."""
    ours, theirs = PROCESSES.Pipe()
    stop = PROCESSES.Event()
    child = PROCESSES.Process(target=write_until, args=(settings, name, scope, stop, theirs))
    out: dict[str, Any] = {}
    child.start()
    try:
        ours.send(variables())
        assert ours.poll(60)
        assert ours.recv() == "writing"
        yield out
        answer: Any = ours.recv() if ours.poll(60) else None  # it has written at the new place, or given up
        stop.set()
        while isinstance(answer, str) and ours.poll(60):
            answer = ours.recv()
        assert isinstance(answer, tuple), answer
        out["acknowledged"], out["heard"], out["error"] = answer
    finally:
        stop.set()
        child.join(30)
        if child.is_alive():
            child.kill()
