"""Locks against a model of reader and writer locks: who may hold, and who waits behind whom.

Holders ask, wait, die, renew, release and write; the clock jumps both ways. Source: C-364 to C-368, K-036, K-037.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from support.databases import Backend
from support.evidence import examples
from support.inspection import inspect

import caliber
from caliber.agents.locking import lock_queue
from caliber.agents.locking.lock_queue import Blocked, Request
from caliber.model import FixedClock, Principal
from caliber.model.agents import Lock, LockMode, LockToken
from caliber.model.errors import LockExpired, PermissionDenied
from caliber.model.references import LockWaiterId
from caliber.model.time import to_us

MS = 1_000
PLACE_MS = 1_000
RESOURCES, HOLDERS = st.sampled_from(["door", "file", "key"]), st.sampled_from(["ann", "ben", "cem", "dee"])
MODES = st.sampled_from(list(LockMode))
LEASES = st.sampled_from([100, 2_000, 50_000])
JUMPS = st.sampled_from([-60_000, -900, 0, 1, 99, 400, 1_000, 1_600, 60_000])


@dataclass
class Held:
    """A lock of the model."""

    holder: str
    mode: LockMode
    token: int
    ends: int


@dataclass
class Waiting:
    """A request of the model that queues."""

    request: Request
    renewed: int


def collide(one: LockMode, two: LockMode) -> bool:
    return LockMode.EXCLUSIVE in (one, two)


class LockMachine(RuleBasedStateMachine):
    """Every answer of the store is the model's."""

    memory: caliber.Caliber
    clock: FixedClock
    examples = itertools.count()
    machines: list[LockMachine]
    """Those of all examples: their rows stay in the store."""
    floor: list[int]
    """The highest token of a row that was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.store = inspect(self.memory).store
        self.machines.append(self)
        self.example = next(self.examples)
        """Resources and holders of other examples stay in the store."""
        self.held: dict[str, list[Held]] = {}
        self.queues: dict[str, list[Waiting]] = {}
        self.tokens: dict[str, int] = {}
        self.numbers = itertools.count(1)
        self.woken: set[uuid.UUID] = set()

    def label(self, holder: str) -> str:
        return Principal.agent(f"{holder} {self.example}").label

    # --- the model -------------------------------------------------------------------------------

    def live(self, resource: str) -> list[Held]:
        return [each for each in self.held.get(resource, []) if each.ends > self.clock.now_us()]

    def waits(self, each: Waiting) -> bool:
        return 0 < each.renewed + PLACE_MS * MS - self.clock.now_us() <= 1.5 * PLACE_MS * MS

    def awaited(self, request: Request) -> list[str]:
        """Return the holders that a request waits for."""
        live = self.live(request.resource)
        locks = [each.holder for each in live if each.holder != request.holder and collide(each.mode, request.mode)]
        if any(each.holder == request.holder for each in live):
            return locks
        return locks + self.ahead(request)

    def ahead(self, request: Request) -> list[str]:
        """Return the holders of requests that came before a request and collide with it."""
        ahead = []
        for each in self.queues.get(request.resource, []):
            if each.request.waiter_id == request.waiter_id:
                break
            if self.waits(each):
                ahead.append(each.request)
        return [each.holder for each in ahead if each.holder != request.holder and collide(each.mode, request.mode)]

    def shared_again(self, request: Request) -> Held | None:
        """Return the lock of a reader that asks again although a writer is ahead of it."""
        own = next((each for each in self.live(request.resource) if each.holder == request.holder), None)
        if own is None or LockMode.EXCLUSIVE in (own.mode, request.mode):
            return None
        return own if self.ahead(request) else None

    def place(self, request: Request) -> Waiting | None:
        queue = self.queues.get(request.resource, [])
        return next((each for each in queue if each.request.waiter_id == request.waiter_id), None)

    # --- asking ----------------------------------------------------------------------------------

    def attempt(self, request: Request) -> None:
        expected, place = self.awaited(request), self.place(request)
        woken: set[uuid.UUID] = set()
        outcome: Any = self.store.write(lambda uow: lock_queue.attempt(uow, request, lambda _, ended: woken.add(ended)))
        now, resource = self.clock.now_us(), request.resource
        if isinstance(outcome, Lock):
            assert expected == []
            shared = self.shared_again(request)
            if shared is not None:
                assert (outcome.token, to_us(outcome.expires_at)) == (shared.token, shared.ends), (
                    "no longer than before"
                )
                self.left(place, woken)
                return
            newest = max((each.token for each in self.held.get(resource, [])), default=0)
            assert outcome.token == (newest + 1 if newest else max(now, self.floor[0] + 1)), "from the clock, by one"
            assert outcome.token > self.tokens.get(resource, 0), "tokens rise, also after their rows were deleted"
            self.tokens[resource] = outcome.token
            others = [each for each in self.live(resource) if each.holder != request.holder]
            ends = now + request.lease_ms * MS
            self.held[resource] = [*others, Held(request.holder, request.mode, outcome.token, ends)]
            self.left(place, woken)
            return
        assert isinstance(outcome, Blocked)
        assert set(outcome.holders) == set(expected)
        if request.waiter_id is None:
            return
        if place is None:
            self.queues.setdefault(resource, []).append(Waiting(request, now))
        elif not 2 / 3 < (place.renewed + PLACE_MS * MS - now) / (PLACE_MS * MS) <= 1:
            place.renewed = now

    def left(self, place: Waiting | None, woken: set[uuid.UUID]) -> None:
        if place is not None:
            queue = self.queues[place.request.resource]
            queue.remove(place)
            if queue:
                assert place.request.waiter_id in woken, "those behind it learn that it left"

    @rule(resource=RESOURCES, holder=HOLDERS, mode=MODES, lease_ms=LEASES, queues=st.booleans())
    def ask(self, resource: str, holder: str, mode: LockMode, lease_ms: int, queues: bool) -> None:
        waiter_id = LockWaiterId(uuid.UUID(int=(self.example << 64) + next(self.numbers))) if queues else None
        resource, holder = f"{resource} {self.example}", self.label(holder)
        self.attempt(Request(resource, holder, mode, lease_ms, PLACE_MS, waiter_id))

    @precondition(lambda self: any(self.queues.values()) and any(self.held.values()))
    @rule(data=st.data(), lease_ms=LEASES, queues=st.booleans())
    def holder_asks(self, data: Any, lease_ms: int, queues: bool) -> None:
        """A holder asks for what it holds, mostly in the same mode, whoever waits."""
        contended = [each for each, queue in self.queues.items() if queue and self.held.get(each)]
        resource = data.draw(st.sampled_from(contended or [each for each, locks in self.held.items() if locks]))
        one = data.draw(st.sampled_from(self.held[resource]))
        mode = data.draw(st.sampled_from([one.mode, one.mode, *LockMode]))
        waiter_id = LockWaiterId(uuid.UUID(int=(self.example << 64) + next(self.numbers))) if queues else None
        self.attempt(Request(resource, one.holder, mode, lease_ms, PLACE_MS, waiter_id))

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def ask_again(self, data: Any) -> None:
        self.attempt(data.draw(st.sampled_from([each for queue in self.queues.values() for each in queue])).request)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        self.leave(data.draw(st.sampled_from([each for queue in self.queues.values() for each in queue])))

    def leave(self, place: Waiting) -> None:
        request, woken = place.request, set[uuid.UUID]()
        waiter_id = request.waiter_id
        assert waiter_id is not None
        self.store.write(
            lambda uow: lock_queue.leave(uow, request.resource, waiter_id, lambda _, ended: woken.add(ended))
        )
        self.queues[request.resource].remove(place)
        assert woken == ({waiter_id} if self.queues[request.resource] else set())

    # --- holding ---------------------------------------------------------------------------------

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), by=HOLDERS, lease_ms=LEASES, renews=st.booleans())
    def renew_or_release(self, data: Any, by: str, lease_ms: int, renews: bool) -> None:
        resource, one = data.draw(
            st.sampled_from([(resource, each) for resource, locks in self.held.items() for each in locks])
        )
        by = self.label(by)
        token, is_live = LockToken(resource, one.token), one in self.live(resource)
        woken: set[uuid.UUID] = set()

        def call() -> Any:
            if renews:
                return self.store.write(lambda uow: lock_queue.renew(uow, token, by, lease_ms))
            return self.store.write(lambda uow: lock_queue.release(uow, token, by, lambda _, ended: woken.add(ended)))

        if is_live and by != one.holder:
            with pytest.raises(PermissionDenied):
                call()
        elif renews and not is_live:
            with pytest.raises(LockExpired):
                call()
        elif renews:
            one.ends = self.clock.now_us() + lease_ms * MS
            assert to_us(call().expires_at) == one.ends
        else:
            assert call() == is_live
            if is_live:
                one.ends = 0
                assert bool(woken) == bool(self.queues.get(resource))

    @precondition(lambda self: any(self.tokens.values()))
    @rule(data=st.data(), age=st.integers(0, 3), by=st.none() | HOLDERS)
    def write_guarded(self, data: Any, age: int, by: str | None) -> None:
        resource = data.draw(st.sampled_from(sorted(self.tokens)))
        token = self.tokens[resource] - age
        if token < 1:
            return
        holder = next((each.holder for each in self.live(resource) if each.token == token), None)
        writer = Principal.application() if by is None else Principal.agent(f"{by} {self.example}")
        if holder is not None and by is not None and holder != writer.label:
            with pytest.raises(PermissionDenied):
                self.store.write(lambda uow: uow.guard(LockToken(resource, token), writer))
        elif holder is not None:
            self.store.write(lambda uow: uow.guard(LockToken(resource, token), writer))
        else:
            with pytest.raises(LockExpired):
                self.store.write(lambda uow: uow.guard(LockToken(resource, token), writer))

    # --- time ------------------------------------------------------------------------------------

    @rule(ms=JUMPS)
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule()
    def reap(self) -> None:
        lock_queue.reap(self.store.write)
        for each in self.machines:
            each.reaped(self.clock.now_us())
        rows = {each.lock_id for each in self.memory.storage.locks.all() if each.resource}
        assert len(rows) == sum(len(locks) for each in self.machines for locks in each.held.values())

    def reaped(self, now: int) -> None:
        for resource, locks in self.held.items():
            newest, lasts = max((each.token for each in locks), default=0), bool(self.live(resource))
            stay = [each for each in locks if each.ends > now or (lasts and each.token == newest)]
            self.floor[0] = max([self.floor[0], *(each.token for each in locks if each not in stay)])
            self.held[resource] = stay
        for resource, queue in self.queues.items():
            self.queues[resource] = [each for each in queue if each.renewed + PLACE_MS * MS > now]

    @invariant()
    def no_two_hold_what_one_may(self) -> None:
        for resource in self.held:
            for one, two in itertools.combinations(self.live(resource), 2):
                assert not collide(one.mode, two.mode)
                assert one.holder != two.holder


def test_locks_are_those_of_the_model(backend: Backend) -> None:
    at = FixedClock()

    class OnDatabase(LockMachine):
        clock = at
        memory = backend.open(clock=at, embedding_provider=None, retention__apply_every_ms=0)
        machines: list[LockMachine] = []  # noqa: RUF012  (of one run)
        floor = [0]  # noqa: RUF012

    run_state_machine_as_test(
        OnDatabase,
        settings=settings(
            max_examples=examples(25, 1_000), stateful_step_count=40, deadline=None, report_multiple_bugs=False
        ),
    )
