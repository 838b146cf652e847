"""Interrupted threads: at whatever line, memory holds what the store does. Source: design section 5."""

from __future__ import annotations

import gc
import random
import signal
import threading
from typing import Any

import pytest
from contract.world import count
from support.configs import USER, config
from support.drawn import needs
from support.evidence import scale, seed
from support.inspection import inspect
from support.interrupted import Late, every_line, in_files
from support.providers import CountingEmbeddings
from support.waits import until

import caliber
from caliber.model.deadline import within
from caliber.model.errors import Unavailable
from caliber.schema.relations import NOTE
from caliber.search.opening import SearchEngine

INTERRUPTS = scale(2_000, 20_000)


def _open(backend: Any, **overrides: Any) -> tuple[Any, Any]:
    memory = backend.open(resident__feed_poll_ms=3_600_000, write_behind__trace_enabled=False, **overrides)
    task = memory.start_trajectory("goal", initiator=USER)
    return memory, memory.current_scope(task.trajectory_id)


def _note(memory: Any, text: str) -> Any:
    return memory.add_note(entity="e", entity_type="x", note_type="fact", content=text, confidence=0.5)


def _assert_sound(memory: Any, notes: list[Any]) -> None:
    assert [memory.get(note.note_id).content for note in notes] == [note.content for note in notes]
    assert memory.admin.verify() == []


@pytest.mark.parametrize("files", ["resident/memory.py", "resident/mirrors.py", "resident/"])
def test_a_read_that_is_interrupted_leaves_memory_as_the_store_is(backend: Any, files: str) -> None:
    """The read takes over what was committed before it: rows new, changed and deleted, and vectors."""
    memory, _ = _open(backend, embedding_provider=CountingEmbeddings(), embedding__embed__note="commit")
    kept = [_note(memory, "first"), _note(memory, "second")]
    resident = inspect(memory).resident
    at = 0
    for lines in every_line(in_files(files), step=2 if files.endswith(".py") else 29):
        at += 1
        memory.storage.notes.delete(kept[0].note_id)
        changed = memory.storage.notes.update(kept[1].note_id, content=f"changed {at}")
        kept = [changed, _note(memory, f"acknowledged {at}")]
        with lines.counted():
            resident.snapshot["note"].count()
        _assert_sound(memory, kept)
    assert at > 15


def test_a_load_that_is_interrupted_is_done_again(backend: Any) -> None:
    memory, _ = _open(backend)
    kept = [_note(memory, f"note {at}") for at in range(3)]
    resident = inspect(memory).resident
    for lines in every_line(in_files("resident/memory.py", "resident/mirrors.py", "resident/mirror.py"), step=31):
        with lines.counted():
            resident.reload()
        _assert_sound(memory, kept)


@needs("sharing")
def test_following_another_process_is_interrupted(backend: Any) -> None:
    memory, _ = _open(backend)
    other = backend.open(inspect(memory).engine.config)
    kept: list[Any] = []
    files = ("resident/memory.py", "resident/mirrors.py", "storage/protocol.py", "postgres/writing/feed.py")
    for lines in every_line(in_files(*files), step=3):
        kept = [_note(other, f"foreign {len(kept)}")]
        with lines.counted():
            inspect(memory).engine.follow_feed()
        inspect(memory).engine.follow_feed()
        _assert_sound(memory, kept)


def test_what_was_committed_is_seen_although_taking_it_over_was_interrupted(backend: Any) -> None:
    """The write is interrupted once its COMMIT stands: the next read of memory, which asks nobody, has the row."""
    memory, _ = _open(backend, embedding_provider=CountingEmbeddings(), embedding__embed__note="behind")
    files = (
        "resident/memory.py",
        "embedding/embedder.py",
        "embedding/missing_vectors.py",
    )
    at = 0
    for lines in every_line(in_files(*files)):
        at += 1
        with lines.counted():
            _note(memory, f"note {at}")
        assert inspect(memory).resident.snapshot["note"].count() == count(inspect(memory).store, NOTE)
    assert at > 20
    assert memory.admin.verify() == []
    memory.flush()
    at = count(inspect(memory).store, NOTE)
    assert memory.admin.stats()["behind"]["embeddings_waiting"] == 0
    with inspect(memory).store.read() as session:
        assert session.run(inspect(memory).store.plans["embedding"].count, ())[0][0] == at


def test_neighbours_whose_linking_was_interrupted_are_linked_anew(backend: Any) -> None:
    memory, scope = _open(backend)
    from caliber.resident.conversation import neighbours

    resident = inspect(memory).resident
    at = 0
    for lines in every_line(in_files("resident/chain.py", "resident/conversation.py")):
        for _ in range(2):
            at += 1
            memory.append_turn(scope.scope_id, role="user", content=f"turn {at}")
        with lines.counted():
            neighbours(resident.snapshot["turn"], "scope_id")
        before, after = neighbours(resident.snapshot["turn"], "scope_id").columns()
        assert before.tolist() == list(range(-1, at - 1))
        assert after.tolist() == [*range(1, at), -1]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), Unavailable("late")], ids=repr)
def test_a_commit_that_was_not_taken_over_is_read_anew(backend: Any, error: BaseException, monkeypatch: Any) -> None:
    memory, _ = _open(backend)
    resident = inspect(memory).resident
    with monkeypatch.context() as patch:

        def broken(*_: Any) -> None:
            raise error

        patch.setattr(resident, "committed", broken)
        with pytest.raises(type(error)):
            _note(memory, "it stands")
    assert resident.snapshot["note"].count() == 1
    assert memory.admin.verify() == []


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals")
@pytest.mark.parametrize("limit", [None, 60], ids=["unbounded", "bounded"])
def test_the_lock_of_memory_is_free_after_an_interrupt_anywhere(limit: float | None) -> None:
    """Signals come at any step of taking and giving back; the program keeps the errors, and with them their frames."""
    chance, errors = random.Random(seed()), []

    def handler(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # an interrupt in a callback of the collector, Hypothesis has one, is a warning that fails the test
    try:
        with caliber.open(config(":memory:", embedding_provider=None)) as memory, within(limit):
            resident = inspect(memory).resident
            for _ in range(INTERRUPTS):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-6, 4e-5))
                    while True:
                        resident.settle()
                except Late as error:
                    errors.append(error)
                other = threading.Thread(target=resident.settle, daemon=True)
                other.start()
                other.join(60)
                assert not other.is_alive(), "the lock is held by nobody who would give it back"
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert len(errors) == INTERRUPTS


def test_indexing_words_that_is_interrupted_keeps_nobody_waiting(backend: Any) -> None:
    """A search is interrupted while it has its turn at the index: the next one, of any thread, has it too."""
    memory, scope = _open(backend, embedding_provider=None)
    place = inspect(memory).part(SearchEngine).searcher.keywords.place
    at = 0
    for lines in every_line(in_files("resident/keywords.py", "storage/waiting.py")):
        at += 1
        memory.append_turn(scope.scope_id, role="user", content=f"turn {at}")
        with lines.counted():
            memory.search(str(at), kinds=["turn"])
        until(lambda: place.free == 1)  # another thread may give it back
        assert memory.search(str(at), kinds=["turn"]).hits[0].content == f"turn {at}"
    assert at > 20
