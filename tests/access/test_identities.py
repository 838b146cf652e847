"""Users and agents by the names that an application has for them: resolved, given further names, merged, forgotten.

Source: O-17, K-194, K-195.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agents.teams import NOTE
from support.databases import Backend
from support.evidence import examples
from support.inspection import inspect
from support.threads import at_once

import caliber
from caliber.access.identities import MERGED, user_for
from caliber.model import Edge, EdgeRelation, EntityRef, EntityType, Principal
from caliber.model.errors import Conflict, InputError, InvalidValue, PermissionDenied, RequiredFieldMissing
from caliber.model.references import EdgeId
from caliber.model.time import from_us
from caliber.trajectory import facet

MARIA = "maria@example.com"


def initiators(memory: Any) -> set[uuid.UUID]:
    return {task.initiator.id for task in memory.storage.trajectories.all()}


# --- resolving -----------------------------------------------------------------------------------


def test_a_task_is_started_for_a_user_by_name(memory: Any) -> None:
    task = memory.start_trajectory("plan a trip", user=MARIA)
    again = memory.start_trajectory("plan another", user=f" {MARIA} ")
    assert task.initiator == again.initiator == EntityRef.user(MARIA)
    assert memory.start_session(user=MARIA).initiator == task.initiator
    assert memory.start_trajectory("third", user=task.initiator).initiator == task.initiator
    (identity,) = memory.identities.names(MARIA)
    assert (identity.name, identity.namespace, identity.entity) == (MARIA, "", task.initiator)


def test_a_name_is_the_same_entity_in_every_process() -> None:
    code = f"import caliber.model as m; print(m.EntityRef.user({MARIA!r}).id, m.EntityRef.agent('planner').id)"
    ids = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert ids == [str(EntityRef.user(MARIA).id), str(EntityRef.agent("planner").id)]


def test_kinds_and_namespaces_are_apart(memory: Any) -> None:
    resolve = memory.identities.resolve
    found = [
        resolve("anna"),
        resolve("anna", kind="agent"),
        resolve("anna", namespace="auth0"),
        resolve("anna", namespace="github"),
        resolve("Anna"),
        resolve("аnna"),
    ]
    assert len(set(found)) == 6
    assert resolve("e\u0301va") == resolve("\u00e9va"), "one name in two Unicode forms"
    assert [each.entity_type for each in found[:2]] == [EntityType.USER, EntityType.AGENT]


def test_names_that_look_like_ids_are_names(memory: Any) -> None:
    key = uuid.uuid4()
    assert memory.identities.resolve(str(key)) == EntityRef.user(str(key)) != EntityRef(EntityType.USER, key)


@pytest.mark.parametrize("name", ["", "  ", "x" * 10_241, 7, None, b"maria", "a\ud800b", EntityRef.agent("planner")])
def test_what_is_no_name_is_refused(memory: Any, name: Any) -> None:
    with pytest.raises(InputError):
        memory.identities.resolve(name)
    if name is not None:
        with pytest.raises(InputError):
            memory.start_trajectory("goal", user=name)
    assert memory.storage.identities.count() == memory.storage.trajectories.count() == 0


@pytest.mark.parametrize("options", [{"kind": "note"}, {"kind": "nobody"}, {"namespace": ":merged"}, {"namespace": 7}])
def test_wrong_kinds_and_namespaces_are_refused(memory: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        memory.identities.resolve("anna", **options)


def test_who_a_task_is_for_must_be_told_once(memory: Any) -> None:
    with pytest.raises(RequiredFieldMissing, match="user is required"):
        memory.start_trajectory("goal")
    with pytest.raises(InvalidValue, match="given with initiator"):
        memory.start_trajectory("goal", user=MARIA, initiator=EntityRef.user(MARIA))
    with pytest.raises(InvalidValue, match="given with entity"):
        memory.forget(user=MARIA, entity=EntityRef.user(MARIA))


def test_principals_of_users_and_agents_start_their_own_tasks(memory: Any) -> None:
    own = memory.acting_as(caliber.Principal.user(MARIA)).start_trajectory("mine")
    assert own.initiator == EntityRef.user(MARIA)
    agent = memory.acting_as(caliber.Principal.agent("planner")).start_trajectory("its own")
    assert agent.initiator == EntityRef.agent("planner")
    assert memory.acting_as(caliber.Principal.admin()).principal.is_admin


def test_threads_that_meet_a_new_name_together(memory: Any) -> None:
    found: list[EntityRef] = []
    at_once([lambda: found.append(memory.identities.resolve(MARIA))] * 6)
    assert found == [EntityRef.user(MARIA)] * 6
    assert memory.storage.identities.count() == 1


# --- several names, and merging ------------------------------------------------------------------


def test_one_person_has_several_names(memory: Any) -> None:
    user = memory.identities.resolve(MARIA)
    identity = memory.identities.add("auth0|5f7c", MARIA, namespace="auth0")
    assert memory.identities.add("auth0|5f7c", MARIA, namespace="auth0") == identity
    assert memory.identities.resolve("auth0|5f7c", namespace="auth0") == user
    assert [each.name for each in memory.identities.names(user)] == [MARIA, "auth0|5f7c"]
    memory.identities.resolve("bob")
    with pytest.raises(Conflict, match="merge the two"):
        memory.identities.add("bob", MARIA)


def test_merged_users_are_one(memory: Any) -> None:
    identities = memory.identities
    for number in range(3):
        memory.start_trajectory(f"task {number}", user="guest-17")
    memory.start_session(user="guest-17")
    memory.start_trajectory("hers", user=MARIA)
    old, user = EntityRef.user("guest-17"), EntityRef.user(MARIA)
    report = identities.merge("guest-17", MARIA)
    assert (report.old, report.entity, report.names) == (old, user, ("guest-17",))
    assert (report.records, report.remaining) == ({"trajectory": 3, "session": 1}, 0)
    assert initiators(memory) == {user.id}
    assert identities.resolve("guest-17") == identities.resolve(old) == user
    assert memory.start_trajectory("later", user="guest-17").initiator == user
    assert memory.start_trajectory("by reference", initiator=old).initiator == user
    assert identities.merge("guest-17", MARIA).records == {}
    assert {each.name for each in identities.names(MARIA)} == {"guest-17", MARIA}
    assert memory.admin.check() == []
    assert len(memory.storage.trajectories.list_by_initiator("user", user.id)) == 6


def test_a_merge_counts_every_end_that_it_changed(memory: Any) -> None:
    identities = memory.identities
    guest, note = identities.resolve("guest-17"), EntityRef(EntityType.NOTE, uuid.uuid4())
    now = from_us(inspect(memory).engine.clock.now_us())
    for source, target in ((guest, note), (note, guest), (guest, guest)):
        edge = Edge(EdgeId(uuid.uuid4()), source, target, EdgeRelation.LINK, 1.0, 1.0, now)
        memory.storage.edges.insert(edge)
    report = identities.merge("guest-17", MARIA)
    assert (report.records, report.remaining) == ({"edge": 4}, 0)
    assert guest not in {end for edge in memory.storage.edges.all() for end in (edge.source, edge.target)}


def test_merges_in_a_chain_and_across(memory: Any) -> None:
    merge, resolve = memory.identities.merge, memory.identities.resolve
    one, two, three = (resolve(name) for name in ("one", "two", "three"))
    merge("one", "two")
    merge("two", "three")
    assert {resolve(each) for each in (one, two, three, "one", "two")} == {three}
    assert merge("three", "one").records == {}
    at_once([partial(merge, *pair) for pair in (("left", "right"), ("right", "left"), ("left", "right"))])
    assert resolve("left") == resolve("right")


def test_a_name_first_used_after_its_entity_was_merged(memory: Any) -> None:
    old = EntityRef.user("guest-17")
    memory.start_trajectory("before it had a name", initiator=old)
    assert memory.identities.merge(old, MARIA).records == {"trajectory": 1}
    user = EntityRef.user(MARIA)
    assert memory.identities.names("guest-17") == memory.identities.names(MARIA)
    assert memory.start_trajectory("later", user="guest-17").initiator == user
    assert memory.identities.resolve("guest-17") == memory.identities.resolve(old) == user
    assert {each.name for each in memory.identities.names(MARIA)} == {"guest-17", MARIA}
    assert memory.forget(user="guest-17").proven
    assert memory.storage.trajectories.count() == memory.storage.identities.count() == 0


def test_a_task_that_is_started_while_its_user_is_merged(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(*arguments: Any) -> EntityRef:
        found = user_for(*arguments)
        memory.identities.merge("guest-17", MARIA)
        return found

    memory.identities.resolve("guest-17")
    monkeypatch.setattr(facet, "user_for", resolved)
    user = EntityRef.user(MARIA)
    assert memory.start_trajectory("chat", user="guest-17").initiator == user
    monkeypatch.setattr(facet, "user_for", lambda *_: EntityRef.user("guest-17"))
    assert memory.start_session(user="guest-17").initiator == user


def test_merging_beside_writers(memory: Any) -> None:
    tasks = [memory.start_trajectory("chat", user="guest-17").trajectory_id for _ in range(4)]
    scopes = [memory.current_scope(task).scope_id for task in tasks]
    merged = threading.Event()

    def chat(scope: Any) -> None:
        while not merged.is_set():
            memory.append_turn(scope, role="user", content="and one more")
            memory.start_trajectory("another", user="guest-17")

    threads = [threading.Thread(target=chat, args=(scope,)) for scope in scopes]
    for thread in threads:
        thread.start()
    try:
        report = memory.identities.merge("guest-17", MARIA)
    finally:
        merged.set()
        for thread in threads:
            thread.join()
    assert report.remaining == 0
    assert initiators(memory) == {EntityRef.user(MARIA).id}


def test_windows_recall_tasks_of_merged_users(backend: Any) -> None:
    memory = backend.open()
    guest = memory.start_trajectory("chat", user="guest-17")
    scope = memory.current_scope(guest.trajectory_id)
    memory.append_turn(scope.scope_id, role="user", content="My locker code is 4711.")
    memory.flush()
    task = memory.start_trajectory("another day", user=MARIA)
    query = "What is my locker code?"
    assert "4711" not in memory.assemble_context(task.trajectory_id, query=query).text
    memory.identities.merge("guest-17", MARIA)
    assert "4711" in memory.assemble_context(task.trajectory_id, query=query).text


def test_windows_recall_what_agents_did_for_merged_users(backend: Any) -> None:
    memory = backend.open()
    above = memory.start_trajectory("chat", user="guest-17").trajectory_id
    helper = memory.start_trajectory("look it up", initiator=EntityRef.agent("helper"), parent=above)
    assert helper.user_id == EntityRef.user("guest-17").id
    scope = memory.current_scope(helper.trajectory_id)
    memory.append_turn(scope.scope_id, role="assistant", content="The locker code is 4711.")
    memory.flush()
    task = memory.start_trajectory("another day", user=MARIA)
    report = memory.identities.merge("guest-17", MARIA)
    assert (report.records, report.remaining) == ({"trajectory": 2}, 0)
    assert memory.get(helper.trajectory_id).user_id == EntityRef.user(MARIA).id
    assert "4711" in memory.assemble_context(task.trajectory_id, query="What is the locker code?").text
    report = memory.identities.merge("helper", "assistant", kind="agent")
    assert (report.records, report.remaining) == ({"trajectory": 1}, 0)


def test_the_agent_that_works_on_a_task_is_renamed(memory: Any) -> None:
    old, new = memory.acting_as(Principal.agent("old")), memory.acting_as(Principal.agent("new"))
    task = old.start_trajectory("plan", user=MARIA)
    report = memory.identities.merge("old", "new", kind="agent")
    assert (report.records, report.remaining) == ({"trajectory": 1}, 0)
    assert memory.get(task.trajectory_id).agent_id == EntityRef.agent("new").id
    assert new.get(task.trajectory_id) == old.get(task.trajectory_id)


def test_tasks_and_events_of_merged_users_are_theirs(memory: Any) -> None:
    guest, maria = memory.acting_as(Principal.user("guest-17")), memory.acting_as(Principal.user(MARIA))
    task = guest.workspace.todos.add("buy a bike")
    event = guest.workspace.calendar.add("the race", datetime(2026, 5, 3, tzinfo=UTC))
    report = memory.identities.merge("guest-17", MARIA)
    assert (report.records, report.remaining) == ({"todo": 1, "calendar_event": 1}, 0)
    assert maria.workspace.todos.get(task.todo_id).user_id == EntityRef.user(MARIA).id
    assert maria.workspace.calendar.get(event.event_id).user_id == EntityRef.user(MARIA).id


def test_only_an_admin_lists_names_and_merges(memory: Any) -> None:
    memory.identities.resolve(MARIA)
    stranger = memory.acting_as(caliber.Principal.user("bob")).identities
    assert stranger.resolve("bob") == EntityRef.user("bob")
    for call in (
        lambda: stranger.names(MARIA),
        lambda: stranger.add("other", MARIA),
        lambda: stranger.merge("bob", MARIA),
    ):
        with pytest.raises(PermissionDenied):
            call()


# --- forgetting, moving --------------------------------------------------------------------------


def test_a_user_is_forgotten_by_name(memory: Any) -> None:
    memory.start_trajectory("plan a trip", user=MARIA)
    memory.identities.add("Maria Rossi", MARIA)
    memory.identities.merge("guest-17", MARIA)
    other = memory.start_trajectory("ask around", user="bob")
    scope = memory.current_scope(other.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content=f"Write to {MARIA}, that is Maria Rossi (guest-17).")
    report = memory.forget(user=MARIA)
    assert report.proven
    assert [each.trajectory_id for each in memory.storage.trajectories.all()] == [other.trajectory_id]
    left = {each.name for each in memory.storage.identities.all()}
    assert left == {"bob"}
    content = memory.get(turn.turn_id).content.decode()
    assert not any(name in content for name in (MARIA, "Maria Rossi", "guest-17"))


def test_a_plain_word_is_not_redacted_everywhere(memory: Any) -> None:
    memory.start_trajectory("first", user="rose")
    other = memory.start_trajectory("garden", user="bob")
    scope = memory.current_scope(other.trajectory_id)
    turn = memory.append_turn(scope.scope_id, role="user", content="the rose is red")
    report = memory.forget(user="rose")
    assert not report.proven
    assert "turns (1)" in report.remaining[0]
    assert memory.get(turn.turn_id).content == b"the rose is red"
    assert initiators(memory) == {EntityRef.user("bob").id}


def test_short_names_and_wrong_texts_of_who_is_forgotten(memory: Any) -> None:
    memory.start_trajectory("short", user="a-b")
    memory.identities.merge("old one", "a-b")
    with pytest.raises(InputError):
        memory.forget(user="a-b", texts="Ada")
    assert memory.forget(entity=EntityRef.user("old one")).proven
    assert memory.storage.trajectories.count() == memory.storage.identities.count() == 0


def test_forgetting_an_unknown_name_stores_nothing(memory: Any) -> None:
    memory.forget(user="nobody@example.com")
    assert memory.storage.identities.count() == 0


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_STEPS = st.one_of(
    st.tuples(st.just("merge"), _NAMES, _NAMES), st.tuples(st.just("start"), _NAMES, st.none()),
    st.tuples(st.just("add"), _NAMES, _NAMES),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(steps=st.lists(_STEPS, max_size=8))
def test_names_are_a_partition(module_agent: Any, steps: list[tuple[str, str, str | None]]) -> None:
    """Merging unites groups of names; every task belongs to the group of the name it was started for."""
    memory: caliber.Caliber = module_agent.memory
    prefix = uuid.uuid4().hex
    groups = {name: {name} for name in "abcd"}
    tasks: list[tuple[str, Any]] = []
    for step, one, other in steps:
        if step == "start":
            tasks.append((one, memory.start_trajectory("t", user=prefix + one).trajectory_id))
        elif step == "merge":
            memory.identities.merge(prefix + one, prefix + str(other))
            united = groups[one] | groups[str(other)]
            groups.update(dict.fromkeys(united, united))
        elif groups[one] is groups[str(other)] or other == one:
            assert memory.identities.add(prefix + one, prefix + str(other)).name == prefix + one
        else:
            memory.identities.resolve(prefix + one)
            with pytest.raises(Conflict):
                memory.identities.add(prefix + one, prefix + str(other))
    found = {name: memory.identities.resolve(prefix + name) for name in "abcd"}
    for one in "abcd":
        for other in "abcd":
            assert (found[one] == found[other]) == (other in groups[one])
    for name, task in tasks:
        assert memory.get(task).initiator == found[name]
    assert MERGED not in {each.namespace for each in memory.identities.names(found["a"])}
    assert inspect(memory).engine.state == "open"


@pytest.mark.parametrize("name", ["\u200b", " \u2060\ufeff ", "\u3164", "\u115f\u1160", "\ufe0f", "\u200b \u200d"])
def test_a_name_that_nobody_can_see_is_refused(memory: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match="invisible"):
        memory.start_trajectory("plan a trip", user=name)
    with pytest.raises(InvalidValue, match="invisible"):
        memory.forget(user=name)
    assert memory.start_trajectory("plan a trip", user=f"{name}x").initiator == EntityRef.user(f"{name}x")


# --- hidden below ----------------------------------------------------------------------------------


def scope_of(memory: caliber.Caliber, task: object) -> object:
    scope = memory.current_scope(task)  # type: ignore[arg-type]
    return scope.scope_id


def test_a_recovery_leaves_what_its_principal_may_not_see(backend: Backend) -> None:
    memory = backend.open(jobs__poll_ms=0)
    bot, ana, ben = (
        memory.acting_as(each) for each in (Principal.agent("bot"), Principal.user("ana"), Principal.user("ben"))
    )
    shared = bot.start_trajectory("shared").trajectory_id
    checkpoint = ben.pcp.checkpoint(shared).checkpoint_id
    bot.append_turn(scope_of(bot, shared), role="user", content="open to all")
    hidden = ana.start_trajectory("hidden", parent=shared).trajectory_id
    turn = ana.append_turn(scope_of(ana, hidden), role="user", content="ana's own words").turn_id
    note = ana.add_note(content="only ana knows", source_trajectory_ids=[shared], **NOTE).note_id
    preview = ben.pcp.recover(shared, checkpoint, preview=True)
    assert (preview.turns_rolled_back, preview.subtasks_rolled_back, preview.records_rolled_back) == (1, 0, 0)
    ben.pcp.recover(shared, checkpoint)
    assert ana.get(hidden).status == "active"
    assert ana.get(turn).rolled_back_at is None
    assert ana.get(note).archived_at is None
    memory.acting_as(Principal.admin()).pcp.recover(shared, checkpoint)
    assert ana.get(turn).rolled_back_at is not None


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_a_delegation_that_ends_leaves_tasks_of_other_users(backend: Backend, how: str) -> None:
    memory = backend.open(jobs__poll_ms=0)
    for name in ("planner", "worker"):
        memory.agents.register(name, type="any", can_delegate_to=["any"])
    planner, worker = (memory.acting_as(Principal.agent(name)) for name in ("planner", "worker"))
    ana = memory.acting_as(Principal.user("ana"))
    top = planner.start_trajectory("top").trajectory_id
    given = planner.agents.delegations.delegate("part", parent=top, to="worker").delegation_id
    below = worker.agents.delegations.accept(given).child_trajectory_id
    hidden = ana.start_trajectory("hidden", parent=below).trajectory_id
    own = worker.start_trajectory("own", parent=below).trajectory_id
    if how == "cancel":
        planner.agents.delegations.cancel(given, reason="another way")
    else:
        worker.agents.delegations.fail(given, reason="no way")
    assert (ana.get(hidden).status, worker.get(own).status) == ("active", "failed")
