"""A handle without rights gets none by asking, and is told nothing of what it may not see."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from caliber.model import AgentRole, EntityRef, LockToken, Principal, PrincipalKind
from caliber.model.errors import (
    InputError,
    InvalidValue,
    LockAcquisitionFailed,
    NotFound,
    PermissionDenied,
    Unavailable,
)

pytestmark = pytest.mark.databases("one")

PLANNER = Principal(PrincipalKind.AGENT, "planner", AgentRole.EXECUTOR)
OTHER = Principal(PrincipalKind.AGENT, "other", AgentRole.EXECUTOR)
ROOT = Principal(PrincipalKind.AGENT, "planner", AgentRole.EXECUTOR, is_admin=True)
NOTE = {"entity": "plan", "entity_type": "topic", "note_type": "fact", "confidence": 1.0}


@pytest.mark.parametrize("wanted", [ROOT, OTHER, Principal(PrincipalKind.AGENT, "planner")])
def test_only_an_admin_acts_as_another(backend: Any, wanted: Principal) -> None:
    memory = backend.open()
    planner = memory.acting_as(PLANNER)
    with pytest.raises(PermissionDenied, match=wanted.label):
        planner.acting_as(wanted)
    assert planner.acting_as(PLANNER).principal == PLANNER
    assert memory.acting_as(wanted).acting_as(wanted).principal == wanted


def administers(admin: Any) -> list[Callable[[], Any]]:
    """Return every call of the facet that needs an admin."""
    given = {"purge_trajectory": (uuid.UUID(int=1),), "backup": ("backup.zip",), "export_audit": ("a.jsonl",)}
    names = (name for name in dir(admin) if not name.startswith("_") and name not in ("stats", "inspect"))
    whole = [admin.inspect.spaces, admin.inspect.differences, functools.partial(admin.inspect.named, ["maria"])]
    return [*whole, *(functools.partial(getattr(admin, name), *given.get(name, ())) for name in names)]


def test_what_administers_needs_an_admin(backend: Any) -> None:
    memory = backend.open()
    planner = memory.acting_as(PLANNER)
    for call in administers(planner.admin):
        with pytest.raises(PermissionDenied):
            call()
    assert memory.admin.verify() == []
    assert memory.admin.maintain()


def test_what_tools_show_is_what_their_principal_sees(backend: Any) -> None:
    memory = backend.open()
    of_ana = memory.as_user("ana").start_trajectory("a secret").trajectory_id
    application = memory.acting_as(Principal.application())
    assert application.admin.inspect.user_of(of_ana) == memory.as_user("ana").admin.inspect.user_of(of_ana) is not None
    assert application.admin.inspect.record(of_ana).goal == "a secret"
    for other in (memory.as_user("ben"), memory.acting_as(PLANNER)):
        assert other.admin.inspect.record(of_ana) is None
        assert other.admin.inspect.latest_task() is None
        with pytest.raises(NotFound):
            other.admin.inspect.user_of(of_ana)


def test_views_of_users_and_agents_are_handles_of_their_principals(backend: Any) -> None:
    memory = backend.open()
    maria, planner = memory.as_user("maria"), memory.as_agent("planner")
    assert (maria.principal, planner.principal) == (Principal.user("maria"), Principal.agent("planner"))
    with pytest.raises(PermissionDenied):
        planner.as_user("maria")
    for wrong in (5, None, ""):
        for view in (memory.as_user, memory.as_agent):
            with pytest.raises(InputError):
                view(wrong)
    task = maria.start_trajectory("goal")
    memory.forget(user="maria")
    with pytest.raises(NotFound):  # a view outlives its user, and sees nothing of what was
        maria.get(task.trajectory_id)
    memory.close()
    with pytest.raises(Unavailable):
        maria.start_trajectory("goal")


def test_figures_count_no_hidden_record(backend: Any) -> None:
    memory = backend.open()
    planner = memory.acting_as(PLANNER)
    memory.add_note(content="everybody's", **NOTE)
    before = planner.admin.stats()
    assert before["records"]["note"] == 1
    memory.add_note(content="the admin's", visible_to=["human:owner"], **NOTE)
    memory.flush()
    assert planner.admin.stats()["records"] == before["records"]
    assert memory.admin.stats()["records"]["note"] == 2


@pytest.mark.databases("all")
@pytest.mark.parametrize("readers", [["admiral"], ["executor", "admiral"], ["Executor"], ["ana"]])
def test_a_role_that_does_not_exist_is_refused(backend: Any, readers: list[str]) -> None:
    memory = backend.open(policies=[])
    with pytest.raises(InvalidValue, match="is no role"):
        memory.add_note(**NOTE, content="hidden from all", visible_to=readers)
    note = memory.add_note(**NOTE, content="for all")
    with pytest.raises(InvalidValue, match="is no role"):
        memory.update_note(note.note_id, visible_to=readers)
    with pytest.raises(InvalidValue, match="role"):
        memory.acting_as(Principal.agent("helper", "admiral"))  # type: ignore[arg-type]
    assert memory.get(note.note_id).visible_to is None


@pytest.mark.databases("all")
def test_a_name_that_looks_like_another_reads_nothing_of_it(backend: Any) -> None:
    memory = backend.open(policies=[])
    note = memory.acting_as(Principal.user("ana")).add_note(**NOTE, content="the blue door")
    for name in ("\u0430na", "Ana", "ana\u200b", "ana ana", str(EntityRef.user("ana").id), "human:ana"):
        other = memory.acting_as(Principal.user(name))
        assert other.search("blue door", kinds=["note"]).hits == ()
        with pytest.raises(NotFound):
            other.get(note.note_id)


@pytest.mark.databases("all")
def test_an_owner_who_was_forgotten_begins_anew(backend: Any) -> None:
    memory = backend.open(policies=[])
    ana = memory.acting_as(Principal.user("ana@example.com"))
    note = ana.add_note(**NOTE, content="the blue door")
    task = ana.start_trajectory("paint the door").trajectory_id
    assert memory.forget(user="ana@example.com").proven
    for gone in (lambda: ana.get(note.note_id), lambda: ana.get(task), lambda: ana.trace(task)):
        with pytest.raises(NotFound):
            gone()
    assert ana.search("door").hits == ()
    again = ana.add_note(**NOTE, content="the red door")
    assert [hit.id for hit in ana.search("door").hits] == [again.note_id]
    assert memory.search("door", user="ana@example.com").hits[0].content == "the red door"
    assert memory.acting_as(Principal.user("ben")).search("door").hits == ()


def test_a_lock_is_its_principals(backend: Any) -> None:
    memory = backend.open()
    planner, other = memory.acting_as(PLANNER).agents.locks, memory.acting_as(OTHER).agents.locks
    lock = planner.acquire("file", holder="agent:planner", lease_ms=60_000)
    token = LockToken(lock.resource, lock.token)
    assert planner.held("file") == [lock]
    assert memory.agents.locks.held("file") == [lock]
    assert other.held("file") == []
    with pytest.raises(LockAcquisitionFailed) as caught:
        other.acquire("file", holder="agent:other")
    assert caught.value.holder is None, "who is in the way is not told to others"
    assert "planner" not in f"{caught.value!r} {caught.value.context}"
    with pytest.raises(LockAcquisitionFailed) as caught:
        memory.agents.locks.acquire("file", holder="somebody")
    assert caught.value.holder == "agent:planner"
    for call in (
        lambda: other.acquire("file", holder="agent:planner"),
        lambda: other.acquire("file", holder="agent:plan"),
        lambda: other.release(token, holder="agent:planner"),
        lambda: other.renew(token, holder="agent:planner"),
        lambda: planner.acquire("file", holder="agent:planner/two"),
        lambda: other.release(token, holder="agent:other"),
        lambda: other.renew(token),
    ):
        with pytest.raises(PermissionDenied):
            call()
    assert planner.held("file") == [lock]
    assert planner.release(token, holder="agent:planner")
    assert other.acquire("file", holder="agent:other").holder == "agent:other"
