"""Knobs of memory, of what is written behind, of retention, and of vectors and who gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contract.world import count
from support.config.knobs.case import FILE, NO_VECTORS, Agent, Case, Place, released
from support.inspection import inspect, replaced
from support.providers import CountingEmbeddings
from support.storage.crowds import Gate
from support.waits import holds_within

import caliber
from caliber.config import CaliberConfig
from caliber.kernels import evaluator as evaluators
from caliber.kernels import uuid7
from caliber.model.errors import NotFound, Unavailable
from caliber.model.events import Event, EventFamily
from caliber.model.ids import EventId
from caliber.model.time import FixedClock, from_us
from caliber.schema.relations import EVENT
from caliber.search.opening import SearchEngine

DAY_MS = 86_400_000
MOMENT_S = 0.05
"""Time to wait for an event that must not happen."""


def case(
    path: str, see: Any, one: tuple[Any, Any], other: tuple[Any, Any], needs: tuple[str, ...] = (), **also: Any
) -> Case:
    given = {name.replace("__", "."): value for name, value in also.items()}
    return Case(path, see, one, other, {**NO_VECTORS, **given}, needs)


def comes(condition: Callable[[], bool], *, expected: bool) -> bool:
    """Return whether something comes true: waited for long where it is to, and a moment where it is not."""
    return holds_within(condition, 20 if expected else MOMENT_S)


# --- memory ------------------------------------------------------------------------------------------


def beside_another(config: CaliberConfig, place: Place) -> tuple[caliber.Caliber, Any]:
    """Return a handle, and a note that another handle has just written."""
    memory = place.open(config)
    return memory, Agent(place.open(config)).note("news").note_id


def seen_at_once(config: CaliberConfig, place: Place) -> bool:
    memory, note = beside_another(config, place)
    return knows(memory, note)


def knows(memory: caliber.Caliber, record: Any) -> bool:
    try:
        memory.get(record)
    except NotFound:
        return False
    return True


def seen_later(config: CaliberConfig, place: Place) -> bool:
    memory, note = beside_another(config, place)
    return comes(lambda: knows(memory, note), expected=config.resident.feed_poll_ms > 0)


def words_known(config: CaliberConfig, place: Place) -> bool:
    """Return whether the words of a store are known before the first search."""
    agent = Agent(place.open(config))
    agent.note("zeppelin")
    agent.memory.close()
    memory = place.open(config)
    words = inspect(memory).part(SearchEngine).searcher.keywords.dictionary
    return comes(lambda: len(words) > 0, expected=config.resident.warm_after_ms > 0)


def evaluator(config: CaliberConfig, place: Place) -> str:
    agent = Agent(place.open(config))
    return str(agent.memory.assemble_context(agent.trajectory_id).evaluator)


def code_in(config: CaliberConfig, place: Place) -> list[str]:
    """Return the folders for compiled code once a store is open whose loops are compiled; here there are none."""
    place.fixture("monkeypatch").setattr("caliber.kernels.jit.compiled.SIGNATURES", {})
    with replaced(evaluators, "compiled", None):
        place.open(config)
    return [name for name in ("one", "other") if (place.folder / name / "numba").is_dir()]


# --- what is written behind --------------------------------------------------------------------------


def event(config: CaliberConfig) -> Event:
    return Event(EventId(uuid7()), EventFamily.TRACE, "caliber_seen", from_us(0))


def closed_beside_a_writer(config: CaliberConfig, place: Place) -> str:
    """Return the outcome of closing while another writes for a while."""
    memory = caliber.open(config)
    inspect(memory).behind.flush()
    gate = Gate(inspect(memory).store)
    inspect(memory).behind.put((inspect(memory).engine.log, None, event(config)))
    with released(gate.open, gives_up=False):
        try:
            memory.close()
        except Unavailable:
            return "given up"
    return "drained"


def events(config: CaliberConfig, place: Place) -> int:
    agent = Agent(place.open(config))
    return len(agent.memory.trace(agent.trajectory_id))


# --- retention ---------------------------------------------------------------------------------------


def left_after_two_days(what: str) -> Callable[[CaliberConfig, Place], int]:
    """Return the observation of how much of something upkeep removes that is two days old."""

    def see(config: CaliberConfig, place: Place) -> int:
        clock = FixedClock()
        agent = Agent(place.open(config, clock=clock, embedding_provider=CountingEmbeddings()))
        agent.note("a thing")
        agent.memory.assemble_context(agent.trajectory_id)
        agent.memory.flush()
        clock.advance(ms=2 * DAY_MS)
        return min(agent.memory.admin.maintain()[what], 1)

    return see


def windows_of_before(config: CaliberConfig, place: Place) -> int:
    """Return the number of two-day-old windows that upkeep removes, with windows kept for a month."""
    clock = FixedClock()
    month = {"retention.windows_ms": "30d", "context_window_persistence.ttl_ms": "30d"}
    agent = Agent(place.open(config.with_overrides(**month), clock=clock))
    agent.memory.assemble_context(agent.trajectory_id)
    agent.memory.close()
    clock.advance(ms=2 * DAY_MS)
    return place.open(config, clock=clock).admin.maintain()["windows"]


def applied_by_itself(config: CaliberConfig, place: Place) -> bool:
    clock = FixedClock()
    agent = Agent(place.open(config, clock=clock))
    agent.memory.flush()
    clock.advance(ms=2 * DAY_MS)
    store = inspect(agent.memory).store
    return comes(lambda: not count(store, EVENT), expected=config.retention.apply_every_ms > 0)


CASES: tuple[Case, ...] = (
    # --- memory
    case("resident.read_consistency", seen_at_once, ("local", False), ("latest", True), storage__path=FILE),
    case("resident.feed_poll_ms", seen_later, (0, False), (1, True), storage__path=FILE),
    case("resident.warm_after_ms", words_known, (0, False), (1, True), storage__path=FILE),
    case("resident.evaluator", evaluator, ("numpy", "numpy"), ("numba", "numba"), ("numba",)),
    case(
        "cache_dir",
        code_in,
        (lambda place: str(place.folder / "one"), ["one"]),
        (lambda place: str(place.folder / "other"), ["other"]),
        ("compiled_code",),
        resident__evaluator="numba",
    ),
    # --- what is written behind
    case("write_behind.shutdown_ms", closed_beside_a_writer, (1, "given up"), ("20s", "drained")),
    # --- retention
    case(
        "retention.windows_ms",
        windows_of_before,
        ("1d", 1),
        ("3d", 0),
        storage__path=FILE,
        context_window_persistence__ttl_ms="12h",
    ),
    case("retention.apply_every_ms", applied_by_itself, (0, False), (1, True), retention__events_ms="1d"),
)
