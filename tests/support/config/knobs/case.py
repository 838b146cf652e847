"""Case of a knob, and the context in which it runs."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.configs import AGENT, config

import caliber
from caliber.config import CaliberConfig
from caliber.model.errors import CaliberError

FILE = "a file of its own"
"""Stands for the path of a store that no other observation uses."""

NO_VECTORS: Mapping[str, Any] = MappingProxyType(
    {"embedding_provider": None, "search.keyword.similar_words": "none", "summarization_provider": None, "policies": []}
)
"""Opens in a third of the time: no model is loaded."""


class Place:
    """The place of one observation: a folder of its own, fixtures by name, and resources to close at its end."""

    def __init__(self, folder: Path, fixture: Callable[[str], Any], stack: ExitStack) -> None:
        self.folder = folder
        self.fixture = fixture
        self.known: dict[str, Any] = {}
        self._stack = stack

    def keep(self, context: Any) -> Any:
        """Enter a context that ends with the observation."""
        return self._stack.enter_context(context)

    def environment(self, **variables: str | None) -> None:
        """Set variables of the environment until the observation ends; None takes one away."""
        for name, value in variables.items():
            self._stack.callback(_set, name, os.environ.get(name))
            _set(name, value)

    def open(self, settings: CaliberConfig, **options: Any) -> caliber.Caliber:
        """Open a store, created first where it is a file."""
        if not settings.storage.in_memory:
            create(settings)
        return self.keep(caliber.open(settings, **options))  # type: ignore[no-any-return]


@functools.cache
def _empty_store() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    caliber.create(config(str(folder / "empty.db")))
    return folder / "empty.db"


def create(settings: CaliberConfig) -> None:
    """Have a store in a file; the tables are made once, and copied."""
    if not Path(settings.storage.shown).exists():
        shutil.copy(_empty_store(), settings.storage.shown)


@contextmanager
def released(release: Callable[[], Any], *, gives_up: bool) -> Iterator[None]:
    """End what is in the way of a call: after a moment, or, where the call is to give up by itself, when it has."""
    ended = threading.Event()

    def wait() -> None:
        ended.wait(20 if gives_up else 0.1)
        release()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A knob, how its effect is looked at, and what is seen with one value and with another.

    A value may be made at its place, as an address of a server there is. ``also`` is what both configurations have
    beside the reference, ``beside`` what has to agree with each value, ``needs`` names fixtures of the suite,
    ``named`` the knob's path where it holds a name that somebody chose, or the path of one entry of a table; ``on`` is
    the database where it is not SQLite of a knob that both have. ``more`` has further values, as those of an
    enumeration: what is seen differs with each.
    """

    path: str
    see: Callable[[CaliberConfig, Place], Any]
    one: tuple[Any, Any]
    other: tuple[Any, Any]
    also: Knobs | Callable[[Place], Knobs] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    named: str = ""
    beside: tuple[Knobs | Callable[[Place], Knobs], ...] = ()
    on: str = ""
    more: tuple[tuple[Any, Any], ...] = ()

    def __str__(self) -> str:
        path = self.named or self.path
        return f"{path} on {self.on}" if self.on else path

    @property
    def sees(self) -> tuple[tuple[Any, Any], ...]:
        """Every value, and what is seen with it."""
        return (self.one, self.other, *self.more)

    def config(self, which: int, place: Place) -> CaliberConfig:
        """Return the configuration with the first value, the second or a further one, and everything else the same."""
        value = self.sees[which][0]

        def here(given: Any) -> Any:
            return given(place) if callable(given) else given

        beside = here(self.beside[which]) if which < len(self.beside) else {}
        knobs = {**here(self.also), self.named or self.path: here(value), **beside}
        path = knobs.pop("storage.path", ":memory:")
        given = {name.replace(".", "__"): one for name, one in knobs.items()}
        return config(str(place.folder / "store.db") if path == FILE else path, **given)


class Agent:
    """A handle with a trajectory under way, and short ways to write."""

    def __init__(self, memory: caliber.Caliber, goal: str = "see what a knob does") -> None:
        self.memory = memory
        self.trajectory_id = memory.start_trajectory(goal, initiator=AGENT).trajectory_id
        scope = memory.current_scope(self.trajectory_id)
        assert scope is not None
        self.scope_id = scope.scope_id

    def say(self, content: str, role: str = "user", **options: Any) -> Any:
        return self.memory.append_turn(self.scope_id, role=role, content=content, **options)

    def keep(self, content: str, **options: Any) -> Any:
        given = {"artifact_type": "fact", "extraction_method": "explicit", **options}
        return self.memory.create_artifact(self.scope_id, content=content, **given)

    def note(self, content: str, **options: Any) -> Any:
        given = {"entity": "thing", "entity_type": "topic", "note_type": "fact", "confidence": 0.9, **options}
        return self.memory.add_note(content=content, **given)


def works(call: Callable[[], Any]) -> str:
    """Call, and return ``done`` or the name of the error."""
    try:
        call()
    except CaliberError as error:
        return type(error).__name__
    return "done"
