"""Every public call with values of every wrong type in each place: typed errors, and the handle goes on working.

Source: issue, Bad input; C-028 to C-092.
"""

from __future__ import annotations

import inspect
import os
import pickle
import random
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import evidence
from support.api import hostile
from support.configs import USER, config
from support.memories import FACT

import caliber
from caliber import testing
from caliber.model.errors import CaliberError, InternalError

SKIPPED = frozenset(
    (
        "close",
        "storage.bulk_read",  # hands out a reader that is in the middle of its session
        "admin.rebuild_search",  # no argument but switches, and slow
        "admin.vacuum",
    )
)
EXTRA = {"update": ("content",), "insert": ("subject", "about", "score")}


class World:
    """A store in memory with a task, and what public calls need."""

    def __init__(self, folder: Path) -> None:
        self.memory = caliber.open(config(":memory:", memories=[FACT]))
        self.folder = folder
        self.task = self.memory.start_trajectory("go on", initiator=USER)
        self.scope = self.memory.current_scope(self.task.trajectory_id)
        assert self.scope is not None
        self.number = 0
        self.window = self.memory.assemble_context(self.task.trajectory_id)
        self.note = self.memory.add_note(
            entity="e", entity_type="t", note_type="fact", content="something", confidence=0.5
        )
        self.passing = self.memory.add_note(
            entity="e", entity_type="t", note_type="fact", content="passing", confidence=0.5
        )
        self.lock = self.memory.agents.locks.acquire("cellar", holder="me", lease_ms=10**9)

    def unique(self) -> str:
        self.number += 1
        return f"text {self.number}"

    def sound(self) -> dict[str, Any]:
        """Return values with which calls are sound; what is callable is made for each call."""
        memory, scope = self.memory, self.scope
        assert scope is not None

        def task_of_its_own() -> uuid.UUID:
            return memory.start_trajectory("passing", initiator=USER).trajectory_id

        def scope_of_its_own() -> uuid.UUID:
            return memory.open_scope(self.task.trajectory_id).scope_id

        return {
            "id": self.note.note_id,
            "trajectory_id": self.task.trajectory_id,
            "scope_id": scope.scope_id,
            "session_id": lambda: memory.start_session(initiator=USER).session_id,
            "window_id": self.window.window_id,
            "complete_trajectory.trajectory_id": task_of_its_own,
            "suspend_trajectory.trajectory_id": task_of_its_own,
            "resume_trajectory.trajectory_id": task_of_its_own,
            "admin.purge_trajectory.trajectory_id": task_of_its_own,
            "close_scope.scope_id": scope_of_its_own,
            "storage.scopes.close.scope_id": scope_of_its_own,
            "storage.turns.delete_by_scope.scope_id": scope_of_its_own,
            "storage.notes.update.key": self.passing.note_id,
            "storage.trajectories.update.key": self.task.trajectory_id,
            "goal": "a goal",
            "initiator": USER,
            "status": "success",
            "summary": "a summary",
            "role": "user",
            "content": self.unique,
            "turns": [{"role": "user", "content": "a"}],
            "messages": [{"role": "user", "content": "a"}],
            "artifact_type": "fact",
            "extraction_method": "explicit",
            "entity": "e",
            "entity_type": "t",
            "note_type": "fact",
            "confidence": 0.5,
            "query": "something",
            "queries": ["something"],
            "name": "note",
            "principal": memory.principal,
            "subscriber": lambda: lambda _: None,
            "forget.texts": ["nobody-has-this-name"],
            "resource": "cellar",
            "holder": "me",
            "token": caliber.LockToken("cellar", self.lock.token),
            "records": [{"subject": "s", "kind": "claim"}],
            "fact.insert.record": {"subject": "s", "kind": "claim"},
            "path": lambda: self.folder / f"{uuid.uuid4()}.zip",
            "relation": "note",
            "relation_plural": "notes",
            "data": [],
            "embedding": [0.5] * 32,
            "limit": 3,
            "keep": 3,
            "age_ms": 10**12,
            "content_hash": b"0" * 32,
            "space_id": uuid.UUID(int=1),
        }

    def calls(self) -> list[hostile.Call]:
        """Return every public call of the handle and what hangs on it."""
        memory, sound = self.memory, self.sound()
        out = list(hostile.public(memory, "", sound, SKIPPED))
        for prefix, facet in (
            ("agents.locks.", memory.agents.locks),
            ("events.", memory.events),
            ("admin.", memory.admin),
            ("storage.", memory.storage),
            ("notes.", memory.records("note")),
            ("turn_buffer.", memory.records("turn_buffer")),
            ("fact.", memory.records("fact")),
        ):
            out += hostile.public(facet, prefix, sound, SKIPPED)
        plans = {relation.plural: relation.name for relation in testing.inspect(memory).store.catalog.relations}
        for name in memory.storage:
            table = memory.storage.get(name)
            out += hostile.public(table, f"storage.{name}.", {**sound, "entity": None, "name": "nowhere"}, SKIPPED)
            for path in testing.inspect(memory).store.plans[plans[name]].lists:
                out.append(hostile.call_of(f"storage.{name}.{path}", getattr(table, path), sound))
        return out

    def works(self) -> None:
        """Write, leave behind and search as ever."""
        assert self.scope is not None
        text = self.unique()
        self.memory.append_turn(self.scope.scope_id, role="user", content=text)
        self.memory.flush()
        assert self.memory.search(text, kinds=("turn",)).hits
        # One of its own: a drawn call may have given the first one another text.
        self.memory.add_note(entity="e", entity_type="t", note_type="fact", content=text, confidence=0.5)
        assert self.memory.search(text, kinds=("note",)).hits


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("arguments"))
    yield made
    made.memory.close()


def _openings(folder: Path) -> list[hostile.Call]:
    """Return the calls that come before there is a handle."""
    settings = config(str(folder / "store.db"))
    sound = {
        "config": settings,
        "source": str(folder / "nothing.toml"),
        "path": folder / "nothing.zip",
        "name": "nobody",
        "purge.dry_run": True,
    }
    names = ("create", "load_config", "migrate", "open", "purge", "restore")
    calls = [hostile.call_of(name, getattr(caliber, name), sound) for name in names]
    return [*calls, hostile.call_of("Tenants", caliber.Tenants, sound)]


def _failure(call: hostile.Call, place: Any, value: Any) -> str | None:
    """Make a call with a value in one place; return what is wrong with how it ended, or None."""
    arguments, keywords = hostile.broken(call, place, value, EXTRA.get(call.name.rpartition(".")[2], ("a",)))
    try:
        found = call.function(*arguments, **keywords)
        if inspect.isgenerator(found):
            list(found)
        elif inspect.isfunction(found):
            found()  # what ends a subscription
    except InternalError as error:
        return f"{call.name}({place.name}={hostile.said(value)}): {error}"
    except CaliberError as error:
        str(error).encode()
        pickle.dumps(error.message)
        return None
    except Exception as error:
        return f"{call.name}({place.name}={hostile.said(value)}): {type(error).__name__}: {ascii(error)[:80]}"
    return None


def test_wrong_values_are_typed_errors_and_the_handle_goes_on(world: World) -> None:
    calls = world.calls()
    chance = random.Random(evidence.seed())
    drawn = hostile.every(calls) if evidence.soaking() else hostile.drawn(calls, chance, 900)
    wrong = [failure for item in drawn if (failure := _failure(*item)) is not None]
    world.works()
    assert not wrong, "\n".join(wrong)


def test_wrong_values_for_what_opens_a_store_are_typed_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = _openings(tmp_path)
    chance = random.Random(evidence.seed())
    drawn = hostile.every(calls) if evidence.soaking() else hostile.drawn(calls, chance, 200)
    wrong = [failure for item in drawn if (failure := _failure(*item)) is not None]
    assert not wrong, "\n".join(wrong)
    caliber.open(config(":memory:")).close()


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "store.db"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(place))
    settings = config(str(place))
    archive = tmp_path / "archive.zip"
    place_of_archive = tmp_path / f"{kind}.zip"
    place.rename(place_of_archive) if kind == "folder" else os.link(place, place_of_archive)
    if kind == "folder":
        place.mkdir()
    for call in (
        lambda: caliber.create(settings),
        lambda: caliber.create(settings, exist_ok=True),
        lambda: caliber.open(settings).close(),
        lambda: caliber.migrate(settings),
        lambda: caliber.purge(settings),
        lambda: caliber.restore(settings, archive),
        lambda: caliber.restore(config(str(tmp_path / "new.db")), place_of_archive),
        lambda: caliber.load_config(place),
    ):
        with pytest.raises(CaliberError):
            call()
    assert place.exists()
    assert not (tmp_path / "new.db").exists()
