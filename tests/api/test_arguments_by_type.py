"""Every public call with values of every wrong type in each place: typed errors, and the handle goes on working.

Source: issue, Bad input; C-028 to C-092.
"""

from __future__ import annotations

import inspect
import os
import pickle
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import evidence
from support.api import hostile
from support.api.public_calls import World
from support.configs import config

import caliber
from caliber.model.errors import CaliberError, InternalError

EXTRA = {"update": ("content",), "insert": ("subject", "about", "score")}


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
