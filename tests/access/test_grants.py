"""Grants of tasks, sessions and notes: who grants, to whom, until when; revoked, forgotten, merged, restored, audited.

Source: C-422, M-118 to M-141.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from support.databases import Backend
from support.inspection import inspect
from support.weeks import SetClock

import caliber
from caliber.events import event_log
from caliber.model import EntityRef, Principal
from caliber.model.errors import DTypeError, InvalidValue, NotFound, PermissionDenied
from caliber.schema.relations import EVENT

ANA, BEN, EVE = (Principal.user(name) for name in ("ana", "ben", "eve"))
ABOUT = {"entity": "x", "entity_type": "thing", "note_type": "fact", "confidence": 0.5}


class Shared:
    """A store with a session, a task, a turn and a note of Ana, and handles of three users."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        self.clock = SetClock()
        self.memory = backend.open(clock=self.clock, embedding_provider=None, **options)
        self.admin = self.memory.acting_as(Principal.admin())
        self.ana, self.ben, self.eve = (self.memory.acting_as(each) for each in (ANA, BEN, EVE))
        self.session = self.ana.start_session().session_id
        self.task = self.ana.start_trajectory("renew the passport", session=self.session).trajectory_id
        scope = self.ana.current_scope(self.task)
        self.scope = scope.scope_id
        self.turn = self.ana.append_turn(self.scope, role="user", content="The passport number is X123.").turn_id
        self.note = self.ana.add_note(content="The passport lies in the safe.", **ABOUT).note_id

    def seen_by_ben(self) -> set[str]:
        """Return the kinds of records that Ben finds and gets."""
        found = {hit.kind for hit in self.ben.search("passport").hits}
        for name, key in (("turn", self.turn), ("note", self.note), ("session", self.session)):
            try:
                self.ben.get(key)
            except NotFound:
                assert name not in found
            else:
                found.add(name)
        return found

    def audited(self) -> list[Any]:
        """Return the audit events of grants, the oldest first."""
        rows = [each for each in self.admin.storage.events.all() if each.family == "audit"]
        return sorted(
            (each for each in rows if each.event_type in ("grant", "revoke")), key=lambda each: each.created_at
        )


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_granted_task_is_read_until_it_is_revoked(backend: Backend, mode: str) -> None:
    shared = Shared(backend, search__mode=mode)
    ben, task = shared.ben, shared.task
    assert shared.seen_by_ben() == set()
    grant = shared.ana.access.grant(to="ben", on=task)
    assert shared.seen_by_ben() == {"turn"}
    window = ben.assemble_context(task, query="passport")
    assert "X123" in window.text
    assert ben.replay(window.window_id).text == window.text
    assert ben.trace(task)
    assert not {str(each.event_type) for each in ben.trace(task)} & {"grant", "revoke"}
    assert ben.access.grants() == shared.ana.access.grants() == [grant]
    assert shared.eve.access.grants() == []
    for forbidden in (
        lambda: ben.append_turn(shared.scope, role="user", content="x"),
        lambda: ben.complete_trajectory(task, status="success", summary="x"),
        lambda: ben.access.grant(to="eve", on=task),
        lambda: ben.access.revoke(grant.grant_id),
    ):
        with pytest.raises(PermissionDenied):
            forbidden()
    (revoked,) = shared.ana.access.revoke(grant.grant_id)
    assert revoked.revoked_at is not None
    assert shared.ana.access.revoke(grant.grant_id) == []
    assert shared.seen_by_ben() == set()
    for hidden in (
        lambda: ben.replay(window.window_id),
        lambda: ben.explain(window.window_id),
        lambda: ben.trace(task),
        lambda: ben.assemble_context(task),
    ):
        with pytest.raises(NotFound):
            hidden()
    assert shared.ana.access.grants() == []
    assert shared.ana.access.grants(ended=True) == [revoked]


@pytest.mark.databases("all")
def test_grants_of_sessions_and_notes(backend: Backend) -> None:
    shared = Shared(backend)
    shared.ana.access.grant(to=BEN, on=shared.note)
    assert shared.seen_by_ben() == {"note"}
    shared.ana.access.grant(to=EntityRef.user("ben"), on=shared.session)
    assert shared.seen_by_ben() == {"note", "turn", "session"}
    later = shared.ana.start_trajectory("book a flight", session=shared.session).trajectory_id
    assert shared.ben.get(later).goal == "book a flight"
    assert len(shared.ana.access.revoke(on=shared.note, to="ben")) == 1
    assert shared.ana.access.revoke(on=shared.session, to="eve") == []
    assert shared.seen_by_ben() == {"turn", "session"}
    # The window of a granted task holds nothing else of its user.
    assert "safe" not in shared.ben.assemble_context(shared.task, query="Where does the passport lie?").text
    with pytest.raises(InvalidValue):
        shared.ana.access.grant(to="ben", on=shared.note, right="write")


@pytest.mark.parametrize("mode", ["resident", "backend"])
@pytest.mark.databases("all")
def test_a_granted_session_brings_no_task_of_another_user(backend: Backend, mode: str) -> None:
    shared = Shared(backend, search__mode=mode)
    ana, ben, eve = shared.ana, shared.ben, shared.eve
    ana.access.grant(to="ben", on=shared.session, right="write")
    own = ben.start_trajectory("a lantern of Ben", session=shared.session).trajectory_id
    scope = ben.current_scope(own)
    ben.append_turn(scope.scope_id, role="user", content="the lantern is Ben's secret")
    ana.access.grant(to="eve", on=shared.session, right="write")
    for other in (ana, eve):
        with pytest.raises(NotFound):
            other.get(own)
        assert not other.search("lantern", kinds=["turn"], limit=20).hits
        with pytest.raises(NotFound):
            other.append_turn(scope.scope_id, role="user", content="x")
    assert eve.get(shared.task).trajectory_id == shared.task
    assert len(ben.search("lantern", kinds=["turn"], limit=20).hits) == 1


@pytest.mark.parametrize("mode", ["resident", "backend"])
@pytest.mark.databases("all")
def test_a_granted_task_brings_those_of_its_user_below_it(backend: Backend, mode: str) -> None:
    shared = Shared(backend, search__mode=mode)
    ana, ben, eve = shared.ana, shared.ben, shared.eve

    def below(who: caliber.Caliber, parent: uuid.UUID, text: str) -> uuid.UUID:
        task = who.start_trajectory(text, parent=parent).trajectory_id
        scope = who.current_scope(task)
        who.append_turn(scope.scope_id, role="user", content=text)
        return task

    def found() -> set[str]:
        return {hit.content for hit in ben.search("lantern", kinds=["turn"], limit=20).hits}

    child = below(ana, shared.task, "lantern below")
    grant = ana.access.grant(to="ben", on=shared.task)
    deep = below(ana, child, "lantern deep below")
    # Eve writes below Ana's task what is Eve's own, and the application what is Ana's below that.
    ana.access.grant(to="eve", on=shared.task, right="write")
    foreign = below(eve, child, "lantern of eve")
    hidden = shared.admin.start_trajectory("lantern under eve", parent=foreign, user="ana").trajectory_id
    assert found() == {"lantern below", "lantern deep below"}
    assert ben.get(deep).goal == "lantern deep below"
    assert "lantern deep below" in ben.assemble_context(deep).text
    for other in (foreign, hidden):
        with pytest.raises(NotFound):
            ben.get(other)
    with pytest.raises(PermissionDenied):
        ben.complete_trajectory(deep, status="success", summary="x")
    eve.complete_trajectory(deep, status="success", summary="done")
    # One grant, one event: it names the task that was granted.
    assert [each.subject_id for each in shared.audited()] == [shared.task] * 2
    assert ben.access.grants() == [grant]
    ana.access.revoke(grant.grant_id)
    assert found() == set()
    with pytest.raises(NotFound):
        ben.get(deep)
    ana.access.grant(to="ben", on=child)
    assert found() == {"lantern below", "lantern deep below"}
    with pytest.raises(NotFound):
        ben.get(shared.task)


@pytest.mark.databases("all")
def test_purging_a_task_removes_the_grants_on_it_and_below(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(backend)
    child = shared.ana.start_trajectory("below", parent=shared.task).trajectory_id
    shared.ana.access.grant(to="ben", on=shared.task)
    shared.ana.access.grant(to="eve", on=child, right="write")
    shared.ana.access.revoke(shared.ana.access.grant(to="eve", on=shared.task).grant_id)
    kept = shared.ana.access.grant(to="ben", on=shared.note)

    def fails(*_: Any) -> None:
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(event_log, "audit", fails)
        with pytest.raises(RuntimeError):
            shared.admin.admin.purge_trajectory(shared.task)
    assert len(shared.admin.access.grants(ended=True)) == 4, "a purge that failed left all of it"
    shared.admin.admin.purge_trajectory(shared.task)
    assert shared.admin.access.grants(ended=True) == [kept]
    assert [each.grant_id for each in shared.admin.storage.access_grants.all()] == [kept.grant_id]
    assert shared.ben.access.grants() == [kept]


@pytest.mark.databases("all")
def test_a_right_to_write_and_agents(backend: Backend) -> None:
    shared = Shared(backend)
    helper = Principal.agent("helper")
    agent = shared.memory.acting_as(helper)
    shared.ana.access.grant(to=helper, on=shared.task, right="write")
    agent.append_turn(shared.scope, role="assistant", content="I looked it up.")
    assert "safe" not in agent.assemble_context(shared.task, query="passport").text
    shared.ana.access.grant(to=helper, on=shared.task)
    shared.ana.access.revoke(on=shared.task, to=helper)
    with pytest.raises(NotFound):
        agent.append_turn(shared.scope, role="assistant", content="x")


@pytest.mark.databases("all")
def test_a_grant_ends_by_the_clock_and_stays_ended(backend: Backend) -> None:
    shared = Shared(backend)
    ends = shared.clock.at + timedelta(hours=1)
    shared.ana.access.grant(to="ben", on=shared.task, until=ends)
    window = shared.ben.assemble_context(shared.task, query="passport")
    own = shared.ben.start_trajectory("my own").trajectory_id
    shared.clock.at = ends - timedelta(microseconds=1)
    assert shared.seen_by_ben() == {"turn"}
    shared.clock.at = ends
    assert shared.seen_by_ben() == set()
    with pytest.raises(NotFound):
        shared.ben.replay(window.window_id)
    shared.clock.at = ends - timedelta(minutes=30)
    assert shared.seen_by_ben() == set(), "what has ended stays ended when the clock goes back"
    assert shared.ben.access.grants() == []
    assert "X123" not in shared.ben.assemble_context(own, query="passport number").text
    with pytest.raises(InvalidValue):
        shared.ana.access.grant(to="ben", on=shared.task, until=shared.clock.at)
    renewed = shared.ana.access.grant(to="ben", on=shared.task, until=ends + timedelta(hours=1))
    assert shared.seen_by_ben() == {"turn"}
    again = shared.ana.access.grant(to="ben", on=shared.task)
    assert (again.grant_id, again.until) == (renewed.grant_id, None)


@pytest.mark.databases("all")
def test_mistaken_grants(backend: Backend) -> None:
    shared = Shared(backend)
    grant, task = shared.ana.access.grant, shared.task
    for wrong in ("", " ", "x" * 20_000, Principal.admin(), Principal.application(), EntityRef("session", task)):
        with pytest.raises(InvalidValue):
            grant(to=wrong, on=task)
    with pytest.raises(DTypeError):
        grant(to=None, on=task)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        grant(to="ben", on=task, right="own")
    with pytest.raises(InvalidValue):
        grant(to="ben", on=shared.turn)
    with pytest.raises(InvalidValue):
        shared.ana.access.revoke()
    missing = uuid.uuid4()
    for by, on in ((shared.ana, missing), (shared.ben, task), (shared.ben, shared.note), (shared.ben, shared.session)):
        for call in (
            lambda by=by, on=on: by.access.grant(to="eve", on=on),
            lambda by=by, on=on: by.access.revoke(on=on),
        ):
            with pytest.raises(NotFound) as failed:
                call()
            assert str(failed.value) == f"record {on} was not found"
    with pytest.raises(NotFound):
        shared.ben.access.revoke(grant(to="eve", on=task).grant_id)
    assert shared.ben.access.grants(on=task) == []
    never_seen = grant(to="new@example.com", on=task)
    assert never_seen.to == EntityRef.user("new@example.com")
    assert shared.memory.acting_as(Principal.user("new@example.com")).get(shared.turn).turn_id == shared.turn
    # An agent's task is everybody's: only who may administer grants on it.
    agents = shared.memory.acting_as(Principal.agent("worker")).start_trajectory("count").trajectory_id
    with pytest.raises(PermissionDenied):
        grant(to="ben", on=agents)
    assert shared.admin.access.grant(to="ben", on=task).granted_by == Principal.admin().label


@pytest.mark.databases("all")
def test_grants_are_audited_and_stay_in_the_log(backend: Backend) -> None:
    shared = Shared(backend, retention__events_ms=1_000)
    ends = shared.clock.at + timedelta(hours=1)
    made = shared.ana.access.grant(to="ben", on=shared.task, until=ends)
    shared.clock.at += timedelta(seconds=1)
    shared.admin.access.revoke(made.grant_id)
    assert shared.ana.access.grants(ended=True)[0].version == 2
    shared.clock.at += timedelta(days=400)
    shared.admin.admin.maintain()
    first, second = shared.audited()
    assert (first.event_type, first.principal) == ("grant", ANA.label)
    assert (second.event_type, second.principal) == ("revoke", Principal.admin().label)
    expected = {"grant_id": str(made.grant_id), "to": f"user:{made.to.id}", "right": "read", "until": ends.isoformat()}
    assert first.payload == second.payload == expected
    assert first.subject_id == second.subject_id == first.trajectory_id == shared.task


@pytest.mark.databases("all")
def test_a_grant_and_its_audit_event_are_one_transaction(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(backend)
    engine = inspect(shared.memory).engine

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(EVENT.name)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "event", fail)
        with pytest.raises(RuntimeError):
            shared.ana.access.grant(to="ben", on=shared.task)
    assert shared.ana.access.grants() == []
    assert shared.seen_by_ben() == set()


@pytest.mark.databases("all")
def test_forgetting_the_grantee_or_the_owner_removes_grants(backend: Backend) -> None:
    shared = Shared(backend)
    shared.ana.access.grant(to="ben", on=shared.task)
    shared.ana.access.grant(to="eve", on=shared.task)
    shared.admin.forget(user="ben")
    assert {each.to for each in shared.admin.access.grants(ended=True)} == {EntityRef.user("eve")}
    shared.admin.forget(user="ana")
    assert shared.admin.access.grants(ended=True) == []
    with pytest.raises(NotFound):
        shared.admin.access.grant(to="eve", on=shared.task)


@pytest.mark.databases("all")
def test_merged_users_keep_their_grants(backend: Backend) -> None:
    shared = Shared(backend)
    shared.ana.access.grant(to="guest-17", on=shared.task)
    assert shared.seen_by_ben() == set()
    shared.admin.identities.merge("guest-17", "ben")
    assert shared.seen_by_ben() == {"turn"}
    (grant,) = shared.admin.access.grants(to="ben")
    assert grant.to == EntityRef.user("ben")
