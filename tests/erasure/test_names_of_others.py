"""Names of other users and agents that hold, or resemble, the name of a forgotten user: they stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

import caliber
from caliber.erasure.subject import Subject
from caliber.model import Principal

NOTE: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("ana", "ana@example.com"), ("smith@x.com", "john.smith@x.com"), ("bob@x.com", "jim-bob@x.com"),
        ("kim@x.com", "kim@x.com.au"), ("maria.s", "maria.s-lopez"), ("auth0|12", "auth0|12+x"),
        ("maria@e.com", "Maria@E.com"), ("k7f3c9d2e1", "K7F3C9D2E1"), ("ben", "Ben"), ("zoe@x.com", "ｚoe@x.com"),
    ],
)  # fmt: skip
def test_the_records_of_another_user_stay(memory: caliber.Caliber, name: str, other: str) -> None:
    admin = memory.acting_as(Principal.admin())
    host, user, own = (memory.acting_as(Principal.user(each)) for each in ("host", other, name))
    kept = user.add_note(**NOTE, content="zebra")
    task = user.start_trajectory("count stripes")
    shared = host.start_trajectory("count horns")
    host.access.grant(to=other, on=shared.trajectory_id)
    user.access.grant(to="host", on=task.trajectory_id)
    gone = own.add_note(**NOTE, content="okapi")
    mixed = admin.add_note(**NOTE, content="gnu", visible_to=[f"human:{name}", f"human:{other}"])
    report = memory.forget(user=name)
    assert report.proven, report
    assert {note.note_id for note in admin.storage.notes.all()} == {kept.note_id, mixed.note_id} - {gone.note_id}
    assert user.get(kept.note_id) == kept
    assert user.get(task.trajectory_id) == task
    assert user.get(shared.trajectory_id) == shared
    assert [grant.granted_by for grant in user.access.grants() if grant.on.id == task.trajectory_id] == [
        f"human:{other}"
    ]
    assert admin.get(mixed.note_id).visible_to == ("[forgotten]", f"human:{other}")
    assert [each.name for each in admin.identities.names(other)] == [other]
    assert user.update_note(kept.note_id, content="zebras").content == "zebras"


def test_agents_and_administrators_of_the_same_name_keep_their_records(memory: caliber.Caliber) -> None:
    admin = memory.acting_as(Principal.admin("root@x.com"))
    agent = memory.acting_as(Principal.agent("planner-1"))
    of_agent = agent.add_note(**NOTE, content="zebra", visible_to=["agent:planner-1"])
    of_admin = admin.add_note(**NOTE, content="gnu", visible_to=["admin:root@x.com"])
    for name in ("planner-1", "root@x.com"):
        memory.acting_as(Principal.user(name)).add_note(**NOTE, content="okapi")
        memory.forget(user=name)
    assert agent.get(of_agent.note_id) == of_agent
    assert admin.get(of_admin.note_id) == of_admin
    assert len(list(admin.storage.notes.all())) == 2


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("ana9x@e.com", "Ask ana9x@e.com.", "Ask [forgotten]."),
    ("Ana Lopez", "Ana Lopez. (ana lopez), Ana Lopez-", "[forgotten]. ([forgotten]), [forgotten]-"),
    ("Ana Lopez", "Ana Lopez-Garcia", "Ana Lopez-Garcia"),
    ("kim@x.com", "kim@x.com.au, kim@x.com", "kim@x.com.au, [forgotten]"),
    ("smith@x.com", "john.smith@x.com or - smith@x.com", "john.smith@x.com or - [forgotten]"),
])  # fmt: skip
def test_a_name_is_found_whole(name: str, text: str, wanted: str) -> None:
    assert Subject.of(None, (), names=[name]).without(text) == wanted


def test_a_plain_name_is_doubtful_in_no_longer_name() -> None:
    doubtful = Subject.of(caliber.EntityRef.user("ana"), (), names=["ana"]).doubtful
    assert not doubtful.mentioned("write to ana@example.com, ana-lena or lou.ana")
    assert all(map(doubtful.mentioned, ("I met Ana.", "she (ana) came", "ana")))
