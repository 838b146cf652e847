"""One transaction: all or nothing, for rows, changes, mirrors and events alike. Source: design section 4, C-193."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest
from support.entities import plain

from caliber.model.entities import Event, LockToken
from caliber.model.enums import EntityType, EventFamily
from caliber.model.errors import Conflict, LockExpired, NotFound
from caliber.model.time import FixedClock, from_us
from caliber.schema.relations import CONTENT_VERSION, EVENT, LOCK, NOTE, SCOPE, TRAJECTORY, TURN
from caliber.storage.changes import DELETE, UPSERT, pack_changes, unpack_changes
from caliber.storage.protocol import Store
from caliber.storage.unit_of_work import UnitOfWork, pack_content, unpack_content


class Undo(Exception):
    pass


class Recorder:
    """A follower that writes down what it is told."""

    def __init__(self) -> None:
        self.sequence = 0
        self.commits: list[tuple[int, list[tuple[str, int]]]] = []

    def follow(self, session: Any) -> None:
        raise AssertionError("nobody else wrote")

    def lost(self, error: BaseException) -> None:
        raise AssertionError("nothing can be lost") from error

    def committed(self, sequence: int, changes: Any) -> None:
        self.sequence = sequence
        self.commits.append((sequence, [(change.relation.name, change.operation) for change in changes]))


@pytest.fixture
def store(backend: Any) -> Store:
    return backend.store(clock=FixedClock(1_000))


def counts(store: Store) -> dict[str, int]:
    with store.read() as session:
        return {name: session.run(plans.count, ())[0][0] for name, plans in store.plans.items()}


def test_failed_work_leaves_nothing_behind(store: Store) -> None:
    # C-193; nothing half-written, no change record, nobody told
    recorder = Recorder()
    store.follow(recorder)
    before = counts(store)
    fired = []

    def work(uow: UnitOfWork) -> None:
        trajectory = plain(TRAJECTORY)
        uow.insert(TRAJECTORY, trajectory)
        uow.insert(SCOPE, plain(SCOPE, trajectory_id=trajectory.trajectory_id))
        uow.upsert(NOTE, plain(NOTE))
        uow.on_commit.append(lambda: fired.append("after"))
        uow.emit(_event())
        raise Undo

    with pytest.raises(Undo):
        store.write(work)
    assert counts(store) == before
    assert recorder.commits == []
    assert fired == []


def test_committed_work_is_told_after_the_commit_in_one_change_record(store: Store) -> None:
    recorder = Recorder()
    store.follow(recorder)
    trajectory = plain(TRAJECTORY)
    seen: list[dict[str, int]] = []

    def work(uow: UnitOfWork) -> str:
        uow.insert(TRAJECTORY, trajectory)
        uow.insert(SCOPE, plain(SCOPE, trajectory_id=trajectory.trajectory_id))
        uow.insert(EVENT, _event())
        assert recorder.commits == []
        uow.on_commit.append(lambda: seen.append(counts(store)))
        return "result"

    assert store.write(work) == "result"
    assert recorder.commits == [(1, [("trajectory", UPSERT), ("scope", UPSERT)])], "events are not mirrored"
    assert seen[0]["trajectory"] == 1
    assert seen[0]["event"] == 1
    with store.read() as session:
        rows = session.run(store.statements["change.since"], (0,))
    assert [row[0] for row in rows] == [1]
    assert [entry[1:] for entry in unpack_changes(rows[0][2])] == [(UPSERT, 1, 1), (UPSERT, 1, 1)]


def test_work_that_changes_nothing_mirrored_leaves_no_change_record(store: Store) -> None:
    store.write(lambda uow: uow.insert(EVENT, _event()))
    store.write(lambda uow: uow.find(NOTE, b"x" * 16))
    with store.read() as session:
        assert session.run(store.statements["change.bounds"], ()) == [(0, 0)]


def test_reader_sees_one_boundary_while_others_commit(backend: Any, store: Store) -> None:
    # C-468
    backend.needs("snapshots")
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    plans = store.plans["trajectory"]
    with store.read() as session:
        assert session.run(plans.count, ()) == [(1,)]
        thread = threading.Thread(target=lambda: store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY))))
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "a reader must not keep a writer waiting"
        assert session.run(plans.count, ()) == [(1,)]
    assert counts(store)["trajectory"] == 2


def test_kept_content_is_what_replay_needs(store: Store) -> None:
    """The transaction that changes or removes content keeps the old text; one that does not keeps nothing."""
    note = plain(NOTE, content="first")
    store.write(lambda uow: uow.insert(NOTE, note))

    def change(**changes: Any) -> Any:
        def work(uow: UnitOfWork) -> Any:
            return uow.update(NOTE, dataclasses.replace(uow.get(NOTE, note.note_id.bytes), **changes))

        return store.write(work)

    change(confidence=0.5)
    assert counts(store)["content_version"] == 0
    change(content="second")
    change(content="third \x00 \U0001f9e0")
    store.write(lambda uow: uow.delete(NOTE, uow.get(NOTE, note.note_id.bytes)))
    with store.read() as session:
        plans = store.plans[CONTENT_VERSION.name]
        rows = session.run(plans.lists["list_by_owner"], (note.note_id.bytes,))
    kept = [plans.codec.decode(row) for row in rows]
    assert [(item.owner_version, unpack_content(item.body)["content"]) for item in kept] == [
        (2, "first"),
        (3, "second"),
        (4, "third \x00 \U0001f9e0"),
    ]
    assert all(item.owner_type is EntityType.NOTE and item.replaced_at == from_us(1_000) for item in kept)


def test_content_is_packed_whatever_its_bytes(store: Store) -> None:
    trajectory = plain(TRAJECTORY)
    scope = plain(SCOPE, trajectory_id=trajectory.trajectory_id)
    turn = plain(TURN, trajectory_id=trajectory.trajectory_id, scope_id=scope.scope_id, content=bytes(range(256)))
    row = store.plans["turn"].codec.encode(turn, 7)
    body = unpack_content(pack_content(TURN, row))
    assert body["content"] == bytes(range(256))
    assert body["role"] == turn.role


def test_store_without_windows_keeps_no_content(backend: Any) -> None:
    store: Store = backend.store(context_window_persistence={"kind": "ephemeral"})
    note = plain(NOTE)
    store.write(lambda uow: uow.insert(NOTE, note))
    store.write(lambda uow: uow.delete(NOTE, uow.get(NOTE, note.note_id.bytes)))
    assert counts(store)["content_version"] == 0


def test_guard_is_checked_in_the_very_transaction(store: Store) -> None:
    # C-364 to C-368: a lock that lapsed between the check and the write would be no guard
    lock = plain(LOCK, resource="r", token=4, expires_at=from_us(2_000))
    store.write(lambda uow: uow.insert(LOCK, lock))
    store.write(lambda uow: (uow.guard(LockToken("r", 4)), uow.insert(NOTE, plain(NOTE))))
    for token in (LockToken("r", 3), LockToken("other", 4)):
        with pytest.raises(LockExpired):
            store.write(lambda uow, token=token: (uow.insert(NOTE, _other_note()), uow.guard(token)))
    assert counts(store)["note"] == 1
    store.write(lambda uow: uow.guard(None))


def test_lock_that_lapses_while_the_writer_waits_guards_no_more(backend: Any) -> None:
    clock = FixedClock(1_000)
    store: Store = backend.store(clock=clock)
    store.write(lambda uow: uow.insert(LOCK, plain(LOCK, resource="r", token=1, expires_at=from_us(5_000))))
    inside, go_on = threading.Event(), threading.Event()
    outcome: list[Any] = []

    def hold(uow: UnitOfWork) -> None:
        inside.set()
        go_on.wait(10)

    def guarded() -> None:
        try:
            store.write(lambda uow: uow.guard(LockToken("r", 1)))
            outcome.append("written")
        except LockExpired as error:
            outcome.append(error)

    first = threading.Thread(target=lambda: store.write(hold))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=guarded)
    second.start()
    clock.advance(us=10_000)
    go_on.set()
    first.join(10)
    second.join(10)
    assert isinstance(outcome[0], LockExpired)


def test_audit_event_is_written_with_the_data(store: Store) -> None:
    store.write(lambda uow: uow.audit(_event(EventFamily.AUDIT)))
    assert counts(store)["event"] == 1
    with pytest.raises(Undo):
        store.write(lambda uow: (uow.audit(_event(EventFamily.AUDIT)), _raise()))
    assert counts(store)["event"] == 1


def test_one_entity_can_be_changed_twice_in_one_transaction(store: Store) -> None:
    note = plain(NOTE)

    def work(uow: UnitOfWork) -> Any:
        uow.insert(NOTE, note)
        once = uow.update(NOTE, dataclasses.replace(note, content="once"))
        return uow.update(NOTE, dataclasses.replace(once, content="twice"))

    assert store.write(work).version == 3
    assert store.write(lambda uow: uow.get(NOTE, note.note_id.bytes)).content == "twice"


def test_messages_name_ids_and_never_values(store: Store) -> None:
    # design section 10: no row values, keys or DSNs in error messages
    secret = "s3cret-value"
    note = plain(NOTE, content=secret, entity=secret, idempotency_key=secret)
    store.write(lambda uow: uow.insert(NOTE, note))
    errors: list[BaseException] = []
    for work in (
        lambda uow: uow.insert(NOTE, note),
        lambda uow: uow.insert(NOTE, dataclasses.replace(_other_note(), idempotency_key=secret)),
        lambda uow: uow.insert(NOTE, dataclasses.replace(_other_note(), confidence=7.0, content=secret)),
        lambda uow: uow.get(NOTE, secret.encode()),
    ):
        with pytest.raises((Conflict, NotFound, Exception)) as caught:
            store.write(work)
        errors.append(caught.value)
    for error in errors:
        assert secret not in str(error)
        assert secret not in repr(getattr(error, "context", ""))
    assert errors[0].__cause__ is not None, "the driver's error stays as the cause"


def test_change_records_pack_runs_and_refuse_damage() -> None:
    entries = [(10, UPSERT, 1, 1), (10, UPSERT, 2**40, 3), (10, DELETE, 5, 2), (4, UPSERT, 1, 1)]
    packed = pack_changes(entries)
    assert list(unpack_changes(packed)) == entries
    assert list(unpack_changes(b"")) == []
    assert len(packed) == 3 * 6 + 4 * 12
    for broken in (packed[:-1], packed[:3], b"\xff" + packed[1:3], packed[:1] + b"\x09" + packed[2:]):
        with pytest.raises(Exception, match="damaged"):
            list(unpack_changes(broken))


def _other_note() -> Any:
    return plain(NOTE, fingerprint=b"\x33" * 32)


def _event(family: EventFamily = EventFamily.TRACE) -> Event:
    event: Event = plain(EVENT, family=family)
    return event


def _raise() -> None:
    raise Undo
