"""Answers to one principal do not depend on what others did: read, were shown, corrected, learnt, locked.

Two stores hold the same records that Ben may see. In the one, the others write what is hidden from him, read, assemble
and explain; in the other nothing of it happens. Source: docs/access.md, "Hidden is absent"; O-10.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.access.privacy import (
    AGENTS,
    APPLICATION,
    USERS,
    WORDS,
    Done,
    Leak,
    Question,
    World,
    compare,
    fill,
    note,
    opener,
    plain,
    question,
    steps,
)
from support.databases import Backend
from support.evidence import scale, seed

from caliber.access import corrections
from caliber.access.visibility import Readers
from caliber.model.knowledge import NOBODY

ME, OTHER = USERS[:2]
MODES = pytest.mark.parametrize("mode", ["resident", "backend"])
COUNTED = {"write_behind__usage_enabled": True}


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(3))


def act(world: World, rng: random.Random) -> None:
    """Let another principal do something of which nothing may show in the answers to ``ME``."""
    who = rng.choice([OTHER, *AGENTS[:2]])
    memory, other, kind = world.as_(who), world.as_(OTHER), rng.randrange(7)
    seen = [{hit.id for hit in world.as_(each).search("", kinds=["note"], limit=80).hits} for each in (ME, OTHER)]
    shared = sorted(seen[0] & seen[1])
    if kind == 0:
        memory.get(rng.choice([*shared, *shared, *sorted(seen[1])] if who is OTHER else shared))
    elif kind == 1:
        task = memory.start_trajectory(words(rng), user=OTHER.id).trajectory_id
        window = memory.assemble_context(task, query=words(rng), max_tokens=400)
        memory.explain(window.window_id)
        memory.replay(window.window_id)
        world.handles[APPLICATION].assemble_context(task, query=words(rng), max_tokens=400)
    elif kind == 2:
        hidden = note(OTHER, words(rng), world)
        other.update_note(hidden, content=words(rng) + " anew")
        other.delete_note(hidden)
    elif kind == 3:
        learnt = other.remember([{"role": "user", "content": f"I live in {rng.choice(WORDS).title()}."}])
        other.learning.undo(learnt.learned_id)
    elif kind == 4:
        memory.search(words(rng), limit=8)
    elif kind == 5:
        with memory.agents.locks.hold(words(rng)):
            world.memory.get(rng.choice(sorted(seen[0])))
    else:
        world.handles[APPLICATION].get(rng.choice(shared), user=OTHER.id)


def of_me(rng: random.Random, done: Done) -> Question:
    """Return a random read by ``ME`` alone."""
    while True:
        one = question(rng, done)
        if one.by == ME and one.viewers == {ME}:
            return one


def whole(text: str, world: World) -> str:
    """Return every field of a search but the position of the store."""
    found = world.as_(ME).search(text, limit=12)
    return plain({name: getattr(found, name) for name in found.__dataclass_fields__ if name != "position"})


def check_alone(open_store: Callable[[], World], rng: random.Random, rounds: int, each: int = 12) -> None:
    """Compare reads of ``ME`` in a store that others use with those where nobody else does anything."""
    done = Done(steps(rng, USERS[:3], each))
    busy, quiet = fill(open_store(), done.plan, None), fill(open_store(), done.plan, frozenset((ME,)))
    for text in [words(rng) for _ in range(4)]:
        for world in (busy, quiet):
            note(None, text, world)
    heard: list[list[Any]] = [[], []]
    for world, events in zip((busy, quiet), heard, strict=True):
        world.as_(ME).events.subscribe(lambda event, events=events: events.append((event.event_type, event.payload)))
    try:
        for _ in range(rounds):
            act(busy, rng)
            for world in (busy, quiet):
                world.clock.at += timedelta(days=1)
                world.memory.flush()
            text = rng.choice(["", words(rng)])
            compare(Question(ME, lambda world, text=text: whole(text, world), frozenset((ME,)), "search"), busy, quiet)
            compare(of_me(rng, done), busy, quiet)
            if plain(heard[0]) != plain(heard[1]):
                raise Leak("events", *map(plain, heard))
    finally:
        for world in (busy, quiet):
            world.handles[APPLICATION].close()


@pytest.mark.databases("one")
def test_what_others_do_shows_in_no_answer(backend: Backend, another: Any) -> None:
    check_alone(opener(backend, another, "resident", **COUNTED), random.Random(seed()), 6, 3)


@MODES
@pytest.mark.prove
@pytest.mark.databases("all")
def test_whatever_others_do_shows_in_no_answer(backend: Backend, another: Any, mode: str) -> None:
    rounds = 150 if mode == "resident" else 40
    check_alone(opener(backend, another, mode, **COUNTED), random.Random(seed()), scale(rounds, 10 * rounds))


@MODES
@pytest.mark.prove
@pytest.mark.databases("one")
def test_uses_that_count_for_everybody_are_found(
    backend: Backend, another: Any, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Readers, "used_by", (NOBODY.bytes,))
    with pytest.raises(Leak):
        check_alone(opener(backend, another, mode, **COUNTED), random.Random(seed()), 40)


@pytest.mark.prove
@pytest.mark.databases("one")
def test_events_of_what_others_read_are_found(backend: Backend, another: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "RETRIEVED", frozenset())
    with pytest.raises(Leak):
        check_alone(opener(backend, another, "resident", **COUNTED), random.Random(seed()), 40)
