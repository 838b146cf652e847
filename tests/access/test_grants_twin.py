"""Reads of granted records equal those of a store that holds them; after the grant those of a store that never did.

Source: issue "People", 2; C-422.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from support.access.privacy import (
    GRANTED,
    PRINCIPALS,
    USERS,
    Done,
    Leak,
    Step,
    World,
    compare,
    fill,
    note,
    opener,
    question,
    start,
    steps,
)
from support.databases import Backend
from support.evidence import scale, seed

from caliber.access import granted
from caliber.model import Principal

pytestmark = pytest.mark.prove


@pytest.fixture(autouse=True)
def _no_grants() -> Iterator[None]:
    GRANTED.clear()
    yield
    GRANTED.clear()


def grantable(plan: list[Step]) -> list[int]:
    """Return the steps that leave a task of a user, a session or a note behind."""

    def is_one(do: Any) -> bool:
        if not isinstance(do, functools.partial):
            return True  # a session
        return do.func is note or (do.func is start and "initiator" not in do.keywords)

    return [step.at for step in plan if is_one(step.do)]


def check_phases(open_store: Callable[[], World], rng: random.Random, reads: int) -> None:
    """Grant, revoke, let grants expire and put the clock back; compare random reads after each."""
    plan = steps(rng, USERS[:3], 20)
    done = Done(plan)
    whole = fill(open_store(), plan, None)
    access = whole.memory.acting_as(Principal.admin()).access
    given: dict[int, Any] = {}
    ends = whole.clock.at + timedelta(hours=1)
    for at, number in enumerate(rng.sample(grantable(plan), 12)):
        grantee = rng.choice(PRINCIPALS)
        given[number] = access.grant(to=grantee, on=whole.made[number], until=ends if at % 2 else None)
        GRANTED[number] = frozenset((grantee,))

    def compared() -> None:
        others: dict[frozenset[Principal], World] = {}
        for _ in range(reads):
            one = question(rng, done)
            if one.viewers not in others:
                other = others[one.viewers] = fill(open_store(), plan, one.viewers)
                other.clock.at = whole.clock.at
                there = other.memory.acting_as(Principal.admin()).access
                for number, grantees in GRANTED.items():
                    # A record of a kind that the grantee may not read is none of the other store.
                    for grantee in grantees & one.viewers if number in other.made else ():
                        there.grant(to=grantee, on=other.made[number])
            compare(one, whole, others[one.viewers])

    compared()
    for number in [each for each, grant in given.items() if grant.until is None][:3]:
        access.revoke(given[number].grant_id)
        del GRANTED[number]
    compared()
    whole.clock.at = ends
    for number in [each for each, grant in given.items() if grant.until is not None]:
        del GRANTED[number]
    compared()
    whole.clock.at = ends - timedelta(minutes=30)
    compared()


@pytest.mark.databases("all")
@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_granted_records_are_seen_until_their_grant_ends(backend: Backend, another: Any, mode: str) -> None:
    check_phases(opener(backend, another, mode), random.Random(seed()), scale(25, 3_000))


@pytest.mark.databases("one")
def test_a_grant_that_never_ends_is_found(backend: Backend, another: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granted, "is_active", lambda *_: True)
    for at in range(10):
        GRANTED.clear()
        try:
            check_phases(opener(backend, another, "resident"), random.Random(f"{seed()} {at}"), 60)
        except Leak:
            return
    raise AssertionError("no read showed what a grant that had ended still let through")
