"""Contract tests of transactions: atomic rows, change records, callbacks; isolation, guards, kept content.

Source: design section 4, C-193.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

from caliber.events import event_log
from caliber.model.access import Principal
from caliber.model.agents import LockToken
from caliber.model.errors import LockExpired, PermissionDenied
from caliber.model.events import Event, EventFamily
from caliber.model.references import EntityType
from caliber.model.time import FixedClock, from_us
from caliber.schema.relations import CONTENT_VERSION, EVENT, LOCK, NOTE, RELATIONS, SCOPE, TRAJECTORY
from caliber.storage.compile.derived import unpack_content
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.changes import UPSERT, unpack_changes
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.entities import changed, plain, unlike_any
from contract.world import PATIENCE_S, Contract, Undo, count

APPLICATION = Principal.application()


class Recorder:
    """A follower that records its notifications."""

    def __init__(self) -> None:
        self.sequence = 0
        self.commits: list[tuple[int, list[tuple[str, int, Any]]]] = []

    def follow(self, session: StatementSession) -> None:
        """Apply nothing: no other process writes here, but a backend may poll."""

    def lost(self, error: BaseException) -> None:
        raise AssertionError("nothing can be lost") from error

    def missed(self, error: BaseException) -> None:
        raise AssertionError("nothing can be missed") from error

    def committed(self, sequence: int, changes: Any) -> None:
        self.sequence = sequence
        told = [(change.relation.name, change.operation, change.row[0]) for change in changes]
        self.commits.append((sequence, told))


def counts(store: Store) -> dict[str, int]:
    """Return how many rows every relation has."""
    return {relation.name: count(store, relation) for relation in RELATIONS}


def _event(family: EventFamily = EventFamily.TRACE) -> Event:
    event: Event = plain(EVENT, family=family)
    return event


def _note(**changes: Any) -> Any:
    return plain(NOTE, **{"fingerprint": b"\x33" * 32, **changes})


def test_failed_work_leaves_nothing_behind(contract: Contract) -> None:
    # C-193; nothing half-written, no change record, no notification
    store = contract.store()
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


def test_committed_work_is_told_after_the_commit_in_one_change_record(contract: Contract) -> None:
    store = contract.store()
    recorder = Recorder()
    store.follow(recorder)
    trajectory = plain(TRAJECTORY)
    seen: list[dict[str, int]] = []

    def work(uow: UnitOfWork) -> tuple[int | None, int | None]:
        first = uow.insert(TRAJECTORY, trajectory)
        second = uow.insert(SCOPE, plain(SCOPE, trajectory_id=trajectory.trajectory_id))
        uow.insert(EVENT, _event())
        assert recorder.commits == []
        uow.on_commit.append(lambda: seen.append(counts(store)))
        return first, second

    first, second = store.write(work)
    told = [("trajectory", UPSERT, first), ("scope", UPSERT, second)]
    assert [changes for _, changes in recorder.commits] == [told], "events are not mirrored"
    assert (seen[0]["trajectory"], seen[0]["event"]) == (1, 1)
    with store.read() as session:
        rows = session.run(store.statements["change.since"], (recorder.sequence - 1,))
        assert session.run(store.statements["change.bounds"], ()) == [(recorder.sequence, recorder.sequence)]
    assert [row[0] for row in rows] == [recorder.sequence]
    assert [entry[1:] for entry in unpack_changes(rows[0][2])] == [(UPSERT, first, 1), (UPSERT, second, 1)]


def test_work_that_changes_nothing_mirrored_leaves_no_change_record(contract: Contract) -> None:
    store = contract.store()
    store.write(lambda uow: uow.insert(EVENT, _event()))
    store.write(lambda uow: uow.find(NOTE, b"x" * 16))
    with store.read() as session:
        assert session.run(store.statements["change.bounds"], ()) == [(0, 0)]


def test_writer_sees_what_it_wrote_and_nobody_else_does(contract: Contract) -> None:
    contract.needs("snapshots")
    store = contract.store()

    def work(uow: UnitOfWork) -> None:
        note = plain(NOTE)
        uow.insert(NOTE, note)
        assert uow.get(NOTE, note.note_id.bytes) == note
        assert count(store, NOTE) == 0

    store.write(work)
    assert count(store, NOTE) == 1


def test_reader_sees_one_boundary_while_others_commit(contract: Contract) -> None:
    # C-468
    contract.needs("snapshots")
    store = contract.store()
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    plans = store.plans["trajectory"]
    with store.read() as session:
        assert session.run(plans.count, ()) == [(1,)]
        thread = threading.Thread(target=lambda: store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY))))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a reader must not keep a writer waiting"
        assert session.run(plans.count, ()) == [(1,)]
    assert count(store, TRAJECTORY) == 2


def test_kept_content_is_what_replay_needs(contract: Contract) -> None:
    """The transaction that changes or removes content keeps the old text; one that does not keeps nothing."""
    store = contract.store(clock=FixedClock(1_000))
    note = plain(NOTE, content="first")
    store.write(lambda uow: uow.insert(NOTE, note))

    def change(**changes: Any) -> Any:
        def work(uow: UnitOfWork) -> Any:
            return uow.update(NOTE, dataclasses.replace(uow.get(NOTE, note.note_id.bytes), **changes))

        return store.write(work)

    change(confidence=0.5)
    assert count(store, CONTENT_VERSION) == 0
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


def test_store_without_windows_keeps_no_content(contract: Contract) -> None:
    store = contract.store({"context_window_persistence": {"kind": "ephemeral"}})
    note = plain(NOTE)
    store.write(lambda uow: uow.insert(NOTE, note))
    store.write(lambda uow: uow.delete(NOTE, uow.get(NOTE, note.note_id.bytes)))
    assert count(store, CONTENT_VERSION) == 0


def test_guard_is_checked_in_the_very_transaction(contract: Contract) -> None:
    # C-364 to C-368: a lock that lapsed between the check and the write would be no guard
    store = contract.store(clock=FixedClock(1_000))
    lock = plain(LOCK, resource="r", token=4, holder="agent:a", expires_at=from_us(2_000))
    store.write(lambda uow: uow.insert(LOCK, lock))

    def guarded(token: LockToken | None, writer: Principal = APPLICATION) -> Callable[[UnitOfWork], None]:
        def work(uow: UnitOfWork) -> None:
            uow.insert(NOTE, changed(NOTE, plain(NOTE), **unlike_any(NOTE)))
            uow.guard(token, writer)

        return work

    writers = (APPLICATION, Principal.admin("a"), Principal.agent("a"))
    for writer in writers:
        store.write(guarded(LockToken("r", 4), writer))
    for token in (LockToken("r", 3), LockToken("other", 4)):
        with pytest.raises(LockExpired):
            store.write(guarded(token))
    for other in (Principal.agent("b"), Principal.user("a")):
        with pytest.raises(PermissionDenied, match="lock of another holder") as caught:
            store.write(guarded(LockToken("r", 4), other))
        assert "agent:a" not in f"{caught.value} {caught.value.context}", "the holder stays unknown"
        with pytest.raises(LockExpired):
            store.write(guarded(LockToken("r", 3), other))
    assert count(store, NOTE) == len(writers)
    store.write(guarded(None, Principal.agent("b")))
    assert count(store, NOTE) == len(writers) + 1


def test_lock_that_lapses_while_the_writer_waits_guards_no_more(contract: Contract) -> None:
    clock = FixedClock(1_000)
    store = contract.store(clock=clock)
    store.write(lambda uow: uow.insert(LOCK, plain(LOCK, resource="r", token=1, expires_at=from_us(5_000))))
    inside, go_on = threading.Event(), threading.Event()
    outcome: list[Any] = []

    def hold(uow: UnitOfWork) -> None:
        uow.serialize("r")
        inside.set()
        assert go_on.wait(PATIENCE_S)

    def guarded() -> None:
        try:
            store.write(lambda uow: uow.guard(LockToken("r", 1), APPLICATION))
            outcome.append("written")
        except LockExpired as error:
            outcome.append(error)

    first = threading.Thread(target=lambda: store.write(hold))
    first.start()
    assert inside.wait(PATIENCE_S)
    second = threading.Thread(target=guarded)
    second.start()
    clock.advance(us=10_000)
    go_on.set()
    for thread in (first, second):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert isinstance(outcome[0], LockExpired)


def test_audit_event_is_written_with_the_data(contract: Contract) -> None:
    store = contract.store()
    store.write(lambda uow: event_log.audit(uow, _event(EventFamily.AUDIT)))
    assert count(store, EVENT) == 1

    def failing(uow: UnitOfWork) -> None:
        event_log.audit(uow, _event(EventFamily.AUDIT))
        raise Undo

    with pytest.raises(Undo):
        store.write(failing)
    assert count(store, EVENT) == 1


def test_one_entity_can_be_changed_twice_in_one_transaction(contract: Contract) -> None:
    store = contract.store()
    note = plain(NOTE)

    def work(uow: UnitOfWork) -> Any:
        uow.insert(NOTE, note)
        once = uow.update(NOTE, dataclasses.replace(note, content="once"))
        return uow.update(NOTE, dataclasses.replace(once, content="twice"))

    assert store.write(work).version == 3
    assert store.write(lambda uow: uow.get(NOTE, note.note_id.bytes)).content == "twice"


def test_store_goes_on_after_every_kind_of_failure(contract: Contract) -> None:
    """A broken rule, an error of the caller's and an interrupt leave a writer that writes."""
    store = contract.store()
    store.write(lambda uow: uow.insert(NOTE, _note()))

    def fail(error: BaseException) -> Any:
        def work(uow: UnitOfWork) -> None:
            uow.insert(TRAJECTORY, plain(TRAJECTORY))
            raise error

        return work

    for work in (fail(ZeroDivisionError()), fail(KeyboardInterrupt()), lambda uow: uow.insert(NOTE, _note())):
        with pytest.raises(BaseException):  # noqa: B017, PT011  (each in turn, of any type)
            store.write(work)
    store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert (count(store, TRAJECTORY), count(store, NOTE)) == (1, 1)
