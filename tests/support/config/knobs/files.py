"""Knobs of a store in a file, as the store itself and as one of many tenants; and of the directory of tenants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

import apsw
from contract.entities import plain
from support.config.knobs.case import FILE, NO_VECTORS, Agent, Case, Knobs, Place, create, released, works
from support.configs import policy
from support.inspection import inspect
from support.providers import ScriptedSummarizer
from support.storage.crowds import Crowd, Gate

import caliber
from caliber.api.tenants import tenant_config
from caliber.backends import backend
from caliber.config import CaliberConfig, profiles
from caliber.model import SystemClock
from caliber.schema.relations import TRAJECTORY

Seen = Callable[[CaliberConfig, Place], Any]

SHORT_MS = 1_000
"""A time up to here is to be seen to pass."""

STORE, SOURCE, HERE = "storage", "tenancy.sources.NAME", "tenancy.sources.here"


def insert(uow: Any) -> int | None:
    found: int | None = uow.insert(TRAJECTORY, plain(TRAJECTORY))
    return found


def store_of(config: CaliberConfig, place: Place) -> Any:
    store = backend(config.storage.adapter).open_store(config, clock_us=SystemClock().now_us)
    return place.keep(closing(store))


# --- what is looked at -------------------------------------------------------------------------------


def pragma(name: str) -> Seen:
    """Return the observation of what SQLite itself says of a connection."""
    return lambda config, place: inspect(store_of(config, place)).connection.pragma(name)


def files(_: CaliberConfig, place: Place) -> list[str]:
    return sorted(path.name for path in place.folder.glob("*.db"))


def readers_left(config: CaliberConfig, place: Place) -> bool:
    """Return whether another can read while one does."""
    store = store_of(config, place)
    with store.read():
        return bool(store.readers.free > 0)


def commits(writers: int) -> Seen:
    """Return the observation of how many commits some writers need that stand in line."""

    def see(config: CaliberConfig, place: Place) -> int:
        store = store_of(config, place)
        gate, crowd = Gate(store), Crowd(store)
        before = inspect(store).writer.commits
        crowd.line_up([insert] * writers)
        gate.open()
        crowd.join()
        return int(inspect(store).writer.commits - before - 1)

    return see


def locked_out(
    path: Callable[[CaliberConfig], str],
    patience_ms: Callable[[CaliberConfig], int],
    call: Callable[[CaliberConfig, Place], Callable[[], Any]],
) -> Seen:
    """Return the observation of a write while another program has the file, for a while or until it gave up."""

    def see(config: CaliberConfig, place: Place) -> str:
        write = call(config, place)
        with closing(apsw.Connection(path(config))) as other:
            other.execute("BEGIN IMMEDIATE")
            with released(lambda: other.execute("ROLLBACK"), gives_up=patience_ms(config) < SHORT_MS):
                return works(write)

    return see


def store_write(config: CaliberConfig, place: Place) -> Callable[[], Any]:
    return functools.partial(store_of(config, place).write, insert)


def closings(config: CaliberConfig, place: Place) -> int:
    """Return how often a scope is summarized that gets a new turn each time."""
    summarizer = ScriptedSummarizer()
    memory = place.keep(caliber.open(config, summarization_provider=summarizer))
    agent = Agent(memory)
    agent.say("first")
    summarizer.before = lambda _: agent.say("and another thing")
    works(lambda: memory.close_scope(agent.scope_id))
    return len(summarizer.calls)


# --- at either place -----------------------------------------------------------------------------------


def of_tenant(see: Seen) -> Seen:
    """Return an observation of the store of a tenant."""

    def tenants(config: CaliberConfig, place: Place) -> Any:
        caliber.create(config, tenant="one")
        return see(tenant_config(config, "one"), place)

    return tenants


def of_store(see: Seen) -> Seen:
    def created(config: CaliberConfig, place: Place) -> Any:
        create(config)
        return see(config, place)

    return created


def tenancy(place: Place) -> dict[str, Any]:
    """Return a section ``tenancy`` of files in two folders."""
    file = profiles.reference("unused").to_mapping()["storage"]
    folders = {name: place.folder / name for name in ("here", "there")}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return {
        "new_tenants": "here",
        "fence_ms": "20s",
        "verify_in_fence": True,
        "directory": {"adapter": "sqlite", "path": str(place.folder / "tenants.db")},
        "sources": {name: {**file, "path": str(folder / "{tenant}.db")} for name, folder in folders.items()},
    }


def at(prefix: str, knob: str, see: Seen, one: Any, other: Any, **also: Any) -> Case:
    """Return the case of a knob of the store, or of a data source of tenants."""
    given = {name.replace("__", "."): value for name, value in also.items() if not name.startswith("store__")}
    beside = {name.removeprefix("store__"): value for name, value in also.items() if name.startswith("store__")}

    def knobs(place: Place) -> Knobs:
        where: dict[str, Any] = {"tenancy": tenancy(place)} if prefix == SOURCE else {"storage.path": FILE}
        path = HERE if prefix == SOURCE else STORE
        return {**NO_VECTORS, **where, **{f"{path}.{name}": value for name, value in beside.items()}, **given}

    named = f"{HERE}.{knob}" if prefix == SOURCE else ""
    return Case(f"{prefix}.{knob}", (of_tenant if prefix == SOURCE else of_store)(see), one, other, knobs, named=named)


def file_named(prefix: str, name: str) -> Callable[[Place], str]:
    return lambda place: str(place.folder / (f"{name}-{{tenant}}.db" if prefix == SOURCE else f"{name}.db"))


def file_cases(prefix: str) -> Sequence[Case]:
    case = functools.partial(at, prefix)
    two = (["tenants.db"], "-one") if prefix == SOURCE else ([], "")
    return (
        case(
            "path",
            files,
            (file_named(prefix, "a"), [f"a{two[1]}.db", *two[0]]),
            (file_named(prefix, "b"), [f"b{two[1]}.db", *two[0]]),
        ),
        case("durability", commits(3), ("commit", 3), ("group", 1)),
        case(
            "busy_timeout_ms",
            locked_out(
                lambda config: config.storage.shown,
                lambda config: config.storage.busy_timeout_ms,  # type: ignore[union-attr]
                store_write,
            ),
            (1, "Unavailable"),
            ("20s", "done"),
        ),
        case("readers", readers_left, (1, False), (2, True)),
        case("wal_autocheckpoint_pages", pragma("wal_autocheckpoint"), (10, 10), (20, 20)),
        case(
            "serialization_retries",
            closings,
            (0, 1),
            (2, 3),
            policies=[policy("scope_close", {"action": "summarize", "target": "turn_buffer"})],
        ),
    )


# --- the directory of tenants ----------------------------------------------------------------------------


def tenants_in(*names: str) -> Seen:
    """Return the observation of which of some folders the file of a new tenant is in."""

    def see(config: CaliberConfig, place: Place) -> list[str]:
        caliber.create(config, tenant="one")
        return [name for name in names if (place.folder / name).exists()]

    return see


def moved(config: CaliberConfig, place: Place) -> tuple[Any, list[tuple[str, int]]]:
    """Move a tenant with some records; return its report and what was told of it meanwhile."""
    caliber.create(config, tenant="one")
    with caliber.open(config, tenant="one") as memory:
        agent = Agent(memory)
        for number in range(5):
            agent.note(f"note {number}")
    heard: list[tuple[str, int]] = []
    with caliber.Tenants(config) as tenants:
        report = tenants.move("one", "there", progress=lambda what, count, _: heard.append((what, count)))
    return report, heard


def counted_while_writers_wait(config: CaliberConfig, place: Place) -> bool:
    return "note" in moved(config, place)[0].rows


def move_past_a_writer(config: CaliberConfig, _: Place) -> str:
    """Return the outcome of a move that meets a slow write at its end."""
    caliber.create(config, tenant="one")
    with closing(apsw.Connection(tenant_config(config, "one").storage.shown)) as writer, ExitStack() as stack:

        def progress(step: str, *_: Any) -> None:
            if step == "fence":
                writer.execute("BEGIN IMMEDIATE")
                stack.enter_context(released(lambda: writer.execute("ROLLBACK"), gives_up=False))

        with caliber.Tenants(config) as tenants:
            return works(lambda: tenants.move("one", "there", progress=progress))


def tenancy_cases() -> Sequence[Case]:
    def case(knob: str, see: Seen, one: Any, other: Any) -> Case:
        return Case(f"tenancy.{knob}", see, one, other, lambda place: {**NO_VECTORS, "tenancy": tenancy(place)})

    places = ("here/one.db", "there/one.db")
    directories = ("a.db", "b.db")
    return (
        case("new_tenants", tenants_in(*places), ("here", [places[0]]), ("there", [places[1]])),
        case("fence_ms", move_past_a_writer, (1, "Unavailable"), ("20s", "done")),
        case("verify_in_fence", counted_while_writers_wait, (False, False), (True, True)),
        case(
            "directory.path",
            tenants_in(*directories),
            (lambda place: str(place.folder / "a.db"), ["a.db"]),
            (lambda place: str(place.folder / "b.db"), ["b.db"]),
        ),
    )


CASES: tuple[Case, ...] = (*file_cases(STORE), *file_cases(SOURCE), *tenancy_cases())
