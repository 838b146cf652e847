"""Contract tests of the irregular SQL statements: parameters, columns, and results on a fixed dataset."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from support.inspection import session_of

from caliber.model.knowledge import NOBODY, Usage
from caliber.model.references import EntityType
from caliber.model.time import from_us
from caliber.model.trust import TrustLabel
from caliber.schema.relation import Relation
from caliber.schema.relations import (
    CHECKPOINT,
    CONTEXT_WINDOW,
    EMBEDDING,
    EMBEDDING_CACHE,
    EVENT,
    LOCK,
    LOCK_WAITER,
    SCOPE,
    TRAJECTORY,
    TURN,
    USAGE,
)
from caliber.storage.compile.codec import Row, codec_of, dump_json
from caliber.storage.compile.plan import Plan
from caliber.storage.compile.statements import IRREGULAR
from caliber.storage.protocol import Store
from caliber.storage.write.changes import DELETE
from caliber.storage.write.unit_of_work import UnitOfWork
from contract.dataset import EMPTY, LAST, READS, S1, S2, SPACE, T1, argument, dataset, ids, resolved, uid
from contract.entities import plain
from contract.target import ContractTarget
from contract.world import Contract, all_rows, refusal, undone


class Filled(NamedTuple):
    """A store with the dataset, and the ordinals of its rows by the number of their id."""

    store: Store
    ordinals: dict[int, int]


@pytest.fixture(scope="module")
def contract_dataset(contract_target: ContractTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """The dataset, committed; tests that change it undo their changes."""
    made = Contract(contract_target, lambda: tmp_path_factory.mktemp("dataset"))
    store = made.store()
    rows = dataset()
    inserted = store.write(lambda uow: [uow.insert(relation, entity) for relation, entity in rows])
    ordinals = {
        getattr(entity, relation.key[0]).int: ordinal
        for (relation, entity), ordinal in zip(rows, inserted, strict=True)
        if ordinal is not None and len(relation.key) == 1
    }
    yield Filled(store, ordinals)
    made.close()


def left(store: Store, uow: UnitOfWork, relation: Relation) -> list[int]:
    """Return the numbers of the ids that a relation has inside a transaction."""
    return ids(relation, all_rows(store, session_of(uow), relation))


@pytest.mark.parametrize("name", sorted(IRREGULAR))
def test_statement_takes_its_parameters_and_gives_its_columns(name: str, contract_dataset: Filled) -> None:
    """Run with as many parameters as declared; one more or one less is refused; rows are as wide as declared."""
    store = contract_dataset.store
    plan = store.statements[name]
    arguments = tuple(argument(parameter) for parameter in plan.binds)

    def work(uow: UnitOfWork) -> None:
        rows = session_of(uow).run(plan, arguments)
        assert all(len(row) == len(plan.results) for row in rows)

    undone(store, work)
    wrong = [(*arguments, 1), arguments[:-1]] if arguments else [(1,)]
    for parameters in wrong:
        assert refusal(partial(store.write, partial(_run, plan, parameters))) is not None


def _run(plan: Plan, parameters: tuple[Any, ...], uow: UnitOfWork) -> list[Row]:
    return session_of(uow).run(plan, parameters)


@pytest.mark.parametrize(
    ("name", "parameters", "shown", "expected"), READS, ids=[f"{read[0]}-{at}" for at, read in enumerate(READS)]
)
def test_reading_statement_answers(
    name: str, parameters: tuple[Any, ...], shown: Callable[[list[Row]], Any], expected: Any, contract_dataset: Filled
) -> None:
    store = contract_dataset.store
    relation = name.partition(".")[0]
    plans = store.plans.get(relation)
    regular = () if plans is None else (plans.stale, plans.lapsed, plans.drawn_from, *plans.unique.values())
    plan = next((plan for plan in regular if plan is not None and plan.name == name), None) or store.statements[name]
    with store.read() as session:
        rows = session.run(plan, resolved(parameters, contract_dataset.ordinals))
    assert shown(rows) == expected


def test_append_statements_move_the_counters(contract_dataset: Filled) -> None:
    # K-094: figures are counted when turns are appended
    def work(uow: UnitOfWork) -> None:
        scope = codec_of(SCOPE).decode(uow.change(SCOPE, "append.scope", 10, 20, 777, 3, S1.bytes)[0])
        rows = uow.change(TRAJECTORY, "append.trajectory", 10, 20, 777, 3, S1.bytes)
        trajectory = codec_of(TRAJECTORY).decode(rows[0])
        assert (scope.next_sequence, scope.turn_count, scope.tokens_input, scope.tokens_output) == (5, 3, 10, 20)
        assert (scope.last_activity_at, scope.version) == (from_us(777), 2)
        assert (trajectory.turn_count, trajectory.tokens_input, trajectory.tokens_output) == (3, 10, 20)
        assert (trajectory.last_activity_at, trajectory.version) == (from_us(777), 2)
        assert uow.get(SCOPE, S1.bytes) == scope
        assert uow.change(SCOPE, "append.scope", 1, 1, 1, 1, S2.bytes) == [], "a closed scope"

    undone(contract_dataset.store, work)


@pytest.mark.parametrize("stored", TrustLabel)
@pytest.mark.parametrize("label", TrustLabel)
def test_a_scope_is_only_ever_trusted_less(stored: TrustLabel, label: TrustLabel, contract_dataset: Filled) -> None:
    # design section 10: concurrent writers never raise a label
    def work(uow: UnitOfWork) -> None:
        before = uow.update(SCOPE, dataclasses.replace(uow.get(SCOPE, S1.bytes), trust=stored))
        rows = uow.change(SCOPE, "scope.distrust", label.value, S1.bytes)
        after = uow.get(SCOPE, S1.bytes)
        if label.distrust > stored.distrust:
            assert after == dataclasses.replace(before, trust=label, version=before.version + 1)
            assert [codec_of(SCOPE).decode(row) for row in rows] == [after]
        else:
            assert after == before
            assert rows == []

    undone(contract_dataset.store, work)


def test_scopes_are_trusted_as_the_least_of_loaded_turns(contract_dataset: Filled) -> None:
    # design section 10; decision 0156: those beyond a mark count, and no label is raised
    def load(uow: UnitOfWork, number: int, trust: TrustLabel) -> int:
        owner = {"trajectory_id": T1, "scope_id": S1, "sequence": number, "turn_number": number}
        turn = plain(TURN, turn_id=uid(number), trust=trust, **owner)
        ordinal = uow.insert(TURN, turn, trust_handled=True)  # a load passes no unit of work
        assert ordinal is not None
        return ordinal

    def work(uow: UnitOfWork) -> None:
        before = uow.get(SCOPE, S1.bytes)
        assert before.trust is TrustLabel.SYSTEM
        load(uow, 101, TrustLabel.TOOL)
        mark = load(uow, 102, TrustLabel.WEB)
        assert uow.change(SCOPE, "scope.distrust_loaded", mark) == []
        load(uow, 103, TrustLabel.USER)
        rows = uow.change(SCOPE, "scope.distrust_loaded", mark)
        after = dataclasses.replace(before, trust=TrustLabel.USER, version=before.version + 1)
        assert [codec_of(SCOPE).decode(row) for row in rows] == [after]
        assert [row[0] for row in uow.change(SCOPE, "scope.distrust_loaded", mark - 1)] == [rows[0][0]]
        assert uow.get(SCOPE, S1.bytes).trust is TrustLabel.WEB
        assert uow.change(SCOPE, "scope.distrust_loaded", mark) == [], "no label is raised"

    undone(contract_dataset.store, work)


def test_a_block_of_turns_is_held_where_its_scope_is_open(contract_dataset: Filled) -> None:
    # decision 0192
    def work(uow: UnitOfWork) -> None:
        assert uow.select("turn_summary.hold_scope", T1.bytes, S1.bytes) == [(S1.bytes,)]
        assert uow.select("turn_summary.hold_scope", T1.bytes, S2.bytes) == [], "a closed scope"
        assert uow.select("turn_summary.hold_scope", uid(2).bytes, S1.bytes) == [], "of another task"
        held = uow.select_entities(TURN, "turn.hold_block", T1.bytes, S1.bytes, 0, 1)
        assert [turn.turn_id for turn in held] == [uid(21), uid(22)]
        assert uow.select("turn.hold_block", T1.bytes, S2.bytes, 0, 9) == []

    undone(contract_dataset.store, work)


def test_pruning_statements_remove_what_they_say(contract_dataset: Filled) -> None:
    store = contract_dataset.store

    def work(uow: UnitOfWork) -> None:
        run = uow.execute
        numbers = [row[0] for row in all_rows(store, session_of(uow), CHECKPOINT)]
        oldest, newest = min(numbers), max(numbers)
        assert run("checkpoint.prune", T1.bytes, 2, oldest) == 0, "only older ones go"
        assert run("checkpoint.prune", T1.bytes, 2, newest + 1) == 1
        assert left(store, uow, CHECKPOINT) == [82, 83, 84], "the first one, whatever the clock said"
        assert run("checkpoint.prune", T1.bytes, 0, newest + 1) == 2
        assert run("event.prune", 50) == 1
        assert left(store, uow, EVENT) == [72, 73], "audit stays"
        assert run("embedding_cache.prune", 50) == 1
        floor = plain(LOCK, lock_id=uid(54), resource="", token=2, expires_at=from_us(0))
        uow.insert(LOCK, floor)
        rows = uow.select_entities(LOCK, "lock.of_resource", "r")
        assert [row.token for row in rows] == [1, 2, 3], "with the floor"
        assert [tuple(row) for row in uow.select("lock.ended", 10, "", 9)] == [("q", True), ("r", True)]
        assert [row[0] for row in uow.select("lock.ended", 10, "q", 9)] == ["r"]
        assert [row[0] for row in uow.select("lock.ended", 10, "", 1)] == ["q"]
        assert uow.select("lock.ended", 9, "", 9) == []
        assert uow.select("lock.delete_ended", 10, '["r"]') == [(1,)]
        assert left(store, uow, LOCK) == [52, 53, 54]
        assert [row[0] for row in uow.select("lock.ended", 100, "", 9)] == ["q", "r"]
        assert uow.select("lock.delete_ended", 99, '["q", "r"]') == [(7,)], "the newest where no lock lasts"
        assert left(store, uow, LOCK) == [52, 54]
        assert run("lock_waiter.delete_ended", 10, '["q"]') == 0
        assert run("lock_waiter.delete_ended", 10, '["r"]') == 1
        assert left(store, uow, LOCK_WAITER) == [55, 57]
        assert run("content.prune", 0) == 0, "what was replaced a moment ago may still be asked for"
        assert run("content.prune", 2**62) == 1, "what was replaced before the oldest kept window"
        assert uow.select("content.at", "note", 1, 1) == [("v5",)]
        assert run("window.prune", 80, 30) == 1
        assert left(store, uow, CONTEXT_WINDOW) == [61]
        assert run("window.prune", 0, 31) == 1
        assert run("content.prune", 2**62) == 1, "no window is left to ask for it"

    undone(store, work)


def test_trace_of_a_trajectory_is_dropped_alone(contract_dataset: Filled) -> None:
    store = contract_dataset.store

    def work(uow: UnitOfWork) -> None:
        from caliber.model.events import EventFamily

        for number, family, trajectory in ((1, EventFamily.TRACE, T1), (2, EventFamily.AUDIT, T1)):
            uow.insert(EVENT, plain(EVENT, event_id=uid(700 + number), family=family, trajectory_id=trajectory))
        assert uow.execute("event.drop_trace", T1.bytes) == 1
        assert left(store, uow, EVENT) == [71, 72, 73, 702]

    undone(store, work)


def test_embedding_of_an_owner_is_dropped_and_returned(contract_dataset: Filled) -> None:
    def work(uow: UnitOfWork) -> None:
        assert uow.remove(EMBEDDING, "embedding.drop_owner", uid(41).bytes) == 1
        assert [(change.operation, change.relation.name) for change in uow.changes] == [(DELETE, "embedding")]
        assert uow.select("embedding.pending_note", SPACE.bytes, LAST, 9)[-1][1:] == (uid(41).bytes, "e", "n1")

    undone(contract_dataset.store, work)


def test_vectors_of_a_space_go_in_batches_and_strays_by_number(contract_dataset: Filled) -> None:
    def work(uow: UnitOfWork) -> None:
        # A note that is archived, an artifact that is retired, a scope that never was.
        for kind, owner in ((EntityType.NOTE, uid(43)), (EntityType.ARTIFACT, uid(32)), (EntityType.SCOPE, uid(19))):
            uow.insert(EMBEDDING, plain(EMBEDDING, space_id=SPACE, owner_type=kind, owner_id=owner, chunk_index=0))
        second = plain(EMBEDDING, space_id=SPACE, owner_type=EntityType.TURN, owner_id=uid(21), chunk_index=1)
        uow.insert(EMBEDDING, second)
        vectors = [("artifact", 1, 1), ("note", 2, 2), ("scope", 1, 1), ("turn", 2, 1)]
        assert uow.select("embedding.of_space", SPACE.bytes) == vectors
        assert uow.select("embedding.of_space", EMPTY.bytes) == []
        kinds = ("turn", "artifact", "note", "scope")
        strays = {kind: uow.select(f"embedding.strays_{kind}", -1, 9) for kind in kinds}
        gone = {kind: [bool(row[1]) for row in rows] for kind, rows in strays.items()}
        assert gone == {"turn": [], "artifact": [False], "note": [False], "scope": [True]}
        assert uow.select("embedding.strays_note", strays["note"][0][0], 9) == []
        before = len(uow.changes)
        ordinals = dump_json([rows[0][0] for rows in strays.values() if rows])
        assert uow.remove(EMBEDDING, "embedding.drop_many", ordinals) == 3
        assert [change.operation for change in uow.changes[before:]] == [DELETE] * 3
        assert [uow.execute("embedding.drop_some", SPACE.bytes, 2) for _ in range(3)] == [2, 1, 0]

    undone(contract_dataset.store, work)


def test_cached_vectors_of_a_model_go_in_batches(contract_dataset: Filled) -> None:
    model = plain(EMBEDDING_CACHE).model_id

    def work(uow: UnitOfWork) -> None:
        def drop(dimensions: int) -> int:
            return uow.execute("embedding_cache.drop_some", model, dimensions, 1)

        assert [drop(8), drop(4), drop(4), drop(4)] == [0, 1, 1, 0]

    undone(contract_dataset.store, work)


def test_usage_is_counted_and_its_newest_instant_kept(contract_dataset: Filled) -> None:
    def work(uow: UnitOfWork) -> None:
        def bump(owner: uuid.UUID, count: int, now: int, by: uuid.UUID = NOBODY) -> Any:
            use = Usage(EntityType.NOTE, owner, count, from_us(now), by)
            keys = use.usage_id.bytes, "note", owner.bytes, by.bytes
            return codec_of(USAGE).decode(uow.change(USAGE, "usage.bump", *keys, count, now)[0])

        known = bump(uid(41), 3, 40)
        assert (known.access_count, known.last_accessed_at, known.version) == (8, from_us(50), 2)
        new = bump(uid(42), 2, 60)
        assert (new.access_count, new.last_accessed_at, new.version) == (2, from_us(60), 1)
        other = bump(uid(41), 1, 70, uid(7))  # of another reader
        assert (other.access_count, other.owner_id, other.used_by) == (1, uid(41), uid(7))

    undone(contract_dataset.store, work)


def test_what_the_tests_undid_is_as_it_was(contract_dataset: Filled) -> None:
    store = contract_dataset.store
    expected: dict[str, int] = {}
    for relation, _ in dataset():
        expected[relation.name] = expected.get(relation.name, 0) + 1
    with store.read() as session:
        found = {name: session.run(store.plans[name].count, ())[0][0] for name in expected}
    assert found == expected
