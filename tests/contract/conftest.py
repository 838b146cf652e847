"""The databases of the contract suite. Another database joins by adding itself to ``BACKENDS``.

A test that asks for what a database cannot do (``backend.needs("files")``) is skipped there, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.configs import USER, config

import caliber
from caliber.backends import backend as backend_module
from caliber.config import CaliberConfig
from caliber.model import Clock, SystemClock
from caliber.storage.protocol import Store

ABILITIES = {
    "reopen": "what was stored can be opened again",
    "sharing": "several handles, and several processes, use one store",
    "files": "a store is one file on disk",
    "snapshots": "a reader's boundary stays while others commit",
}


class Backend:
    """One database under test: makes configurations and stores, and closes what was opened."""

    adapter = "sqlite"

    def __init__(self, name: str, path: str, abilities: frozenset[str]) -> None:
        self.name = name
        self.path = path
        self.abilities = abilities
        self._created: set[str] = set()
        self._close: list[Callable[[], None]] = []

    def needs(self, ability: str) -> None:
        """Skip the test where the database lacks an ability."""
        assert ability in ABILITIES
        if ability not in self.abilities:
            pytest.skip(f"{self.name}: not a store where {ABILITIES[ability]}")

    def config(self, **overrides: Any) -> CaliberConfig:
        return config(self.path, **overrides)

    def create(self, settings: CaliberConfig) -> None:
        """Create the store of a configuration unless this test did already."""
        if "reopen" in self.abilities and settings.storage.path not in self._created:
            self._created.add(settings.storage.path)
            backend_module(self.adapter).create(settings, exist_ok=False, clock_us=SystemClock().now_us)

    def open(
        self,
        settings: CaliberConfig | None = None,
        *,
        principal: caliber.Principal | None = None,
        embedding_provider: Any = None,
        summarization_provider: Any = None,
        clock: Clock | None = None,
        **overrides: Any,
    ) -> caliber.Caliber:
        """Open a handle, creating the store the first time."""
        settings = settings or self.config(**overrides)
        self.create(settings)
        memory = caliber.open(
            settings,
            principal=principal,
            embedding_provider=embedding_provider,
            summarization_provider=summarization_provider,
            clock=clock,
        )
        self._close.append(memory.close)
        return memory

    def store(self, *, clock: Clock | None = None, **overrides: Any) -> Store:
        """Open the bare store, without mirrors or anything behind."""
        settings = self.config(**overrides)
        self.create(settings)
        store = backend_module(self.adapter).open_store(settings, clock_us=(clock or SystemClock()).now_us)
        self._close.append(store.close)
        return store

    def close(self) -> None:
        for close in reversed(self._close):
            close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "sqlite": lambda folder: Backend(
        "sqlite", str(folder / "store.db"), frozenset({"reopen", "sharing", "files", "snapshots"})
    ),
    "sqlite-memory": lambda folder: Backend("sqlite-memory", ":memory:", frozenset()),
}


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def file_backend(tmp_path: Path) -> Iterator[Backend]:
    """SQLite in a file, for what only files have: their modes, their neighbours, their size."""
    made = BACKENDS["sqlite"](tmp_path)
    yield made
    made.close()


@pytest.fixture
def memory(backend: Backend) -> caliber.Caliber:
    """An open store with the default test configuration."""
    return backend.open()


class Agent:
    """A handle with a trajectory under way."""

    def __init__(self, memory: caliber.Caliber, goal: str = "test the store") -> None:
        self.memory = memory
        self.trajectory = memory.start_trajectory(goal, initiator=USER)
        scope = memory.current_scope(self.trajectory.trajectory_id)
        assert scope is not None
        self.scope = scope

    @property
    def trajectory_id(self) -> Any:
        return self.trajectory.trajectory_id

    @property
    def scope_id(self) -> Any:
        return self.scope.scope_id

    def say(self, content: str | bytes, role: str = "user", **options: Any) -> Any:
        return self.memory.append_turn(self.scope_id, role=role, content=content, **options)

    def keep(self, content: str | bytes, **options: Any) -> Any:
        options.setdefault("artifact_type", "fact")
        options.setdefault("extraction_method", "explicit")
        return self.memory.create_artifact(self.scope_id, content=content, **options)

    def note(self, content: str, **options: Any) -> Any:
        values = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 0.9}
        return self.memory.add_note(content=content, **{**values, **options})


@pytest.fixture
def agent(memory: caliber.Caliber) -> Agent:
    return Agent(memory)


@pytest.fixture
def start() -> Callable[..., Agent]:
    """Return what starts a trajectory on a handle."""
    return Agent
