"""Every public call with hostile values in each place: typed errors, nothing written, and the handle goes on working.

Source: issue, Bad input; issue 38, point 6; C-028 to C-092.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import random
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import evidence
from support.api import hostile
from support.api.doors import Doors, fill
from support.api.hostile import Call
from support.configs import USER, config
from support.memories import FACT

import caliber
from caliber import EntityRef, Principal
from caliber.model.deadline import within
from caliber.model.errors import CaliberError, DTypeError, InternalError, InvalidValue

EXTRA = {"update": ("content",), "insert": ("subject", "about", "score"), "reference": ("storage.path", "a")}
SENT = ".messages.request"
"""The message of a request stays, although no reply comes."""
WAIT_S = 0.3
"""The longest wait of a call that is told to wait for years."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with caliber.open(config(":memory:", memories=[FACT])) as memory:
        yield Doors(memory, fill(memory), tmp_path_factory.mktemp("arguments"))


def _openings(folder: Path) -> list[Call]:
    """Return the calls that come before there is a handle."""
    settings = config(str(folder / "store.db"))
    sound = {
        ": str": "a", ": Mapping[str, Any]": {}, "program": caliber.dsl.parse('caliber: "0.1.0" {}'),
        ": CaliberConfig": settings, "kind": "user", "config": settings, "source": str(folder / "nothing.toml"),
        "path": folder / "nothing.zip", "name": "nobody", "id": uuid.UUID(int=1), "entity_type": "user", "token": 1,
        "deadline.ms": 1_000, "resource": "r", "data": {}, "text": "a", "storage": settings.storage,
        "profile": "reference", "purge.dry_run": True,
    }  # fmt: skip
    out = [
        hostile.call_of(name, getattr(caliber, name), sound)
        for name in (*(name for name in caliber.__all__ if inspect.isfunction(getattr(caliber, name))), "Tenants")
    ]
    for kind in (Principal, EntityRef, caliber.LockToken):
        out.append(hostile.call_of(kind.__name__, kind, sound))
    for holder in (Principal.admin(), USER, settings):
        for name in vars(type(holder)):
            if not name.startswith(("_", "model_")) and callable(getattr(holder, name)):
                out.append(hostile.call_of(f"{type(holder).__name__}.{name}", getattr(holder, name), sound))
    for made in (*caliber.profiles.PROFILES.values(), caliber.profiles.reasons):
        out.append(hostile.call_of(f"profiles.{made.__name__}", made, sound))
    for name in caliber.dsl.__all__:
        if inspect.isfunction(made := getattr(caliber.dsl, name)):
            out.append(hostile.call_of(f"dsl.{name}", made, sound))
    return out


def _failure(call: Call, place: Any, value: Any, counts: Callable[[], Any] = dict) -> str | None:
    """Make a call with a value in one place; return what is wrong with how it ended, or None."""
    arguments, keywords = hostile.broken(call, place, value, EXTRA.get(call.name.rpartition(".")[2], ("a",)))
    what = f"{call.name}({place.name}={hostile.shown(value)})"
    is_wait = place.name in ("wait_ms", "timeout_ms")
    before = counts()
    try:
        with within(WAIT_S if is_wait else None):
            found = call.function(*arguments, **keywords)
            if isinstance(found, caliber.Caliber):
                pass  # a view, whose block would close the store
            elif isinstance(found, contextlib.AbstractContextManager):
                with found:
                    pass
            elif isinstance(found, Iterator) and call.name.endswith(".all"):  # others wait for what comes
                list(found)
            elif inspect.isfunction(found):
                found()  # what ends a subscription
    except InternalError as error:
        return f"{what}: {error}"
    except CaliberError as error:
        str(error).encode()
        pickle.dumps(error.message)
        after = counts()
        kept = is_wait or call.name.endswith(SENT) or before == after
        return None if kept else f"{what}: {error}, but wrote {_changed(before, after)}"
    except Exception as error:
        return f"{what}: {hostile.failed(error)}"
    return None


def _changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return sorted(name for name in before if before[name] != after[name])


def _failures(cases: Iterable[hostile.Case], counts: Callable[[], Any] = dict) -> str:
    return "\n".join(failure for case in cases if (failure := _failure(*case, counts)) is not None)


def test_wrong_values_are_typed_errors_and_the_handle_goes_on(world: Doors) -> None:
    calls = world.calls()
    cases = hostile.every(calls) if evidence.soaking() else hostile.drawn(calls, random.Random(evidence.seed()), 900)
    wrong = _failures(cases, world.counts)
    world.works()
    assert not wrong, wrong


def test_wrong_values_for_what_opens_a_store_are_typed_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    calls = _openings(tmp_path)
    cases = hostile.every(calls) if evidence.soaking() else hostile.drawn(calls, random.Random(evidence.seed()), 200)
    wrong = _failures(cases)
    assert not wrong, wrong
    caliber.open(config(":memory:")).close()


WRONG: dict[str, Callable[[Any, Any], object]] = {
    "initiator=EntityRef(user, text)": lambda m, t: m.start_trajectory("g", initiator=EntityRef("user", "text")),
    "initiator=EntityRef(nobody, id)": lambda m, t: m.start_session(initiator=EntityRef("nobody", uuid.uuid4())),
    "forget(text)": lambda m, t: m.forget(entity="user"),
    "forget(EntityRef(user, 5))": lambda m, t: m.forget(entity=EntityRef("user", 5)),
    "append_turns(None)": lambda m, t: m.append_turns(m.current_scope(t).scope_id, None),
    "append_turns(dict)": lambda m, t: m.append_turns(m.current_scope(t).scope_id, {"role": "user"}),
    "extra_sections=text": lambda m, t: m.assemble_context(t, extra_sections="abc"),
    "extra_sections={1: …}": lambda m, t: m.assemble_context(t, extra_sections={1: "a"}),
    "consistency=maybe": lambda m, t: m.assemble_context(t, consistency="maybe"),
    "search consistency=5": lambda m, t: m.search("a", consistency=5),
    "filter=[1]": lambda m, t: m.search("a", filter=[1]),
    "search_many(text)": lambda m, t: m.search_many("abc"),
    "search_many(None)": lambda m, t: m.search_many(None),
    "acting_as(text)": lambda m, t: m.acting_as("bob"),
    "acting_as(kind)": lambda m, t: m.acting_as(Principal("robot", "bob")),
    "acting_as(role)": lambda m, t: m.acting_as(Principal("agent", "bob", "boss")),
    "subscribe(5)": lambda m, t: m.events.subscribe(5),
    "release(text)": lambda m, t: m.agents.locks.release("r", holder="me"),
    "renew(text)": lambda m, t: m.agents.locks.renew("r", holder="me", lease_ms=5),
    "storage limit=text": lambda m, t: m.storage.trajectories.list_by_status("active", limit="a"),
    "storage limit=-1": lambda m, t: m.storage.trajectories.list_by_status("active", limit=-1),
    "open principal": lambda m, t: caliber.open(config(":memory:"), principal="me"),
    "open embedding": lambda m, t: caliber.open(config(":memory:"), embedding_provider=5),
    "open summarization": lambda m, t: caliber.open(config(":memory:"), summarization_provider=5),
    "open clock": lambda m, t: caliber.open(config(":memory:"), clock=5),
}


def test_a_wrong_argument_is_an_input_error(world: Doors) -> None:
    wrong = []
    for name, call in WRONG.items():
        try:
            call(world.memory, world.ids.task.trajectory_id)
        except (DTypeError, InvalidValue):
            continue
        except Exception as error:
            wrong.append(f"{name}: {hostile.failed(error)}")
        else:
            wrong.append(f"{name}: done")
    assert not wrong, "\n".join(wrong)


def test_a_principal_may_be_named_by_text(world: Doors) -> None:
    """Enums compare equal to their text, so their text has to do as well."""
    agent = world.memory.acting_as(Principal("agent", "planner", "executor"))
    assert repr(agent.principal.label) == "'agent:planner'"
    note = agent.add_note(entity="e", entity_type="t", note_type="fact", content="c", confidence=1.0)
    assert agent.get(note.note_id).content == "c"


def test_type_and_id_of_an_entity_may_be_given_as_text(world: Doors) -> None:
    who = uuid.uuid4()
    task = world.memory.start_trajectory("g", initiator=EntityRef("user", str(who)))  # type: ignore[arg-type]
    assert world.memory.get(task.trajectory_id).initiator == EntityRef(caliber.EntityType.USER, who)


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
