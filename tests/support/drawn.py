"""Databases that a test runs on: of those with what it needs, the ones that its name and the seed of the run draw.

In ``make test`` that is one. In ``make prove`` it is PostgreSQL and one SQLite, in a file or in memory, which is one
backend with one set of statements; folders in ``EVERY`` prove databases themselves and keep all. A mark keeps all of
other tests (``databases("all")``), or leaves one (``databases("one")``) to a test of logic that asks no statement of
its own. A test that is named with one database runs on it. ``make soak`` and CALIBER_DATABASES=all run every one.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from support.evidence import seed, soaking
from support.tiers import tier

Function = TypeVar("Function", bound=Callable[..., Any])

_IN_MEMORY = "it ends with its handle"
LACKS: Mapping[str, Mapping[str, str]] = {
    "postgres": {"gapless": "a rolled back transaction keeps its number; readers go by snapshots"},
    "sqlite": {},
    "sqlite-memory": {"reopen": _IN_MEMORY, "sharing": _IN_MEMORY,
                      "snapshots": "a reader keeps writers waiting in memory"},
}  # fmt: skip
"""For each database under test, the capabilities that it lacks, with the reasons: see ``contract.target``."""

NAMES = tuple(LACKS)
"""The databases under test: the keys of ``databases.BACKENDS``."""

ALIKE = ("sqlite", "sqlite-memory")
"""Databases with the same statements, of which one is enough for a test of what stands above them."""

EVERY = ("admin", "backends", "crash", "erasure", "storage")
"""Folders that ``make prove`` runs on every database: tests of what a file and memory each do in code of their own."""


def needs(*capabilities: str) -> Callable[[Function], Function]:
    """Leave a test, or every test that asks for a fixture, to the databases that have some capabilities."""

    def marked(function: Function) -> Function:
        function.needs = capabilities  # type: ignore[attr-defined]
        return function

    return marked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose database lacks what they need, or was not drawn."""
    groups: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    left_out: set[pytest.Item] = set()
    for item in items:
        database = _database_of(item)
        if database is None:
            continue
        if any(capability in LACKS[database] for capability in _needs_of(item)):
            left_out.add(item)
        elif not _runs_everywhere(item):
            groups[_name_of(item, database)][database].append(item)
    for name, by_database in groups.items():
        first = next(iter(by_database.values()))[0]
        stays = drawn(name, tuple(by_database), one=tier() == "daily" or _mark_of(first) == "one")
        for database, each in by_database.items():
            if database not in stays:
                left_out.update(each)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def drawn(name: str, databases: tuple[str, ...], *, one: bool = False) -> set[str]:
    """Return the databases of ``databases`` that a test of a name runs on in this run."""
    choice = sorted(databases) if one else sorted(set(databases) & set(ALIKE))
    if len(choice) < 2:
        return set(databases)
    digest = hashlib.blake2b(f"{seed()} {name}".encode(), digest_size=8).digest()
    return (set(databases) - set(choice)) | {choice[int.from_bytes(digest) % len(choice)]}


def _runs_everywhere(item: pytest.Item) -> bool:
    return (
        soaking()
        or os.environ.get("CALIBER_DATABASES") == "all"
        or (tier() == "prove" and (item.path.parent.name in EVERY or _mark_of(item) == "all"))
    )


def _mark_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("databases")
    if mark is not None and mark.args not in (("all",), ("one",)):
        raise pytest.UsageError(f'{item.nodeid}: the mark is databases("all") or databases("one")')
    return None if mark is None else mark.args[0]


def _needs_of(item: pytest.Item) -> set[str]:
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    functions = [item.function, *(made[-1].func for name in item.fixturenames if (made := fixtures.get(name)))]
    return {capability for function in functions for capability in getattr(function, "needs", ())}


def _database_of(item: pytest.Item) -> Any:
    """Return the database that a test runs on; None for one that has none of ``NAMES`` as a parameter."""
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return next((values[name] for name in ("backend", "module_backend", "contract_target") if name in values), None)


def _name_of(item: pytest.Item, database: str) -> str:
    """Return the name of a test without its database; that of the file where the tests share one database."""
    assert isinstance(item, pytest.Function)
    function, _, parameters = item.nodeid.partition("[")
    if "module_backend" in item.callspec.params:
        return function.partition("::")[0]
    return f"{function}[{f'-{parameters[:-1]}-'.replace(f'-{database}-', '-', 1)}"
