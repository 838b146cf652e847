"""Conflicts: recorded once a pair, listed for whom sees both sides, resolved without overwriting, and reopened by undo.

Source: C-286, C-376, C-401, C-417, C-432, C-433, C-441.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from support.agents.conflicts import Pair
from support.databases import Backend
from support.providers import ScriptedSummarizer
from support.threads import at_once
from support.weeks import SetClock

from caliber.model import ConflictStatus, ConflictWinner, Principal
from caliber.model.errors import InvalidStateTransition, InvalidValue, NotFound, PermissionDenied, RequiredFieldMissing
from caliber.model.events import EventFamily

# --- recording -------------------------------------------------------------------------------------


def test_validation_records_nothing_unless_asked(pair: Pair) -> None:
    assert pair.memory.pcp.validate(pair.agent.trajectory_id).conflicts == ()
    assert pair.memory.conflicts.list() == []


def test_a_pair_has_one_open_conflict_however_often_it_is_found(pair: Pair) -> None:
    # C-432
    first = pair.conflict()
    assert first.status is ConflictStatus.ESCALATED
    assert first.is_open
    assert {first.item_a.id, first.item_b.id} == {pair.surer.note_id, pair.newer.note_id}
    assert first.item_a.id.bytes < first.item_b.id.bytes
    assert "Berlin" in first.reason.title()
    assert pair.record() == (first,)
    assert pair.memory.conflicts.list() == [first]
    assert pair.memory.storage.conflicts.get(first.conflict_id) == first


def test_artifacts_of_one_task_have_a_conflict_of_that_task(pair: Pair) -> None:
    # C-401, C-260
    agent = pair.agent
    one = agent.keep("The staging Redis instance listens on port 6379.")
    other = agent.keep("The staging Redis instance listens on port 6380.")
    pair.memory.flush()
    found = [each for each in pair.record() if each.trajectory_id is not None]
    (conflict,) = found
    assert conflict.trajectory_id == agent.trajectory_id
    assert {conflict.item_a.id, conflict.item_b.id} == {one.artifact_id, other.artifact_id}
    ended = pair.memory.conflicts.resolve(conflict.conflict_id, keep=other.artifact_id)
    assert ended.kept.id == other.artifact_id
    assert pair.memory.get(one.artifact_id).expires_at is not None
    pair.memory.artifacts.undo(one.artifact_id)
    assert [each.trajectory_id for each in pair.memory.conflicts.list(task=agent.trajectory_id)].count(
        agent.trajectory_id
    ) == 1


def test_an_unverified_contradiction_is_no_conflict(start: Any, backend: Backend, clock: SetClock) -> None:
    # C-286: confirmed contradictions only
    class Denies(ScriptedSummarizer):
        def verify_contradiction(self, a: str, b: str) -> bool:
            return False

    pair = Pair(start, backend, clock, summarization_provider=Denies())
    assert pair.record() == ()


def test_two_processes_that_find_a_contradiction_at_once_record_one_conflict(
    start: Any, backend: Backend, clock: SetClock
) -> None:
    pair = Pair(start, backend, clock)
    found: list[Any] = []

    def validate() -> None:
        found.extend(pair.memory.pcp.validate(pair.agent.trajectory_id, record=True).conflicts)

    at_once([validate] * 2)
    assert len({each.conflict_id for each in found}) == 1
    assert len(pair.memory.conflicts.list()) == 1


# --- strategies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "kept"), [("newest", "newer"), ("highest_confidence", "surer")])
def test_the_configured_strategy_resolves_what_is_recorded(
    start: Any, backend: Backend, clock: SetClock, strategy: str, kept: str
) -> None:
    """The knob is ``pcp.grounding.conflict_resolution``."""
    # C-286
    pair = Pair(start, backend, clock, strategy)
    conflict = pair.conflict()
    assert conflict.status is ConflictStatus.RESOLVED
    assert conflict.strategy == strategy
    assert conflict.kept.id == getattr(pair, kept).note_id
    assert pair.note(pair.surer).valid_until is None or kept == "newer"
    assert (pair.note(pair.newer).valid_until is None) is (kept == "newer")
    assert pair.memory.conflicts.list() == []
    assert pair.memory.conflicts.list(status="resolved") == [conflict]
    assert pair.record() == ()  # one of the two holds no more


def test_equal_confidence_keeps_the_newer(pair: Pair) -> None:
    # C-286
    pair.memory.update_note(pair.surer.note_id, confidence=0.6)
    conflict = pair.memory.conflicts.resolve(pair.conflict().conflict_id, strategy="highest_confidence")
    assert conflict.kept.id == pair.newer.note_id


def test_a_clock_that_went_back_makes_no_note_newer(start: Any, backend: Backend, clock: SetClock) -> None:
    pair = Pair(start, backend, clock, "newest")
    clock.at -= timedelta(microseconds=60_000_000)
    later = pair.home("Rome", confidence=0.5)
    pair.memory.flush()
    pair.record()
    assert pair.note(pair.newer).valid_until is None
    assert pair.note(later).valid_until is not None or pair.memory.conflicts.list() != []


def test_nothing_is_overwritten_and_a_read_as_of_before_finds_the_loser(pair: Pair) -> None:
    # C-286
    before = pair.clock.at
    pair.clock.at += timedelta(microseconds=1_000_000)
    conflict = pair.memory.conflicts.resolve(pair.conflict().conflict_id, keep=pair.newer.note_id, reason="she moved")
    assert conflict.status is ConflictStatus.RESOLVED
    assert conflict.resolution_reason == "she moved"
    assert conflict.resolved_by == conflict.detected_by
    loser = pair.note(pair.surer)
    assert (loser.content, loser.archived_at) == (pair.surer.content, None)
    assert loser.valid_until == conflict.resolved_at
    pair.clock.at += timedelta(microseconds=1)
    pair.memory.flush()
    now = {hit.id for hit in pair.memory.search("Nadia lives", kinds=["note"], limit=5).hits}
    then = {hit.id for hit in pair.memory.search("Nadia lives", kinds=["note"], limit=5, as_of=before).hits}
    assert now == {pair.newer.note_id}
    assert then == {pair.newer.note_id, pair.surer.note_id}


def test_undoing_the_end_of_the_loser_opens_a_conflict_again(pair: Pair) -> None:
    first = pair.memory.conflicts.resolve(pair.conflict().conflict_id, keep=pair.newer.note_id)
    pair.memory.undo_note(pair.surer.note_id)
    assert pair.note(pair.surer).valid_until is None
    (again,) = pair.memory.conflicts.list()
    assert again.conflict_id != first.conflict_id
    assert (again.item_a, again.item_b, again.reason) == (first.item_a, first.item_b, first.reason)
    assert pair.memory.storage.conflicts.get(first.conflict_id).status is ConflictStatus.RESOLVED
    assert pair.memory.conflicts.resolve(again.conflict_id, keep=pair.surer.note_id).kept.id == pair.surer.note_id


def test_a_resolution_and_its_audit_events_are_one_transaction(pair: Pair) -> None:
    conflict = pair.conflict()
    pair.memory.conflicts.resolve(conflict.conflict_id, keep=pair.newer.note_id)
    decoded = pair.memory.storage.events.list_audit_by_subject(conflict.conflict_id)
    assert [each.event_type for each in decoded] == ["conflict_detect", "conflict_resolve"]
    assert {each.family for each in decoded} == {EventFamily.AUDIT}
    assert decoded[-1].payload["strategy"] == "manual"


def test_keeping_both_ends_neither_and_is_not_found_again_until_one_is_corrected(pair: Pair) -> None:
    conflict = pair.memory.conflicts.resolve(pair.conflict().conflict_id, keep="both", reason="she has two homes")
    assert conflict.winner is ConflictWinner.BOTH
    assert (conflict.kept, conflict.ended) == (None, None)
    assert pair.note(pair.surer).valid_until is pair.note(pair.newer).valid_until is None
    assert pair.record() == ()
    pair.memory.update_note(pair.surer.note_id, content="Nadia lives in Hamburg.")
    pair.memory.flush()
    assert len(pair.record()) == 1


# --- bad input -------------------------------------------------------------------------------------


def test_resolving_twice_changes_nothing_and_otherwise_is_refused(pair: Pair) -> None:
    # C-441, C-443
    key = pair.conflict().conflict_id
    first = pair.memory.conflicts.resolve(key, keep=pair.newer.note_id)
    assert pair.memory.conflicts.resolve(str(key), keep=str(pair.newer.note_id)) == first
    with pytest.raises(InvalidStateTransition):
        pair.memory.conflicts.resolve(key, keep=pair.surer.note_id)
    with pytest.raises(InvalidStateTransition):
        pair.memory.conflicts.resolve(key, keep="both")


def test_of_two_who_resolve_at_once_one_decides(pair: Pair) -> None:
    key = pair.conflict().conflict_id
    ends: list[Any] = []

    def resolve(keep: uuid.UUID) -> None:
        try:
            ends.append(pair.memory.conflicts.resolve(key, keep=keep))
        except InvalidStateTransition as error:
            ends.append(error)

    at_once([partial(resolve, each.note_id) for each in (pair.surer, pair.newer)])
    (decided,) = [each for each in ends if not isinstance(each, Exception)]
    assert len(ends) == 2
    standing = [each for each in (pair.surer, pair.newer) if pair.note(each).valid_until is None]
    assert [each.note_id for each in standing] == [decided.kept.id]


def test_a_person_decides_where_nothing_else_does(pair: Pair) -> None:
    key = pair.conflict().conflict_id
    with pytest.raises(RequiredFieldMissing):
        pair.memory.conflicts.resolve(key)
    with pytest.raises(InvalidValue):
        pair.memory.conflicts.resolve(key, keep=pair.agent.trajectory_id)
    with pytest.raises(InvalidValue):
        pair.memory.conflicts.resolve(key, keep=pair.newer.note_id, strategy="newest")
    with pytest.raises(NotFound):
        pair.memory.conflicts.resolve(uuid.uuid4(), strategy="newest")
    assert pair.memory.conflicts.resolve(key, strategy="manual").is_open


def test_correcting_a_side_closes_the_conflict(pair: Pair) -> None:
    key = pair.conflict().conflict_id
    pair.memory.update_note(pair.surer.note_id, content="Nadia works in Berlin.")
    closed = pair.memory.storage.conflicts.get(key)
    assert (closed.status, closed.winner) == (ConflictStatus.RESOLVED, ConflictWinner.NONE)
    assert pair.memory.conflicts.list() == []


@pytest.mark.parametrize("how", ["end", "delete", "supersede"])
def test_a_side_that_ends_by_hand_leaves_the_other_one(pair: Pair, how: str) -> None:
    key = pair.conflict().conflict_id
    if how == "supersede":
        pair.memory.supersede_note(pair.surer.note_id, content="Nadia lives in Lisbon, near the river.")
    else:
        getattr(pair.memory, f"{how}_note")(pair.surer.note_id)
    closed = pair.memory.storage.conflicts.get(key)
    assert closed.kept.id == pair.newer.note_id
    assert pair.memory.conflicts.list() == []


def test_a_side_that_ended_by_itself_is_not_kept_by_a_strategy(start: Any, backend: Backend, clock: SetClock) -> None:
    pair = Pair(start, backend, clock)
    rome = pair.home("Rome", confidence=1.0, valid_until=clock.at + timedelta(seconds=5))
    pair.memory.flush()
    for conflict in pair.record():
        if rome.note_id not in (conflict.item_a.id, conflict.item_b.id):
            continue
        clock.at += timedelta(microseconds=6_000_000)
        done = pair.memory.conflicts.resolve(conflict.conflict_id, strategy="highest_confidence")
        assert done.kept.id != rome.note_id
        assert pair.note(done.kept and pair.surer).valid_until is None
        break
    else:
        pytest.fail("no conflict with the third note")


def test_who_may_not_see_a_side_sees_no_conflict(start: Any, backend: Backend, clock: SetClock) -> None:
    # M-118, O-14
    pair = Pair(start, backend, clock)
    private = pair.home("Rome", visible_to=["human:ana"])
    pair.memory.flush()
    assert len(pair.record()) == 3
    ben = pair.memory.acting_as(Principal.user("ben"))
    ana = pair.memory.acting_as(Principal.user("ana"))
    assert len(ana.conflicts.list()) == 3
    (seen,) = ben.conflicts.list()
    assert private.note_id not in (seen.item_a.id, seen.item_b.id)
    hidden = next(each for each in pair.memory.conflicts.list() if each.conflict_id != seen.conflict_id)
    with pytest.raises(NotFound):
        ben.conflicts.resolve(hidden.conflict_id, strategy="newest")
    with pytest.raises(NotFound):
        ben.conflicts.list(after=hidden.conflict_id)
    with pytest.raises(NotFound):
        ben.conflicts.get(hidden.conflict_id)
    assert ben.conflicts.get(seen.conflict_id) == seen
    for strategy in ("newest", "manual"):
        with pytest.raises(PermissionDenied):
            ben.conflicts.resolve(seen.conflict_id, strategy=strategy)
    with pytest.raises(PermissionDenied):
        ben.conflicts.resolve(seen.conflict_id, keep="both")
    assert pair.note(pair.surer).valid_until is None


def test_conflicts_come_in_pages(pair: Pair) -> None:
    for place in ("Rome", "Paris"):
        pair.home(place)
    pair.memory.flush()
    everything = pair.record()
    assert len(everything) == 6
    out: list[Any] = []
    while page := pair.memory.conflicts.list(limit=4, after=out[-1].conflict_id if out else None):
        out += page
    assert len(out) == 6
    assert {each.conflict_id for each in out} == {each.conflict_id for each in everything}
    with pytest.raises(InvalidValue):
        pair.memory.conflicts.list(limit=0)
    with pytest.raises(InvalidValue):
        pair.memory.conflicts.list(status="settled")


def test_conflicts_of_a_task_are_those_of_its_records(pair: Pair, start: Any) -> None:
    other = start(pair.memory)
    conflict = pair.conflict()
    assert pair.memory.conflicts.list(task=pair.agent.trajectory_id) == [conflict]
    assert pair.memory.conflicts.list(task=other.trajectory_id) == []


def test_an_application_lists_and_resolves_for_a_user(start: Any, backend: Backend, clock: SetClock) -> None:
    pair = Pair(start, backend, clock, principal=Principal.application("app"))
    app = pair.memory
    for place in ("Rome", "Paris"):
        note = {"entity": "Ana", "entity_type": "person", "note_type": "fact", "confidence": 0.8}
        app.add_note(content=f"Ana lives in {place}.", user="ana", **note)
    task = app.start_trajectory("plan", user="ana").trajectory_id
    app.flush()
    window = app.assemble_context(task, query="Where does Ana live?")
    found = app.pcp.validate(window, record=True).conflicts
    private = [each for each in found if "Rome" in each.reason.title() or "Paris" in each.reason.title()]
    assert len(private) == 1
    assert private[0] not in app.conflicts.list()
    assert private[0] in app.conflicts.list(user="ana")
    with pytest.raises(NotFound):
        app.conflicts.resolve(private[0].conflict_id, strategy="newest")
    with pytest.raises(NotFound):
        app.conflicts.get(private[0].conflict_id)
    assert app.conflicts.get(private[0].conflict_id, user="ana") == private[0]
    assert app.conflicts.resolve(private[0].conflict_id, strategy="newest", user="ana").kept is not None
    assert len(app.conflicts.history(private[0].conflict_id, user="ana")) == 1


# --- limited readers -------------------------------------------------------------------------------


def test_a_conflict_forgets_the_words_that_a_side_no_longer_has(pair: Pair) -> None:
    # a reader who may see both sides now may not have been allowed to read them as they were
    memory = pair.memory
    for close in (False, True):
        memory.update_note(pair.surer.note_id, content="Nadia lives in Berlin.", visible_to=["human:ana"])
        memory.flush()
        key = pair.conflict().conflict_id
        if close:
            memory.conflicts.resolve(key, keep="both")
        memory.update_note(pair.surer.note_id, content="Nadia works in Hamburg.", visible_to=None)
        seen = memory.acting_as(Principal.user("ben")).conflicts.list(status="resolved")
        assert key in {each.conflict_id for each in seen}
        assert "berlin" not in repr(seen).casefold()


def test_a_task_that_is_hidden_from_a_user_has_no_conflicts_for_them(
    start: Any, backend: Backend, clock: SetClock
) -> None:
    app = Pair(start, backend, clock, principal=Principal.application("app")).memory
    task = app.start_trajectory("plan", user="ana").trajectory_id
    assert app.conflicts.list(task=task, user="ana") == []
    for hidden in (task, uuid.uuid4()):
        with pytest.raises(NotFound):
            app.conflicts.list(task=hidden, user="ben")


def test_the_log_of_a_task_tells_nobody_what_others_found(start: Any, backend: Backend, clock: SetClock) -> None:
    # the counts of a check are those of the records that its principal saw
    pair = Pair(start, backend, clock)
    pair.memory.update_note(pair.surer.note_id, visible_to=["human:ana"])
    pair.memory.flush()
    pair.conflict()
    ben = pair.memory.acting_as(Principal.user("ben"))
    ben.pcp.validate(pair.agent.trajectory_id)
    pair.memory.flush()

    def found(memory: Any) -> list[int | None]:
        events = memory.trace(pair.agent.trajectory_id, event_type="validation_run")
        return [each.payload.get("contradiction") for each in events if each.payload or memory is not ben]

    assert 1 in found(pair.memory)
    assert found(ben) == [None]
    assert "conflict" not in repr(ben.trace(pair.agent.trajectory_id))


@pytest.mark.parametrize("kind", ["artifact", "note"])
def test_an_agent_without_the_right_to_read_a_side_sees_no_conflict(
    start: Any, backend: Backend, clock: SetClock, kind: str
) -> None:
    kinds = ("trajectory", "scope", "turn", "artifact", "note")
    may = {each: "all" for each in kinds if each != kind}
    rights = {"agent:narrow": {"read": may, "write": may}}
    pair = Pair(start, backend, clock, access__rights=rights)
    pair.agent.keep("The staging Redis instance listens on port 6379.")
    pair.agent.keep("The staging Redis instance listens on port 6380.")
    pair.memory.flush()
    everything = pair.record()
    narrow = pair.memory.acting_as(Principal.agent("narrow"))
    assert len(everything) == 2
    seen = narrow.conflicts.list()
    assert {str(each.item_a.entity_type) for each in seen} == {"artifact", "note"} - {kind}
    (hidden,) = [each for each in everything if each not in seen]
    for refused in (
        lambda: narrow.conflicts.resolve(hidden.conflict_id, strategy="newest"),
        lambda: narrow.conflicts.list(after=hidden.conflict_id),
        lambda: narrow.get(hidden.conflict_id),
    ):
        with pytest.raises(NotFound):
            refused()
    assert list(narrow.pcp.validate(pair.agent.trajectory_id, record=True).conflicts) == seen


def test_who_may_only_read_records_and_resolves_nothing(backend: Any) -> None:
    memory = backend.open()
    ana, bob = (memory.acting_as(Principal.user(name)) for name in ("ana", "bob"))
    task = ana.start_trajectory("watch the pump").trajectory_id
    scope = ana.current_scope(task)
    assert scope is not None
    for seconds in (30, 60):
        text = f"The timeout of the pump is {seconds} seconds."
        ana.create_artifact(scope.scope_id, artifact_type="fact", content=text, extraction_method="explicit")
    ana.access.grant(to="bob", on=task)
    seen = bob.pcp.validate(task, record=True)
    assert seen.issues
    assert seen.conflicts == ()
    assert memory.conflicts.list() == []
    (conflict,) = ana.pcp.validate(task, record=True).conflicts
    assert conflict.is_open
    for keep in ("both", conflict.item_a.id):
        with pytest.raises(PermissionDenied):
            bob.conflicts.resolve(conflict.conflict_id, keep=keep)
    ana.access.revoke(on=task, to="bob")
    ana.access.grant(to="bob", on=task, right="write")
    assert not bob.conflicts.resolve(conflict.conflict_id, keep="both").is_open
