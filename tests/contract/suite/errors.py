"""Contract tests of errors (class, retryable, no values in messages), and of creating and reopening stores.

Source: design sections 10 and 11; C-058 to C-093.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.inspection import session_of

from caliber.model.errors import CaliberError, Conflict, NotFound, StorageError, Unavailable
from caliber.model.time import SystemClock
from caliber.schema.relations import NOTE, SCOPE, TRAJECTORY
from caliber.storage.protocol import Store
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import INT64_MAX, plain
from contract.world import Contract, World, count

SECRET = "s3cret-value"


def _note(**changes: Any) -> Any:
    return plain(NOTE, **{"fingerprint": b"\x44" * 32, **changes})


def _raw(column: str, value: Any) -> Callable[[Store], Callable[[UnitOfWork], Any]]:
    """Return work that inserts a note with a value that no entity would have."""

    def of(store: Store) -> Callable[[UnitOfWork], Any]:
        plans = store.plans["note"]
        row = list(plans.codec.encode(_note(fingerprint=b"\x45" * 32)))
        row[plans.codec.index(column)] = value
        return lambda uow: session_of(uow).run(plans.insert, tuple(row))

    return of


FAULTS: dict[str, tuple[type[CaliberError], Callable[[Store], Callable[[UnitOfWork], Any]]]] = {
    "equal key": (Conflict, lambda _: lambda uow: [uow.insert(TRAJECTORY, each) for each in [plain(TRAJECTORY)] * 2]),
    "rule of uniqueness": (Conflict, lambda _: lambda uow: [uow.insert(NOTE, _note()) for _ in range(2)]),
    "nothing there": (NotFound, lambda _: lambda uow: uow.get(NOTE, b"\x01" * 16)),
    "reference to nothing": (
        StorageError,
        lambda _: lambda uow: uow.insert(SCOPE, plain(SCOPE, trajectory_id=plain(TRAJECTORY).trajectory_id)),
    ),
    "out of range": (StorageError, lambda _: lambda uow: uow.insert(NOTE, _note(confidence=7.0))),
    "not a member": (StorageError, _raw("note_type", "nonsense")),
    "another type": (StorageError, _raw("content", b"\x00bytes")),
    "required": (StorageError, _raw("content", None)),
    "too short": (StorageError, _raw("content_hash", b"short")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_its_error_everywhere(fault: str, world: World) -> None:
    kind, work_of = FAULTS[fault]
    work = work_of(world.store)
    with pytest.raises(CaliberError) as caught:
        world.store.write(work)
    error = caught.value
    assert isinstance(error, kind), repr(error)
    assert isinstance(error, Conflict) == (kind is Conflict)
    assert not isinstance(error, Unavailable), "the store is there; the caller is wrong"
    assert not error.retryable or isinstance(error, Conflict)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.context) == (type(error), error.message, error.context)
    if kind is not NotFound:
        assert error.__cause__ is not None, "the driver's error stays as the cause"


def test_messages_name_ids_and_never_values(world: World) -> None:
    # design section 10: no row values, keys or DSNs in error messages
    note = _note(fingerprint=b"\x46" * 32, content=SECRET, entity=SECRET, idempotency_key=SECRET)
    world.store.write(lambda uow: uow.insert(NOTE, note))
    wrong: list[Callable[[UnitOfWork], Any]] = [
        lambda uow: uow.insert(NOTE, note),
        lambda uow: uow.insert(NOTE, _note(fingerprint=b"\x47" * 32, idempotency_key=SECRET)),
        lambda uow: uow.insert(NOTE, _note(fingerprint=b"\x48" * 32, confidence=7.0, content=SECRET)),
        lambda uow: uow.get(NOTE, SECRET.encode()),
        _raw("note_type", SECRET)(world.store),
        _raw("content_hash", SECRET.encode())(world.store),
    ]
    for work in wrong:
        with pytest.raises(CaliberError) as caught:
            world.store.write(work)
        error: BaseException | None = caught.value
        while error is not None:
            assert SECRET not in str(error)
            assert SECRET not in repr(getattr(error, "context", ""))
            error = error.__cause__


def test_closed_store_says_so(contract: Contract) -> None:
    store = contract.store()
    store.close()
    store.close()

    with pytest.raises(Unavailable, match="closed") as reading:
        count(store, NOTE)
    with pytest.raises(Unavailable, match="closed") as writing:
        store.write(lambda uow: uow.find(NOTE, b"x" * 16))
    assert not reading.value.retryable
    assert not writing.value.retryable


def test_store_outlives_its_handle(contract: Contract) -> None:
    contract.needs("reopen")
    config = contract.config()
    contract.create(config)
    store = contract.open(config)
    note = _note(content="kept \x00 \U0001f9e0", created_at=plain(NOTE).created_at)
    ordinal = store.write(lambda uow: uow.insert(NOTE, note))
    epoch = store.epoch
    store.close()
    again = contract.open(config)
    assert again.epoch == epoch
    assert again.write(lambda uow: uow.get(NOTE, note.note_id.bytes)) == note
    following = again.write(lambda uow: uow.insert(NOTE, _note(fingerprint=b"\x49" * 32)))
    assert ordinal is not None
    assert following is not None
    assert following > ordinal
    assert again.integrity() == []


def test_store_is_made_once_and_never_by_opening(contract: Contract) -> None:
    contract.needs("reopen")
    config = contract.config()
    with pytest.raises((Unavailable, StorageError)) as missing:
        contract.open(config)
    assert not missing.value.retryable
    assert "caliber create" in str(missing.value), "an error says what to do"
    contract.create(config)
    store = contract.open(config)
    store.write(lambda uow: uow.insert(NOTE, _note()))
    module, now = contract.target.module, SystemClock().now_us
    with pytest.raises(Conflict):
        module.create(config, exist_ok=False, clock_us=now)
    module.create(config, exist_ok=True, clock_us=now)
    assert module.migrate(config, clock_us=now) == [], "a new store has every schema version"
    assert count(store, NOTE) == 1


def test_two_stores_share_nothing(contract: Contract) -> None:
    # design section 3: a tenant is one store
    first, second = contract.store(), contract.store()
    assert first.epoch != second.epoch
    note = _note()
    first.write(lambda uow: uow.insert(NOTE, note))
    assert (count(first, NOTE), count(second, NOTE)) == (1, 0)
    second.write(lambda uow: uow.insert(NOTE, dataclasses.replace(note, content="another")))
    assert first.write(lambda uow: uow.get(NOTE, note.note_id.bytes)) == note
    first.close()
    assert count(second, NOTE) == 1


def test_numbers_beyond_the_columns_are_refused(world: World) -> None:
    for value in (INT64_MAX + 1, -INT64_MAX - 2, 10**30):
        with pytest.raises((CaliberError, OverflowError)):
            world.store.write(_raw("token_count", value)(world.store))
