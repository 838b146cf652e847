"""Conflicts in copies of a store, and after erasure: every copy keeps them, and nothing of an erased side is left.

Source: issue 17, item 3; C-401; O-14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agents.conflicts import Pair
from support.databases import Backend
from support.erasure.byte_search import searched
from support.weeks import SetClock

import caliber
from caliber.context.texts import DISPUTED_LEAD
from caliber.model import ConflictStatus, EntityRef, EntityType
from caliber.storage.bulk.parquet import open_parquet, write_parquet


@pytest.fixture
def pair(start: Any, backend: Backend, clock: SetClock) -> Pair:
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
    pair: Pair, another: Any, clock: SetClock, into: str, tmp_path: Path
) -> None:
    # what `caliber export` and `caliber import` do
    known = listed(pair.memory)
    copy = another(into).open(clock=clock)
    exported = [name for name, unasked in pair.memory.storage.exported.items() if unasked]
    assert "conflict" in exported
    for name in exported:
        write_parquet(tmp_path / name, pair.memory.storage.bulk_read(name, batch_rows=100), lambda *_: None)
    for name in exported:
        with open_parquet(tmp_path / name, batch_rows=100) as file:
            copy.storage.bulk_load(name, file.reader)
    copy.flush()
    check_copy(pair, copy, known)


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


def test_a_purged_task_leaves_no_trace_in_conflicts(pair: Pair, start: Any, backend: Backend, tmp_path: Path) -> None:
    other = start(pair.memory)
    other.keep("The quorvaneq Redis instance listens on port 6379177.")
    other.keep("The quorvaneq Redis instance listens on port 6380199.")
    pair.memory.flush()
    (conflict,) = pair.memory.pcp.validate(other.trajectory_id, record=True).conflicts
    assert find(backend, pair.memory, tmp_path, "6379177")
    pair.memory.admin.purge_trajectory(other.trajectory_id)
    assert pair.memory.storage.conflicts.get(conflict.conflict_id) is None
    assert find(backend, pair.memory, tmp_path, "6379177", "quorvaneq") == []
