"""Contract tests of change records and the feed: other handles see whole commits, each once. Source: design 5."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from caliber.model.errors import Unavailable
from caliber.schema.relations import BY_CODE, EVENT, NOTE, TRAJECTORY
from caliber.storage.compile.codec import Row, dump_json
from caliber.storage.compile.session import StatementSession
from caliber.storage.protocol import Store
from caliber.storage.write.changes import DELETE, UPSERT, pack_changes, unpack_changes
from caliber.storage.write.unit_of_work import RowChange, UnitOfWork
from contract.entities import plain
from contract.world import Contract, Undo, all_rows, together


class Mirror:
    """A follower that mirrors the rows of notes and trajectories from its notifications."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rows: dict[tuple[str, int], Row] = {}
        self.reloads = 0
        with store.read() as session:
            self._load(session)
        store.follow(self)

    @property
    def sequence(self) -> int:
        return self._sequence

    def _load(self, session: StatementSession) -> None:
        self._sequence = self.store.feed.bound(session)
        found = {relation.name: all_rows(self.store, session, relation) for relation in (NOTE, TRAJECTORY)}
        self.rows = {(name, row[0]): row for name, rows in found.items() for row in rows}

    def follow(self, session: StatementSession) -> None:
        news = self.store.feed.since(session, self._sequence)
        if news is None:
            self.reloads += 1
            self._load(session)
            return
        for record in news.records:
            for code, _, ordinal, _ in unpack_changes(record):
                name = BY_CODE[code].name
                many = self.store.plans[name].get_many
                assert many is not None
                rows = session.run(many, (dump_json([ordinal]),))
                self.rows.pop((name, ordinal), None)
                self.rows.update({(name, row[0]): row for row in rows})
        self._sequence = max(self._sequence, news.sequence)

    def lost(self, error: BaseException) -> None:
        raise AssertionError("following failed") from error

    def missed(self, error: BaseException) -> None:
        raise AssertionError("a commit was not taken over") from error

    def committed(self, sequence: int, changes: Sequence[RowChange]) -> None:
        if self.store.feed.covers(sequence):
            return
        self._sequence = max(self._sequence, sequence)
        for change in changes:
            place = (change.relation.name, change.row[0])
            if change.operation == UPSERT:
                self.rows[place] = change.row
            else:
                self.rows.pop(place, None)

    def differences(self) -> list[Any]:
        """Return in which rows the mirror and the store differ."""
        with self.store.read() as session:
            found = {
                (relation.name, row[0]): row
                for relation in (NOTE, TRAJECTORY)
                for row in all_rows(self.store, session, relation)
            }
        return sorted(set(found.items()) ^ set(self.rows.items()))


def _pair(contract: Contract) -> tuple[Mirror, Mirror]:
    contract.needs("sharing")
    config = contract.config()
    contract.create(config)
    first, second = contract.open(config), contract.open(config)
    return Mirror(first), Mirror(second)


def test_changes_are_numbered_and_pruned_from_the_front(contract: Contract) -> None:
    store = contract.store()

    def ask(name: str, *parameters: Any) -> list[Row]:
        with store.read() as session:
            return session.run(store.statements[name], parameters)

    def insert(at: int) -> int:
        entries = pack_changes([(10, UPSERT, at, 1)])
        sequence: int = store.write(lambda uow: uow.select("change.insert", b"w" * 16, entries, at))[0][0]
        return sequence

    assert ask("change.bounds") == [(0, 0)]
    first, second, third, fourth = (insert(at) for at in (10, 20, 30, 40))
    assert 0 < first < second < third < fourth
    assert ask("change.bounds") == [(first, fourth)]
    rows = ask("change.since", second)
    assert [row[0] for row in rows] == [third, fourth]
    assert bytes(rows[0][1]) == b"w" * 16
    assert list(unpack_changes(rows[0][2])) == [(10, UPSERT, 30, 1)]
    assert store.write(lambda uow: uow.execute("change.prune", 25, 4)) == 0, "so many are kept whatever their age"
    assert store.write(lambda uow: uow.execute("change.prune", 25, 3)) == 1
    assert store.write(lambda uow: uow.execute("change.prune", 25, 0)) == 1, "what is young is kept however many"
    assert store.write(lambda uow: uow.execute("change.prune", 999, 0)) == 1, "the newest stays: it says where we are"
    assert ask("change.bounds") == [(fourth, fourth)]
    assert insert(50) > fourth


def test_rolled_back_change_leaves_no_gap(contract: Contract) -> None:
    """Readers tell from a gap that the feed no longer reaches back; a rollback must not look like one."""
    contract.needs("gapless")
    store = contract.store()

    def failing(uow: UnitOfWork) -> None:
        uow.insert(TRAJECTORY, plain(TRAJECTORY))
        uow.select("change.insert", b"w" * 16, b"", 1)
        raise Undo

    with pytest.raises(Undo):
        store.write(failing)
    for _ in range(2):
        store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    with store.read() as session:
        assert [row[0] for row in session.run(store.statements["change.since"], (0,))] == [1, 2]


def test_own_commits_are_told_in_order_and_are_no_news(contract: Contract) -> None:
    store = contract.store()
    mirror = Mirror(store)
    results = together(
        4, lambda _: [store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY))) for _ in range(5)]
    )
    assert not [result for result in results if isinstance(result, BaseException)], results
    assert len(mirror.rows) == 20
    store.catch_up()
    assert not store.changed_elsewhere()
    assert mirror.differences() == []
    assert mirror.reloads == 0


def test_what_another_handle_committed_is_news_once(contract: Contract) -> None:
    here, there = _pair(contract)
    notes = [plain(NOTE, fingerprint=at.to_bytes(32, "big")) for at in range(3)]
    there.store.write(lambda uow: [uow.insert(NOTE, note) for note in notes])
    assert here.store.changed_elsewhere()
    assert here.store.changed_elsewhere(), "until it is applied the answer stays yes"
    assert here.rows == {}
    here.store.catch_up()
    assert len(here.rows) == 3
    assert not here.store.changed_elsewhere()

    def change(uow: UnitOfWork) -> None:
        uow.update(NOTE, dataclasses.replace(uow.get(NOTE, notes[0].note_id.bytes), content="changed"))
        uow.delete(NOTE, uow.get(NOTE, notes[1].note_id.bytes))
        uow.insert(EVENT, plain(EVENT))

    there.store.write(change)
    here.store.catch_up()
    assert here.differences() == []
    assert there.differences() == []
    assert (here.reloads, there.reloads) == (0, 0)


def test_write_brings_the_news_of_others_first(contract: Contract) -> None:
    here, there = _pair(contract)
    there.store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    here.store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    assert len(here.rows) == 2
    assert here.differences() == []


def test_two_handles_that_write_at_once_end_up_equal(contract: Contract) -> None:
    here, there = _pair(contract)
    mirrors = (here, there)

    def work(at: int) -> None:
        for number in range(8):
            note = plain(NOTE, fingerprint=bytes([at, number]) * 16)

            def change(uow: UnitOfWork, note: Any = note, number: int = number) -> None:
                uow.insert(NOTE, note)
                uow.insert(TRAJECTORY, plain(TRAJECTORY))
                if number % 3 == 2:
                    uow.delete(NOTE, uow.get(NOTE, note.note_id.bytes))

            mirrors[at % 2].store.write(change)

    assert not [result for result in together(4, work) if isinstance(result, BaseException)]
    for mirror in mirrors:
        mirror.store.catch_up()
        assert mirror.differences() == []
        assert len([place for place in mirror.rows if place[0] == "trajectory"]) == 32


def test_feed_that_no_longer_reaches_back_says_so(contract: Contract) -> None:
    here, there = _pair(contract)
    for _ in range(4):
        there.store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    there.store.write(lambda uow: uow.execute("change.prune", 2**60, 0))
    here.store.catch_up()
    assert here.reloads == 1
    assert here.differences() == []
    there.store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))
    here.store.catch_up()
    assert here.reloads == 1
    assert here.differences() == []


def test_follower_of_a_closed_store_is_left_alone(contract: Contract) -> None:
    store = contract.store()
    Mirror(store)
    store.close()
    with pytest.raises(Unavailable):
        store.write(lambda uow: uow.insert(TRAJECTORY, plain(TRAJECTORY)))


def test_operations_are_recorded_as_what_they_are(contract: Contract) -> None:
    store = contract.store()
    trajectory = plain(TRAJECTORY)
    key = trajectory.trajectory_id.bytes
    ordinal = store.write(lambda uow: uow.insert(TRAJECTORY, trajectory))
    store.write(lambda uow: uow.update(TRAJECTORY, dataclasses.replace(uow.get(TRAJECTORY, key), goal="other")))
    store.write(lambda uow: uow.delete(TRAJECTORY, uow.get(TRAJECTORY, key)))
    with store.read() as session:
        rows = session.run(store.statements["change.since"], (0,))
    entries = [entry for row in rows for entry in unpack_changes(row[2])]
    code = TRAJECTORY.code
    assert entries == [(code, UPSERT, ordinal, 1), (code, UPSERT, ordinal, 2), (code, DELETE, ordinal, 2)]
