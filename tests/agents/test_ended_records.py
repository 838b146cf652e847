"""Retention of delegations and handoffs that ended: old ones go in pages, open and young ones stay; on each database.

Costs of locks and messages in statements and round trips, and what a cheap transaction must still notice.

Source: K-046; docs/agents.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
from support.agents.teams import NOTE, Team
from support.databases import Backend, note
from support.drawn import needs
from support.inspection import inspect

import caliber
from caliber.admin import maintenance
from caliber.agents.mail import delivery
from caliber.backends.postgres.connecting.connection import PgConnection
from caliber.model import EntityRef, LockToken, Principal, states
from caliber.model.agents import AgentMessage, MessagePriority
from caliber.model.errors import NotFound
from caliber.model.time import from_us
from caliber.schema.relation import Relation
from caliber.schema.relations import AGENT, BY_NAME, DELEGATION, HANDOFF, RELATIONS
from caliber.storage.write.unit_of_work import UnitOfWork

pytestmark = pytest.mark.databases("all")
DAY_MS = 86_400_000
KEPT: dict[str, Any] = {"retention__windows_ms": "30d", "retention__apply_every_ms": 0, "delegation_timeout": "400d"}


@pytest.fixture
def team(backend: Backend) -> Team:
    return Team(backend, **KEPT)


def maintain(team: Team) -> dict[str, int]:
    """Apply retention; return the number of delegations and of handoffs that went."""
    removed = team.memory.acting_as(Principal.admin()).admin.maintain()
    assert team.memory.acting_as(Principal.admin()).admin.verify() == []
    return {each: removed[each] for each in ("delegations", "handoffs") if each in removed}


def offer(team: Team, giver: caliber.Caliber, to: str) -> Any:
    return giver.agents.handoffs.initiate(team.task, to=to, reason="shift ends", notes="half done")


def delegations(team: Team) -> set[Any]:
    return {each.delegation_id for each in team.memory.agents.delegations.list()}


def handoffs(team: Team) -> set[Any]:
    return {each.handoff_id for each in team.memory.agents.handoffs.list()}


def test_old_ended_records_go_and_open_or_young_ones_stay(team: Team) -> None:
    rejected, failed, completed, cancelled = team.delegate(), team.begun(), team.begun(), team.delegate()
    accepted, pending, working = team.delegate(), team.delegate(), team.begun()
    team.ada.agents.delegations.accept(accepted.delegation_id)
    team.ada.agents.delegations.reject(rejected.delegation_id, reason="no time")
    team.ada.agents.delegations.fail(failed.delegation_id, reason="no tools")
    team.ada.agents.delegations.complete(completed.delegation_id, summary="12 tests")
    team.planner.agents.delegations.cancel(cancelled.delegation_id, reason="no need")
    declined = offer(team, team.planner, "ada")
    team.ada.agents.handoffs.reject(declined.handoff_id, reason="no time")
    passed = offer(team, team.planner, "bob")
    team.bob.agents.handoffs.accept(passed.handoff_id)
    team.bob.agents.handoffs.complete(passed.handoff_id)
    waiting = offer(team, team.bob, "rev")
    team.clock.advance(ms=DAY_MS)
    young = team.bob.agents.delegations.delegate("later", parent=team.task, to="ada")
    team.ada.agents.delegations.reject(young.delegation_id, reason="no time")
    open_ = {accepted.delegation_id, pending.delegation_id, working.delegation_id}

    team.clock.advance(ms=29 * DAY_MS)
    assert maintain(team) == {"delegations": 0, "handoffs": 0}, "at the very limit"
    team.clock.advance(ms=1)
    assert maintain(team) == {"delegations": 4, "handoffs": 2}
    assert delegations(team) == open_ | {young.delegation_id}
    assert handoffs(team) == {waiting.handoff_id}
    with pytest.raises(NotFound):
        team.planner.agents.delegations.get(completed.delegation_id)
    assert maintain(team) == {"delegations": 0, "handoffs": 0}
    rows = {each.name: each.rows for each in team.memory.acting_as(Principal.admin()).admin.status().relations}
    assert (rows["delegation"], rows["handoff"]) == (4, 1)

    team.clock.advance(ms=300 * DAY_MS)
    assert maintain(team) == {"delegations": 1, "handoffs": 0}
    assert delegations(team) == open_, "a record that is open has no age"
    team.rev.agents.handoffs.accept(waiting.handoff_id)
    team.ada.agents.delegations.complete(working.delegation_id, summary="late, but done")
    assert maintain(team) == {"delegations": 0, "handoffs": 0}, "the time begins with the end"


def test_forever_keeps_them(backend: Backend) -> None:
    team = Team(backend, **KEPT | {"retention__windows_ms": "forever"})
    given = team.delegate()
    team.ada.agents.delegations.reject(given.delegation_id, reason="no time")
    declined = offer(team, team.planner, "ada")
    team.ada.agents.handoffs.reject(declined.handoff_id, reason="no time")
    team.clock.advance(ms=4_000 * DAY_MS)
    assert maintain(team) == {}
    assert delegations(team) == {given.delegation_id}
    assert handoffs(team) == {declined.handoff_id}


@pytest.mark.parametrize("ended", [3, 4, 5])
def test_they_go_a_page_a_transaction(team: Team, monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    monkeypatch.setattr(maintenance, "PAGE", 2)
    for _ in range(ended):
        given = team.delegate()
        team.ada.agents.delegations.reject(given.delegation_id, reason="no time")
        declined = offer(team, team.planner, "ada")
        team.ada.agents.handoffs.reject(declined.handoff_id, reason="no time")
    kept = team.delegate()
    team.clock.advance(ms=31 * DAY_MS)
    assert maintain(team) == {"delegations": ended, "handoffs": ended}
    assert delegations(team) == {kept.delegation_id}


def test_agents_see_as_much_as_before(team: Team) -> None:
    begun = team.begun(artifacts=[team.artifact], notes=[team.note.note_id])
    going_on = team.begun(artifacts=[team.artifact], notes=[team.note.note_id])
    below = begun.child_trajectory_id
    scope = team.ada.current_scope(below)
    made = team.ada.create_artifact(
        scope.scope_id, artifact_type="code_patch", content="tests", extraction_method="explicit"
    )
    found = team.ada.add_note(content="The tests are slow.", visible_to=["agent:ada"], **NOTE)
    team.ada.agents.delegations.complete(
        begun.delegation_id, summary="12 tests", artifacts=[made.artifact_id], notes=[found.note_id]
    )

    def seen() -> dict[str, Any]:
        grants = team.memory.storage.access_grants.all()
        return {
            "ada": team.sees(team.ada),
            "planner": team.sees(team.planner),
            "produced": (team.planner.get(made.artifact_id), team.planner.get(found.note_id)),
            "task": [handle.get(below) for handle in (team.planner, team.ada, team.ana)],
            "grants": sorted(grants, key=lambda each: each.grant_id),
            "story": [each for each in team.planner.trace(team.task) if "retrieve" not in each.event_type],
        }

    before = seen()
    assert before["ada"] == {"artifact", "note"}, "of the delegation that goes on"
    team.clock.advance(ms=31 * DAY_MS)
    assert maintain(team) == {"delegations": 1, "handoffs": 0}
    assert seen() == before
    team.ada.agents.delegations.fail(going_on.delegation_id, reason="no time")
    assert team.sees(team.ada) == set()
    assert team.sees(team.planner) == {"artifact", "note"}


def test_a_task_that_goes_on_alone_sees_as_much_as_before(backend: Backend) -> None:
    team = Team(backend, trajectory__children_on_complete="detach", **KEPT)
    begun = team.begun(artifacts=[team.artifact])
    team.planner.complete_trajectory(team.task, status="success", summary="done")
    assert team.memory.agents.delegations.get(begun.delegation_id).status == "failed"

    def seen() -> Any:
        return team.sees(team.ada), team.ada.get(begun.child_trajectory_id), team.planner.get(begun.child_trajectory_id)

    before = seen()
    team.clock.advance(ms=31 * DAY_MS)
    assert maintain(team) == {"delegations": 1, "handoffs": 0}
    assert seen() == before
    team.ada.complete_trajectory(begun.child_trajectory_id, status="success", summary="done alone")
    assert team.ada.get(begun.child_trajectory_id).status == "completed"


def test_the_job_of_a_delegation_that_went_does_nothing(backend: Backend) -> None:
    team = Team(backend, **KEPT | {"delegation_timeout": "60d"})
    given = team.delegate()
    team.ada.agents.delegations.reject(given.delegation_id, reason="no time")
    team.clock.advance(ms=31 * DAY_MS)
    assert maintain(team)["delegations"] == 1
    team.clock.advance(ms=60 * DAY_MS)
    team.memory.jobs.run_due()
    assert team.memory.jobs.list(state="failed") == []
    assert delegations(team) == set()


def test_a_record_in_an_open_state_stays_whatever_its_times_are(team: Team) -> None:
    given = team.delegate()
    stored = dataclasses.replace(given, completed_at=from_us(0))
    inspect(team.memory).store.write(
        lambda uow: uow.find(DELEGATION, given.delegation_id.bytes) and uow.update(DELEGATION, stored)
    )
    team.clock.advance(ms=400 * DAY_MS)
    assert maintain(team)["delegations"] == 0
    assert delegations(team) == {given.delegation_id}


TERMINAL: dict[str, tuple[states.StateMachine[Any], type[StrEnum]]] = {
    "delegation": (states.DELEGATION, DELEGATION.column("status").enum),  # type: ignore[dict-item]
    "handoff": (states.HANDOFF, HANDOFF.column("status").enum),  # type: ignore[dict-item]
}


def finished() -> list[Relation]:
    return [relation for relation in RELATIONS if relation.finished is not None]


@pytest.mark.parametrize("relation", finished(), ids=lambda each: each.name)
def test_the_declaration_agrees_with_the_states(relation: Relation) -> None:
    machine, members = TERMINAL[relation.name]
    trait = relation.finished
    assert set(trait.open) == {each for each in members if not machine.is_terminal(each)}
    assert relation.column(trait.since).nullable
    assert len(relation.key) == 1
    assert not relation.mirrored, "its rows are deleted without a change record"
    referring = [
        each.name for each in BY_NAME.values() if any(key.relation == relation.name for key in each.foreign_keys)
    ]
    assert referring == []


@pytest.mark.parametrize("relation", finished(), ids=lambda each: each.name)
def test_an_index_finds_the_records(backend: Backend, team: Team, relation: Relation) -> None:
    store = inspect(team.memory).store
    plan = store.statements[f"{relation.name}.prune"]
    with store.read() as session:
        if backend.adapter == "sqlite":
            explained = dataclasses.replace(plan, name=f"explain {plan.name}", sql=f"EXPLAIN QUERY PLAN {plan.sql}")
            lines = [str(row[-1]) for row in session.run(explained, (0, 10))]
            assert not any(line.startswith("SCAN") for line in lines), lines
        else:
            session.command("SET LOCAL enable_seqscan = off")  # the table is small
            session.command(f'PREPARE "asked" AS {plan.sql}')
            lines = [str(row[0]) for row in session.command("EXPLAIN (COSTS OFF) EXECUTE \"asked\"('2020-01-01', 10)")]
            session.command('DEALLOCATE "asked"')
            assert not any("Seq Scan" in line for line in lines), lines
    assert any(f"ix_{relation.name}_list_ended" in line for line in lines), lines


KNOBS: dict[str, Any] = {"embedding_provider": None, "policies": [], "jobs__poll_ms": 0, "resident__feed_poll_ms": 0}
STATEMENTS = {"sqlite": 14, "postgres": 8}
"""Of an acquisition and a release: on SQLite with BEGIN, COMMIT and a look for records of others."""
ROUND_TRIPS = 6


def pair(memory: caliber.Caliber) -> None:
    locks = memory.agents.locks
    lock = locks.acquire("file", holder="agent:a")
    assert locks.release(LockToken("file", lock.token), holder="agent:a")


def statements_of(memory: caliber.Caliber, call: Callable[[], Any]) -> int:
    before = inspect(memory).store.statement_count()
    call()
    return inspect(memory).store.statement_count() - before


def test_a_free_lock_takes_few_statements_and_round_trips(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = backend.open(**KNOBS)
    store: Any = inspect(memory).store
    pair(memory)
    pair(memory)
    trips: list[int] = []
    exchange = PgConnection.exchange

    def counting(connection: PgConnection, *commands: Any) -> Any:
        trips.append(1)
        return exchange(connection, *commands)

    monkeypatch.setattr(PgConnection, "exchange", counting)
    assert statements_of(memory, lambda: pair(memory)) <= STATEMENTS[store.adapter]
    assert len(trips) <= ROUND_TRIPS


@needs("sharing")
def test_a_transaction_that_records_no_change_still_reads_those_of_others(backend: Backend) -> None:
    memory, other = backend.open(**KNOBS), backend.open(**KNOBS)
    pair(memory)
    note(other, "of another process")
    pair(memory)
    assert [each.content for each in memory.storage.notes.all()] == ["of another process"]
    assert inspect(memory).engine.memory.sequence == inspect(other).engine.memory.sequence


def test_a_batch_of_messages_takes_few_statements(backend: Backend) -> None:
    memory = backend.open(**KNOBS)
    for name in ("ann", "bob"):
        memory.agents.register(name, type="worker")
    send = memory.acting_as(Principal.agent("ann")).agents.messages.send
    messages = memory.acting_as(Principal.agent("bob")).agents.messages
    for number in range(13):
        send(number, to_type="worker")
    assert messages.ack(messages.claim()) == 1
    found: list[Any] = []
    around = 6 if inspect(memory).store.adapter == "sqlite" else 0  # of both transactions
    assert statements_of(memory, lambda: found.extend(messages.claim(10))) <= 3 + around
    assert [each.payload for each in found] == list(range(1, 11))
    assert statements_of(memory, lambda: messages.ack(found)) <= 1 + around
    assert statements_of(memory, lambda: found.extend(messages.claim(10))) <= 3 + around, "no second look"
    assert [each.payload for each in found[10:]] == [11, 12]


def test_a_claim_whose_look_is_out_of_date_looks_again(backend: Backend) -> None:
    """The urgent message that the look found is gone by the time of the claim; the other one is delivered."""
    memory = backend.open(**KNOBS)
    for name in ("ann", "bob"):
        memory.agents.register(name, type="worker")
    send = memory.acting_as(Principal.agent("ann")).agents.messages.send
    messages = memory.acting_as(Principal.agent("bob")).agents.messages
    urgent = send("urgent", to="bob", priority="critical")
    send("other", to_type="worker", priority="low")
    engine = inspect(memory).engine

    def work(uow: UnitOfWork) -> list[AgentMessage]:
        bob = uow.find(AGENT, EntityRef.agent("bob").id.bytes)
        return delivery.claim(uow, engine.config, bob, 1, 1_000_000, (urgent.rank, MessagePriority.LOW.rank))

    assert [each.payload for each in messages.claim()] == ["urgent"]
    assert [each.payload for each in engine.write(work)] == ["other"]
