"""Windows while a conflict is open: they hold one side, say that there is another, and explain and replay as ever.

Every copy of a store keeps its conflicts, and nothing of an erased side is left.

Source: C-286, C-401, C-448, C-459; O-14; issue 17, item 3; docs/pcp.md, Conflicts.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.agents.conflicts import Pair
from support.databases import Backend
from support.erasure.byte_search import searched
from support.weeks import SetClock

import caliber
from caliber.context.texts import DISPUTED_LEAD
from caliber.model import ConflictStatus, EntityRef, EntityType, Principal
from caliber.model.errors import BudgetTooSmall, Unavailable
from caliber.storage.bulk.parquet import open_parquet, write_parquet


def window(pair: Pair, memory: Any = None, **options: Any) -> Any:
    memory = memory or pair.memory
    memory.flush()
    return memory.assemble_context(pair.agent.trajectory_id, query="Where does Nadia live?", **options)


def places(found: Any) -> set[str]:
    return {place for place in ("Berlin", "Lisbon", "Rome") if place in found.text}


def test_a_window_holds_the_better_side_and_says_that_there_is_another(pair: Pair) -> None:
    assert places(window(pair)) == {"Berlin", "Lisbon"}
    conflict = pair.conflict()
    found = window(pair)
    assert places(found) == {"Berlin"}
    assert f"{DISPUTED_LEAD}- Nadia (fact): Nadia lives in Berlin." in found.text
    assert found.text.count(DISPUTED_LEAD) == 1
    assert found.used_tokens <= found.max_tokens
    (excluded,) = [each for each in found.assembly_trace if each.target_id == pair.newer.note_id]
    assert excluded.rule_id == "open_conflict"
    pair.memory.flush()
    why = pair.memory.explain(found.window_id, exclusion=pair.newer.note_id)
    assert (why["verdict"], why["rule_id"]) == ("excluded", "open_conflict")
    assert why["conflict_id"] == str(conflict.conflict_id)
    again = pair.memory.replay(found.window_id)
    assert again.text == found.text
    assert again.assembly_trace == found.assembly_trace


@pytest.mark.parametrize("order", ["priority", "stable_first"])
def test_newest_holds_the_newer_side(start: Any, backend: Backend, clock: SetClock, order: str) -> None:
    # a conflict that the strategy could not resolve, because who validates may not correct the loser, stays open
    pair = Pair(start, backend, clock, "newest", assembly__order=order)
    pair.memory.delete_note(pair.newer.note_id)
    ben = pair.memory.acting_as(Principal.agent("ben"))
    source = [pair.agent.trajectory_id]
    ben.add_note(
        content="Nadia lives in Lisbon.",
        entity="Nadia",
        entity_type="person",
        confidence=0.6,
        source_trajectory_ids=source,
    )
    (conflict,) = ben.pcp.validate(window(pair), record=True).conflicts
    assert conflict.is_open
    found = window(pair)
    assert places(found) == {"Lisbon"}
    assert DISPUTED_LEAD in found.text
    pair.memory.flush()
    assert pair.memory.replay(found.window_id).text == found.text


def test_a_resolved_conflict_leaves_no_mark(pair: Pair) -> None:
    key = pair.conflict().conflict_id
    pair.memory.conflicts.resolve(key, keep=pair.newer.note_id)
    pair.clock.at = pair.clock.at.replace(microsecond=1)
    found = window(pair)
    assert places(found) == {"Lisbon"}
    assert DISPUTED_LEAD not in found.text
    pair.memory.undo_note(pair.surer.note_id)
    assert places(window(pair)) == {"Berlin"}
    (again,) = pair.memory.conflicts.list()
    pair.memory.conflicts.resolve(again.conflict_id, keep="both")
    both = window(pair)
    assert places(both) == {"Berlin", "Lisbon"}
    assert DISPUTED_LEAD not in both.text


def test_of_three_that_contradict_each_other_one_stays(pair: Pair) -> None:
    pair.home("Rome", confidence=0.7)
    pair.memory.flush()
    assert len(pair.record()) == 3
    found = window(pair)
    assert places(found) == {"Berlin"}
    gone = [each.rule_id for each in found.assembly_trace if each.action == "exclude"]
    assert gone.count("open_conflict") == 2


def test_who_may_not_see_a_side_reads_the_other_without_a_mark(start: Any, backend: Backend, clock: SetClock) -> None:
    # nobody learns from a text that a hidden record exists
    pair = Pair(start, backend, clock)
    pair.memory.update_note(pair.surer.note_id, visible_to=["human:ana"])
    pair.memory.flush()
    pair.conflict()
    ben, ana = (pair.memory.acting_as(Principal.user(name)) for name in ("ben", "ana"))
    assert places(window(pair, ben)) == {"Lisbon"}
    assert DISPUTED_LEAD not in window(pair, ben).text
    assert places(window(pair, ana)) == {"Berlin"}
    assert DISPUTED_LEAD in window(pair, ana).text


def test_the_mark_counts_toward_the_budget(pair: Pair) -> None:
    pair.conflict()
    whole = window(pair)
    for most in range(whole.used_tokens, whole.used_tokens - 12, -1):
        small = window(pair, max_tokens=most)
        assert small.used_tokens <= most
        assert ("Berlin" not in small.text) or DISPUTED_LEAD in small.text


def test_a_window_as_of_an_instant_before_a_side_held_has_no_dispute(
    start: Any, backend: Backend, clock: SetClock
) -> None:
    pair = Pair(start, backend, clock)
    pair.memory.update_note(pair.surer.note_id, valid_from=clock.at - timedelta(days=1))
    pair.memory.flush()
    pair.conflict()
    pair.memory.update_note(pair.newer.note_id, valid_from=clock.at + timedelta(days=1))
    found = window(pair)
    assert places(found) == {"Berlin"}
    assert DISPUTED_LEAD not in found.text


LONG = "Nadia lives in Berlin. " + "The stairs creak and the kitchen faces a quiet garden. " * 12


@pytest.fixture
def long_pair(start: Any, backend: Backend, clock: SetClock) -> Pair:
    """The surer side is long: in a small window it does not fit."""
    pair = Pair(start, backend, clock, assembly__overflow_policy="exclude")
    pair.memory.update_note(pair.surer.note_id, content=LONG)
    pair.memory.flush()
    pair.conflict()
    return pair


def test_where_the_better_side_does_not_fit_the_other_one_enters_and_is_marked(long_pair: Pair) -> None:
    memory, (conflict,) = long_pair.memory, long_pair.memory.conflicts.list()
    assert places(window(long_pair)) == {"Berlin"}
    found = window(long_pair, max_tokens=120)
    assert places(found) == {"Lisbon"}
    assert f"{DISPUTED_LEAD}- Nadia (fact): Nadia lives in Lisbon." in found.text
    assert found.used_tokens <= 120
    (excluded,) = [each for each in found.assembly_trace if each.target_id == long_pair.surer.note_id]
    assert (excluded.action, excluded.rule_id) == ("exclude", "open_conflict")
    assert "did not fit" in excluded.reason
    memory.flush()
    why = memory.explain(found.window_id, exclusion=long_pair.surer.note_id)
    assert (why["verdict"], why["conflict_id"]) == ("excluded", str(conflict.conflict_id))
    assert "did not fit" in why["reason"]
    again = memory.replay(found.window_id)
    assert (again.text, again.assembly_trace) == (found.text, found.assembly_trace)


def test_where_no_side_fits_each_was_tried(long_pair: Pair) -> None:
    memory = long_pair.memory
    memory.update_note(long_pair.newer.note_id, content=LONG.replace("Berlin", "Lisbon"))
    memory.flush()
    long_pair.conflict()
    long_pair.agent.say("Hello.")
    found = window(long_pair, max_tokens=120)
    assert places(found) == set()
    reasons = {each.target_id: each for each in found.assembly_trace}
    assert reasons[long_pair.surer.note_id].rule_id == "budget_limit"
    assert "did not fit" in reasons[long_pair.newer.note_id].reason
    memory.flush()
    assert memory.replay(found.window_id).assembly_trace == found.assembly_trace


def test_whatever_the_budget_at_most_one_side_enters_and_is_marked(long_pair: Pair) -> None:
    # a window in which nothing but the other side fits is no error
    for most in range(40, 260, 5):
        try:
            found = window(long_pair, max_tokens=most)
        except BudgetTooSmall:
            continue
        assert found.used_tokens <= most
        assert len(places(found)) <= 1
        assert (DISPUTED_LEAD in found.text) is bool(places(found))
        if most >= 60:
            assert places(found)


@pytest.mark.parametrize("mode", ["resident", "backend"])
def test_a_window_with_room_for_nothing_but_the_other_side_is_no_error(
    start: Any, backend: Backend, clock: SetClock, mode: str
) -> None:
    small: dict[str, Any] = {"assembly__order": "priority", "assembly__section_shares": {}}
    small |= {"assembly__overflow_policy": "exclude", "system_instructions": None, "persona": None}
    pair = Pair(start, backend, clock, **small, search__mode=mode)
    pair.memory.update_note(pair.surer.note_id, content=LONG)
    pair.memory.flush()
    pair.memory.pcp.validate(window(pair), record=True)
    assert len(pair.memory.conflicts.list()) == 1
    found = window(pair, max_tokens=60)
    assert places(found) == {"Lisbon"}
    assert DISPUTED_LEAD in found.text
    pair.memory.flush()
    assert pair.memory.replay(found.window_id).text == found.text
    assert not places(window(pair, max_tokens=10))


def test_windows_of_a_tenant_that_is_not_resident_hold_one_of_two_sides(
    start: Any, backend: Backend, clock: SetClock
) -> None:
    pair = Pair(start, backend, clock, search__mode="backend")
    (conflict,) = pair.memory.pcp.validate(window(pair), record=True).conflicts
    assert pair.memory.conflicts.list() == pair.memory.conflicts.list(task=pair.agent.trajectory_id) == [conflict]
    found = window(pair)
    assert places(found) == {"Berlin"}
    assert DISPUTED_LEAD in found.text
    ben = pair.memory.acting_as(Principal.user("ben"))
    pair.memory.update_note(pair.surer.note_id, visible_to=["human:ana"])
    assert places(window(pair, ben)) == {"Lisbon"}
    assert DISPUTED_LEAD not in window(pair, ben).text
    assert ben.conflicts.list() == []
    kept = pair.memory.conflicts.resolve(conflict.conflict_id, keep=pair.surer.note_id)
    assert kept.kept.id == pair.surer.note_id
    pair.clock.at += timedelta(seconds=1)
    again = window(pair)
    assert places(again) == {"Berlin"}
    assert DISPUTED_LEAD not in again.text
    with pytest.raises(Unavailable):  # records of a task are found in memory
        pair.memory.pcp.validate(pair.agent.trajectory_id)


@pytest.fixture
def third_settled(start: Any, backend: Backend, clock: SetClock) -> Pair:
    """A pair with an open conflict, and a third note whose conflicts were resolved."""
    pair = Pair(start, backend, clock)
    third = pair.home("Rome", confidence=0.4)
    pair.memory.flush()
    for each in pair.record():
        if third.note_id in (each.item_a.id, each.item_b.id) and each.is_open:
            pair.memory.conflicts.resolve(each.conflict_id, keep="both", reason="she has two homes")
    return pair


def listed(memory: caliber.Caliber) -> list[Any]:
    found = [each for status in ConflictStatus for each in memory.conflicts.list(status=status)]
    assert len(found) == 3
    return found


def check_copy(pair: Pair, copy: caliber.Caliber, known: list[Any]) -> None:
    """Check that a copy has the same conflicts, and that windows and corrections know of them."""
    assert listed(copy) == known
    found = copy.assemble_context(pair.agent.trajectory_id, query="Where does Nadia live?").text
    assert DISPUTED_LEAD in found
    assert "Berlin" in found
    assert "Lisbon" not in found
    (waits,) = [each for each in known if each.is_open]
    assert copy.pcp.validate(pair.agent.trajectory_id, record=True).conflicts == (waits,)
    copy.end_note(pair.newer.note_id)
    assert copy.conflicts.list() == []
    assert copy.storage.conflicts.get(waits.conflict_id).kept.id == pair.surer.note_id
    assert copy.admin.verify() == []
    assert listed(pair.memory) == known


@pytest.mark.parametrize("into", ["sqlite", "sqlite-memory", "postgres"])
def test_conflicts_go_through_parquet_files(
    third_settled: Pair, another: Any, clock: SetClock, into: str, tmp_path: Path
) -> None:
    # what `caliber export` and `caliber import` do
    known = listed(third_settled.memory)
    copy = another(into).open(clock=clock)
    exported = [name for name, unasked in third_settled.memory.storage.exported.items() if unasked]
    assert "conflict" in exported
    for name in exported:
        write_parquet(tmp_path / name, third_settled.memory.storage.bulk_read(name, batch_rows=100), lambda *_: None)
    for name in exported:
        with open_parquet(tmp_path / name, batch_rows=100) as file:
            copy.storage.bulk_load(name, file.reader)
    copy.flush()
    check_copy(third_settled, copy, known)


# --- erasure ---------------------------------------------------------------------------------------


def find(backend: Backend, memory: caliber.Caliber, folder: Path, *words: str) -> list[tuple[str, bytes]]:
    """Return the places of bytes of a store that hold one of some words."""
    return list(searched(backend, memory, folder, [word.encode() for word in words]))


def conflicts_left(memory: caliber.Caliber) -> int:
    return len(list(memory.storage.conflicts.all()))


@pytest.fixture
def rare(start: Any, backend: Backend, clock: SetClock) -> Pair:
    """A pair whose second side names a place that nothing else names, in a conflict that was resolved."""
    pair = Pair(start, backend, clock)
    pair.far = pair.home("Quorvania", confidence=0.3)  # type: ignore[attr-defined]
    pair.memory.flush()
    for each in pair.record():
        assert each.is_open
    (first, *_) = [each for each in pair.record() if "quorvania" in each.reason.casefold()]
    pair.memory.conflicts.resolve(first.conflict_id, keep="both", reason="Quorvania is a name of it")
    return pair


def test_a_side_that_is_forgotten_leaves_no_trace_in_conflicts(rare: Pair, backend: Backend, tmp_path: Path) -> None:
    assert find(backend, rare.memory, tmp_path, "quorvania")
    report = rare.memory.forget(entity=EntityRef(EntityType.NOTE, rare.far.note_id))  # type: ignore[attr-defined]
    assert report.proven, report
    assert conflicts_left(rare.memory) == 1
    assert find(backend, rare.memory, tmp_path, "quorvania") == []


def test_a_subject_that_is_forgotten_leaves_no_trace_in_conflicts(rare: Pair, backend: Backend, tmp_path: Path) -> None:
    report = rare.memory.forget(texts=("Nadia",))
    assert report.proven, report
    assert conflicts_left(rare.memory) == 0
    assert find(backend, rare.memory, tmp_path, "quorvania", "nadia") == []


def test_a_conflict_goes_with_the_words_that_a_side_loses(
    start: Any, backend: Backend, clock: SetClock, tmp_path: Path
) -> None:
    # the side stays without the name; the reason had it in another form
    pair = Pair(start, backend, clock)
    about = {"entity": "depot", "entity_type": "place", "source_trajectory_ids": [pair.agent.trajectory_id]}
    side = pair.agent.note("The depot of Élodie Quorvâne has 4 gates.", **about)
    pair.agent.note("The depot of Élodie Quorvâne has 9 gates.", **about)
    pair.memory.flush()
    assert len(pair.record()) == 2
    report = pair.memory.forget(texts=("Élodie Quorvâne",))
    assert report.proven, report
    assert "[forgotten]" in pair.note(side).content
    assert conflicts_left(pair.memory) == 1
    assert find(backend, pair.memory, tmp_path, "quorv", "lodie") == []


def test_a_purged_task_leaves_no_trace_in_conflicts(
    third_settled: Pair, start: Any, backend: Backend, tmp_path: Path
) -> None:
    other = start(third_settled.memory)
    other.keep("The quorvaneq Redis instance listens on port 6379177.")
    other.keep("The quorvaneq Redis instance listens on port 6380199.")
    third_settled.memory.flush()
    (conflict,) = third_settled.memory.pcp.validate(other.trajectory_id, record=True).conflicts
    assert find(backend, third_settled.memory, tmp_path, "6379177")
    third_settled.memory.admin.purge_trajectory(other.trajectory_id)
    assert third_settled.memory.storage.conflicts.get(conflict.conflict_id) is None
    assert find(backend, third_settled.memory, tmp_path, "6379177", "quorvaneq") == []
