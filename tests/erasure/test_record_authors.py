"""Words that a user wrote into records of declared memories, in the tasks of others, go with their author."""

from __future__ import annotations

from typing import Any

import pytest
from support.erasure.byte_search import searched
from support.erasure.shared_tasks import BEN, WORDS, contents, shared_task
from support.memories import FACT

import caliber
from caliber.model import Principal

HARMLESS = {"subject": "trip", "kind": "claim"}


def facts(memory: caliber.Caliber) -> list[tuple[str, str | None]]:
    """Return the words of all records that are stored, and who wrote them."""
    return [(each.content, each.created_by) for each in memory.acting_as(Principal.admin()).records("fact").find()]


@pytest.fixture
def memory(backend: Any) -> Any:
    return backend.open(memories=[FACT])


def test_words_of_a_guest_in_a_record_of_the_host_go_with_the_guest(backend: Any, tmp_path: Any) -> None:
    memory = backend.open(memories=[FACT])
    host, guest, task = shared_task(memory)
    own, changed = (
        host.records("fact").insert(trajectory=task.trajectory_id, content=text, **HARMLESS)
        for text in ("We leave on Monday.", "We leave on Tuesday.")
    )
    guest.records("fact").update(changed.record_id, content="My blood type is AB negative.")
    about: dict[str, Any] = {"entity": "x", "entity_type": "thing", "confidence": 0.9}
    host.add_note(**about, content="We leave on Tuesday.", source_trajectory_ids=(task.trajectory_id,))

    report = memory.forget(user=BEN)

    assert not report.findings
    assert "notes (1) of tasks that the subject" in report.remaining[0]
    assert facts(memory) == [("We leave on Monday.", own.created_by)]
    assert [each.content for each in memory.acting_as(Principal.admin()).storage.notes.all()] == [
        "We leave on Tuesday."
    ], "the host's own words"
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_words_of_the_host_in_a_record_of_a_guest_stay(backend: Any, tmp_path: Any) -> None:
    memory = backend.open(memories=[FACT])
    host, guest, task = shared_task(memory)
    made = guest.records("fact").insert(
        trajectory=task.trajectory_id, content="My blood type is AB negative.", **HARMLESS
    )
    host.records("fact").update(made.record_id, content="We leave on Monday.")

    assert memory.forget(user=BEN).proven

    assert [words for words, _ in facts(memory)] == ["We leave on Monday."]
    assert memory.acting_as(Principal.admin()).storage.content_versions.count() == 0
    assert not list(searched(backend, memory, tmp_path, [WORDS]))


def test_a_record_that_holds_words_of_both_goes_with_the_guest(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    both, made = (
        handle.records("fact").insert(trajectory=task.trajectory_id, content=text, about={"day": "Monday"}, **HARMLESS)
        for handle, text in ((host, "We leave."), (guest, "My blood type is AB negative."))
    )
    guest.records("fact").update(both.record_id, about={"blood": "AB negative"})
    host.records("fact").update(made.record_id, about={"day": "Tuesday"})
    assert memory.forget(user=BEN).proven
    assert facts(memory) == []


def test_other_changes_have_no_author(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    made = host.records("fact").insert(trajectory=task.trajectory_id, content="We leave on Monday.", **HARMLESS)
    changed = guest.records("fact").update(made.record_id, score=0.5)
    assert changed.created_by == made.created_by
    assert memory.forget(user=BEN).proven
    assert facts(memory) == [("We leave on Monday.", made.created_by)]


def test_a_record_that_the_host_repeats_is_the_hosts(memory: caliber.Caliber) -> None:
    host, guest, task = shared_task(memory)
    kept: dict[str, Any] = {"trajectory": task.trajectory_id, "content": "We leave on Monday.", **HARMLESS}
    made = guest.records("fact").insert(**kept, idempotency_key="one")
    assert guest.records("fact").insert(**kept, idempotency_key="one") == made
    again = host.records("fact").insert(**kept, idempotency_key="one")
    assert (again.record_id, again.created_by) == (made.record_id, "human:ana@example.com@")
    assert guest.records("fact").insert(**kept, idempotency_key="one") == again
    assert memory.forget(user=BEN).proven
    assert [words for words, _ in facts(memory)] == ["We leave on Monday."]
    assert contents(memory) == []
