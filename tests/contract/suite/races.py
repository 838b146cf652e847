"""Contract tests of concurrent writers: no lost update, one winner per race, isolated failures, deadlines.

Source: design section 4; C-469, K-044, K-082.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from caliber.model.access import Principal
from caliber.model.deadline import within
from caliber.model.errors import Conflict, InputError, Unavailable
from caliber.schema.relations import NOTE, SCOPE, TRAJECTORY
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import plain
from contract.world import PATIENCE_S, Contract, count, together

DURABILITIES = ("commit", "group")
WRITERS = 8
ROUNDS = 12


def _failures(results: list[Any]) -> list[BaseException]:
    return [result for result in results if isinstance(result, BaseException)]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_no_update_is_lost_between_threads(durability: str, contract: Contract) -> None:
    # C-469, K-082: read, add one, write
    store = contract.store({"storage.durability": durability})
    trajectory = plain(TRAJECTORY)
    key = trajectory.trajectory_id.bytes
    store.write(lambda uow: uow.insert(TRAJECTORY, trajectory))

    def work(uow: UnitOfWork) -> None:
        current = uow.get(TRAJECTORY, key)
        uow.update(TRAJECTORY, dataclasses.replace(current, turn_count=current.turn_count + 1))

    results = together(WRITERS, lambda _: [store.write(work) for _ in range(ROUNDS)])
    assert not _failures(results), results
    final = store.write(lambda uow: uow.get(TRAJECTORY, key))
    assert (final.turn_count, final.version) == (WRITERS * ROUNDS, WRITERS * ROUNDS + 1)


def test_no_update_is_lost_between_handles(contract: Contract) -> None:
    contract.needs("sharing")
    config = contract.config()
    contract.create(config)
    stores = [contract.open(config), contract.open(config)]
    trajectory = plain(TRAJECTORY)
    key = trajectory.trajectory_id.bytes
    stores[0].write(lambda uow: uow.insert(TRAJECTORY, trajectory))

    def work(uow: UnitOfWork) -> None:
        current = uow.get(TRAJECTORY, key)
        uow.update(TRAJECTORY, dataclasses.replace(current, turn_count=current.turn_count + 1))

    results = together(4, lambda at: [stores[at % 2].write(work) for _ in range(ROUNDS)])
    assert not _failures(results), results
    for store in stores:
        assert store.write(lambda uow: uow.get(TRAJECTORY, key)).turn_count == 4 * ROUNDS


@pytest.mark.parametrize("durability", DURABILITIES)
def test_one_of_many_equal_inserts_wins(durability: str, contract: Contract) -> None:
    # K-044: by key and by rule of uniqueness, asking for either outcome
    store = contract.store({"storage.durability": durability})
    same = plain(NOTE)

    def new(_: int) -> bool:
        return store.write(lambda uow: uow.insert_new(NOTE, same))

    def keyed(at: int) -> Any:
        note = plain(NOTE, fingerprint=at.to_bytes(32, "big"), idempotency_key="once")
        return store.write(lambda uow: uow.insert(NOTE, note))

    assert sorted(together(WRITERS, new)) == [False] * (WRITERS - 1) + [True]
    results = together(WRITERS, keyed)
    assert all(isinstance(error, Conflict) for error in _failures(results)), results
    assert len(_failures(results)) == WRITERS - 1
    assert count(store, NOTE) == 2


def test_whoever_serializes_counts_without_gaps(contract: Contract) -> None:
    """For rules over rows that do not exist yet: numbers read, then taken, by one at a time."""
    store = contract.store()
    trajectory = plain(TRAJECTORY)
    key = trajectory.trajectory_id
    store.write(lambda uow: uow.insert(TRAJECTORY, trajectory))

    def work(uow: UnitOfWork) -> int:
        uow.serialize("numbers")
        number: int = uow.select("scope.next_sequence", key.bytes)[0][0]
        uow.insert(SCOPE, plain(SCOPE, trajectory_id=key, sequence_number=number))
        return number

    results = together(WRITERS, lambda _: [store.write(work) for _ in range(3)])
    assert not _failures(results), results
    assert sorted(number for numbers in results for number in numbers) == list(range(3 * WRITERS))


def test_result_of_a_work_is_its_own(contract: Contract) -> None:
    store = contract.store({"storage.durability": "group"})
    results = together(2 * WRITERS, lambda at: store.write(lambda uow: (uow.insert(TRAJECTORY, plain(TRAJECTORY)), at)))
    assert not _failures(results), results
    assert [result[1] for result in results] == list(range(2 * WRITERS))
    assert len({result[0] for result in results}) == 2 * WRITERS


def test_failing_work_harms_nobody_beside_it(contract: Contract) -> None:
    store = contract.store({"storage.durability": "group"})
    taken = plain(NOTE)
    store.write(lambda uow: uow.insert(NOTE, taken))

    def member(at: int) -> Any:
        def work(uow: UnitOfWork) -> Any:
            ordinal = uow.insert(TRAJECTORY, plain(TRAJECTORY))
            if at % 3 == 1:
                uow.insert(NOTE, taken)
            if at % 3 == 2:
                raise ZeroDivisionError
            return ordinal

        return store.write(work)

    results = together(9, member)
    assert [type(result).__name__ for result in results] == ["int", "Conflict", "ZeroDivisionError"] * 3
    assert len({id(error.__traceback__) for error in _failures(results)}) == 6, "threads do not share an error"
    assert count(store, TRAJECTORY) == 3, "what a failing work wrote before it failed is gone"
    assert count(store, NOTE) == 1


def _held(store: Store) -> tuple[threading.Thread, threading.Event]:
    """Hold the name ``here`` in a transaction until released."""
    inside, go_on = threading.Event(), threading.Event()

    def work(uow: UnitOfWork) -> None:
        uow.serialize("here")
        inside.set()
        assert go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=lambda: store.write(work))
    thread.start()
    assert inside.wait(PATIENCE_S)
    return thread, go_on


@pytest.mark.parametrize("durability", DURABILITIES)
def test_deadline_passes_while_others_write(durability: str, contract: Contract) -> None:
    store = contract.store({"storage.durability": durability})

    def work(uow: UnitOfWork) -> None:
        uow.serialize("here")
        uow.insert(TRAJECTORY, plain(TRAJECTORY))

    thread, go_on = _held(store)
    try:
        with pytest.raises(Unavailable) as caught, within(0.05):
            store.write(work)
        assert caught.value.retryable
    finally:
        go_on.set()
        thread.join(PATIENCE_S)
    with within(60):
        store.write(work)
    assert count(store, TRAJECTORY) == 1, "what gave up was not written later"


def test_work_that_raises_before_it_writes_is_the_callers_own_error(contract: Contract) -> None:
    store = contract.store()

    def work(uow: UnitOfWork) -> None:
        uow.guard("no token", Principal.application())  # type: ignore[arg-type]

    with pytest.raises(InputError):
        store.write(work)
